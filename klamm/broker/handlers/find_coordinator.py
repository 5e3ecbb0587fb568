"""FindCoordinator (key 10), versions 0 to 3: which broker coordinates a group or a transactional id.

The coordinator of a group is the leader of its partition of `__consumer_offsets`, that of a transactional id the leader
of its partition of `__transaction_state`. While there is none, the answer is COORDINATOR_NOT_AVAILABLE, which clients
retry. The first request creates the topic.
"""

from klamm.broker.requests.registry import DENIED, NO_BROKER, Request, handler
from klamm.broker.requests.security import Operation
from klamm.protocol.apis.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import ResourceType

GROUP = 0
TRANSACTION = 1


def error_response(request: Request[FindCoordinatorRequest], error: KafkaError) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(
        error_code=error.code,
        error_message=error.message or None,
        node_id=NO_BROKER,
        host="",
        port=-1,
    )


@handler(
    ApiKey.FIND_COORDINATOR,
    operation=Operation.DESCRIBE,
    resource_type=ResourceType.GROUP,
    error_response=error_response,
    ends_with_client=True,
)
async def handle(request: Request[FindCoordinatorRequest]) -> FindCoordinatorResponse:
    body, services = request.body, request.services
    if body.key_type == GROUP:
        kind, topic = ResourceType.GROUP, services.offsets_topic
    elif body.key_type == TRANSACTION:
        kind, topic = ResourceType.TRANSACTIONAL_ID, services.transaction_topic
    else:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"key type {body.key_type}: allowed are 0 (group), 1 (transaction)")
    if not request.allows(body.key, resource_type=kind):
        raise KafkaError(DENIED[kind])
    node_id, endpoint = await topic.find_coordinator(
        body.key, request.listener_name, request.changes(strict=False, throttles=False)
    )
    return FindCoordinatorResponse(
        error_code=ErrorCode.NONE,
        error_message=None,
        node_id=node_id,
        host=endpoint.host,
        port=endpoint.port,
    )
