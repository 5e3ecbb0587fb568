"""DescribeDelegationToken (key 41): the delegation tokens of owners (KIP-48).

Versions: 2 flexible.
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import SMALL, Bytes, Int16, Int32, Int64, Request, Response, String, Struct


class DescribeDelegationTokenRequest(
    Request["DescribeDelegationTokenResponse"],
    api=ApiKey.DESCRIBE_DELEGATION_TOKEN,
    versions="0-2",
    flexible="2+",
    size=SMALL,
):
    class DescribeDelegationTokenOwner(Struct):
        principal_type: String
        principal_name: String

    owners: list[DescribeDelegationTokenOwner] | None


class DescribeDelegationTokenResponse(Response):
    class DescribedDelegationToken(Struct):
        class DescribedDelegationTokenRenewer(Struct):
            principal_type: String
            principal_name: String

        principal_type: String
        principal_name: String
        issue_timestamp: Int64
        expiry_timestamp: Int64
        max_timestamp: Int64
        token_id: String
        hmac: Bytes
        renewers: list[DescribedDelegationTokenRenewer]

    error_code: Int16
    tokens: list[DescribedDelegationToken]
    throttle_time_ms: Int32 = 0
