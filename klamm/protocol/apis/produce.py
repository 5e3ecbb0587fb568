"""Produce (key 0): record batches to append. The records are never copied.

A decoded request's records are parts of its frame's memory, and writable if the frame is a bytearray, so that the log
can put offsets into them in place.

Versions: 1 throttle time; 2 log append time; 3 transactional id (KIP-98); 5 log start offset (KIP-107); 8 record errors
(KIP-467); 9 flexible. Versions 0 to 2 are decoded so that klamm can answer them with an error: their records are
message sets.
"""

from __future__ import annotations

from collections.abc import Iterable

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import WHOLE, Int16, Int32, Int64, Records, Request, Response, String, Struct, field


class ProduceRequest(Request["ProduceResponse"], api=ApiKey.PRODUCE, versions="0-9", flexible="9+", size=WHOLE):
    class TopicProduceData(Struct):
        class PartitionProduceData(Struct):
            index: Int32
            records: Records | None

        name: String
        partition_data: list[PartitionProduceData]

    transactional_id: String | None = field("3+", default=None)
    acks: Int16
    timeout_ms: Int32
    topic_data: list[TopicProduceData]

    @classmethod
    def of(
        cls,
        transactional_id: str | None,
        acks: int,
        timeout_ms: int,
        topics: Iterable[tuple[str, Iterable[tuple[int, Records | None]]]],
    ) -> ProduceRequest:
        """The request with the (partition, records) pairs of each topic."""
        topic, partition = cls.TopicProduceData, cls.TopicProduceData.PartitionProduceData
        return cls(
            transactional_id=transactional_id,
            acks=acks,
            timeout_ms=timeout_ms,
            topic_data=[
                topic(name=name, partition_data=[partition(index=index, records=records) for index, records in entries])
                for name, entries in topics
            ],
        )


class ProduceResponse(Response):
    class TopicProduceResponse(Struct):
        class PartitionProduceResponse(Struct):
            class BatchIndexAndErrorMessage(Struct):
                batch_index: Int32
                batch_index_error_message: String | None = None

            index: Int32
            error_code: Int16
            base_offset: Int64 = -1
            log_append_time_ms: Int64 = field("2+", default=-1)
            log_start_offset: Int64 = field("5+", default=-1)
            record_errors: list[BatchIndexAndErrorMessage] = field("8+", default=[])
            error_message: String | None = field("8+", default=None)

        name: String
        partition_responses: list[PartitionProduceResponse]

    responses: list[TopicProduceResponse]
    throttle_time_ms: Int32 = field("1+", default=0)
