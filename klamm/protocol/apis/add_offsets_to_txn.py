"""AddOffsetsToTxn (key 25): a group whose offsets a transaction is about to commit.

Versions: 3 flexible; 4 error code TRANSACTION_ABORTABLE (KIP-890).
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import SMALL, Int16, Int32, Int64, Request, Response, String


class AddOffsetsToTxnRequest(
    Request["AddOffsetsToTxnResponse"],
    api=ApiKey.ADD_OFFSETS_TO_TXN,
    versions="0-3",
    known="0-4",
    flexible="3+",
    size=SMALL,
):
    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    group_id: String


class AddOffsetsToTxnResponse(Response):
    throttle_time_ms: Int32 = 0
    error_code: Int16
