"""A session of a ZooKeeper client, kept alive over as many connections as necessary.

Theory of operation
- The server alone decides that a session has expired. Losing the connection is *disconnection*: pending calls fail with
  ConnectionLoss (they may or may not have been done), later calls wait, and the session tries the servers in turn until
  one accepts it again. When a server says that the session is gone, that is *expiry*: every call fails with
  SessionExpired, this object is finished, and its owner makes a new one.
- Calls are pipelined: `_submit` sends and returns a future, and the server does and answers them in that order.
- Work on thousands of calls or watches is done in slices. On a new connection, calls wait until the watches are armed
  and earlier calls are sent. Calls that fail with a connection may fail after later calls are sent.
- A watch that a read leaves is armed once the read has succeeded (for `exists` also when the znode is absent), fires
  once, and survives disconnections. Callbacks of watches and listeners run in a turn of the loop of their own, after
  the results that came before them.
- A request larger than servers accept (`framing.MAX_REQUEST_BYTES`) is never sent: `RequestTooLarge` is raised.
- Callers use paths without the chroot: it is prepended to requests and removed from responses and events.

| state        | meaning                                                        | next states                          |
|--------------|----------------------------------------------------------------|--------------------------------------|
| CONNECTING   | never been connected                                           | CONNECTED, AUTH_FAILED, CLOSED       |
| CONNECTED    | a server has the session                                       | DISCONNECTED and the three final ones|
| DISCONNECTED | the session may live, no server has been found that has it     | CONNECTED and the three final ones   |
| EXPIRED, AUTH_FAILED, CLOSED | finished                                       | none                                 |
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, TypeVar

from klamm.base.environment import Environment
from klamm.base.slices import Slices, Steps, begin
from klamm.zookeeper import jute, messages
from klamm.zookeeper.client.connect_string import parse_connect_string
from klamm.zookeeper.client.connection import Call, Connection
from klamm.zookeeper.client.watches import Watch, WatchKind, WatchTable
from klamm.zookeeper.framing import LENGTH_BYTES, MAX_REQUEST_BYTES
from klamm.zookeeper.keeper_exceptions import (
    AuthFailed,
    BadArguments,
    ClientClosed,
    ConnectionLoss,
    JuteError,
    RequestTooLarge,
    SessionExpired,
    ZooKeeperError,
    ZooKeeperErrorCode,
)
from klamm.zookeeper.messages import ConnectRequest, ConnectResponse, OpCode, WatcherEvent

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_BACK_OFF_SECONDS = 0.025
MAX_BACK_OFF_SECONDS = 0.5
HEALTHY_SECONDS = 1.0
"""A connection that lasted this long resets the back-off; a shorter one counts as a failure."""

MIN_ATTEMPTS = 3
"""At least this many attempts, and one on each server, fit into a session time-out, even if no server answers the
handshake: ZooKeeper may accept a connection while it starts and then forget it for ten seconds."""


class State(Enum):
    CONNECTING = "connecting"
    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    EXPIRED = "expired"
    AUTH_FAILED = "authentication failed"
    CLOSED = "closed"


_FINAL_ERRORS: dict[State, type[ZooKeeperError]] = {
    State.EXPIRED: SessionExpired,
    State.AUTH_FAILED: AuthFailed,
    State.CLOSED: ClientClosed,
}
"""The final states, and the error that calls raise in each."""

_NEXT_STATES: dict[State, tuple[State, ...]] = {
    State.CONNECTING: (State.CONNECTED, *_FINAL_ERRORS),
    State.CONNECTED: (State.DISCONNECTED, *_FINAL_ERRORS),
    State.DISCONNECTED: (State.CONNECTED, *_FINAL_ERRORS),
    State.EXPIRED: (),
    State.AUTH_FAILED: (),
    State.CLOSED: (),
}

StateListener = Callable[[State], None]


class Session:
    """See the module; its calls are in `operations`. Every method but the constructor belongs to one running loop.

    `connect`: the connect string. `session_timeout_ms`: the requested time-out; the server may grant another.
    `max_in_flight`: how many calls may wait for their reply at once (None: any number); more are queued. `session`: the
    id and password of a session to take over instead of a new one.
    """

    def __init__(
        self,
        environment: Environment,
        connect: str,
        *,
        session_timeout_ms: int = 18_000,
        max_in_flight: int | None = None,
        session: tuple[int, bytes] | None = None,
    ) -> None:
        servers, self._chroot = parse_connect_string(connect)
        self._random = environment.random
        self._servers = self._random.sample(servers, len(servers))
        self._wanted_timeout_ms = session_timeout_ms
        self._granted_timeout_ms = session_timeout_ms
        self._max_in_flight = max_in_flight
        self._session_id, self._password = session or (0, bytes(16))
        self._last_zxid = 0
        self._state = State.CONNECTING
        self._failure = ""  # Why the last attempt to connect, or the last connection, ended.
        self._listeners: list[StateListener] = []
        self._watches = WatchTable()
        self._credentials: list[tuple[str, bytes, asyncio.Future[None]]] = []
        self._auth_answers: deque[asyncio.Future[None]] = deque()  # Requested on this connection, in order.
        self._waiting: deque[Call] = deque()  # Made while there was no connection, or behind such calls.
        self._connection: Connection | None = None  # Set while CONNECTED.
        self._ready: Connection | None = None  # The same, once the watches are armed and no calls wait.
        self._long_work: set[asyncio.Task[None]] = set()
        self._attempt: Connection | None = None  # The newest, attached or not.
        self._xids = itertools.count(1)
        self._loop: asyncio.AbstractEventLoop
        self._task: asyncio.Task[None] | None = None
        self._settled: asyncio.Future[None]  # Done once the client has left CONNECTING.

    @property
    def state(self) -> State:
        return self._state

    @property
    def chroot(self) -> str:
        """The prefix of every path: "", or a path that begins with a slash."""
        return self._chroot

    @property
    def session_id(self) -> int:
        """The session's id, and the `ephemeral_owner` of its znodes. 0 before the first connection."""
        return self._session_id

    @property
    def session_password(self) -> bytes:
        """Another client needs it, with the id, to take the session over."""
        return self._password

    @property
    def session_timeout_ms(self) -> int:
        """The time-out that the server has granted; before the first connection, the requested time-out."""
        return self._granted_timeout_ms

    @property
    def sends_at_once(self) -> bool:
        """Whether a request is sent at once. Otherwise it waits for a connection whose watches are armed."""
        return self._ready is not None

    @property
    def last_zxid(self) -> int:
        """The zxid of the newest transaction that this client knows of."""
        return self._last_zxid if self._connection is None else max(self._last_zxid, self._connection.last_zxid)

    def add_listener(self, listener: StateListener) -> None:
        """Calls `listener` with every state that the client enters from now on."""
        self._listeners.append(listener)

    async def start(self, timeout_ms: int | None = None) -> None:
        """Connects. If this fails or is cancelled, the client is finished.

        Raises ConnectionLoss when no server accepted the session within `timeout_ms`; AuthFailed; SessionExpired (only
        when it was to take a session over).
        """
        self._loop = asyncio.get_running_loop()
        self._settled = self._loop.create_future()
        self._task = self._loop.create_task(self._keep_connected())
        self._task.add_done_callback(_raise_program_error)
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._settled
        except TimeoutError:
            servers = ", ".join(f"{host}:{port}" for host, port in self._servers)
            reason = f"no session with {servers} within {timeout_ms} ms; {self._failure or 'no answer'}"
            await self.close()
            raise ConnectionLoss(message=reason) from None
        except asyncio.CancelledError:
            self._finish(State.CLOSED, "its start was cancelled")
            raise
        if self._state in _FINAL_ERRORS:
            raise self._final_error()

    async def close(self) -> None:
        """Ends the session, with its ephemeral znodes and watches, after the calls already made. Idempotent.

        Without a connection the session is left to expire.
        """
        if self._connection is not None:
            try:
                await self._submit(messages.CloseSession(), "", "", no_result)
            except ZooKeeperError as error:
                logger.info("session 0x%x is left to expire: %s", self._session_id, error)
        self._finish(State.CLOSED, "closed by its owner")
        if self._task is not None:
            await asyncio.gather(self._task, *self._long_work, return_exceptions=True)

    async def add_auth(self, scheme: str, credentials: bytes) -> None:
        """Adds an identity, as `("digest", b"user:password")`, to this session, on every connection. AuthFailed."""
        if self._state in _FINAL_ERRORS:
            raise self._final_error()
        answer: asyncio.Future[None] = self._loop.create_future()
        self._credentials.append((scheme, credentials, answer))
        if self._connection is not None:
            self._send_auth(self._connection, scheme, credentials, answer)
        await answer

    # Paths.

    def _full_path(self, path: str, *, sequential: bool = False) -> str:
        """The path with the chroot. The server checks the remaining rules for paths."""
        if not path.startswith("/") or (path.endswith("/") and path != "/" and not sequential):
            raise BadArguments(path, "a path begins with a slash and does not end with one")
        if not self._chroot:
            return path
        return self._chroot if path == "/" else self._chroot + path

    def _user_path(self, full: str) -> str:
        return full[len(self._chroot) :] or "/"

    # Calls.

    def _submit(
        self,
        request: messages.Request,
        path: str,
        full_path: str,
        convert: Callable[[Any], T | Steps[T]],
        watch: Watch | None = None,
        absent: tuple[T] | None = None,
    ) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = self._loop.create_future()
        if self._state in _FINAL_ERRORS:
            future.set_exception(self._final_error(path))
            return future
        xid = next(self._xids) & 0x7FFFFFFF
        try:
            frame = jute.encode_request(xid, request)
        except UnicodeEncodeError:
            raise BadArguments(ascii(path), "a path is Unicode text without surrogates") from None
        size_bytes = len(frame) - LENGTH_BYTES
        if size_bytes > MAX_REQUEST_BYTES:
            raise RequestTooLarge(path, f"a request of {size_bytes} bytes; servers take {MAX_REQUEST_BYTES}")
        call = Call(xid, request.op, frame, path, full_path, future, convert, watch, absent)
        if self._ready is not None:
            self._ready.send(call)
        else:
            self._waiting.append(call)
        return future

    def _final_error(self, path: str = "") -> ZooKeeperError:
        return _FINAL_ERRORS[self._state](path, self._failure)

    # State.

    def _enter(self, state: State) -> None:
        assert state in _NEXT_STATES[self._state], f"{self._state} -> {state}"
        logger.info("session 0x%x: %s", self._session_id, state.value)
        self._state = state
        if not self._settled.done():
            self._settled.set_result(None)
        for listener in self._listeners:
            self._loop.call_soon(listener, state)

    def _finish(self, state: State, reason: str) -> None:
        """Enters a final state: every call fails, and nothing more is sent. Does nothing in a final state."""
        if self._state in _FINAL_ERRORS:
            return
        self._failure = reason
        if self._task is None:  # Never started: no loop, no calls.
            self._state = state
            return
        self._enter(state)
        calls = [*self._waiting]
        self._waiting.clear()
        if self._attempt is not None:
            calls = [*self._attempt.unanswered(), *calls]
            self._attempt.abort(reason)
        self._connection = self._ready = None
        self._begin(_fail(calls, self._final_error))
        for _, _, answer in self._credentials:
            if not answer.done():
                answer.set_exception(self._final_error())
        self._task.cancel()

    # Connecting.

    async def _keep_connected(self) -> None:
        """Tries the servers in turn until it is cancelled, when the client is finished."""
        failures = 0
        for host, port in itertools.cycle(self._servers):
            started = self._loop.time()
            attached = await self._serve(host, port)
            failures = 0 if attached and self._loop.time() - started >= HEALTHY_SECONDS else failures + 1
            rounds, rest = divmod(failures, len(self._servers))
            if rounds and not rest:
                longest = min(MAX_BACK_OFF_SECONDS, FIRST_BACK_OFF_SECONDS * 2 ** min(rounds - 1, 10))
                await asyncio.sleep(longest * self._random.uniform(0.5, 1))

    async def _serve(self, host: str, port: int) -> bool:
        """Connects to one server until the connection is gone. Returns whether the server accepted the session."""
        hello = ConnectRequest(self._last_zxid, self._wanted_timeout_ms, self._session_id, self._password)
        connection = self._attempt = Connection(self, hello, self._max_in_flight)
        try:
            async with asyncio.timeout(self._granted_timeout_ms / 1000 / max(MIN_ATTEMPTS, len(self._servers))):
                await self._loop.create_connection(lambda: connection, host, port)
                # A wait that is given up must not cancel the handshake, whose outcome is read below.
                await asyncio.shield(connection.handshake)
        except TimeoutError:
            connection.abort("no answer to the handshake")
            self._failure = f"{host}:{port}: no answer"
        except OSError as error:
            self._failure = f"{host}:{port}: {error}"
        else:
            await connection.closed
            self._failure = f"{host}:{port}: {connection.reason}"
        logger.info("session 0x%x: %s", self._session_id, self._failure)
        return connection.handshake.done() and connection.handshake.result()

    # What the connection says (ConnectionOwner).

    def attached(self, connection: Connection, response: ConnectResponse) -> None:
        if response.timeout_ms <= 0 or response.session_id == 0:
            self._finish(State.EXPIRED, "the server has ended the session")
            return
        if self._session_id not in (0, response.session_id):
            raise JuteError(f"session 0x{response.session_id:x} instead of 0x{self._session_id:x}")
        self._session_id, self._password = response.session_id, response.password
        self._granted_timeout_ms = response.timeout_ms
        self._connection = connection
        self._enter(State.CONNECTED)
        self._auth_answers.clear()
        for scheme, credentials, answer in self._credentials:
            self._send_auth(connection, scheme, credentials, answer)
        self._begin(self._resume(connection))

    def _resume(self, connection: Connection) -> Steps[None]:
        """Arms the watches on a new connection, and sends the calls that have waited for it."""
        for _ in connection.set_watches(self._watches.set_watches(self._last_zxid)):
            yield
            if connection is not self._connection:
                return
        slices = Slices()
        while self._waiting:
            call = self._waiting.popleft()
            if not call.future.done():
                connection.send(call)
            if slices.spend():
                yield
                if connection is not self._connection:
                    return
        self._ready = connection

    def _begin(self, steps: Steps[None]) -> None:
        """Takes the first step now, and the others in turns of the loop of their own."""
        rest = begin(steps)
        if rest is not None:
            task = self._loop.create_task(rest)
            self._long_work.add(task)
            task.add_done_callback(self._long_work.discard)
            task.add_done_callback(_raise_program_error)

    def notified(self, event: WatcherEvent) -> None:
        watches = self._watches.fire(event)
        event = event._replace(path=self._user_path(event.path))
        for watch in watches:
            self._loop.call_soon(watch, event)

    def watch_left(self, call: Call, error: int) -> None:
        assert call.watch is not None
        if not error:
            kind = WatchKind.CHILDREN if call.op == OpCode.GET_CHILDREN else WatchKind.DATA
        elif error == ZooKeeperErrorCode.NO_NODE and call.op == OpCode.EXISTS:
            kind = WatchKind.EXISTS
        else:
            return
        self._watches.add(kind, call.full_path, call.watch)

    def _send_auth(
        self, connection: Connection, scheme: str, credentials: bytes, answer: "asyncio.Future[None]"
    ) -> None:
        connection.write(jute.encode_request(jute.XID_AUTH, messages.Auth(scheme, credentials)))
        self._auth_answers.append(answer)

    def authenticated(self, error: int) -> None:
        if not self._auth_answers:
            raise JuteError("an answer about credentials that were not sent")
        if error:
            self._finish(State.AUTH_FAILED, "the server refused the credentials")
            return
        answer = self._auth_answers.popleft()
        if not answer.done():
            answer.set_result(None)

    def lost(self, connection: Connection, reason: str) -> None:
        self._last_zxid = max(self._last_zxid, connection.last_zxid)
        if connection is not self._connection:  # Never attached, or the client is finished.
            return
        self._connection = self._ready = None
        self._enter(State.DISCONNECTED)
        self._begin(_fail(connection.unanswered(), lambda path: ConnectionLoss(path, reason)))


def _fail(calls: Iterable[Call], error: Callable[[str], ZooKeeperError]) -> Steps[None]:
    """Fails each call with the error for its path."""
    slices = Slices()
    for call in calls:
        call.fail(error(call.path))
        if slices.spend():
            yield


def _raise_program_error(task: "asyncio.Task[None]") -> None:
    """No task of the client is awaited while it lives. Errors other than cancellation go to the loop's handler."""
    if not task.cancelled():
        task.result()


def no_result(_response: messages.Response) -> None:
    """For a call whose response says only that it was done."""
