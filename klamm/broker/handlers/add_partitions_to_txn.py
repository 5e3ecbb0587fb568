"""AddPartitionsToTxn (key 24), versions 0 to 3: partitions that a transaction is about to write to.

All partitions are added, or none: if one is refused, the others get OPERATION_NOT_ATTEMPTED. Internal topics are
refused with TOPIC_AUTHORIZATION_FAILED, as in Kafka: clients do not write to them.
"""

from collections.abc import Awaitable, Callable
from functools import partial

from klamm.base.slices import CHEAP_SLICE, Slices, in_slices
from klamm.broker.handlers.fenced_producers import code_for
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.net.exchange import AnswerOnly
from klamm.protocol.apis.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.primitives import Steps
from klamm.protocol.vocabulary import INTERNAL_TOPICS, PartitionKey, ResourceType

Partition = AddPartitionsToTxnTopicResult.AddPartitionsToTxnPartitionResult

FIRST_VERSION_WITH_PRODUCER_FENCED = 2


def error_response(request: Request[AddPartitionsToTxnRequest], error: KafkaError) -> Steps[AddPartitionsToTxnResponse]:
    return _response(request.body, lambda _: error.code)


@handler(
    ApiKey.ADD_PARTITIONS_TO_TXN,
    operation=Operation.WRITE,
    resource_type=ResourceType.TRANSACTIONAL_ID,
    error_response=error_response,
)
def handle(request: Request[AddPartitionsToTxnRequest]) -> Steps[object]:
    body, services = request.body, request.services
    transactional_id = body.v3_and_below_transactional_id
    if not request.allows(transactional_id):
        raise KafkaError(request.denied)
    refused: dict[PartitionKey, ErrorCode] = {}
    partitions: dict[PartitionKey, None] = {}
    slices = Slices(CHEAP_SLICE)
    for topic in body.v3_and_below_topics:
        error = _topic_error(request, topic.name)
        known = services.metadata_cache.snapshot.topics.get(topic.name, ())
        for number in topic.partitions:
            if error is not None:
                refused[topic.name, number] = error
            elif number not in known:
                refused[topic.name, number] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                partitions[topic.name, number] = None
            if slices.is_over():
                yield
    if refused:
        return (yield from _response(body, lambda key: refused.get(key, ErrorCode.OPERATION_NOT_ATTEMPTED)))
    added = services.transaction_coordinator.add_partitions(
        transactional_id, body.v3_and_below_producer_id, body.v3_and_below_producer_epoch, partitions
    )
    if added.done():
        return (yield from _added(request, added.result()))
    # The coordinator's work does not end with the client.
    return AnswerOnly(partial(_answer_later, request, added))


async def _answer_later(
    request: Request[AddPartitionsToTxnRequest], added: Awaitable[ErrorCode]
) -> AddPartitionsToTxnResponse:
    return await in_slices(_added(request, await added))


def _added(request: Request[AddPartitionsToTxnRequest], code: ErrorCode) -> Steps[AddPartitionsToTxnResponse]:
    code = code_for(request, code, FIRST_VERSION_WITH_PRODUCER_FENCED)
    return _response(request.body, lambda _: code)


def _topic_error(request: Request[AddPartitionsToTxnRequest], topic: str) -> ErrorCode | None:
    if topic in INTERNAL_TOPICS or not request.allows(topic, resource_type=ResourceType.TOPIC):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return None


def _response(
    body: AddPartitionsToTxnRequest, code_of: Callable[[PartitionKey], ErrorCode]
) -> Steps[AddPartitionsToTxnResponse]:
    topics = []
    slices = Slices(CHEAP_SLICE)
    for topic in body.v3_and_below_topics:
        answer = AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=[])
        topics.append(answer)
        for number in topic.partitions:
            code = code_of((topic.name, number))
            answer.results_by_partition.append(Partition(partition_index=number, partition_error_code=code))
            if slices.is_over():
                yield
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)
