"""The offset index of one segment: every few kilobytes, the last offset of an append and the append's position.

What must stay true: offsets and positions ascend strictly. An entry's position is that of a batch's first byte.

File: entries of 8 bytes, offset minus base offset (i32) and position (i32).
Source: kafka.log.OffsetIndex.
"""

import struct
from bisect import bisect_right
from operator import lt

from klamm.storage.segments.search_index import SearchIndex


class OffsetIndex(SearchIndex):
    """(offset, position) entries."""

    __slots__ = ()

    ENTRY = struct.Struct(">ii")
    TYPES = "i", "i"
    OFFSET_IS_KEY = True
    LEAST_KEY = 0
    LEAST_LAST_VALUE = 1  # Position 0 is never indexed: it would need bytes before it.
    ASCENDS = lt
    NO_ENTRY = 0, 0

    def append(self, offset: int, position: int) -> None:
        relative = offset - self._base_offset
        self._keys.append(relative)
        self._values.append(position)
        self.file.append(self.ENTRY.pack(relative, position))

    def lookup(self, offset: int) -> int:
        """A position at or before the batch that holds `offset`."""
        at = bisect_right(self._keys, offset - self._base_offset)
        return self._values[at - 1] if at else 0

    def boundary_before(self, position: int) -> int:
        """The last known start of a batch at or before `position`; 0 when no start is known."""
        at = bisect_right(self._values, position)
        return self._values[at - 1] if at else 0

    def truncate_to(self, offset: int, position: int) -> None:
        """Keeps the entries below both `offset` and `position`, the log's new end."""
        relative = offset - self._base_offset
        count = len(self._keys)
        while count and (self._keys[count - 1] >= relative or self._values[count - 1] >= position):
            count -= 1
        self._keep(count)
