"""Applies changed and deleted topics to the broker's parts: metadata cache, offsets, configurations, waiting requests.

The controller announces changes by UpdateMetadata. It announces a deletion once, and only to the brokers that are alive
then. A broker without a session misses it, and so does a broker that the controller could not reach before the
controller died. Later controllers do not know the topic and cannot announce its deletion. So the broker itself looks in
/brokers/topics:

| it looks                                                                     | because it may have missed        |
|------------------------------------------------------------------------------|-----------------------------------|
| in each new session with ZooKeeper                                           | deletions without a session       |
| after the first UpdateMetadata of a controller, and the first to each of its | deletions told to others only, or |
| own registrations: from then on that controller tells this broker            | lost with the last controller     |
| when groups are loaded that have offsets of unknown topics                   | deletions told to the coordinator |

What must stay true:
- A topic is forgotten only if it does not exist or is being deleted. The broker must have known the topic before its
  ZooKeeper server caught up (`sync`), without news of the topic from the controller since.
- Requests of the controller and looks run one after another; the effects of one are complete before the next begins.
- The logs of forgotten topics stay on the disk.

A look does not notice that a topic without an id (before 2.8) was recreated, unless it now has fewer partitions.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

from klamm.base.slices import Slices, Steps, in_slices, slices
from klamm.base.tasks import OnFailure, start_task
from klamm.broker.configs.topics import TopicConfigs
from klamm.broker.metadata.leader_elections import LeaderElections
from klamm.broker.metadata.metadata_cache import MetadataCache, MetadataSnapshot
from klamm.broker.topics.topic_admin import TopicAdmin
from klamm.coordinator.groups.group_coordinator import GroupCoordinator
from klamm.protocol.apis.update_metadata import UpdateMetadataRequest
from klamm.protocol.vocabulary import PartitionKey
from klamm.replication.partition.partition import Partition
from klamm.replication.replica_manager import ReplicaManager
from klamm.znodes.store import KafkaZooKeeper
from klamm.znodes.topics import TopicAssignment
from klamm.zookeeper.keeper_exceptions import ZooKeeperError

# How many topics or partitions a slice checks.
TOPICS_PER_SLICE = 1000
# A log line names at most this many topics.
MAX_LISTED = 10

_log = logging.getLogger(__name__)


class ComparedState(IntEnum):
    """The kinds of state that a look compares with ZooKeeper. Each kind includes the kinds before it."""

    NOTHING = 0
    UNKNOWN_TOPICS = 1  # names of topics of which only committed offsets are left
    NAMES = 2  # names of all topics that this broker knows
    ASSIGNMENTS = 3  # ids and partitions, too


class MetadataUpdates:
    """See the module. `zookeeper()` is the store of the current session."""

    def __init__(
        self,
        metadata_cache: MetadataCache,
        replica_manager: ReplicaManager,
        group_coordinator: GroupCoordinator,
        topic_configs: TopicConfigs,
        topic_admin: TopicAdmin,
        leader_elections: LeaderElections,
        zookeeper: Callable[[], KafkaZooKeeper],
        on_failure: OnFailure,
    ) -> None:
        self._metadata_cache = metadata_cache
        self._replica_manager = replica_manager
        self._group_coordinator = group_coordinator
        self._topic_configs = topic_configs
        self._topic_admin = topic_admin
        self._leader_elections = leader_elections
        self._zookeeper = zookeeper
        self._on_failure = on_failure
        # From the last UpdateMetadata. None: it was for another registration of this broker.
        self._controller_epoch = 0
        self._broker_epoch: int | None = None
        self._wanted = ComparedState.NOTHING
        self._looking: asyncio.Task[None] | None = None
        self._is_stopping = False

    # -- what the controller says ---------------------------------------------------------------------------------

    async def update(self, request: UpdateMetadataRequest, correlation_id: int) -> None:
        """Applies an UpdateMetadata. Raises KafkaError STALE_CONTROLLER_EPOCH."""
        knew_topics = bool(self._metadata_cache.snapshot.topics)
        await self._replica_manager.update_metadata(request, lambda: self._apply(request), correlation_id)
        if knew_topics and request.broker_epoch != self._broker_epoch:
            self.look_for_deleted_topics(ComparedState.ASSIGNMENTS)
        elif knew_topics and request.controller_epoch != self._controller_epoch:
            self.look_for_deleted_topics(ComparedState.NAMES)
        self._controller_epoch, self._broker_epoch = request.controller_epoch, request.broker_epoch

    def _apply(self, request: UpdateMetadataRequest) -> Steps[None]:
        """From here on no client can commit offsets for the deleted partitions, or for recreated ones before the
        end."""
        before = self._metadata_cache.snapshot
        deleted = yield from self._metadata_cache.update_steps(request)
        yield from self._group_coordinator.partitions_deleted(deleted)
        now = self._metadata_cache.snapshot
        yield from self._replica_manager.brokers_died([id_ for id_ in before.brokers if id_ not in now.brokers])
        yield from self._topics_changed([topic.topic_name for topic in request.topic_states])

    def _topics_changed(self, topics: Iterable[str], still_configured: Collection[str] = ()) -> Steps[None]:
        told = Slices(TOPICS_PER_SLICE)
        for topic in topics:
            if topic not in self._metadata_cache.snapshot.topics and topic not in still_configured:
                self._topic_configs.forget(topic)
            self._topic_admin.metadata_changed(topic)
            self._leader_elections.metadata_changed(topic)
            if told.spend():
                yield

    def new_session(self) -> None:
        """A session with ZooKeeper has begun, after some time without one."""
        self._broker_epoch = None
        self.look_for_deleted_topics(ComparedState.ASSIGNMENTS)

    # -- deletions that no request reports ------------------------------------------------------------------------

    def look_for_deleted_topics(self, look: ComparedState) -> None:
        """Begins a look. During a running look, which may have begun too early, another look follows."""
        self._wanted = max(self._wanted, look)
        if self._looking is None and not self._is_stopping:
            self._looking = start_task(self._look_until_done(), self._on_failure)

    async def stop(self) -> None:
        """Ends the current look. Idempotent."""
        self._is_stopping = True
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    async def _look_until_done(self) -> None:
        while self._wanted is not ComparedState.NOTHING:
            look, self._wanted = self._wanted, ComparedState.NOTHING
            try:
                await self._look(look)
            except ZooKeeperError as error:
                _log.warning("deleted topics are looked for again in the next ZooKeeper session: %s", error)
        self._looking = None

    async def _look(self, look: ComparedState) -> None:
        committed = await in_slices(self._group_coordinator.committed_partitions())
        snapshot = self._metadata_cache.snapshot
        hosted = await in_slices(_with_leader_epochs(list(self._replica_manager.partitions.values())))
        known = _Known(snapshot, hosted, committed)
        suspects = known.topics()
        if look is ComparedState.UNKNOWN_TOPICS:
            suspects = [topic for topic in known.committed if topic not in known.snapshot.topics]
        if not suspects:
            return
        store = self._zookeeper()
        await store.sync()
        marked = dict.fromkeys(await store.topic_deletions())
        found = await store.existing_topics(suspects)
        # A marked topic that is not known here is being deleted, and the end of the deletion is not announced. Its
        # leaders lead until they are stopped, because a reassignment that the deletion waits for needs them.
        led = dict.fromkeys(found)
        existing = [topic for topic in found if topic in known.snapshot.topics or topic not in marked]
        assignments: dict[str, TopicAssignment] = {}
        if look is ComparedState.ASSIGNMENTS:
            async for piece in slices(existing, TOPICS_PER_SLICE):
                assignments |= await store.topic_assignments(piece)
        gone = dict.fromkeys(suspects)
        for topic in existing:
            del gone[topic]
        if gone or assignments:
            await self._replica_manager.in_turn(lambda: self._forget(known, gone, led, assignments))

    def _forget(
        self, known: "_Known", gone: Collection[str], led: Collection[str], assignments: dict[str, TopicAssignment]
    ) -> Steps[None]:
        """`assignments` has the existing topics, as far as read; `led` has topics that may have leaders, even if
        deleted."""
        now = self._metadata_cache.snapshot.topics
        topics: dict[str, TopicAssignment | None] = {**dict.fromkeys(gone), **assignments}
        partitions: list[PartitionKey] = []
        looked_at = Slices(TOPICS_PER_SLICE)
        for topic, assignment in list(topics.items()):
            if now.get(topic) is known.snapshot.topics.get(topic):
                partitions += [(topic, number) for number in known.outdated_partitions(topic, assignment)]
            else:
                del topics[topic]  # The controller has sent news of the topic meanwhile.
            if looked_at.spend():
                yield
        if partitions:
            changed = dict.fromkeys(topic for topic, _ in partitions)
            _log.info(
                "found %d deleted partitions that no controller announced, of topics %s",
                *(len(partitions), ", ".join(list(changed)[:MAX_LISTED])),
            )
            self._metadata_cache.forget(partitions)
            yield from self._group_coordinator.partitions_deleted(partitions)
            # A new topic of the name may be led here already; the controller announces it in its next UpdateMetadata.
            hosted = {topic for topic, _ in self._replica_manager.partitions}
            yield from self._topics_changed(changed, still_configured=hosted)
        for topic, assignment in topics.items():
            for partition, leader_epoch in known.hosted.get(topic, ()):
                is_another = (
                    topic not in led if assignment is None else _differ(partition.log.topic_id, assignment.topic_id)
                )
                if is_another and partition.leader_epoch == leader_epoch:
                    self._replica_manager.leave(partition)
                if looked_at.spend():
                    yield


def _with_leader_epochs(partitions: Sequence[Partition]) -> Steps[dict[str, list[tuple[Partition, int]]]]:
    """By topic."""
    found: dict[str, list[tuple[Partition, int]]] = {}
    looked_at = Slices(TOPICS_PER_SLICE)
    for partition in partitions:
        found.setdefault(partition.topic, []).append((partition, partition.leader_epoch))
        if looked_at.spend():
            yield
    return found


class _Known(NamedTuple):
    """The topics and partitions that this broker knows at one moment."""

    snapshot: MetadataSnapshot
    hosted: Mapping[str, Sequence[tuple[Partition, int]]]  # by topic, with the leader epoch
    committed: Mapping[str, Mapping[int, None]]  # partitions with offsets

    def topics(self) -> list[str]:
        return list(dict.fromkeys((*self.snapshot.topics, *self.hosted, *self.committed)))

    def outdated_partitions(self, topic: str, assignment: TopicAssignment | None) -> list[int]:
        """The partitions in the metadata, or with offsets, that are not in this assignment."""
        known = list(dict.fromkeys((*self.snapshot.topics.get(topic, ()), *self.committed.get(topic, ()))))
        if assignment is None or _differ(self.snapshot.topic_ids.get(topic), assignment.topic_id):
            return known
        return [number for number in known if number not in assignment.partitions]


def _differ(one: UUID | None, other: UUID | None) -> bool:
    """Whether both topics have ids, and not the same."""
    return one is not None and other is not None and one != other
