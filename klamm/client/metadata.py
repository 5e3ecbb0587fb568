"""Brokers' metadata of the cluster: brokers, topics, and the leaders of partitions.

What must stay true: of two answers about a partition, the one with the newer leader epoch counts, in whatever order
they come (KIP-320), unless the topic was deleted and created again in between.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from klamm.base.slices import Slices, Steps, in_slices
from klamm.net.client import Address, Connection
from klamm.protocol.apis.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.messages import ApiKey

# How many partitions of an answer a step handles.
PARTITIONS_PER_STEP = 1000


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """The replicas of a partition; `leader` is -1 when the partition has no leader.

    `offline_replicas` are the replicas whose broker or log directory has failed.
    """

    error_code: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    offline_replicas: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic as a broker described it, with its partitions by number. `topic_id` is None if the response has no id."""

    error_code: int
    partitions: dict[int, PartitionMetadata]
    topic_id: UUID | None = None
    is_internal: bool = False


@dataclass(slots=True)
class ClusterMetadata:
    """The newest metadata of the cluster: brokers by id, topics by name, and the `racks` of brokers that have one."""

    cluster_id: str | None = None
    controller_id: int = -1
    brokers: dict[int, Address] = field(default_factory=dict)
    topics: dict[str, TopicMetadata] = field(default_factory=dict)
    racks: dict[int, str] = field(default_factory=dict)


async def metadata_of(
    connection: Connection, topics: Sequence[str] | None = None, *, timeout_ms: int | None = None
) -> ClusterMetadata:
    """One broker's metadata of the cluster and of these topics (None: all), which may be old. Raises ClientError."""
    response = await connection.send(
        ApiKey.METADATA, lambda version: metadata_request(version, topics), timeout_ms=timeout_ms
    )
    return ClusterMetadata(
        response.cluster_id,
        response.controller_id,
        {broker.node_id: (broker.host, broker.port) for broker in response.brokers},
        await in_slices(topics_metadata(response.topics, {})),
        racks_of(response),
    )


def racks_of(response: MetadataResponse) -> dict[int, str]:
    return {broker.node_id: broker.rack for broker in response.brokers if broker.rack is not None}


def topics_metadata(
    topics: Iterable[MetadataResponse.MetadataResponseTopic], known: Mapping[str, TopicMetadata]
) -> Steps[dict[str, TopicMetadata]]:
    described: dict[str, TopicMetadata] = {}
    slices = Slices(PARTITIONS_PER_STEP)
    for topic in topics:
        if topic.name is None:
            continue  # Every topic has a name in the requested versions.
        described[topic.name] = _topic_metadata(topic, known.get(topic.name))
        if slices.spend(len(topic.partitions)):
            yield
    return described


def _topic_metadata(topic: MetadataResponse.MetadataResponseTopic, known: TopicMetadata | None) -> TopicMetadata:
    """The topic of the response. Partitions that are `known` in a newer leader epoch stay as they are."""
    partitions = {
        partition.partition_index: PartitionMetadata(
            partition.error_code,
            partition.leader_id,
            partition.leader_epoch,
            partition.replica_nodes,
            partition.isr_nodes,
            partition.offline_replicas,
        )
        for partition in topic.partitions
    }
    # A deleted and recreated topic restarts at epoch 0: only the topic id tells the two apart.
    if known is not None and topic.topic_id is not None and topic.topic_id == known.topic_id:
        for number, state in partitions.items():
            before = known.partitions.get(number)
            if before is not None and before.leader_epoch > state.leader_epoch:
                partitions[number] = before
    return TopicMetadata(topic.error_code, partitions, topic.topic_id, topic.is_internal)


def metadata_request(version: int, names: Sequence[str] | None, *, creates_topics: bool = False) -> MetadataRequest:
    """Asks for these topics (None: all)."""
    topics: list[MetadataRequest.MetadataRequestTopic] | None
    if names is None:
        # Version 0 has no null; there an empty list means all topics.
        topics = [] if version == 0 else None
    else:
        topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=creates_topics)
