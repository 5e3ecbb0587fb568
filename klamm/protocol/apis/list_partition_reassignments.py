"""ListPartitionReassignments (key 46): the reassignments in progress (KIP-455).

Versions: 0 flexible.
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, Int16, Int32, Request, Response, String, Struct


class ListPartitionReassignmentsRequest(
    Request["ListPartitionReassignmentsResponse"],
    api=ApiKey.LIST_PARTITION_REASSIGNMENTS,
    versions="0",
    flexible="0+",
    size=LIST,
):
    class ListPartitionReassignmentsTopics(Struct):
        name: String
        partition_indexes: list[Int32]

    timeout_ms: Int32 = 60000
    topics: list[ListPartitionReassignmentsTopics] | None = None


class ListPartitionReassignmentsResponse(Response):
    class OngoingTopicReassignment(Struct):
        class OngoingPartitionReassignment(Struct):
            partition_index: Int32
            replicas: list[Int32]
            adding_replicas: list[Int32]
            removing_replicas: list[Int32]

        name: String
        partitions: list[OngoingPartitionReassignment]

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None
    topics: list[OngoingTopicReassignment]
