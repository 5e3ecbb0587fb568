"""Which replicas are out of sync, and when a partition is at or below min.insync.replicas."""

import pytest

from klamm.diagnosis.cluster_view import PartitionView
from klamm.diagnosis.partition_health import (
    is_at_min_isr,
    is_off_preferred,
    is_unavailable,
    is_under_min_isr,
    is_under_replicated,
    is_well,
    out_of_sync,
)


def partition(replicas: str, isr: str, adding: str = "", removing: str = "", leader: int = 1) -> PartitionView:
    """A partition whose brokers have one digit each."""
    return PartitionView(leader, 5, *(tuple(map(int, each)) for each in (replicas, isr, adding, removing)))


@pytest.mark.parametrize(
    ("each", "missing"),
    [
        (partition("123", "123"), []),
        (partition("123", "12"), [3]),
        # As many as replicas, and others: one that a reassignment adds, a stranger, one twice.
        (partition("1234", "124", adding="4"), [3]),
        (partition("1234", "123", adding="4"), []),
        (partition("1234", "124", adding="4", removing="3"), []),
        (partition("1234", "12", adding="4", removing="3"), [3]),
        (partition("12345", "145", adding="45", removing="3"), [2]),
        (partition("123", "129"), [3]),
        (partition("123", "122"), [3]),
        (partition("123", ""), [1, 2, 3]),
    ],
)
def test_only_a_replica_itself_stands_for_it_in_the_isr(each: PartitionView, missing: list[int]) -> None:
    assert (out_of_sync(each), is_under_replicated(each)) == (missing, bool(missing))


@pytest.mark.parametrize(
    ("isr", "minimum", "is_under", "is_at"),
    [("123", 2, False, False), ("12", 2, False, True), ("1", 2, True, False), ("1", None, False, False)],
)
def test_an_unknown_minimum_is_neither_reached_nor_missed(
    isr: str, minimum: int | None, is_under: bool, is_at: bool
) -> None:
    each = partition("123", isr)
    assert (is_under_min_isr(each, minimum), is_at_min_isr(each, minimum)) == (is_under, is_at)


def test_a_partition_without_a_live_leader_is_unavailable() -> None:
    led, leaderless = partition("12", "12"), partition("12", "12", leader=-1)
    assert [is_unavailable(led, {1}), is_unavailable(led, {2}), is_unavailable(leaderless, {1, 2})] == [
        False,
        True,
        True,
    ]
    assert [is_under_min_isr(led, 2), is_under_min_isr(leaderless, 2), is_under_min_isr(leaderless, None)] == [
        False,
        True,
        True,
    ]


def test_a_partition_is_well_that_nothing_is_wrong_with() -> None:
    whole, short = partition("12", "12"), partition("12", "1")
    assert [is_well(whole, {1, 2}, 2), is_well(whole, {1}, None)] == [True, True]
    assert [is_well(whole, {2}, 2), is_well(short, {1}, 1), is_well(whole, {1, 2}, 3)] == [False, False, False]


def test_only_a_partition_with_a_leader_is_off_its_preferred_one() -> None:
    assert [is_off_preferred(partition("12", "12", leader=each)) for each in (1, 2, -1)] == [False, True, False]
