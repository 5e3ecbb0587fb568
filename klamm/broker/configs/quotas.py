"""Applies the quotas in /config/users, /config/clients and /config/ips of ZooKeeper (Kafka's `UserConfigHandler`,
`ClientIdConfigHandler` and `IpConfigHandler`).

What must stay true:
- A quota that cannot be read (from a znode written by hand) is logged, and the last known quota stays in force.
- If several names of one address have quotas, the lowest holds, in whatever order they were set.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

from klamm.base.slices import slices
from klamm.broker.quotas.client_quotas import ClientQuotas
from klamm.broker.quotas.entities import IP, Named, entity_of, quota_entity, stored_values
from klamm.net.addresses import addresses_of
from klamm.znodes.fields import ZnodeError
from klamm.znodes.store import KafkaZooKeeper

CONNECTION_CREATION_RATE = "connection_creation_rate"

_log = logging.getLogger(__name__)


class QuotaConfigs:
    """`load` comes before clients are served. `zookeeper()` is the store of the current session.

    `set_connection_rate` bounds the new connections per second of an address, or sets the default (None). A rate of
    None removes the bound.
    """

    def __init__(
        self,
        quotas: ClientQuotas,
        set_connection_rate: Callable[[str | None, int | None], None],
        zookeeper: Callable[[], KafkaZooKeeper],
    ) -> None:
        self._quotas = quotas
        self._set_connection_rate = set_connection_rate
        self._zookeeper = zookeeper
        # By the paths of the entities that have quotas.
        self._known: dict[str, dict[str, float]] = {}
        # The addresses of each name in /config/ips that has a quota, and the quotas of each address by these names.
        self._addresses: dict[str, list[str]] = {}
        self._rates: dict[str, dict[str, int]] = {}

    async def load(self) -> None:
        """Reads all quotas and puts them into effect. Raises ZooKeeperError when the session ends."""
        found = await self._zookeeper().configs.quota_entities()
        await self._read([*found, *sorted(self._known.keys() - set(found))])

    async def changed(self, entity_path: str) -> None:
        """Reads the quotas of an entity and puts them into effect. Raises ZooKeeperError when the session ends."""
        await self._read([entity_path])

    async def _read(self, entity_paths: Sequence[str]) -> None:
        async for some in slices(entity_paths):
            for path, stored in (await self._zookeeper().configs.of_entities(some)).items():
                if (entity := entity_of(path)) is not None:
                    await self._apply(path, entity, stored)

    async def _apply(self, path: str, entity: Named, stored: Mapping[str, str] | ZnodeError) -> None:
        known = self._known.get(path, {})
        if isinstance(stored, ZnodeError):
            _log.error("quotas cannot be read: %s. Until they are corrected, these apply: %s", stored, known)
            return
        values, problems = stored_values(entity, stored)
        for problem in problems:
            _log.error("ignored a quota of %s: %s", path, problem)
        values.update({key: value for key, value in known.items() if key in stored and key not in values})
        if values == known:
            return
        if values:
            self._known[path] = values
        else:
            del self._known[path]
        _log.info("the quotas of %s are %s", path, values)
        if IP in entity:
            await self._apply_to_addresses(entity[IP], values.get(CONNECTION_CREATION_RATE))
        else:
            self._quotas.configure(quota_entity(entity), values)

    async def _apply_to_addresses(self, name: str | None, rate: float | None) -> None:
        per_second = None if rate is None else int(rate)
        if name is None:
            self._set_connection_rate(None, per_second)
            return
        former = self._addresses.pop(name, [])
        addresses = [] if per_second is None else await self._addresses_of(name, former)
        for address in former:
            del self._rates[address][name]
        if per_second is not None:
            self._addresses[name] = addresses
            for address in addresses:
                self._rates.setdefault(address, {})[name] = per_second
        for address in dict.fromkeys([*former, *addresses]):
            self._set_connection_rate(address, min(self._rates[address].values(), default=None))
            if not self._rates[address]:
                del self._rates[address]

    async def _addresses_of(self, name: str, former: list[str]) -> list[str]:
        try:
            return list(dict.fromkeys(await addresses_of(name)))
        except OSError as error:
            _log.error("ips/%s is no address and no known host: %s. Its quota is that of %s", name, error, former)
            return former
