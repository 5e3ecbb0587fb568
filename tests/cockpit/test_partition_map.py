"""The map of partitions: which byte a replica gets, and that changes keep up with whole looks."""

from collections.abc import Mapping
from random import Random

from klamm.cockpit.partition_map import UNKNOWN, PartitionMap, States
from klamm.diagnosis.cluster_view import PartitionView


def looked(states: States, live: tuple[int, ...] = (1, 2, 3)) -> PartitionMap:
    made = PartitionMap()
    look(made, states, live)
    return made


def look(made: PartitionMap, states: States, live: tuple[int, ...] = (1, 2, 3)) -> bool:
    steps = made.look(states, live)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            is_new: bool = end.value
            return is_new


def rows(made: PartitionMap) -> list[str]:
    width = len(made.brokers)
    return ["".join(map(str, made.cells[first : first + width])) for first in range(0, len(made.cells), width)]


def test_each_replica_has_the_byte_of_its_state() -> None:
    made = looked(
        {
            "b": {
                0: PartitionView(1, -1, (1, 2, 3), (1, 2)),
                1: PartitionView(-1, -1, (2, 4), (4,)),
                2: PartitionView(2, -1, (1, 2, 3), (1, 2), offline=(3,), adding=(1,), removing=(2,)),
                # The replica that is added stands in for the one that is removed.
                3: PartitionView(1, -1, (1, 2, 3), (1, 2), adding=(2,), removing=(3,)),
            },
            "a": {0: PartitionView(3, -1, (3,), (3,)), 2: PartitionView(3, -1, (3,), (3,))},
        }
    )
    assert made.brokers == (1, 2, 3, 4)
    assert rows(made) == ["0020", "0000", "0020", "2130", "0304", "5270", "2560"]
    assert made.head() == {
        "version": 1,
        "sequence": 0,
        "brokers": (1, 2, 3, 4),
        "live": [1, 2, 3],
        "rows": 7,
        "left_out": {"partitions": 0, "brokers": 0},
        "totals": {"topics": 2, "partitions": 6, "offline": 1, "under_replicated": 2, "reassigning": 2},
        "topics": [["a", 0, 3], ["b", 3, 4]],
    }


def test_rows_are_the_partitions_from_one_on() -> None:
    one = PartitionView(1, -1, (1,), (1,))
    topics: dict[str, dict[int, PartitionView]] = {"a": {0: one}, "b": {}, "c": {0: one, 2: one}, "d": {0: one}}
    made = looked(topics)
    named = [(key.topic, key.partition, state == one) for key, state in made.rows(0, 100)]
    assert named == [("a", 0, True), ("c", 0, True), ("c", 1, False), ("c", 2, True), ("d", 0, True)]
    for first in range(7):
        for count in range(7):
            found = [(key.topic, key.partition) for key, _ in made.rows(first, count)]
            assert found == [(topic, partition) for topic, partition, _ in named[first : first + count]]
    assert list(PartitionMap().rows(0, 5)) == []


def test_within_a_version_only_changed_rows_are_sent() -> None:
    states = {"t": {0: PartitionView(1, -1, (1, 2), (1, 2)), 1: PartitionView(2, -1, (2, 1), (2, 1))}}
    made = looked(states, (1, 2))
    assert made.take_changes() is None
    assert made.change("t", 0, 2, [2])
    assert not look(made, {"t": {**states["t"], 0: PartitionView(2, -1, (1, 2), (2,))}}, (1, 2))
    changes = made.take_changes()
    assert changes is not None
    assert changes.value() == {
        "version": 1,
        "sequence": 1,
        "totals": {"topics": 1, "partitions": 2, "offline": 0, "under_replicated": 1, "reassigning": 0},
        "rows": [0],
        "cells": ["32"],
    }
    assert made.take_changes() is None
    assert not look(made, states, (2,))
    changes = made.take_changes()
    assert changes is not None
    assert (changes.rows, changes.cells, changes.totals.offline) == ([0, 1], [b"\4\1", b"\4\2"], 1)


def test_new_topics_partitions_and_brokers_make_a_new_version() -> None:
    states: dict[str, Mapping[int, PartitionView]] = {"t": {0: PartitionView(1, -1, (1,), (1,))}}
    made = looked(states, (1,))
    assert look(made, {**states, "a": {0: PartitionView(1, -1, (1,), (1,))}}, (1,))
    assert (made.version, made.row("t", 0), rows(made)) == (2, 1, ["2", "2"])
    assert look(made, states, (1, 2))
    assert (made.version, rows(made)) == (3, ["20"])
    assert made.take_changes() is None


def test_a_look_does_not_undo_what_came_after_it_had_begun() -> None:
    states = {"t": {0: PartitionView(1, -1, (1, 2), (1, 2))}}
    made = looked(states, (1, 2))
    made.begin_look()
    assert made.change("t", 0, 2, [2])
    look(made, states, (1, 2))
    assert rows(made) == ["32"]
    look(made, states, (1, 2))
    assert rows(made) == ["21"]


def test_a_change_of_an_unknown_partition_or_of_other_replicas_needs_a_look() -> None:
    made = looked({"t": {0: PartitionView(1, -1, (1, 2), (1, 2))}})
    assert not made.change("t", 1, 1, [1])
    assert not made.change("u", 0, 1, [1])
    assert not made.change("t", 0, 3, [3])
    assert made.state("u", 0) == UNKNOWN


def test_changes_and_looks_come_to_the_same() -> None:
    random = Random(7)
    states = {f"t{n}": {m: PartitionView(1, -1, (1, 2, 3), (1, 2, 3)) for m in range(5)} for n in range(20)}
    made = looked(states)
    for _ in range(500):
        topic, number = f"t{random.randrange(20)}", random.randrange(5)
        isr = tuple(sorted(random.sample((1, 2, 3), random.randint(1, 3))))
        states[topic][number] = PartitionView(random.choice(isr), -1, (1, 2, 3), isr)
        assert made.change(topic, number, states[topic][number].leader, isr)
    assert made.cells == looked(states).cells


def test_numbers_that_kafka_never_gives_cost_no_memory() -> None:
    one = PartitionView(1, -1, (1,), (1,))
    made = looked({"a": {0: one, 1: one, 2**31 - 1: one, 2**64: one}, "b": {2**31 - 1: one}, "c": {0: one, 2: one}})
    assert [(key, state == one) for key, state in made.rows(0, 100)] == [
        (("a", 0), True),
        (("a", 1), True),
        (("c", 0), True),
        (("c", 1), False),
        (("c", 2), True),
    ]
    assert made.left_out == (3, 0)
    assert made.state("b", 2**31 - 1) == UNKNOWN
    assert not made.change("b", 2**31 - 1, 1, [1])


def test_live_brokers_have_columns_before_those_that_replicas_name() -> None:
    made = looked(
        {"a": {number: PartitionView(9_999, -1, (number, 9_999), ()) for number in range(3_000)}}, (9_998, 9_999)
    )
    assert len(made.brokers) == 2_000
    assert made.brokers[-2:] == (9_998, 9_999)
    assert made.left_out == (0, 1_002)
    assert len(made.cells) == 3_000 * 2_000
