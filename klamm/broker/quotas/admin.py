"""Describes and alters the quotas that ZooKeeper stores (Kafka's `ZkAdminManager`).

This module only stores changes: every broker, including this one, learns of them from ZooKeeper
(`configs/change_listener`).
"""

import logging
from collections.abc import Callable, Iterable

from klamm.base.slices import each, slices
from klamm.broker.quotas.alterations import Operations, altered, checked_entity
from klamm.broker.quotas.entities import IP, Named, entity_of, entity_path, stored_values
from klamm.broker.quotas.filters import QuotaFilter
from klamm.net.addresses import addresses_of
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.znodes.fields import ZnodeError
from klamm.znodes.store import KafkaZooKeeper

_log = logging.getLogger(__name__)


class QuotaAdmin:
    """`zookeeper()` is the store of the current session. Methods raise KafkaError, ZooKeeperError when the session
    ends, and ZnodeError when the configuration to alter cannot be parsed."""

    def __init__(self, zookeeper: Callable[[], KafkaZooKeeper]) -> None:
        self._zookeeper = zookeeper

    async def describe(self, wanted: QuotaFilter) -> list[tuple[Named, dict[str, float]]]:
        """The matching entities with quotas, in the order of their paths. Unreadable quotas are logged and left out."""
        store = self._zookeeper()
        # Another broker may have answered a change before.
        await store.sync()
        only = wanted.only_entity
        entities: dict[str, Named] = {}
        if only is None:
            async for path in each(await store.configs.quota_entities()):
                if (entity := entity_of(path)) is not None and wanted.matches(entity):
                    entities[path] = entity
        elif only:
            entities[entity_path(only)] = only
        found = []
        async for some in slices(sorted(entities)):
            for path, stored in (await store.configs.of_entities(some)).items():
                if isinstance(stored, ZnodeError):
                    _log.error("quotas cannot be described: %s", stored)
                    continue
                values, problems = stored_values(entities[path], stored)
                for problem in problems:
                    _log.error("a quota of %s cannot be described: %s", path, problem)
                if values:
                    found.append((entities[path], values))
        return found

    async def alter(
        self, parts: Iterable[tuple[str, str | None]], operations: Operations, *, validate_only: bool
    ) -> None:
        """Changes some quotas of the entity with these types and names."""
        entity = checked_entity(parts)
        if (ip := entity.get(IP)) is not None:
            await _require_address(ip)
        path, store = entity_path(entity), self._zookeeper()
        if validate_only:
            altered(entity, await store.configs.of(path), operations)
        else:
            await store.configs.update(path, lambda stored: altered(entity, stored, operations))


async def _require_address(name: str) -> None:
    """Raises KafkaError INVALID_REQUEST unless the name is an IP address or a host name that resolves here."""
    try:
        await addresses_of(name)
    except OSError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} is not a valid IP or resolvable host.") from None
