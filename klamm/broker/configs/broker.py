"""This broker's current configuration: its file, overridden by the dynamic configs of all brokers and then of this
broker in ZooKeeper (Kafka's `DynamicBrokerConfig`).

What must stay true: `current` is valid, and a znode never stops a broker. An unreadable stored config is logged and
never makes the broker less safe: the last known values count, or the safest ones (`klamm.config.safest`). If the values
of a level contradict each other or the file, only the configs that guard records are applied.
"""

import logging
from collections.abc import Mapping

from klamm.config.broker import BrokerConfig
from klamm.config.current import CurrentConfig
from klamm.config.definition import ConfigError
from klamm.config.dynamic import SAFEST_BROKER_VALUES, entry_problems, is_password
from klamm.config.safest import values_instead
from klamm.znodes.configs import broker_entity
from klamm.znodes.fields import ZnodeError
from klamm.znodes.store import KafkaZooKeeper

_log = logging.getLogger(__name__)

Stored = Mapping[str, str] | ZnodeError


class DynamicBrokerConfig(CurrentConfig):
    """`current` is the file's configuration until `load`."""

    def __init__(self, static: BrokerConfig) -> None:
        super().__init__(static)
        self._is_loaded = False

    async def load(self, store: KafkaZooKeeper, broker_id: int) -> None:
        """Reads and applies the stored configs. Raises ZooKeeperError when the session ends."""
        default = await _stored(store, broker_entity(None))
        self.apply(default, await _stored(store, broker_entity(broker_id)))

    def apply(self, default: Stored, broker: Stored) -> None:
        """Applies the stored configs of all brokers (`default`) and of this broker (`broker`)."""
        current = self.current
        known_default = current.dynamic_default if self._is_loaded else None
        known_broker = current.dynamic_broker if self._is_loaded else None
        usable_default = _usable(default, known_default, per_broker=False)
        usable_broker = _usable(broker, known_broker, per_broker=True)
        static = current.with_dynamic(default={}, broker={})
        try:
            new = static.with_dynamic(default=usable_default, broker=usable_broker)
        except ConfigError:
            new = _level_by_level(static, usable_default, usable_broker)
        self._is_loaded = True
        self.replace(new)


async def _stored(store: KafkaZooKeeper, entity_path: str) -> Stored:
    try:
        return await store.configs.of(entity_path)
    except ZnodeError as error:
        return error


def _level_by_level(static: BrokerConfig, default: Mapping[str, str], broker: Mapping[str, str]) -> BrokerConfig:
    """Applies the levels. If a level contradicts the levels below, only its configs that guard records are applied;
    these never contradict."""
    config = _with_level(static, "the default configs of the cluster", default=default)
    return _with_level(config, "the dynamic configs of this broker", broker=broker)


def _with_level(config: BrokerConfig, called: str, **level: Mapping[str, str]) -> BrokerConfig:
    """`level` has the level's name and its configs."""
    try:
        return config.with_dynamic(**level)
    except ConfigError as error:
        ((name, given),) = level.items()
        kept = _guards(given)
        _log.error("of %s, %s, only %s are applied: %s", called, *_names(given, kept), error)
        return config.with_dynamic(**{name: kept})


def _guards(level: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in level.items() if name in SAFEST_BROKER_VALUES}


def _names(level: Mapping[str, str], kept: Mapping[str, str]) -> tuple[list[str], list[str]]:
    return sorted(level), sorted(kept)


def _usable(stored: Stored, known: Mapping[str, str] | None, *, per_broker: bool) -> dict[str, str]:
    """The usable configs of a level. `known` are the configs in force so far, None before the first reading."""
    if isinstance(stored, ZnodeError):
        level = dict(SAFEST_BROKER_VALUES if known is None else known)
        _log.error("dynamic configs cannot be read: %s. Until they are corrected, these apply: %s", stored, level)
        return level
    problems = entry_problems(stored, per_broker=per_broker)
    instead = values_instead(problems, known, SAFEST_BROKER_VALUES)
    for name, problem in problems.items():
        _log.error("ignored a dynamic config: %s. Used instead: %s", problem, instead.get(name, "nothing"))
    # A password is stored encrypted: this broker can neither use nor show it.
    usable = {name: text for name, text in stored.items() if name not in problems and not is_password(name)}
    return {**usable, **instead}
