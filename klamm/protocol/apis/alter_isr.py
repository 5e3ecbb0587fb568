"""AlterIsr (key 56): a leader asks the controller to change the ISR (KIP-497). Later versions of Kafka call the API
AlterPartition.

Versions: 0 flexible.
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, Int16, Int32, Int64, Request, Response, String, Struct, field


class AlterIsrRequest(Request["AlterIsrResponse"], api=ApiKey.ALTER_ISR, versions="0", flexible="0+", size=LIST):
    class TopicData(Struct):
        class PartitionData(Struct):
            partition_index: Int32
            leader_epoch: Int32
            new_isr: list[Int32]
            current_isr_version: Int32

        name: String
        partitions: list[PartitionData]

    broker_id: Int32
    broker_epoch: Int64 = -1
    topics: list[TopicData]


class AlterIsrResponse(Response):
    class TopicData(Struct):
        class PartitionData(Struct):
            partition_index: Int32
            error_code: Int16
            leader_id: Int32 = 0
            leader_epoch: Int32 = 0
            isr: list[Int32] = field(default=[])
            current_isr_version: Int32 = 0

        name: String
        partitions: list[PartitionData]

    throttle_time_ms: Int32 = 0
    error_code: Int16
    topics: list[TopicData]
