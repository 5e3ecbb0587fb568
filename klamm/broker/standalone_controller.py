"""Stands in for the controller while a cluster has one broker; the real controller replaces this module.

It watches the znodes that ask for topics, partitions and deletions, makes this broker the leader of every partition,
writes the partition-state znodes, and tells the replica manager and the metadata cache, in the order in which the
controller would send LeaderAndIsr and UpdateMetadata.

What must stay true:
- Watches only enqueue; one task consumes the events, one after another. Register the watch, then read.
- A partition's leader epoch grows with every start of the broker, as it would with an election.
- A failed ZooKeeper call drops the event; a new session starts over by reading everything.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from klamm.broker.metadata_cache import LEADER_DURING_DELETE, BrokerMetadata, MetadataCache, PartitionMetadata
from klamm.broker.topic_admin import TopicAdmin
from klamm.broker.topic_configs import TopicConfigs
from klamm.protocol.errors import KafkaError
from klamm.replication.partition import PartitionState
from klamm.replication.replica_manager import ReplicaManager, TopicPartition
from klamm.znodes.store import KafkaZooKeeper
from klamm.znodes.topics import LeaderAndIsr, TopicAssignment
from klamm.zookeeper.errors import ZooKeeperError

# Below every epoch that a real controller writes, so that one can take over.
CONTROLLER_EPOCH = 0

_log = logging.getLogger(__name__)


class StandaloneController:
    """One ZooKeeper session's worth of it: made when the session starts, stopped when it ends."""

    def __init__(
        self,
        broker: BrokerMetadata,
        zookeeper: KafkaZooKeeper,
        metadata_cache: MetadataCache,
        replica_manager: ReplicaManager,
        topic_configs: TopicConfigs,
        topic_admin: TopicAdmin,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._broker = broker
        self._zookeeper = zookeeper
        self._metadata_cache = metadata_cache
        self._replica_manager = replica_manager
        self._topic_configs = topic_configs
        self._topic_admin = topic_admin
        self._on_failure = on_failure
        self._changed_topics: dict[str, None] = {}
        self._topics_changed = False
        self._deletions_changed = False
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        # What has been announced: topic -> the partitions that this broker leads in this session.
        self._led: dict[str, dict[int, PartitionState]] = {}

    async def start(self) -> None:
        """Takes up all topics that exist, finishes deletions, and from then on follows the znodes."""
        self._metadata_cache.update(self._broker.id, {self._broker.id: self._broker}, {}, {})
        self._topics_changed = self._deletions_changed = True
        await self._process()
        self._task = asyncio.ensure_future(self._run())
        self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # -- events ---------------------------------------------------------------------------------------------------

    def _on_topics(self) -> None:
        self._topics_changed = True
        self._wake.set()

    def _on_topic(self, topic: str) -> None:
        self._changed_topics[topic] = None
        self._wake.set()

    def _on_deletions(self) -> None:
        self._deletions_changed = True
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._process()
            except ZooKeeperError as error:
                # The session is gone or going: its successor reads everything anew.
                _log.warning("controller event dropped: %s", error)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)

    async def _process(self) -> None:
        if self._topics_changed:
            self._topics_changed = False
            names = await self._zookeeper.topic_names(watch=self._on_topics)
            self._changed_topics.update((name, None) for name in names if name not in self._led)
        while self._changed_topics:
            names = list(self._changed_topics)
            self._changed_topics.clear()
            await self._take_up(names)
        if self._deletions_changed:
            self._deletions_changed = False
            for topic in await self._zookeeper.topic_deletions(watch=self._on_deletions):
                await self._delete(topic)

    # -- topics ---------------------------------------------------------------------------------------------------

    async def _take_up(self, names: list[str]) -> None:
        """Leads every partition of these topics that is not led yet."""
        assignments = await self._zookeeper.topic_assignments(names, watch=self._on_topic)
        await self._topic_configs.load(self._zookeeper, list(assignments))
        new = {
            (topic, number): replicas
            for topic, assignment in assignments.items()
            for number, replicas in assignment.partitions.items()
            if number not in self._led.get(topic, {})
        }
        states = await self._elect(new)
        for topic, assignment in assignments.items():
            mine = {number: state for (name, number), state in states.items() if name == topic}
            self._announce(topic, assignment, mine)

    async def _elect(self, partitions: Mapping[TopicPartition, Sequence[int]]) -> dict[TopicPartition, PartitionState]:
        """Writes this broker into the state znodes of the partitions that it is a replica of."""
        old = await self._zookeeper.partition_states(list(partitions))
        elected = {
            key: LeaderAndIsr(
                leader=self._broker.id,
                leader_epoch=old[key].leader_epoch + 1 if key in old else 0,
                isr=(self._broker.id,),
                controller_epoch=CONTROLLER_EPOCH,
            )
            for key, replicas in partitions.items()
            if self._broker.id in replicas
        }
        versions = await self._zookeeper.write_partition_states(elected)
        return {
            key: PartitionState(
                state.leader,
                state.leader_epoch,
                state.isr,
                tuple(partitions[key]),
                state.controller_epoch,
                versions[key],
                is_new=key not in old,
            )
            for key, state in elected.items()
        }

    def _announce(self, topic: str, assignment: TopicAssignment, states: dict[int, PartitionState]) -> None:
        led = {}
        for number, state in states.items():
            try:
                self._replica_manager.become_leader(assignment.topic_id, {(topic, number): state})
            except KafkaError as error:
                _log.error("%s-%d is not led: %s", topic, number, error)
                continue
            led[number] = state
        self._led.setdefault(topic, {}).update(led)
        metadata = {
            number: PartitionMetadata(state.leader, state.leader_epoch, state.isr, state.replicas)
            for number, state in led.items()
        }
        ids = {} if assignment.topic_id is None else {topic: assignment.topic_id}
        brokers = {self._broker.id: self._broker}
        self._metadata_cache.update(self._broker.id, brokers, {topic: metadata}, ids)
        self._topic_admin.metadata_changed(topic)

    async def _delete(self, topic: str) -> None:
        led = self._led.get(topic, {})
        for number in led:
            self._replica_manager.stop_replica(topic, number, delete=True)
        await self._zookeeper.delete_topic(topic)
        self._led.pop(topic, None)
        self._topic_configs.forget(topic)
        gone = {
            number: PartitionMetadata(LEADER_DURING_DELETE, state.leader_epoch, state.isr, state.replicas)
            for number, state in led.items()
        }
        self._metadata_cache.update(self._broker.id, {self._broker.id: self._broker}, {topic: gone} if gone else {}, {})
        self._topic_admin.metadata_changed(topic)
