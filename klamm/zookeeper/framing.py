"""Frames: a 4-byte length, then the content. Cuts a stream of received bytes into the contents. Pure.

What must stay true:
- Every split of the same bytes gives the same frames, and each frame owns its memory.
- A length alone costs no memory: a negative or oversized one is refused before its bytes are awaited.
"""

from struct import Struct

from klamm.zookeeper.keeper_exceptions import JuteError

MAX_REQUEST_BYTES = 0xFFFFF
"""The largest request that a server accepts by default (`jute.maxbuffer`), without its length prefix."""
LENGTH_BYTES = 4

_LENGTH = Struct(">i")


class FrameSplitter:
    """Cuts a stream of bytes into frames' contents. Each frame that it returns owns its memory."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._wanted = 4
        """No frame can be complete before this many bytes are buffered."""

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that `data` completes. Raises JuteError for a negative or oversized length.

        After a JuteError the rest of the stream is undecodable.
        """
        self._chunks.append(data)
        self._buffered += len(data)
        if self._buffered < self._wanted:
            return []
        buffer = data if len(self._chunks) == 1 else b"".join(self._chunks)
        frames = []
        start, end = 0, len(buffer)
        self._wanted = 4
        while end - start >= 4:
            size: int = _LENGTH.unpack_from(buffer, start)[0]
            if not 0 <= size <= self._max_frame_bytes:
                raise JuteError(f"a frame of {size} bytes; 0 to {self._max_frame_bytes} are allowed")
            stop = start + 4 + size
            if stop > end:
                self._wanted = 4 + size
                break
            frames.append(buffer[start + 4 : stop])
            start = stop
        self._chunks = [buffer[start:]] if start < end else []
        self._buffered = end - start
        return frames
