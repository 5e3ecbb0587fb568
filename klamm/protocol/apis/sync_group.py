"""SyncGroup (key 14): the leader of a group hands in the assignment, and each member gets its own.

Versions: 1 throttle time; 3 group instance id (KIP-345); 4 flexible; 5 protocol type and name (KIP-559).
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, Bytes, Int16, Int32, Request, Response, String, Struct, field


class SyncGroupRequest(Request["SyncGroupResponse"], api=ApiKey.SYNC_GROUP, versions="0-5", flexible="4+", size=LIST):
    class SyncGroupRequestAssignment(Struct):
        member_id: String
        assignment: Bytes

    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: String | None = field("3+", default=None)
    protocol_type: String | None = field("5+", default=None)
    protocol_name: String | None = field("5+", default=None)
    assignments: list[SyncGroupRequestAssignment]


class SyncGroupResponse(Response):
    throttle_time_ms: Int32 = field("1+", default=0)
    error_code: Int16
    protocol_type: String | None = field("5+", default=None)
    protocol_name: String | None = field("5+", default=None)
    assignment: Bytes
