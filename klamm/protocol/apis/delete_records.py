"""DeleteRecords (key 21): advances the log start offsets of partitions.

Versions: 2 flexible.
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, Int16, Int32, Int64, Request, Response, String, Struct


class DeleteRecordsRequest(
    Request["DeleteRecordsResponse"], api=ApiKey.DELETE_RECORDS, versions="0-2", flexible="2+", size=LIST
):
    class DeleteRecordsTopic(Struct):
        class DeleteRecordsPartition(Struct):
            partition_index: Int32
            offset: Int64

        name: String
        partitions: list[DeleteRecordsPartition]

    topics: list[DeleteRecordsTopic]
    timeout_ms: Int32


class DeleteRecordsResponse(Response):
    class DeleteRecordsTopicResult(Struct):
        class DeleteRecordsPartitionResult(Struct):
            partition_index: Int32
            low_watermark: Int64
            error_code: Int16

        name: String
        partitions: list[DeleteRecordsPartitionResult]

    throttle_time_ms: Int32 = 0
    topics: list[DeleteRecordsTopicResult]
