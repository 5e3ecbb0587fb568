"""The partitions that this broker hosts, and those that it would host if their log could be used.

What must stay true:
- A hosted partition has a log. One whose log cannot be opened, or has failed, is offline: it answers
  KAFKA_STORAGE_ERROR, and the others notice nothing.
- Whoever waits for a partition hears when it goes.

Source: kafka.server.HostedPartition.
"""

from collections.abc import Callable, Mapping
from uuid import UUID

from klamm.config.topic import TopicConfig
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.replication.partition import Partition
from klamm.storage.log import Log
from klamm.storage.log_config import LogConfig
from klamm.storage.log_manager import LogManager
from klamm.znodes.topics import TopicPartition


class HostedPartitions:
    """`make(topic, partition, log)` makes the partition of a log; `on_change` hears of each that comes or goes."""

    def __init__(
        self,
        log_manager: LogManager,
        topic_config_of: Callable[[str], TopicConfig],
        is_known: Callable[[str, int], bool],
        make: Callable[[str, int, Log, TopicConfig], Partition],
        on_change: Callable[[TopicPartition], None],
    ) -> None:
        self._log_manager = log_manager
        self._topic_config_of = topic_config_of
        self._is_known = is_known
        self._make = make
        self._on_change = on_change
        self._partitions: dict[TopicPartition, Partition] = {}
        self._offline: dict[TopicPartition, None] = {}

    @property
    def all(self) -> Mapping[TopicPartition, Partition]:
        return self._partitions

    def get(self, key: TopicPartition) -> Partition | None:
        return self._partitions.get(key)

    def require(self, topic: str, partition: int) -> Partition:
        """Raises KafkaError: KAFKA_STORAGE_ERROR; NOT_LEADER_OR_FOLLOWER for what others host, so that clients look for
        the leader; UNKNOWN_TOPIC_OR_PARTITION."""
        found = self._partitions.get((topic, partition))
        if found is not None:
            return found
        if (topic, partition) in self._offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log of {topic}-{partition} cannot be used")
        if self._is_known(topic, partition):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{partition} is not hosted here")
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition} is not known here")

    def is_offline(self, key: TopicPartition) -> bool:
        """Whether the partition's log is out of reach for good. If only space was missing, it may be tried again."""
        manager = self._log_manager
        return key in self._offline and len(manager.live_directories) < len(manager.directories)

    def open(self, topic: str, partition: int, topic_id: UUID | None, *, is_new: bool) -> Partition:
        """The hosted partition; if need be its log is opened or created.

        Raises KafkaError: KAFKA_STORAGE_ERROR, INCONSISTENT_TOPIC_ID.
        """
        found = self._partitions.get((topic, partition))
        if found is not None:
            return found
        config = self._topic_config_of(topic)
        log = self._log_manager.get_or_create(topic, partition, topic_id, log_config(config), is_new=is_new)
        self._offline.pop((topic, partition), None)
        made = self._partitions[topic, partition] = self._make(topic, partition, log, config)
        return made

    def mark_offline(self, key: TopicPartition) -> None:
        self._offline[key] = None
        self._close(key)

    def remove(self, key: TopicPartition) -> None:
        """Not hosted any more."""
        self._offline.pop(key, None)
        self._close(key)

    def _close(self, key: TopicPartition) -> None:
        partition = self._partitions.pop(key, None)
        if partition is not None:
            partition.stop()
        self._on_change(key)


def log_config(config: TopicConfig) -> LogConfig:
    """The part of a topic's configuration that its logs need."""
    return LogConfig(**{name: getattr(config, name) for name in LogConfig.__dataclass_fields__})
