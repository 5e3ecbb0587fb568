"""AlterReplicaLogDirs (key 34): moves replicas between the log directories of a broker (KIP-113).

Versions: 2 flexible.
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, Int16, Int32, Request, Response, String, Struct


class AlterReplicaLogDirsRequest(
    Request["AlterReplicaLogDirsResponse"], api=ApiKey.ALTER_REPLICA_LOG_DIRS, versions="1-2", flexible="2+", size=LIST
):
    class AlterReplicaLogDir(Struct):
        class AlterReplicaLogDirTopic(Struct):
            name: String
            partitions: list[Int32]

        path: String
        topics: list[AlterReplicaLogDirTopic]

    dirs: list[AlterReplicaLogDir]


class AlterReplicaLogDirsResponse(Response):
    class AlterReplicaLogDirTopicResult(Struct):
        class AlterReplicaLogDirPartitionResult(Struct):
            partition_index: Int32
            error_code: Int16

        topic_name: String
        partitions: list[AlterReplicaLogDirPartitionResult]

    throttle_time_ms: Int32 = 0
    results: list[AlterReplicaLogDirTopicResult]
