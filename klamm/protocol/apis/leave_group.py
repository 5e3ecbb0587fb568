"""LeaveGroup (key 13): members leave their group.

Versions: 1 throttle time; 3 several members (KIP-345); 4 flexible; 5 reason (KIP-800).
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import SMALL, Int16, Int32, Request, Response, String, Struct, field


class LeaveGroupRequest(
    Request["LeaveGroupResponse"], api=ApiKey.LEAVE_GROUP, versions="0-4", known="0-5", flexible="4+", size=SMALL
):
    class MemberIdentity(Struct):
        member_id: String
        group_instance_id: String | None = None
        reason: String | None = field("5+", default=None)

    group_id: String
    member_id: String = field("0-2", default="")
    members: list[MemberIdentity] = field("3+", default=[])


class LeaveGroupResponse(Response):
    class MemberResponse(Struct):
        member_id: String
        group_instance_id: String | None
        error_code: Int16

    throttle_time_ms: Int32 = field("1+", default=0)
    error_code: Int16
    members: list[MemberResponse] = field("3+", default=[])
