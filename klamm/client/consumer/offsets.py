"""The start and end offsets of partitions, and the committed offsets of consumer groups.

What must stay true: a ListOffsets request has the leader epoch that the client knows, so that no former leader or
follower answers with an end offset of its own (KIP-320).
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from klamm.client.admin.log_dirs import TopicPartitionReplica
from klamm.client.cluster import ClusterClient
from klamm.client.fan_out import Route, answers, by_topic, coordinators, error_of, fan_out, leaders, of_brokers
from klamm.client.metadata import PartitionMetadata
from klamm.client.retries import RETRIABLE_ERRORS, RetryPolicy
from klamm.net.client import Connection, UnsupportedVersion
from klamm.protocol.apis.list_offsets import ListOffsetsRequest
from klamm.protocol.apis.offset_commit import OffsetCommitRequest
from klamm.protocol.apis.offset_delete import OffsetDeleteRequest
from klamm.protocol.apis.offset_fetch import OffsetFetchRequest
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import (
    CONSUMER_REPLICA_ID,
    DEBUGGING_REPLICA_ID,
    LATEST_TIMESTAMP,
    NO_EPOCH,
    READ_UNCOMMITTED,
    TopicPartition,
)

T = TypeVar("T")

ONE_ATTEMPT = RetryPolicy(deadline_ms=0)


class ListedOffset(NamedTuple):
    """An offset, and the timestamp of its record if the request named a timestamp (else -1)."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """The next offset that a group will read, and the metadata that its consumer committed with it."""

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_EPOCH


# -- partitions -------------------------------------------------------------------------------------------------------


async def list_offsets(
    client: ClusterClient,
    timestamps: Mapping[TopicPartition, int],
    *,
    isolation_level: int = READ_UNCOMMITTED,
    replica_id: int = CONSUMER_REPLICA_ID,
    missing_timeout_ms: int = 0,
    retry: RetryPolicy | None = None,
) -> dict[TopicPartition, ListedOffset | KafkaError]:
    """The first offset at or after the timestamp (ms), or UNKNOWN_OFFSET. EARLIEST_TIMESTAMP and LATEST_TIMESTAMP give
    the start and end offsets.

    With `read_committed` the latest offset is the last stable offset. `fan_out.leaders` explains `missing_timeout_ms`,
    and `fan_out` explains `retry`.
    """

    async def ask(
        connection: Connection, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ListedOffset | KafkaError]:
        asked = {partition: asked_at(timestamps[partition], _state(client, partition)) for partition in partitions}
        return await list_offsets_of_leader(connection, asked, isolation_level=isolation_level, replica_id=replica_id)

    return await fan_out(client, timestamps, leaders(client, missing_timeout_ms), ask, retry=retry)


def _state(client: ClusterClient, partition: TopicPartition) -> PartitionMetadata | None:
    topic = client.metadata.topics.get(partition.topic)
    return None if topic is None else topic.partitions.get(partition.partition)


class Asked(NamedTuple):
    """A timestamp in milliseconds, EARLIEST or LATEST; and the leader epoch."""

    timestamp: int
    leader_epoch: int


def asked_at(timestamp: int, state: PartitionMetadata | None) -> Asked:
    """The question for a partition. `state` is None if its metadata is unknown."""
    return Asked(timestamp, NO_EPOCH if state is None else state.leader_epoch)


async def list_offsets_of_leader(
    connection: Connection,
    partitions: Mapping[TopicPartition, Asked],
    *,
    isolation_level: int = READ_UNCOMMITTED,
    replica_id: int = CONSUMER_REPLICA_ID,
    timeout_ms: int | None = None,
) -> dict[TopicPartition, ListedOffset | KafkaError]:
    """Sends one request to the leader of these partitions. Raises ClientError."""
    struct = ListOffsetsRequest.ListOffsetsTopic
    request = ListOffsetsRequest(
        replica_id=replica_id,
        isolation_level=isolation_level,
        topics=[
            struct(
                name=name,
                partitions=[
                    struct.ListOffsetsPartition(
                        partition_index=number, current_leader_epoch=each.leader_epoch, timestamp=each.timestamp
                    )
                    for number in numbers
                    for each in [partitions[TopicPartition(name, number)]]
                ],
            )
            for name, numbers in by_topic(partitions).items()
        ],
    )
    response = await connection.send(ApiKey.LIST_OFFSETS, lambda version: request, timeout_ms=timeout_ms)
    return {
        partition: error_of(each.error_code, f"{connection} returned no offset for {partition}")
        or ListedOffset(each.offset, each.timestamp, each.leader_epoch)
        for partition, each in answers(response.topics)
    }


async def list_replica_offsets(
    client: ClusterClient,
    replicas: Iterable[TopicPartitionReplica],
    timestamp: int = LATEST_TIMESTAMP,
    *,
    timeout_ms: int | None = None,
    retry: RetryPolicy | None = None,
) -> dict[TopicPartitionReplica, ListedOffset | KafkaError]:
    """The start or end offset of each replica's own log, whether it is a leader or not.

    Each broker is asked once, unless `retry` says otherwise: a broker that is down is a result, not a reason to wait.
    KAFKA_STORAGE_ERROR means that the replica's log directory is offline.
    """

    async def ask(
        connection: Connection, asked: Sequence[TopicPartitionReplica]
    ) -> dict[TopicPartitionReplica, ListedOffset | KafkaError]:
        partitions = {TopicPartition(each.topic, each.partition): Asked(timestamp, NO_EPOCH) for each in asked}
        found = await list_offsets_of_leader(
            connection, partitions, replica_id=DEBUGGING_REPLICA_ID, timeout_ms=timeout_ms
        )
        return {each: found[key] for each in asked if (key := TopicPartition(each.topic, each.partition)) in found}

    route: Route[TopicPartitionReplica] = of_brokers(client, lambda replica: replica.broker_id)
    return await fan_out(client, replicas, route, ask, retry=retry or ONE_ATTEMPT)


# -- groups -----------------------------------------------------------------------------------------------------------


async def list_consumer_group_offsets(
    client: ClusterClient, groups: Iterable[str], *, retry: RetryPolicy | None = None
) -> dict[str, dict[TopicPartition, OffsetAndMetadata] | KafkaError]:
    """All committed offsets of each group, by topic and partition."""

    async def ask(
        connection: Connection, names: Sequence[str]
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata] | KafkaError]:
        found = await asyncio.gather(*(_committed(connection, name) for name in names))
        return dict(zip(names, found, strict=True))

    return await fan_out(client, groups, coordinators(client), ask, retry=retry)


async def _committed(connection: Connection, group: str) -> dict[TopicPartition, OffsetAndMetadata] | KafkaError:
    def build(version: int) -> OffsetFetchRequest:
        if version < 2:
            raise UnsupportedVersion(f"{connection}: brokers before Kafka 0.10.2 do not list all offsets of a group")
        return offset_fetch_request(group)

    response = await connection.send(ApiKey.OFFSET_FETCH, build)
    if (error := error_of(response.error_code, f"the offsets of group {group}")) is not None:
        return error
    offsets = {}
    for partition, each in answers(response.topics):
        if (error := error_of(each.error_code, f"group {group}, {partition}")) is not None:
            return error
        if each.committed_offset >= 0:
            offsets[partition] = OffsetAndMetadata(
                each.committed_offset, each.metadata or "", each.committed_leader_epoch
            )
    return dict(sorted(offsets.items()))


def offset_fetch_request(
    group: str, partitions: Collection[TopicPartition] | None = None, *, require_stable: bool = False
) -> OffsetFetchRequest:
    """Asks for the offsets of these partitions, or of all partitions that have one.

    With `require_stable` the coordinator answers UNSTABLE_OFFSET_COMMIT while a transaction may commit an offset
    (KIP-447).
    """
    struct = OffsetFetchRequest.OffsetFetchRequestTopic
    topics = None
    if partitions is not None:
        topics = [struct(name=name, partition_indexes=numbers) for name, numbers in by_topic(partitions).items()]
    return OffsetFetchRequest(group_id=group, topics=topics, require_stable=require_stable)


async def alter_consumer_group_offsets(
    client: ClusterClient,
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    retry: RetryPolicy | None = None,
) -> dict[TopicPartition, KafkaError | None]:
    """Commits offsets for a group without members. An error of the whole request is the result of each partition."""
    results: dict[TopicPartition, KafkaError | None] = {}

    async def ask(connection: Connection, groups: Sequence[str]) -> dict[str, KafkaError | None]:
        request = offset_commit_request(group, offsets)
        response = await connection.send(ApiKey.OFFSET_COMMIT, lambda version: request)
        results.clear()
        results.update((partition, error_of(each.error_code)) for partition, each in answers(response.topics))
        return {group: _transient(results)}

    if not offsets:
        return {}
    error = (await fan_out(client, [group], coordinators(client), ask, retry=retry))[group]
    return _results(offsets, results, error)


def offset_commit_request(
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    generation_id: int = -1,
    member_id: str = "",
    group_instance_id: str | None = None,
) -> OffsetCommitRequest:
    """A commit of a member, or of a client that is not a member."""
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation_id,
        member_id=member_id,
        group_instance_id=group_instance_id,
        topics=committed_topics(topic, topic.OffsetCommitRequestPartition, offsets),
    )


def committed_topics(
    topic_class: Callable[..., T],
    partition_class: Callable[..., Any],
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> list[T]:
    """The offsets of a commit, in a transaction or not."""
    return [
        topic_class(
            name=name,
            partitions=[
                partition_class(
                    partition_index=number,
                    committed_offset=each.offset,
                    committed_leader_epoch=each.leader_epoch,
                    committed_metadata=each.metadata,
                )
                for number in numbers
                for each in [offsets[TopicPartition(name, number)]]
            ],
        )
        for name, numbers in by_topic(sorted(offsets)).items()
    ]


async def delete_consumer_group_offsets(
    client: ClusterClient, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, KafkaError | None] | KafkaError:
    """Deletes a group's offsets. Returns the result of each partition, or the error of the whole request."""
    wanted = sorted(set(partitions))
    struct = OffsetDeleteRequest.OffsetDeleteRequestTopic
    results: dict[TopicPartition, KafkaError | None] = {}

    async def ask(connection: Connection, groups: Sequence[str]) -> dict[str, KafkaError | None]:
        request = OffsetDeleteRequest(
            group_id=group,
            topics=[
                struct(
                    name=name,
                    partitions=[struct.OffsetDeleteRequestPartition(partition_index=number) for number in numbers],
                )
                for name, numbers in by_topic(wanted).items()
            ],
        )
        response = await connection.send(ApiKey.OFFSET_DELETE, lambda version: request)
        if (error := error_of(response.error_code)) is not None:
            return {group: error}
        results.clear()
        results.update((partition, error_of(each.error_code)) for partition, each in answers(response.topics))
        return {group: _transient(results)}

    error = (await fan_out(client, [group], coordinators(client), ask))[group]
    if error is not None and not results:
        return error
    return _results(wanted, results, error)


def _transient(results: Mapping[TopicPartition, KafkaError | None]) -> KafkaError | None:
    """An error of a partition that a retry of the whole request may resolve.

    A missing topic is not such an error: these requests create no topics.
    """
    for error in results.values():
        if error is not None and error.code in RETRIABLE_ERRORS - {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}:
            return error
    return None


def _results(
    partitions: Iterable[TopicPartition], results: Mapping[TopicPartition, Any], error: KafkaError | None
) -> dict[TopicPartition, KafkaError | None]:
    """The result of each partition; `error` for those without an answer."""
    missing = error or KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the coordinator returned nothing for the partition")
    return {partition: results.get(partition, missing) for partition in sorted(partitions)}
