"""ListTransactions (key 66), versions 0 and 1: the transactional ids that this broker coordinates (KIP-664, KIP-994).

Kafka 2.8 does not have this API; tools of Kafka 3.0 and later use it. The client gets the ids that it may describe.
"""

from klamm.base.slices import Steps, mapped
from klamm.broker.requests.registry import Request, handler, long_answer
from klamm.broker.requests.security import Operation
from klamm.coordinator.transactions.coordinator import ListedTransaction
from klamm.protocol.apis.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from klamm.protocol.vocabulary import ResourceType

Transaction = ListTransactionsResponse.TransactionState


@handler(ListTransactionsRequest, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, ends_with_client=True)
@long_answer
def handle(request: Request[ListTransactionsRequest]) -> Steps[ListTransactionsResponse]:
    body = request.body
    listing = yield from request.services.transaction_coordinator.list_transactions(
        dict.fromkeys(body.state_filters), body.producer_id_filters, body.duration_filter
    )
    transactions = yield from mapped(lambda one: _described(request, one), listing.transactions)
    return ListTransactionsResponse(
        error_code=listing.error_code,
        unknown_state_filters=listing.unknown_states,
        transaction_states=[one for one in transactions if one is not None],
    )


def _described(request: Request[ListTransactionsRequest], one: ListedTransaction) -> Transaction | None:
    if not request.allows(one.transactional_id):
        return None
    return Transaction(transactional_id=one.transactional_id, producer_id=one.producer_id, transaction_state=one.state)
