"""AddOffsetsToTxn (key 25), versions 0 to 3: adds a group whose offsets a transaction is about to commit.

The group's partition of `__consumer_offsets` becomes a partition of the transaction. If the topic does not exist yet,
it is created; the answer is then COORDINATOR_NOT_AVAILABLE, and the client retries.
"""

from klamm.broker.handlers.fenced_producers import code_for
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.coordinator.groups.group_metadata_manager import UNKNOWN_PARTITION
from klamm.protocol.apis.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ResourceType

FIRST_VERSION_WITH_PRODUCER_FENCED = 2


@handler(AddOffsetsToTxnRequest, Operation.WRITE, ResourceType.TRANSACTIONAL_ID)
async def handle(request: Request[AddOffsetsToTxnRequest]) -> AddOffsetsToTxnResponse:
    body, services = request.body, request.services
    request.require(body.transactional_id)
    request.require(body.group_id, Operation.READ, ResourceType.GROUP)
    partition = services.offsets_topic.partition_for(body.group_id)
    if partition == UNKNOWN_PARTITION:
        await services.offsets_topic.find_coordinator(
            body.group_id, request.listener_name, request.changes(strict=False, throttles=False)
        )
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    code = await services.transaction_coordinator.add_partitions(
        body.transactional_id, body.producer_id, body.producer_epoch, [(services.offsets_topic.name, partition)]
    )
    return AddOffsetsToTxnResponse(error_code=code_for(request, code, FIRST_VERSION_WITH_PRODUCER_FENCED))
