"""Topics: create, delete, describe, and add partitions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from klamm.client.cluster import ClusterClient
from klamm.client.fan_out import ANSWER_MARGIN_MS, ask_controller, error_of
from klamm.client.metadata import ClusterMetadata, TopicMetadata
from klamm.net.client import Connection
from klamm.protocol.apis.create_partitions import CreatePartitionsRequest
from klamm.protocol.apis.create_topics import CreateTopicsRequest
from klamm.protocol.apis.delete_topics import DeleteTopicsRequest
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import NO_NUM_PARTITIONS, NO_REPLICATION_FACTOR


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. `replica_assignment`, the brokers of each partition, replaces the two numbers.

    Without either, the numbers come from the broker's configuration.
    """

    name: str
    num_partitions: int = NO_NUM_PARTITIONS
    replication_factor: int = NO_REPLICATION_FACTOR
    replica_assignment: Mapping[int, Sequence[int]] = field(default_factory=dict)
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A created topic. If the broker does not return them, the numbers are -1 and the id is None."""

    topic_id: UUID | None
    num_partitions: int
    replication_factor: int


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """A topic's new number of partitions. The controller chooses brokers for the new partitions unless they are
    given."""

    total_count: int
    new_assignments: Sequence[Sequence[int]] | None = None


async def create_topics(
    client: ClusterClient,
    topics: Iterable[NewTopic],
    *,
    timeout_ms: int | None = None,
    validate_only: bool = False,
    repeatable: bool = False,
) -> dict[str, CreatedTopic | KafkaError]:
    """Creates topics. The controller waits up to `timeout_ms` until they have leaders.

    A `repeatable` request is sent again when its answer was lost, and any request when the controller has lost its
    ZooKeeper session meanwhile. Then TOPIC_ALREADY_EXISTS may mean that this call has created the topic.
    """
    wanted = {topic.name: topic for topic in topics}
    wait_ms = client.request_timeout_ms if timeout_ms is None else timeout_ms

    async def ask(connection: Connection, names: Sequence[str]) -> dict[str, CreatedTopic | KafkaError]:
        request = CreateTopicsRequest(
            topics=[_creatable(wanted[name]) for name in names], timeout_ms=wait_ms, validate_only=validate_only
        )
        response = await connection.send(
            ApiKey.CREATE_TOPICS, lambda version: request, timeout_ms=wait_ms + ANSWER_MARGIN_MS
        )
        return {
            each.name: error_of(each.error_code, each.error_message)
            or CreatedTopic(each.topic_id, each.num_partitions, each.replication_factor)
            for each in response.topics
        }

    return await ask_controller(client, wanted, ask, repeatable=repeatable)


def _creatable(topic: NewTopic) -> CreateTopicsRequest.CreatableTopic:
    struct = CreateTopicsRequest.CreatableTopic
    return struct(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=[
            struct.CreatableReplicaAssignment(partition_index=number, broker_ids=list(broker_ids))
            for number, broker_ids in topic.replica_assignment.items()
        ],
        configs=[struct.CreatableTopicConfig(name=key, value=value) for key, value in topic.configs.items()],
    )


async def delete_topics(
    client: ClusterClient, names: Iterable[str], *, timeout_ms: int | None = None
) -> dict[str, KafkaError | None]:
    """Deletes topics. The controller waits up to `timeout_ms` until they are deleted."""
    wait_ms = client.request_timeout_ms if timeout_ms is None else timeout_ms

    async def ask(connection: Connection, names: Sequence[str]) -> dict[str, KafkaError | None]:
        request = DeleteTopicsRequest(
            topics=[DeleteTopicsRequest.DeleteTopicState(name=name) for name in names],
            topic_names=list(names),
            timeout_ms=wait_ms,
        )
        response = await connection.send(
            ApiKey.DELETE_TOPICS, lambda version: request, timeout_ms=wait_ms + ANSWER_MARGIN_MS
        )
        return {each.name or "": error_of(each.error_code, each.error_message) for each in response.responses}

    return await ask_controller(client, names, ask)


async def create_partitions(
    client: ClusterClient,
    topics: Mapping[str, NewPartitions],
    *,
    timeout_ms: int | None = None,
    validate_only: bool = False,
) -> dict[str, KafkaError | None]:
    """Adds partitions to topics. The controller waits up to `timeout_ms` until they have leaders."""
    wait_ms = client.request_timeout_ms if timeout_ms is None else timeout_ms
    struct = CreatePartitionsRequest.CreatePartitionsTopic

    def growing(name: str) -> CreatePartitionsRequest.CreatePartitionsTopic:
        new = topics[name].new_assignments
        assignments = None
        if new is not None:
            assignments = [struct.CreatePartitionsAssignment(broker_ids=list(broker_ids)) for broker_ids in new]
        return struct(name=name, count=topics[name].total_count, assignments=assignments)

    async def ask(connection: Connection, names: Sequence[str]) -> dict[str, KafkaError | None]:
        request = CreatePartitionsRequest(
            topics=[growing(name) for name in names], timeout_ms=wait_ms, validate_only=validate_only
        )
        response = await connection.send(
            ApiKey.CREATE_PARTITIONS, lambda version: request, timeout_ms=wait_ms + ANSWER_MARGIN_MS
        )
        return {each.name: error_of(each.error_code, each.error_message) for each in response.results}

    return await ask_controller(client, topics, ask)


async def describe_topics(
    client: ClusterClient, names: Iterable[str] | None = None
) -> dict[str, TopicMetadata | KafkaError]:
    """The partitions of these topics, or of all topics. An unknown topic is an error at once.

    Raises KafkaError when no broker knows the topics of the cluster, and ClientError.
    """
    wanted = None if names is None else list(dict.fromkeys(names))
    if wanted == []:
        return {}
    metadata = await client.refresh_metadata(wanted)
    if wanted is None:
        if knows_no_topics(metadata):
            metadata = await client.refresh_metadata(None, elsewhere=True)
        if knows_no_topics(metadata):
            text = "the broker knows no topics, because it has not heard of a controller since its start"
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, text)
        return described_topics(metadata)
    return {name: _description(name, metadata.topics.get(name)) for name in wanted}


def knows_no_topics(metadata: ClusterMetadata) -> bool:
    """Whether the broker does not know the cluster's topics because no controller has told it yet."""
    return not metadata.topics and metadata.controller_id < 0


def described_topics(metadata: ClusterMetadata) -> dict[str, TopicMetadata | KafkaError]:
    """Like `describe_topics`, from the metadata of a client."""
    return {name: _description(name, topic) for name, topic in sorted(metadata.topics.items())}


def _description(name: str, topic: TopicMetadata | None) -> TopicMetadata | KafkaError:
    if topic is None:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name}")
    return error_of(topic.error_code, f"topic {name}") or topic
