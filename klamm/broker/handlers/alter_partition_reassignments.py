"""AlterPartitionReassignments (key 45), version 0: moves partitions to other brokers, or cancels that (KIP-455).

Answered when the reassignments have begun, not when they are complete. Only the controller's broker serves it. The
request's timeout has no effect, as in Kafka, because the answer waits for nothing.
"""

from collections.abc import Mapping

from klamm.base.slices import Slices, in_slices
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.protocol.apis.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.primitives import Steps
from klamm.protocol.vocabulary import PartitionKey, ResourceType

# The number of partitions that are translated before others have the loop: about a millisecond.
PARTITIONS_PER_SLICE = 1000

TopicResult = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
PartitionResult = TopicResult.ReassignablePartitionResponse


def error_response(
    request: Request[AlterPartitionReassignmentsRequest], error: KafkaError
) -> AlterPartitionReassignmentsResponse:
    return AlterPartitionReassignmentsResponse(error_code=error.code, error_message=error.message or None, responses=[])


@handler(
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    operation=Operation.ALTER,
    resource_type=ResourceType.CLUSTER,
    error_response=error_response,
)
async def handle(request: Request[AlterPartitionReassignmentsRequest]) -> AlterPartitionReassignmentsResponse:
    request.require_cluster()
    targets = await in_slices(_targets(request))
    errors = await request.services.controller.alter_partition_reassignments(targets)
    return await in_slices(_response(errors))


def _targets(
    request: Request[AlterPartitionReassignmentsRequest],
) -> Steps[dict[PartitionKey, tuple[int, ...] | None]]:
    targets: dict[PartitionKey, tuple[int, ...] | None] = {}
    slices = Slices(PARTITIONS_PER_SLICE)
    for topic in request.body.topics:
        for partition in topic.partitions:
            replicas = partition.replicas
            targets[topic.name, partition.partition_index] = None if replicas is None else tuple(replicas)
            if slices.is_over():
                yield
    return targets


def _response(errors: Mapping[PartitionKey, KafkaError | None]) -> Steps[AlterPartitionReassignmentsResponse]:
    results: dict[str, TopicResult] = {}
    slices = Slices(PARTITIONS_PER_SLICE)
    for (topic, number), error in errors.items():
        result = PartitionResult(
            partition_index=number,
            error_code=ErrorCode.NONE if error is None else error.code,
            error_message=None if error is None else error.message,
        )
        if topic not in results:
            results[topic] = TopicResult(name=topic, partitions=[])
        results[topic].partitions.append(result)
        if slices.is_over():
            yield
    return AlterPartitionReassignmentsResponse(
        error_code=ErrorCode.NONE,
        error_message=None,
        responses=list(results.values()),
    )
