"""The rules of the in-sync replica set, on plain values."""

import pytest

from klamm.replication.partition.isr import (
    CommittedIsr,
    PendingExpandIsr,
    PendingShrinkIsr,
    high_watermark,
    may_join,
    out_of_sync,
)
from klamm.replication.partition.replica import NEVER_MS, Replica

MAX_LAG_MS = 100


def replica(broker_id: int, end: int, caught_up_ms: float = NEVER_MS) -> Replica:
    made = Replica(broker_id)
    made.log_end_offset, made.last_caught_up_ms = end, caught_up_ms
    return made


@pytest.mark.parametrize(
    ("state", "is_inflight", "isr", "maximal_isr"),
    [
        (CommittedIsr((1, 2)), False, (1, 2), (1, 2)),
        (PendingExpandIsr((1, 2), 3), True, (1, 2), (1, 2, 3)),
        (PendingShrinkIsr((1, 2, 3), (2, 3)), True, (1, 2, 3), (1, 2, 3)),
    ],
)
def test_what_counts_in_each_state(state, is_inflight, isr, maximal_isr) -> None:
    assert (state.is_inflight, state.isr, state.maximal_isr) == (is_inflight, isr, maximal_isr)


def test_what_is_proposed() -> None:
    assert PendingExpandIsr((1, 2), 3).proposed_isr == (1, 2, 3)
    assert PendingShrinkIsr((1, 2, 3), (2, 3)).proposed_isr == (1,)


@pytest.mark.parametrize(
    ("replicas", "maximal_isr", "expected"),
    [
        ([], (1,), 10),
        ([replica(2, 8), replica(3, 6)], (1, 2, 3), 6),
        ([replica(2, 8), replica(3, 6)], (1, 2), 8),  # 3 does not count
        ([replica(2, 8), replica(3, 6, caught_up_ms=950)], (1, 2), 6),  # 3 is about to join
        ([replica(2, 8), replica(3, 6, caught_up_ms=899)], (1, 2), 8),  # 3 was caught up too long ago
        ([replica(2, -1)], (1, 2), -1),  # a new leader knows nothing of 2 yet
        ([replica(2, 12)], (1, 2), 10),  # never beyond the leader's own log
    ],
)
def test_the_high_watermark(replicas, maximal_isr, expected) -> None:
    assert high_watermark(10, replicas, maximal_isr, 1000, MAX_LAG_MS) == expected


@pytest.mark.parametrize(
    ("state", "end", "joins"),
    [
        (CommittedIsr((1, 2)), 7, True),
        (CommittedIsr((1, 2)), 6, False),  # lacks what is committed
        (CommittedIsr((1, 3)), 7, False),  # is a member
        (PendingExpandIsr((1,), 2), 7, False),  # another change is in flight
        (PendingShrinkIsr((1, 2), (2,)), 7, False),
    ],
)
def test_who_may_join(state, end, joins) -> None:
    assert may_join(state, replica(3, end), high_watermark=7, leader_epoch_start_offset=5, log_start_offset=0) is joins


def test_nobody_joins_before_it_has_reached_the_leaders_epoch() -> None:
    assert not may_join(
        CommittedIsr((1,)), replica(3, 7), high_watermark=5, leader_epoch_start_offset=8, log_start_offset=0
    )
    assert may_join(
        CommittedIsr((1,)), replica(3, 8), high_watermark=5, leader_epoch_start_offset=8, log_start_offset=0
    )


@pytest.mark.parametrize(("start", "joins"), [(5, False), (6, True), (7, True), (-1, True)])
def test_a_replica_with_deleted_records_may_not_join(start, joins) -> None:
    joining = replica(3, 8)
    joining.log_start_offset = start  # -1: a broker of an old version does not say
    assert may_join(CommittedIsr((1,)), joining, 8, 0, log_start_offset=6) is joins


def test_who_is_out_of_sync() -> None:
    replicas = {
        2: replica(2, 10, caught_up_ms=0),  # has everything: however long ago it last fetched
        3: replica(3, 9, caught_up_ms=899),
        4: replica(4, 9, caught_up_ms=900),
        5: replica(5, 1, caught_up_ms=0),  # no member
    }
    assert out_of_sync(CommittedIsr((1, 2, 3, 4)), 1, 10, replicas, 1000, MAX_LAG_MS) == (3,)


def test_a_member_that_is_no_replica_is_out_of_sync() -> None:
    assert out_of_sync(CommittedIsr((1, 7)), 1, 10, {}, 1000, MAX_LAG_MS) == (7,)


def test_nobody_is_put_out_while_a_change_is_in_flight() -> None:
    assert out_of_sync(PendingExpandIsr((1, 2), 3), 1, 10, {2: replica(2, 0)}, 1000, MAX_LAG_MS) == ()


def test_a_replica_is_caught_up_when_it_reaches_the_leaders_end() -> None:
    follower = Replica(2)
    follower.update_fetch_state(10, 0, 500, leader_end_offset=10)
    assert (follower.log_end_offset, follower.last_caught_up_ms) == (10, 500)


def test_a_replica_that_reaches_the_previous_end_was_caught_up_then() -> None:
    follower = Replica(2)
    follower.update_fetch_state(5, 0, 500, leader_end_offset=10)
    before = follower.last_caught_up_ms
    follower.update_fetch_state(9, 0, 600, leader_end_offset=15)
    assert follower.last_caught_up_ms == before
    follower.update_fetch_state(15, 0, 700, leader_end_offset=20)
    assert follower.last_caught_up_ms == 600


def test_a_new_epoch_gives_members_time_and_others_none() -> None:
    member, other = replica(2, 7, caught_up_ms=1), replica(3, 7, caught_up_ms=1)
    member.leader_epoch_started(10, 1000, in_sync=True, forget_offsets=False)
    other.leader_epoch_started(10, 1000, in_sync=False, forget_offsets=False)
    assert (member.last_caught_up_ms, other.last_caught_up_ms) == (1000, NEVER_MS)
    assert member.log_end_offset == 7
    member.leader_epoch_started(10, 2000, in_sync=True, forget_offsets=True)
    assert member.log_end_offset == -1
