"""The configurations of topics, brokers and quotas below /config, and the notifications of their changes.

What must stay true:
- A configuration and the notification of its change are written in one multi, so that no broker misses a change.
- An earlier try of the same write is recognized by its content.
- A change never replaces a malformed configuration: the rest of the configuration would be lost.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from klamm.base.slices import for_slices
from klamm.znodes import configs
from klamm.znodes.access import check_size, get_all, notice
from klamm.znodes.fields import ZnodeError
from klamm.zookeeper.client import ZooKeeperClient, retrying
from klamm.zookeeper.keeper_exceptions import BadVersion, NodeExists, NoNode
from klamm.zookeeper.messages import Create, CreateMode, MultiOperation, SetData


class ConfigStore:
    """The configurations, over one client's session. A path names an entity: `topics/T`, `users/U/clients/C`."""

    def __init__(self, client: ZooKeeperClient) -> None:
        self._client = client

    async def of_topics(self, names: Sequence[str]) -> "dict[str, dict[str, str] | ZnodeError]":
        """The configurations of these topics; {} for a topic without a configuration."""
        found = await self.of_entities([configs.topic_entity(name) for name in names])
        return {name: found[configs.topic_entity(name)] for name in names}

    async def of_entities(self, entity_paths: Sequence[str]) -> "dict[str, dict[str, str] | ZnodeError]":
        """The configurations of these entities; {} for an entity without a configuration."""
        found = await get_all(self._client, {entity: configs.config_path(entity) for entity in entity_paths})
        return {entity: _decode_config(entity, found[entity][0]) if entity in found else {} for entity in entity_paths}

    async def of(self, entity_path: str) -> dict[str, str]:
        """The configuration of an entity (`topics/T`, `brokers/1` ...); {} if it has none. Raises ZnodeError when it is
        malformed."""
        data, _ = await self._stored(entity_path)
        return configs.decode_config(entity_path, data)

    async def entities(self, entity_type: str) -> list[str]:
        """The names of the entities below /config/`entity_type` (`topics`, `users/U/clients` ...), sorted."""
        try:
            return sorted(await retrying(self._client.children, configs.config_path(entity_type)))
        except NoNode:
            return []

    async def quota_entities(self) -> list[str]:
        """The entity paths of all users, clients of users, clients and IP addresses below /config."""
        users, clients, ips = await asyncio.gather(*map(self.entities, ("users", "clients", "ips")))

        async def clients_of(some: Sequence[str]) -> list[list[str]]:
            return await asyncio.gather(*(self.entities(f"users/{user}/clients") for user in some))

        of_users = [found for piece in await for_slices(users, clients_of) for found in piece]
        return [
            *(f"users/{user}" for user in users),
            *(f"users/{user}/clients/{name}" for user, names in zip(users, of_users, strict=True) for name in names),
            *(f"clients/{name}" for name in clients),
            *(f"ips/{name}" for name in ips),
        ]

    async def _stored(self, entity_path: str) -> tuple[bytes, int | None]:
        """The content of the entity's znode and its version; the version is None if there is no znode."""
        try:
            data, stat = await retrying(self._client.get, configs.config_path(entity_path))
        except NoNode:
            return b"", None
        return data, stat.version

    async def update(self, entity_path: str, change: Callable[[dict[str, str]], Mapping[str, str]]) -> None:
        """Replaces an entity's configuration by the result of `change`, and notifies all brokers.

        `change` gets the current configuration, and is called again after a concurrent change. Its errors are raised.
        Raises ZnodeError when the stored configuration is malformed: a change would lose the rest of it.
        """
        await self._write(entity_path, lambda data: change(configs.decode_config(entity_path, data)))

    async def replace(self, entity_path: str, config: Mapping[str, str]) -> None:
        """Replaces an entity's configuration unconditionally, and notifies all brokers."""
        await self._write(entity_path, lambda _data: config)

    async def _write(self, entity_path: str, change: Callable[[bytes], Mapping[str, str]]) -> None:
        """Raises KafkaError INVALID_REQUEST when the result is too large for ZooKeeper. An earlier try of the same
        write is recognized by its content."""
        path = configs.config_path(entity_path)
        written: bytes | None = None
        while True:
            stored, version = await self._stored(entity_path)
            if written is not None and stored == written:
                return
            written = configs.encode_config(change(stored))
            check_size(entity_path, len(written))
            notification = Create(
                configs.CONFIG_CHANGE_PREFIX,
                configs.encode_config_change(entity_path),
                flags=CreateMode.PERSISTENT_SEQUENTIAL,
            )
            write: MultiOperation = Create(path, written) if version is None else SetData(path, written, version)
            for parent in (path.rpartition("/")[0], configs.CONFIG_CHANGES_PATH):
                await retrying(self._client.ensure_path, parent)
            try:
                await retrying(self._client.multi, [write, notification])
                return
            except (BadVersion, NodeExists, NoNode) as error:
                if error.index != 0:
                    raise

    async def changes(self, watch: Callable[[], None] | None = None) -> list[str]:
        """The names of the notifications of changed configurations. `watch` is called once when they change."""
        return await retrying(self._client.children, configs.CONFIG_CHANGES_PATH, notice(watch))

    async def read_changes(self, names: Sequence[str]) -> dict[str, tuple[bytes, int]]:
        """The content of each notification that still exists, and its creation time in milliseconds."""
        found = await get_all(self._client, {name: configs.config_change_path(name) for name in names})
        return {name: (data, stat.ctime_ms) for name, (data, stat) in found.items()}

    async def delete_changes(self, names: Sequence[str]) -> None:
        """Removes the notifications that still exist, and any znodes below them. Safe to repeat."""
        paths = map(configs.config_change_path, names)
        await asyncio.gather(*(retrying(self._client.delete_recursive, path) for path in paths))


def _decode_config(entity_path: str, data: bytes) -> "dict[str, str] | ZnodeError":
    try:
        return configs.decode_config(entity_path, data)
    except ZnodeError as error:
        return error
