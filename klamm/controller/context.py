"""The controller's view of the cluster (Kafka's `ControllerContext`). Pure: no waiting, no IO.

A failover loads it from ZooKeeper, the events keep it up to date, and `reset` empties it.

What must stay true:
- Only the controller's events change it, one event at a time.
- Each leadership was read from ZooKeeper or written there, together with its znode's version: conditional writes rely
  on that. Between the death of a leader and the next election it names the dead leader, as ZooKeeper does.
- Every change updates the two counts that operators watch (offline partitions, partitions not led by their preferred
  replica): changes go through methods. `recount` computes them from scratch.
- Lists come in the order in which topics, partitions and replicas were added. The sets are only for
  membership tests: code that iterates over one sorts it first.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from klamm.base.slices import CHEAP_SLICE, Slices, Steps
from klamm.controller.states import PartitionState, ReplicaState
from klamm.protocol.vocabulary import PartitionKey
from klamm.znodes.brokers import BrokerRegistration
from klamm.znodes.store import LiveBroker
from klamm.znodes.topics import LeaderAndIsr

PartitionAndReplica = tuple[PartitionKey, int]
"""A replica: its partition and the id of its broker."""


class ReplicaAssignment(NamedTuple):
    """The brokers of one partition, the preferred leader first.

    `replicas` holds all of them, also those that a reassignment adds or removes.
    """

    replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()

    @property
    def origin_replicas(self) -> tuple[int, ...]:
        """The replicas before the reassignment."""
        return _without(self.replicas, self.adding_replicas)

    @property
    def target_replicas(self) -> tuple[int, ...]:
        """The replicas after the reassignment."""
        return _without(self.replicas, self.removing_replicas)

    @property
    def is_being_reassigned(self) -> bool:
        return bool(self.adding_replicas or self.removing_replicas)

    def reassign_to(self, target: Sequence[int]) -> "ReplicaAssignment":
        """A reassignment to `target`, from the replicas before the current reassignment, if there is one."""
        origin = self.origin_replicas
        replicas = tuple(dict.fromkeys((*target, *origin)))
        return ReplicaAssignment(replicas, _without(replicas, origin), _without(replicas, target))

    def remove_replica(self, broker_id: int) -> "ReplicaAssignment":
        """The assignment without this broker."""
        return ReplicaAssignment(*(_without(ids, (broker_id,)) for ids in self))


def _without(ids: Iterable[int], excluded: Collection[int]) -> tuple[int, ...]:
    without = frozenset(excluded)
    return tuple(broker_id for broker_id in ids if broker_id not in without)


NO_ASSIGNMENT = ReplicaAssignment()


class ControllerContext:
    """See the module. Fields without a method to change them are changed directly."""

    def __init__(self) -> None:
        self.unclean_leader_election_count = 0
        """The unclean elections since the broker started."""
        self.reset()

    def reset(self) -> None:
        """Empties everything except the count of unclean elections, because this broker is not the controller."""
        self.epoch = 0
        self.epoch_zk_version = 0
        """The version of /controller_epoch's znode: the guard of every write."""

        self._live_or_shutting_down: dict[int, LiveBroker] = {}
        self._live: dict[int, LiveBroker] = {}  # The live brokers without those that are shutting down.
        self._shutting_down: set[int] = set()

        self.all_topics: set[str] = set()
        self.topic_ids: dict[str, UUID] = {}
        self.topic_names: dict[UUID, str] = {}
        self.topics_to_be_deleted: set[str] = set()
        self.topics_with_deletion_started: set[str] = set()
        self.topics_ineligible_for_deletion: set[str] = set()

        self.partition_assignments: dict[str, dict[int, ReplicaAssignment]] = {}
        self.partitions_being_reassigned: set[PartitionKey] = set()
        self.replicas_on_offline_dirs: dict[int, set[PartitionKey]] = {}
        """Broker id -> its partitions on failed disks."""
        self.topic_id_answers: dict[PartitionKey, dict[int, bool]] = {}
        """For partitions with a replica whose log has another topic id: broker id -> whether the broker's replica has
        the topic's id. Has the brokers that have answered since the first refusal (topic_ids.py)."""

        self._leadership: dict[PartitionKey, LeaderAndIsr] = {}
        self._partition_states: dict[PartitionKey, PartitionState] = {}
        self._replica_states: dict[int, dict[PartitionKey, ReplicaState]] = {}
        self.offline_partition_count = 0
        self.preferred_replica_imbalance_count = 0

    # -- brokers ----------------------------------------------------------------------------------------------------

    @property
    def live_broker_ids(self) -> Collection[int]:
        """The ids of the live brokers, ascending, without brokers that are shutting down."""
        return self._live.keys()

    @property
    def live_or_shutting_down_broker_ids(self) -> Collection[int]:
        """Ascending."""
        return self._live_or_shutting_down.keys()

    @property
    def live_or_shutting_down_brokers(self) -> Mapping[int, LiveBroker]:
        """The live brokers by id, ascending. A `LiveBroker` is a registration and an epoch."""
        return self._live_or_shutting_down

    @property
    def shutting_down_broker_ids(self) -> Collection[int]:
        """Brokers that asked for a controlled shutdown and are still alive."""
        return self._shutting_down

    def set_live_brokers(self, brokers: Mapping[int, LiveBroker]) -> None:
        """Sets all live brokers."""
        self._live_or_shutting_down = dict(brokers)
        self._brokers_changed()

    def add_live_brokers(self, brokers: Mapping[int, LiveBroker]) -> None:
        self._live_or_shutting_down.update(brokers)
        self._brokers_changed()

    def remove_live_brokers(self, broker_ids: Iterable[int]) -> None:
        """Removes dead brokers. A broker that was shutting down counts as such until `remove_shutting_down_broker`."""
        for broker_id in broker_ids:
            self._live_or_shutting_down.pop(broker_id, None)
            self._forget_topic_id_answers(broker_id, list(self.topic_id_answers))
        self._brokers_changed()

    def update_broker_metadata(self, registration: BrokerRegistration) -> None:
        """A live broker changed its registration; its epoch stays. Does nothing when the broker is not alive."""
        broker = self._live_or_shutting_down.get(registration.broker_id)
        if broker is not None:
            self._live_or_shutting_down[registration.broker_id] = broker._replace(registration=registration)
            self._brokers_changed()

    def add_shutting_down_broker(self, broker_id: int) -> None:
        """The broker's replicas no longer count as online, but the broker still gets requests."""
        self._shutting_down.add(broker_id)
        self._brokers_changed()

    def remove_shutting_down_broker(self, broker_id: int) -> None:
        self._shutting_down.discard(broker_id)
        self._brokers_changed()

    def _brokers_changed(self) -> None:
        self._live_or_shutting_down = dict(sorted(self._live_or_shutting_down.items()))
        self._live = {
            key: broker for key, broker in self._live_or_shutting_down.items() if key not in self._shutting_down
        }

    def is_replica_online(
        self, broker_id: int, partition: PartitionKey, include_shutting_down_brokers: bool = False
    ) -> bool:
        """Whether the broker is alive and its replica is not on a failed disk."""
        brokers = self._live_or_shutting_down if include_shutting_down_brokers else self._live
        return broker_id in brokers and partition not in self.replicas_on_offline_dirs.get(broker_id, ())

    def online_brokers(self, partition: PartitionKey, include_shutting_down_brokers: bool = False) -> Collection[int]:
        """The brokers for which `is_replica_online` is true."""
        brokers = self._live_or_shutting_down if include_shutting_down_brokers else self._live
        if not self.replicas_on_offline_dirs:
            return brokers.keys()
        return [broker_id for broker_id in brokers if partition not in self.replicas_on_offline_dirs.get(broker_id, ())]

    def put_topic_id_answer(self, broker_id: int, partition: PartitionKey, *, has_id: bool) -> None:
        """A broker has answered whether its replica has the topic's id. Partitions that no broker refuses are left
        out."""
        if has_id and partition not in self.topic_id_answers:
            return
        answers = self.topic_id_answers.setdefault(partition, {})
        answers[broker_id] = has_id
        if all(answers.values()):
            del self.topic_id_answers[partition]

    def _forget_topic_id_answers(self, broker_id: int, partitions: Iterable[PartitionKey]) -> None:
        """Forgets the answers of a broker that is gone or no longer a replica."""
        for partition in partitions if self.topic_id_answers else ():
            answers = self.topic_id_answers.get(partition, {})
            if answers.pop(broker_id, True) is False and all(answers.values()):
                del self.topic_id_answers[partition]

    # -- topics and assignments -------------------------------------------------------------------------------------

    def add_topic_id(self, topic: str, topic_id: UUID) -> None:
        """Raises RuntimeError when the topic is unknown or has another id, or the id belongs to another topic."""
        if topic not in self.all_topics:
            raise RuntimeError(f"topic {topic} is not known")
        known_id, known_name = self.topic_ids.get(topic, topic_id), self.topic_names.get(topic_id, topic)
        if known_id != topic_id or known_name != topic:
            raise RuntimeError(f"topic {topic} has id {known_id}, and id {topic_id} belongs to topic {known_name}")
        self.topic_ids[topic] = topic_id
        self.topic_names[topic_id] = topic

    def partition_replica_assignment(self, partition: PartitionKey) -> tuple[int, ...]:
        """The brokers of a partition; () for an unknown one."""
        return self.partition_full_replica_assignment(partition).replicas

    def partition_full_replica_assignment(self, partition: PartitionKey) -> ReplicaAssignment:
        """The assignment of a partition; `NO_ASSIGNMENT` for an unknown one."""
        assignments = self.partition_assignments.get(partition[0])
        return NO_ASSIGNMENT if assignments is None else assignments.get(partition[1], NO_ASSIGNMENT)

    def update_partition_full_replica_assignment(self, partition: PartitionKey, assignment: ReplicaAssignment) -> None:
        """Adds a partition, or replaces its assignment."""
        topic, number = partition
        before = self._imbalance(partition)
        self.partition_assignments.setdefault(topic, {})[number] = assignment
        self.preferred_replica_imbalance_count += self._imbalance(partition) - before

    def all_partitions(self) -> list[PartitionKey]:
        return [(topic, number) for topic, numbers in self.partition_assignments.items() for number in numbers]

    def partitions_for_topic(self, topic: str) -> list[PartitionKey]:
        return [(topic, number) for number in self.partition_assignments.get(topic, ())]

    def replicas_on_brokers(self, broker_ids: Iterable[int]) -> Steps[list[PartitionAndReplica]]:
        """All replicas of the brokers, broker by broker."""
        found: list[PartitionAndReplica] = []
        taken = Slices(CHEAP_SLICE)
        for broker_id in broker_ids:
            for topic, assignments in list(self.partition_assignments.items()):
                found += [
                    ((topic, number), broker_id)
                    for number, assignment in assignments.items()
                    if broker_id in assignment.replicas
                ]
                if taken.spend(1 + len(assignments)):
                    yield
        return found

    def replicas_for_topic(self, topic: str) -> list[PartitionAndReplica]:
        return self.replicas_for_partitions(self.partitions_for_topic(topic))

    def replicas_for_partitions(self, partitions: Iterable[PartitionKey]) -> list[PartitionAndReplica]:
        return [
            (partition, broker_id)
            for partition in partitions
            for broker_id in self.partition_replica_assignment(partition)
        ]

    def remove_topic(self, topic: str) -> Steps[None]:
        """Removes a topic with all its states: a new topic of the same name starts afresh."""
        slices = Slices()
        for partition in self.partitions_for_topic(topic):
            self._count_partition(partition, -1)
            self._leadership.pop(partition, None)
            self._partition_states.pop(partition, None)
            self.partitions_being_reassigned.discard(partition)
            self.topic_id_answers.pop(partition, None)
            for states in self._replica_states.values():
                states.pop(partition, None)
            for offline in self.replicas_on_offline_dirs.values():
                offline.discard(partition)
            if slices.spend():
                yield
        self.partition_assignments.pop(topic, None)
        self.all_topics.discard(topic)
        self.topics_to_be_deleted.discard(topic)
        self.topics_with_deletion_started.discard(topic)
        self.topics_ineligible_for_deletion.discard(topic)
        topic_id = self.topic_ids.pop(topic, None)
        if topic_id is not None:
            del self.topic_names[topic_id]

    # -- topic deletion ---------------------------------------------------------------------------------------------

    def queue_topic_deletion(self, topics: Iterable[str]) -> None:
        """Marks topics for deletion: their partitions no longer count as not led by their preferred replica."""
        for topic in topics:
            for partition in self.partitions_for_topic(topic):
                self.preferred_replica_imbalance_count -= self._imbalance(partition)
            self.topics_to_be_deleted.add(topic)

    def begin_topic_deletion(self, topics: Iterable[str]) -> None:
        """Marks the start of their deletion: their partitions no longer count as offline."""
        for topic in topics:
            for partition in self.partitions_for_topic(topic):
                self.offline_partition_count -= self._offline(partition)
            self.topics_with_deletion_started.add(topic)

    def is_topic_deletion_in_progress(self, topic: str) -> bool:
        return topic in self.topics_with_deletion_started

    def is_topic_queued_up_for_deletion(self, topic: str) -> bool:
        return topic in self.topics_to_be_deleted

    def is_topic_eligible_for_deletion(self, topic: str) -> bool:
        return topic in self.topics_to_be_deleted and topic not in self.topics_ineligible_for_deletion

    def is_partition_to_be_deleted(self, partition: PartitionKey) -> bool:
        """Whether the partition's topic is to be deleted, and no reassignment has to complete first."""
        return partition[0] in self.topics_to_be_deleted and partition not in self.partitions_being_reassigned

    # -- leadership -------------------------------------------------------------------------------------------------

    def partition_leadership_info(self, partition: PartitionKey) -> LeaderAndIsr | None:
        """The partition's leadership; None when no leader was ever elected."""
        return self._leadership.get(partition)

    @property
    def partitions_leadership_info(self) -> Mapping[PartitionKey, LeaderAndIsr]:
        return self._leadership

    def put_partition_leadership_info(self, partition: PartitionKey, leader_and_isr: LeaderAndIsr) -> None:
        before = self._leadership.get(partition)
        self._leadership[partition] = leader_and_isr
        if partition[0] not in self.topics_to_be_deleted:
            assignment = self.partition_full_replica_assignment(partition)
            self.preferred_replica_imbalance_count += _imbalance(assignment, leader_and_isr) - _imbalance(
                assignment, before
            )

    def clear_partition_leadership_info(self) -> None:
        self._leadership.clear()
        self.preferred_replica_imbalance_count = 0

    def partitions_with_leaders(self) -> list[PartitionKey]:
        """The partitions with a leadership (the leader may be dead) whose topics are not to be deleted."""
        return [partition for partition in self._leadership if partition[0] not in self.topics_to_be_deleted]

    def partitions_being_deleted(self) -> list[PartitionKey]:
        """The partitions with a leadership whose topics' deletion has started."""
        return [partition for partition in self._leadership if partition[0] in self.topics_with_deletion_started]

    def partitions_with_offline_leader(self) -> list[PartitionKey]:
        """The partitions whose leader is missing, dead or shutting down, and that are not to be deleted."""
        live, offline_dirs = self._live, self.replicas_on_offline_dirs
        return [
            partition
            for partition, state in self._leadership.items()
            if (state.leader not in live or (offline_dirs and partition in offline_dirs.get(state.leader, ())))
            and not self.is_partition_to_be_deleted(partition)
        ]

    def partition_leaders_on_broker(self, broker_id: int) -> list[PartitionKey]:
        """The partitions that this broker leads, that have other replicas, and whose topics are not to be deleted."""
        return [
            partition
            for partition, state in self._leadership.items()
            if state.leader == broker_id
            and partition[0] not in self.topics_to_be_deleted
            and len(self.partition_replica_assignment(partition)) > 1
        ]

    # -- states of partitions and replicas --------------------------------------------------------------------------

    def partition_state(self, partition: PartitionKey) -> PartitionState:
        return self._partition_states.get(partition, PartitionState.NON_EXISTENT)

    @property
    def partition_states(self) -> Mapping[PartitionKey, PartitionState]:
        """The states of all partitions that are not NON_EXISTENT."""
        return self._partition_states

    def put_partition_state(self, partition: PartitionKey, state: PartitionState) -> None:
        before = self._offline(partition)
        if state is PartitionState.NON_EXISTENT:
            self._partition_states.pop(partition, None)
        else:
            self._partition_states[partition] = state
        self.offline_partition_count += self._offline(partition) - before

    def partitions_in_states(self, states: Collection[PartitionState], topic: str | None = None) -> list[PartitionKey]:
        """All partitions, or those of one topic, in one of these states. NON_EXISTENT is not allowed."""
        if topic is None:
            return [partition for partition, state in self._partition_states.items() if state in states]
        return [key for key in self.partitions_for_topic(topic) if self._partition_states.get(key) in states]

    def replica_state(self, replica: PartitionAndReplica) -> ReplicaState:
        states = self._replica_states.get(replica[1])
        return ReplicaState.NON_EXISTENT if states is None else states.get(replica[0], ReplicaState.NON_EXISTENT)

    def replica_states(self, broker_id: int) -> Mapping[PartitionKey, ReplicaState]:
        """The states of the replicas on one broker, except NON_EXISTENT ones."""
        return self._replica_states.get(broker_id, {})

    @property
    def brokers_with_replica_states(self) -> Collection[int]:
        """The brokers with replicas in `replica_states`."""
        return self._replica_states.keys()

    def put_replica_state(self, replica: PartitionAndReplica, state: ReplicaState) -> None:
        self.put_replica_states(replica[1], (replica[0],), state)

    def put_replica_states(self, broker_id: int, partitions: Iterable[PartitionKey], state: ReplicaState) -> None:
        """Sets the state of these partitions' replicas on one broker."""
        states = self._replica_states.setdefault(broker_id, {})
        if state is ReplicaState.NON_EXISTENT:
            offline = self.replicas_on_offline_dirs.get(broker_id, set())
            for partition in partitions:
                states.pop(partition, None)
                # A later replica on this broker has a new log, perhaps on another disk.
                offline.discard(partition)
            self._forget_topic_id_answers(broker_id, partitions)
        else:
            states.update(dict.fromkeys(partitions, state))

    def replicas_by_state(self, topic: str) -> Steps[dict[ReplicaState, list[PartitionAndReplica]]]:
        """The topic's replicas in each state that some of them have."""
        found: dict[ReplicaState, list[PartitionAndReplica]] = {}
        slices = Slices()
        for partition in self.partitions_for_topic(topic):
            for replica in self.replicas_for_partitions((partition,)):
                found.setdefault(self.replica_state(replica), []).append(replica)
            if slices.spend():
                yield
        return found

    # -- counts -----------------------------------------------------------------------------------------------------

    def recount(self) -> tuple[int, int]:
        """(offline_partition_count, preferred_replica_imbalance_count), computed from scratch."""
        partitions = self.all_partitions()
        return sum(map(self._offline, partitions)), sum(map(self._imbalance, partitions))

    def _count_partition(self, partition: PartitionKey, change: int) -> None:
        self.offline_partition_count += change * self._offline(partition)
        self.preferred_replica_imbalance_count += change * self._imbalance(partition)

    def _offline(self, partition: PartitionKey) -> int:
        """1 if the partition counts as offline, else 0."""
        offline = self._partition_states.get(partition) is PartitionState.OFFLINE
        return int(offline and partition[0] not in self.topics_with_deletion_started)

    def _imbalance(self, partition: PartitionKey) -> int:
        """1 if the partition counts as not led by its preferred replica, else 0."""
        if partition[0] in self.topics_to_be_deleted:
            return 0
        return _imbalance(self.partition_full_replica_assignment(partition), self._leadership.get(partition))


def _imbalance(assignment: ReplicaAssignment, state: LeaderAndIsr | None) -> int:
    """1 if the partition is not led by its preferred replica, else 0.

    While a reassignment adds the preferred replica, the partition counts once that replica is in the ISR.
    """
    replicas, adding_replicas, _ = assignment
    if state is None or not replicas:
        return 0
    if replicas[0] in adding_replicas:
        return int(replicas[0] in state.isr)
    return int(state.leader != replicas[0])
