"""OffsetDelete (key 47), version 0: deletes a group's committed offsets of partitions (KIP-496).

Offsets of topics that a member subscribes to stay, with GROUP_SUBSCRIBED_TO_TOPIC.
"""

from klamm.base.slices import Steps
from klamm.broker.handlers.by_partition import by_topic, sorted_out
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.protocol.apis.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ResourceType

Topic = OffsetDeleteResponse.OffsetDeleteResponseTopic
Partition = Topic.OffsetDeleteResponsePartition


@handler(OffsetDeleteRequest, Operation.DELETE, ResourceType.GROUP)
def handle(request: Request[OffsetDeleteRequest]) -> Steps[OffsetDeleteResponse]:
    body, services = request.body, request.services
    request.require(body.group_id)
    topics = ((topic.name, topic.partitions) for topic in body.topics)
    allows = lambda topic: request.allows(topic, Operation.READ, ResourceType.TOPIC)  # noqa: E731
    refused, wanted = yield from sorted_out(request, topics, allows, lambda _: None)
    code, deleted = yield from services.group_coordinator.delete_offsets(body.group_id, list(wanted))
    if code is not ErrorCode.NONE:
        raise KafkaError(code)
    answers = (
        (topic, Partition(partition_index=number, error_code=code))
        for (topic, number), code in (refused | deleted).items()
    )
    return OffsetDeleteResponse(error_code=ErrorCode.NONE, topics=(yield from by_topic(Topic, answers)))
