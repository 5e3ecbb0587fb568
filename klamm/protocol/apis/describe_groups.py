"""DescribeGroups (key 15): the state and members of groups.

Versions: 1 throttle time; 3 authorized operations (KIP-430); 4 group instance id (KIP-345); 5 flexible; 6 error message
(KIP-1043).
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, BitField, Bool, Bytes, Int16, Int32, Request, Response, String, Struct, field


class DescribeGroupsRequest(
    Request["DescribeGroupsResponse"],
    api=ApiKey.DESCRIBE_GROUPS,
    versions="0-5",
    known="0-6",
    flexible="5+",
    size=LIST,
):
    groups: list[String]
    include_authorized_operations: Bool = field("3+", default=False)


class DescribeGroupsResponse(Response):
    class DescribedGroup(Struct):
        class DescribedGroupMember(Struct):
            member_id: String
            group_instance_id: String | None = field("4+", default=None)
            client_id: String
            client_host: String
            member_metadata: Bytes
            member_assignment: Bytes

        error_code: Int16
        error_message: String | None = field("6+", default=None)
        group_id: String
        group_state: String
        protocol_type: String
        protocol_data: String
        members: list[DescribedGroupMember]
        authorized_operations: BitField = field("3+", default=None)

    throttle_time_ms: Int32 = field("1+", default=0)
    groups: list[DescribedGroup]
