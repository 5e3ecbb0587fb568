"""InitProducerId (key 22): the producer id and epoch of an idempotent or transactional producer.

Versions: 2 flexible; 3 the current id and epoch (KIP-360); 6 two-phase commit (KIP-939).
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import SMALL, Bool, Int16, Int32, Int64, Request, Response, String, field


class InitProducerIdRequest(
    Request["InitProducerIdResponse"],
    api=ApiKey.INIT_PRODUCER_ID,
    versions="0-4",
    known="0-6",
    flexible="2+",
    size=SMALL,
):
    transactional_id: String | None
    transaction_timeout_ms: Int32
    producer_id: Int64 = field("3+", default=-1)
    producer_epoch: Int16 = field("3+", default=-1)
    enable2_pc: Bool = field("6+", default=False)
    keep_prepared_txn: Bool = field("6+", default=False)


class InitProducerIdResponse(Response):
    throttle_time_ms: Int32 = 0
    error_code: Int16
    producer_id: Int64 = -1
    producer_epoch: Int16
    ongoing_txn_producer_id: Int64 = field("6+", default=-1)
    ongoing_txn_producer_epoch: Int16 = field("6+", default=-1)
