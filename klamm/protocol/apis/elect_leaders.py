"""ElectLeaders (key 43): elects preferred leaders (KIP-183).

Versions: 1 unclean elections, error code (KIP-460); 2 flexible.
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, Int8, Int16, Int32, Request, Response, String, Struct, field


class ElectLeadersRequest(
    Request["ElectLeadersResponse"], api=ApiKey.ELECT_LEADERS, versions="0-2", flexible="2+", size=LIST
):
    class TopicPartitions(Struct):
        topic: String
        partitions: list[Int32]

    election_type: Int8 = field("1+", default=0)
    topic_partitions: list[TopicPartitions] | None
    timeout_ms: Int32 = 60000


class ElectLeadersResponse(Response):
    class ReplicaElectionResult(Struct):
        class PartitionResult(Struct):
            partition_id: Int32
            error_code: Int16
            error_message: String | None

        topic: String
        partition_result: list[PartitionResult]

    throttle_time_ms: Int32 = 0
    error_code: Int16 = field("1+", default=0)
    replica_election_results: list[ReplicaElectionResult]
