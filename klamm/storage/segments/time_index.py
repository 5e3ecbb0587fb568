"""The time index of one segment: the largest timestamp up to a point, and the last offset of the batch that has it.

What must stay true: timestamps ascend strictly and offsets never descend: an entry (t, o) says that every record
after offset o within the indexed part has a timestamp of at most t.

File: entries of 12 bytes, timestamp (i64) and offset minus base offset (i32), big-endian.
Source: kafka.log.TimeIndex.
"""

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from itertools import islice, pairwise
from operator import le, lt

from klamm.base.environment import FileSystem
from klamm.protocol.record.record_batch import NO_TIMESTAMP
from klamm.storage.segments.index_file import CorruptIndexError, IndexFile
from klamm.storage.segments.unsynced_files import UnsyncedFiles

ENTRY_SIZE_BYTES = 12
_ENTRY = struct.Struct(">qi")
_TIMESTAMP_SIZE_BYTES = 8

TimeEntry = tuple[int, int]
# Timestamps, and offsets minus the base offset.
Entries = tuple["array[int]", "array[int]"]


class TimeIndex:
    """(timestamp in ms, relative offset) entries. Methods that touch the disk raise OSError."""

    __slots__ = ("_base_offset", "_offsets", "_timestamps", "file", "is_loaded")

    def __init__(self, file_system: FileSystem, path: str, base_offset: int, unsynced: UnsyncedFiles) -> None:
        self.file = IndexFile(file_system, path, unsynced)
        self.is_loaded = False
        self._base_offset = base_offset
        self._timestamps: array[int] = array("q")
        self._offsets: array[int] = array("i")

    @property
    def entry_count(self) -> int:
        """Only of a loaded index."""
        return len(self._offsets)

    def read_entries(self) -> Entries:
        """Reads the file and changes nothing, so it may run off the loop. Raises CorruptIndexError."""
        data = self.file.read_all()
        if len(data) % ENTRY_SIZE_BYTES:
            raise CorruptIndexError(f"{self.file.path} has {len(data)} bytes, not a multiple of {ENTRY_SIZE_BYTES}")
        timestamps, offsets = _columns(data)
        if not (
            all(map(lt, timestamps, islice(timestamps, 1, None))) and all(map(le, offsets, islice(offsets, 1, None)))
        ) or (offsets and offsets[0] < 0):
            raise CorruptIndexError(f"{self.file.path} does not ascend")
        return timestamps, offsets

    def adopt(self, entries: Entries) -> None:
        """Makes `entries`, as read from the file, the content in memory."""
        self._timestamps, self._offsets = entries
        self.is_loaded = True

    def load(self) -> None:
        """Raises CorruptIndexError."""
        if not self.is_loaded:
            self.adopt(self.read_entries())

    def start_empty(self) -> None:
        """The index of a new segment, whose file is known to be empty."""
        self.adopt((array("q"), array("i")))

    def reset(self) -> None:
        """Empties the index before it is rebuilt."""
        self.start_empty()
        self.file.truncate(0)

    def maybe_append(self, timestamp_ms: int, offset: int) -> None:
        """Adds an entry if the timestamp exceeds the last one."""
        if timestamp_ms > (self._timestamps[-1] if self._timestamps else NO_TIMESTAMP):
            relative = offset - self._base_offset
            self._timestamps.append(timestamp_ms)
            self._offsets.append(relative)
            self.file.append(_ENTRY.pack(timestamp_ms, relative))

    def lookup(self, timestamp_ms: int) -> int:
        """An offset before or at which no record has a timestamp of `timestamp_ms` or more, except at its very end."""
        return self._entry_before(bisect_right(self._timestamps, timestamp_ms))[1]

    def last_entry(self) -> TimeEntry:
        """(timestamp, offset) of the last entry of a loaded index, or (-1, base offset)."""
        return self._entry_before(len(self._offsets))

    def last_entry_below(self, offset: int) -> TimeEntry:
        """As `last_entry`, of the entries that `truncate_to` would keep."""
        return self._entry_before(bisect_left(self._offsets, offset - self._base_offset))

    def _entry_before(self, at: int) -> TimeEntry:
        if at == 0:
            return NO_TIMESTAMP, self._base_offset
        return self._timestamps[at - 1], self._base_offset + self._offsets[at - 1]

    def last_entry_on_disk(self) -> tuple[int, int]:
        """As `last_entry`, without loading. Raises CorruptIndexError."""
        size, data = self.file.read_tail(ENTRY_SIZE_BYTES)
        if size % ENTRY_SIZE_BYTES:
            raise CorruptIndexError(f"{self.file.path} has {size} bytes, not a multiple of {ENTRY_SIZE_BYTES}")
        if not data:
            return NO_TIMESTAMP, self._base_offset
        timestamp_ms, relative = _ENTRY.unpack(data)
        # Only the first entry can be (0, 0); later zeros are Kafka's preallocation.
        if timestamp_ms < 0 or relative < 0 or (timestamp_ms == relative == 0 and size > ENTRY_SIZE_BYTES):
            raise CorruptIndexError(f"{self.file.path} ends with ({timestamp_ms}, {relative})")
        return timestamp_ms, self._base_offset + relative

    def truncate_to(self, offset: int) -> None:
        """Keeps the entries below `offset`."""
        count = bisect_left(self._offsets, offset - self._base_offset)
        del self._timestamps[count:]
        del self._offsets[count:]
        self.file.truncate(count * ENTRY_SIZE_BYTES)


def _columns(data: bytes) -> Entries:
    """The entries' timestamps and offsets, taken apart without a step for each entry."""
    count = len(data) // ENTRY_SIZE_BYTES
    timestamps, offsets = bytearray(count * _TIMESTAMP_SIZE_BYTES), bytearray(count * 4)
    for byte in range(_TIMESTAMP_SIZE_BYTES):
        timestamps[byte::_TIMESTAMP_SIZE_BYTES] = data[byte::ENTRY_SIZE_BYTES]
    for byte in range(4):
        offsets[byte::4] = data[_TIMESTAMP_SIZE_BYTES + byte :: ENTRY_SIZE_BYTES]
    columns = array("q", timestamps), array("i", offsets)
    if sys.byteorder == "little":
        for column in columns:
            column.byteswap()
    return columns


def pack_entries(entries: list[TimeEntry], base_offset: int) -> bytes:
    """The content of a file with these (timestamp, offset) entries."""
    return b"".join([_ENTRY.pack(timestamp_ms, offset - base_offset) for timestamp_ms, offset in entries])


def entries_in_use(content: bytes, path: str, base_offset: int) -> list[TimeEntry]:
    """The (timestamp, offset) entries of a file, without the zeros behind them that Kafka keeps in a file in use.

    Raises CorruptIndexError.
    """
    if len(content) % ENTRY_SIZE_BYTES:
        raise CorruptIndexError(f"{path} has {len(content)} bytes, not a multiple of {ENTRY_SIZE_BYTES}")
    size = -(-len(content.rstrip(b"\0")) // ENTRY_SIZE_BYTES) * ENTRY_SIZE_BYTES
    entries = list(_ENTRY.iter_unpack(content[:size]))
    if not all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(entries)) or (entries and entries[0][1] < 0):
        raise CorruptIndexError(f"{path} does not ascend")
    return [(timestamp_ms, base_offset + relative) for timestamp_ms, relative in entries]
