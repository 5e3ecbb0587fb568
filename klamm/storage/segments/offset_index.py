"""The offset index of one segment: every few kilobytes, the last offset of an append and the position where it began.

What must stay true:
- Offsets and positions ascend strictly. An entry's position is that of a batch's first byte.
- The entries are read from disk at their first use, as two arrays. The index of a segment without
  readers is not in memory.

File: entries of 8 bytes, offset minus base offset (i32) and position (i32), big-endian. Kafka's own may be
preallocated with zeros while in use; such a file is rebuilt.
Source: kafka.log.OffsetIndex.
"""

import struct
import sys
from array import array
from bisect import bisect_right
from itertools import islice, pairwise
from operator import lt

from klamm.base.environment import FileSystem
from klamm.storage.segments.index_file import CorruptIndexError, IndexFile
from klamm.storage.segments.unsynced_files import UnsyncedFiles

ENTRY_SIZE_BYTES = 8
_ENTRY = struct.Struct(">ii")

Entries = tuple["array[int]", "array[int]"]


class OffsetIndex:
    """(offset, position) entries. Methods that touch the disk raise OSError."""

    __slots__ = ("_base_offset", "_offsets", "_positions", "file", "is_loaded")

    def __init__(self, file_system: FileSystem, path: str, base_offset: int, unsynced: UnsyncedFiles) -> None:
        self.file = IndexFile(file_system, path, unsynced)
        self.is_loaded = False
        self._base_offset = base_offset
        self._offsets: array[int] = array("i")
        self._positions: array[int] = array("i")

    @property
    def entry_count(self) -> int:
        """Only of a loaded index."""
        return len(self._offsets)

    def read_entries(self) -> Entries:
        """Reads the file and changes nothing, so it may run off the loop. Raises CorruptIndexError."""
        data = self.file.read_all()
        if len(data) % ENTRY_SIZE_BYTES:
            raise CorruptIndexError(f"{self.file.path} has {len(data)} bytes, not a multiple of {ENTRY_SIZE_BYTES}")
        values = array("i", data)
        if sys.byteorder == "little":
            values.byteswap()
        offsets, positions = values[0::2], values[1::2]
        if not _ascends(offsets) or not _ascends(positions) or (offsets and (offsets[0] < 0 or positions[0] < 0)):
            raise CorruptIndexError(f"{self.file.path} does not ascend")
        return offsets, positions

    def adopt(self, entries: Entries) -> None:
        """Makes `entries`, as read from the file, the content in memory."""
        self._offsets, self._positions = entries
        self.is_loaded = True

    def load(self) -> None:
        """Raises CorruptIndexError."""
        if not self.is_loaded:
            self.adopt(self.read_entries())

    def start_empty(self) -> None:
        """The index of a new segment, whose file is known to be empty."""
        self.adopt((array("i"), array("i")))

    def reset(self) -> None:
        """Empties the index before it is rebuilt."""
        self.start_empty()
        self.file.truncate(0)

    def append(self, offset: int, position: int) -> None:
        relative = offset - self._base_offset
        self._offsets.append(relative)
        self._positions.append(position)
        self.file.append(_ENTRY.pack(relative, position))

    def lookup(self, offset: int) -> int:
        """A position at or before that of the batch that holds `offset`."""
        at = bisect_right(self._offsets, offset - self._base_offset)
        return self._positions[at - 1] if at else 0

    def boundary_before(self, position: int) -> int:
        """The last known start of a batch at or before `position`; 0 when no start is known."""
        at = bisect_right(self._positions, position)
        return self._positions[at - 1] if at else 0

    def last_entry_on_disk(self) -> tuple[int, int]:
        """(offset, position) of the last entry, or (base offset, 0), without loading. Raises CorruptIndexError."""
        size, data = self.file.read_tail(ENTRY_SIZE_BYTES)
        if size % ENTRY_SIZE_BYTES:
            raise CorruptIndexError(f"{self.file.path} has {size} bytes, not a multiple of {ENTRY_SIZE_BYTES}")
        if not data:
            return self._base_offset, 0
        relative, position = _ENTRY.unpack(data)
        # Position 0 is never indexed: it would need bytes before it. Zeros are Kafka's preallocation.
        if relative < 0 or position <= 0:
            raise CorruptIndexError(f"{self.file.path} ends with ({relative}, {position})")
        return self._base_offset + relative, position

    def truncate_to(self, offset: int, position: int) -> None:
        """Keeps the entries below both `offset` and `position`, the log's new end."""
        relative = offset - self._base_offset
        count = len(self._offsets)
        while count and (self._offsets[count - 1] >= relative or self._positions[count - 1] >= position):
            count -= 1
        del self._offsets[count:]
        del self._positions[count:]
        self.file.truncate(count * ENTRY_SIZE_BYTES)


def pack_entries(entries: list[tuple[int, int]], base_offset: int) -> bytes:
    """The content of a file with these (offset, position) entries."""
    return b"".join([_ENTRY.pack(offset - base_offset, position) for offset, position in entries])


def entries_in_use(content: bytes, path: str, base_offset: int) -> list[tuple[int, int]]:
    """The (offset, position) entries of a file, without the zeros behind them that Kafka keeps in a file in use.

    Raises CorruptIndexError.
    """
    if len(content) % ENTRY_SIZE_BYTES:
        raise CorruptIndexError(f"{path} has {len(content)} bytes, not a multiple of {ENTRY_SIZE_BYTES}")
    size = -(-len(content.rstrip(b"\0")) // ENTRY_SIZE_BYTES) * ENTRY_SIZE_BYTES
    entries = list(_ENTRY.iter_unpack(content[:size]))
    if not all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(entries)) or (entries and min(entries[0]) < 0):
        raise CorruptIndexError(f"{path} does not ascend")
    return [(base_offset + relative, position) for relative, position in entries]


def _ascends(values: "array[int]") -> bool:
    return all(map(lt, values, islice(values, 1, None)))
