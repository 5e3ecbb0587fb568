"""Checks the controllers' writes after every transaction: the znodes of partition states and of the controller.

What must stay true, of each partition while its topic lives:
- The in-sync replicas are one or more of its replicas; the leader, if any, is one of them.
- Leader epoch and controller epoch never go back; a leader changes only with a new leader epoch, so that an epoch has
  one leader at most; only a replica that was in sync becomes leader, and a replica joins the in-sync ones only in an
  epoch that lasts, since its leader alone knows what the replica has; unless the topic's configuration has ever
  allowed otherwise (`unclean.leader.election.enable`).
- Only the controller of the current epoch changes a leader or its epoch. (A leader before 2.7-IV2 writes the ISR
  itself, with the controller epoch that it knows.)
- A replica that has bounced (its broker was registered anew while it was in sync) leaves the ISR once, if another
  member has not bounced: it may have lost records.
And of the cluster: each controller's epoch is one more than that of the one before, and a session in which a former
controller was elected neither elects leaders nor deletes topics, marks and notifications. A mark for deletion goes with
its topic or after it: a controller that dies in between leaves the deletion to its successor.

A ZooKeeper that dies may forget only its last transactions, which no client has seen yet; it has every znode that these
have not changed (`recovered`). It may also have died while it applied a transaction in steps, which was in its log: it
has applied that one when it starts, and the rules hold for it as for any other.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from klamm.protocol.vocabulary import NO_LEADER, PartitionKey
from klamm.simulation.machine.process import SimulationFailure
from klamm.simulation.machine.znodes import ANYBODY, lost_znodes
from klamm.znodes.brokers import BROKER_IDS_PATH, broker_path
from klamm.znodes.cluster import CONTROLLER_EPOCH_PATH, CONTROLLER_PATH, Controller, decode_controller_epoch
from klamm.znodes.configs import config_path, decode_config, topic_entity
from klamm.znodes.requests import (
    DELETE_TOPICS_PATH,
    ISR_CHANGES_PATH,
    LOG_DIR_EVENTS_PATH,
    delete_topic_path,
)
from klamm.znodes.topics import (
    TOPICS_PATH,
    LeaderAndIsr,
    TopicAssignment,
    partition_state_path,
    partitions_path,
    topic_path,
)
from klamm.zookeeper.keeper_exceptions import NoNode
from klamm.zookeeper.server.tree import ZnodeTree

_STATE = re.compile(rf"path='({TOPICS_PATH}/([^/']+)/partitions/([0-9]+)/state)'")
_CONFIG = re.compile(rf"path='{config_path(topic_entity(''))}([^/']+)'")
_UNCLEAN = "unclean.leader.election.enable"
_EPOCH = f"path='{CONTROLLER_EPOCH_PATH}'"
_ELECTION = f"CreateTxn(path='{CONTROLLER_PATH}'"
_REGISTRATION = re.compile(rf"CreateTxn\(path='{BROKER_IDS_PATH}/([0-9]+)'")
# What only a controller deletes.
_DELETION = re.compile(
    rf"DeleteTxn\(path='(?:{TOPICS_PATH}|{DELETE_TOPICS_PATH}|{ISR_CHANGES_PATH}|{LOG_DIR_EVENTS_PATH})/[^']*'"
)


@dataclass(frozen=True, slots=True)
class Leadership:
    """The leader of a partition in one leader epoch."""

    topic: str
    partition: int
    leader_epoch: int


class StateChecker:
    """The ZooKeeper server's hook calls this checker after every transaction. A violation raises SimulationFailure."""

    def __init__(self) -> None:
        self._tree = ZnodeTree()
        # That of the last transaction that this checker was told of; a server dies in the middle of the next.
        self._zxid = 0
        self._session_id: int | None = None
        self._states: dict[PartitionKey, LeaderAndIsr] = {}
        self._leaders: dict[Leadership, int] = {}
        self._controller_epoch = 0
        # The sessions in which controllers were elected; the last one may be the controller's.
        self._elected: dict[int, None] = {}
        # The brokers whose present process has not registered yet.
        self._begun: set[int] = set()
        # Replicas that have bounced, and are still to leave the ISR; and whether another process has registered.
        self._bounced: dict[tuple[PartitionKey, int], bool] = {}
        # The topics that are marked for deletion, with the zxid of their creation.
        self._marked: dict[str, int] = {}
        self._unclean: dict[str, None] = {}
        # Told of each change of a partition's state: key, old state, new state.
        self.on_change: Callable[[PartitionKey, LeaderAndIsr | None, LeaderAndIsr | None], object] = _ignore

    # -- called by the hook -----------------------------------------------------------------------------------------

    def recovered(self, tree: ZnodeTree) -> None:
        """The server has started with this tree."""
        for lost in lost_znodes(self._tree, self._zxid, tree):
            raise SimulationFailure(lost)
        finished, self._zxid = self._zxid, tree.zxid
        self._tree = tree
        owner = self._tree.get_data(CONTROLLER_PATH, ANYBODY)[1].ephemeral_owner if self.exists(CONTROLLER_PATH) else 0
        # An election that is forgotten has not ended the office of the one before.
        self._elected = {id_: None for id_ in self._elected if id_ != owner} | {owner: None} if owner else {}
        if tree.zxid > finished:
            self._check_unfinished(finished)
        else:
            self._forget()

    def begins(self, broker_id: int) -> None:
        """A process of this broker begins."""
        self._begun.add(broker_id)

    def changed(self, tree: ZnodeTree, transaction: str, session_id: int | None = None) -> None:
        """A transaction has been applied to the tree; `session_id` is that of the client who has asked for it."""
        self._tree = tree
        self._zxid = tree.zxid
        self._session_id = session_id
        if _EPOCH in transaction:
            self._check_controller_epoch()
        if _ELECTION in transaction and session_id is not None:
            self._elected.pop(session_id, None)
            self._elected[session_id] = None
        if deletion := _DELETION.search(transaction):
            self._check_is_no_former_controller(deletion[0])
        if DELETE_TOPICS_PATH in transaction:
            self._check_marks()
        for topic in _CONFIG.findall(transaction):
            self._note_unclean(topic)
        for _, topic, partition in dict.fromkeys(_STATE.findall(transaction)):
            self._check_partition((topic, int(partition)))
        for broker_id in _REGISTRATION.findall(transaction):
            self._registered(int(broker_id))
        if self._bounced:
            self._excuse_bounced()

    # -- queries ----------------------------------------------------------------------------------------------------

    def partition(self, topic: str, partition: int) -> LeaderAndIsr:
        """The state of a partition. KeyError when it has no state yet."""
        return self._states[topic, partition]

    def partitions(self) -> dict[PartitionKey, LeaderAndIsr]:
        """All partitions that have a state."""
        return dict(self._states)

    def assignment(self, topic: str) -> TopicAssignment:
        """The contents of the topic's znode. KeyError when the topic does not exist."""
        data = self._data(topic_path(topic))
        if data is None:
            raise KeyError(topic)
        return TopicAssignment.decode(topic, data)

    def replicas(self, topic: str) -> dict[int, tuple[int, ...]]:
        """The replicas that each partition of a topic should have. KeyError when the topic does not exist."""
        return {number: tuple(ids) for number, ids in self.assignment(topic).partitions.items()}

    def config(self, entity_path: str) -> dict[str, str]:
        """The stored configuration of a topic, a broker or all brokers; empty without one."""
        return decode_config(entity_path, self._data(config_path(entity_path)) or b"")

    def topics(self) -> list[str]:
        return self._children(TOPICS_PATH)

    def created_at(self, topic: str) -> int | None:
        """The zxid of the transaction that created the topic; None if it does not exist."""
        try:
            return self._tree.get_data(topic_path(topic), ANYBODY)[1].czxid
        except NoNode:
            return None

    def is_marked_for_deletion(self, topic: str) -> bool:
        return self.exists(delete_topic_path(topic))

    def broker_epochs(self) -> dict[int, int]:
        """The epoch of each registered broker."""
        return {id_: self._tree.get_data(broker_path(id_), ANYBODY)[1].czxid for id_ in self.live_brokers()}

    def live_brokers(self) -> list[int]:
        return sorted(map(int, self._children(BROKER_IDS_PATH)))

    def children(self, path: str) -> list[str]:
        """The names of a znode's children; empty when the znode does not exist."""
        return self._children(path)

    def exists(self, path: str) -> bool:
        return self._tree.find(path) is not None

    def controller_id(self) -> int:
        """The controller's id; -1 when there is no controller."""
        data = self._data(CONTROLLER_PATH)
        return -1 if data is None else Controller.decode(data).broker_id

    def allows_unclean(self, topic: str) -> bool:
        """Whether the topic's configuration has ever allowed leaders from outside the ISR."""
        return topic in self._unclean

    def leader_of(self, topic: str, partition: int, leader_epoch: int) -> int | None:
        """The leader of a partition in an epoch; None when that epoch had no leader."""
        return self._leaders.get(Leadership(topic, partition, leader_epoch))

    def bounced(self) -> list[tuple[PartitionKey, int]]:
        """The replicas that have bounced and have never left the ISR since; none in a cluster that has come to rest."""
        return list(self._bounced)

    # -- after a start of the server ----------------------------------------------------------------------------------

    def _forget(self) -> None:
        """Everything is as the tree has it, which may be older."""
        self._controller_epoch = self._read_controller_epoch()
        self._marked = self._read_marked()
        self._states = {key: state for key in self._states if (state := self._read(key)) is not None}
        for leadership in list(self._leaders):
            state = self._states.get((leadership.topic, leadership.partition))
            if state is None or leadership.leader_epoch > state.leader_epoch:
                del self._leaders[leadership]

    def _check_unfinished(self, finished: int) -> None:
        """Checks what has changed since `finished`, the zxid up to which nothing is forgotten."""
        self._session_id = None
        self._check_controller_epoch()
        self._check_marks()
        for topic in self.topics():
            self._note_unclean(topic)
        found = [
            (topic, int(partition)) for topic in self.topics() for partition in self._children(partitions_path(topic))
        ]
        for key in dict.fromkeys([*self._states, *found]):
            if self._read(key) != self._states.get(key):
                self._check_partition(key)
        for broker_id, epoch in self.broker_epochs().items():
            if epoch > finished:
                self._registered(broker_id)
        self._excuse_bounced()

    # -- inside -----------------------------------------------------------------------------------------------------

    def _note_unclean(self, topic: str) -> None:
        if self.config(topic_entity(topic)).get(_UNCLEAN) == "true":
            self._unclean[topic] = None

    def _check_is_no_former_controller(self, what: str) -> None:
        elected = list(self._elected)
        if self._session_id in elected[:-1]:
            raise SimulationFailure(
                f"session 0x{self._session_id:x}, in which a former controller was elected, writes {what}; the last"
                f" election was in session 0x{elected[-1]:x}"
            )

    def _check_marks(self) -> None:
        before, self._marked = self._marked, self._read_marked()
        for topic, created in before.items():
            if topic not in self._marked and self._created(topic) == created:
                raise SimulationFailure(f"topic {topic} loses its mark for deletion before it is deleted")

    def _read_marked(self) -> dict[str, int]:
        """The topics that were there before their mark: a mark may also name a topic that did not exist."""
        found = {}
        for topic in self._children(DELETE_TOPICS_PATH):
            mark = self._tree.get_data(delete_topic_path(topic), ANYBODY)[1]
            if (created := self._created(topic)) is not None and created < mark.czxid:
                found[topic] = created
        return found

    def _created(self, topic: str) -> int | None:
        path = topic_path(topic)
        return self._tree.get_data(path, ANYBODY)[1].czxid if self.exists(path) else None

    def _registered(self, broker_id: int) -> None:
        """A broker has begun another life, in which it may lack records of the former one."""
        is_other_process = broker_id in self._begun
        self._begun.discard(broker_id)
        for key, state in self._states.items():
            if broker_id in state.isr:
                self._bounced[key, broker_id] = is_other_process or self._bounced.get((key, broker_id), False)

    def _is_session_of(self, broker_id: int) -> bool:
        """Whether the broker has registered in the session that writes."""
        path = broker_path(broker_id)
        return self.exists(path) and self._tree.get_data(path, ANYBODY)[1].ephemeral_owner == self._session_id

    def _excuse_bounced(self) -> None:
        """Where all members of the ISR have bounced or are gone, none is known to have all records: one stays."""
        live = self.live_brokers()
        left: dict[tuple[PartitionKey, int], bool] = {}
        for (key, broker_id), is_other_process in self._bounced.items():
            members = self._states[key].isr if key in self._states else ()
            if broker_id in members and any(each in live and (key, each) not in self._bounced for each in members):
                left[key, broker_id] = is_other_process
        self._bounced = left

    def _check_controller_epoch(self) -> None:
        epoch = self._read_controller_epoch()
        if epoch != self._controller_epoch and epoch != self._controller_epoch + 1:
            raise SimulationFailure(f"the controller's epoch went from {self._controller_epoch} to {epoch}")
        self._controller_epoch = epoch

    def _check_partition(self, key: PartitionKey) -> None:
        state, old = self._read(key), self._states.get(key)
        if state is None:
            self.on_change(key, self._states.pop(key, None), None)
            for leadership in [each for each in self._leaders if (each.topic, each.partition) == key]:
                del self._leaders[leadership]
            return
        broken = self._broken_rule(key, old, state)
        if broken is not None:
            raise SimulationFailure(f"{key[0]}-{key[1]}: {broken}: {old} became {state}")
        self.on_change(key, old, state)
        self._states[key] = state
        is_epoch_of_before = old is not None and state.leader_epoch == old.leader_epoch
        if is_epoch_of_before and self._is_session_of(state.leader) and not self._bounced.get((key, state.leader)):
            # A leader whose process changes the ISR in its epoch has led all the time: only its session was lost.
            self._bounced.pop((key, state.leader), None)
        if state.leader != NO_LEADER:
            self._leaders[Leadership(*key, state.leader_epoch)] = state.leader

    def _broken_rule(self, key: PartitionKey, old: LeaderAndIsr | None, state: LeaderAndIsr) -> str | None:
        if not state.isr or len(set(state.isr)) != len(state.isr):
            return "the ISR is empty, or has a replica twice"
        if not set(state.isr) <= set(replicas := self.replicas(key[0])[key[1]]):
            return f"the ISR is not a subset of the replicas {replicas}"
        if state.leader != NO_LEADER and state.leader not in state.isr:
            return "the leader is not in sync"
        if state.controller_epoch > self._controller_epoch:
            return f"there has been no controller with this epoch yet, only {self._controller_epoch}"
        if old is not None and (state.leader_epoch < old.leader_epoch or state.controller_epoch < old.controller_epoch):
            return "an epoch went back"
        is_election = old is None or (state.leader, state.leader_epoch) != (old.leader, old.leader_epoch)
        if is_election and state.controller_epoch < self._controller_epoch:
            return f"the epoch of this controller is over, it is {self._controller_epoch}"
        if is_election:
            self._check_is_no_former_controller(f"the state of {key[0]}-{key[1]}")
        if old is None:
            return None
        if state.leader != old.leader and state.leader_epoch == old.leader_epoch:
            return "another leader has the same epoch"
        if key[0] in self._unclean:
            return None
        if state.leader not in (old.leader, NO_LEADER, *old.isr):
            return "the new leader was not in sync"
        if state.leader_epoch != old.leader_epoch and not set(state.isr) <= set(old.isr):
            return "a replica has joined the ISR without its leader"
        return None

    def _read(self, key: PartitionKey) -> LeaderAndIsr | None:
        try:
            data, stat = self._tree.get_data(partition_state_path(*key), ANYBODY)
        except NoNode:
            return None
        return LeaderAndIsr.decode(*key, data or b"", stat.version)

    def _read_controller_epoch(self) -> int:
        data = self._data(CONTROLLER_EPOCH_PATH)
        return 0 if data is None else decode_controller_epoch(data)

    def _data(self, path: str) -> bytes | None:
        try:
            return self._tree.get_data(path, ANYBODY)[0]
        except NoNode:
            return None

    def _children(self, path: str) -> list[str]:
        try:
            return sorted(self._tree.get_children(path, ANYBODY)[0])
        except NoNode:
            return []


def _ignore(key: PartitionKey, old: LeaderAndIsr | None, state: LeaderAndIsr | None) -> None: ...
