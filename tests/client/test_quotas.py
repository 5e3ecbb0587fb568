"""Quotas and SCRAM credentials, in clusters that answer as a test says."""

from typing import Any

import pytest

from klamm.client.admin.quotas import (
    CLIENT_ID,
    USER,
    MatchType,
    QuotaFilter,
    alter_client_quotas,
    describe_client_quotas,
)
from klamm.client.admin.scram_credentials import (
    NewCredential,
    alter_user_scram_credentials,
    describe_user_scram_credentials,
)
from klamm.net.scram import salted_password
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.alter_client_quotas import AlterClientQuotasResponse
from klamm.protocol.apis.alter_user_scram_credentials import AlterUserScramCredentialsResponse
from klamm.protocol.apis.describe_client_quotas import DescribeClientQuotasResponse
from klamm.protocol.apis.describe_user_scram_credentials import DescribeUserScramCredentialsResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ScramMechanism
from support.scripted_cluster import ScriptedCluster

ALICE = ((USER, "alice"), (CLIENT_ID, None))


def quotas(*entries: tuple[dict[str, str | None], dict[str, float]]) -> DescribeClientQuotasResponse:
    row = DescribeClientQuotasResponse.EntryData
    rows = [
        row(
            entity=[row.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
            values=[row.ValueData(key=key, value=value) for key, value in values.items()],
        )
        for entity, values in entries
    ]
    return DescribeClientQuotasResponse(error_code=0, error_message=None, entries=rows)


def altered(error: ErrorCode) -> AlterClientQuotasResponse:
    row = AlterClientQuotasResponse.EntryData
    return AlterClientQuotasResponse(entries=[row(error_code=error, error_message="why", entity=[])])


async def test_quotas_are_described_with_the_user_first_and_defaults_last() -> None:
    answer = quotas(
        ({"client-id": None, "user": "alice"}, {"request_percentage": 5.0, "consumer_byte_rate": 1.0}),
        ({"client-id": "c", "user": "alice"}, {"producer_byte_rate": 2.0}),
    )
    async with ScriptedCluster((ApiKey.DESCRIBE_CLIENT_QUOTAS, answer)) as cluster:
        filters = [QuotaFilter(USER, MatchType.EXACT, "alice"), QuotaFilter(CLIENT_ID, MatchType.ANY)]
        found = await describe_client_quotas(cluster.client(), filters)
    assert list(found.items()) == [
        (((USER, "alice"), (CLIENT_ID, "c")), {"producer_byte_rate": 2.0}),
        (ALICE, {"consumer_byte_rate": 1.0, "request_percentage": 5.0}),
    ]
    [request] = cluster.requests
    assert request.strict
    components = [(each.entity_type, each.match_type, each.match) for each in request.components]
    assert components == [("user", 0, "alice"), ("client-id", 2, None)]


async def test_a_refused_description_is_an_error() -> None:
    refused = DescribeClientQuotasResponse(error_code=31, error_message="no", entries=None)
    async with ScriptedCluster((ApiKey.DESCRIBE_CLIENT_QUOTAS, refused)) as cluster:
        with pytest.raises(KafkaError, match="no"):
            await describe_client_quotas(cluster.client(), [QuotaFilter(USER, MatchType.DEFAULT)])


async def test_quotas_are_altered_by_the_controller() -> None:
    answers = [(ApiKey.ALTER_CLIENT_QUOTAS, altered(code)) for code in (ErrorCode.NOT_CONTROLLER, ErrorCode.NONE)]
    async with ScriptedCluster(*answers) as cluster:
        cluster.controllers = [0, 1]
        await alter_client_quotas(cluster.client(), ALICE, {"a": 1.0, "b": None}, validate_only=True)
    assert cluster.asked == [(ApiKey.ALTER_CLIENT_QUOTAS, 0), (ApiKey.ALTER_CLIENT_QUOTAS, 1)]
    request = cluster.requests[-1]
    [entry] = request.entries
    assert request.validate_only
    assert [(each.entity_type, each.entity_name) for each in entry.entity] == list(ALICE)
    assert [(each.key, each.value, each.remove) for each in entry.ops] == [("a", 1.0, False), ("b", 0.0, True)]


async def test_a_refused_quota_is_an_error() -> None:
    async with ScriptedCluster((ApiKey.ALTER_CLIENT_QUOTAS, altered(ErrorCode.INVALID_REQUEST))) as cluster:
        with pytest.raises(KafkaError, match="why"):
            await alter_client_quotas(cluster.client(), ALICE, {"a": 1.0})


def credentials(*rows: tuple[str, int, list[tuple[int, int]]]) -> Any:
    row = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
    return DescribeUserScramCredentialsResponse(
        error_code=0,
        error_message=None,
        results=[
            row(
                user=user,
                error_code=code,
                error_message=None,
                credential_infos=[row.CredentialInfo(mechanism=kind, iterations=count) for kind, count in infos],
            )
            for user, code, infos in rows
        ],
    )


async def test_a_user_without_credentials_is_left_out() -> None:
    answer = credentials(("zoe", 0, [(1, 4096), (2, 8192)]), ("nobody", ErrorCode.RESOURCE_NOT_FOUND, []))
    async with ScriptedCluster((ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, answer)) as cluster:
        found = await describe_user_scram_credentials(cluster.client(), ["zoe", "nobody"])
    assert found == {"zoe": {ScramMechanism.SCRAM_SHA_256: 4096, ScramMechanism.SCRAM_SHA_512: 8192}}


async def test_a_password_leaves_the_client_only_salted() -> None:
    row = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    answer = AlterUserScramCredentialsResponse(results=[row(user="zoe", error_code=0, error_message=None)])
    async with ScriptedCluster((ApiKey.ALTER_USER_SCRAM_CREDENTIALS, answer)) as cluster:
        changes = {
            ScramMechanism.SCRAM_SHA_256: NewCredential("secret", 4096, b"salt"),
            ScramMechanism.SCRAM_SHA_512: None,
        }
        await alter_user_scram_credentials(cluster.client(), "zoe", changes)
    [request] = cluster.requests
    [new], [deleted] = request.upsertions, request.deletions
    assert (new.name, new.mechanism, new.iterations, bytes(new.salt)) == ("zoe", 1, 4096, b"salt")
    assert bytes(new.salted_password) == salted_password("sha256", "secret", b"salt", 4096)
    assert (deleted.name, deleted.mechanism) == ("zoe", 2)
