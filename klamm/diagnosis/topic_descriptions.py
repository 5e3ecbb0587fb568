"""The output of `klamm topics describe`: topics and partitions as values and as Kafka's lines, and the filters. Pure.

The line of a healthy partition is that of kafka-topics 2.8.2, character for character. The line of an unhealthy
partition has one more column at its end, with the reasons.

As in Kafka, adding replicas do not count in the replication factor, and do not count as missing in the ISR.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from klamm.base.visible import visible
from klamm.diagnosis.cluster_view import PartitionView, joined
from klamm.diagnosis.partition_health import Predicate
from klamm.protocol.vocabulary import NO_LEADER, encode_topic_id


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic. `configs` are the configs that differ from the default.

    `min_insync_replicas` and `unclean` (unclean.leader.election.enable) are None when the source does not report them.
    `reasons` has the reasons of each unhealthy partition.
    """

    name: str
    topic_id: UUID | None
    partitions: Mapping[int, PartitionView]
    configs: Mapping[str, str | None] = field(default_factory=dict)
    min_insync_replicas: int | None = None
    unclean: bool | None = None
    marked_for_deletion: bool = False
    reasons: Mapping[int, Sequence[str]] = field(default_factory=dict)

    @property
    def replication_factor(self) -> int:
        """The replication factor of the first partition."""
        return len(next(iter(self.partitions.values())).origin) if self.partitions else 0


def chosen(topic: TopicDescription, filters: Iterable[Predicate], live: AbstractSet[int]) -> dict[int, PartitionView]:
    """The partitions that match one of these filters."""
    wanted = list(filters)
    return {
        number: partition
        for number, partition in topic.partitions.items()
        if any(each.holds(partition, live, topic.min_insync_replicas) for each in wanted)
    }


# -- lines ------------------------------------------------------------------------------------------------------------


def topic_line(topic: TopicDescription) -> str:
    identifier = "" if topic.topic_id is None else f"TopicId: {encode_topic_id(topic.topic_id)}\t"
    configs = visible(",".join(f"{key}={value}" for key, value in topic.configs.items()))
    return (
        f"Topic: {visible(topic.name)}\t{identifier}PartitionCount: {len(topic.partitions)}"
        f"\tReplicationFactor: {topic.replication_factor}\tConfigs: {configs}{_deletion(topic)}"
    )


def partition_lines(topic: TopicDescription, numbers: Iterable[int]) -> Iterator[str]:
    for number in numbers:
        partition = topic.partitions[number]
        leader = "none" if partition.leader == NO_LEADER else partition.leader
        reassignment = ""
        if partition.is_reassigning:
            reassignment = (
                f"\tAdding Replicas: {joined(partition.adding)}\tRemoving Replicas: {joined(partition.removing)}"
            )
        reasons = topic.reasons.get(number)
        reason = f"\tReason: {visible('; '.join(reasons))}" if reasons else ""
        yield (
            f"\tTopic: {visible(topic.name)}\tPartition: {number}\tLeader: {leader}"
            f"\tReplicas: {joined(partition.replicas)}\tIsr: {joined(partition.isr)}"
            f"{reassignment}{_deletion(topic)}{reason}"
        )


def _deletion(topic: TopicDescription) -> str:
    return "\tMarkedForDeletion: true" if topic.marked_for_deletion else ""


# -- plain values -----------------------------------------------------------------------------------------------------


def topic_value(topic: TopicDescription, numbers: Iterable[int]) -> dict[str, Any]:
    """The topic with these partitions."""
    return {
        "topic": topic.name,
        "topic_id": None if topic.topic_id is None else encode_topic_id(topic.topic_id),
        "replication_factor": topic.replication_factor,
        "partition_count": len(topic.partitions),
        "configs": dict(topic.configs),
        "marked_for_deletion": topic.marked_for_deletion,
        "partitions": [_partition_value(topic, number) for number in numbers],
    }


def _partition_value(topic: TopicDescription, number: int) -> dict[str, Any]:
    partition = topic.partitions[number]
    return {
        "partition": number,
        "leader": partition.leader,
        "replicas": list(partition.replicas),
        "isr": list(partition.isr),
        "adding_replicas": list(partition.adding),
        "removing_replicas": list(partition.removing),
        "reasons": list(topic.reasons.get(number, ())),
    }
