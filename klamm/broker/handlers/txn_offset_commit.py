"""TxnOffsetCommit (key 28), versions 0 to 3: how far a group has read, as a part of a transaction.

The coordinator of the group keeps the offsets back until the transaction ends. Each missing partition is refused by
itself. From version 3 on the client says which member of the group it is (KIP-447).
"""

from collections.abc import Callable

from klamm.base.slices import Slices, in_slices
from klamm.broker.handlers.committed_offsets import committed_offsets
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.coordinator.ports import TransactionalProducer
from klamm.protocol.apis.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.primitives import Steps
from klamm.protocol.vocabulary import PartitionKey, ResourceType

Topic = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
Partition = Topic.TxnOffsetCommitResponsePartition

# Older producers fail at COORDINATOR_LOAD_IN_PROGRESS.
FIRST_VERSION_WITH_LOAD_IN_PROGRESS = 2


def error_response(request: Request[TxnOffsetCommitRequest], error: KafkaError) -> Steps[TxnOffsetCommitResponse]:
    return _response(request, lambda _: error.code)


@handler(
    ApiKey.TXN_OFFSET_COMMIT,
    operation=Operation.WRITE,
    resource_type=ResourceType.TRANSACTIONAL_ID,
    error_response=error_response,
)
async def handle(request: Request[TxnOffsetCommitRequest]) -> TxnOffsetCommitResponse:
    body, services = request.body, request.services
    if not request.allows(body.transactional_id):
        raise KafkaError(request.denied)
    if not request.allows(body.group_id, Operation.READ, ResourceType.GROUP):
        raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    now_ms = services.environment.now_ms()
    codes, offsets = await in_slices(committed_offsets(request, now_ms))
    if offsets:
        codes |= await services.group_coordinator.commit_transactional_offsets(
            body.group_id,
            body.generation_id,
            body.member_id,
            body.group_instance_id,
            TransactionalProducer(body.producer_id, body.producer_epoch),
            offsets,
        )
    return await in_slices(_response(request, codes.__getitem__))


def _response(
    request: Request[TxnOffsetCommitRequest], code_of: Callable[[PartitionKey], ErrorCode]
) -> Steps[TxnOffsetCommitResponse]:
    topics = []
    slices = Slices()
    for topic in request.body.topics:
        answer = Topic(name=topic.name, partitions=[])
        topics.append(answer)
        for one in topic.partitions:
            number = one.partition_index
            code = _known_code(request, code_of((topic.name, number)))
            answer.partitions.append(Partition(partition_index=number, error_code=code))
            if slices.is_over():
                yield
    return TxnOffsetCommitResponse(topics=topics)


def _known_code(request: Request[TxnOffsetCommitRequest], code: ErrorCode) -> ErrorCode:
    if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and request.version < FIRST_VERSION_WITH_LOAD_IN_PROGRESS:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code
