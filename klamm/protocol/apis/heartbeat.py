"""Heartbeat (key 12): a member of a group is alive.

Versions: 1 throttle time; 3 group instance id (KIP-345); 4 flexible.
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import SMALL, Int16, Int32, Request, Response, String, field


class HeartbeatRequest(Request["HeartbeatResponse"], api=ApiKey.HEARTBEAT, versions="0-4", flexible="4+", size=SMALL):
    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: String | None = field("3+", default=None)


class HeartbeatResponse(Response):
    throttle_time_ms: Int32 = field("1+", default=0)
    error_code: Int16
