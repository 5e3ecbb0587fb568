"""EndTxn (key 26): the commit or abort of a transaction.

Versions: 3 flexible; 4 error code TRANSACTION_ABORTABLE; 5 the next producer epoch in the response (KIP-890).
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import SMALL, Bool, Int16, Int32, Int64, Request, Response, String, field


class EndTxnRequest(
    Request["EndTxnResponse"], api=ApiKey.END_TXN, versions="0-3", known="0-5", flexible="3+", size=SMALL
):
    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    committed: Bool


class EndTxnResponse(Response):
    throttle_time_ms: Int32 = 0
    error_code: Int16
    producer_id: Int64 = field("5+", default=-1)
    producer_epoch: Int16 = field("5+", default=-1)
