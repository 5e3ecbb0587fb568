"""Replica placement, against tables worked out by hand from Kafka's documented rules."""

import pytest

from klamm.base.slices import in_one_go
from klamm.broker.topics.replica_assignment import InvalidPartitions, InvalidReplicationFactor, assign_replicas


def test_five_brokers_ten_partitions() -> None:
    # The example that Kafka's own documentation of the algorithm gives: the first column walks over the brokers, the
    # distance between replicas grows by one with every round.
    assert in_one_go(assign_replicas([0, 1, 2, 3, 4], 10, 3, start_index=0, shift=0)) == {
        0: [0, 1, 2],
        1: [1, 2, 3],
        2: [2, 3, 4],
        3: [3, 4, 0],
        4: [4, 0, 1],
        5: [0, 2, 3],
        6: [1, 3, 4],
        7: [2, 4, 0],
        8: [3, 0, 1],
        9: [4, 1, 2],
    }


def test_the_start_moves_the_first_replica() -> None:
    assert in_one_go(assign_replicas([10, 20, 30], 3, 2, start_index=2, shift=1)) == {
        0: [30, 20],
        1: [10, 30],
        2: [20, 10],
    }


def test_added_partitions_continue_the_numbering() -> None:
    assert in_one_go(assign_replicas([0, 1, 2], 2, 1, start_index=1, shift=1, first_partition=3)) == {3: [1], 4: [2]}


def test_one_broker() -> None:
    assert in_one_go(assign_replicas([7], 3, 1, start_index=0, shift=0)) == {0: [7], 1: [7], 2: [7]}


def test_racks_each_get_a_replica() -> None:
    racks = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "c"}
    assignment = in_one_go(assign_replicas(list(racks), 12, 3, start_index=0, shift=0, racks=racks))
    for replicas in assignment.values():
        assert len(set(replicas)) == 3
        assert {racks[broker] for broker in replicas} == {"a", "b", "c"}
    # Brokers alternate between the racks: 0, 2, 4, 1, 3, 5.
    assert [assignment[partition][0] for partition in range(6)] == [0, 2, 4, 1, 3, 5]


def test_more_replicas_than_racks_still_uses_distinct_brokers() -> None:
    racks = {0: "a", 1: "a", 2: "b", 3: "b"}
    for replicas in in_one_go(assign_replicas(list(racks), 8, 3, start_index=1, shift=2, racks=racks)).values():
        assert len(set(replicas)) == 3
        assert {racks[broker] for broker in replicas} == {"a", "b"}


@pytest.mark.parametrize("partitions", [0, -1])
def test_partitions_below_one(partitions: int) -> None:
    with pytest.raises(InvalidPartitions, match="at least 1"):
        in_one_go(assign_replicas([0], partitions, 1, start_index=0, shift=0))


@pytest.mark.parametrize(("factor", "message"), [(0, "at least 1"), (-3, "at least 1"), (3, "only 2 live brokers")])
def test_replication_factor_out_of_range(factor: int, message: str) -> None:
    with pytest.raises(InvalidReplicationFactor, match=message):
        in_one_go(assign_replicas([0, 1], 1, factor, start_index=0, shift=0))
