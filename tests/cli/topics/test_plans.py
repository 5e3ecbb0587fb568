"""What `klamm topics create`, `alter` and `delete` plan."""

from random import Random

import pytest

from klamm.cli.topics.plans import (
    Alteration,
    Wanted,
    alteration_lines,
    alterations,
    deletion_lines,
    place_partitions,
    place_topic,
    question,
)
from klamm.diagnosis.cluster_view import BrokerView, PartitionView
from klamm.processes.tool_errors import ToolError


def brokers(*racks: str | None) -> dict[int, BrokerView]:
    """Brokers from 1 on, in these racks."""
    return {number: BrokerView(number, ("h", 9092), rack) for number, rack in enumerate(racks, 1)}


def topic(*replicas: str, adding: tuple[int, ...] = ()) -> dict[int, PartitionView]:
    return {
        number: PartitionView(int(each[0]), 0, tuple(map(int, each)), tuple(map(int, each)), adding)
        for number, each in enumerate(replicas)
    }


class First:
    """Always draws 0."""

    def randrange(self, stop: int, /) -> int:
        assert stop > 0
        return 0


@pytest.mark.parametrize(
    ("racks", "rack_aware", "placed"),
    [
        ((None, None, None), True, [[1, 2], [2, 3], [3, 1], [1, 3]]),
        # The order is 1, 3, 2: neighbours are in different racks.
        (("a", "a", "b"), True, [[1, 3], [3, 2], [2, 3], [1, 3]]),
        (("a", "a", "b"), False, [[1, 2], [2, 3], [3, 1], [1, 3]]),
        (("a", None, "b"), False, [[1, 2], [2, 3], [3, 1], [1, 3]]),
    ],
)
def test_a_topic_is_placed(racks: tuple[str | None, ...], rack_aware: bool, placed: list[list[int]]) -> None:
    assert list(place_topic(brokers(*racks), 4, 2, First(), rack_aware=rack_aware).values()) == placed


@pytest.mark.parametrize(
    ("racks", "factor", "message"),
    [
        (("a", None, None), 1, "Not all brokers have rack information: 2,3 have no rack. Add --disable-rack-aware"),
        ((None, None), 3, "replication factor is 3, there are only 2 live brokers"),
        ((), 1, "replication factor is 1, there are only 0 live brokers"),
    ],
)
def test_what_cannot_be_placed(racks: tuple[str | None, ...], factor: int, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        place_topic(brokers(*racks), 1, factor, Random(1), rack_aware=True)


@pytest.mark.parametrize(
    ("existing", "added"),
    [
        # Broker 2 led the first partition: the turns begin there.
        (topic("23"), {1: [3, 2], 2: [1, 3], 3: [2, 3]}),
        (topic("12", "23"), {2: [3, 1], 3: [1, 3]}),
        # No live broker has the id 9 or a higher one.
        (topic("91"), {1: [2, 3], 2: [3, 1], 3: [1, 3]}),
        # The replica that is being added does not count.
        (topic("123", adding=(3,)), {1: [2, 3], 2: [3, 1], 3: [1, 3]}),
    ],
)
def test_added_partitions_continue_the_turns(existing: dict[int, PartitionView], added: dict[int, list[int]]) -> None:
    assert place_partitions(brokers(None, None, None), existing, 4, rack_aware=True) == added


@pytest.mark.parametrize(
    ("wanted", "changes"),
    [
        (Wanted(3), [Alteration("a", 1, 3), Alteration("b", 2, 3)]),
        (Wanted(2), [Alteration("a", 1, 2)]),
        (
            Wanted(2, configs={"k": "v"}),
            [Alteration("a", 1, 2, None, {"k": "v"}), Alteration("b", 2, configs={"k": "v"})],
        ),
        (
            Wanted(3, [[1], [2], [3]]),
            [Alteration("a", 1, 3, {1: (2,), 2: (3,)}), Alteration("b", 2, 3, {2: (3,)})],
        ),
        (
            Wanted(configs={"k": "v"}, deleted_configs=["l"]),
            [Alteration("a", 1, configs={"k": "v", "l": None}), Alteration("b", 2, configs={"k": "v", "l": None})],
        ),
    ],
)
def test_alterations_of_two_topics(wanted: Wanted, changes: list[Alteration]) -> None:
    assert alterations({"a": topic("1"), "b": topic("1", "2")}, wanted) == changes


@pytest.mark.parametrize(
    ("existing", "wanted", "message"),
    [
        (topic("1", "2"), Wanted(2), r"Topic t currently has 2 partitions, 2 would not be an increase\."),
        (topic("1", "2"), Wanted(1), r"Topic t currently has 2 partitions, 1 would not be an increase\."),
        (topic("1"), Wanted(3, [[1], [2]]), "--replica-assignment has 2 partitions, --partitions is 3"),
        (topic("12", adding=(2,)), Wanted(2), "Topic t is being reassigned; add partitions when that is done"),
    ],
)
def test_what_cannot_be_altered(existing: dict[int, PartitionView], wanted: Wanted, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        alterations({"t": existing}, wanted)


def test_a_plan_is_shown_in_lines() -> None:
    change = Alteration("t", 1, 2, {1: (2, 3)}, {"a": "2", "b": None, "c": None})
    assert list(alteration_lines(change, {"a": "1", "b": "3"})) == [
        "Topic: t\tPartitionCount: 1 -> 2",
        "\tPartition: 1\tReplicas: 2,3",
        "Topic: t\tConfig: a: 1 -> 2",
        "Topic: t\tConfig: b: 3 -> not set",
    ]
    assert list(alteration_lines(Alteration("t", 1, 2), {})) == [
        "Topic: t\tPartitionCount: 1 -> 2, placed by the brokers"
    ]
    assert list(deletion_lines({"t": topic("12", "23")})) == [
        "Delete topic: t\tPartitionCount: 2\tReplicationFactor: 2"
    ]
    assert (question("Delete", ["t"]), question("Alter", ["t", "u"])) == ("Delete topic t?", "Alter 2 topics?")
