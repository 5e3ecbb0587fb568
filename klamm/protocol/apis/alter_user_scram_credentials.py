"""AlterUserScramCredentials (key 51): sets and deletes SCRAM credentials (KIP-554).

Versions: 0 flexible.
"""

from __future__ import annotations

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import SMALL, Bytes, Int8, Int16, Int32, Request, Response, String, Struct


class AlterUserScramCredentialsRequest(
    Request["AlterUserScramCredentialsResponse"],
    api=ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    versions="0",
    flexible="0+",
    size=SMALL,
):
    class ScramCredentialDeletion(Struct):
        name: String
        mechanism: Int8

    class ScramCredentialUpsertion(Struct):
        name: String
        mechanism: Int8
        iterations: Int32
        salt: Bytes
        salted_password: Bytes

    deletions: list[ScramCredentialDeletion]
    upsertions: list[ScramCredentialUpsertion]


class AlterUserScramCredentialsResponse(Response):
    class AlterUserScramCredentialsResult(Struct):
        user: String
        error_code: Int16
        error_message: String | None

    throttle_time_ms: Int32 = 0
    results: list[AlterUserScramCredentialsResult]
