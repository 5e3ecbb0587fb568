"""DescribeTransactions (key 65): the transactions of transactional ids, as their coordinator has them (KIP-664).

Kafka 3.0 and later have it. Versions: 0 flexible.
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, Int16, Int32, Int64, Request, Response, String, Struct


class DescribeTransactionsRequest(
    Request["DescribeTransactionsResponse"], api=ApiKey.DESCRIBE_TRANSACTIONS, versions="0", flexible="0+", size=LIST
):
    transactional_ids: list[String]


class DescribeTransactionsResponse(Response):
    class TransactionState(Struct):
        class TopicData(Struct):
            topic: String
            partitions: list[Int32]

        error_code: Int16
        transactional_id: String
        transaction_state: String
        transaction_timeout_ms: Int32
        transaction_start_time_ms: Int64
        producer_id: Int64
        producer_epoch: Int16
        topics: list[TopicData]

    throttle_time_ms: Int32 = 0
    transaction_states: list[TransactionState]
