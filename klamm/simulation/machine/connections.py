"""Connections of the simulated network that behave like TCP.

A connection is two pipes, one each way. Each write becomes a segment with a seeded time of arrival. Bytes arrive in
order, split and joined at random, in the context of the receiving process. A pipe holds the bytes that the receiver
does not take, and the sender is paused when the kernel's send buffer and its own write buffer are full. A link that is
cut (both ways or one way) holds its segments until it is healed; while only the way back is cut, bytes arrive but are
never acknowledged, and the sender's buffers fill up. A stalled process receives no bytes, and bytes that its kernel has
not taken from it yet are not sent.

What must stay true:
- The buffer given to `write` is kept and copied only when it is delivered; if it has changed by then, the run fails.
- A process that dies sends a seeded part of its pending bytes and then ends its connections; peers notice the death of
  a machine later.
- Every delivery, every frame that a delivery completes, every end and reset is in the trace.
"""

import asyncio
import contextvars
import errno
import random
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any, Protocol

from klamm.base.checksum import crc32c
from klamm.base.environment import Buffer
from klamm.simulation.machine.hosts import Host, Listener
from klamm.simulation.machine.loop import SimulatedLoop, Timer
from klamm.simulation.machine.process import CURRENT, SimulationFailure
from klamm.simulation.machine.trace import FrameTracer, Trace, checksum

MAX_RECEIVE_BYTES = 256 * 1024
SEND_BUFFER_CHOICES_BYTES = (4 * 1024, 64 * 1024, 256 * 1024)
DEFAULT_HIGH_BYTES = 64 * 1024

# Linux's default, tcp_retries2=15.
RETRANSMISSION_TIMEOUT_S = 924.0
MACHINE_DEATH_NOTICED_US = (200_000, 3_000_000)

SPLIT_CHANCE = 0.15
JOIN_CHANCE = 0.5

_BUFFERS = (bytes, bytearray, memoryview)


class Links(Protocol):
    """The network between two hosts, as a connection sees it."""

    loop: SimulatedLoop
    random: random.Random
    trace: Trace

    def is_cut(self, source: Host, target: Host) -> bool:
        """Whether no segment from `source` reaches `target`."""

    def delay_s(self, one: Host, other: Host) -> float:
        """How long the next segment takes."""

    def forget(self, transport: "Transport") -> None:
        """The transport has ended."""


class _Segment:
    """Bytes on their way, or the end of the stream (closed if `error` is None, otherwise reset)."""

    __slots__ = ("arrival_s", "crc", "data", "ends", "error", "position")

    def __init__(self, arrival_s: float, data: memoryview | None, error: OSError | None = None) -> None:
        self.arrival_s = arrival_s
        self.data = data
        self.ends = data is None
        self.error = error
        self.position = 0
        self.crc = 0 if data is None else crc32c(data)

    def rest(self) -> int:
        return 0 if self.data is None else len(self.data) - self.position


class Pipe:
    """One direction of a connection."""

    def __init__(self, links: Links, sender: "Transport", receiver: "Transport") -> None:
        self.sender = sender
        self.receiver = receiver
        # The bytes of all written segments that are not acknowledged.
        self.under_way_bytes = 0
        self.send_buffer_bytes = links.random.choice(SEND_BUFFER_CHOICES_BYTES)
        self._links = links
        self._segments: deque[_Segment] = deque()
        self._last_arrival_s = 0.0
        self._unacknowledged_bytes = 0  # arrived while the way back was cut
        self._held_back_bytes = 0  # in the stalled sender's own buffer
        self._timer: Timer | None = None
        self._given_up: Timer | None = None

    def send(self, data: memoryview) -> None:
        self.under_way_bytes += len(data)
        self._append(_Segment(self._arrival_s(), data))

    def end(self, error: OSError | None = None, delay_us: tuple[int, int] | None = None) -> None:
        """Sends the end of the stream; after `error`, the sender takes no more bytes from the receiver."""
        self._append(_Segment(self._arrival_s(delay_us), None, error))

    def cut_short(self, keep_all: bool = False) -> None:
        """The sender ends abruptly: bytes in its kernel's buffer may still arrive, up to a seeded position."""
        self._held_back_bytes = 0
        kept = self._links.random.randint(0, len(self._segments))
        while len(self._segments) > kept and not keep_all:
            self.under_way_bytes -= self._segments.pop().rest()

    def hold_back(self) -> None:
        """The sender is stalled: bytes that do not fit into its kernel's buffer are not sent."""
        self._held_back_bytes = max(0, self.under_way_bytes - self.send_buffer_bytes)

    def release(self) -> None:
        """The sender runs again."""
        self._held_back_bytes = 0
        self.wake()

    def healed(self) -> None:
        """Some link works again. It may not be this pipe's."""
        if self._unacknowledged_bytes and not self._links.is_cut(self.receiver.host, self.sender.host):
            self.under_way_bytes -= self._unacknowledged_bytes
            self._unacknowledged_bytes = 0
            self._link_works()
            self.sender.written()
        self.wake()

    def clear(self) -> None:
        """Drops all segments: the receiver will never take them."""
        self._segments.clear()
        self.under_way_bytes = self._unacknowledged_bytes = self._held_back_bytes = 0
        _cancel(self._timer)
        self._timer = None
        self._link_works()

    def wake(self) -> None:
        """Delivers segments if they are no longer held back."""
        if self._segments and self._timer is None:
            loop = self._links.loop
            when = max(loop.time(), self._segments[0].arrival_s)
            self._timer = loop.call_at(when, self._deliver, context=self.receiver.context)

    def _arrival_s(self, delay_us: tuple[int, int] | None = None) -> float:
        if delay_us is None:
            delay_s = self._links.delay_s(self.sender.host, self.receiver.host)
        else:
            delay_s = self._links.random.randint(*delay_us) / 1_000_000
        self._last_arrival_s = max(self._last_arrival_s, self._links.loop.time() + delay_s)
        return self._last_arrival_s

    def _append(self, segment: _Segment) -> None:
        self._segments.append(segment)
        self.wake()

    def _deliver(self) -> None:
        """Runs in the receiver's context."""
        self._timer = None
        if self._links.is_cut(self.sender.host, self.receiver.host):
            self._wait_for_link()
            return
        if self._given_up is not None and not self._unacknowledged_bytes:
            self._link_works()
        now_s = self._links.loop.time()
        arrived: list[_Segment] = []
        reset: _Segment | None = None
        for segment in self._segments:
            if segment.arrival_s > now_s:
                break
            arrived.append(segment)
            if segment.error is not None and reset is None:
                reset = segment
        receiver = self.receiver
        if reset is not None and (receiver.paused or receiver.is_closing() or reset is arrived[0]):
            self.clear()
            receiver.reset(reset.error)
        elif receiver.is_closing():
            self._discard(arrived)
        elif receiver.paused or ((room_bytes := self._room_bytes()) <= 0 and self._segments[0].rest()):
            return
        elif not arrived:
            pass  # The sender has died, and its pending bytes are lost.
        elif arrived[0].ends:
            self._segments.popleft()
            self.receiver.ended()
        else:
            self._hand_over(arrived, room_bytes)
        self.sender.written()
        self.wake()

    def _wait_for_link(self) -> None:
        if self._given_up is None:
            loop, sender = self._links.loop, self.sender
            error = TimeoutError(errno.ETIMEDOUT, "Connection timed out")
            self._given_up = loop.call_later(RETRANSMISSION_TIMEOUT_S, sender.reset, error, context=sender.context)

    def _link_works(self) -> None:
        _cancel(self._given_up)
        self._given_up = None

    def _discard(self, arrived: list[_Segment]) -> None:
        """The receiver has closed: it answers data that still arrives with a reset, as TCP does."""
        refused = any(segment.data is not None for segment in arrived)
        for _ in arrived:
            self.under_way_bytes -= self._segments.popleft().rest()
        if refused and not self.receiver.refused_data:
            self.receiver.refused_data = True
            self.receiver.outgoing.end(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    def _hand_over(self, arrived: list[_Segment], room_bytes: int) -> None:
        """Delivers some of the bytes that have arrived: a part of one segment, or several joined."""
        chance = self._links.random
        limit = min(MAX_RECEIVE_BYTES, room_bytes)
        if (first := min(limit, arrived[0].rest())) > 1 and chance.random() < SPLIT_CHANCE:
            limit = chance.randint(1, first - 1)
        data = bytearray()
        for segment in arrived:
            if segment.data is None or (data and chance.random() >= JOIN_CHANCE):
                break
            if crc32c(segment.data) != segment.crc:
                raise SimulationFailure(
                    f"{self.sender} changed a buffer of {len(segment.data)} bytes after it was written"
                )
            data += segment.data[segment.position : segment.position + limit - len(data)]
            if len(data) == limit:
                break
        self._take(self.receiver.deliver(data))

    def _room_bytes(self) -> int:
        """How many more bytes can arrive before the sender runs again or receives an acknowledgement."""
        room_bytes = self.under_way_bytes - self._unacknowledged_bytes - self._held_back_bytes
        if self._links.is_cut(self.receiver.host, self.sender.host):
            room_bytes = min(room_bytes, self.send_buffer_bytes - self._unacknowledged_bytes)
        return room_bytes

    def _take(self, size_bytes: int) -> None:
        if not self._segments:  # The receiver's process was killed while it took the bytes.
            return
        if self._links.is_cut(self.receiver.host, self.sender.host):
            self._unacknowledged_bytes += size_bytes
            self._wait_for_link()
        else:
            self.under_way_bytes -= size_bytes
        while size_bytes:
            segment = self._segments[0]
            rest = segment.rest()
            if rest > size_bytes:
                segment.position += size_bytes
                break
            size_bytes -= rest
            self._segments.popleft()


class Transport(asyncio.Transport):
    """One end of a connection."""

    outgoing: Pipe
    incoming: Pipe

    def __init__(
        self, links: Links, context: contextvars.Context, host: Host, port: int, peer: tuple[Host, int]
    ) -> None:
        self._links = links
        self.context = context
        self.process = context.get(CURRENT, links.loop.outside)
        self.host = host
        self.port = port
        # A connection receives no bytes until it has its protocol.
        self.paused = True
        self.refused_data = False
        self._protocol: asyncio.BaseProtocol | None = None
        self._listener: Listener | None = None
        self._names = {"sockname": (host.address, port), "peername": (peer[0].address, peer[1])}
        self._label = f"{host.name}:{port}>{peer[0].name}:{peer[1]}"
        self._trace = partial(links.trace.add, f"{peer[0].name}:{peer[1]}>{host.name}:{port}")
        self._frames = FrameTracer(partial(self._trace, "frame"))
        self._closing = False
        self._lost = False
        self._eof_written = False
        self._writing_paused = False
        self.set_write_buffer_limits()

    def __str__(self) -> str:
        return self._label

    def open(self, protocol: asyncio.BaseProtocol, listener: Listener | None = None) -> None:
        """Gives the connection its protocol. Runs in the context of its process."""
        self._protocol = protocol
        self._listener = listener
        if listener is not None:
            listener.attach(self)
        self.paused = False
        protocol.connection_made(self)
        if self.is_reading():
            self.incoming.wake()

    # -- asyncio's transport --------------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._names.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return not self.paused and not self._closing

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False
        self.incoming.wake()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = DEFAULT_HIGH_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high_bytes, self._low_bytes = high, low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_bytes, self._high_bytes

    def get_write_buffer_size(self) -> int:
        """The number of bytes that do not fit into the kernel's send buffer."""
        return max(0, self.outgoing.under_way_bytes - self.outgoing.send_buffer_bytes)

    def write(self, data: Buffer) -> None:
        if not isinstance(data, _BUFFERS):
            raise TypeError(f"data must be bytes, bytearray or memoryview, not {type(data).__name__}")
        if self._eof_written:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._closing or not self.process.alive or not len(data):
            return
        self.outgoing.send(memoryview(data).cast("B"))
        if self.get_write_buffer_size() > self._high_bytes and not self._writing_paused:
            self._writing_paused = True
            self._flow().pause_writing()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        for data in list_of_data:
            self.write(data)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._closing and not self._eof_written and self.process.alive:
            self._eof_written = True
            self.outgoing.end()

    def close(self) -> None:
        """Sends all written bytes, then the end of the stream."""
        if self._closing or not self.process.alive:
            return
        self._closing = True
        if not self._eof_written:
            self.outgoing.end()
        self.incoming.wake()
        self.written()

    def abort(self) -> None:
        """Ends at once. The peer sees the end of the stream or a reset, and may miss bytes sent before."""
        if self._lost or not self.process.alive:
            return
        self._closing = True
        self._drop_outgoing()
        self._lose(None)

    # -- called by the network -------------------------------------------------------------------------------------

    def deliver(self, data: bytearray) -> int:
        """Gives bytes to the protocol; returns how many it took."""
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            buffer = memoryview(protocol.get_buffer(-1)).cast("B")
            if not (room_bytes := len(buffer)):
                raise SimulationFailure(f"{self}: get_buffer() returned an empty buffer")
            del data[room_bytes:]
            size_bytes = len(data)
            buffer[:size_bytes] = data
            buffer.release()
            self._trace_delivery(data)
            protocol.buffer_updated(size_bytes)
            return size_bytes
        assert isinstance(protocol, asyncio.Protocol)
        self._trace_delivery(data)
        protocol.data_received(bytes(data))
        return len(data)

    def ended(self) -> None:
        """The peer has ended its stream."""
        self._trace("eof")
        protocol = self._protocol
        assert isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol)
        if not protocol.eof_received():
            self.close()

    def reset(self, error: OSError | None) -> None:
        """The peer has reset the connection."""
        if self._lost:
            return
        self._trace("reset")
        self._closing = True
        self.outgoing.clear()
        self.incoming.clear()
        self._lose(error)

    def written(self) -> None:
        """Some of the outgoing bytes may have been taken."""
        if not self.process.alive or self._lost:
            return
        waiting_bytes = self.get_write_buffer_size()
        if self._closing and not waiting_bytes:
            self._lose(None)
        elif self._writing_paused and waiting_bytes <= self._low_bytes:
            self._writing_paused = False
            self._links.loop.call_soon(self._resume_writing, context=self.context)

    def die(self, machine: bool) -> None:
        """The process is dead; if its machine died too, bytes that its kernel had not sent are lost."""
        if self._lost:
            return
        self._closing = self._lost = True
        self.incoming.clear()
        if machine:
            self.outgoing.cut_short()
            self.outgoing.end(reset_by_peer(), MACHINE_DEATH_NOTICED_US)
        else:
            self._drop_outgoing()
        self._links.forget(self)

    def _drop_outgoing(self) -> None:
        self.outgoing.cut_short()
        gently = self._links.random.random() < 0.5
        self.outgoing.end(None if gently else reset_by_peer())

    def _resume_writing(self) -> None:
        if not self._writing_paused and not self._closing:
            self._flow().resume_writing()

    def _lose(self, error: OSError | None) -> None:
        self._lost = True
        self._links.forget(self)
        self._links.loop.call_soon(self._connection_lost, error, context=self.context)

    def _connection_lost(self, error: OSError | None) -> None:
        if self._protocol is not None:
            self._protocol.connection_lost(error)
        if self._listener is not None:
            self._listener.detach(self)

    def _flow(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def _trace_delivery(self, data: bytearray) -> None:
        self._trace("deliver", len(data), checksum(data))
        self._frames.feed(data)


def reset_by_peer() -> OSError:
    return ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")


def _cancel(timer: Timer | None) -> None:
    if timer is not None:
        timer.cancel()
