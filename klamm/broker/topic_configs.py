"""The configurations of the topics that this broker hosts, as ZooKeeper has them in /config/topics.

A topic whose stored configuration is not valid (somebody wrote the znode by hand) runs with the broker's defaults, and
the log says so: data must stay readable.
"""

import logging
from collections.abc import Callable, Sequence

from klamm.config.broker import BrokerConfig
from klamm.config.definition import ConfigError
from klamm.config.topic import TopicConfig
from klamm.znodes.store import KafkaZooKeeper

_log = logging.getLogger(__name__)


class TopicConfigs:
    """Topic -> configuration. `load` comes before a topic's first log is opened.

    `zookeeper()` is the store of the current session.
    """

    def __init__(self, config: BrokerConfig, zookeeper: Callable[[], KafkaZooKeeper]) -> None:
        self._broker_config = config
        self._zookeeper = zookeeper
        self._default = TopicConfig.from_overrides(config, {})
        self._configs: dict[str, TopicConfig] = {}

    async def load(self, topics: Sequence[str]) -> None:
        """Reads and keeps the configurations of these topics. Raises ZooKeeperError when the session ends."""
        self._configs.update(await self.read(topics))

    async def read(self, topics: Sequence[str]) -> dict[str, TopicConfig]:
        """The configurations of these topics as ZooKeeper has them now. Raises ZooKeeperError when the session ends."""
        configs = {}
        for topic, overrides in (await self._zookeeper().topic_configs(topics)).items():
            try:
                configs[topic] = TopicConfig.from_overrides(self._broker_config, overrides, stored=True)
            except ConfigError as error:
                _log.error("topic %s runs with default configs, its own are not valid: %s", topic, error)
                configs[topic] = self._default
        return configs

    def of(self, topic: str) -> TopicConfig:
        """The topic's configuration; the broker's defaults for one that was not loaded."""
        return self._configs.get(topic, self._default)

    def forget(self, topic: str) -> None:
        """The topic is deleted."""
        self._configs.pop(topic, None)
