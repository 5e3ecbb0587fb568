"""InitProducerId (key 22), versions 0 to 4: a producer id for an idempotent producer, or the producer id and the next
epoch for a transactional one (KIP-98, KIP-360).

A transactional id with an open transaction gets CONCURRENT_TRANSACTIONS while the transaction is being aborted; the
client retries. Ids come from ZooKeeper: without a session the answer is COORDINATOR_LOAD_IN_PROGRESS. As in Kafka, an
idempotent producer gets a new id even if it names its last id and epoch.
"""

from klamm.broker.handlers.fenced_producers import code_for
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.coordinator.transactions.transaction import ProducerIdAndEpoch
from klamm.protocol.apis.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.record_batch import NO_PRODUCER_ID
from klamm.protocol.vocabulary import NO_EPOCH, ResourceType

FIRST_VERSION_WITH_PRODUCER_FENCED = 4


def error_response(request: Request[InitProducerIdRequest], error: KafkaError) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error.code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH)


@handler(InitProducerIdRequest, Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, error_response=error_response)
async def handle(request: Request[InitProducerIdRequest]) -> InitProducerIdResponse:
    body = request.body
    if body.transactional_id is None:
        request.require_cluster()
    else:
        request.require(body.transactional_id, Operation.WRITE, ResourceType.TRANSACTIONAL_ID)
    result = await request.services.transaction_coordinator.init_producer_id(
        body.transactional_id, body.transaction_timeout_ms, _expected(body)
    )
    return InitProducerIdResponse(
        error_code=code_for(request, result.error_code, FIRST_VERSION_WITH_PRODUCER_FENCED),
        producer_id=result.producer_id,
        producer_epoch=result.producer_epoch,
    )


def _expected(body: InitProducerIdRequest) -> ProducerIdAndEpoch | None:
    """The producer's current id and epoch; None for a new producer."""
    if (body.producer_id == NO_PRODUCER_ID) is not (body.producer_epoch == NO_EPOCH):
        reason = f"producer id {body.producer_id} with epoch {body.producer_epoch}: both are needed, or neither"
        raise KafkaError(ErrorCode.INVALID_REQUEST, reason)
    return None if body.producer_id == NO_PRODUCER_ID else ProducerIdAndEpoch(body.producer_id, body.producer_epoch)
