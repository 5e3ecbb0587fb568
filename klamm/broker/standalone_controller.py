"""Stands in for the controller while a cluster has one broker; the real controller replaces this module.

It watches the znodes that ask for topics, partitions and deletions, makes this broker the leader of every partition,
writes the partition-state znodes, and tells the replica manager and the metadata cache, in the order in which the
controller would send LeaderAndIsr and UpdateMetadata.

What must stay true:
- Watches only enqueue; one task consumes the events, one after another. Register the watch, then read.
- A partition's leader epoch grows with every start of the broker, as it would with an election.
- A failed ZooKeeper call drops the event; a while later, or in a new session, everything is read again.
- What is wrong with one topic or partition (a znode that nobody can read, a log that cannot be opened) is logged and
  concerns no other. A log that cannot be opened is tried again from time to time, as a full disk may have room again.
"""

import asyncio
import itertools
import logging
from collections.abc import Mapping, Sequence
from uuid import UUID

from klamm.broker.metadata_cache import (
    LEADER_DURING_DELETE,
    NO_LEADER,
    BrokerMetadata,
    MetadataCache,
    PartitionMetadata,
)
from klamm.broker.topic_admin import TopicAdmin, validate_topic_name
from klamm.broker.topic_configs import TopicConfigs
from klamm.protocol.errors import KafkaError
from klamm.replication.partition import PartitionState
from klamm.replication.replica_manager import ReplicaManager, TopicPartition
from klamm.tasks import OnFailure, start_task
from klamm.znodes.fields import ZnodeError
from klamm.znodes.store import KafkaZooKeeper
from klamm.znodes.topics import LeaderAndIsr
from klamm.zookeeper.errors import ZooKeeperError

# Below every epoch that a real controller writes, so that one can take over.
CONTROLLER_EPOCH = 0

# How long until something that failed is tried again, and how many logs at once.
RETRY_MS = 1_000
LOGS_TRIED_AT_ONCE = 100
# Opening a log takes about a millisecond.
LOGS_PER_SLICE = 10

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
        on_failure: OnFailure,
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
        # What has been announced: topic -> the partitions that this broker is the leader of in this session.
        self._led: dict[str, dict[int, PartitionState]] = {}
        # Those of them whose log could not be opened.
        self._unopened: dict[TopicPartition, UUID | None] = {}
        self._opened_in_slice = 0
        self._retry: asyncio.TimerHandle | None = None
        self._retry_due = False
        # Topics to be looked at again when something is retried.
        self._postponed: dict[str, None] = {}

    async def start(self) -> None:
        """Takes up all topics that exist, finishes deletions, and from then on follows the znodes."""
        self._metadata_cache.update(self._broker.id, {self._broker.id: self._broker}, {}, {})
        self._topics_changed = self._deletions_changed = True
        await self._process()
        self._task = start_task(self._run(), self._on_failure)

    async def stop(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
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

    def _on_retry(self) -> None:
        self._retry = None
        self._retry_due = True
        self._wake.set()

    def _retry_later(self) -> None:
        if self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(RETRY_MS / 1000, self._on_retry)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._process()
            except ZooKeeperError as error:
                _log.warning("controller event dropped: %s", error)
                self._topics_changed = self._deletions_changed = True
                self._postponed.update(dict.fromkeys(self._led))
                self._retry_later()

    async def _process(self) -> None:
        if self._retry_due:
            self._retry_due = False
            self._changed_topics.update(self._postponed)
            self._postponed.clear()
            await self._open_logs_again()
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
        legal = [name for name in names if _is_legal(name)]
        assignments = await self._zookeeper.topic_assignments(legal, watch=self._on_topic)
        await self._topic_configs.load(self._zookeeper, list(assignments))
        new = {
            (topic, number): replicas
            for topic, assignment in assignments.items()
            for number, replicas in assignment.partitions.items()
            if number not in self._led.get(topic, {})
        }
        states = await self._elect(new)
        for topic, assignment in assignments.items():
            mine = {number: states[topic, number] for number in assignment.partitions if (topic, number) in states}
            await self._announce(topic, assignment.topic_id, mine)

    async def _elect(self, partitions: Mapping[TopicPartition, Sequence[int]]) -> dict[TopicPartition, PartitionState]:
        """Writes this broker into the state znodes of the partitions that it is a replica of."""
        states = await self._zookeeper.partition_states(list(partitions))
        created, updated = {}, {}
        for key, replicas in partitions.items():
            old = states.get(key)
            if self._broker.id not in replicas:
                continue
            if isinstance(old, ZnodeError):
                _log.error("%s-%d is not led: %s", *key, old)
            elif old is None:
                created[key] = LeaderAndIsr(self._broker.id, 0, (self._broker.id,), CONTROLLER_EPOCH)
            else:
                epoch = old.leader_epoch + 1
                updated[key] = LeaderAndIsr(
                    self._broker.id, epoch, (self._broker.id,), CONTROLLER_EPOCH, old.zk_version
                )
        versions = await self._zookeeper.create_partition_states(created, None)
        versions.update(await self._zookeeper.update_partition_states(updated, None))
        elected = {}
        for key, state in itertools.chain(created.items(), updated.items()):
            version = versions[key]
            if isinstance(version, ZooKeeperError):
                # Somebody else has changed or removed the znode since it was read.
                _log.warning("%s-%d is not led: %s", *key, version)
                self._postponed[key[0]] = None
                self._retry_later()
                continue
            elected[key] = PartitionState(
                state.leader,
                state.leader_epoch,
                state.isr,
                tuple(partitions[key]),
                state.controller_epoch,
                version,
                is_new=key in created,
            )
        return elected

    async def _announce(self, topic: str, topic_id: UUID | None, states: Mapping[int, PartitionState]) -> None:
        metadata = {}
        for number, state in states.items():
            metadata[number] = self._lead(topic, number, topic_id, state)
            self._opened_in_slice += 1
            if self._opened_in_slice == LOGS_PER_SLICE:
                self._opened_in_slice = 0
                await asyncio.sleep(0)  # other requests of this process have their turn
        self._led.setdefault(topic, {}).update(states)
        ids = {} if topic_id is None else {topic: topic_id}
        brokers = {self._broker.id: self._broker}
        self._metadata_cache.update(self._broker.id, brokers, {topic: metadata}, ids)
        self._topic_admin.metadata_changed(topic)

    def _lead(self, topic: str, number: int, topic_id: UUID | None, state: PartitionState) -> PartitionMetadata:
        try:
            self._replica_manager.become_leader(topic_id, {(topic, number): state})
        except KafkaError as error:
            _log.error("%s-%d has no leader: %s", topic, number, error)
            self._unopened[topic, number] = topic_id
            self._retry_later()
            offline = (self._broker.id,)
            return PartitionMetadata(NO_LEADER, state.leader_epoch, state.isr, state.replicas, offline)
        return PartitionMetadata(state.leader, state.leader_epoch, state.isr, state.replicas)

    async def _open_logs_again(self) -> None:
        for (topic, number), topic_id in list(self._unopened.items())[:LOGS_TRIED_AT_ONCE]:
            # One that fails again queues up behind the others.
            del self._unopened[topic, number]
            state = self._led[topic][number]
            try:
                self._replica_manager.become_leader(topic_id, {(topic, number): state})
            except KafkaError:
                self._unopened[topic, number] = topic_id
            else:
                _log.info("%s-%d has a leader again", topic, number)
                await self._announce(topic, topic_id, {number: state})
        if self._unopened:
            self._retry_later()

    async def _delete(self, topic: str) -> None:
        led = self._led.get(topic, {})
        try:
            for number in led:
                self._replica_manager.stop_replica(topic, number, delete=True)
        except KafkaError as error:
            # The topic stays marked, and the next session or start tries again.
            _log.error("topic %s cannot be deleted now: %s", topic, error)
            return
        for number in led:
            self._unopened.pop((topic, number), None)
        await self._zookeeper.delete_topic(topic)
        self._led.pop(topic, None)
        self._topic_configs.forget(topic)
        gone = {
            number: PartitionMetadata(LEADER_DURING_DELETE, state.leader_epoch, state.isr, state.replicas)
            for number, state in led.items()
        }
        self._metadata_cache.update(self._broker.id, {self._broker.id: self._broker}, {topic: gone} if gone else {}, {})
        self._topic_admin.metadata_changed(topic)


def _is_legal(topic: str) -> bool:
    """Whether clients could have created the topic: the name of anything else may not even be a directory's."""
    try:
        validate_topic_name(topic)
    except KafkaError as error:
        _log.error("a topic's znode is left out: %s", error)
        return False
    return True
