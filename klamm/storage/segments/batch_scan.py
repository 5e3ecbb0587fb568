"""Walks through the batches of a segment's file and reads no more than necessary.

Pure with respect to the log: these functions know only a file and positions, so they may run off the loop while the
loop appends to the same file. All raise OSError, and KafkaError(CORRUPT_MESSAGE) where the bytes are not a batch.
"""

import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from itertools import islice

from klamm.base.environment import File
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.record_batch import (
    HEADER_SIZE_BYTES,
    LOG_OVERHEAD_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    check_crc,
    parse_header,
)

Read = Callable[[int, int], bytearray]

# A message of format v0 or v1: its size (behind the offset), the CRC-32 of what follows, and the format.
_OLD_MESSAGE = struct.Struct(">8xiIb")
_OLD_CRC_BYTES = 4
_WINDOW_BYTES = 8 * 1024
_VERIFY_WINDOW_BYTES = 1024 * 1024


class NotCachedError(Exception):
    """The requested bytes are not in memory, and a read of them may wait for the disk."""


def read_if_cached(file: File) -> Read:
    """A `Read` that raises NotCachedError rather than wait."""

    def read(position: int, size_bytes: int) -> bytearray:
        data = file.read_cached(position, size_bytes)
        if data is None:
            raise NotCachedError
        return data

    return read


def headers(read: Read, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch in [position, end)."""
    window, window_start = bytearray(), position
    while position < end:
        at = position - window_start
        if at < 0 or at + HEADER_SIZE_BYTES > len(window):
            window = read(position, min(_WINDOW_BYTES, end - position))
            window_start, at = position, 0
        header = parse_header(window, at, available_bytes=end - position)
        yield position, header
        position += header.size_bytes


def find_batch(read: Read, position: int, end: int, offset: int) -> tuple[int, BatchHeader] | None:
    """The first batch in [position, end) that holds `offset` or a later one. `position` comes from an index.

    Raises KafkaError(CORRUPT_MESSAGE) also when the index is wrong.
    """
    found, header = next_batch(read, position, end, offset, sys.maxsize, is_indexed=position > 0)
    return None if header is None else (found, header)


def next_batch(
    read: Read, position: int, end: int, offset: int, max_batches: int, *, is_indexed: bool
) -> tuple[int, BatchHeader | None]:
    """Like `find_batch`, among the next `max_batches`. Returns (its position, its header), or (the position after the
    last batch read, None). `is_indexed`: an index says that `offset` is not before `position`."""
    end_of_last = position
    for found, header in islice(headers(read, position, end), max_batches):
        if is_indexed and found == position and header.base_offset > offset:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the index puts offset {offset} at {header.base_offset}")
        if header.last_offset >= offset:
            return found, header
        end_of_last = found + header.size_bytes
    return end_of_last, None


def verified_batches(file: File, position: int, end: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """(position, header, bytes) of each batch in [position, end), with verified checksums."""
    for found, header, batch in whole_batches(file, position, end):
        check_crc(batch, 0, header)
        yield found, header, batch


def is_old_message(file: File, position: int, end: int) -> bool:
    """Whether a whole message of format v0 or v1 is at `position`, with the right checksum."""
    prefix = file.read(position, min(_OLD_MESSAGE.size, end - position))
    if len(prefix) < _OLD_MESSAGE.size:
        return False
    size_bytes: int
    crc: int
    size_bytes, crc, magic = _OLD_MESSAGE.unpack(prefix)
    if magic not in (0, 1) or not _OLD_CRC_BYTES < size_bytes <= end - position - LOG_OVERHEAD_BYTES:
        return False
    covered = LOG_OVERHEAD_BYTES + _OLD_CRC_BYTES
    return zlib.crc32(file.read(position + covered, size_bytes - _OLD_CRC_BYTES)) == crc


def whole_batches(
    file: File, position: int, end: int, window_bytes: int = _VERIFY_WINDOW_BYTES
) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """(position, header, bytes) of each batch in [position, end), read in windows of `window_bytes`, or of a batch.
    Does not verify checksums."""
    window, window_start = memoryview(b""), position
    while position < end:
        at = position - window_start
        if at + HEADER_SIZE_BYTES > len(window):
            window, window_start, at = (
                memoryview(file.read(position, min(window_bytes, end - position))),
                position,
                0,
            )
        header = parse_header(window, at, available_bytes=end - position)
        if at + header.size_bytes > len(window):
            size_bytes = min(max(window_bytes, header.size_bytes), end - position)
            window, window_start, at = memoryview(file.read(position, size_bytes)), position, 0
        yield position, header, window[at : at + header.size_bytes]
        position += header.size_bytes


def next_candidate(
    read: Read, position: int, end: int, timestamp_ms: int, start_offset: int, max_batches: int
) -> tuple[int, BatchHeader | None]:
    """Finds a batch that may have a record at or after `start_offset` and `timestamp_ms`, among the next `max_batches`
    before `end`. Returns (its position, its header), or (the position after the last batch read, None)."""
    for found, header in islice(headers(read, position, end), max_batches):
        if header.max_timestamp >= timestamp_ms and header.last_offset >= start_offset:
            return found, header
        position = found + header.size_bytes
    return position, None


def largest_timestamp(read: Read, position: int, end: int, max_batches: int) -> tuple[int, tuple[int, int]]:
    """The largest timestamp of the batches in [position, end), or of the first `max_batches` of them.

    (position after the last batch read, (timestamp, last offset of the first batch that has it)).
    """
    largest = (NO_TIMESTAMP, -1)
    for found, header in islice(headers(read, position, end), max_batches):
        if header.max_timestamp > largest[0]:
            largest = (header.max_timestamp, header.last_offset)
        position = found + header.size_bytes
    return position, largest
