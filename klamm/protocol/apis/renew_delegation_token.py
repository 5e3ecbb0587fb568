"""RenewDelegationToken (key 39): a later expiry for a delegation token (KIP-48).

Versions: 2 flexible.
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import SMALL, Bytes, Int16, Int32, Int64, Request, Response


class RenewDelegationTokenRequest(
    Request["RenewDelegationTokenResponse"],
    api=ApiKey.RENEW_DELEGATION_TOKEN,
    versions="0-2",
    flexible="2+",
    size=SMALL,
):
    hmac: Bytes
    renew_period_ms: Int64


class RenewDelegationTokenResponse(Response):
    error_code: Int16
    expiry_timestamp_ms: Int64
    throttle_time_ms: Int32 = 0
