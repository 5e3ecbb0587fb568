"""Heartbeat (key 12), versions 0 to 4: a member is alive, and hears whether its generation still is."""

from klamm.broker.registry import Body, Request, handler
from klamm.broker.security import Operation, ResourceType
from klamm.protocol import messages
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey

Response = messages.response_class(ApiKey.HEARTBEAT)


def error_response(request: Request, error: KafkaError) -> Body:
    return Response(version=request.version, error_code=error.code)


@handler(
    ApiKey.HEARTBEAT,
    operation=Operation.READ,
    resource_type=ResourceType.GROUP,
    error_response=error_response,
    ends_with_client=True,
)
def handle(request: Request) -> Body:
    body = request.body
    if not request.allows(body.group_id):
        raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    code = request.services.group_coordinator.heartbeat(
        body.group_id, body.generation_id, body.member_id, body.group_instance_id
    )
    return Response(version=request.version, error_code=code)
