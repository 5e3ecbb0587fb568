"""DescribeProducers (key 61): the idempotent and transactional producers of partitions (KIP-664).

Versions: 0 flexible.
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, Int16, Int32, Int64, Request, Response, String, Struct


class DescribeProducersRequest(
    Request["DescribeProducersResponse"], api=ApiKey.DESCRIBE_PRODUCERS, versions="0", flexible="0+", size=LIST
):
    class TopicRequest(Struct):
        name: String
        partition_indexes: list[Int32]

    topics: list[TopicRequest]


class DescribeProducersResponse(Response):
    class TopicResponse(Struct):
        class PartitionResponse(Struct):
            class ProducerState(Struct):
                producer_id: Int64
                producer_epoch: Int32
                last_sequence: Int32 = -1
                last_timestamp: Int64 = -1
                coordinator_epoch: Int32
                current_txn_start_offset: Int64 = -1

            partition_index: Int32
            error_code: Int16
            error_message: String | None = None
            active_producers: list[ProducerState]

        name: String
        partitions: list[PartitionResponse]

    throttle_time_ms: Int32 = 0
    topics: list[TopicResponse]
