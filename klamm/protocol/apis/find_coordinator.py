"""FindCoordinator (key 10): the broker that coordinates a group or a transactional id.

Versions: 1 key type, throttle time, error message; 3 flexible; 4 several keys (KIP-699).
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import SMALL, Int8, Int16, Int32, Request, Response, String, Struct, field


class FindCoordinatorRequest(
    Request["FindCoordinatorResponse"],
    api=ApiKey.FIND_COORDINATOR,
    versions="0-3",
    known="0-6",
    flexible="3+",
    size=SMALL,
):
    key: String = field("0-3", default="")
    key_type: Int8 = field("1+", default=0)
    coordinator_keys: list[String] = field("4+", default=[])


class FindCoordinatorResponse(Response):
    class Coordinator(Struct):
        key: String
        node_id: Int32
        host: String
        port: Int32
        error_code: Int16
        error_message: String | None = ""

    throttle_time_ms: Int32 = field("1+", default=0)
    error_code: Int16 = field("0-3", default=0)
    error_message: String | None = field("1-3", default="")
    node_id: Int32 = field("0-3", default=0)
    host: String = field("0-3", default="")
    port: Int32 = field("0-3", default=0)
    coordinators: list[Coordinator] = field("4+", default=[])
