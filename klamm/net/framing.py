"""Frames on a stream: a 4-byte big-endian size, then that many bytes. Both ends of a connection build on this.

`FrameReader` is the receiving half of a connection. It reads many small frames with one system call and copies each
into its own bytearray. If a large part of a frame is missing, it is received directly into the frame's bytearray.
So a frame owns its memory, and a large frame is never copied.

What must stay true:
- A size is checked against the limit of its API before memory is allocated for it, and memory grows with the data: four
  bytes that announce 100 MB cost at most `FIRST_ALLOCATION_BYTES`.
- Frames are delivered in order; after `frame_error`, or once the transport is closing, no frame is delivered.
- The receive buffer is unused between two calls of the transport, so the connections of one loop can share it.
  (Every transport calls `get_buffer`, fills the buffer and calls `buffer_updated` without letting other code run.)
"""

import asyncio
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast

RECEIVE_BUFFER_BYTES = 64 * 1024
FIRST_ALLOCATION_BYTES = 1024 * 1024
# When a frame misses fewer bytes than this, they are received together with the bytes that follow: copying them is
# cheaper than a system call that may return only them.
DIRECT_RECEIVE_BYTES = 16 * 1024

SizeLimit = Callable[[int | None], int]

_SIZE_AND_KEY = struct.Struct(">ih")
_SIZE = struct.Struct(">i")

# The first bytes of the TLS records that a plaintext connection may get: an alert and a handshake.
_TLS_RECORDS = (0x1503, 0x1603)


class ReceiveBuffer:
    """The memory into which the connections of one event loop receive. Never shared between two loops."""

    def __init__(self, size_bytes: int = RECEIVE_BUFFER_BYTES) -> None:
        self.data = bytearray(size_bytes)
        self.view = memoryview(self.data)


class FrameReader(asyncio.BufferedProtocol, ABC):
    """Cuts what a connection receives into frames. Subclasses implement `frame_received` and `frame_error`.
    `frame_begins` and `frame_grows` are called before an incomplete frame takes memory.

    `size_limit(api_key)` gives the largest size in bytes that a frame may have; `api_key` is the frame's first two
    bytes read as a signed integer (what a request begins with), or None if the frame has fewer than two bytes.
    """

    __slots__ = (
        "_direct",
        "_failed",
        "_filled",
        "_frame",
        "_frame_size",
        "_shared",
        "_size_limit",
        "_start",
        "_transport",
        "received_tls",
    )

    def __init__(self, size_limit: SizeLimit, receive_buffer: ReceiveBuffer | None = None) -> None:
        self._size_limit = size_limit
        self._shared = receive_buffer or ReceiveBuffer()
        self._transport: asyncio.Transport | None = None
        self._failed = False
        # The bytes that could not be cut into frames are a TLS record: the other side speaks TLS.
        self.received_tls = False
        # Either an incomplete frame (`_frame` holds its first `_filled` bytes of `_frame_size`; it may still have to
        # grow), or up to five bytes of a frame whose size or API is not known yet.
        self._frame: bytearray | None = None
        self._frame_size = 0
        self._filled = 0
        self._start = b""
        self._direct = False

    @abstractmethod
    def frame_received(self, frame: bytearray) -> None:
        """One whole frame, without its size. The frame belongs to the receiver.

        If this pauses reading, the frames that have already arrived (at most one receive buffer's worth) are still
        delivered.
        """

    @abstractmethod
    def frame_error(self, reason: str) -> None:
        """The stream cannot be cut into frames from here on. The subclass closes the connection."""

    def frame_begins(self, api_key: int | None, size_bytes: int, first_bytes: int) -> bool:
        """A frame of `size_bytes` has begun and takes `first_bytes` now. False means that the subclass has paused
        reading: the frame takes the bytes once reading resumes."""
        return True

    def frame_grows(self, more_bytes: int) -> None:
        """The incomplete frame takes `more_bytes` next: once reading resumes, if the subclass pauses it."""

    @property
    def mid_frame(self) -> bool:
        """Whether part of a frame has arrived: if the stream ends now, the frame was cut off."""
        return self._frame is not None or bool(self._start)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have asyncio's methods but are no subclasses of its classes.
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        frame = self._frame
        if frame is None:
            start = self._start
            if not start:
                return self._shared.view
            self._shared.data[: len(start)] = start
            return self._shared.view[len(start) :]
        if self._frame_size - self._filled < DIRECT_RECEIVE_BYTES:
            self._direct = False
            return self._shared.view
        if self._filled == len(frame):
            # The frame grows here and not when bytes arrive, because then the transport still holds a view of it.
            frame.extend(bytes(self._growth_bytes))
        self._direct = True
        return memoryview(frame)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._failed:
            return
        if self._frame is None:
            end = len(self._start) + nbytes
            self._start = b""
            self._cut(0, end)
        elif self._direct:
            self._filled += nbytes
            if self._filled == self._frame_size:
                self._finish_frame()
            elif self._filled == len(self._frame):
                self.frame_grows(self._growth_bytes)
        else:
            self._cut(self._continue_frame(nbytes), nbytes)

    @property
    def _growth_bytes(self) -> int:
        """By how much a frame grows when its memory is filled."""
        return min(self._frame_size, max(FIRST_ALLOCATION_BYTES, 2 * self._filled)) - self._filled

    def _continue_frame(self, end: int) -> int:
        """Moves received bytes to the incomplete frame; returns where in the receive buffer the next frame begins."""
        frame = self._frame
        assert frame is not None
        count = min(end, self._frame_size - self._filled)
        # The slice may end beyond the memory allocated so far: assigning to it then extends the frame.
        frame[self._filled : self._filled + count] = self._shared.view[:count]
        self._filled += count
        if self._filled == self._frame_size:
            self._finish_frame()
        return count

    def _finish_frame(self) -> None:
        frame, self._frame = self._frame, None
        assert frame is not None
        self.frame_received(frame)

    def _cut(self, position: int, end: int) -> None:
        """Delivers the frames in the receive buffer's bytes from `position` to `end`, and keeps an incomplete frame."""
        data = self._shared.data
        transport = self._transport
        assert transport is not None
        while position < end and not transport.is_closing():
            available = end - position - 4
            api_key: int | None
            if available >= 2:
                size, api_key = _SIZE_AND_KEY.unpack_from(data, position)
                if size < 2:
                    api_key = None
            elif available >= 0:
                (size,) = _SIZE.unpack_from(data, position)
                if size >= 2:
                    self._start = bytes(data[position:end])
                    return
                api_key = None
            else:
                self._start = bytes(data[position:end])
                return
            limit = self._size_limit(api_key)
            if not 0 <= size <= limit:
                self._fail(size, limit, api_key)
                return
            position += 4
            if size <= available:
                self.frame_received(data[position : position + size])
                position += size
                continue
            self._frame_size = size
            self._filled = available
            first = min(size, FIRST_ALLOCATION_BYTES)
            self._frame = frame = bytearray(first if self.frame_begins(api_key, size, first) else available)
            frame[:available] = self._shared.view[position:end]
            return

    def _fail(self, size: int, limit: int, api_key: int | None) -> None:
        self._failed = True
        self.received_tls = size >> 16 in _TLS_RECORDS
        first = "" if api_key is None else f" (first two bytes {api_key})"
        self.frame_error(f"a frame of {size} bytes{first}, allowed are 0 to {limit}")
