"""The names of quota entities in requests, in znodes, and in the broker's look-ups. Pure.

A request names an entity by types and names, where a name of None is the default. A znode's path has sanitized names of
users and clients, and `<default>`.
"""

from collections.abc import Mapping
from typing import Final

from klamm.broker.quotas.bounds import DEFAULT, QuotaEntity
from klamm.config.definition import ConfigDef, ConfigError
from klamm.config.quotas import CLIENT_QUOTAS, IP_QUOTAS
from klamm.znodes.configs import DEFAULT_ENTITY, client_entity, desanitize, ip_entity, user_entity

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

_ZNODE_TYPES: Final = {"users": USER, "clients": CLIENT_ID, "ips": IP}

Named = Mapping[str, str | None]
"""The names of an entity by their types; None is the default."""


def entity_path(entity: Named) -> str:
    """The path of the entity's znode below /config."""
    if IP in entity:
        return ip_entity(entity[IP])
    if USER not in entity:
        return client_entity(entity[CLIENT_ID])
    user = user_entity(entity[USER])
    return f"{user}/{client_entity(entity[CLIENT_ID])}" if CLIENT_ID in entity else user


def can_be_stored(entity_type: str, name: str | None) -> bool:
    """Whether ZooKeeper has znodes of that name. Names of users and clients are percent-encoded, which leaves dots."""
    if name is None:
        return True
    return name not in ("", ".", "..") and (entity_type != IP or (name.isprintable() and "/" not in name))


def entity_of(path: str) -> dict[str, str | None] | None:
    """The entity of a znode; None for another path."""
    parts = path.split("/")
    types, names = parts[::2], parts[1::2]
    if types not in (["users"], ["users", "clients"], ["clients"], ["ips"]) or len(names) < len(types):
        return None
    return {_ZNODE_TYPES[kind]: _name(kind, name) for kind, name in zip(types, names, strict=True)}


def _name(znode_type: str, znode: str) -> str | None:
    if znode == DEFAULT_ENTITY:
        return None
    return znode if znode_type == "ips" else desanitize(znode)


def quota_entity(entity: Named) -> QuotaEntity:
    """The `QuotaEntity` of a user or client."""
    names = [(entity[part] or DEFAULT) if part in entity else None for part in (USER, CLIENT_ID)]
    return QuotaEntity(*names)


def quotas_of(entity: Named) -> ConfigDef:
    """The quotas that such an entity can have."""
    return IP_QUOTAS if IP in entity else CLIENT_QUOTAS


def stored_values(entity: Named, stored: Mapping[str, str]) -> tuple[dict[str, float], list[str]]:
    """The quotas in an entity's configuration, and a sentence for each unreadable quota. Other configurations, such as
    users' credentials, are left out."""
    values: dict[str, float] = {}
    problems: list[str] = []
    for name, key in quotas_of(entity).keys.items():
        if name in stored:
            try:
                values[name] = float(key.parse(stored[name]))
            except ConfigError as error:
                problems += error.problems
    return values, problems
