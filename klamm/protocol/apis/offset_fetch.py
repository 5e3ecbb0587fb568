"""OffsetFetch (key 9): the committed offsets of a group.

Versions: 2 null for all topics, error code; 3 throttle time; 5 leader epoch (KIP-320); 6 flexible; 7 stable offsets
only (KIP-447); 8 several groups (KIP-709); 9 member epoch (KIP-848); 10 topic ids.
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, Bool, Int16, Int32, Int64, Request, Response, String, Struct, Uuid, field


class OffsetFetchRequest(
    Request["OffsetFetchResponse"], api=ApiKey.OFFSET_FETCH, versions="1-7", known="1-10", flexible="6+", size=LIST
):
    class OffsetFetchRequestTopic(Struct):
        name: String
        partition_indexes: list[Int32]

    class OffsetFetchRequestGroup(Struct):
        class OffsetFetchRequestTopics(Struct):
            name: String = field("8-9", default="")
            topic_id: Uuid = field("10+", default=None)
            partition_indexes: list[Int32]

        group_id: String
        member_id: String | None = field("9+", default=None)
        member_epoch: Int32 = field("9+", default=-1)
        topics: list[OffsetFetchRequestTopics] | None

    group_id: String = field("1-7", default="")
    topics: list[OffsetFetchRequestTopic] | None = field("1-7", default=[], nullable="2-7")
    groups: list[OffsetFetchRequestGroup] = field("8+", default=[])
    require_stable: Bool = field("7+", default=False)


class OffsetFetchResponse(Response):
    class OffsetFetchResponseTopic(Struct):
        class OffsetFetchResponsePartition(Struct):
            partition_index: Int32
            committed_offset: Int64
            committed_leader_epoch: Int32 = field("5+", default=-1)
            metadata: String | None
            error_code: Int16

        name: String
        partitions: list[OffsetFetchResponsePartition]

    class OffsetFetchResponseGroup(Struct):
        class OffsetFetchResponseTopics(Struct):
            class OffsetFetchResponsePartitions(Struct):
                partition_index: Int32
                committed_offset: Int64
                committed_leader_epoch: Int32 = -1
                metadata: String | None
                error_code: Int16

            name: String = field("8-9", default="")
            topic_id: Uuid = field("10+", default=None)
            partitions: list[OffsetFetchResponsePartitions]

        group_id: String
        topics: list[OffsetFetchResponseTopics]
        error_code: Int16 = 0

    throttle_time_ms: Int32 = field("3+", default=0)
    topics: list[OffsetFetchResponseTopic] = field("1-7", default=[])
    error_code: Int16 = field("2-7", default=0)
    groups: list[OffsetFetchResponseGroup] = field("8+", default=[])
