"""JoinGroup (key 11): a member enters a rebalance of its group.

Versions: 1 rebalance timeout; 2 throttle time; 4 a new member gets its id first and joins again (KIP-394); 5 group
instance id (KIP-345); 6 flexible; 7 protocol type in the response (KIP-559); 8 reason (KIP-800); 9 the leader may skip
the assignment (KIP-814).
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, Bool, Bytes, Int16, Int32, Request, Response, String, Struct, field


class JoinGroupRequest(
    Request["JoinGroupResponse"], api=ApiKey.JOIN_GROUP, versions="0-7", known="0-9", flexible="6+", size=LIST
):
    class JoinGroupRequestProtocol(Struct):
        name: String
        metadata: Bytes

    group_id: String
    session_timeout_ms: Int32
    rebalance_timeout_ms: Int32 = field("1+", default=-1)
    member_id: String
    group_instance_id: String | None = field("5+", default=None)
    protocol_type: String
    protocols: list[JoinGroupRequestProtocol]
    reason: String | None = field("8+", default=None)


class JoinGroupResponse(Response):
    class JoinGroupResponseMember(Struct):
        member_id: String
        group_instance_id: String | None = field("5+", default=None)
        metadata: Bytes

    throttle_time_ms: Int32 = field("2+", default=0)
    error_code: Int16
    generation_id: Int32 = -1
    protocol_type: String | None = field("7+", default=None)
    protocol_name: String | None = field(nullable="7+")
    leader: String
    skip_assignment: Bool = field("9+", default=False)
    member_id: String
    members: list[JoinGroupResponseMember]
