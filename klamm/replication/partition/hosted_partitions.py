"""The partitions that this broker hosts, and the partitions that it would host if their logs could be used.

What must stay true:
- A hosted partition has a log. A partition whose log cannot be opened, or has failed, is offline: it answers
  KAFKA_STORAGE_ERROR, and other partitions are not affected. If no disk has failed, only space was missing, and the log
  may be opened later.
- Operations that wait for a partition are notified when it is no longer hosted.

Source: kafka.server.HostedPartition.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple
from uuid import UUID
from weakref import WeakKeyDictionary

from klamm.base.slices import slices
from klamm.config.topic import TopicConfig
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME, PartitionKey
from klamm.replication.partition.partition import Partition
from klamm.replication.partition.topic_metrics import TopicCounts, TopicStatistics
from klamm.storage.directories.log_manager import LogManager
from klamm.storage.log.log import Log
from klamm.storage.log.log_config import LogConfig

# Closed segments are compacted, but loading a partition's groups reads every record of the active segment. With the
# 100 MB of offsets.topic.segment.bytes that is a million records and more.
OFFSETS_ROLL_BYTES = 256 * 1024


class WantedLog(NamedTuple):
    """A log that could not be used, as in LeaderAndIsr: its topic id, and whether it is new."""

    topic_id: UUID | None
    is_new: bool


class HostedPartitions:
    """`make` makes the partition of a log. `on_change` is called for each partition that is added or removed."""

    def __init__(
        self,
        log_manager: LogManager,
        topic_config_of: Callable[[str], TopicConfig],
        is_known: Callable[[str, int], bool],
        make: Callable[[str, int, Log, TopicConfig, TopicCounts], Partition],
        on_change: Callable[[PartitionKey], None],
    ) -> None:
        self._log_manager = log_manager
        self._topic_config_of = topic_config_of
        self._is_known = is_known
        self._make = make
        self._on_change = on_change
        self._partitions: dict[PartitionKey, Partition] = {}
        self.topic_statistics = TopicStatistics()
        # None: the log's disk has failed.
        self._offline: dict[PartitionKey, WantedLog | None] = {}

    @property
    def all(self) -> Mapping[PartitionKey, Partition]:
        return self._partitions

    def get(self, key: PartitionKey) -> Partition | None:
        return self._partitions.get(key)

    def require(self, topic: str, partition: int) -> Partition:
        """The hosted partition. Raises KafkaError: KAFKA_STORAGE_ERROR; UNKNOWN_TOPIC_OR_PARTITION;
        NOT_LEADER_OR_FOLLOWER for a partition that other brokers host, so that clients look for the leader."""
        found = self._partitions.get((topic, partition))
        if found is not None:
            return found
        if (topic, partition) in self._offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log of {topic}-{partition} cannot be used")
        if self._is_known(topic, partition):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{topic}-{partition} is not hosted here")
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition} is not known here")

    def is_offline(self, key: PartitionKey) -> bool:
        """Whether the partition's log has failed for good. False if only space was missing."""
        return key in self._offline and self._has_failed_directory

    @property
    def offline_count(self) -> int:
        return len(self._offline)

    @property
    def _has_failed_directory(self) -> bool:
        return len(self._log_manager.live_directories) < len(self._log_manager.directories)

    def open(self, topic: str, partition: int, topic_id: UUID | None, *, is_new: bool) -> Partition:
        """The hosted partition. Opens or creates its log if necessary.

        Raises KafkaError: KAFKA_STORAGE_ERROR, INCONSISTENT_TOPIC_ID.
        """
        found = self._partitions.get((topic, partition))
        if found is not None:
            return found
        config = self._topic_config_of(topic)
        log = self._log_manager.get_or_create(topic, partition, topic_id, log_config(config, topic), is_new=is_new)
        log.config = log_config(config, topic)  # An existing log may have an older configuration.
        self._offline.pop((topic, partition), None)
        counts = self.topic_statistics.hosts_one_more(topic)
        made = self._partitions[topic, partition] = self._make(topic, partition, log, config, counts)
        return made

    async def update_topic_configs(self, topic: str | None = None) -> None:
        """Gives partitions and logs the current configuration of their topic: of all topics, or of `topic`."""
        keys = [key for key in self._partitions if topic is None or key[0] == topic]
        async for piece in slices(keys):
            for key in piece:
                # Partitions may be removed while the loop runs other work.
                partition, config = self._partitions.get(key), self._topic_config_of(key[0])
                if partition is not None and partition.topic_config is not config:
                    partition.topic_config = config
                    partition.log.config = log_config(config, key[0])
                    if partition.future_log is not None:  # Retention deletes its records, too.
                        partition.future_log.config = partition.log.config

    def mark_offline(self, key: PartitionKey, wanted: WantedLog | None = None) -> None:
        """The partition's log cannot be used. With `wanted`, `reopen` may try again."""
        self._offline[key] = wanted
        self._close(key)

    @property
    def waiting_for_space(self) -> list[PartitionKey]:
        """The offline partitions for which `reopen` may succeed. Excludes logs that may be on a failed disk."""
        has_failed = self._has_failed_directory
        return [
            key for key, wanted in self._offline.items() if wanted is not None and (wanted.is_new or not has_failed)
        ]

    def reopen(self, key: PartitionKey) -> bool:
        """Tries again to open an offline partition's log. Returns whether the log is open and has space for an epoch.

        The partition is then hosted without a leader until the next LeaderAndIsr.
        """
        wanted = self._offline.get(key)
        if wanted is None:
            return False
        try:
            self.open(*key, wanted.topic_id, is_new=wanted.is_new).log.leader_epochs.rewrite()
        except KafkaError:
            self.mark_offline(key, wanted)
            return False
        return True

    def remove(self, key: PartitionKey) -> None:
        """The partition is no longer hosted."""
        self._offline.pop(key, None)
        self._close(key)

    def _close(self, key: PartitionKey) -> None:
        partition = self._partitions.pop(key, None)
        if partition is not None:
            partition.stop()
            self.topic_statistics.hosts_one_less(partition.topic)
        self._on_change(key)


# One LogConfig for each topic configuration, shared by all partitions of the topic.
_log_configs: WeakKeyDictionary[TopicConfig, LogConfig] = WeakKeyDictionary()


def log_config(config: TopicConfig, topic: str = "") -> LogConfig:
    """The part of a topic's configuration that its logs need. Topics do not share a configuration."""
    made = _log_configs.get(config)
    if made is None or (made.roll_bytes == OFFSETS_ROLL_BYTES) != (topic == GROUP_METADATA_TOPIC_NAME):
        values = {name: getattr(config, name) for name in LogConfig.__dataclass_fields__ if name != "roll_bytes"}
        if topic == GROUP_METADATA_TOPIC_NAME:
            values["roll_bytes"] = OFFSETS_ROLL_BYTES
        made = _log_configs[config] = LogConfig(**values)
    return made
