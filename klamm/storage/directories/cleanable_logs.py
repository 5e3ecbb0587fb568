"""Decides which log is compacted next, and up to which offset. Changes nothing.

    log start      first dirty offset        first uncleanable offset      log end
        |  cleaned before   |       cleanable           |   not yet cleanable   |

The first dirty offset is the log's entry in cleaner-offset-checkpoint. The first uncleanable offset is the lowest of:

| offset                                                 | because                                                  |
|--------------------------------------------------------|----------------------------------------------------------|
| `cleaning.uncleanable_from`                            | the log may still change there                           |
| the base offset of the last segment that has a batch   | no follower and no copy of the log could reach an end of |
|                                                        | the log that no batch has                                |
| of the first dirty segment whose largest timestamp is  | consumers may rely on seeing every record for so long    |
| younger than min.compaction.lag.ms: its base offset    |                                                          |

The log with the largest share of cleanable bytes is cleaned first, if this share is above min.cleanable.dirty.ratio,
or if a dirty record in a closed segment is older than max.compaction.lag.ms.

What must stay true:
- Only whole segments are cleaned: the cleanable bytes end where a segment begins.
- A checkpoint outside the log is ignored: the log is dirty from its start.

Source: kafka.log.LogCleanerManager (cleanableOffsets, calculateCleanableBytes, maxCompactionDelay), LogToClean.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from klamm.storage.log.log_config import LogConfig

# The default of max.compaction.lag.ms.
NEVER_MS = 2**63 - 1


class Segment(Protocol):
    """A segment, as the choice needs it. The timestamps may have to be read from the disk."""

    base_offset: int
    size_bytes: int

    def largest_timestamp(self) -> int: ...

    @property
    def first_timestamp(self) -> int: ...


class CompactedLog(NamedTuple):
    """A log, as the choice needs it. The last of the `segments` is the active one. No segment from `uncleanable_from`
    on may be cleaned."""

    name: str
    config: LogConfig
    log_start_offset: int
    uncleanable_from: int
    log_end_offset: int
    segments: Sequence[Segment]


class FirstDirty(NamedTuple):
    """The first dirty offset. `problem` says why the checkpoint was ignored; "" if there is nothing to report."""

    offset: int
    is_reset: bool = False
    problem: str = ""


def first_dirty(log: CompactedLog, checkpoint: int | None) -> FirstDirty:
    """The first offset that was never cleaned."""
    start = log.log_start_offset
    if checkpoint is None:
        return FirstDirty(start)
    if checkpoint < start:
        # With the policy compact,delete, retention moves the log start offset past the checkpoint all the time.
        problem = (
            ""
            if "delete" in log.config.cleanup_policy
            else (
                f"Resetting first dirty offset of {log.name} to log start offset {start} since the checkpointed offset"
                f" {checkpoint} is invalid."
            )
        )
        return FirstDirty(start, True, problem)
    if checkpoint > log.log_end_offset:
        return FirstDirty(
            start,
            True,
            f"The last checkpoint dirty offset for partition {log.name} is {checkpoint}, which is larger than the log"
            f" end offset {log.log_end_offset}. Resetting to the log start offset {start}.",
        )
    return FirstDirty(checkpoint)


def first_uncleanable(log: CompactedLog, first_dirty_offset: int, now_ms: int) -> int:
    """The offset up to which the log may be cleaned; never below `first_dirty_offset`."""
    last = next((segment for segment in reversed(log.segments) if segment.size_bytes), log.segments[-1])
    limits = [log.uncleanable_from, last.base_offset]
    lag_ms = log.config.min_compaction_lag_ms
    if lag_ms > 0:
        for segment in _closed_from(log, first_dirty_offset):
            if segment.largest_timestamp() > now_ms - lag_ms:
                limits.append(segment.base_offset)
                break
    return max(first_dirty_offset, min(limits))


class Cleanable(NamedTuple):
    """How dirty a log is. The range to clean ends before `end_offset`, which is the base offset of a segment.

    `delay_ms` is how long ago the oldest dirty record of a closed segment exceeded max.compaction.lag.ms.
    """

    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    cleanable_bytes: int
    delay_ms: int

    @property
    def dirty_ratio(self) -> float:
        total_bytes = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total_bytes if total_bytes else 0.0

    def is_due(self, config: LogConfig) -> bool:
        """Whether the log is dirty enough, or must be cleaned now."""
        is_late = self.delay_ms > 0 and self.cleanable_bytes > 0
        return is_late or self.dirty_ratio > config.min_cleanable_dirty_ratio


def measure(log: CompactedLog, first_dirty_offset: int, now_ms: int) -> Cleanable:
    """How dirty the log is from `first_dirty_offset` on. May read the disk if a lag is configured."""
    uncleanable = first_uncleanable(log, first_dirty_offset, now_ms)
    closed = list(_closed_from(log, uncleanable))
    end_offset = closed[0].base_offset if closed else log.segments[-1].base_offset
    begin = min(first_dirty_offset, end_offset)
    cleanable = [segment for segment in _closed_from(log, begin) if segment.base_offset < end_offset]
    return Cleanable(
        first_dirty_offset,
        end_offset,
        sum(segment.size_bytes for segment in log.segments if segment.base_offset < first_dirty_offset),
        sum(segment.size_bytes for segment in cleanable) if begin < end_offset else 0,
        _delay_ms(log, first_dirty_offset, now_ms),
    )


def _delay_ms(log: CompactedLog, first_dirty_offset: int, now_ms: int) -> int:
    lag_ms = log.config.max_compaction_lag_ms
    if lag_ms >= NEVER_MS:
        return 0
    timestamps = [segment.first_timestamp for segment in _closed_from(log, first_dirty_offset)]
    oldest = min((timestamp for timestamp in timestamps if timestamp > 0), default=NEVER_MS)
    return max(0, now_ms - lag_ms - oldest)


def _closed_from(log: CompactedLog, offset: int) -> Iterable[Segment]:
    """The closed segments from the one that holds `offset` on."""
    *closed, active = log.segments
    if offset >= active.base_offset:
        return ()
    first = max((at for at, segment in enumerate(closed) if segment.base_offset <= offset), default=0)
    return closed[first:]
