"""DescribeTransactions (key 65), version 0: the transactions of ids that this broker coordinates (KIP-664).

Kafka 2.8 does not have this API; tools of Kafka 3.0 and later use it. The answer has the partitions that still wait for
a marker and whose topics the client may describe. An id that is named more than once is answered once: its transaction
may be much larger than its name in the request.
"""

from klamm.base.slices import CHEAP_SLICE, Slices, Steps, mapped
from klamm.broker.requests.registry import Request, handler, long_answer
from klamm.broker.requests.security import Operation
from klamm.coordinator.transactions.coordinator import TransactionDescription
from klamm.protocol.apis.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.vocabulary import ResourceType

Transaction = DescribeTransactionsResponse.TransactionState
Topic = Transaction.TopicData

# How many ids a slice describes; fewer if they are longer.
TRANSACTIONS_PER_SLICE = 500
CHARACTERS_PER_PIECE = 50


def error_response(
    request: Request[DescribeTransactionsRequest], error: KafkaError
) -> Steps[DescribeTransactionsResponse]:
    failed = lambda name: _transaction(name, TransactionDescription(error.code), [])  # noqa: E731
    return DescribeTransactionsResponse(transaction_states=(yield from mapped(failed, request.body.transactional_ids)))


@handler(
    DescribeTransactionsRequest,
    Operation.DESCRIBE,
    ResourceType.TRANSACTIONAL_ID,
    error_response=error_response,
    ends_with_client=True,
)
@long_answer
def handle(request: Request[DescribeTransactionsRequest]) -> Steps[DescribeTransactionsResponse]:
    transactions: dict[str, Transaction] = {}
    described, looked_at = Slices(TRANSACTIONS_PER_SLICE), Slices(CHEAP_SLICE)
    for name in request.body.transactional_ids:
        if name not in transactions:
            transactions[name] = yield from _describe(request, name, looked_at)
        if described.spend(1 + len(name) // CHARACTERS_PER_PIECE):
            yield
    return DescribeTransactionsResponse(transaction_states=list(transactions.values()))


def _describe(request: Request[DescribeTransactionsRequest], name: str, slices: Slices) -> Steps[Transaction]:
    if not request.allows(name):
        return _transaction(name, TransactionDescription(request.denied), [])
    found = request.services.transaction_coordinator.describe_transaction(name)
    topics: dict[str, Topic | None] = {}
    for topic, number in found.partitions:
        if topic not in topics:
            allowed = request.allows(topic, resource_type=ResourceType.TOPIC)
            topics[topic] = Topic(topic=topic, partitions=[]) if allowed else None
        answer = topics[topic]
        if answer is not None:
            answer.partitions.append(number)
        if slices.spend():
            yield
    return _transaction(name, found, [topic for topic in topics.values() if topic is not None])


def _transaction(name: str, found: TransactionDescription, topics: list[Topic]) -> Transaction:
    return Transaction(
        error_code=found.error_code,
        transactional_id=name,
        transaction_state=found.state,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_timestamp_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=topics,
    )
