"""AlterPartitionReassignments (key 45), version 0: moves partitions to other brokers, or cancels moves (KIP-455).

Answered when the reassignments have begun, not when they are complete. Only the controller's broker serves it. The
request's timeout has no effect, as in Kafka, because the answer does not wait.
"""

from klamm.base.slices import each, in_slices
from klamm.broker.handlers.by_partition import by_topic, named_partitions
from klamm.broker.request_errors import outcome
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.protocol.apis.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ResourceType

TopicResult = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
PartitionResult = TopicResult.ReassignablePartitionResponse


@handler(AlterPartitionReassignmentsRequest, Operation.ALTER, ResourceType.CLUSTER)
async def handle(request: Request[AlterPartitionReassignmentsRequest]) -> AlterPartitionReassignmentsResponse:
    request.require_cluster()
    topics = ((topic.name, topic.partitions) for topic in request.body.topics)
    targets = {
        (topic, one.partition_index): None if one.replicas is None else tuple(one.replicas)
        async for topic, one in each(await in_slices(named_partitions(topics)))
    }
    errors = await request.services.controller.alter_partition_reassignments(targets)
    results = ((topic, _result(number, error)) for (topic, number), error in errors.items())
    return AlterPartitionReassignmentsResponse(**outcome(), responses=await in_slices(by_topic(TopicResult, results)))


def _result(number: int, error: KafkaError | None) -> PartitionResult:
    return PartitionResult(
        partition_index=number,
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.message,
    )
