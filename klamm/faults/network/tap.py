"""A connection that can be disturbed. It is the protocol of the loop's transport, and the transport of the broker's
protocol.

A `Tap` stands between the two only while a fault concerns the connection, or while it holds bytes. Otherwise it has
stepped aside: the loop calls the broker's protocol directly, and the tap's methods that the broker calls are those of
the loop's transport.

What must stay true:
- Bytes arrive in order and are neither lost nor duplicated while the connection lives, however often faults begin and
  end.
- Nothing passes a cut: no byte, no end of the stream, no reset. Everything that TCP would retransmit arrives after the
  cut.
- The bytes in a tap are bounded: it stops reading at `MAX_HELD_BYTES` that its protocol does not take, and pauses a
  protocol that writes more than its own limit.
- Without a fault no read and no write passes through this module.
"""

import asyncio
import errno
import socket
import struct
from collections.abc import Callable, Iterable
from typing import Any, cast

from klamm.base.environment import Buffer
from klamm.faults.network.lanes import Conditions, Lane
from klamm.net.framing import ReceiveBuffer

# About the size of a TCP window.
MAX_HELD_BYTES = 1024 * 1024
DEFAULT_HIGH_BYTES = 64 * 1024

# SO_LINGER of 0 seconds: closing sends a reset.
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)

# The methods of the loop's transport that replace the tap's own methods while it has stepped aside.
_SHORT_CUTS = (
    "write",
    "writelines",
    "write_eof",
    "close",
    "abort",
    "is_closing",
    "is_reading",
    "pause_reading",
    "resume_reading",
    "get_write_buffer_size",
)


class Tap(asyncio.Transport, asyncio.BufferedProtocol):
    """See the module. `opened(tap)` is called before the protocol learns of the connection, and may set conditions.
    `received(tap, data)` sees arriving bytes before the protocol does, until it returns False.
    """

    def __init__(
        self,
        protocol: asyncio.BaseProtocol,
        receive_buffer: ReceiveBuffer,
        opened: "Callable[[Tap], None]",
        received: "Callable[[Tap, memoryview], bool] | None" = None,
    ) -> None:
        super().__init__()
        self._protocol = protocol
        self._shared = receive_buffer
        self._opened = opened
        self._look_at = received
        self._transport: asyncio.Transport  # the loop's, from `connection_made` on
        self.is_connected = False
        self._make_lanes()
        self._low_bytes, self._high_bytes = DEFAULT_HIGH_BYTES // 4, DEFAULT_HIGH_BYTES
        self._is_reading = True
        self._is_full = False  # the protocol has been told to pause writing
        # Whether the protocol has closed the connection, was told of the end, and whether the transport has ended.
        self._is_closing = False
        self._is_over = False
        self._has_ended = False
        # Whether the stream of the other end has ended.
        self._is_at_end = False
        # Whether the other end has lost the connection, unknown to the protocol.
        self._is_deserted = False

    def _make_lanes(self) -> None:
        self._outgoing = Lane(self._send, self._advanced)
        self._incoming = Lane(self._deliver, self._advanced)

    # -- for the faults -------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the connection is open for the protocol."""
        return self.is_connected and not self._is_over and not self.is_closing()

    def change(self, outgoing: Conditions, incoming: Conditions) -> None:
        """Sets the conditions in both directions. A connection that the protocol has already closed stays as it is."""
        if self._is_aside:
            if (outgoing.are_clear and incoming.are_clear) or self._transport.is_closing():
                return
            self._step_between()
        if not self._is_deserted:
            self._outgoing.change(outgoing)
            self._incoming.change(incoming)
        if self._is_closing and self._outgoing.is_cut:
            self._tell_end(None)
        self._step_aside_soon()

    def reset(self) -> None:
        """Resets the connection for both ends."""
        self._step_between()
        self._forget_all()
        self._is_closing = True
        self._reset_other_end()
        self._tell_end(_reset_by_peer())

    def drop_here(self) -> None:
        """This end loses the connection. For the other end it stays open until `end_half_open`."""
        self._step_between()
        self._forget_all()
        self._is_closing = True
        self._tell_end(_reset_by_peer())

    def drop_there(self) -> None:
        """The other end loses the connection. For this end it stays open until `end_half_open`."""
        self._step_between()
        self._is_deserted = True
        cut = Conditions(is_cut=True)
        self._outgoing.change(cut)
        self._incoming.change(cut)
        self._reset_other_end()

    def end_half_open(self) -> None:
        """Resets the connection for the end for which it was still open."""
        if self._is_deserted:
            self._tell_end(_reset_by_peer())
        elif not self._has_ended:
            self._reset_other_end()

    # -- what the loop's transport calls --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have asyncio's methods but are no subclasses of its classes.
        self._transport = cast(asyncio.Transport, transport)
        self.is_connected = True
        self._transport.set_write_buffer_limits(high=0)
        self._opened(self)
        self._protocol.connection_made(self)
        self._step_aside_soon()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared.view

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_over or self._is_closing:
            return
        # A copy: the lane may keep the bytes, and the buffer is reused.
        data = memoryview(bytes(self._shared.view[:nbytes]))
        if self._look_at is not None and not self._look_at(self, data):
            self._look_at = None
        self._incoming.put(data)
        self._adjust_reading()
        self._step_aside_soon()

    def eof_received(self) -> bool:
        if self._is_over or self._is_closing:
            return False
        self._is_at_end = True
        self._incoming.then(self._deliver_eof)
        # TLS has no half-closed connections. Its transport ends now; the protocol learns this after a cut.
        return self._transport.get_extra_info("sslcontext") is None and not self._transport.is_closing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_ended = True
        if self._is_deserted:
            return
        self._outgoing.clear()
        if self._is_closing:
            self._tell_end(exc)
            return
        if not self._is_reading and not self._incoming.is_cut:
            self._incoming.clear()
        self._incoming.then(lambda: self._tell_end(exc))

    def pause_writing(self) -> None:
        self._adjust_writing()

    def resume_writing(self) -> None:
        self._adjust_writing()
        self._step_aside_soon()

    # -- what the protocol calls, unless the tap has stepped aside --------------------------------------------------

    def write(self, data: Buffer) -> None:
        if self._is_closing or self._is_over or not len(data):
            return
        self._outgoing.put(memoryview(data).cast("B"))
        self._adjust_writing()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        if self._is_closing or self._is_over:
            return
        if self._outgoing.is_idle and not self._has_ended:
            self._transport.writelines(list_of_data)
        else:
            for data in list_of_data:
                if len(data):
                    self._outgoing.put(memoryview(data).cast("B"))
        self._adjust_writing()

    def can_write_eof(self) -> bool:
        return self._transport.can_write_eof()

    def write_eof(self) -> None:
        self._outgoing.then(self._if_not_ended(self._transport.write_eof))

    def close(self) -> None:
        if self._is_closing or self._is_over:
            return
        self._is_closing = True
        self._incoming.clear()
        if self._is_deserted or self._has_ended or self._outgoing.is_cut:
            # The system has taken the bytes, and sends them after the cut.
            self._tell_end(None)
        self._outgoing.then(self._if_not_ended(self._transport.close))

    def abort(self) -> None:
        if self._is_over:
            return
        self._is_closing = True
        self._forget_all()
        self._tell_end(None)
        self._outgoing.then(self._if_not_ended(self._transport.abort))

    def is_closing(self) -> bool:
        return self._is_closing or self._is_over

    def is_reading(self) -> bool:
        return self._is_reading and not self.is_closing()

    def pause_reading(self) -> None:
        self._is_reading = False
        self._incoming.stop()

    def resume_reading(self) -> None:
        self._is_reading = True
        self._incoming.resume()

    def get_write_buffer_size(self) -> int:
        return self._outgoing.held_bytes + (0 if self._has_ended else self._transport.get_write_buffer_size())

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = DEFAULT_HIGH_BYTES if low is None else 4 * low
        self._high_bytes, self._low_bytes = high, high // 4 if low is None else low
        if self._is_aside:
            self._transport.set_write_buffer_limits(self._high_bytes, self._low_bytes)
        else:
            self._adjust_writing()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_bytes, self._high_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "socket" and (self._has_ended or self._is_deserted):
            return default  # Another connection may have its file descriptor by now.
        return self._transport.get_extra_info(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._transport.get_protocol() if self._is_aside else self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        if self._is_aside:
            self._transport.set_protocol(protocol)
        else:
            self._protocol = protocol

    # -- between and aside ------------------------------------------------------------------------------------------

    @property
    def _is_aside(self) -> bool:
        return "write" in vars(self)

    def _step_between(self) -> None:
        if not self._is_aside:
            return
        self._protocol = self._transport.get_protocol()
        self._make_lanes()
        self._is_reading = self._transport.is_reading()
        if not self._is_reading:
            self._incoming.stop()
        for name in _SHORT_CUTS:
            del vars(self)[name]
        self._transport.set_protocol(self)
        # The tap now applies the limits. With a high limit of 0 the transport reports when it is empty and when not.
        self._transport.set_write_buffer_limits(high=0)
        if self._transport.get_write_buffer_size() > self._low_bytes:
            # The protocol may have been told to pause already; telling it twice is harmless.
            self._is_full = True
            cast(asyncio.Protocol, self._protocol).pause_writing()
        self._transport.resume_reading()

    def _step_aside_soon(self) -> None:
        # Not now: the transport may be in the middle of a read, or the protocol in the middle of an answer.
        if self._may_step_aside():
            asyncio.get_running_loop().call_soon(self._step_aside)

    def _may_step_aside(self) -> bool:
        return not (
            self._is_aside
            or self._look_at is not None
            or self._is_closing
            or self._is_over
            or self._is_at_end
            or self._has_ended
            or self._is_deserted
            or self._is_full
            or not self._outgoing.is_idle
            or not self._incoming.is_idle
            or self._transport.is_closing()
            or self._transport.get_write_buffer_size()
        )

    def _step_aside(self) -> None:
        if not self._may_step_aside():
            return
        if not self._is_reading:
            self._transport.pause_reading()
        self._transport.set_write_buffer_limits(self._high_bytes, self._low_bytes)
        self._transport.set_protocol(self._protocol)
        vars(self).update({name: getattr(self._transport, name) for name in _SHORT_CUTS})
        # These refer to the tap, and the cycle would keep an ended connection until a garbage collection.
        del self._outgoing, self._incoming, self._protocol

    # -- inside -----------------------------------------------------------------------------------------------------

    def _send(self, data: memoryview) -> int:
        """Hands bytes to the loop's transport."""
        if not self._has_ended:
            self._transport.write(data)
        return len(data)

    def _deliver(self, data: memoryview) -> int:
        """Hands bytes to the protocol."""
        if self._is_over or self._is_closing:
            return len(data)
        protocol = self._protocol
        if not isinstance(protocol, asyncio.BufferedProtocol):
            cast(asyncio.Protocol, protocol).data_received(bytes(data))
            return len(data)
        with memoryview(protocol.get_buffer(len(data))) as buffer:
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
        protocol.buffer_updated(count)
        return count

    def _deliver_eof(self) -> None:
        if not self._is_over and not cast(asyncio.Protocol, self._protocol).eof_received():
            self.close()

    def _adjust_reading(self) -> None:
        if self._is_at_end or self._has_ended or self._transport.is_closing():
            return
        if self._incoming.held_bytes >= MAX_HELD_BYTES:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _adjust_writing(self) -> None:
        if self._is_over:
            return
        protocol = cast(asyncio.Protocol, self._protocol)
        held_bytes = self.get_write_buffer_size()
        if held_bytes > self._high_bytes and not self._is_full:
            self._is_full = True
            protocol.pause_writing()
        elif held_bytes <= self._low_bytes and self._is_full:
            self._is_full = False
            protocol.resume_writing()

    def _advanced(self) -> None:
        self._adjust_reading()
        self._adjust_writing()
        self._step_aside_soon()

    def _forget_all(self) -> None:
        self._outgoing.clear()
        self._incoming.clear()

    def _tell_end(self, error: Exception | None) -> None:
        """Tells the protocol once that the connection is over."""
        if not self._is_over:
            self._is_over = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, error)

    def _reset_other_end(self) -> None:
        connected: socket.socket | None = self._transport.get_extra_info("socket")
        if connected is not None and not self._has_ended:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        self._transport.abort()

    def _if_not_ended(self, action: Callable[[], None]) -> Callable[[], None]:
        return lambda: None if self._has_ended else action()


def _reset_by_peer() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
