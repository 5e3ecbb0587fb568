"""Heartbeat (key 12), versions 0 to 4: a member shows that it is alive, and learns whether a rebalance has begun."""

from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.protocol.apis.heartbeat import HeartbeatRequest, HeartbeatResponse
from klamm.protocol.vocabulary import ResourceType


@handler(HeartbeatRequest, Operation.READ, ResourceType.GROUP, ends_with_client=True)
def handle(request: Request[HeartbeatRequest]) -> HeartbeatResponse:
    body = request.body
    request.require(body.group_id)
    code = request.services.group_coordinator.heartbeat(
        body.group_id, body.generation_id, body.member_id, body.group_instance_id
    )
    return HeartbeatResponse(error_code=code)
