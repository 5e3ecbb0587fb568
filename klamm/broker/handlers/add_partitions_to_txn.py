"""AddPartitionsToTxn (key 24), versions 0 to 3: adds partitions that a transaction is about to write to.

Either all partitions are added or no partition: if one is refused, the others get OPERATION_NOT_ATTEMPTED. Internal
topics are refused with TOPIC_AUTHORIZATION_FAILED, as in Kafka: clients do not write to them.
"""

from collections.abc import Awaitable, Callable
from functools import partial

from klamm.base.slices import Steps, in_slices
from klamm.broker.handlers.by_partition import by_partition, sorted_out
from klamm.broker.handlers.fenced_producers import code_for
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.net.server.exchange import AnswerOnly
from klamm.protocol.apis.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import INTERNAL_TOPICS, ResourceType

Partition = AddPartitionsToTxnTopicResult.AddPartitionsToTxnPartitionResult

FIRST_VERSION_WITH_PRODUCER_FENCED = 2


def error_response(request: Request[AddPartitionsToTxnRequest], error: KafkaError) -> Steps[AddPartitionsToTxnResponse]:
    return _response(request.body, lambda *_: error.code)


@handler(AddPartitionsToTxnRequest, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, error_response=error_response)
def handle(request: Request[AddPartitionsToTxnRequest]) -> Steps[object]:
    body, services = request.body, request.services
    transactional_id = body.v3_and_below_transactional_id
    request.require(transactional_id)
    topics = ((topic.name, topic.partitions) for topic in body.v3_and_below_topics)
    refused, partitions = yield from sorted_out(request, topics, partial(_allows, request), lambda _: None)
    if refused:
        return (yield from _response(body, lambda *key: refused.get(key, ErrorCode.OPERATION_NOT_ATTEMPTED)))
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
    return _response(request.body, lambda *_: code)


def _allows(request: Request[AddPartitionsToTxnRequest], topic: str) -> bool:
    return topic not in INTERNAL_TOPICS and request.allows(topic, resource_type=ResourceType.TOPIC)


def _response(
    body: AddPartitionsToTxnRequest, code_of: Callable[[str, int], ErrorCode]
) -> Steps[AddPartitionsToTxnResponse]:
    def answer(topic: str, number: int) -> Partition:
        return Partition(partition_index=number, partition_error_code=code_of(topic, number))

    topics = ((topic.name, topic.partitions) for topic in body.v3_and_below_topics)
    answers = yield from by_partition(AddPartitionsToTxnTopicResult, topics, answer)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=answers)
