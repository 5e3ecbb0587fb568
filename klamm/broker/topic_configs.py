"""The configurations of the topics that this broker hosts, as ZooKeeper has them in /config/topics.

A topic whose stored configuration is not valid (somebody wrote the znode by hand) runs with the broker's defaults, and
the log says so: data must stay readable.
"""

import logging
from collections.abc import Sequence

from klamm.config.broker import BrokerConfig
from klamm.config.definition import ConfigError
from klamm.config.topic import TopicConfig
from klamm.znodes.store import KafkaZooKeeper

_log = logging.getLogger(__name__)


class TopicConfigs:
    """Topic -> configuration. `load` comes before a topic's first log is opened."""

    def __init__(self, config: BrokerConfig) -> None:
        self._broker_config = config
        self._default = TopicConfig.from_overrides(config, {})
        self._configs: dict[str, TopicConfig] = {}

    async def load(self, zookeeper: KafkaZooKeeper, topics: Sequence[str]) -> None:
        """Reads the configurations of these topics. Raises ZooKeeperError."""
        for topic, overrides in (await zookeeper.topic_configs(topics)).items():
            try:
                self._configs[topic] = TopicConfig.from_overrides(self._broker_config, overrides, stored=True)
            except ConfigError as error:
                _log.error("topic %s runs with default configs, its own are not valid: %s", topic, error)
                self._configs[topic] = self._default

    def of(self, topic: str) -> TopicConfig:
        """The topic's configuration; the broker's defaults for one that was not loaded."""
        return self._configs.get(topic, self._default)

    def forget(self, topic: str) -> None:
        """The topic is deleted."""
        self._configs.pop(topic, None)
