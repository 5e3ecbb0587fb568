"""The log directories of brokers, and their replicas (KIP-113)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from klamm.base.slices import Slices, Steps, in_slices
from klamm.client.cluster import ClusterClient
from klamm.client.fan_out import brokers, by_topic, error_of, fan_out, of_brokers
from klamm.client.retries import RetryPolicy
from klamm.net.client import Connection
from klamm.protocol.apis.alter_replica_log_dirs import AlterReplicaLogDirsRequest
from klamm.protocol.apis.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import TopicPartition

# The version of DescribeLogDirs with the size of the disk (KIP-827).
DISK_SIZE_SINCE = 4


class TopicPartitionReplica(NamedTuple):
    """The replica of a partition on one broker."""

    topic: str
    partition: int
    broker_id: int


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """A replica in a directory. A future replica will replace the replica in another directory."""

    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A log directory and its replicas. An offline directory has an `error`.

    The size of the disk and its free space are -1 when the broker does not tell them (before Kafka 3.3).
    """

    error: KafkaError | None
    replicas: Mapping[TopicPartition, ReplicaInfo]
    total_bytes: int = -1
    usable_bytes: int = -1


async def describe_log_dirs(
    client: ClusterClient,
    broker_ids: Iterable[int],
    partitions: Iterable[TopicPartition] | None = None,
    *,
    retry: RetryPolicy | None = None,
) -> dict[int, dict[str, LogDirDescription] | KafkaError]:
    """The directories of each broker by path, with these partitions or with all partitions."""
    struct = DescribeLogDirsRequest.DescribableLogDirTopic
    topics = None
    if partitions is not None:
        topics = [struct(topic=name, partitions=numbers) for name, numbers in by_topic(partitions).items()]
    request = DescribeLogDirsRequest(topics=topics)

    async def ask(
        connection: Connection, broker_ids: Sequence[int]
    ) -> dict[int, dict[str, LogDirDescription] | KafkaError]:
        # Later versions than those of klamm brokers have the size of the disk.
        _, newest = (connection.api_versions or {}).get(ApiKey.DESCRIBE_LOG_DIRS, (0, 0))
        version = DISK_SIZE_SINCE if newest >= DISK_SIZE_SINCE else None
        response = await connection.send(ApiKey.DESCRIBE_LOG_DIRS, lambda version: request, version=version)
        found = {
            result.log_dir: LogDirDescription(
                error_of(result.error_code),
                await in_slices(_replicas(result)),
                result.total_bytes,
                result.usable_bytes,
            )
            for result in response.results
        }
        error = error_of(response.error_code)
        return dict.fromkeys(broker_ids, found if error is None else error)

    return await fan_out(client, broker_ids, brokers(client), ask, retry=retry)


def _replicas(result: DescribeLogDirsResponse.DescribeLogDirsResult) -> Steps[dict[TopicPartition, ReplicaInfo]]:
    replicas: dict[TopicPartition, ReplicaInfo] = {}
    taken = Slices()
    for topic in result.topics:
        for each in topic.partitions:
            replicas[TopicPartition(topic.name, each.partition_index)] = ReplicaInfo(
                each.partition_size, each.offset_lag, each.is_future_key
            )
        if taken.spend(len(topic.partitions)):
            yield
    return replicas


async def alter_replica_log_dirs(
    client: ClusterClient, paths: Mapping[TopicPartitionReplica, str]
) -> dict[TopicPartitionReplica, KafkaError | None]:
    """Starts to move each replica to a log directory of its broker; `describe_log_dirs` shows the progress.

    REPLICA_NOT_AVAILABLE means that the broker does not have the replica yet and will create it in that directory. So
    errors are answers here, and not retried.
    """
    struct = AlterReplicaLogDirsRequest.AlterReplicaLogDir

    async def ask(
        connection: Connection, replicas: Sequence[TopicPartitionReplica]
    ) -> dict[TopicPartitionReplica, KafkaError | None]:
        by_path: dict[str, list[TopicPartition]] = {}
        for replica in replicas:
            by_path.setdefault(paths[replica], []).append(TopicPartition(replica.topic, replica.partition))
        request = AlterReplicaLogDirsRequest(
            dirs=[
                struct(
                    path=path,
                    topics=[
                        struct.AlterReplicaLogDirTopic(name=name, partitions=numbers)
                        for name, numbers in by_topic(moved).items()
                    ],
                )
                for path, moved in by_path.items()
            ]
        )
        response = await connection.send(ApiKey.ALTER_REPLICA_LOG_DIRS, lambda version: request)
        errors = {
            (topic.topic_name, each.partition_index): error_of(each.error_code)
            for topic in response.results
            for each in topic.partitions
        }
        return {replica: errors[key] for replica in replicas if (key := (replica.topic, replica.partition)) in errors}

    return await fan_out(client, paths, of_brokers(client, lambda replica: replica.broker_id), ask, retriable=())
