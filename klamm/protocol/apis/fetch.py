"""Fetch (key 1): records from an offset on, for consumers and followers. The records are never copied.

A response is encoded as a list of buffers in which the records of each partition appear as they were given; they must
not change until they are sent. The records of a decoded response are parts of its frame's memory.

Versions: 5 log start offset; 7 sessions and forgotten topics (KIP-227); 9 current leader epoch (KIP-320); 11 rack and
preferred read replica (KIP-392); 12 flexible, last fetched and diverging epoch (KIP-595), current leader; 13 topic ids
instead of names (KIP-516), for clients of newer brokers. The snapshot id, which only KRaft uses, is left out.
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import (
    LIST,
    Int8,
    Int16,
    Int32,
    Int64,
    Records,
    Request,
    Response,
    String,
    Struct,
    Uuid,
    field,
)
from klamm.protocol.vocabulary import NO_EPOCH


class FetchRequest(
    Request["FetchResponse"], api=ApiKey.FETCH, versions="4-12", known="4-13", flexible="12+", size=LIST
):
    """`replica_id` is -1 for a consumer. Session epoch -1 means no session."""

    class FetchTopic(Struct):
        class FetchPartition(Struct):
            """`log_start_offset` is a follower's own, -1 for a consumer."""

            partition: Int32
            current_leader_epoch: Int32 = field("9+", default=NO_EPOCH)
            fetch_offset: Int64
            last_fetched_epoch: Int32 = field("12+", default=NO_EPOCH)
            log_start_offset: Int64 = field("5+", default=-1)
            partition_max_bytes: Int32

        topic: String = field("4-12", default="")
        topic_id: Uuid = field("13+", default=None)
        partitions: list[FetchPartition]

    class ForgottenTopic(Struct):
        topic: String = field("7-12", default="")
        topic_id: Uuid = field("13+", default=None)
        partitions: list[Int32]

    cluster_id: String | None = field("12+", default=None, tag=0)
    replica_id: Int32 = -1
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 0x7FFFFFFF
    isolation_level: Int8 = 0
    session_id: Int32 = field("7+", default=0)
    session_epoch: Int32 = field("7+", default=-1)
    topics: list[FetchTopic] = field(default=[])
    forgotten_topics_data: list[ForgottenTopic] = field("7+", default=[])
    rack_id: String = field("11+", default="")


class FetchResponse(Response):
    class FetchableTopicResponse(Struct):
        class PartitionData(Struct):
            """`aborted_transactions` is None unless the isolation level is read_committed. With a `diverging_epoch`
            the follower must truncate."""

            class EpochEndOffset(Struct):
                epoch: Int32 = NO_EPOCH
                end_offset: Int64 = -1

            class LeaderIdAndEpoch(Struct):
                leader_id: Int32 = -1
                leader_epoch: Int32 = NO_EPOCH

            class AbortedTransaction(Struct):
                producer_id: Int64
                first_offset: Int64

            partition_index: Int32
            error_code: Int16 = 0
            high_watermark: Int64 = -1
            last_stable_offset: Int64 = -1
            log_start_offset: Int64 = field("5+", default=-1)
            diverging_epoch: EpochEndOffset | None = field("12+", default=None, tag=0)
            current_leader: LeaderIdAndEpoch | None = field("12+", default=None, tag=1)
            aborted_transactions: list[AbortedTransaction] | None = None
            preferred_read_replica: Int32 = field("11+", default=-1)
            records: Records | None = b""

        topic: String = field("4-12", default="")
        topic_id: Uuid = field("13+", default=None)
        partitions: list[PartitionData]

    throttle_time_ms: Int32 = 0
    error_code: Int16 = field("7+", default=0)
    session_id: Int32 = field("7+", default=0)
    responses: list[FetchableTopicResponse] = field(default=[])


FetchTopic = FetchRequest.FetchTopic
FetchPartition = FetchTopic.FetchPartition
FetchableTopic = FetchResponse.FetchableTopicResponse
PartitionData = FetchableTopic.PartitionData
EpochEndOffset = PartitionData.EpochEndOffset
AbortedTransaction = PartitionData.AbortedTransaction
