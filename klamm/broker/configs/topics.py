"""The configurations of topics, as ZooKeeper has them in /config/topics.

What must stay true:
- An unreadable stored config (from a znode written by hand) is logged and never makes a topic less safe: the last known
  value counts, or the safest one (`klamm.config.safest`). The znode's other values stay in force.
- A topic's kept configuration is never older than the last one read: reads that update it are serialized.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from klamm.base.slices import each
from klamm.config.current import CurrentConfig
from klamm.config.topic import TopicConfig
from klamm.znodes.fields import ZnodeError
from klamm.znodes.store import KafkaZooKeeper

# How many topics' configurations a slice makes.
TOPICS_PER_SLICE = 200

_log = logging.getLogger(__name__)


class TopicConfigs:
    """The configurations by topic. `load` must come before a topic's first log is opened.

    `zookeeper()` is the store of the current session. `on_change` gets each kept configuration.
    """

    def __init__(
        self,
        config: CurrentConfig,
        zookeeper: Callable[[], KafkaZooKeeper],
        on_change: Callable[[str, TopicConfig], None],
    ) -> None:
        self._config = config
        self._zookeeper = zookeeper
        self._on_change = on_change
        self._default = TopicConfig.from_overrides(config.current, {})
        self._configs: dict[str, TopicConfig] = {}
        self._keeping = asyncio.Lock()

    async def load(self, topics: Sequence[str]) -> None:
        """Reads and keeps the configurations of these topics. The controller may have announced them before this
        broker's ZooKeeper server has seen them. Raises ZooKeeperError when the session ends."""
        async with self._keeping:
            async for topic, config in each((await self.read(topics)).items(), TOPICS_PER_SLICE):
                self._keep(topic, config)

    async def refresh(self, topic: str) -> TopicConfig:
        """Reads the topic's configuration after a notification in this session. Keeps it only if one was kept before.

        Raises ZooKeeperError.
        """
        async with self._keeping:
            config = (await self._read([topic]))[topic]
            if topic in self._configs:
                self._keep(topic, config)
            return config

    async def refresh_all(self) -> None:
        """Reads all kept configurations again. Raises ZooKeeperError."""
        await self.load(list(self._configs))

    async def inherit(self) -> None:
        """Applies a changed broker configuration to the topics that inherit from it."""
        async with self._keeping:
            self._default = TopicConfig.from_overrides(self._config.current, {})
            async for topic in each(self._configs, TOPICS_PER_SLICE):
                # A topic may be forgotten between slices.
                if (kept := self._configs.get(topic)) is not None:
                    self._keep(topic, self._make(topic, kept.overrides))

    async def read(self, topics: Sequence[str]) -> dict[str, TopicConfig]:
        """The current configurations of these topics in ZooKeeper. Raises ZooKeeperError when the session ends."""
        await self._zookeeper().sync()
        return await self._read(topics)

    async def _read(self, topics: Sequence[str]) -> dict[str, TopicConfig]:
        """The configurations on this session's ZooKeeper server."""
        stored = await self._zookeeper().configs.of_topics(topics)
        return {
            topic: self._make(topic, overrides) async for topic, overrides in each(stored.items(), TOPICS_PER_SLICE)
        }

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
                "topic %s has a configuration that cannot be read: %s. Until it is corrected, %s counts: %s",
                topic,
                problem,
                "what is safest" if known is None else "what was known before",
                dict(config.overrides),
            )
        return config

    def of(self, topic: str) -> TopicConfig:
        """The topic's configuration, or the broker's defaults if it was not loaded."""
        return self._configs.get(topic, self._default)

    def forget(self, topic: str) -> None:
        """Drops the configuration of a deleted topic."""
        if self._configs.pop(topic, None) is not None:
            self._on_change(topic, self._default)

    def _keep(self, topic: str, config: TopicConfig) -> None:
        self._configs[topic] = config
        self._on_change(topic, config)
