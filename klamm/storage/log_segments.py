"""The segments of one log, in the order of their base offsets."""

from bisect import bisect_right
from collections.abc import Iterator

from klamm.storage.segment import LogSegment


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

    def add(self, segment: LogSegment) -> None:
        """Adds a segment in the order of base offsets."""
        at = bisect_right(self._base_offsets, segment.base_offset)
        self._segments.insert(at, segment)
        self._base_offsets.insert(at, segment.base_offset)

    def remove(self, segment: LogSegment) -> None:
        at = self._segments.index(segment)
        del self._segments[at]
        del self._base_offsets[at]

    def floor(self, offset: int) -> LogSegment | None:
        """The last segment whose base offset is at most `offset`."""
        at = bisect_right(self._base_offsets, offset)
        return self._segments[at - 1] if at else None

    def following(self, segment: LogSegment) -> LogSegment | None:
        """The next segment, None after the active one."""
        at = bisect_right(self._base_offsets, segment.base_offset)
        return self._segments[at] if at < len(self._segments) else None

    def starting_with(self, offset: int) -> list[LogSegment]:
        """The segment that holds `offset`, and all later segments."""
        at = max(0, bisect_right(self._base_offsets, offset) - 1)
        return self._segments[at:]

    def following_base(self, segment: LogSegment) -> int:
        """The base offset of the segment after this one, which must not be the active one."""
        return self._base_offsets[bisect_right(self._base_offsets, segment.base_offset)]
