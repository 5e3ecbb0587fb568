"""OffsetDelete (key 47): deletes committed offsets of a group (KIP-496).

Versions: 0 only, which is not flexible.
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, Int16, Int32, Request, Response, String, Struct


class OffsetDeleteRequest(
    Request["OffsetDeleteResponse"], api=ApiKey.OFFSET_DELETE, versions="0", flexible=None, size=LIST
):
    class OffsetDeleteRequestTopic(Struct):
        class OffsetDeleteRequestPartition(Struct):
            partition_index: Int32

        name: String
        partitions: list[OffsetDeleteRequestPartition]

    group_id: String
    topics: list[OffsetDeleteRequestTopic]


class OffsetDeleteResponse(Response):
    class OffsetDeleteResponseTopic(Struct):
        class OffsetDeleteResponsePartition(Struct):
            partition_index: Int32
            error_code: Int16

        name: String
        partitions: list[OffsetDeleteResponsePartition]

    error_code: Int16
    throttle_time_ms: Int32 = 0
    topics: list[OffsetDeleteResponseTopic]
