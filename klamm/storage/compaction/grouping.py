"""Decides which segments a cleaning merges into one, so that a log does not end up as very many small segments.

What must stay true of each group: its segments are neighbours; together they do not exceed segment.bytes or the index
size, even if the new segment is much smaller; all offsets are within 2^31 of the first base offset. A single segment is
a group, whatever its size.

Source: kafka.log.Cleaner.groupSegmentsBySize.
"""

from collections.abc import Sequence
from typing import NamedTuple

from klamm.storage.log.job import SourceSegment

_MAX_RELATIVE_OFFSET = 2**31 - 1
# A group is swapped in one step on the broker's loop, with some renames for each of its segments.
MAX_SEGMENTS = 64


class IndexedSegment(NamedTuple):
    """A segment and the sizes of its indexes."""

    segment: SourceSegment
    index_bytes: int
    time_index_bytes: int


def group_segments(
    segments: Sequence[IndexedSegment], end_offset: int, segment_bytes: int, segment_index_bytes: int
) -> list[list[SourceSegment]]:
    """Groups neighbours. `end_offset` is the base offset of the segment after the last one."""
    groups: list[list[SourceSegment]] = []
    size_bytes = index_bytes = time_index_bytes = 0
    for number, (segment, its_index_bytes, its_time_index_bytes) in enumerate(segments):
        size_bytes += segment.size_bytes
        index_bytes += its_index_bytes
        time_index_bytes += its_time_index_bytes
        # The exact last offset of a segment would cost a scan; the next base offset bounds it.
        is_last = number + 1 == len(segments)
        last_offset = (end_offset if is_last else segments[number + 1].segment.base_offset) - 1
        fits = (
            bool(groups)
            and len(groups[-1]) < MAX_SEGMENTS
            and size_bytes <= segment_bytes
            and index_bytes <= segment_index_bytes
            and time_index_bytes <= segment_index_bytes
            and last_offset - groups[-1][0].base_offset <= _MAX_RELATIVE_OFFSET
        )
        if fits:
            groups[-1].append(segment)
        else:
            groups.append([segment])
            size_bytes, index_bytes, time_index_bytes = segment.size_bytes, its_index_bytes, its_time_index_bytes
    return groups
