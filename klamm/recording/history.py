"""Writes a recording of a cluster whose owner keeps its history: znode versions, the history and the controllers'
records.

What must stay true: entries are in the order of their times. The times of records from a broker with a wrong clock are
moved into the recording's period.
"""

import heapq
import http.client
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Final

from klamm.base import json_bytes
from klamm.faults.entries import ChronicleEntry, MetadataChange
from klamm.recording.entries import RECORD_KINDS, Json, history_entry
from klamm.recording.spool import Spool
from klamm.recording.writer import RecordingWriter

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024


def write_recording(
    path: Path, about: str, spool: Spool, history: Iterable[ChronicleEntry], records: Iterable[Json], now_ms: int
) -> None:
    """Writes a file of a cluster under test. Raises OSError."""
    # Metadata changes are left out: the recording has the znode versions themselves.
    told = [(entry.time_ms, history_entry(entry)) for entry in history if not isinstance(entry, MetadataChange)]
    first = next(spool.entries(), None)
    began_ms = min([each[0] for each in (first, *told[:1]) if each is not None], default=now_ms)
    decided = [(min(max(record["time_ms"], began_ms), now_ms), record) for record in records]
    decided.sort(key=itemgetter(0))
    with open(path, "wb") as file:
        written = RecordingWriter(file, "test", about, began_ms)
        for at_ms, entry in heapq.merge(told, spool.entries(), decided, key=itemgetter(0)):
            written.add(entry, at_ms)
        if spool.dropped:
            written.add({"kind": "missed", "text": f"{spool.dropped} versions of znodes were not kept"}, now_ms)
        written.flush()


def read_records(host: str, port: int, timeout_s: float) -> list[Json]:
    """The newest controller records of a broker, from its HTTP port; empty if it does not answer."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", "/controller/events")
        lines = connection.getresponse().read(MAX_ANSWER_BYTES).splitlines()
        return list(_records(lines))
    except (OSError, http.client.HTTPException):
        return []
    finally:
        connection.close()


def _records(lines: Iterable[bytes]) -> Iterator[Json]:
    for line in lines:
        try:
            record = json_bytes.decode(line)
        except json_bytes.JsonError:
            return  # The broker died in the middle of its answer.
        if isinstance(record, dict) and record.get("kind") in RECORD_KINDS and type(record.get("time_ms")) is int:
            yield record
