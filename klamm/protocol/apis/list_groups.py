"""ListGroups (key 16): the groups that a broker coordinates.

Versions: 1 throttle time; 3 flexible; 4 states (KIP-518); 5 types (KIP-848).
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import SMALL, Int16, Int32, Request, Response, String, Struct, field


class ListGroupsRequest(
    Request["ListGroupsResponse"], api=ApiKey.LIST_GROUPS, versions="0-4", known="0-5", flexible="3+", size=SMALL
):
    states_filter: list[String] = field("4+", default=[])
    types_filter: list[String] = field("5+", default=[])


class ListGroupsResponse(Response):
    class ListedGroup(Struct):
        group_id: String
        protocol_type: String
        group_state: String = field("4+", default="")
        group_type: String = field("5+", default="")

    throttle_time_ms: Int32 = field("1+", default=0)
    error_code: Int16
    groups: list[ListedGroup]
