"""DescribeLogDirs (key 35): the log directories of a broker and the size of their partitions (KIP-113).

Versions: 2 flexible; 3 error code (KIP-784); 4 total and usable bytes (KIP-827); 5 cordoned directories (KIP-1066).
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, Bool, Int16, Int32, Int64, Request, Response, String, Struct, field


class DescribeLogDirsRequest(
    Request["DescribeLogDirsResponse"],
    api=ApiKey.DESCRIBE_LOG_DIRS,
    versions="1-2",
    known="1-5",
    flexible="2+",
    size=LIST,
):
    class DescribableLogDirTopic(Struct):
        topic: String
        partitions: list[Int32]

    topics: list[DescribableLogDirTopic] | None


class DescribeLogDirsResponse(Response):
    class DescribeLogDirsResult(Struct):
        class DescribeLogDirsTopic(Struct):
            class DescribeLogDirsPartition(Struct):
                partition_index: Int32
                partition_size: Int64
                offset_lag: Int64
                is_future_key: Bool

            name: String
            partitions: list[DescribeLogDirsPartition]

        error_code: Int16
        log_dir: String
        topics: list[DescribeLogDirsTopic]
        total_bytes: Int64 = field("4+", default=-1)
        usable_bytes: Int64 = field("4+", default=-1)
        is_cordoned: Bool = field("5+", default=False)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = field("3+", default=0)
    results: list[DescribeLogDirsResult]
