"""OffsetCommit (key 8), versions 2 to 8: a group remembers how far it has read, for each partition.

Answered when the offsets are in the log of the group's partition, on all in-sync replicas. Partitions that do not exist
are refused each for itself. Versions 2 to 4 may say how long the offsets are kept. Versions 0 and 1 are not served:
version 0 kept offsets in ZooKeeper, and no client of the last ten years uses it.
"""

from klamm.broker.registry import Body, Request, handler
from klamm.broker.security import Operation, ResourceType
from klamm.coordinator.group import OffsetAndMetadata
from klamm.protocol import messages
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.znodes.topics import TopicPartition

Response = messages.response_class(ApiKey.OFFSET_COMMIT)
Topic = Response.OffsetCommitResponseTopic
Partition = Topic.OffsetCommitResponsePartition

# The request says nothing of how long the offsets are kept.
NO_RETENTION = -1


def error_response(request: Request, error: KafkaError) -> Body:
    return Response(
        version=request.version,
        topics=[
            Topic(
                name=topic.name,
                partitions=[
                    Partition(partition_index=partition.partition_index, error_code=error.code)
                    for partition in topic.partitions
                ],
            )
            for topic in request.body.topics
        ],
    )


@handler(
    ApiKey.OFFSET_COMMIT, operation=Operation.READ, resource_type=ResourceType.GROUP, error_response=error_response
)
async def handle(request: Request) -> Body:
    body, services = request.body, request.services
    if not request.allows(body.group_id):
        raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    known_topics = services.metadata_cache.snapshot.topics
    now_ms = services.environment.now_ms()
    expire_ms = None if body.retention_time_ms == NO_RETENTION else now_ms + body.retention_time_ms
    codes: dict[TopicPartition, ErrorCode] = {}
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    for topic in body.topics:
        name = topic.name
        known = known_topics.get(name, ())
        allowed = request.allows(name, Operation.READ, ResourceType.TOPIC)
        for partition in topic.partitions:
            key = name, partition.partition_index
            if not allowed:
                codes[key] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif partition.partition_index not in known:
                codes[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                offsets[key] = OffsetAndMetadata(
                    partition.committed_offset,
                    partition.committed_leader_epoch,
                    partition.committed_metadata or "",
                    now_ms,
                    expire_ms,
                )
    if offsets:
        codes |= await services.group_coordinator.commit_offsets(
            body.group_id, body.generation_id_or_member_epoch, body.member_id, body.group_instance_id, offsets
        )
    return Response(
        version=request.version,
        topics=[
            Topic(
                name=topic.name,
                partitions=[
                    Partition(
                        partition_index=partition.partition_index,
                        error_code=codes[topic.name, partition.partition_index],
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in body.topics
        ],
    )
