"""ListOffsets (key 2): the offset of a timestamp, or the earliest or latest offset, of partitions.

Versions: 2 isolation level, throttle time; 4 leader epochs (KIP-320); 6 flexible; 7 the record of the highest timestamp
(KIP-734); 8 the earliest local offset (KIP-405); 9 the last tiered offset (KIP-1005); 10 timeout for remote lookups
(KIP-1075).
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, Int8, Int16, Int32, Int64, Request, Response, String, Struct, field


class ListOffsetsRequest(
    Request["ListOffsetsResponse"], api=ApiKey.LIST_OFFSETS, versions="1-6", known="1-11", flexible="6+", size=LIST
):
    class ListOffsetsTopic(Struct):
        class ListOffsetsPartition(Struct):
            partition_index: Int32
            current_leader_epoch: Int32 = field("4+", default=-1)
            timestamp: Int64

        name: String
        partitions: list[ListOffsetsPartition]

    replica_id: Int32 = -1
    isolation_level: Int8 = field("2+", default=0)
    topics: list[ListOffsetsTopic]
    timeout_ms: Int32 = field("10+", default=0)


class ListOffsetsResponse(Response):
    class ListOffsetsTopicResponse(Struct):
        class ListOffsetsPartitionResponse(Struct):
            partition_index: Int32
            error_code: Int16
            timestamp: Int64 = -1
            offset: Int64 = -1
            leader_epoch: Int32 = field("4+", default=-1)

        name: String
        partitions: list[ListOffsetsPartitionResponse]

    throttle_time_ms: Int32 = field("2+", default=0)
    topics: list[ListOffsetsTopicResponse]
