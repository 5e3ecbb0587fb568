"""CreatePartitions (key 37): more partitions for topics (KIP-195).

Versions: 2 flexible; 3 quotas (KIP-599).
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, Bool, Int16, Int32, Request, Response, String, Struct


class CreatePartitionsRequest(
    Request["CreatePartitionsResponse"], api=ApiKey.CREATE_PARTITIONS, versions="0-3", flexible="2+", size=LIST
):
    class CreatePartitionsTopic(Struct):
        class CreatePartitionsAssignment(Struct):
            broker_ids: list[Int32]

        name: String
        count: Int32
        assignments: list[CreatePartitionsAssignment] | None = None

    topics: list[CreatePartitionsTopic]
    timeout_ms: Int32
    validate_only: Bool


class CreatePartitionsResponse(Response):
    class CreatePartitionsTopicResult(Struct):
        name: String
        error_code: Int16
        error_message: String | None = None

    throttle_time_ms: Int32 = 0
    results: list[CreatePartitionsTopicResult]
