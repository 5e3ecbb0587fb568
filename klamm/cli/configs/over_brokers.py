"""Configurations through the brokers: any Kafka cluster."""

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from klamm.access.clients import error_line, succeeded
from klamm.cli.configs.changes import SCRAM, Change, Current, check_quotas, parse_password
from klamm.cli.configs.entities import (
    BROKER_LOGGERS,
    BROKERS,
    CLIENTS,
    DEFAULT,
    IPS,
    QUOTA_TYPES,
    TOPICS,
    USERS,
    Entity,
    Part,
    one,
)
from klamm.cli.configs.views import Credentials, Description, Quotas, ResourceConfigs
from klamm.cli.shared.clients import ClientInThread
from klamm.client.admin.configs import (
    ConfigEntry,
    ConfigResource,
    describe_configs,
    incremental_alter_configs,
)
from klamm.client.admin.quotas import (
    CLIENT_ID,
    IP,
    USER,
    MatchType,
    QuotaEntity,
    QuotaFilter,
    alter_client_quotas,
    describe_client_quotas,
)
from klamm.client.admin.scram_credentials import (
    NewCredential,
    alter_user_scram_credentials,
    describe_user_scram_credentials,
)
from klamm.client.admin.topics import describe_topics
from klamm.config.definition import ConfigSource, ConfigType, format_value
from klamm.net.client import UnsupportedVersion
from klamm.processes.tool_errors import ToolError
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import AlterConfigOp, ConfigResourceType, OpType

if TYPE_CHECKING:
    from klamm.client.cluster import ClusterClient

_RESOURCE_TYPES = {
    TOPICS: ConfigResourceType.TOPIC,
    BROKERS: ConfigResourceType.BROKER,
    BROKER_LOGGERS: ConfigResourceType.BROKER_LOGGER,
}
_QUOTA_PARTS = {USERS: USER, CLIENTS: CLIENT_ID, IPS: IP}
_TYPES = {part: kind for kind, part in _QUOTA_PARTS.items()}
_SALT_BYTES = 24


class BrokerConfigs:
    """The configurations that the brokers report. Methods raise ToolError."""

    def __init__(self, client: ClientInThread) -> None:
        self._client = client

    def describe(self, entity: Entity, *, describe_all: bool) -> list[Description]:
        """The configurations of the entity, or of all entities that it stands for."""
        if entity.type in QUOTA_TYPES:
            return self._client.call(_describe_quotas, entity)
        return self._client.call(_describe_resources, entity, describe_all)

    def read(self, entity: Entity) -> dict[str, Current]:
        """The value of each key that the entity has."""
        if entity.type in QUOTA_TYPES:
            return self._client.call(_read_quotas, entity)
        return self._client.call(_read_resource, entity)

    def check(self, entity: Entity, changes: Sequence[Change]) -> None:
        """Raises ToolError if the cluster would refuse these changes."""
        if entity.type in QUOTA_TYPES:
            check_quotas(entity, changes)
            if any(change.key in SCRAM for change in changes) and any(change.key not in SCRAM for change in changes):
                raise ToolError("quotas and SCRAM credentials of a user are changed by two commands, one after another")
        self._apply(entity, changes, validate_only=True)

    def apply(self, entity: Entity, changes: Sequence[Change]) -> None:
        """Makes the changes. Other keys stay as they are."""
        self._apply(entity, changes, validate_only=False)

    def _apply(self, entity: Entity, changes: Sequence[Change], *, validate_only: bool) -> None:
        if entity.type in QUOTA_TYPES:
            self._client.call(_alter_quotas, entity, changes, validate_only)
        else:
            self._client.call(_alter_resource, entity, changes, validate_only)


# -- topics, brokers, loggers -------------------------------------------------------------------------------------


async def _describe_resources(client: "ClusterClient", entity: Entity, describe_all: bool) -> list[Description]:
    entities = await _named(client, entity)
    resources = {_resource(each): each for each in entities}
    found = await describe_configs(client, list(resources), include_synonyms=True)
    return [
        ResourceConfigs(
            each,
            tuple(
                entry
                for entry in _entries(each, found[resource]).values()
                if describe_all or each.type == BROKER_LOGGERS or entry.source is _own_source(each)
            ),
            describe_all,
        )
        for resource, each in resources.items()
    ]


async def _named(client: "ClusterClient", entity: Entity) -> list[Entity]:
    """The entities for which `entity` stands."""
    if entity.first.name is not None:
        return [entity]
    if entity.type == TOPICS:
        return [one(TOPICS, name) for name in await describe_topics(client)]
    metadata = await client.refresh_metadata(())
    return [*(one(entity.type, str(broker_id)) for broker_id in sorted(metadata.brokers)), one(entity.type, DEFAULT)]


def _resource(entity: Entity) -> ConfigResource:
    return ConfigResource(_RESOURCE_TYPES[entity.type], entity.first.name or "")


def _entries(entity: Entity, found: dict[str, ConfigEntry] | KafkaError) -> dict[str, ConfigEntry]:
    if entity.type == BROKER_LOGGERS and isinstance(found, KafkaError) and found.code is ErrorCode.INVALID_REQUEST:
        raise ToolError(
            f"broker {entity.first.name} has no loggers that can be changed, like brokers of klamm: {error_line(found)}"
        )
    return succeeded(found)


def _own_source(entity: Entity) -> ConfigSource:
    """The source of the values that are set for this entity."""
    if entity.type == TOPICS:
        return ConfigSource.DYNAMIC_TOPIC_CONFIG
    if entity.type == BROKER_LOGGERS:
        return ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
    if entity.first.name == DEFAULT:
        return ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    return ConfigSource.DYNAMIC_BROKER_CONFIG


async def _read_resource(client: "ClusterClient", entity: Entity) -> dict[str, Current]:
    resource = _resource(entity)
    found = (await describe_configs(client, [resource], include_synonyms=True))[resource]
    return {entry.name: _current(entry, _own_source(entity)) for entry in _entries(entity, found).values()}


def _current(entry: ConfigEntry, own: ConfigSource) -> Current:
    is_own = entry.source is own
    # Without further synonyms the broker has no value to fall back to.
    after = next((each for each in entry.synonyms if each.source is not own), None) if is_own else None
    return Current(
        entry.value,
        entry.source.name,
        is_own,
        entry.is_sensitive,
        None if after is None else after.value,
        "" if after is None else after.source.name,
    )


async def _alter_resource(
    client: "ClusterClient", entity: Entity, changes: Sequence[Change], validate_only: bool
) -> None:
    if entity.type == BROKER_LOGGERS:
        known = await _read_resource(client, entity)
        if unknown := [change.key for change in changes if change.key not in known]:
            raise ToolError(f"Invalid broker logger(s): {','.join(unknown)}")
    resource = _resource(entity)
    operations = [
        AlterConfigOp(change.key, change.new or "", OpType.DELETE if change.new is None else OpType.SET)
        for change in changes
    ]
    succeeded((await incremental_alter_configs(client, {resource: operations}, validate_only=validate_only))[resource])


# -- quotas and credentials ---------------------------------------------------------------------------------------


async def _describe_quotas(client: "ClusterClient", entity: Entity) -> list[Description]:
    quotas = await _quotas(client, entity)
    descriptions: list[Description] = [
        Quotas(
            Entity(tuple(Part(_TYPES[part], DEFAULT if name is None else name) for part, name in each)),
            {key: _number(value) for key, value in values.items()},
        )
        for each, values in quotas.items()
    ]
    if not entity.is_user or entity.first.name == DEFAULT:
        return descriptions
    return [*descriptions, *await _credentials(client, entity)]


async def _quotas(client: "ClusterClient", entity: Entity) -> Mapping[QuotaEntity, Mapping[str, float]]:
    try:
        return await describe_client_quotas(client, [_filter(part) for part in entity.parts])
    except UnsupportedVersion as error:
        raise _not_served(error) from error


def _filter(part: Part) -> QuotaFilter:
    kind = _QUOTA_PARTS[part.type]
    if part.name is None:
        return QuotaFilter(kind, MatchType.ANY)
    return (
        QuotaFilter(kind, MatchType.DEFAULT) if part.name == DEFAULT else QuotaFilter(kind, MatchType.EXACT, part.name)
    )


def _not_served(error: UnsupportedVersion) -> ToolError:
    return ToolError(f"{error}; with --zookeeper, quotas and credentials are read and written in ZooKeeper")


async def _credentials(client: "ClusterClient", entity: Entity) -> list[Description]:
    """The SCRAM credentials of users. Brokers without SCRAM, such as klamm's, have no credentials."""
    users = None if entity.first.name is None else [entity.first.name]
    try:
        found = await describe_user_scram_credentials(client, users)
    except UnsupportedVersion:
        return []
    return [
        Credentials(user, {mechanism.mechanism_name: count for mechanism, count in succeeded(result).items()})
        for user, result in found.items()
    ]


def _number(value: float) -> str:
    return format_value(ConfigType.DOUBLE, value) or ""


async def _read_quotas(client: "ClusterClient", entity: Entity) -> dict[str, Current]:
    found = await _quotas(client, entity)
    values = {key: Current(_number(value)) for quotas in found.values() for key, value in quotas.items()}
    if not entity.is_user or entity.first.name == DEFAULT:
        return values
    for description in await _credentials(client, entity):
        assert isinstance(description, Credentials)
        values.update({name: Current(None, is_sensitive=True) for name in description.iterations})
    return values


async def _alter_quotas(
    client: "ClusterClient", entity: Entity, changes: Sequence[Change], validate_only: bool
) -> None:
    credentials = {SCRAM[change.key]: _credential(change) for change in changes if change.key in SCRAM}
    quotas = {
        change.key: None if change.new is None else float(change.new) for change in changes if change.key not in SCRAM
    }
    try:
        if quotas:
            quota_entity = tuple((_QUOTA_PARTS[part.type], part.name or None) for part in entity.parts)
            await alter_client_quotas(client, quota_entity, quotas, validate_only=validate_only)
        if credentials and not validate_only:
            await alter_user_scram_credentials(client, entity.first.name or "", credentials)
    except UnsupportedVersion as error:
        raise _not_served(error) from error


def _credential(change: Change) -> NewCredential | None:
    if change.new is None:
        return None
    wanted = parse_password(change.key, change.new)
    return NewCredential(wanted.password, wanted.iterations, secrets.token_bytes(_SALT_BYTES))
