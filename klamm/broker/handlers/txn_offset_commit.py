"""TxnOffsetCommit (key 28), versions 0 to 3: commits a group's offsets in a transaction.

The group coordinator keeps the offsets pending until the transaction ends. Missing partitions are refused one by one.
From version 3 on the client tells its member id and generation (KIP-447).
"""

from collections.abc import Callable

from klamm.base.slices import Steps, in_slices
from klamm.broker.handlers.by_partition import by_partition
from klamm.broker.handlers.committed_offsets import committed_offsets
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.coordinator.ports import TransactionalProducer
from klamm.protocol.apis.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import PartitionKey, ResourceType

Committed = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic.TxnOffsetCommitRequestPartition
Topic = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
Partition = Topic.TxnOffsetCommitResponsePartition

# Older producers fail at COORDINATOR_LOAD_IN_PROGRESS.
FIRST_VERSION_WITH_LOAD_IN_PROGRESS = 2


def error_response(request: Request[TxnOffsetCommitRequest], error: KafkaError) -> Steps[TxnOffsetCommitResponse]:
    return _response(request, lambda _: error.code)


@handler(TxnOffsetCommitRequest, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, error_response=error_response)
async def handle(request: Request[TxnOffsetCommitRequest]) -> TxnOffsetCommitResponse:
    body, services = request.body, request.services
    request.require(body.transactional_id)
    request.require(body.group_id, Operation.READ, ResourceType.GROUP)
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
    def answer(topic: str, one: Committed) -> Partition:
        code = _known_code(request, code_of((topic, one.partition_index)))
        return Partition(partition_index=one.partition_index, error_code=code)

    topics = ((topic.name, topic.partitions) for topic in request.body.topics)
    return TxnOffsetCommitResponse(topics=(yield from by_partition(Topic, topics, answer)))


def _known_code(request: Request[TxnOffsetCommitRequest], code: ErrorCode) -> ErrorCode:
    if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and request.version < FIRST_VERSION_WITH_LOAD_IN_PROGRESS:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code
