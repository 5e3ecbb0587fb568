"""Decides which segments of a log breach retention, and what the broker's log says about them. Changes nothing.

What must stay true:
- Only whole segments breach retention, from the oldest on without a gap, all below the high watermark.
- An active segment without records stays.
- Each rule sees the log as the rule before it has left it.
- A rule returns at most `limit` segments, because their deletion is one step. The caller asks again until it returns
  none.

Source: kafka.log.Log.deleteOldSegments.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from klamm.storage.log.log_view import LogView
from klamm.storage.segments.segment import LogSegment


class Breach(NamedTuple):
    """Segments to delete, and Kafka's lines that say why."""

    segments: Sequence[LogSegment]
    lines: Sequence[str]


Rule = Callable[[LogView, int, int], Breach | None]
"""Gets the log, the time in ms and `limit`; returns the segments that breach a rule, or None if no segment does."""


def breach_of_time(log: LogView, now_ms: int, limit: int) -> Breach | None:
    """Records older than retention.ms."""
    retention_ms = log.config.retention_ms
    if retention_ms < 0 or "delete" not in log.config.cleanup_policy:
        return None
    doomed = _oldest_while(log, limit, lambda segment, _: now_ms - segment.largest_timestamp() > retention_ms)
    lines = []
    for segment in doomed:
        has_timestamps = segment.max_timestamp >= 0
        source = "largest record timestamp in the segment" if has_timestamps else "last modified time of the segment"
        lines.append(f"Deleting segment {segment} due to retention time {retention_ms}ms breach based on the {source}")
    return Breach(doomed, lines) if doomed else None


def breach_of_size(log: LogView, _now_ms: int, limit: int) -> Breach | None:
    """More bytes than retention.bytes."""
    retention_bytes = log.config.retention_bytes
    if retention_bytes < 0 or "delete" not in log.config.cleanup_policy:
        return None
    size_bytes = log.segments.size_bytes
    excess_bytes = size_bytes - retention_bytes
    if excess_bytes < 0:
        return None

    def exceeds(segment: LogSegment, _upper_bound: int) -> bool:
        nonlocal excess_bytes
        if excess_bytes < segment.size_bytes:
            return False
        excess_bytes -= segment.size_bytes
        return True

    doomed, lines = _oldest_while(log, limit, exceeds), []
    for segment in doomed:
        size_bytes -= segment.size_bytes
        lines.append(
            f"Deleting segment {segment} due to retention size {retention_bytes} breach."
            f" Log size after deletion will be {size_bytes}."
        )
    return Breach(doomed, lines) if doomed else None


def breach_of_log_start_offset(log: LogView, _now_ms: int, limit: int) -> Breach | None:
    """Records below the log start offset. The active segment stays."""
    active = log.segments.active
    doomed = _oldest_while(
        log, limit, lambda segment, upper_bound: upper_bound <= log.log_start_offset and segment is not active
    )
    if not doomed:
        return None
    segments = ",".join(map(str, doomed))
    return Breach(doomed, [f"Deleting segments due to log start offset {log.log_start_offset} breach: {segments}"])


RULES: tuple[Rule, ...] = (breach_of_time, breach_of_size, breach_of_log_start_offset)
"""In Kafka's order."""


def breaches(log: LogView, now_ms: int, limit: int) -> Iterator[Breach]:
    """The breach of each rule. The caller deletes its segments before it asks for the next one."""
    for rule in RULES:
        breach = rule(log, now_ms, limit)
        if breach is not None:
            yield breach


def _oldest_while(log: LogView, limit: int, deletable: Callable[[LogSegment, int], bool]) -> list[LogSegment]:
    """The oldest segments for which `deletable(segment, the offset after it)` is true, `limit` at most."""
    doomed: list[LogSegment] = []
    for segment in islice(log.segments, limit):
        following = log.segments.following(segment)
        upper_bound = log.log_end_offset if following is None else following.base_offset
        if log.high_watermark < upper_bound or not deletable(segment, upper_bound):
            break
        if following is None and segment.size_bytes == 0:
            break
        doomed.append(segment)
    return doomed
