"""FindCoordinator (key 10), versions 0 to 3: the broker that coordinates a group or a transactional id.

The coordinator of a group is the leader of its partition of `__consumer_offsets`, and that of a transactional id is the
leader of its partition of `__transaction_state`. Without a leader the answer is COORDINATOR_NOT_AVAILABLE, and clients
retry. The first request creates the topic.
"""

from klamm.broker.request_errors import outcome
from klamm.broker.requests.registry import NO_BROKER, Request, handler
from klamm.broker.requests.security import Operation
from klamm.protocol.apis.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ResourceType

GROUP = 0
TRANSACTION = 1


def error_response(request: Request[FindCoordinatorRequest], error: KafkaError) -> FindCoordinatorResponse:
    return FindCoordinatorResponse(
        **outcome(error),
        node_id=NO_BROKER,
        host="",
        port=-1,
    )


@handler(
    FindCoordinatorRequest, Operation.DESCRIBE, ResourceType.GROUP, error_response=error_response, ends_with_client=True
)
async def handle(request: Request[FindCoordinatorRequest]) -> FindCoordinatorResponse:
    body, services = request.body, request.services
    if body.key_type == GROUP:
        kind, topic = ResourceType.GROUP, services.offsets_topic
    elif body.key_type == TRANSACTION:
        kind, topic = ResourceType.TRANSACTIONAL_ID, services.transaction_topic
    else:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"key type {body.key_type}: allowed are 0 (group), 1 (transaction)")
    request.require(body.key, resource_type=kind)
    node_id, endpoint = await topic.find_coordinator(
        body.key, request.listener_name, request.changes(strict=False, throttles=False)
    )
    return FindCoordinatorResponse(
        **outcome(),
        node_id=node_id,
        host=endpoint.host,
        port=endpoint.port,
    )
