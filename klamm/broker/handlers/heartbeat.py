"""Heartbeat (key 12), versions 0 to 4: a member shows that it is alive, and learns whether a rebalance has begun."""

from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.protocol.apis.heartbeat import HeartbeatRequest, HeartbeatResponse
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import ResourceType


def error_response(request: Request[HeartbeatRequest], error: KafkaError) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=error.code)


@handler(
    ApiKey.HEARTBEAT,
    operation=Operation.READ,
    resource_type=ResourceType.GROUP,
    error_response=error_response,
    ends_with_client=True,
)
def handle(request: Request[HeartbeatRequest]) -> HeartbeatResponse:
    body = request.body
    if not request.allows(body.group_id):
        raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    code = request.services.group_coordinator.heartbeat(
        body.group_id, body.generation_id, body.member_id, body.group_instance_id
    )
    return HeartbeatResponse(error_code=code)
