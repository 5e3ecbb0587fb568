"""Reads a segment's log file in windows of whole batches.

What must stay true: a batch is taken from a window only with the right checksum. A window grows to the size of its
first batch, so a batch that is larger than a window is read as a whole.
"""

from types import TracebackType
from typing import NamedTuple

from klamm.base.environment import FileSystem
from klamm.protocol.error_codes import corrupt_message
from klamm.protocol.record.record_batch import HEADER_SIZE_BYTES, BatchHeader, check_crc, parse_header

_WINDOW_BYTES = 1024 * 1024


class ReadBatch(NamedTuple):
    """A whole batch."""

    header: BatchHeader
    data: memoryview


class BatchReader:
    """A context manager. All methods raise OSError, and KafkaError where the bytes are not batches."""

    def __init__(self, file_system: FileSystem, path: str, size_bytes: int) -> None:
        self._file = file_system.open_to_read(path)
        self._position = 0
        self._end = size_bytes

    def __enter__(self) -> "BatchReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def window(self) -> memoryview:
        """The next bytes, at least one whole batch; empty at the end."""
        left_bytes = self._end - self._position
        window = self._read(min(_WINDOW_BYTES, left_bytes))
        if window:
            size_bytes = parse_header(window, available_bytes=left_bytes).size_bytes
            if size_bytes > len(window):
                window = self._read(size_bytes)
        return window

    def _read(self, size_bytes: int) -> memoryview:
        data = self._file.read(self._position, size_bytes)
        if len(data) != size_bytes:
            raise corrupt_message(f"{self._file.path} ends before its batches do")
        return memoryview(data)

    def batch(self, window: memoryview, at: int) -> ReadBatch | None:
        """The batch at position `at` of the window; None if the window ends within the batch."""
        left_bytes = self._end - self._position - at
        if left_bytes == 0 or len(window) - at < min(HEADER_SIZE_BYTES, left_bytes):
            return None
        header = parse_header(window, at, available_bytes=left_bytes)
        if at + header.size_bytes > len(window):
            return None
        check_crc(window, at, header)
        return ReadBatch(header, window[at : at + header.size_bytes])

    def advance(self, size_bytes: int) -> None:
        """The next window begins this many bytes later."""
        self._position += size_bytes
