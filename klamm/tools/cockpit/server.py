"""The web server of the cockpit: the shell page, its script and style sheet, the stream of events, and the pages' APIs.

Each module of `pages` exports `routes(cockpit)`; `PAGES` names the modules. The script is all of static/*.js, core.js
first; the style sheet is all of static/*.css, cockpit.css first. So a new view is a module in `pages`, its name in
`PAGES`, and a script in `static` that calls `cockpit.view`.

What must stay true:
- Nothing that the cluster says reaches the shell as markup (`embedded_json`).
- Connections, streams and what waits for a slow page are bounded.
- A signal ends the server within a second, also while streams are open.
"""

import asyncio
import re
import shlex
import signal
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, aclosing, nullcontext
from html import escape
from importlib import import_module
from importlib.resources import files
from typing import Any, Final, cast

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from klamm.processes.errors import ToolError, describe_os_error
from klamm.tools.cockpit.answers import Cockpit, error_response
from klamm.tools.cockpit.exact import encoded_json
from klamm.tools.cockpit.safety import ENCODED_HEADERS, Guard
from klamm.tools.cockpit.source import ENDED, Event, Source
from klamm.visible import visible

# The first module that knows an address answers: travel does it for a recording.
PAGES: Final = ("travel", "actions", "configs", "groups", "lags", "now", "records", "topics", "why")

MAX_CONNECTIONS: Final = 200
MAX_STREAMS: Final = 20
MAX_HEAD_BYTES: Final = 16 * 1024
HEAD_TIMEOUT_S: Final = 10.0
IDLE_TIMEOUT_S: Final = 10
# How long a page may take to accept a piece of an answer.
SEND_TIMEOUT_S: Final = 60.0
# How long pages may take to accept the rest when the server stops.
STOP_TIMEOUT_S: Final = 0.5
# A silent stream gets a comment, so that a page that is gone is noticed.
KEEP_ALIVE_S: Final = 10.0

STATIC: Final = files("klamm.tools.cockpit") / "static"


def make_app(cockpit: Cockpit, host: str) -> Guard:
    """The application for a server that listens on `host`. Its `token` opens the page."""
    streams = Streams(cockpit.source)
    script, style = _joined("js", "core.js"), _joined("css", "cockpit.css")

    async def page(_request: Request) -> Response:
        return Response(shell(await cockpit.source.now(), cockpit), media_type="text/html")

    async def cockpit_js(_request: Request) -> Response:
        return Response(script, media_type="text/javascript")

    async def cockpit_css(_request: Request) -> Response:
        return Response(style, media_type="text/css")

    async def events(_request: Request) -> Response:
        return streams.open()

    routes = [
        Route("/", page),
        Route("/cockpit.js", cockpit_js),
        Route("/cockpit.css", cockpit_css),
        Route("/events", events),
    ]
    for name in PAGES:
        routes += import_module(f"klamm.tools.cockpit.pages.{name}").routes(cockpit)
    handlers: dict[Any, Any] = {404: _not_found, 500: _failed, ToolError: _troubled}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), host)


async def _not_found(_request: Request, _error: Exception) -> Response:
    return error_response(404, "There is nothing at this address.")


async def _troubled(_request: Request, error: Exception) -> Response:
    """What is shown cannot be read: a recording is damaged, for example."""
    return error_response(500, str(error))


async def _failed(_request: Request, error: Exception) -> Response:
    return error_response(500, f"A fault of the program: {error!r}")


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
    # In one pass: a text of the cluster may look like a place to fill.
    return re.sub(r"{{(\w+)}}", lambda place: filled[place[1]], (STATIC / "page.html").read_text()).encode()


def embedded_json(value: Any) -> str:
    """JSON inside a script element: no text of it can end the element, begin a comment or end a line."""
    text = encoded_json(value).decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _joined(ending: str, first: str) -> bytes:
    """All files with this ending, the first one first and the others by name."""
    names = sorted(each.name for each in STATIC.iterdir() if each.name.endswith(f".{ending}"))
    return b"\n".join((STATIC / name).read_bytes() for name in sorted(names, key=lambda name: name != first))


# -- the stream of events -----------------------------------------------------------------------------------------


class _Stream(StreamingResponse):
    """Ends the stream with the page, however that goes."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(cast(AsyncGenerator[bytes, None], self.body_iterator)):
            await super().__call__(scope, receive, send)


class Streams:
    """The open streams of server-sent events."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._open = 0

    def open(self) -> Response:
        if self._open >= MAX_STREAMS:
            return PlainTextResponse(f"{MAX_STREAMS} pages are open already; close one.\n", 503)
        return _Stream(self._events(), media_type="text/event-stream")

    async def _events(self) -> AsyncGenerator[bytes, None]:
        self._open += 1
        subscription = self._source.subscribe()
        try:
            # After an interruption the browser tries again this often.
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
            self._open -= 1
            self._source.unsubscribe(subscription)


def encoded(events: Iterable[Event]) -> bytes:
    """Events as server-sent events have them. JSON as orjson writes it has no line breaks."""
    return b"".join(b"event: %s\ndata: %s\n\n" % (name.encode(), data) for name, data in events)


# -- the server ---------------------------------------------------------------------------------------------------


class _Connection(H11Protocol):
    """A connection of uvicorn with a bound on their number, on the time until the first request is complete, and on the
    time in which nothing of an answer is accepted."""

    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
            return
        self.timeout_keep_alive_task = self.loop.call_later(HEAD_TIMEOUT_S, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        # uvicorn stops its timer here, although the head of the request may come a byte an hour.
        due = self.timeout_keep_alive_task
        self.timeout_keep_alive_task = None
        super().data_received(data)
        if due is not None and self.conn.their_state is not h11.IDLE:
            due.cancel()
        elif due is not None and self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = due

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(SEND_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_stall()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_stall()
        super().connection_lost(exc)

    def _end_stall(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()

    def send_400_response(self, msg: str) -> None:
        headers = [*ENCODED_HEADERS, (b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=msg.encode()),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class _Server(uvicorn.Server):
    """A server of uvicorn without its signal handlers, which end the process a second time after the server."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises ToolError when the address cannot be used."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
        opened.listen()
    except OSError as error:
        opened.close()
        raise ToolError(f"--port {port}: {host}:{port}: {describe_os_error(error)}") from error
    return opened


class WebServer:
    """Serves an application at a listening socket."""

    def __init__(self, app: Guard, listening: socket.socket) -> None:
        config = uvicorn.Config(
            app,
            http=_Connection,
            ws="none",
            lifespan="off",
            loop="none",
            log_config=None,
            # What any stranger can cause is no news.
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=IDLE_TIMEOUT_S,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        )
        self._server = _Server(config)
        self._listening = listening
        self._serving: asyncio.Task[None] | None = None

    def start(self) -> "asyncio.Task[None]":
        """The task that serves."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listening]))
        return self._serving

    async def stop(self, close: Callable[[], Awaitable[None]]) -> None:
        """Stops within a second; `close` ends the streams."""
        self._server.should_exit = True
        aborting = asyncio.get_running_loop().call_later(STOP_TIMEOUT_S, self._abort)
        await close()
        if self._serving is not None:
            await self._serving
        aborting.cancel()

    def _abort(self) -> None:
        for connection in list(self._server.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()


def address_of(app: Guard, listening: socket.socket) -> str:
    """The address that opens the page, with the token."""
    host, port, *_ = listening.getsockname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/?token={app.token}"


class Failure:
    """The first fault of the program in any task, for the one who runs the server."""

    def __init__(self) -> None:
        self._first: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    def report(self, error: BaseException) -> None:
        if not self._first.done():
            self._first.set_result(error)

    def report_end(self, serving: "asyncio.Task[None]") -> None:
        """The task of a server that is not to end."""
        if not serving.cancelled():
            self.report(serving.exception() or ToolError("the web server has ended"))

    @property
    def error(self) -> BaseException | None:
        return self._first.result() if self._first.done() else None

    async def wait(self) -> BaseException:
        return await asyncio.shield(self._first)


async def serve(app: Guard, listening: socket.socket, close: Callable[[], Awaitable[None]], failure: Failure) -> None:
    """Serves until SIGINT or SIGTERM, then calls `close`, which ends the streams, and stops. Raises ToolError for a
    failure, which stops the server too."""
    server = WebServer(app, listening)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    server.start().add_done_callback(failure.report_end)
    waiting = [asyncio.ensure_future(stopping.wait()), asyncio.ensure_future(failure.wait())]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    error = failure.error
    for each in waiting:
        each.cancel()
    await server.stop(close)
    if error is not None:
        raise ToolError(f"stopped by a failure: {type(error).__name__}: {error}") from error
