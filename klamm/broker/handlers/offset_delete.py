"""OffsetDelete (key 47), version 0: deletes a group's committed offsets for partitions (KIP-496).

Offsets of topics to which a member subscribes stay, with GROUP_SUBSCRIBED_TO_TOPIC.
"""

from klamm.base.slices import Slices
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.protocol.apis.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.primitives import Steps
from klamm.protocol.vocabulary import PartitionKey, ResourceType

Topic = OffsetDeleteResponse.OffsetDeleteResponseTopic
Partition = Topic.OffsetDeleteResponsePartition


def error_response(request: Request[OffsetDeleteRequest], error: KafkaError) -> OffsetDeleteResponse:
    return OffsetDeleteResponse(error_code=error.code, topics=[])


@handler(
    ApiKey.OFFSET_DELETE, operation=Operation.DELETE, resource_type=ResourceType.GROUP, error_response=error_response
)
def handle(request: Request[OffsetDeleteRequest]) -> Steps[OffsetDeleteResponse]:
    body, services = request.body, request.services
    if not request.allows(body.group_id):
        raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    known = services.metadata_cache.snapshot
    codes: dict[PartitionKey, ErrorCode] = {}
    wanted: list[PartitionKey] = []
    slices = Slices()
    for topic in body.topics:
        allowed = request.allows(topic.name, Operation.READ, ResourceType.TOPIC)
        for partition in topic.partitions:
            key = topic.name, partition.partition_index
            if not allowed:
                codes[key] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif known.partition(*key) is None:
                codes[key] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                wanted.append(key)
            if slices.is_over():
                yield
    code, deleted = yield from services.group_coordinator.delete_offsets(body.group_id, wanted)
    if code is not ErrorCode.NONE:
        raise KafkaError(code)
    topics: dict[str, Topic] = {}
    for (name, number), partition_code in (codes | deleted).items():
        if name not in topics:
            topics[name] = Topic(name=name, partitions=[])
        topics[name].partitions.append(Partition(partition_index=number, error_code=partition_code))
        if slices.is_over():
            yield
    return OffsetDeleteResponse(error_code=ErrorCode.NONE, topics=list(topics.values()))
