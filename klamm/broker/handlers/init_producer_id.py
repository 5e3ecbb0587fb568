"""InitProducerId (key 22), versions 0 to 4: a producer id for an idempotent producer (KIP-98, KIP-360).

Transactional producers are refused at once and for good with TRANSACTIONAL_ID_AUTHORIZATION_FAILED (see
FindCoordinator). While ZooKeeper, where ids come from, has no session for this broker, the answer is
COORDINATOR_LOAD_IN_PROGRESS. As in Kafka, an idempotent producer that names its last id and epoch gets a new id all the
same.
"""

from klamm.broker.registry import Request, handler
from klamm.broker.security import CLUSTER_NAME, Operation
from klamm.protocol.apis.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import ResourceType
from klamm.zookeeper.errors import ZooKeeperError


def error_response(request: Request[InitProducerIdRequest], error: KafkaError) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error.code, producer_id=-1, producer_epoch=-1)


@handler(
    ApiKey.INIT_PRODUCER_ID,
    operation=Operation.IDEMPOTENT_WRITE,
    resource_type=ResourceType.CLUSTER,
    error_response=error_response,
)
async def handle(request: Request[InitProducerIdRequest]) -> InitProducerIdResponse:
    body = request.body
    if body.transactional_id == "":
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
    if body.transactional_id is not None:
        raise KafkaError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "this version of klamm has no transaction coordinator"
        )
    if not request.allows(CLUSTER_NAME):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    try:
        producer_id = await request.services.producer_ids.next()
    except ZooKeeperError as error:
        # Every client retries after this error; with most other codes Java's producer fails for good.
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"ZooKeeper: {error}") from error
    return InitProducerIdResponse(error_code=ErrorCode.NONE, producer_id=producer_id, producer_epoch=0)
