"""Deletion of the records before an offset (KIP-107)."""

from collections.abc import Mapping, Sequence

from klamm.client.cluster import ClusterClient
from klamm.client.fan_out import ANSWER_MARGIN_MS, answers, by_topic, error_of, fan_out, leaders
from klamm.client.retries import RETRIABLE_ERRORS
from klamm.net.client import Connection
from klamm.protocol.apis.delete_records import DeleteRecordsRequest
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import TopicPartition

# The caller decides how long the request waits.
RETRIABLE = RETRIABLE_ERRORS - {ErrorCode.REQUEST_TIMED_OUT}

TO_HIGH_WATERMARK = -1
"""In place of an offset: deletes all records below the high watermark."""


async def delete_records(
    client: ClusterClient, offsets: Mapping[TopicPartition, int], *, timeout_ms: int | None = None
) -> dict[TopicPartition, int | KafkaError]:
    """Deletes the records before the offset of each partition. Returns the low watermarks: the offsets before which all
    live replicas have deleted the records.

    After REQUEST_TIMED_OUT the leader has deleted the records, but a follower has not reported yet. Raises ClientError.
    """
    wait_ms = client.request_timeout_ms if timeout_ms is None else timeout_ms

    async def ask(
        connection: Connection, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int | KafkaError]:
        request = delete_records_request({partition: offsets[partition] for partition in partitions}, wait_ms)
        response = await connection.send(
            ApiKey.DELETE_RECORDS, lambda version: request, timeout_ms=wait_ms + ANSWER_MARGIN_MS
        )
        return {
            partition: error_of(each.error_code) or each.low_watermark for partition, each in answers(response.topics)
        }

    # A repeated request may find a newer high watermark, and would delete records that were written meanwhile.
    repeatable = TO_HIGH_WATERMARK not in offsets.values()
    return await fan_out(client, offsets, leaders(client), ask, retriable=RETRIABLE, repeatable=repeatable)


def delete_records_request(offsets: Mapping[TopicPartition, int], timeout_ms: int) -> DeleteRecordsRequest:
    struct = DeleteRecordsRequest.DeleteRecordsTopic
    return DeleteRecordsRequest(
        timeout_ms=timeout_ms,
        topics=[
            struct(
                name=name,
                partitions=[
                    struct.DeleteRecordsPartition(partition_index=number, offset=offsets[TopicPartition(name, number)])
                    for number in numbers
                ],
            )
            for name, numbers in by_topic(offsets).items()
        ],
    )
