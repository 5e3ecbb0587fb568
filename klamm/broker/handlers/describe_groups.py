"""DescribeGroups (key 15), versions 0 to 5: state and members of groups that this broker coordinates.

A group that does not exist is Dead. From version 3 on a client may ask for its authorized operations (KIP-430). A group
that is named more than once is described once: its members may be much larger than its name in the request.
"""

from klamm.base.slices import Slices, Steps, mapped
from klamm.broker.requests.registry import Request, handler, long_answer
from klamm.broker.requests.security import Operation
from klamm.protocol.apis.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ResourceType

Group = DescribeGroupsResponse.DescribedGroup
Member = Group.DescribedGroupMember

# A slice describes this many groups and members together; fewer with longer names or with more data for each.
GROUPS_PER_SLICE = 500
CHARACTERS_PER_PIECE = 50
BYTES_PER_PIECE = 2_000


def error_response(request: Request[DescribeGroupsRequest], error: KafkaError) -> Steps[DescribeGroupsResponse]:
    groups = yield from mapped(lambda group_id: _failed(group_id, error.code), dict.fromkeys(request.body.groups))
    return DescribeGroupsResponse(groups=groups)


@handler(
    DescribeGroupsRequest, Operation.DESCRIBE, ResourceType.GROUP, error_response=error_response, ends_with_client=True
)
@long_answer
def handle(request: Request[DescribeGroupsRequest]) -> Steps[DescribeGroupsResponse]:
    groups = []
    slices = Slices(GROUPS_PER_SLICE)
    for group_id in dict.fromkeys(request.body.groups):
        groups.append((yield from _describe(request, group_id, slices)))
        if slices.spend(1 + len(group_id) // CHARACTERS_PER_PIECE):
            yield
    return DescribeGroupsResponse(groups=groups)


def _describe(request: Request[DescribeGroupsRequest], group_id: str, slices: Slices) -> Steps[Group]:
    if not request.allows(group_id):
        return _failed(group_id, request.denied)
    code, group = yield from request.services.group_coordinator.describe_group(group_id)
    if code is not ErrorCode.NONE:
        return _failed(group_id, code)
    members = []
    for member in group.members:
        members.append(
            Member(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
        )
        if slices.spend(1 + (len(member.metadata) + len(member.assignment)) // BYTES_PER_PIECE):
            yield
    wants_operations = request.body.include_authorized_operations
    return Group(
        error_code=code,
        group_id=group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol,
        members=members,
        authorized_operations=request.authorized_operations(ResourceType.GROUP, group_id) if wants_operations else None,
    )


def _failed(group_id: str, code: ErrorCode) -> Group:
    return Group(
        error_code=code,
        group_id=group_id,
        group_state="",
        protocol_type="",
        protocol_data="",
        members=[],
        authorized_operations=None,
    )
