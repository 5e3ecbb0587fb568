"""The web server of the cockpit: the shell page, its script and style sheet, the stream of events, and the pages' APIs.

Each module of `pages` exports `routes(cockpit)`; `PAGES` names the modules. The script is all of static/*.js, core.js
first; the style sheet is all of static/*.css, cockpit.css first. A new view is a module in `pages`, its name in
`PAGES`, and a script in `static` that calls `cockpit.view`.

What must stay true:
- No text from the cluster reaches the shell as markup (`embedded_json`).
- Connections, streams and the queue for a slow page are bounded, and strangers cannot use up what the page's owner
  needs (klamm.net.http).
- A signal ends the server within a second, also while streams are open.
"""

import asyncio
import re
import shlex
import signal
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from importlib import import_module
from importlib.resources import files
from typing import Any, Final

from klamm.base.system_environment import SystemEnvironment
from klamm.base.tasks import OnFailure
from klamm.base.visible import visible
from klamm.cockpit.page_api import Cockpit, error_response
from klamm.cockpit.page_json import encoded_json
from klamm.cockpit.safety import HEADERS, Guard, NotAllowed, gives_token
from klamm.cockpit.source import ENDED, Event, Source
from klamm.net.host_names import OwnNames
from klamm.net.http import Answer, Handler, HttpServer, Refused, Request, refusal
from klamm.processes.tool_errors import ToolError, describe_os_error

# The first module that knows an address answers. For a recording that is travel.
PAGES: Final = ("travel", "actions", "configs", "groups", "lags", "now", "records", "topics", "why")

MAX_HEAD_BYTES: Final = 16 * 1024
MAX_BODY_BYTES: Final = 64 * 1024
# How long pages may take to receive the rest when the server stops.
STOP_TIMEOUT_S: Final = 0.5
# A silent stream gets a comment, so that a page that is gone is noticed.
KEEP_ALIVE_S: Final = 10.0
WILDCARDS: Final = ("0.0.0.0", "::")

STATIC: Final = files("klamm.cockpit") / "static"


def routes_of(cockpit: Cockpit) -> dict[str, Handler]:
    """The handler of each address."""
    script, style = _joined("js", "core.js"), _joined("css", "cockpit.css")

    async def page(_request: Request) -> Answer:
        return Answer(200, shell(await cockpit.source.now(), cockpit), "text/html; charset=utf-8")

    async def cockpit_js(_request: Request) -> Answer:
        return Answer(200, script, "text/javascript; charset=utf-8")

    async def cockpit_css(_request: Request) -> Answer:
        return Answer(200, style, "text/css; charset=utf-8")

    async def events(_request: Request) -> Answer:
        return Answer(200, event_stream(cockpit.source), "text/event-stream; charset=utf-8", is_endless=True)

    routes: dict[str, Handler] = {"/": page, "/cockpit.js": cockpit_js, "/cockpit.css": cockpit_css, "/events": events}
    for name in PAGES:
        routes = import_module(f"klamm.cockpit.pages.{name}").routes(cockpit) | routes
    return routes


def shell(now: Any, cockpit: Cockpit) -> bytes:
    """The page with its first data."""
    filled = {
        "title": escape(visible(str(now["cluster"]["id"] or "a cluster"))),
        "settings": embedded_json(
            {
                "allow_changes": cockpit.allow_changes,
                "recording": now["cluster"]["kind"] == "recording",
                "reach": shlex.join(cockpit.brokers_options),
            }
        ),
        "now": embedded_json(now),
    }
    # In one pass: a text from the cluster may look like a placeholder.
    return re.sub(r"{{(\w+)}}", lambda place: filled[place[1]], (STATIC / "page.html").read_text()).encode()


def embedded_json(value: Any) -> str:
    """JSON for a script element. No text in it can end the element, begin a comment or end a line."""
    text = encoded_json(value).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _joined(ending: str, first: str) -> bytes:
    """All files with this ending: `first`, and then the others by name."""
    names = sorted(each.name for each in STATIC.iterdir() if each.name.endswith(f".{ending}"))
    return b"\n".join((STATIC / name).read_bytes() for name in sorted(names, key=lambda name: name != first))


# -- the stream of events -----------------------------------------------------------------------------------------


async def event_stream(source: Source) -> AsyncGenerator[bytes, None]:
    """The source's events as server-sent events, until the source or the page ends."""
    subscription = source.subscribe()
    try:
        # How often the browser tries to reconnect.
        yield b"retry: 1000\n\n"
        while True:
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    events = await subscription.read()
            except TimeoutError:
                yield b": idle\n\n"
                continue
            if not events:
                yield encoded([(ENDED, b"{}")])
                return
            yield encoded(events)
    finally:
        source.unsubscribe(subscription)


def encoded(events: Iterable[Event]) -> bytes:
    """Events in the format of server-sent events. The JSON of `json_bytes` has no line breaks."""
    return b"".join(b"event: %s\ndata: %s\n\n" % (name.encode(), data) for name, data in events)


# -- the server ---------------------------------------------------------------------------------------------------


class WebServer(HttpServer):
    """Serves the pages of a cockpit: `open`, then `show`; `end` at any time.

    `host` is the address to listen on; the server also answers to `names`. `token` is a given token (`Guard`).
    """

    def __init__(
        self, host: str, port: int, on_failure: OnFailure, *, token: str | None = None, names: Sequence[str] = ()
    ) -> None:
        environment = SystemEnvironment(blocking_workers=1)
        super().__init__(
            host,
            port,
            {},
            on_failure,
            max_body_bytes=MAX_BODY_BYTES,
            max_head_bytes=MAX_HEAD_BYTES,
            names=OwnNames(host, lambda: names, setting="--allow-host"),
            machine_names=partial(environment.run_foreign, environment.host_names),
        )
        self.guard = Guard(token)

    async def open(self) -> None:
        """Takes the port. Raises ToolError when the address cannot be used."""
        try:
            await self.bind()
        except OSError as error:
            raise ToolError(f"--port {self.port}: {describe_os_error(error)}") from error

    async def show(self, cockpit: Cockpit) -> None:
        """Serves the pages of this cockpit."""
        self._routes = routes_of(cockpit)
        await self.start()

    async def end(self, close: Callable[[], Awaitable[None]]) -> None:
        """Stops within a second; `close` ends the streams."""
        await close()
        await self.finish(STOP_TIMEOUT_S)

    @property
    def urls(self) -> list[str]:
        """The addresses that open the page, with the token; first the address for other machines, if there is one."""
        hosts = [f"[{self.host}]" if ":" in self.host else self.host]
        if self.host in WILDCARDS:
            hosts = [socket.gethostname(), "127.0.0.1"]
        return [f"http://{host}:{self.port}/?token={self.guard.token}" for host in hosts]

    # -- what HttpServer asks -----------------------------------------------------------------------------------------

    def admit(self, head: Request) -> bool:
        try:
            self.guard.check(head)
        except NotAllowed as error:
            raise Refused(self._refused(head, error)) from None
        return True

    def _refused(self, head: Request, error: NotAllowed) -> Answer:
        if error.status == 401 and head.path == "/":
            # A person may have the token without the address.
            text = (STATIC / "token.html").read_text().replace("{{why}}", escape(str(error)))
            return _safe(Answer(401, text.encode(), "text/html; charset=utf-8"))
        return self.refused(error.status, str(error))

    def refused(self, status: int, why: str) -> Answer:
        return _safe(refusal(status, why))

    async def answer(self, request: Request) -> Answer:
        if gives_token(request):
            return _safe(Answer(303, b"", headers={"Location": "/", "Set-Cookie": self.guard.cookie}))
        handler = self._routes.get(request.path, _not_found)
        try:
            return _safe(await handler(request))
        except ToolError as error:
            # The source cannot be read: for example, a recording is damaged.
            return _safe(error_response(500, str(error)))
        except Exception as error:
            return _safe(error_response(500, f"A fault of the program: {error!r}"))


async def _not_found(_request: Request) -> Answer:
    return error_response(404, "There is nothing at this address.")


def _safe(answer: Answer) -> Answer:
    return replace(answer, headers={**answer.headers, **HEADERS})


class Failure:
    """The first programming error in any task, for the caller that runs the server."""

    def __init__(self) -> None:
        self._first: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    def report(self, error: BaseException) -> None:
        if not self._first.done():
            self._first.set_result(error)

    @property
    def error(self) -> BaseException | None:
        return self._first.result() if self._first.done() else None

    async def wait(self) -> BaseException:
        return await asyncio.shield(self._first)


async def serve(server: WebServer, close: Callable[[], Awaitable[None]], failure: Failure) -> None:
    """Serves until SIGINT or SIGTERM, then calls `close`, which ends the streams, and stops. A failure also stops the
    server, and raises ToolError."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    waiting = [asyncio.ensure_future(stopping.wait()), asyncio.ensure_future(failure.wait())]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    error = failure.error
    for each in waiting:
        each.cancel()
    await server.end(close)
    if error is not None:
        raise ToolError(f"stopped by a failure: {type(error).__name__}: {error}") from error
