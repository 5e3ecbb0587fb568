"""OffsetCommit (key 8): stores the offsets that a group has consumed.

Versions: 3 throttle time; 5 without the retention that the client chose; 6 leader epoch (KIP-320); 7 group instance id
(KIP-345); 8 flexible.
"""

from __future__ import annotations

from collections.abc import Mapping

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, Int16, Int32, Int64, Request, Response, String, Struct, field
from klamm.protocol.vocabulary import NO_EPOCH, PartitionKey

NO_RETENTION = -1


class OffsetCommitRequest(
    Request["OffsetCommitResponse"], api=ApiKey.OFFSET_COMMIT, versions="2-8", flexible="8+", size=LIST
):
    class OffsetCommitRequestTopic(Struct):
        class OffsetCommitRequestPartition(Struct):
            partition_index: Int32
            committed_offset: Int64
            committed_leader_epoch: Int32 = field("6+", default=NO_EPOCH)
            committed_metadata: String | None = ""

        name: String
        partitions: list[OffsetCommitRequestPartition]

    group_id: String
    generation_id_or_member_epoch: Int32 = -1
    member_id: String = ""
    group_instance_id: String | None = field("7+", default=None)
    retention_time_ms: Int64 = field("2-4", default=NO_RETENTION)
    topics: list[OffsetCommitRequestTopic]

    @classmethod
    def of(
        cls, group_id: str, offsets: Mapping[PartitionKey, int], *, metadata: str | None = ""
    ) -> OffsetCommitRequest:
        """The commit of offsets by (topic, partition), for a client that is not a member of the group."""
        topics: dict[str, OffsetCommitRequest.OffsetCommitRequestTopic] = {}
        for (name, number), offset in offsets.items():
            topic = topics.setdefault(name, cls.OffsetCommitRequestTopic(name=name, partitions=[]))
            partition = cls.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
                partition_index=number, committed_offset=offset, committed_metadata=metadata
            )
            topic.partitions.append(partition)
        return cls(group_id=group_id, topics=list(topics.values()))


class OffsetCommitResponse(Response):
    class OffsetCommitResponseTopic(Struct):
        class OffsetCommitResponsePartition(Struct):
            partition_index: Int32
            error_code: Int16

        name: String
        partitions: list[OffsetCommitResponsePartition]

    throttle_time_ms: Int32 = field("3+", default=0)
    topics: list[OffsetCommitResponseTopic]

    def error_codes(self) -> dict[PartitionKey, int]:
        """The error code of each (topic, partition)."""
        return {(topic.name, one.partition_index): one.error_code for topic in self.topics for one in topic.partitions}
