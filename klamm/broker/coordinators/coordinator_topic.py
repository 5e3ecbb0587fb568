"""The topic of a kind of coordinator, `__consumer_offsets` or `__transaction_state`.

`CoordinatorTopic` finds the coordinator of a group or a transactional id, and creates the topic.

What must stay true:
- The number of partitions decides which broker coordinates a key (a group's id, or a transactional id), so all brokers
  must use the same number. Each broker takes it from ZooKeeper when it first learns of the topic, and keeps it until a
  restart, even if the topic changes. Before that no key has a partition.
- The topic is created with Kafka's configuration, whichever client asks first.

Source: kafka.server.AutoTopicCreationManager, kafka.coordinator.group.GroupCoordinator (`offsetsTopicConfigs`),
kafka.coordinator.transaction.TransactionStateManager (`transactionTopicConfigs`).
"""

import logging
from collections.abc import Callable

from klamm.broker.metadata.metadata_cache import Endpoint, MetadataCache
from klamm.broker.quotas.mutation_quota import UNBOUNDED_MUTATIONS, Mutations
from klamm.broker.topics.auto_topic_creation import AutoTopicCreation
from klamm.broker.topics.topic_admin import NewTopic
from klamm.config.current import CurrentConfig
from klamm.coordinator.groups.group_metadata_manager import UNKNOWN_PARTITION, partition_for
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME, NO_LEADER, TRANSACTION_STATE_TOPIC_NAME
from klamm.znodes.store import KafkaZooKeeper

_log = logging.getLogger(__name__)


class CoordinatorTopic:
    """This broker's knowledge of the topic. `new_topic` describes the topic that this broker would create;
    `zookeeper()` is the store of the current session."""

    def __init__(
        self,
        name: str,
        new_topic: Callable[[], NewTopic],
        metadata_cache: MetadataCache,
        auto_topic_creation: AutoTopicCreation,
        zookeeper: Callable[[], KafkaZooKeeper],
    ) -> None:
        self.name = name
        self.new_topic = new_topic
        self._metadata_cache = metadata_cache
        self._auto_topic_creation = auto_topic_creation
        self._zookeeper = zookeeper
        self._partition_count = 0

    async def load(self) -> None:
        """Reads the number of partitions from ZooKeeper, if it is not known yet. Raises ZooKeeperError."""
        if self._partition_count == 0:
            # The controller may have announced the topic before this broker's ZooKeeper server has seen it.
            await self._zookeeper().sync()
            assignment = await self._zookeeper().topic_assignment(self.name)
            if assignment is not None:
                self._partition_count = len(assignment.partitions)

    def partition_for(self, key: str) -> int:
        """The partition that has the key and whose leader coordinates it; UNKNOWN_PARTITION without the topic."""
        return partition_for(key, self._partition_count) if self._partition_count else UNKNOWN_PARTITION

    async def find_coordinator(
        self, key: str, listener_name: str, changes: Mutations = UNBOUNDED_MUTATIONS
    ) -> tuple[int, Endpoint]:
        """The broker that coordinates the key, and where it listens under this listener name.

        The first request creates the topic, whose partitions `changes` records. Raises KafkaError
        COORDINATOR_NOT_AVAILABLE while there is no coordinator: clients retry.
        """
        snapshot = await self._metadata_cache.first_snapshot()
        if not self._metadata_cache.is_filled.is_set():
            raise _not_available("this broker has not heard from a controller since its start")
        if self.name not in snapshot.topics:
            await self._create(changes)
            raise _not_available(f"{self.name} is being created")
        partition = self.partition_for(key)
        state = snapshot.partition(self.name, partition)
        if state is None or state.leader == NO_LEADER:
            raise _not_available(f"{self.name}-{partition} has no leader")
        endpoint = snapshot.endpoint(state.leader, listener_name)
        if endpoint is None:
            raise _not_available(f"broker {state.leader} cannot be reached through listener {listener_name}")
        return state.leader, endpoint

    async def _create(self, changes: Mutations) -> None:
        """Creates the topic without waiting for leaders. Raises KafkaError COORDINATOR_NOT_AVAILABLE with the reason if
        that fails."""
        refused = await self._auto_topic_creation.create([self.new_topic()], changes)
        error = refused.get(self.name)
        if error is not None:
            _log.warning("%s cannot be created, so it has no coordinators: %s", self.name, error)
            raise _not_available(f"{self.name} cannot be created: {error.message or error}")


def offsets_topic(config: CurrentConfig) -> NewTopic:
    """`__consumer_offsets` with this broker's configured counts and Kafka's required configs."""
    return NewTopic(
        GROUP_METADATA_TOPIC_NAME,
        config.current.offsets_topic_num_partitions,
        config.current.offsets_topic_replication_factor,
        configs={
            "cleanup.policy": "compact",
            "segment.bytes": str(config.current.offsets_topic_segment_bytes),
            "compression.type": "producer",
        },
    )


def transaction_topic(config: CurrentConfig) -> NewTopic:
    """`__transaction_state` with this broker's configured counts and Kafka's required configs."""
    return NewTopic(
        TRANSACTION_STATE_TOPIC_NAME,
        config.current.transaction_state_log_num_partitions,
        config.current.transaction_state_log_replication_factor,
        configs={
            "unclean.leader.election.enable": "false",
            "compression.type": "uncompressed",
            "cleanup.policy": "compact",
            "min.insync.replicas": str(config.current.transaction_state_log_min_isr),
            "segment.bytes": str(config.current.transaction_state_log_segment_bytes),
        },
    )


def _not_available(message: str) -> KafkaError:
    return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
