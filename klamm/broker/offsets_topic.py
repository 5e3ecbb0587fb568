"""The topic of the group coordinators, `__consumer_offsets`: finds a group's coordinator and creates the topic.

What must stay true:
- The number of partitions decides which broker coordinates a group, so all brokers must use the same number. Each
  broker takes it from ZooKeeper when it first learns of the topic, and keeps it until a restart, even if the topic
  changes. Before that no group has a partition.
- The topic is created with Kafka's configuration, whichever client asks first.

Source: kafka.server.AutoTopicCreationManager, kafka.coordinator.group.GroupCoordinator (`offsetsTopicConfigs`).
"""

import logging
from collections.abc import Callable

from klamm.broker.auto_topic_creation import AutoTopicCreation
from klamm.broker.metadata_cache import Endpoint, MetadataCache
from klamm.broker.quotas.mutation_quota import UNBOUNDED_MUTATIONS, Mutations
from klamm.broker.topic_admin import NewTopic
from klamm.config.current import CurrentConfig
from klamm.coordinator.group_metadata_manager import UNKNOWN_PARTITION, partition_for
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME, NO_LEADER
from klamm.znodes.store import KafkaZooKeeper

_log = logging.getLogger(__name__)


class OffsetsTopic:
    """What this broker knows of the topic. `zookeeper()` is the store of the current session."""

    def __init__(
        self,
        config: CurrentConfig,
        metadata_cache: MetadataCache,
        auto_topic_creation: AutoTopicCreation,
        zookeeper: Callable[[], KafkaZooKeeper],
    ) -> None:
        self._config = config
        self._metadata_cache = metadata_cache
        self._auto_topic_creation = auto_topic_creation
        self._zookeeper = zookeeper
        self._partition_count = 0

    async def load(self) -> None:
        """Reads the number of partitions from ZooKeeper, if it is not known yet. Raises ZooKeeperError."""
        if self._partition_count == 0:
            # The controller may have announced the topic before this broker's ZooKeeper server has seen it.
            await self._zookeeper().sync()
            assignment = await self._zookeeper().topic_assignment(GROUP_METADATA_TOPIC_NAME)
            if assignment is not None:
                self._partition_count = len(assignment.partitions)

    def partition_for(self, group_id: str) -> int:
        """The partition that keeps the group, and whose leader coordinates it; UNKNOWN_PARTITION without the topic."""
        return partition_for(group_id, self._partition_count) if self._partition_count else UNKNOWN_PARTITION

    def new_topic(self) -> NewTopic:
        """The topic with this broker's configured counts and Kafka's required configs."""
        config = self._config.current
        return NewTopic(
            GROUP_METADATA_TOPIC_NAME,
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            configs={
                "cleanup.policy": "compact",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
                "compression.type": "producer",
            },
        )

    async def find_coordinator(
        self, group_id: str, listener_name: str, changes: Mutations = UNBOUNDED_MUTATIONS
    ) -> tuple[int, Endpoint]:
        """The broker that coordinates the group, and where it listens under this listener name.

        The first request creates the topic, whose partitions `changes` records. Raises KafkaError
        COORDINATOR_NOT_AVAILABLE while there is no coordinator: clients retry.
        """
        snapshot = await self._metadata_cache.first_snapshot()
        if GROUP_METADATA_TOPIC_NAME not in snapshot.topics:
            await self._create(changes)
            raise _not_available(f"{GROUP_METADATA_TOPIC_NAME} is being created")
        partition = self.partition_for(group_id)
        state = snapshot.partition(GROUP_METADATA_TOPIC_NAME, partition)
        if state is None or state.leader == NO_LEADER:
            raise _not_available(f"{GROUP_METADATA_TOPIC_NAME}-{partition} has no leader")
        endpoint = snapshot.endpoint(state.leader, listener_name)
        if endpoint is None:
            raise _not_available(f"broker {state.leader} cannot be reached through listener {listener_name}")
        return state.leader, endpoint

    async def _create(self, changes: Mutations) -> None:
        """Does not wait for leaders. Raises KafkaError COORDINATOR_NOT_AVAILABLE with the reason when it cannot be."""
        refused = await self._auto_topic_creation.create([self.new_topic()], changes)
        error = refused.get(GROUP_METADATA_TOPIC_NAME)
        if error is not None:
            _log.warning("%s cannot be created, so no group has a coordinator: %s", GROUP_METADATA_TOPIC_NAME, error)
            raise _not_available(f"{GROUP_METADATA_TOPIC_NAME} cannot be created: {error.message or error}")


def _not_available(message: str) -> KafkaError:
    return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
