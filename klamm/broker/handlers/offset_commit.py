"""OffsetCommit (key 8), versions 2 to 8: commits a group's offsets.

Answered when the offsets are in the log of the group's partition, on all in-sync replicas. Missing partitions are
refused one by one. Versions 2 to 4 may set the retention of the offsets. Versions 0 and 1 are not served: version 0
kept offsets in ZooKeeper, and no client of the last ten years uses it.
"""

from collections.abc import Callable

from klamm.base.slices import Steps, in_slices
from klamm.broker.handlers.by_partition import by_partition
from klamm.broker.handlers.committed_offsets import committed_offsets
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.protocol.apis.offset_commit import NO_RETENTION, OffsetCommitRequest, OffsetCommitResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import PartitionKey, ResourceType

Topic = OffsetCommitResponse.OffsetCommitResponseTopic
Partition = Topic.OffsetCommitResponsePartition

# The latest timestamp that a record can hold.
END_OF_TIME_MS = 2**63 - 1


def error_response(request: Request[OffsetCommitRequest], error: KafkaError) -> Steps[OffsetCommitResponse]:
    return _response(request.body, lambda _: error.code)


@handler(OffsetCommitRequest, Operation.READ, ResourceType.GROUP, error_response=error_response, ends_with_client=True)
async def handle(request: Request[OffsetCommitRequest]) -> OffsetCommitResponse:
    body, services = request.body, request.services
    request.require(body.group_id)
    now_ms = services.environment.now_ms()
    expire_ms = None if body.retention_time_ms == NO_RETENTION else min(now_ms + body.retention_time_ms, END_OF_TIME_MS)
    codes, offsets = await in_slices(committed_offsets(request, now_ms, expire_ms))
    if offsets:
        codes |= await services.group_coordinator.commit_offsets(
            body.group_id, body.generation_id_or_member_epoch, body.member_id, body.group_instance_id, offsets
        )
    return await in_slices(_response(body, codes.__getitem__))


def _response(body: OffsetCommitRequest, code_of: Callable[[PartitionKey], ErrorCode]) -> Steps[OffsetCommitResponse]:
    def answer(topic: str, one: OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition) -> Partition:
        return Partition(partition_index=one.partition_index, error_code=code_of((topic, one.partition_index)))

    topics = ((topic.name, topic.partitions) for topic in body.topics)
    return OffsetCommitResponse(topics=(yield from by_partition(Topic, topics, answer)))
