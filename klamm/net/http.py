"""A small HTTP server: one request for each connection. A broker's metrics and status are read with GET and have no
request bodies; a server with `max_body_bytes` takes other methods, and bodies.

What must stay true:
- Bad input gets an answer (400, 404, 405, 413, 503) or a closed connection, and affects no other client. The head of a
  request is at most `MAX_HEAD_BYTES` long, its body at most `max_body_bytes`; both are complete after
  `HEAD_TIMEOUT_S`; the client reads the answer within `READ_TIMEOUT_S`.
- The connection closes after its answer. A client may close its sending side after the request and still gets the
  answer; because a client that is gone looks the same, an answer then takes no longer than `READ_TIMEOUT_S`.
- Answers are produced only as fast as the client reads: the next piece of a streamed body is requested only when there
  is room.
- A fault of the program in a handler goes to `on_failure`.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from klamm.tasks import OnFailure, start_task

MAX_HEAD_BYTES = 8192
HEAD_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 60.0
# How long further input is discarded after a refusal. A connection closed at once would be reset before the client
# reads the reason.
LINGER_S = 2.0
MAX_CONNECTIONS = 100

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"

_REASONS = {
    200: "OK",
    201: "Created",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e]+) HTTP/1\.[01]")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([^\x00\r\n]*)")
_LENGTH = re.compile(r"[0-9]{1,18}")
# Two of them could be read in two ways.
_SINGLE_HEADERS = ("host", "origin", "content-length", "authorization", "content-type")


class BadRequest(Exception):
    """Not a valid HTTP request; the message says why."""

    def __init__(self, why: str, status: int = 400) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """`path` is decoded. If a parameter is given twice, the last value counts. The names of `headers` are in lower
    case."""

    method: str
    path: str
    parameters: Mapping[str, str]
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """`body` is complete, or a stream of pieces that ends by itself or with the client."""

    status: int
    body: bytes | AsyncGenerator[bytes, None]
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Request], Awaitable[Answer]]


def refusal(status: int, why: str, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(status, f"{why}\n".encode(), headers=headers or {})


def parse_request(head: bytes) -> Request:
    """Parses a request line and headers, up to the empty line. Pure. Raises BadRequest."""
    line, *headers = head.split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        raise BadRequest("the first line is not METHOD target HTTP/1.1")
    values: dict[str, str] = {}
    for header in headers:
        parsed = _HEADER.fullmatch(header)
        if parsed is None:
            raise BadRequest("a header is not name: value")
        name = parsed[1].decode("ascii").lower()
        if name in values and name in _SINGLE_HEADERS:
            raise BadRequest(f"there are two headers {name}")
        values[name] = parsed[2].decode("latin-1").strip(" \t")
    target = match[2].decode("ascii")
    try:
        parts = urlsplit(target)
        parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    except ValueError as error:
        raise BadRequest(f"the target cannot be understood: {error}") from None
    if not parts.path.startswith("/"):
        raise BadRequest("the target is not a path")
    return Request(match[1].decode("ascii"), unquote(parts.path), parameters, values)


def body_length(request: Request, max_body_bytes: int) -> int:
    """How many bytes follow the head. Raises BadRequest."""
    if "transfer-encoding" in request.headers:
        raise BadRequest("a body needs a Content-Length; Transfer-Encoding is not served")
    text = request.headers.get("content-length", "0")
    if _LENGTH.fullmatch(text) is None:
        raise BadRequest(f"Content-Length: {text[:20]!r} is not a number of bytes")
    if int(text) > max_body_bytes:
        raise BadRequest(f"a body may have {max_body_bytes} bytes, this one has {text}", 413)
    return int(text)


class HttpServer:
    """Serves `routes` (path -> handler): `bind`, then `start`; `stop` at any time.

    With `max_body_bytes` a request may have a body, and another method than GET; the handler looks at both.
    """

    def __init__(
        self, host: str, port: int, routes: Mapping[str, Handler], on_failure: OnFailure, *, max_body_bytes: int = 0
    ) -> None:
        self.host = host
        self.port = port
        self.on_failure = on_failure
        self.max_body_bytes = max_body_bytes
        self._routes = routes
        self._server: Any = None  # asyncio.Server, uvloop's or the simulator's
        self._connections: dict[_Connection, None] = {}

    async def bind(self) -> None:
        """Takes the port without accepting yet; port 0 becomes the one that the system chose.

        Raises OSError when the address cannot be used.
        """
        loop = asyncio.get_running_loop()
        host = self.host or None
        self._server = await loop.create_server(lambda: _Connection(self), host, self.port, start_serving=False)
        if self.port == 0:
            self.port = self._server.sockets[0].getsockname()[1]

    async def start(self) -> None:
        """Starts to accept."""
        await self._server.start_serving()

    def stop(self) -> None:
        """Closes everything at once. Idempotent."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.abort()

    def opened(self, connection: "_Connection") -> bool:
        """Registers the connection; returns False if there are too many."""
        self._connections[connection] = None
        return len(self._connections) <= MAX_CONNECTIONS

    def closed(self, connection: "_Connection") -> None:
        del self._connections[connection]

    def refused(self, status: int, why: str) -> Answer:
        """The answer to what is no request, or one too many."""
        return refusal(status, why)

    async def answer(self, request: Request) -> Answer:
        handler = self._routes.get(request.path)
        if handler is None:
            return refusal(404, f"there is nothing at {request.path[:100]!r}; there is {', '.join(self._routes)}")
        if request.method != "GET" and not self.max_body_bytes:
            return refusal(405, "only GET is allowed", {"Allow": "GET"})
        return await handler(request)


class _Connection(asyncio.Protocol):
    """One client, one request, one answer."""

    _transport: asyncio.Transport
    _task: "asyncio.Task[None] | None" = None

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._received = bytearray()
        # The request whose body is being received, and how many bytes it has.
        self._request: Request | None = None
        self._body_bytes = 0
        self._is_answering = self._is_lingering = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._timeout: asyncio.TimerHandle | None = None
        self._asker_ended: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have asyncio's methods but are no subclasses of its classes.
        self._transport = cast(asyncio.Transport, transport)
        if not self._server.opened(self):
            self._answer(self._server.refused(503, "too many connections"))
            return
        self._begin_timeout(HEAD_TIMEOUT_S)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._end_timeout()
        if self._asker_ended is not None:
            self._asker_ended.cancel()
        if self._task is not None:
            self._task.cancel()
        self._server.closed(self)

    def data_received(self, data: bytes) -> None:
        if self._is_answering:
            return  # Only one request is answered.
        self._received += data
        if self._request is not None:
            self._body_received(self._request)
            return
        end = self._received.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
        if end < 0:
            if len(self._received) >= MAX_HEAD_BYTES:
                why = f"the request is longer than {MAX_HEAD_BYTES} bytes"
                self._answer(self._server.refused(400, why), is_sending=True)
            return
        try:
            request = parse_request(bytes(self._received[:end]))
            if limit := self._server.max_body_bytes:
                self._body_bytes = body_length(request, limit)
        except BadRequest as error:
            self._answer(self._server.refused(error.status, str(error)), is_sending=error.status == 413)
            return
        if not self._body_bytes:
            self._answer(request)
            return
        del self._received[: end + 4]
        self._request = request
        if not self._received and request.headers.get("expect", "").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._body_received(request)

    def _body_received(self, request: Request) -> None:
        if len(self._received) >= self._body_bytes:
            self._answer(replace(request, body=bytes(self._received[: self._body_bytes])))

    def eof_received(self) -> bool:
        """Whether the connection stays open."""
        if self._is_answering and not self._is_lingering:
            self._asker_ended = asyncio.get_running_loop().call_later(READ_TIMEOUT_S, self.abort)
            return True
        return False

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def abort(self) -> None:
        self._transport.abort()

    def _begin_timeout(self, seconds: float) -> None:
        self._timeout = asyncio.get_running_loop().call_later(seconds, self.abort)

    def _end_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()

    def _answer(self, what: Request | Answer, *, is_sending: bool = False) -> None:
        """`is_sending`: the client is still sending its request."""
        self._is_answering = True
        self._received.clear()
        self._end_timeout()
        self._task = start_task(self._send(what, is_sending), self._server.on_failure)

    async def _send(self, what: Request | Answer, is_sending: bool) -> None:
        answer = await self._server.answer(what) if isinstance(what, Request) else what
        head = [f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}", f"Content-Type: {answer.content_type}"]
        head += [f"{name}: {value}" for name, value in answer.headers.items()]
        head += ["Connection: close", "Cache-Control: no-store"]
        if isinstance(answer.body, bytes):
            head.append(f"Content-Length: {len(answer.body)}")
        self._transport.write("\r\n".join([*head, "", ""]).encode())
        if isinstance(answer.body, bytes):
            self._transport.write(answer.body)
        else:
            async with contextlib.aclosing(answer.body) as pieces:
                async for piece in pieces:
                    self._transport.write(piece)
                    if not self._writable.is_set():
                        self._begin_timeout(READ_TIMEOUT_S)
                        await self._writable.wait()
                        self._end_timeout()
        if is_sending:
            self._is_lingering = True
            self._transport.write_eof()
            self._begin_timeout(LINGER_S)
            return
        self._begin_timeout(READ_TIMEOUT_S)
        self._transport.close()
