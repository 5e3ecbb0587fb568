"""TxnOffsetCommit (key 28): offsets of a group, committed with a transaction.

Versions: 2 leader epoch (KIP-320); 3 flexible, the member (KIP-447); 4 error code TRANSACTION_ABORTABLE (KIP-890).
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, Int16, Int32, Int64, Request, Response, String, Struct, field


class TxnOffsetCommitRequest(
    Request["TxnOffsetCommitResponse"],
    api=ApiKey.TXN_OFFSET_COMMIT,
    versions="0-3",
    known="0-5",
    flexible="3+",
    size=LIST,
):
    class TxnOffsetCommitRequestTopic(Struct):
        class TxnOffsetCommitRequestPartition(Struct):
            partition_index: Int32
            committed_offset: Int64
            committed_leader_epoch: Int32 = field("2+", default=-1)
            committed_metadata: String | None

        name: String
        partitions: list[TxnOffsetCommitRequestPartition]

    transactional_id: String
    group_id: String
    producer_id: Int64
    producer_epoch: Int16
    generation_id: Int32 = field("3+", default=-1)
    member_id: String = field("3+", default="")
    group_instance_id: String | None = field("3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic]


class TxnOffsetCommitResponse(Response):
    class TxnOffsetCommitResponseTopic(Struct):
        class TxnOffsetCommitResponsePartition(Struct):
            partition_index: Int32
            error_code: Int16

        name: String
        partitions: list[TxnOffsetCommitResponsePartition]

    throttle_time_ms: Int32 = 0
    topics: list[TxnOffsetCommitResponseTopic]
