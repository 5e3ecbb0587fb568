"""CreateDelegationToken (key 38): a new delegation token (KIP-48).

Versions: 2 flexible.
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import SMALL, Bytes, Int16, Int32, Int64, Request, Response, String, Struct


class CreateDelegationTokenRequest(
    Request["CreateDelegationTokenResponse"],
    api=ApiKey.CREATE_DELEGATION_TOKEN,
    versions="0-2",
    flexible="2+",
    size=SMALL,
):
    class CreatableRenewers(Struct):
        principal_type: String
        principal_name: String

    renewers: list[CreatableRenewers]
    max_lifetime_ms: Int64


class CreateDelegationTokenResponse(Response):
    error_code: Int16
    principal_type: String
    principal_name: String
    issue_timestamp_ms: Int64
    expiry_timestamp_ms: Int64
    max_timestamp_ms: Int64
    token_id: String
    hmac: Bytes
    throttle_time_ms: Int32 = 0
