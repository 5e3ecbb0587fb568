"""ListGroups (key 16), versions 0 to 4: the groups that this broker coordinates; from 4 on those in given states.

A client that may not describe the cluster gets only the groups that it may describe.
"""

from klamm.base.slices import Slices, Steps
from klamm.broker.requests.registry import Request, handler, long_answer
from klamm.broker.requests.security import CLUSTER_NAME, Operation
from klamm.protocol.apis.list_groups import ListGroupsRequest, ListGroupsResponse
from klamm.protocol.vocabulary import ResourceType

Group = ListGroupsResponse.ListedGroup


@handler(ListGroupsRequest, Operation.DESCRIBE, ResourceType.GROUP, ends_with_client=True)
@long_answer
def handle(request: Request[ListGroupsRequest]) -> Steps[ListGroupsResponse]:
    code, groups = request.services.group_coordinator.list_groups(request.body.states_filter or ())
    on_cluster = request.allows(CLUSTER_NAME, resource_type=ResourceType.CLUSTER)
    listed = []
    slices = Slices()
    for group in groups:
        if on_cluster or request.allows(group.group_id):
            listed.append(
                Group(group_id=group.group_id, protocol_type=group.protocol_type or "", group_state=group.state)
            )
        if slices.spend():
            yield
    return ListGroupsResponse(error_code=code, groups=listed)
