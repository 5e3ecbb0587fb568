"""Which compacted log is cleaned next, and up to where."""

from typing import NamedTuple

import pytest

from klamm.storage.directories.cleanable_logs import Cleanable, CompactedLog, first_dirty, measure
from klamm.storage.log.log_config import LogConfig

NOW_MS = 1_000_000
HOUR_MS = 3_600_000


class Segment(NamedTuple):
    base_offset: int
    size_bytes: int = 100
    first_timestamp: int = 1
    newest: int = 1

    def largest_timestamp(self) -> int:
        return self.newest


FOUR = (Segment(0), Segment(10), Segment(20), Segment(30, 70))


def a_log(segments=FOUR, *, start=0, limit=30, end=35, **config) -> CompactedLog:
    policy = config.pop("policy", ("compact",))
    return CompactedLog("t-0", LogConfig(cleanup_policy=policy, **config), start, limit, end, segments)


@pytest.mark.parametrize(
    ("what", "log", "checkpoint", "first", "end", "clean_bytes", "cleanable_bytes"),
    [
        ("all but the active segment, when nothing was cleaned", a_log(), None, 0, 30, 0, 300),
        ("from the checkpoint on", a_log(), 20, 20, 30, 200, 100),
        ("nothing, when all closed segments are clean", a_log(), 30, 30, 30, 300, 0),
        ("a segment that was cleaned in part counts twice, as in Kafka", a_log(), 25, 25, 30, 300, 100),
        ("nothing from the limit on", a_log(limit=20), None, 0, 20, 0, 200),
        ("nothing, when the limit is the first segment", a_log(limit=0), None, 0, 0, 0, 0),
        ("nothing, when the checkpoint is above the limit", a_log(limit=10), 25, 25, 20, 300, 0),
        (
            "nothing of the last batch, when the active segment is empty",
            a_log((*FOUR, Segment(40, 0)), limit=40, end=40),
            None,
            0,
            30,
            0,
            300,
        ),
        ("a log with only an active segment", a_log((Segment(30, 70),), start=30), None, 30, 30, 0, 0),
        ("a log that begins within a segment", a_log(start=15), None, 15, 30, 200, 200),
    ],
)
def test_what_is_cleanable(what, log, checkpoint, first, end, clean_bytes, cleanable_bytes) -> None:
    found = measure(log, first_dirty(log, checkpoint).offset, NOW_MS)
    assert found == Cleanable(first, end, clean_bytes, cleanable_bytes, 0), what


def test_segments_with_young_records_are_not_cleaned() -> None:
    segments = (Segment(0, newest=100), Segment(10, newest=900), Segment(20, newest=100), Segment(30))
    for lag_ms, end in ((0, 30), (NOW_MS - 900, 30), (NOW_MS - 899, 10), (NOW_MS - 99, 0)):
        found = measure(a_log(segments, min_compaction_lag_ms=lag_ms), 0, NOW_MS)
        assert found.end_offset == end, lag_ms
    # Clean segments were judged before.
    assert measure(a_log(segments, min_compaction_lag_ms=NOW_MS - 99), 20, NOW_MS).end_offset == 20


@pytest.mark.parametrize(
    ("checkpoint", "policy", "offset", "is_reset", "problem"),
    [
        (None, ("compact",), 10, False, ""),
        (10, ("compact",), 10, False, ""),
        (35, ("compact",), 35, False, ""),
        (
            9,
            ("compact",),
            10,
            True,
            "Resetting first dirty offset of t-0 to log start offset 10 since the checkpointed offset 9 is invalid.",
        ),
        (9, ("compact", "delete"), 10, True, ""),
        (
            36,
            ("compact", "delete"),
            10,
            True,
            "The last checkpoint dirty offset for partition t-0 is 36, which is larger than the log end offset 35."
            " Resetting to the log start offset 10.",
        ),
    ],
)
def test_a_checkpoint_outside_the_log_counts_for_nothing(checkpoint, policy, offset, is_reset, problem) -> None:
    assert first_dirty(a_log(start=10, policy=policy), checkpoint) == (offset, is_reset, problem)


def test_a_log_is_due_when_its_dirty_share_is_above_the_ratio() -> None:
    half = Cleanable(10, 20, 100, 100, 0)
    assert half.dirty_ratio == 0.5
    assert not half.is_due(LogConfig(min_cleanable_dirty_ratio=0.5))
    assert half.is_due(LogConfig(min_cleanable_dirty_ratio=0.49))
    assert not Cleanable(0, 0, 0, 0, 0).is_due(LogConfig(min_cleanable_dirty_ratio=0.0))


def test_a_log_with_old_dirty_records_is_due_whatever_its_ratio() -> None:
    segments = (Segment(0, first_timestamp=1), Segment(10, 1, first_timestamp=5_000), Segment(20, first_timestamp=-1))
    log = a_log((*segments, Segment(30)), max_compaction_lag_ms=NOW_MS - 6_000, min_cleanable_dirty_ratio=0.9)
    assert measure(log, 20, NOW_MS).delay_ms == 0
    late = measure(log, 10, NOW_MS)
    assert (late.delay_ms, late.is_due(log.config)) == (1_000, True)
    assert not late._replace(cleanable_bytes=0).is_due(log.config)
    assert not late._replace(delay_ms=0).is_due(log.config)
