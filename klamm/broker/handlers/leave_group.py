"""LeaveGroup (key 13), versions 0 to 4: a member leaves its group; from version 3 on, several do (KIP-345).

From version 3 on the answer has an error for each member; before, one error for the single member.
"""

from collections.abc import Sequence

from klamm.base.slices import Steps, mapped
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.protocol.apis.leave_group import LeaveGroupRequest, LeaveGroupResponse
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.vocabulary import ResourceType

Member = LeaveGroupResponse.MemberResponse

FIRST_VERSION_WITH_MEMBERS = 3


@handler(LeaveGroupRequest, Operation.READ, ResourceType.GROUP)
def handle(request: Request[LeaveGroupRequest]) -> Steps[LeaveGroupResponse]:
    body = request.body
    request.require(body.group_id)
    members: Sequence[tuple[str, str | None]] = [(body.member_id, None)]
    if request.version >= FIRST_VERSION_WITH_MEMBERS:
        members = yield from mapped(lambda member: (member.member_id, member.group_instance_id), body.members)
    code, left = yield from request.services.group_coordinator.leave_group(body.group_id, members)
    if request.version < FIRST_VERSION_WITH_MEMBERS:
        if code is ErrorCode.NONE:
            code = left[0][2]
        return LeaveGroupResponse(error_code=code)
    answered = lambda one: Member(member_id=one[0], group_instance_id=one[1], error_code=one[2])  # noqa: E731
    return LeaveGroupResponse(error_code=code, members=(yield from mapped(answered, left)))
