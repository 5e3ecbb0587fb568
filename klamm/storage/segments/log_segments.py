"""The segments of one log, in the order of their base offsets."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import attrgetter

from klamm.storage.segments.segment import LogSegment

_SIZE_BYTES = attrgetter("size_bytes")


class LogSegments:
    """An open log always has at least one segment. The last segment is the active one."""

    __slots__ = ("_base_offsets", "_segments")

    def __init__(self) -> None:
        self._segments: list[LogSegment] = []
        self._base_offsets: list[int] = []

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[LogSegment]:
        return iter(self._segments)

    @property
    def first(self) -> LogSegment:
        return self._segments[0]

    @property
    def active(self) -> LogSegment:
        return self._segments[-1]

    @property
    def base_offsets(self) -> list[int]:
        return list(self._base_offsets)

    @property
    def size_bytes(self) -> int:
        """The size of all log files. Summed without a Python loop, because a log may have very many segments."""
        return sum(map(_SIZE_BYTES, self._segments))

    def add(self, segment: LogSegment) -> None:
        """Adds a segment in the order of base offsets."""
        at = bisect_right(self._base_offsets, segment.base_offset)
        self._segments.insert(at, segment)
        self._base_offsets.insert(at, segment.base_offset)

    def remove(self, segment: LogSegment) -> None:
        at = bisect_left(self._base_offsets, segment.base_offset)
        assert self._segments[at] is segment
        del self._segments[at]
        del self._base_offsets[at]

    def has_base(self, offset: int) -> bool:
        """Whether a segment begins at `offset`."""
        at = bisect_left(self._base_offsets, offset)
        return at < len(self._base_offsets) and self._base_offsets[at] == offset

    def floor(self, offset: int) -> LogSegment | None:
        """The last segment whose base offset is at most `offset`."""
        at = bisect_right(self._base_offsets, offset)
        return self._segments[at - 1] if at else None

    def following(self, segment: LogSegment) -> LogSegment | None:
        """The next segment, None after the active one."""
        at = bisect_right(self._base_offsets, segment.base_offset)
        return self._segments[at] if at < len(self._segments) else None

    def count_from(self, offset: int) -> int:
        """How many segments `starting_with` returns."""
        return len(self._segments) - max(0, bisect_right(self._base_offsets, offset) - 1)

    def starting_with(self, offset: int) -> list[LogSegment]:
        """The segment that holds `offset`, and all later segments."""
        at = max(0, bisect_right(self._base_offsets, offset) - 1)
        return self._segments[at:]

    def following_base(self, segment: LogSegment) -> int:
        """The base offset of the segment after this one, which must not be the active one."""
        return self._base_offsets[bisect_right(self._base_offsets, segment.base_offset)]
