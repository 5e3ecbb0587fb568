"""AddPartitionsToTxn (key 24): partitions that a transaction is about to write to.

Versions: 3 flexible; 4 several transactions, between brokers (KIP-890).
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import LIST, Bool, Int16, Int32, Int64, Request, Response, String, Struct, field


class AddPartitionsToTxnTopic(Struct):
    name: String
    partitions: list[Int32]


class AddPartitionsToTxnTopicResult(Struct):
    class AddPartitionsToTxnPartitionResult(Struct):
        partition_index: Int32
        partition_error_code: Int16

    name: String
    results_by_partition: list[AddPartitionsToTxnPartitionResult]


class AddPartitionsToTxnRequest(
    Request["AddPartitionsToTxnResponse"],
    api=ApiKey.ADD_PARTITIONS_TO_TXN,
    versions="0-3",
    known="0-5",
    flexible="3+",
    size=LIST,
):
    class AddPartitionsToTxnTransaction(Struct):
        transactional_id: String
        producer_id: Int64
        producer_epoch: Int16
        verify_only: Bool = False
        topics: list[AddPartitionsToTxnTopic]

    transactions: list[AddPartitionsToTxnTransaction] = field("4+", default=[])
    v3_and_below_transactional_id: String = field("0-3", default="")
    v3_and_below_producer_id: Int64 = field("0-3", default=0)
    v3_and_below_producer_epoch: Int16 = field("0-3", default=0)
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = field("0-3", default=[])


class AddPartitionsToTxnResponse(Response):
    class AddPartitionsToTxnResult(Struct):
        transactional_id: String
        topic_results: list[AddPartitionsToTxnTopicResult]

    throttle_time_ms: Int32 = 0
    error_code: Int16 = field("4+", default=0)
    results_by_transaction: list[AddPartitionsToTxnResult] = field("4+", default=[])
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field("0-3", default=[])
