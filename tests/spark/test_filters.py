"""What filters say about the offsets that a query can need. Spark applies them again, so only leaving out is a risk."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from klamm.spark.batch import narrowing_of
from klamm.spark.planning import Narrowing

OFFSET, PARTITION, TOPIC, TIMESTAMP = ("offset",), ("partition",), ("topic",), ("timestamp",)
NOON = datetime(2024, 1, 1, 12, 0, 0, 500_600, UTC)
NOON_MS = 1_704_110_400_500


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], Narrowing()),
        ([EqualTo(TOPIC, "a"), In(TOPIC, ("a", "b"))], Narrowing(topics=frozenset({"a"}))),
        ([In(PARTITION, (1, 2)), EqualTo(PARTITION, 3)], Narrowing(partitions=frozenset())),
        ([EqualTo(OFFSET, 5)], Narrowing(first_offset=5, last_offset=5)),
        ([GreaterThan(OFFSET, 5), LessThan(OFFSET, 9)], Narrowing(first_offset=6, last_offset=8)),
        ([GreaterThanOrEqual(OFFSET, 5), LessThanOrEqual(OFFSET, 9)], Narrowing(first_offset=5, last_offset=9)),
        ([GreaterThan(OFFSET, 5), GreaterThan(OFFSET, 3), LessThan(OFFSET, -4)], Narrowing(None, None, 6, -5)),
        ([GreaterThanOrEqual(OFFSET, -7)], Narrowing()),
    ],
)
def test_what_filters_say(filters: list[Filter], expected: Narrowing) -> None:
    assert narrowing_of(filters) == expected


@pytest.mark.parametrize(
    "pushed",
    [
        Not(EqualTo(OFFSET, 5)),
        EqualNullSafe(OFFSET, 5),
        EqualTo(OFFSET, None),
        EqualTo(("headers", "offset"), 5),
        EqualTo(("key",), b"x"),
        IsNotNull(OFFSET),
        LessThan(TIMESTAMP, NOON),
        LessThan(PARTITION, 4),
        StringStartsWith(TOPIC, "a"),
        GreaterThan(TIMESTAMP, NOON.replace(tzinfo=None)),
        # Records that have no timestamp have -1, and no broker looks for one before 1970.
        GreaterThanOrEqual(TIMESTAMP, NOON.replace(year=1969)),
        EqualTo(TIMESTAMP, datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)),
    ],
)
def test_what_says_nothing(pushed: Filter) -> None:
    assert narrowing_of([pushed]) == Narrowing()


@pytest.mark.parametrize("kind", [EqualTo, GreaterThan, GreaterThanOrEqual])
def test_a_timestamp_never_leaves_out_its_own_millisecond(kind: type[EqualTo]) -> None:
    """Records have whole milliseconds, and a double has not every one of them."""
    for microseconds in range(0, 3000, 37):
        since_ms = narrowing_of([kind(TIMESTAMP, NOON + timedelta(microseconds=microseconds))]).since_ms
        assert since_ms is not None
        assert NOON_MS - 2 <= since_ms <= NOON_MS + microseconds // 1000
