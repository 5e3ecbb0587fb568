"""ListTransactions (key 66): the transactional ids that a broker coordinates (KIP-664).

Kafka 3.0 and later have it. Versions: 0 flexible; 1 the shortest duration (KIP-994); 2 a pattern of ids (KIP-1152).
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, Int16, Int32, Int64, Request, Response, String, Struct, field


class ListTransactionsRequest(
    Request["ListTransactionsResponse"],
    api=ApiKey.LIST_TRANSACTIONS,
    versions="0-1",
    known="0-2",
    flexible="0+",
    size=LIST,
):
    state_filters: list[String]
    producer_id_filters: list[Int64]
    duration_filter: Int64 = field("1+", default=-1)
    transactional_id_pattern: String | None = field("2+", default=None)


class ListTransactionsResponse(Response):
    class TransactionState(Struct):
        transactional_id: String
        producer_id: Int64
        transaction_state: String

    throttle_time_ms: Int32 = 0
    error_code: Int16
    unknown_state_filters: list[String]
    transaction_states: list[TransactionState]
