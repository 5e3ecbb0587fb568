"""The quotas of users, clients and IP addresses: describe and alter (KIP-546, KIP-612)."""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from klamm.client.cluster import ClusterClient
from klamm.client.fan_out import ask_controller, checked, error_of
from klamm.net.client import Connection
from klamm.protocol.apis.alter_client_quotas import AlterClientQuotasRequest
from klamm.protocol.apis.describe_client_quotas import DescribeClientQuotasRequest
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.messages import ApiKey

USER, CLIENT_ID, IP = "user", "client-id", "ip"

# The order of the parts of an entity.
_PARTS = (USER, CLIENT_ID, IP)

QuotaEntity = tuple[tuple[str, str | None], ...]
"""Types and names: `(("user", "alice"), ("client-id", None))`. A name of None is the default of its type."""


class MatchType(IntEnum):
    """The names of a type that match."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


class QuotaFilter(NamedTuple):
    """A condition on one part of an entity."""

    entity_type: str
    match_type: MatchType
    name: str | None = None


async def describe_client_quotas(
    client: ClusterClient, filters: Iterable[QuotaFilter]
) -> dict[QuotaEntity, dict[str, float]]:
    """The quotas of entities with exactly these parts, sorted. Raises KafkaError and ClientError."""
    component = DescribeClientQuotasRequest.ComponentData
    request = DescribeClientQuotasRequest(
        components=[
            component(entity_type=each.entity_type, match_type=each.match_type, match=each.name) for each in filters
        ],
        strict=True,
    )
    response = await client.send_to_any(
        ApiKey.DESCRIBE_CLIENT_QUOTAS, lambda version: request, errors_of=lambda answer: [answer.error_code]
    )
    if (error := error_of(response.error_code, response.error_message)) is not None:
        raise error
    found = {
        _entity((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in sorted(entry.values, key=lambda value: value.key)
        }
        for entry in response.entries or []
    }
    # Defaults come last.
    return dict(sorted(found.items(), key=lambda item: [(kind, name is None, name or "") for kind, name in item[0]]))


def _entity(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    return tuple(sorted(parts, key=lambda part: _PARTS.index(part[0]) if part[0] in _PARTS else len(_PARTS)))


async def alter_client_quotas(
    client: ClusterClient, entity: QuotaEntity, changes: Mapping[str, float | None], *, validate_only: bool = False
) -> None:
    """Sets quotas of an entity; None removes a quota. Other quotas stay. Raises KafkaError and ClientError."""
    entry = AlterClientQuotasRequest.EntryData
    request = AlterClientQuotasRequest(
        entries=[
            entry(
                entity=[entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                ops=[
                    entry.OpData(key=key, value=0.0 if value is None else value, remove=value is None)
                    for key, value in changes.items()
                ],
            )
        ],
        validate_only=validate_only,
    )

    async def ask(connection: Connection, entities: Sequence[QuotaEntity]) -> dict[QuotaEntity, KafkaError | None]:
        response = await connection.send(ApiKey.ALTER_CLIENT_QUOTAS, lambda version: request)
        [answer] = response.entries
        return {entity: error_of(answer.error_code, answer.error_message)}

    checked((await ask_controller(client, [entity], ask, repeatable=True))[entity])
