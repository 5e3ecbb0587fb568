"""Time travel: the moments of a recording. `/api/now`, `/api/partitions`, `/api/problems` and `/api/why` answer for a
moment.

| address                          | answer                                                                           |
|----------------------------------|----------------------------------------------------------------------------------|
| `/api/recording`                 | name, what is recorded, times, the number of entries, and the timeline           |
| `/api/recording/entries`         | `?first=&limit=`: entries, each with number, time, mark and text                 |
| `/api/recording/difference`      | `?a=&b=`: what differs between the moments after two entries                     |
| `/api/recording/next`            | `?entry=&back=`: the next entry with a mark, or the one before                   |

`?entry=`, the number of an entry, or `?at=`, a time in milliseconds since 1970, names a moment; the default is the last
moment. The addresses in the table exist only while a recording is open.

What must stay true: a recording is read in a thread, one request at a time, so a long request delays neither the loop
nor the end of the server.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from klamm.cockpit.page_api import Cockpit, error_response, json_response, map_response, problems_response
from klamm.cockpit.recorded.cluster import RecordedCluster, entry_document, now_document, partition_map
from klamm.cockpit.recorded.why import why_document
from klamm.net.http import Answer, Handler, Request
from klamm.recording.blocks import RecordingError
from klamm.recording.difference import Changed, difference, words
from klamm.recording.reader import Recording
from klamm.recording.state import MARKS

T = TypeVar("T")

MOST_ENTRIES = 1_000
# At most this many changed values of a difference are sent. Its words count all of them.
MOST_CHANGED = 2_000
MOST_BARS = 2_000


class BadRequest(Exception):
    """A parameter is invalid; the message says what is allowed."""


class NotThere(Exception):
    """The requested partition or entry does not exist at this moment."""


def routes(cockpit: Cockpit) -> dict[str, Handler]:
    source = cockpit.source
    if not isinstance(source, RecordedCluster):
        return {}
    recording = source.recording
    turn = asyncio.Lock()

    def answering(make: Callable[[Request], Any]) -> Callable[[Request], Awaitable[Answer]]:
        async def answer(request: Request) -> Answer:
            try:
                async with turn:
                    made = await asyncio.to_thread(make, request)
                return made if isinstance(made, Answer) else json_response(made)
            except BadRequest as error:
                return error_response(400, str(error))
            except NotThere as error:
                return error_response(404, str(error))
            except RecordingError as error:
                return error_response(500, str(error))

        return answer

    def head(request: Request) -> Any:
        bars = _number(request, "bars", 400, least=1, most=MOST_BARS)
        return {
            "name": Path(recording.name).name,
            "about": recording.about,
            "source": recording.source,
            "trouble": recording.trouble,
            "first_ms": recording.first_ms,
            "last_ms": recording.last_ms,
            "entries": recording.count,
            "marks": MARKS,
            "timeline": [bar._asdict() for bar in recording.timeline(bars)],
        }

    def entries(request: Request) -> Any:
        first = _number(request, "first", 0, most=recording.count)
        limit = _number(request, "limit", 200, least=1, most=MOST_ENTRIES)
        return {"first": first, "entries": [entry_document(each) for each in recording.entries(first, limit)]}

    def now(request: Request) -> Any:
        return now_document(recording, moment(recording, request))

    def partitions(request: Request) -> Any:
        return map_response(partition_map(recording, moment(recording, request)))

    def problems(request: Request) -> Any:
        return problems_response(partition_map(recording, moment(recording, request)))

    def why(request: Request) -> Any:
        topic = request.parameters.get("topic") or ""
        partition = _number(request, "partition", None)
        found = why_document(recording, topic, partition, moment(recording, request))
        if found is None:
            raise NotThere(f"There is no partition {topic}-{partition} at this moment.")
        return found

    def compare(request: Request) -> Any:
        a, b = (_number(request, name, None, most=recording.count - 1) for name in ("a", "b"))
        changes = difference(recording.moment(a), recording.moment(b))
        return {
            "a": entry_document(recording.entry(a)),
            "b": entry_document(recording.entry(b)),
            "words": words(changes),
            "count": len(changes),
            "changed": [_changed(each) for each in changes[:MOST_CHANGED]],
        }

    def following(request: Request) -> Any:
        return {"entry": recording.next_marked(moment(recording, request), back="back" in request.parameters)}

    return {
        "/api/recording": answering(head),
        "/api/recording/entries": answering(entries),
        "/api/recording/difference": answering(compare),
        "/api/recording/next": answering(following),
        "/api/now": answering(now),
        "/api/partitions": answering(partitions),
        "/api/problems": answering(problems),
        "/api/why": answering(why),
    }


def moment(recording: Recording, request: Request) -> int:
    """The entry that a request names. Raises BadRequest."""
    if "at" in request.parameters and "entry" not in request.parameters:
        return recording.number_at(_number(request, "at", None))
    return _number(request, "entry", recording.count - 1, most=recording.count - 1)


def _number(request: Request, name: str, default: int | None, *, least: int = 0, most: int = 2**53) -> int:
    value = request.parameters.get(name)
    if value is None and default is not None:
        return default
    if value is None or not (value.isascii() and value.isdigit()) or len(value) > 16 or not least <= int(value) <= most:
        raise BadRequest(f"{name}={value} is not allowed; allowed are numbers from {least} to {most}.")
    return int(value)


def _changed(change: Changed) -> dict[str, Any]:
    key = change.key
    return {
        "section": change.section,
        "key": f"{key[0]}-{key[1]}" if isinstance(key, tuple) else str(key),
        "before": _fields(change.before),
        "after": _fields(change.after),
    }


def _fields(value: Any) -> Any:
    """A value as JSON. A value with named fields becomes an object."""
    return value._asdict() if hasattr(value, "_asdict") else value
