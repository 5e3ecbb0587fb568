"""One client's connection: frames in, replies and watch events out, both in order and both bounded.

What must stay true:
- Requests are executed one after another in the order in which they arrived; replies and events leave in the order in
  which `send` was called.
- The memory of a connection is bounded: while more than `MAX_HELD` replies wait for the disk, or the client does not
  read its responses, no further request is executed and nothing more is read (the client is muted). Watch events are
  bounded by the watches that the client has set.
- Whatever bytes a client sends can at most close its own connection, with a logged reason.
"""

import asyncio
import logging
from collections import deque
from typing import Any, Protocol, cast

from klamm.base.slices import Slices
from klamm.zookeeper import jute, messages
from klamm.zookeeper.framing import MAX_REQUEST_BYTES, FrameSplitter
from klamm.zookeeper.keeper_exceptions import JuteError
from klamm.zookeeper.messages import OpCode
from klamm.zookeeper.server.access_control import Identity
from klamm.zookeeper.server.four_letter_words import is_four_letter_word
from klamm.zookeeper.server.sessions import Session

# A multi, or watches to set, of this size or more is executed in steps.
LONG_REQUEST_BYTES = 16 * 1024
# How many requests of one connection are executed before the loop serves others: a few milliseconds.
REQUESTS_PER_SLICE = 100
MAX_HELD = 4096
MAX_HELD_BYTES = 4 * 1024 * 1024
FLUSH_BYTES = 64 * 1024
WRITE_BUFFER_HIGH_BYTES = 1024 * 1024
CONNECT_TIMEOUT_S = 10.0  # zookeeper.cnxnsessionlesstimeout

_LONG_OPS = (OpCode.MULTI, OpCode.SET_WATCHES)

_log = logging.getLogger(__name__)


class CnxnServer(Protocol):
    """The events that a connection reports to its server."""

    def opened(self, connection: "ServerCnxn") -> None: ...

    def closed(self, connection: "ServerCnxn") -> None: ...

    def connect(self, connection: "ServerCnxn", request: messages.ConnectRequest) -> None:
        """The first frame has come."""

    def is_open_to(self, connection: "ServerCnxn", op: int | None) -> bool:
        """Whether a request of this operation (None: the first frame) may be executed now. If not, the server calls
        `execute` of the connection once it may."""

    def execute(self, connection: "ServerCnxn", session: Session, xid: int, request: Any) -> None:
        """A request of the connection's session has come."""

    def execute_in_steps(self, connection: "ServerCnxn", session: Session, frame: bytes) -> None:
        """A long request of the connection's session has come."""

    def four_letter_word(self, connection: "ServerCnxn", word: str) -> None:
        """An operator's question has come, instead of a first frame."""


class ServerCnxn(asyncio.Protocol):
    """A connection of `server`. `session` is None until the client has sent its connect request."""

    def __init__(self, server: CnxnServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._splitter = FrameSplitter(MAX_REQUEST_BYTES)
        self._start: bytes | None = b""  # the first bytes, until they tell a frame from a four-letter word
        self._frames: deque[bytes] = deque()
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._writable = True
        self._reading = True
        self._closing = False
        # A request is being executed in steps.
        self.is_busy = False
        self._connect_timer: asyncio.TimerHandle | None = None
        self.held = 0
        self.held_bytes = 0
        self.session: Session | None = None
        self.identities: list[Identity] = []
        self.peer = ""
        self.received = 0
        self.sent = 0

    def __str__(self) -> str:
        return self.peer if self.session is None else f"{self.peer} (session 0x{self.session.id:x})"

    @property
    def is_closing(self) -> bool:
        """Whether this connection takes no more requests."""
        return self._closing

    # -- asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are transports without deriving from asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES)
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
        self.peer = f"{host}:{port}"
        self.identities.append(Identity("ip", host))
        self._connect_timer = self._loop.call_later(CONNECT_TIMEOUT_S, self._check_session)
        self._server.opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.refuse_requests()
        self._outgoing.clear()
        if self._connect_timer is not None:
            self._connect_timer.cancel()
        self._server.closed(self)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if self._start is not None:
            data = self._start + data
            if len(data) < 4:
                self._start = data
                return
            self._start = None
            if is_four_letter_word(data[:4]):
                self._closing = True
                self._server.four_letter_word(self, data[:4].decode())
                return
        if self.session is not None:
            self.session.last_heard_s = self._loop.time()
        try:
            self._frames.extend(self._splitter.feed(data))
        except JuteError as error:
            self.close(str(error))
            return
        self.execute()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self.execute()

    def _check_session(self) -> None:
        if self.session is None:
            self.close(f"it has asked for no session within {CONNECT_TIMEOUT_S:.0f} s")

    # -- requests

    def execute(self) -> None:
        """Executes the received requests, as far as the bounds allow, and mutes or unmutes the client accordingly."""
        slices = Slices(REQUESTS_PER_SLICE)
        while self._frames and self._may_execute():
            op = None if self.session is None else int.from_bytes(self._frames[0][4:8], signed=True)
            if not self._server.is_open_to(self, op):
                break
            frame = self._frames.popleft()
            self.received += 1
            try:
                if self.session is None:
                    self._server.connect(self, jute.decode_connect_request(frame))
                elif op in _LONG_OPS and len(frame) >= LONG_REQUEST_BYTES:
                    self._server.execute_in_steps(self, self.session, frame)
                else:
                    self._server.execute(self, self.session, *jute.decode_request(frame))
            except JuteError as error:
                self.refuse(frame, error)
            if slices.spend():
                self._loop.call_soon(self.execute)
                break
        if self._transport is not None and not self._closing and self._reading == bool(self._frames):
            self._reading = not self._reading
            if self._reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def refuse(self, frame: bytes, error: JuteError) -> None:
        self.close(f"a frame of {len(frame)} bytes is no valid request: {error}")

    def _may_execute(self) -> bool:
        return (
            not self.is_busy
            and self._writable
            and not self._closing
            and self.held < MAX_HELD
            and self.held_bytes < MAX_HELD_BYTES
        )

    # -- replies and events

    def send(self, payload: bytes) -> None:
        """Sends whole frames. Only the server calls this, because it decides when a payload may leave."""
        self.sent += 1
        if not self._outgoing:
            self._loop.call_soon(self.flush)
        self._outgoing.append(payload)
        self._outgoing_bytes += len(payload)
        if self._outgoing_bytes >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Gives the joined responses to the transport."""
        if self._outgoing and self._transport is not None:
            payload = self._outgoing[0] if len(self._outgoing) == 1 else b"".join(self._outgoing)
            self._outgoing.clear()
            self._outgoing_bytes = 0
            if not self._transport.is_closing():
                self._transport.write(payload)

    def refuse_requests(self) -> None:
        """Takes no further request; responses are still sent."""
        self._closing = True
        self._frames.clear()

    def finish(self) -> None:
        """Closes once everything sent has left."""
        self.refuse_requests()
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def close(self, reason: str) -> None:
        """Closes at once, for this reason."""
        if not self._closing:
            _log.info("%s: closed: %s", self, reason)
        self.refuse_requests()
        if self._transport is not None:
            self._transport.abort()
