"""What consumers of a group tell each other, and the assignors, against kafka-python's and by hand."""

import struct
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

from klamm.protocol.consumer_protocol import (
    Subscriber,
    assign_range,
    assign_round_robin,
    decode_assignment,
    encode_assignment,
    encode_subscription,
    subscribed_topics,
)
from klamm.protocol.vocabulary import TopicPartition

# -- assignments ------------------------------------------------------------------------------------------------------


def encoded(topics: dict[str, list[int]], user_data: bytes = b"") -> bytes:
    parts = [struct.pack(">hi", 1, len(topics))]
    for topic, numbers in topics.items():
        name = topic.encode()
        parts.append(struct.pack(f">h{len(name)}si{len(numbers)}i", len(name), name, len(numbers), *numbers))
    return b"".join(parts) + user_data


@given(st.dictionaries(st.text(max_size=5), st.lists(st.integers(0, 99), max_size=5), max_size=4), st.binary())
def test_assignments_are_decoded(topics: dict[str, list[int]], user_data: bytes) -> None:
    expected = sorted(TopicPartition(topic, number) for topic, numbers in topics.items() for number in numbers)
    assert decode_assignment(encoded(topics, user_data)) == expected


@given(st.binary() | st.binary(max_size=20).map(lambda end: encoded({"t": [1]})[:8] + end))
def test_garbage_is_refused(data: bytes) -> None:
    try:
        decode_assignment(data)
    except ValueError:
        assert data


@pytest.mark.parametrize(
    "data",
    [b"\0\1", encoded({"t": [1]})[:-1], struct.pack(">hih", 1, 1, -1), encoded({"t": [1]}).replace(b"t", b"\xff")],
)
def test_bad_assignments(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_assignment(data)


PARTITIONS = st.lists(st.builds(TopicPartition, st.text(max_size=5), st.integers(0, 99)), max_size=8, unique=True)


@given(PARTITIONS)
def test_an_assignment_is_decoded_as_it_was_encoded(partitions: list[TopicPartition]) -> None:
    assert decode_assignment(encode_assignment(partitions)) == sorted(partitions)


def test_the_bytes_are_those_of_kafka_clients_2_8() -> None:
    """Version 1: the topics, no user data, and the owned partitions by topic."""
    assert encode_subscription(["ab", "c"], [TopicPartition("ab", 3)]).hex() == (
        "0001" "00000002" "00026162" "000163" "ffffffff" "00000001" "00026162" "00000001" "00000003"
    )  # fmt: skip
    assert encode_assignment([TopicPartition("ab", 3), TopicPartition("c", 0), TopicPartition("ab", 4)]).hex() == (
        "0001" "00000002" "00026162" "00000002" "00000003" "00000004" "000163" "00000001" "00000000" "ffffffff"
    )  # fmt: skip


@given(st.lists(st.text(max_size=5), max_size=4), PARTITIONS)
def test_a_subscription_is_decoded_as_it_was_encoded(topics: list[str], owned: list[TopicPartition]) -> None:
    assert subscribed_topics(encode_subscription(topics, owned)) == topics


# -- assignors --------------------------------------------------------------------------------------------------------


class Cluster:
    """The metadata that kafka-python's assignors ask."""

    def __init__(self, counts: dict[str, int]) -> None:
        self._counts = counts

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(self._counts[topic])) if topic in self._counts else None


COUNTS = st.dictionaries(st.sampled_from("abcde"), st.integers(1, 7), max_size=4)
TOPICS = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4, unique=True)


def theirs(assignor: Any, members: list[Subscriber], counts: dict[str, int]) -> dict[str, list[TopicPartition]]:
    """As kafka-python assigns the partitions."""
    joined = [
        SimpleNamespace(
            member_id=member.member_id, group_instance_id=None, metadata=SimpleNamespace(topics=member.topics)
        )
        for member in members
    ]
    return {
        member_id: [TopicPartition(topic, number) for topic, numbers in each.assigned_partitions for number in numbers]
        for member_id, each in assignor.assign(Cluster(counts), joined).items()
    }


@given(COUNTS, st.lists(TOPICS, min_size=1, max_size=5))
def test_range_assigns_as_kafka_python_does(counts: dict[str, int], subscriptions: list[list[str]]) -> None:
    members = [Subscriber(f"member-{number}", topics) for number, topics in enumerate(subscriptions)]
    assert assign_range(members, counts) == theirs(RangePartitionAssignor, members, counts)


@given(COUNTS, TOPICS, st.integers(1, 5))
def test_round_robin_assigns_as_kafka_python_does(counts: dict[str, int], topics: list[str], count: int) -> None:
    """With unlike subscriptions kafka-python's fails."""
    members = [Subscriber(f"member-{number}", topics) for number in range(count)]
    assert assign_round_robin(members, counts) == theirs(RoundRobinPartitionAssignor, members, counts)


def test_round_robin_passes_over_members_that_do_not_want_the_topic() -> None:
    """The example in the documentation of Kafka's RoundRobinAssignor."""
    members = [Subscriber("C0", ["t0"]), Subscriber("C1", ["t0", "t1"]), Subscriber("C2", ["t0", "t1", "t2"])]
    assert assign_round_robin(members, {"t0": 1, "t1": 2, "t2": 3}) == {
        "C0": [("t0", 0)],
        "C1": [("t1", 0)],
        "C2": [("t1", 1), ("t2", 0), ("t2", 1), ("t2", 2)],
    }


def test_range_sorts_static_members_before_others() -> None:
    """As Java's MemberInfo: by instance id, then those without one by member id."""
    members = [Subscriber("z", ["t"]), Subscriber("a", ["t"]), Subscriber("y", ["t"], "2"), Subscriber("b", ["t"], "3")]
    assert assign_range(members, {"t": 6}) == {
        "y": [("t", 0), ("t", 1)],
        "b": [("t", 2), ("t", 3)],
        "a": [("t", 4)],
        "z": [("t", 5)],
    }
    assert assign_round_robin(members, {"t": 6}) == {
        "y": [("t", 0), ("t", 4)],
        "b": [("t", 1), ("t", 5)],
        "a": [("t", 2)],
        "z": [("t", 3)],
    }


def test_topics_that_do_not_exist_or_are_not_wanted_are_left_out() -> None:
    members = [Subscriber("a", ["t", "missing"]), Subscriber("b", [])]
    assert assign_range(members, {"t": 2, "other": 3}) == {"a": [("t", 0), ("t", 1)], "b": []}
    assert assign_round_robin(members, {"t": 2, "other": 3}) == {"a": [("t", 0), ("t", 1)], "b": []}
