"""Fetch requests of a consumer, and which batches of an answer a consumer may see.

What must stay true: a request carries the leader epoch that the client knows, so that a former leader does not answer
it (KIP-320).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from klamm.client.cluster import ClusterClient, RetryPolicy
from klamm.client.fan_out import by_topic, error_of, fan_out, leaders
from klamm.net.client import Connection
from klamm.protocol.apis.fetch import AbortedTransaction, FetchPartition, FetchRequest, FetchTopic
from klamm.protocol.apis.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from klamm.protocol.errors import KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.primitives import Buffer
from klamm.protocol.record_batch import BatchHeader, check_crc, iterate_batches
from klamm.protocol.records import ControlRecordType, decode_end_transaction_marker
from klamm.protocol.vocabulary import CONSUMER_REPLICA_ID, READ_UNCOMMITTED, TopicPartition


class FetchFrom(NamedTuple):
    """What is wanted of one partition. `leader_epoch` is the one that the client knows."""

    offset: int
    leader_epoch: int
    max_bytes: int


def fetch_request(
    partitions: Mapping[TopicPartition, FetchFrom],
    *,
    max_bytes: int,
    max_wait_ms: int,
    min_bytes: int = 1,
    isolation_level: int = READ_UNCOMMITTED,
    rack_id: str = "",
) -> FetchRequest:
    """The request of a consumer to the leader of these partitions, which answers in their order. With a rack the leader
    may name a follower to read from instead."""
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

    A control batch is not for consumers. With READ_COMMITTED the leader names the aborted transactions: a producer's
    transactional batches are aborted from the offset that is named to the abort marker.

    Raises KafkaError for a batch that is corrupt or of another message format.
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
    """The largest leader epoch up to the one that was asked for, and the offset where it ends; -1 where none is."""

    leader_epoch: int
    end_offset: int


async def leader_epoch_ends(
    client: ClusterClient, epochs: Mapping[TopicPartition, int], *, retry: RetryPolicy | None = None
) -> dict[TopicPartition, EpochEnd | KafkaError]:
    """Where these leader epochs end in the logs of the partitions' leaders: records of an epoch behind its end are
    no longer in the log."""
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
