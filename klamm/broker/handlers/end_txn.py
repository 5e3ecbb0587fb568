"""EndTxn (key 26), versions 0 to 3: a producer commits or aborts its transaction.

Answered when the outcome is in the log of the coordinator, on all in-sync replicas. From then on the transaction has
ended; the markers in its partitions follow.
"""

from collections.abc import Awaitable, Coroutine
from typing import Any

from klamm.broker.handlers.fenced_producers import code_for
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.protocol.apis.end_txn import EndTxnRequest, EndTxnResponse
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.vocabulary import ResourceType

FIRST_VERSION_WITH_PRODUCER_FENCED = 2


@handler(EndTxnRequest, Operation.WRITE, ResourceType.TRANSACTIONAL_ID)
def handle(request: Request[EndTxnRequest]) -> EndTxnResponse | Coroutine[Any, Any, EndTxnResponse]:
    body = request.body
    request.require(body.transactional_id)
    ended = request.services.transaction_coordinator.end_transaction(
        body.transactional_id, body.producer_id, body.producer_epoch, committed=body.committed
    )
    return _response(request, ended.result()) if ended.done() else _answer_later(request, ended)


async def _answer_later(request: Request[EndTxnRequest], ended: Awaitable[ErrorCode]) -> EndTxnResponse:
    return _response(request, await ended)


def _response(request: Request[EndTxnRequest], code: ErrorCode) -> EndTxnResponse:
    return EndTxnResponse(error_code=code_for(request, code, FIRST_VERSION_WITH_PRODUCER_FENCED))
