"""Configurations in ZooKeeper: the same znodes and notifications as Kafka's tool writes with --zookeeper.

A broker validates each change that it makes. ZooKeeper validates nothing, so this module refuses what a broker would
refuse, and dynamic configs of a running broker, which only that broker can validate.
"""

import secrets
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from klamm.access.zookeeper import run_with_zookeeper
from klamm.cli.configs.changes import SCRAM, Change, Current, check_quotas, parse_password
from klamm.cli.configs.entities import BROKERS, CLIENTS, DEFAULT, IPS, QUOTA_TYPES, TOPICS, USERS, Entity, Part
from klamm.cli.configs.views import Description, StoredConfigs
from klamm.config.dynamic import entry_problems, is_password
from klamm.config.throttles import BROKER_THROTTLES
from klamm.config.topic import TOPIC_CONFIG_DEF, override_problems
from klamm.net.scram import credential
from klamm.processes.tool_errors import ToolError
from klamm.znodes.configs import DEFAULT_ENTITY, desanitize, encode_scram_credential, sanitize
from klamm.znodes.topics import is_legal_topic_name

if TYPE_CHECKING:
    from klamm.znodes.store import KafkaZooKeeper

_SALT_BYTES = 24


class ZnodeConfigs:
    """The configurations that ZooKeeper stores. Methods raise ToolError."""

    def __init__(self, connect: str) -> None:
        self._connect = connect

    def describe(self, entity: Entity, *, describe_all: bool) -> list[Description]:
        """The stored configurations of the entity, or of all entities that it stands for."""
        if describe_all:
            raise ToolError("--all needs the brokers: ZooKeeper stores no static and default configs")
        return run_with_zookeeper(self._connect, lambda znodes: _describe(znodes, entity))

    def read(self, entity: Entity) -> dict[str, Current]:
        """The value of each key that is stored for the entity."""
        stored = run_with_zookeeper(self._connect, lambda znodes: znodes.configs.of(_path(entity)))
        return {key: Current(value, is_sensitive=_is_secret(entity, key)) for key, value in stored.items()}

    def check(self, entity: Entity, changes: Sequence[Change]) -> None:
        """Raises ToolError if a broker would refuse these changes."""
        if entity.type in QUOTA_TYPES:
            check_quotas(entity, changes)
            _check_address(entity)
        run_with_zookeeper(self._connect, lambda znodes: _check(znodes, entity, changes))

    def apply(self, entity: Entity, changes: Sequence[Change]) -> None:
        """Makes the changes and notifies all brokers. Other keys stay as they are."""
        values = {change.key: _stored(change) for change in changes}

        def changed(stored: dict[str, str]) -> Mapping[str, str]:
            merged: dict[str, str | None] = {**stored, **values}
            return {key: value for key, value in merged.items() if value is not None}

        run_with_zookeeper(self._connect, lambda znodes: znodes.configs.update(_path(entity), changed))


def _is_secret(entity: Entity, key: str) -> bool:
    return entity.type == BROKERS and is_password(key)


def _stored(change: Change) -> str | None:
    """The text that a znode holds for the change."""
    mechanism = SCRAM.get(change.key)
    if change.new is None or mechanism is None:
        return change.new
    wanted = parse_password(change.key, change.new)
    salt = secrets.token_bytes(_SALT_BYTES)
    return encode_scram_credential(credential(mechanism.hash_name, wanted.password, salt, wanted.iterations))


# -- paths --------------------------------------------------------------------------------------------------------


def _path(entity: Entity) -> str:
    """The entity's path below /config: `users/alice/clients/<default>`."""
    return "/".join(f"{part.type}/{_znode_name(part)}" for part in entity.parts)


def _znode_name(part: Part) -> str:
    if part.name == DEFAULT or part.name is None:
        return DEFAULT_ENTITY
    return sanitize(part.name) if _is_sanitized(part.type) else part.name


def _is_sanitized(entity_type: str) -> bool:
    return entity_type in (USERS, CLIENTS)


def _part(entity_type: str, znode: str) -> Part:
    if znode == DEFAULT_ENTITY:
        return Part(entity_type, DEFAULT)
    return Part(entity_type, desanitize(znode) if _is_sanitized(entity_type) else znode)


# -- reading ------------------------------------------------------------------------------------------------------


async def _describe(znodes: "KafkaZooKeeper", entity: Entity) -> list[Description]:
    found: list[Description] = []
    for each in await _named(znodes, entity):
        configs = await znodes.configs.of(_path(each))
        # A user without a configuration may have a znode that only holds the znodes of its clients.
        if configs or not (entity.is_user and entity.first.name is None):
            found.append(StoredConfigs(each, configs))
    return found


async def _named(znodes: "KafkaZooKeeper", entity: Entity) -> list[Entity]:
    """The entities for which `entity` stands."""
    first, *rest = entity.parts
    firsts = [first]
    if first.name is None:
        firsts = [_part(first.type, name) for name in await znodes.configs.entities(first.type)]
    if not rest:
        return [Entity((part,)) for part in firsts]
    [child] = rest
    found = []
    for part in firsts:
        children = [child]
        if child.name is None:
            below = f"{part.type}/{_znode_name(part)}/{child.type}"
            children = [_part(child.type, name) for name in await znodes.configs.entities(below)]
        found += [Entity((part, each)) for each in children]
    return found


# -- validation ---------------------------------------------------------------------------------------------------


def _check_address(entity: Entity) -> None:
    name = entity.first.name
    if entity.type != IPS or not name:
        return
    try:
        socket.getaddrinfo(name, None)
    except (OSError, UnicodeError):
        raise ToolError(f"{name} is not an IP address, and no host of this name is known") from None


async def _check(znodes: "KafkaZooKeeper", entity: Entity, changes: Sequence[Change]) -> None:
    if entity.type == TOPICS:
        await _check_topic(znodes, entity, changes)
    elif entity.type == BROKERS:
        await _check_broker(znodes, entity, changes)


async def _check_topic(znodes: "KafkaZooKeeper", entity: Entity, changes: Sequence[Change]) -> None:
    topic = entity.first.name or ""
    if not is_legal_topic_name(topic) or not await znodes.topic_exists(topic):
        raise ToolError(f"Topic '{topic}' does not exist.")
    if unknown := [
        change.key for change in changes if change.new is not None and change.key not in TOPIC_CONFIG_DEF.keys
    ]:
        raise ToolError(f"Unknown topic config name: {', '.join(unknown)}")
    stored: dict[str, str | None] = {**await znodes.configs.of(_path(entity))}
    stored.update({change.key: change.new for change in changes})
    if problems := override_problems({key: value for key, value in stored.items() if value is not None}):
        raise ToolError("; ".join(problems))


async def _check_broker(znodes: "KafkaZooKeeper", entity: Entity, changes: Sequence[Change]) -> None:
    name = entity.first.name or DEFAULT
    added = {change.key: change.new for change in changes if change.new is not None}
    # Throttles may change while brokers run: every value is valid, and brokers follow the notification.
    if needs_broker := [key for key in added if key not in BROKER_THROTTLES]:
        live = await znodes.live_brokers()
        running = [name] if name and int(name) in live else [] if name else list(map(str, live))
        if running:
            raise ToolError(
                f"{', '.join(needs_broker)}: broker {', '.join(running)} is running and validates its own configs; use"
                " --bootstrap-server. ZooKeeper can be written while the broker is down"
            )
    if passwords := [key for key in added if is_password(key)]:
        raise ToolError(
            f"{', '.join(passwords)}: a password would have to be stored encrypted (password.encoder.secret),"
            " which klamm does not do; set it in server.properties"
        )
    if encoder := [key for key in added if key.startswith("password.encoder.")]:
        raise ToolError(f"{', '.join(encoder)}: only server.properties has these keys")
    if problems := entry_problems(added, per_broker=name != DEFAULT):
        raise ToolError("; ".join(problems.values()))
