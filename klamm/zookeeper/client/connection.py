"""One connection of a ZooKeeper client: handshake, pipelined calls, keep-alive. A connection is never reused.

What must stay true:
- Replies are matched to calls in order, by xid. Anything else (a wrong xid, bytes that `jute` refuses) closes the
  connection, because nothing after it can be trusted.
- Every call given to `send` is completed by its reply, or is in `unanswered()` when the connection is lost.
- `last_zxid` only counts transactions whose notifications have all come. A reply shows that: a server sends a reply
  after the notifications of all transactions that the reply can show. A notification does not show it, although
  notifications of ZooKeeper 3.9 carry a zxid: the same transaction may fire more watches. Replies before the answer to
  this connection's last SetWatches do not show it either: only then has the server sent the missed notifications.
- Received frames are handled in order and in slices. Nothing more is read from the transport before all are handled,
  so a server cannot fill the memory with them.
- All writes within one turn of the loop leave in one piece.
- A ping is sent when nothing was sent for about a third of the session time-out. The peer counts as dead when nothing
  came for about two thirds of it. Both are counted in ticks and not read from the clock, so that a process that was
  stopped for a while reads the waiting bytes before it gives up on the server.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any, Protocol, cast

from klamm.base.slices import Slices, Steps
from klamm.zookeeper import jute, messages
from klamm.zookeeper.client.watches import Watch
from klamm.zookeeper.framing import FrameSplitter
from klamm.zookeeper.keeper_exceptions import JuteError, ZooKeeperError, ZooKeeperErrorCode, error_for
from klamm.zookeeper.messages import ConnectRequest, ConnectResponse, OpCode, WatcherEvent

MAX_RESPONSE_BYTES = 256 * 1024 * 1024
"""Servers do not limit their responses: the children of a znode can take megabytes."""

TICKS_PER_TIMEOUT = 6
IDLE_TICKS_BEFORE_PING = TICKS_PER_TIMEOUT // 3
SILENT_TICKS_BEFORE_DEATH = TICKS_PER_TIMEOUT * 2 // 3


class Call:
    """A request that waits for its reply. `future` gets the response as `convert` returns it, perhaps in steps.

    If the caller expects absent znodes, `absent` is a tuple with the result that replaces a NoNode error.
    """

    __slots__ = ("absent", "convert", "frame", "full_path", "future", "op", "path", "watch", "xid")

    def __init__(
        self,
        xid: int,
        op: OpCode,
        frame: bytes,
        path: str,
        full_path: str,
        future: "asyncio.Future[Any]",
        convert: Callable[[Any], object],
        watch: Watch | None,
        absent: tuple[object] | None,
    ) -> None:
        self.xid = xid
        self.op = op
        self.frame = frame
        self.path = path
        self.full_path = full_path
        self.future = future
        self.convert = convert
        self.watch = watch
        self.absent = absent

    def result(self, error: int, response: messages.Response) -> Steps[object]:
        """The caller's result, in steps. Raises ZooKeeperError for an error in the reply, or from `convert`."""
        if error == ZooKeeperErrorCode.NO_NODE and self.absent is not None:
            return self.absent[0]
        if error:
            raise error_for(error, self.path)
        result = self.convert(response)
        return (yield from result) if isinstance(result, Generator) else result

    def succeed(self, result: object) -> None:
        if not self.future.done():  # Otherwise the caller was cancelled.
            self.future.set_result(result)

    def fail(self, error: ZooKeeperError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class ConnectionOwner(Protocol):
    """The events that a connection reports to its client."""

    def attached(self, connection: "Connection", response: ConnectResponse) -> None:
        """The handshake is over; the session may have expired. Raises JuteError to refuse the response."""

    def notified(self, event: WatcherEvent) -> None: ...

    def authenticated(self, error: int) -> None:
        """The server has answered the oldest `Auth` request not yet answered on this connection."""

    def watch_left(self, call: Call, error: int) -> None:
        """The reply to a call with a watch has come. Called just before the call's future gets it."""

    def lost(self, connection: "Connection", reason: str) -> None:
        """The connection is gone: the last event, exactly once for each established connection."""


class Connection(asyncio.Protocol):
    """See the module. `handshake` ends with its outcome; `closed` is done when the connection is gone."""

    def __init__(self, owner: ConnectionOwner, hello: ConnectRequest, max_in_flight: int | None) -> None:
        self._loop = asyncio.get_running_loop()
        self.handshake: asyncio.Future[bool] = self._loop.create_future()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.last_zxid = hello.last_zxid_seen
        self._unanswered_set_watches = 0
        self._is_arming = False
        self._owner = owner
        self._hello = hello
        self._max_in_flight = max_in_flight
        self._transport: asyncio.Transport | None = None
        self._splitter = FrameSplitter(MAX_RESPONSE_BYTES)
        self._frames: deque[bytes] = deque()  # Received and not yet handled.
        self._reading: Steps[None] | None = None  # Handles them.
        self._in_flight: deque[Call] = deque()
        self._queued: deque[Call] = deque()  # Not yet sent; empty unless max_in_flight calls are in flight.
        self._outgoing: list[bytes] = []
        self._reason = ""  # Why the connection ends; received bytes are ignored from then on.
        self._tick_seconds = 0.0
        self._ticker: asyncio.TimerHandle | None = None
        self._idle_ticks = 0
        self._silent_ticks = 0

    # Called by the client.

    def send(self, call: Call) -> None:
        """Sends the request, or queues it while `max_in_flight` calls are in flight."""
        if self._max_in_flight is not None and len(self._in_flight) >= self._max_in_flight:
            self._queued.append(call)
        else:
            self._in_flight.append(call)
            self.write(call.frame)

    def write(self, frame: bytes) -> None:
        """Sends a frame that no call waits for."""
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(frame)

    def set_watches(self, requests: Iterable[messages.SetWatches]) -> Steps[None]:
        """Arms the client's watches on this connection, in steps. Must be called once, before any other request."""
        self._is_arming = True
        for request in requests:
            self._unanswered_set_watches += 1
            self.write(jute.encode_request(jute.XID_SET_WATCHES, request))
            yield
        self._is_arming = False

    @property
    def reason(self) -> str:
        """Why the connection ended, or ""."""
        return self._reason

    def unanswered(self) -> Iterable[Call]:
        """Removes and returns the calls without a reply, in the order in which they were made."""
        calls = [*self._in_flight, *self._queued]
        self._in_flight.clear()
        self._queued.clear()
        return calls

    def abort(self, reason: str) -> None:
        """Ends the connection at once."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(jute.encode_connect_request(self._hello))

    def data_received(self, data: bytes) -> None:
        if self._reason:
            return
        self._silent_ticks = 0
        try:
            self._frames += self._splitter.feed(data)
        except JuteError as error:
            self._refuse(error)
            return
        if self._reading is None and self._frames:
            self._reading = self._read()
            self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        self._outgoing.clear()
        self._frames.clear()
        self._reason = self._reason or (str(exc) if exc is not None else "closed by the server")
        if not self.handshake.done():
            self.handshake.set_result(False)
        if not self.closed.done():
            self.closed.set_result(None)
        self._owner.lost(self, self._reason)

    # Inside.

    def _flush(self) -> None:
        if self._outgoing and self._transport is not None and not self._reason:
            self._idle_ticks = 0
            self._transport.write(b"".join(self._outgoing))
        self._outgoing.clear()

    def _go_on(self) -> None:
        """Handles one slice of the received frames."""
        if self._reason or self._reading is None or self._transport is None:
            return
        try:
            next(self._reading)
        except StopIteration:
            self._reading = None
            if not self._transport.is_reading():
                self._transport.resume_reading()
        except JuteError as error:
            self._refuse(error)
        else:
            self._silent_ticks = 0
            self._transport.pause_reading()
            self._loop.call_soon(self._go_on)

    def _refuse(self, error: JuteError) -> None:
        self.abort(f"the server sent garbage: {error}")

    def _read(self) -> Steps[None]:
        slices = Slices()
        while self._frames and not self._reason:
            yield from self._handle(self._frames.popleft())
            if slices.spend():
                yield

    def _handle(self, frame: bytes) -> Steps[None]:
        if not self.handshake.done():
            self._attach(jute.decode_connect_response(frame))
            return
        xid, zxid, error = jute.decode_reply_header(frame)
        if xid >= 0:
            self._seen(zxid)
            yield from self._answer(xid, error, frame)
        elif xid == jute.XID_NOTIFICATION:
            self._owner.notified(jute.decode_event(frame))
        elif xid == jute.XID_AUTH:
            self._owner.authenticated(error)
        elif xid == jute.XID_SET_WATCHES:
            if error:
                raise JuteError(f"the watches were refused with error {error}")
            if self._unanswered_set_watches == 0:
                raise JuteError("an answer about watches that were not set")
            self._unanswered_set_watches -= 1
            self._seen(zxid)
        elif xid != jute.XID_PING:
            raise JuteError(f"a reply with xid {xid}")

    def _seen(self, zxid: int) -> None:
        if zxid > 0 and not self._is_arming and self._unanswered_set_watches == 0:
            self.last_zxid = zxid

    def _attach(self, response: ConnectResponse) -> None:
        self._owner.attached(self, response)
        self.handshake.set_result(True)
        if response.timeout_ms > 0 and not self._reason:
            self._tick_seconds = response.timeout_ms / 1000 / TICKS_PER_TIMEOUT
            self._ticker = self._loop.call_later(self._tick_seconds, self._tick)

    def _answer(self, xid: int, error: int, frame: bytes) -> Steps[None]:
        if not self._in_flight or self._in_flight[0].xid != xid:
            wanted = f"the next is {self._in_flight[0].xid}" if self._in_flight else "nothing was asked"
            raise JuteError(f"a reply with xid {xid}; {wanted}")
        call = self._in_flight[0]
        # If the reply is invalid, or the connection ends between two steps, the call is lost with the connection.
        response = None if error else (yield from jute.decode_response_steps(call.op, frame))
        failure = result = None
        try:
            result = yield from call.result(error, response)
        except ZooKeeperError as raised:
            failure = raised
        self._in_flight.popleft()
        if self._queued:
            following = self._queued.popleft()
            self._in_flight.append(following)
            self.write(following.frame)
        if call.watch is not None:
            self._owner.watch_left(call, error)
        if failure is not None:
            call.fail(failure)
        else:
            call.succeed(result)

    def _tick(self) -> None:
        self._silent_ticks += 1
        self._idle_ticks += 1
        if self._silent_ticks >= SILENT_TICKS_BEFORE_DEATH:
            self.abort(f"nothing heard for {self._silent_ticks * self._tick_seconds:.1f} s")
            return
        if self._idle_ticks >= IDLE_TICKS_BEFORE_PING:
            self.write(_PING)
        self._ticker = self._loop.call_later(self._tick_seconds, self._tick)


_PING = jute.encode_request(jute.XID_PING, messages.Ping())
