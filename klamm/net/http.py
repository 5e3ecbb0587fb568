"""A small HTTP server: one request for each connection. A broker's metrics and status are read with GET and have no
request bodies; a server with `max_body_bytes` takes other methods, and bodies. h11 reads requests and writes answers.

What must stay true:
- Bad input gets an answer (400, 404, 405, 413, 421, 431, 501, 503, 505) or a closed connection, and affects no other
  client. The head of a request is at most `max_head_bytes` long, its body at most `max_body_bytes`, and both, with the
  framing of a body in chunks, at most the sum; no more is held or parsed. A request is complete after `HEAD_TIMEOUT_S`;
  the client reads the answer within `READ_TIMEOUT_S`.
- Only requests that name this server in their Host header are answered (host_names.py).
- Clients that make the server wait keep no other client out. Connections are counted in three groups: guests, clients
  that `HttpServer.admit` knows, and readers of answers that do not end by themselves (`Answer.is_endless`). When there
  are `MAX_CONNECTIONS` guests, a new one takes the place of one that makes the server wait: for its request, or for the
  answer to be read.
- The connection closes after its answer. A client may close its sending side after the request and still gets the
  answer; because a client that is gone looks the same, an answer then takes no longer than `READ_TIMEOUT_S`.
- A step reads at most `EVENTS_PER_STEP` chunks of a body; the rest waits, and nothing more is received meanwhile. A
  client that may not send its request is refused as soon as the head is there (`HttpServer.admit`).
- Answers are produced only as fast as the client reads: the next piece of a streamed body is requested only when there
  is room.
- A fault of the program in a handler goes to `on_failure`.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlsplit

import h11

from klamm.base.tasks import OnFailure, start_task
from klamm.net.host_names import OwnNames

MAX_HEAD_BYTES = 8192
HEAD_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 60.0
# How long further input is discarded after a refusal. A connection closed at once would be reset before the client
# reads the reason.
LINGER_S = 2.0
# The most connections of guests, and of known clients.
MAX_CONNECTIONS = 100
# The most readers of endless answers. They do not keep other clients out.
MAX_ENDLESS = 20
# Chunks of a body that are read in one step, at some 7 microseconds each.
EVENTS_PER_STEP = 200

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"

# A request may have each of these headers once: two values would be ambiguous. h11 refuses two Hosts or two lengths.
_SINGLE_HEADERS = ("origin", "authorization", "content-type", "cookie", "sec-fetch-site")


class BadRequest(Exception):
    """Not a valid HTTP request; the message says why."""

    def __init__(self, why: str, status: int = HTTPStatus.BAD_REQUEST) -> None:
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
    """`body` is complete, or a stream of pieces. A stream that `is_endless` ends with its client, perhaps after
    days."""

    status: int
    body: bytes | AsyncGenerator[bytes, None]
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict)
    is_endless: bool = False


Handler = Callable[[Request], Awaitable[Answer]]


def refusal(status: int, why: str, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(status, f"{why}\n".encode(), headers=headers or {})


class Refused(Exception):
    """The request, whatever its body is, gets this answer."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


class RequestReader:
    """Parses one request, within the bounds of this module. Pure: it neither reads nor writes.

    If `max_body_bytes` is 0, the request is complete with its head, and a body is ignored. `on_head` gets the request
    before its body is received, and may raise `Refused`.
    """

    def __init__(
        self,
        max_body_bytes: int,
        on_head: Callable[[Request], None] = lambda _head: None,
        *,
        max_head_bytes: int = MAX_HEAD_BYTES,
    ) -> None:
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=max_head_bytes)
        self._max_body_bytes = max_body_bytes
        self._max_head_bytes = max_head_bytes
        self._on_head = on_head
        # The bytes received but not yet given to h11, and whether h11 has more events than one step takes.
        self._rest = b""
        self.has_more = False
        # How many more bytes h11 may get. h11 itself bounds only the bytes that it cannot parse yet.
        self._room = max_head_bytes
        self._head: Request | None = None
        self._body = bytearray()

    def feed(self, data: bytes) -> Request | None:
        """The request, once it is complete; bytes behind it are ignored. None while it is not complete. When `has_more`
        is set, call again without bytes. Raises BadRequest and Refused."""
        self._rest += data
        events = EVENTS_PER_STEP
        while self._rest or self.has_more:
            if not self.has_more:
                piece, self._rest = self._rest[: self._room], self._rest[self._room :]
                self._room -= len(piece)
                self.http.receive_data(piece)
            try:
                request, events = self._read(events)
            except h11.RemoteProtocolError as error:
                # h11's message repeats the whole faulty line.
                raise BadRequest(str(error)[:200], error.error_status_hint) from None
            self.has_more = not events
            if request or self.has_more:
                return request
            if not self._room:
                raise self._too_long()
        return None

    def _read(self, events: int) -> tuple[Request | None, int]:
        """The request, if it is complete, and how many of `events` are left."""
        for left in range(events, 0, -1):
            event = self.http.next_event()
            match event:
                case h11.Request():
                    self._head = _head(event)
                    self._on_head(self._head)
                    self._room += self._max_body_bytes
                    if not self._max_body_bytes:
                        return self._head, left
                    self._check_framing(self._head.headers)
                case h11.Data():
                    self._body += event.data
                    if len(self._body) > self._max_body_bytes:
                        raise self._too_long()
                case h11.EndOfMessage():
                    assert self._head is not None
                    return replace(self._head, body=bytes(self._body)), left
                case _:
                    return None, left
        return None, 0

    def _check_framing(self, headers: Mapping[str, str]) -> None:
        """Refuses a body before it is received. Raises BadRequest."""
        if "content-length" not in headers:
            return
        if "transfer-encoding" in headers:
            raise BadRequest("there are both Content-Length and Transfer-Encoding")
        if int(headers["content-length"]) > self._max_body_bytes:
            raise self._too_long()

    def _too_long(self) -> BadRequest:
        if self._head is None:
            why = f"the request's head is longer than {self._max_head_bytes} bytes"
            return BadRequest(why, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        why = f"the request's body is longer than {self._max_body_bytes} bytes"
        return BadRequest(why, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


def _head(head: h11.Request) -> Request:
    """The request without its body. Raises BadRequest."""
    if not head.http_version.startswith(b"1."):
        why = f"HTTP/{head.http_version.decode('ascii')} is not served; HTTP/1.0 and HTTP/1.1 are"
        raise BadRequest(why, HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
    headers: dict[str, str] = {}
    for name, value in head.headers:
        text = name.decode("ascii")
        if text in headers and text in _SINGLE_HEADERS:
            raise BadRequest(f"there are two headers {text}")
        headers[text] = value.decode("latin-1")
    target = head.target.decode("ascii")
    try:
        if not target.startswith("/"):
            # The form for proxies. Such a target names the host, whatever the Host header says (RFC 9112, 3.2.2).
            parts = urlsplit(target)
            if parts.scheme != "http" or not parts.netloc:
                raise BadRequest("the target is neither a path nor an address that begins with http://")
            headers["host"] = parts.netloc
            target = f"{parts.path or '/'}?{parts.query}"
        path, _, query = target.partition("?")
        parameters = dict(parse_qsl(query, keep_blank_values=True))
    except ValueError as error:
        raise BadRequest(f"the target cannot be understood: {error}") from None
    return Request(head.method.decode("ascii"), unquote(path), parameters, headers)


class HttpServer:
    """Serves `routes` (path -> handler): `bind`, then `start`; `stop` at any time.

    With `max_body_bytes` a request may have a body and any method; the handler checks both. The server answers to
    `names`; `machine_names` finds the names that the machine has for itself, which may take seconds.
    """

    def __init__(
        self,
        host: str,
        port: int,
        routes: Mapping[str, Handler],
        on_failure: OnFailure,
        *,
        max_body_bytes: int = 0,
        max_head_bytes: int = MAX_HEAD_BYTES,
        names: OwnNames | None = None,
        machine_names: Callable[[], Awaitable[frozenset[str]]] | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.on_failure = on_failure
        self.max_body_bytes = max_body_bytes
        self.max_head_bytes = max_head_bytes
        self.names = names or OwnNames(host)
        self._machine_names = machine_names
        self._learning: asyncio.Task[None] | None = None
        self._routes = routes
        self._server: Any = None  # asyncio.Server, uvloop's or the simulator's
        self._connections: dict[_Connection, None] = {}
        self._guests: dict[_Connection, None] = {}
        self._endless: dict[_Connection, None] = {}
        # The guests that make the server wait, in the order in which they began to.
        self._waited_for: dict[_Connection, None] = {}
        self._emptied: asyncio.Event | None = None

    async def bind(self) -> None:
        """Takes the port without accepting yet; port 0 becomes the one that the system chose.

        Raises OSError when the address cannot be used.
        """
        loop = asyncio.get_running_loop()
        host = self.host or None
        self._server = await loop.create_server(lambda: _Connection(self), host, self.port, start_serving=False)
        if self.port == 0:
            self.port = self._server.sockets[0].getsockname()[1]
        if self._machine_names is not None:
            self._learning = start_task(self._learn(self._machine_names), self.on_failure)

    async def _learn(self, machine_names: Callable[[], Awaitable[frozenset[str]]]) -> None:
        self.names.of_machine = await machine_names()

    async def start(self) -> None:
        """Starts to accept."""
        await self._server.start_serving()

    def stop(self) -> None:
        """Closes everything at once. Idempotent."""
        if self._learning is not None:
            self._learning.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.abort()

    async def finish(self, timeout_s: float) -> None:
        """Accepts nothing more, and closes everything when all answers have been read, or after this time."""
        if self._server is not None:
            self._server.close()
        if self._connections:
            self._emptied = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._emptied.wait()
        self.stop()

    # -- for connections ----------------------------------------------------------------------------------------------

    def opened(self, connection: "_Connection") -> bool:
        """Registers a guest; returns False if there are too many."""
        if len(self._guests) >= MAX_CONNECTIONS and self._waited_for:
            self._make_room()
        has_room = len(self._guests) < MAX_CONNECTIONS
        self._connections[connection] = self._guests[connection] = None
        return has_room

    def _make_room(self) -> None:
        """Cuts off a guest that makes the server wait: the longest-waiting guest of the address with most of them."""
        held = Counter(each.peer for each in self._waited_for)
        longest = max(self._waited_for, key=lambda each: held[each.peer])
        self.closed(longest)
        longest.abort()

    def waits_for(self, connection: "_Connection") -> None:
        """The server waits for the client to send or to read something."""
        if connection in self._guests:
            self._waited_for[connection] = None

    def waits_no_more(self, connection: "_Connection") -> None:
        self._waited_for.pop(connection, None)

    def closed(self, connection: "_Connection") -> None:
        """Idempotent."""
        for group in (self._connections, self._guests, self._waited_for, self._endless):
            group.pop(connection, None)
        if self._emptied is not None and not self._connections:
            self._emptied.set()

    def head_came(self, connection: "_Connection", head: Request) -> None:
        """Raises Refused."""
        self.check_host(head)
        if not self.admit(head):
            return
        if len(self._connections) - len(self._guests) - len(self._endless) >= MAX_CONNECTIONS:
            raise Refused(self.refused(503, "too many connections"))
        self._leave_guests(connection)

    def begins_endless(self, connection: "_Connection") -> bool:
        """Registers a reader of an endless answer; returns False if there are too many."""
        if len(self._endless) >= MAX_ENDLESS:
            return False
        self._leave_guests(connection)
        self._endless[connection] = None
        return True

    def _leave_guests(self, connection: "_Connection") -> None:
        self._guests.pop(connection, None)
        self._waited_for.pop(connection, None)

    # -- what servers decide ------------------------------------------------------------------------------------------

    def check_host(self, head: Request) -> None:
        """Raises Refused if the request names another server. A request of HTTP/1.0 may lack a Host header: no browser
        sends it."""
        host = head.headers.get("host")
        if host is not None and not self.names.has(host):
            raise Refused(self.refused(HTTPStatus.MISDIRECTED_REQUEST, self.names.why_not(host)))

    def admit(self, head: Request) -> bool:
        """Whether the client has authenticated; then guests do not keep it out. Raises Refused if the client may not
        send the request."""
        return False

    def refused(self, status: int, why: str) -> Answer:
        """The answer to an invalid request, or to a request that exceeds a limit."""
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

    peer: str = ""
    _transport: asyncio.Transport
    _task: "asyncio.Task[None] | None" = None

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._reader = RequestReader(
            server.max_body_bytes,
            lambda head: server.head_came(self, head),
            max_head_bytes=server.max_head_bytes,
        )
        self._is_answering = self._has_answered = self._is_lingering = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._timeout: asyncio.TimerHandle | None = None
        self._asker_ended: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have asyncio's methods but are no subclasses of its classes.
        self._transport = cast(asyncio.Transport, transport)
        self.peer = (transport.get_extra_info("peername") or ("",))[0]
        has_room = self._server.opened(self)
        self._server.waits_for(self)
        if has_room:
            self._begin_timeout(HEAD_TIMEOUT_S)
        else:
            self._answer(self._server.refused(503, "too many connections"), is_sending=True)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._end_timeout()
        if self._asker_ended is not None:
            self._asker_ended.cancel()
        if self._task is not None:
            self._task.cancel()
        self._server.closed(self)

    def data_received(self, data: bytes) -> None:
        if not self._is_answering:  # Only one request is answered.
            self._feed(data)

    def _go_on(self) -> None:
        if not self._is_answering and not self._transport.is_closing():
            self._transport.resume_reading()
            self._feed(b"")

    def _feed(self, data: bytes) -> None:
        try:
            request = self._reader.feed(data)
        except BadRequest as error:
            self._answer(self._server.refused(error.status, str(error)), is_sending=True)
            return
        except Refused as refused:
            self._answer(refused.answer, is_sending=True)
            return
        if request is not None:
            self._server.waits_no_more(self)
            self._answer(request)
        elif self._reader.has_more:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on)
        elif self._reader.http.they_are_waiting_for_100_continue:
            self._write(h11.InformationalResponse(status_code=100, headers=[], reason="Continue"))

    def eof_received(self) -> bool:
        """Whether the connection stays open."""
        if self._is_answering and not self._is_lingering:
            self._asker_ended = asyncio.get_running_loop().call_later(READ_TIMEOUT_S, self.abort)
            return True
        return False

    def pause_writing(self) -> None:
        self._writable.clear()
        self._server.waits_for(self)

    def resume_writing(self) -> None:
        self._writable.set()
        if not self._has_answered:
            self._server.waits_no_more(self)

    def abort(self) -> None:
        self._transport.abort()

    def _begin_timeout(self, seconds: float) -> None:
        self._timeout = asyncio.get_running_loop().call_later(seconds, self.abort)

    def _end_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()

    def _answer(self, what: Request | Answer, *, is_sending: bool = False) -> None:
        """`is_sending`: the client may still be sending its request."""
        self._is_answering = True
        self._end_timeout()
        self._task = start_task(self._send(what, is_sending), self._server.on_failure)

    def _write(self, event: h11.Response | h11.InformationalResponse | h11.Data | h11.EndOfMessage) -> None:
        self._transport.write(self._reader.http.send(event))

    async def _send(self, what: Request | Answer, is_sending: bool) -> None:
        answer = await self._server.answer(what) if isinstance(what, Request) else what
        if answer.is_endless and not self._server.begins_endless(self):
            answer = self._server.refused(503, f"{MAX_ENDLESS} readers follow already; no more are served")
        headers = [("Content-Type", answer.content_type), *answer.headers.items()]
        headers += [("Connection", "close"), ("Cache-Control", "no-store")]
        if isinstance(answer.body, bytes):
            headers.append(("Content-Length", str(len(answer.body))))
        self._write(h11.Response(status_code=answer.status, headers=headers, reason=HTTPStatus(answer.status).phrase))
        if not isinstance(what, Request) or what.method != "HEAD":
            await self._send_body(answer.body)
        self._write(h11.EndOfMessage())
        self._has_answered = True
        self._server.waits_for(self)
        if is_sending:
            self._is_lingering = True
            self._transport.write_eof()
            self._begin_timeout(LINGER_S)
            return
        self._begin_timeout(READ_TIMEOUT_S)
        self._transport.close()

    async def _send_body(self, body: bytes | AsyncGenerator[bytes, None]) -> None:
        if isinstance(body, bytes):
            self._write(h11.Data(data=body))
            return
        async with contextlib.aclosing(body) as pieces:
            async for piece in pieces:
                self._write(h11.Data(data=piece))
                if not self._writable.is_set():
                    self._begin_timeout(READ_TIMEOUT_S)
                    await self._writable.wait()
                    self._end_timeout()
