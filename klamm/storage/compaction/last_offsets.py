"""Where in a log the last offsets of its keys are. With it, most compressed batches are decompressed only once.

What must stay true: `has_any` is never False for a range with a marked offset. It may be True for a range without one,
because several offsets share a mark: the marks of the longest log take no more than `_MOST_MARKS` bytes.
"""

_MOST_MARKS = 4 * 1024 * 1024


class LastOffsets:
    """Marks for offsets from `first_offset` to before `end_offset`."""

    def __init__(self, first_offset: int, end_offset: int) -> None:
        size = max(1, end_offset - first_offset)
        self.first_offset = first_offset
        self.offsets_per_mark = -(-size // _MOST_MARKS)
        self.marks = bytearray(-(-size // self.offsets_per_mark))

    def mark(self, offset: int) -> None:
        self.marks[self._index(offset)] = 1

    def has_any(self, first_offset: int, last_offset: int) -> bool:
        """Whether an offset in the range, both ends included, may be marked."""
        return self.marks.find(1, self._index(first_offset), self._index(last_offset) + 1) >= 0

    def _index(self, offset: int) -> int:
        return (offset - self.first_offset) // self.offsets_per_mark
