"""ListPartitionReassignments (key 46), version 0: which partitions are being moved, and from where to where (KIP-455).

Partitions that are not being moved, and those that do not exist, are left out. Only the controller's broker serves it.
"""

from collections.abc import Mapping
from typing import Any

from klamm.base.slices import Slices, in_slices
from klamm.broker.handlers.named_partitions import named_partitions
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.protocol.apis.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.primitives import Steps
from klamm.protocol.vocabulary import PartitionKey, ResourceType

# The number of partitions that are translated before others have the loop: about two milliseconds.
PARTITIONS_PER_SLICE = 1000

Topic = ListPartitionReassignmentsResponse.OngoingTopicReassignment
Partition = Topic.OngoingPartitionReassignment


def error_response(
    request: Request[ListPartitionReassignmentsRequest], error: KafkaError
) -> ListPartitionReassignmentsResponse:
    return ListPartitionReassignmentsResponse(error_code=error.code, error_message=error.message or None, topics=[])


@handler(
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    operation=Operation.DESCRIBE,
    resource_type=ResourceType.CLUSTER,
    error_response=error_response,
    ends_with_client=True,
)
async def handle(request: Request[ListPartitionReassignmentsRequest]) -> ListPartitionReassignmentsResponse:
    request.require_cluster()
    wanted = None
    if request.body.topics is not None:
        wanted = await in_slices(named_partitions((one.name, one.partition_indexes) for one in request.body.topics))
    listed = await request.services.controller.list_partition_reassignments(wanted)
    return await in_slices(_response(listed))


def _response(listed: Mapping[PartitionKey, Any]) -> Steps[ListPartitionReassignmentsResponse]:
    found: dict[str, Topic] = {}
    slices = Slices(PARTITIONS_PER_SLICE)
    for (topic, number), assignment in listed.items():
        partition = Partition(
            partition_index=number,
            replicas=list(assignment.replicas),
            adding_replicas=list(assignment.adding_replicas),
            removing_replicas=list(assignment.removing_replicas),
        )
        if topic not in found:
            found[topic] = Topic(name=topic, partitions=[])
        found[topic].partitions.append(partition)
        if slices.is_over():
            yield
    return ListPartitionReassignmentsResponse(
        error_code=ErrorCode.NONE,
        error_message=None,
        topics=list(found.values()),
    )
