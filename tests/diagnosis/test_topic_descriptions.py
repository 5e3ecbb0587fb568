"""What `klamm topics describe` prints, and which partitions its filters choose."""

from uuid import UUID

import pytest

from klamm.diagnosis.cluster_view import PartitionView
from klamm.diagnosis.partition_health import Predicate
from klamm.diagnosis.topic_descriptions import (
    TopicDescription,
    chosen,
    partition_lines,
    topic_line,
    topic_value,
)

LIVE = {1, 2, 3, 4}


def partition(leader: int, replicas: str, isr: str, adding: str = "", removing: str = "") -> PartitionView:
    """A partition whose brokers have one digit each."""
    brokers = [tuple(map(int, each)) for each in (replicas, isr, adding, removing)]
    return PartitionView(leader, 5, *brokers)


def topic(*partitions: PartitionView, minimum: int | None = 2) -> TopicDescription:
    return TopicDescription("t", None, dict(enumerate(partitions)), {}, minimum)


def test_a_topic_is_one_line() -> None:
    identifier = UUID("01234567-89ab-cdef-0123-456789abcdef")
    described = TopicDescription("t", identifier, {0: partition(1, "12", "12")}, {"a.b": "1", "c": None})
    line = "Topic: t\tTopicId: ASNFZ4mrze8BI0VniavN7w\tPartitionCount: 1\tReplicationFactor: 2\tConfigs: a.b=1,c=None"
    assert topic_line(described) == line
    marked = TopicDescription("t", None, {}, marked_for_deletion=True)
    assert topic_line(marked) == (
        "Topic: t\tPartitionCount: 0\tReplicationFactor: 0\tConfigs: \tMarkedForDeletion: true"
    )


@pytest.mark.parametrize(
    ("each", "line"),
    [
        (partition(1, "12", "12"), "Leader: 1\tReplicas: 1,2\tIsr: 1,2"),
        (partition(-1, "12", "2"), "Leader: none\tReplicas: 1,2\tIsr: 2"),
        (partition(-1, "1", ""), "Leader: none\tReplicas: 1\tIsr: "),
        (
            partition(1, "3412", "12", "34", "12"),
            "Leader: 1\tReplicas: 3,4,1,2\tIsr: 1,2\tAdding Replicas: 3,4\tRemoving Replicas: 1,2",
        ),
        (
            partition(1, "123", "12", "3"),
            "Leader: 1\tReplicas: 1,2,3\tIsr: 1,2\tAdding Replicas: 3\tRemoving Replicas: ",
        ),
    ],
)
def test_a_partition_is_one_line(each: PartitionView, line: str) -> None:
    described = topic(each)
    assert list(partition_lines(described, [0])) == [f"\tTopic: t\tPartition: 0\t{line}"]
    marked = TopicDescription("t", None, {0: each}, marked_for_deletion=True, reasons={0: ["one", "two"]})
    assert list(partition_lines(marked, [0])) == [
        f"\tTopic: t\tPartition: 0\t{line}\tMarkedForDeletion: true\tReason: one; two"
    ]


def test_replicas_that_are_added_count_neither_in_the_factor_nor_as_missing() -> None:
    growing = topic(partition(1, "1234", "12", "34"))
    assert growing.replication_factor == 2
    assert chosen(growing, [Predicate.UNDER_REPLICATED], LIVE) == {}
    behind = topic(partition(1, "1234", "1", "34"))
    assert list(chosen(behind, [Predicate.UNDER_REPLICATED], LIVE)) == [0]
    moving = topic(partition(1, "3412", "12", "34", "12"))
    assert (moving.replication_factor, chosen(moving, [Predicate.UNDER_REPLICATED], LIVE)) == (2, {})


@pytest.mark.parametrize(
    ("each", "filters"),
    [
        (partition(1, "123", "123"), []),
        (partition(1, "123", "12"), ["under-replicated", "at-min-isr"]),
        (partition(2, "123", "2"), ["under-replicated", "under-min-isr", "off-preferred"]),
        (partition(2, "12", "12"), ["at-min-isr", "off-preferred"]),
        (partition(-1, "123", "9"), ["under-replicated", "under-min-isr", "unavailable"]),
        (partition(9, "912", "912"), ["unavailable"]),
        (partition(-1, "12", "12"), ["at-min-isr", "under-min-isr", "unavailable"]),
    ],
)
def test_each_filter_chooses_its_partitions(each: PartitionView, filters: list[str]) -> None:
    chosen_by = [one for one in Predicate if one.option and chosen(topic(each), [one], LIVE)]
    found = [one.option[2:].removesuffix("-partitions") for one in chosen_by]
    assert found == filters


def test_a_description_as_values() -> None:
    described = topic_value(topic(partition(1, "312", "12", "3"), partition(1, "12", "12")), [0])
    assert described == {
        "topic": "t",
        "topic_id": None,
        "replication_factor": 2,
        "partition_count": 2,
        "configs": {},
        "marked_for_deletion": False,
        "partitions": [
            {
                "partition": 0,
                "leader": 1,
                "replicas": [3, 1, 2],
                "isr": [1, 2],
                "adding_replicas": [3],
                "removing_replicas": [],
                "reasons": [],
            }
        ],
    }
