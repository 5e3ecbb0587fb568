"""ListGroups (key 16), versions 0 to 4: the groups that this broker coordinates; from 4 on those in given states.

A client that may not describe the cluster gets only the groups that it may describe.
"""

from klamm.base.slices import Slices
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import CLUSTER_NAME, Operation
from klamm.protocol.apis.list_groups import ListGroupsRequest, ListGroupsResponse
from klamm.protocol.errors import KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.primitives import Steps
from klamm.protocol.vocabulary import ResourceType

Group = ListGroupsResponse.ListedGroup


def error_response(request: Request[ListGroupsRequest], error: KafkaError) -> ListGroupsResponse:
    return ListGroupsResponse(error_code=error.code, groups=[])


@handler(
    ApiKey.LIST_GROUPS,
    operation=Operation.DESCRIBE,
    resource_type=ResourceType.GROUP,
    error_response=error_response,
    ends_with_client=True,
)
async def handle(request: Request[ListGroupsRequest]) -> ListGroupsResponse:
    return await request.services.long_answers.take(_listed(request))


def _listed(request: Request[ListGroupsRequest]) -> Steps[ListGroupsResponse]:
    code, groups = request.services.group_coordinator.list_groups(request.body.states_filter or ())
    on_cluster = request.allows(CLUSTER_NAME, resource_type=ResourceType.CLUSTER)
    listed = []
    slices = Slices()
    for group in groups:
        if on_cluster or request.allows(group.group_id):
            listed.append(
                Group(group_id=group.group_id, protocol_type=group.protocol_type or "", group_state=group.state)
            )
        if slices.is_over():
            yield
    return ListGroupsResponse(error_code=code, groups=listed)
