"""DescribeUserScramCredentials (key 50): the SCRAM mechanisms of users (KIP-554).

Versions: 0 flexible.
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import SMALL, Int8, Int16, Int32, Request, Response, String, Struct


class DescribeUserScramCredentialsRequest(
    Request["DescribeUserScramCredentialsResponse"],
    api=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    versions="0",
    flexible="0+",
    size=SMALL,
):
    class UserName(Struct):
        name: String

    users: list[UserName] | None


class DescribeUserScramCredentialsResponse(Response):
    class DescribeUserScramCredentialsResult(Struct):
        class CredentialInfo(Struct):
            mechanism: Int8
            iterations: Int32

        user: String
        error_code: Int16
        error_message: String | None
        credential_infos: list[CredentialInfo]

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: String | None
    results: list[DescribeUserScramCredentialsResult]
