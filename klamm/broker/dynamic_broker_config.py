"""The configuration that this broker runs with now: its file, and over it what ZooKeeper holds for all brokers and for
this one (Kafka's `DynamicBrokerConfig`).

What must stay true: `current` is valid. What is stored and not valid is logged and passed over; if the rest of it
contradicts the file, all of it is, of the cluster or of the broker. A znode never stops a broker.
"""

import logging
from collections.abc import Mapping

from klamm.config.broker import BrokerConfig
from klamm.config.definition import ConfigError
from klamm.config.dynamic import entry_problems, is_password
from klamm.znodes.configs import broker_entity
from klamm.znodes.store import KafkaZooKeeper

_log = logging.getLogger(__name__)


class DynamicBrokerConfig:
    """`current` is the file's alone until something is loaded."""

    def __init__(self, static: BrokerConfig) -> None:
        self.current = static

    async def load(self, store: KafkaZooKeeper, broker_id: int) -> None:
        """Reads and applies what is stored now. Raises ZooKeeperError when the session ends."""
        default = await store.config(broker_entity(None))
        self.apply(default, await store.config(broker_entity(broker_id)))

    def apply(self, default: Mapping[str, str], broker: Mapping[str, str]) -> None:
        """`default` is what all brokers have, `broker` what this one has, as stored."""
        default, broker = _usable(default, per_broker=False), _usable(broker, per_broker=True)
        static = self.current.with_dynamic(default={}, broker={})
        try:
            self.current = static.with_dynamic(default=default, broker=broker)
        except ConfigError:
            self.current = _level_by_level(static, default, broker)


def _level_by_level(static: BrokerConfig, default: Mapping[str, str], broker: Mapping[str, str]) -> BrokerConfig:
    """Without the level that contradicts what is below it."""
    config = static
    try:
        config = config.with_dynamic(default=default)
    except ConfigError as error:
        _log.error("the default configs of the cluster, %s, are not applied: %s", sorted(default), error)
    try:
        config = config.with_dynamic(broker=broker)
    except ConfigError as error:
        _log.error("the dynamic configs of this broker, %s, are not applied: %s", sorted(broker), error)
    return config


def _usable(stored: Mapping[str, str], *, per_broker: bool) -> dict[str, str]:
    problems = entry_problems(stored, per_broker=per_broker)
    for problem in problems.values():
        _log.error("a dynamic config is passed over: %s", problem)
    # A password is stored encrypted: it is nothing that this broker could use, or show.
    return {name: text for name, text in stored.items() if name not in problems and not is_password(name)}
