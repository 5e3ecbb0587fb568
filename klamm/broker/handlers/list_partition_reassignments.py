"""ListPartitionReassignments (key 46), version 0: the reassignments in progress with their replicas (KIP-455).

Partitions without a reassignment, and those that do not exist, are left out. Only the controller's broker serves it.
"""

from typing import Any

from klamm.base.slices import in_slices
from klamm.broker.handlers.by_partition import by_topic, named_partitions
from klamm.broker.request_errors import outcome
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.protocol.apis.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from klamm.protocol.vocabulary import ResourceType

Topic = ListPartitionReassignmentsResponse.OngoingTopicReassignment
Partition = Topic.OngoingPartitionReassignment


@handler(ListPartitionReassignmentsRequest, Operation.DESCRIBE, ResourceType.CLUSTER, ends_with_client=True)
async def handle(request: Request[ListPartitionReassignmentsRequest]) -> ListPartitionReassignmentsResponse:
    request.require_cluster()
    wanted = None
    if request.body.topics is not None:
        wanted = await in_slices(named_partitions((one.name, one.partition_indexes) for one in request.body.topics))
    listed = await request.services.controller.list_partition_reassignments(wanted)
    partitions = ((topic, _partition(number, assignment)) for (topic, number), assignment in listed.items())
    return ListPartitionReassignmentsResponse(**outcome(), topics=await in_slices(by_topic(Topic, partitions)))


def _partition(number: int, assignment: Any) -> Partition:
    return Partition(
        partition_index=number,
        replicas=list(assignment.replicas),
        adding_replicas=list(assignment.adding_replicas),
        removing_replicas=list(assignment.removing_replicas),
    )
