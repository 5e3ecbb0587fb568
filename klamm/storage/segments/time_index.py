"""The time index of one segment: the largest timestamp up to a point, and the last offset of the batch that has it.

What must stay true: timestamps ascend strictly and offsets never descend: an entry (t, o) says that every record
after offset o within the indexed part has a timestamp of at most t.

File: entries of 12 bytes, timestamp (i64) and offset minus base offset (i32).
Source: kafka.log.TimeIndex.
"""

import struct
from bisect import bisect_left, bisect_right
from operator import le

from klamm.protocol.record.record_batch import NO_TIMESTAMP
from klamm.storage.segments.search_index import Entry, SearchIndex


class TimeIndex(SearchIndex):
    """(timestamp in ms, offset) entries."""

    __slots__ = ()

    ENTRY = struct.Struct(">qi")
    TYPES = "q", "i"
    OFFSET_IS_KEY = False
    LEAST_KEY = -(2**63)
    LEAST_LAST_VALUE = 0
    ASCENDS = le
    NO_ENTRY = NO_TIMESTAMP, 0

    def maybe_append(self, timestamp_ms: int, offset: int) -> None:
        """Adds an entry if the timestamp exceeds the last one."""
        if timestamp_ms > (self._keys[-1] if self._keys else NO_TIMESTAMP):
            relative = offset - self._base_offset
            self._keys.append(timestamp_ms)
            self._values.append(relative)
            self.file.append(self.ENTRY.pack(timestamp_ms, relative))

    def lookup(self, timestamp_ms: int) -> int:
        """An offset. No record before its batch has a timestamp of `timestamp_ms` or more."""
        return self._entry_before(bisect_right(self._keys, timestamp_ms))[1]

    def last_entry(self) -> Entry:
        """(timestamp, offset) of the last entry of a loaded index, or (-1, base offset)."""
        return self._entry_before(len(self._keys))

    def last_entry_below(self, offset: int) -> Entry:
        """Like `last_entry`, among the entries that `truncate_to` would keep."""
        return self._entry_before(bisect_left(self._values, offset - self._base_offset))

    def _entry_before(self, at: int) -> Entry:
        if at == 0:
            return NO_TIMESTAMP, self._base_offset
        return self._keys[at - 1], self._base_offset + self._values[at - 1]

    def truncate_to(self, offset: int) -> None:
        """Keeps the entries below `offset`."""
        self._keep(bisect_left(self._values, offset - self._base_offset))
