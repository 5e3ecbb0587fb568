"""The configurations of topics, as ZooKeeper has them in /config/topics.

What must stay true:
- What is stored and cannot be read (somebody wrote the znode by hand) is logged, and never makes a topic less safe:
  what was known before counts, or the safest values (`klamm.config.safest`). Other values of the znode stay in force.
- What is kept for a topic is never older than what was read last: readings for keeps exclude each other.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from klamm.config.current import CurrentConfig
from klamm.config.topic import TopicConfig
from klamm.slices import each
from klamm.znodes.fields import ZnodeError
from klamm.znodes.store import KafkaZooKeeper

# Topics whose configurations are made before others get a turn.
TOPICS_PER_SLICE = 200

_log = logging.getLogger(__name__)


class TopicConfigs:
    """Topic -> configuration. `load` comes before a topic's first log is opened.

    `zookeeper()` is the store of the current session.
    """

    def __init__(self, config: CurrentConfig, zookeeper: Callable[[], KafkaZooKeeper]) -> None:
        self._config = config
        self._zookeeper = zookeeper
        self._default = TopicConfig.from_overrides(config.current, {})
        self._configs: dict[str, TopicConfig] = {}
        self._keeping = asyncio.Lock()

    async def load(self, topics: Sequence[str]) -> None:
        """Reads and keeps the configurations of these topics, of which the controller may have told this broker before
        its ZooKeeper server has heard of them. Raises ZooKeeperError when the session ends."""
        async with self._keeping:
            self._configs.update(await self.read(topics))

    async def refresh(self, topic: str) -> TopicConfig:
        """What the topic's configuration is after a notification in this session; it is kept if the topic's was kept.

        Raises ZooKeeperError.
        """
        async with self._keeping:
            config = (await self._read([topic]))[topic]
            if topic in self._configs:
                self._configs[topic] = config
            return config

    async def refresh_all(self) -> None:
        """Reads what is kept again. Raises ZooKeeperError."""
        await self.load(list(self._configs))

    async def inherit(self) -> None:
        """The broker's configuration has changed: topics have it where they have nothing of their own."""
        async with self._keeping:
            self._default = TopicConfig.from_overrides(self._config.current, {})
            async for topic in each(self._configs, TOPICS_PER_SLICE):
                # A topic may be forgotten while others have their turn.
                if (kept := self._configs.get(topic)) is not None:
                    self._configs[topic] = self._make(topic, kept.overrides)

    async def read(self, topics: Sequence[str]) -> dict[str, TopicConfig]:
        """The configurations of these topics as ZooKeeper has them now. Raises ZooKeeperError when the session ends."""
        await self._zookeeper().sync()
        return await self._read(topics)

    async def _read(self, topics: Sequence[str]) -> dict[str, TopicConfig]:
        """As this session's server has them."""
        stored = await self._zookeeper().topic_configs(topics)
        return {topic: self._make(topic, overrides) for topic, overrides in stored.items()}

    def _make(self, topic: str, stored: Mapping[str, str] | ZnodeError) -> TopicConfig:
        if not stored:
            return self._default
        known = self._configs.get(topic)
        if isinstance(stored, ZnodeError):
            config, problems = TopicConfig.unreadable(self._config.current, known), [str(stored)]
        else:
            config, problems = TopicConfig.from_stored(self._config.current, stored, known)
        for problem in problems:
            _log.error(
                "topic %s has a configuration that cannot be read: %s. Until it is mended, %s counts: %s",
                topic,
                problem,
                "what is safest" if known is None else "what was known before",
                dict(config.overrides),
            )
        return config

    def of(self, topic: str) -> TopicConfig:
        """The topic's configuration; the broker's defaults for one that was not loaded."""
        return self._configs.get(topic, self._default)

    def forget(self, topic: str) -> None:
        """The topic is deleted."""
        self._configs.pop(topic, None)
