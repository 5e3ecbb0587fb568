"""Fetch requests of a consumer, and the batches of an answer that a consumer may see.

What must stay true: a request has the leader epoch that the client knows, so that a former leader does not serve it
(KIP-320). If brokers know topics by their ids (from Kafka 3.1 on), `fetch` returns no records of another topic with the
same name.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from klamm.client.cluster import ClusterClient
from klamm.client.fan_out import by_topic, error_of, fan_out, leaders
from klamm.client.retries import RetryPolicy
from klamm.net.client import Connection
from klamm.protocol.apis.fetch import AbortedTransaction, FetchPartition, FetchRequest, FetchTopic, PartitionData
from klamm.protocol.apis.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.primitives import Buffer
from klamm.protocol.record.record_batch import BatchHeader, check_crc, iterate_batches
from klamm.protocol.record.records import ControlRecordType, decode_end_transaction_marker
from klamm.protocol.vocabulary import CONSUMER_REPLICA_ID, READ_UNCOMMITTED, TopicPartition


class FetchFrom(NamedTuple):
    """The fetch of one partition. `leader_epoch` is the epoch that the client knows."""

    offset: int
    leader_epoch: int
    max_bytes: int


# The first version that names topics by their ids (KIP-516), in Kafka 3.1.
FETCH_BY_ID_VERSION = 13
# The errors of a broker that has no topic with this id, or another topic with this name.
NOT_OF_THIS_ID = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID})


Answer = PartitionData
"""A leader's answer for one partition."""


class Fetched(NamedTuple):
    """The answers of a leader. With `by_id` the request had topic ids, so no answer is of another topic with the same
    name."""

    partitions: dict[TopicPartition, Answer]
    by_id: bool


async def fetch(
    connection: Connection,
    partitions: Mapping[TopicPartition, FetchFrom],
    topic_ids: Mapping[str, str | None],
    *,
    max_version: int | None = None,
    **limits: Any,
) -> Fetched:
    """Sends one request to the leader of these partitions, with the `limits` of `fetch_request`. Raises ClientError.

    `max_version` is the largest version of the request, or None. `topic_ids` has the topics' hexadecimal ids, as far as
    they are known.
    """
    ids = {topic: UUID(topic_id) for topic, topic_id in topic_ids.items() if topic_id is not None}
    low, high = (connection.api_versions or {}).get(ApiKey.FETCH, (0, 0))
    by_id = max_version is None and low <= FETCH_BY_ID_VERSION <= high and ids.keys() == topic_ids.keys()
    request = fetch_request(partitions, topic_ids=ids, **limits)
    version = FETCH_BY_ID_VERSION if by_id else connection.version_of(ApiKey.FETCH)
    if max_version is not None:
        version = min(version, max_version)
    response = await connection.send(ApiKey.FETCH, lambda _: request, version=version)
    names = {topic_id: topic for topic, topic_id in ids.items()}
    found = {}
    for topic in response.responses:
        name = names.get(topic.topic_id, "") if by_id and topic.topic_id is not None else topic.topic
        for answer in topic.partitions:
            found[TopicPartition(name, answer.partition_index)] = answer
    return Fetched(found, by_id)


def fetch_request(
    partitions: Mapping[TopicPartition, FetchFrom],
    *,
    max_bytes: int,
    max_wait_ms: int,
    min_bytes: int = 1,
    isolation_level: int = READ_UNCOMMITTED,
    rack_id: str = "",
    topic_ids: Mapping[str, UUID] | None = None,
) -> FetchRequest:
    """A consumer's request to the leader of these partitions, which answers in their order. With a rack, the leader may
    name a follower to read from instead. From version 13 on, topics have ids instead of names."""
    return FetchRequest(
        replica_id=CONSUMER_REPLICA_ID,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        rack_id=rack_id,
        topics=[
            FetchTopic(
                topic=topic,
                topic_id=None if topic_ids is None else topic_ids.get(topic),
                partitions=[
                    FetchPartition(
                        partition=number,
                        current_leader_epoch=wanted.leader_epoch,
                        fetch_offset=wanted.offset,
                        partition_max_bytes=wanted.max_bytes,
                    )
                    for number in numbers
                    for wanted in [partitions[TopicPartition(topic, number)]]
                ],
            )
            for topic, numbers in by_topic(partitions).items()
        ],
    )


def readable_batches(
    records: Buffer, aborted: Sequence[AbortedTransaction] | None
) -> Iterator[tuple[int, BatchHeader, bool]]:
    """(position, header, whether a consumer may see its records) of each whole batch in a leader's answer.

    Control batches are not for consumers. With READ_COMMITTED the leader lists aborted transactions: a producer's
    transactional batches are aborted from the listed offset to the abort marker.

    Raises KafkaError for a batch that is corrupt or has another message format.
    """
    upcoming = sorted(aborted or (), key=lambda transaction: transaction.first_offset, reverse=True)
    aborting: set[int] = set()
    for position, header in iterate_batches(records, allow_partial_end=True):
        check_crc(records, position, header)
        while upcoming and upcoming[-1].first_offset <= header.last_offset:
            aborting.add(upcoming.pop().producer_id)
        if header.is_control:
            marker = decode_end_transaction_marker(records, position, header)
            if marker is not None and marker.type is ControlRecordType.ABORT:
                aborting.discard(header.producer_id)
        is_aborted = header.is_transactional and header.producer_id in aborting
        yield position, header, not header.is_control and not is_aborted


class EpochEnd(NamedTuple):
    """The largest leader epoch up to the requested epoch, and its end offset; both -1 if there is none."""

    leader_epoch: int
    end_offset: int


async def leader_epoch_ends(
    client: ClusterClient, epochs: Mapping[TopicPartition, int], *, retry: RetryPolicy | None = None
) -> dict[TopicPartition, EpochEnd | KafkaError]:
    """The end offsets of these leader epochs in the leaders' logs. Records of an epoch behind its end offset are no
    longer in the log."""
    struct = OffsetForLeaderEpochRequest.OffsetForLeaderTopic

    def leader_epoch_of(partition: TopicPartition) -> int:
        return client.metadata.topics[partition.topic].partitions[partition.partition].leader_epoch

    async def ask(
        connection: Connection, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, EpochEnd | KafkaError]:
        request = OffsetForLeaderEpochRequest(
            replica_id=CONSUMER_REPLICA_ID,
            topics=[
                struct(
                    topic=topic,
                    partitions=[
                        struct.OffsetForLeaderPartition(
                            partition=number,
                            current_leader_epoch=leader_epoch_of(TopicPartition(topic, number)),
                            leader_epoch=epochs[TopicPartition(topic, number)],
                        )
                        for number in numbers
                    ],
                )
                for topic, numbers in by_topic(partitions).items()
            ],
        )
        response = await connection.send(ApiKey.OFFSET_FOR_LEADER_EPOCH, lambda version: request)
        return {
            TopicPartition(topic.topic, each.partition): error_of(each.error_code)
            or EpochEnd(each.leader_epoch, each.end_offset)
            for topic in response.topics
            for each in topic.partitions
        }

    return await fan_out(client, epochs, leaders(client), ask, retry=retry)
