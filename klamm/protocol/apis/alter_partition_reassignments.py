"""AlterPartitionReassignments (key 45): starts or cancels the reassignment of partitions (KIP-455).

Versions: 0 flexible; 1 whether the replication factor may change (KIP-860).
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, Bool, Int16, Int32, Request, Response, String, Struct, field


class AlterPartitionReassignmentsRequest(
    Request["AlterPartitionReassignmentsResponse"],
    api=ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    versions="0",
    known="0-1",
    flexible="0+",
    size=LIST,
):
    class ReassignableTopic(Struct):
        class ReassignablePartition(Struct):
            partition_index: Int32
            replicas: list[Int32] | None = None

        name: String
        partitions: list[ReassignablePartition]

    timeout_ms: Int32 = 60000
    allow_replication_factor_change: Bool = field("1+", default=True)
    topics: list[ReassignableTopic]


class AlterPartitionReassignmentsResponse(Response):
    class ReassignableTopicResponse(Struct):
        class ReassignablePartitionResponse(Struct):
            partition_index: Int32
            error_code: Int16
            error_message: String | None

        name: String
        partitions: list[ReassignablePartitionResponse]

    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Bool = field("1+", default=True)
    error_code: Int16
    error_message: String | None
    responses: list[ReassignableTopicResponse]
