"""OffsetForLeaderEpoch (key 23): the end offset of a leader epoch in the leader's log.

Versions: 2 current leader epoch (KIP-320), throttle time; 3 replica id; 4 flexible.
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, Int16, Int32, Int64, Request, Response, String, Struct, field


class OffsetForLeaderEpochRequest(
    Request["OffsetForLeaderEpochResponse"],
    api=ApiKey.OFFSET_FOR_LEADER_EPOCH,
    versions="2-4",
    flexible="4+",
    size=LIST,
):
    class OffsetForLeaderTopic(Struct):
        class OffsetForLeaderPartition(Struct):
            partition: Int32
            current_leader_epoch: Int32 = -1
            leader_epoch: Int32

        topic: String
        partitions: list[OffsetForLeaderPartition]

    replica_id: Int32 = field("3+", default=-2)
    topics: list[OffsetForLeaderTopic]


class OffsetForLeaderEpochResponse(Response):
    class OffsetForLeaderTopicResult(Struct):
        class EpochEndOffset(Struct):
            error_code: Int16
            partition: Int32
            leader_epoch: Int32 = -1
            end_offset: Int64 = -1

        topic: String
        partitions: list[EpochEndOffset]

    throttle_time_ms: Int32 = 0
    topics: list[OffsetForLeaderTopicResult]
