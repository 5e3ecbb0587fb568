"""OffsetCommit (key 8), versions 2 to 8: a group remembers how far it has read, for each partition.

Answered when the offsets are in the log of the group's partition, on all in-sync replicas. Partitions that do not exist
are refused each for itself. Versions 2 to 4 may say how long the offsets are kept. Versions 0 and 1 are not served:
version 0 kept offsets in ZooKeeper, and no client of the last ten years uses it.
"""

from klamm.broker.registry import Request, handler
from klamm.broker.security import Operation
from klamm.coordinator.group import OffsetAndMetadata
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.offset_commit import NO_RETENTION, OffsetCommitRequest, OffsetCommitResponse, PartitionResult
from klamm.protocol.vocabulary import ResourceType
from klamm.znodes.topics import TopicPartition

# The latest time that a record can hold.
END_OF_TIME_MS = 2**63 - 1


def error_response(request: Request[OffsetCommitRequest], error: KafkaError) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        [
            (topic, [PartitionResult(one.partition, error.code) for one in partitions])
            for topic, partitions in request.body.topics
        ]
    )


@handler(
    ApiKey.OFFSET_COMMIT,
    operation=Operation.READ,
    resource_type=ResourceType.GROUP,
    error_response=error_response,
    ends_with_client=True,
)
async def handle(request: Request[OffsetCommitRequest]) -> OffsetCommitResponse:
    body, services = request.body, request.services
    if not request.allows(body.group_id):
        raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    known_topics = services.metadata_cache.snapshot.topics
    now_ms = services.environment.now_ms()
    expire_ms = None if body.retention_time_ms == NO_RETENTION else min(now_ms + body.retention_time_ms, END_OF_TIME_MS)
    codes: dict[TopicPartition, ErrorCode] = {}
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    for topic, partitions in body.topics:
        known = known_topics.get(topic, ())
        allowed = request.allows(topic, Operation.READ, ResourceType.TOPIC)
        for number, offset, leader_epoch, metadata in partitions:
            if not allowed:
                codes[topic, number] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif number not in known:
                codes[topic, number] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                offsets[topic, number] = OffsetAndMetadata(offset, leader_epoch, metadata or "", now_ms, expire_ms)
    if offsets:
        codes |= await services.group_coordinator.commit_offsets(
            body.group_id, body.generation_id, body.member_id, body.group_instance_id, offsets
        )
    return OffsetCommitResponse(
        [
            (topic, [PartitionResult(one.partition, codes[topic, one.partition]) for one in partitions])
            for topic, partitions in body.topics
        ]
    )
