"""The state of a cluster at a moment of a recording, and what each entry changes in it. Pure.

A state has a dict of immutable values for each section. So states can be compared and written into keyframes without
knowing what the sections mean.

| section      | key                | value                                                |
|--------------|--------------------|------------------------------------------------------|
| `cluster`    | `id`               | the cluster's id                                     |
|              | `controller`       | the controller's broker id; absent without one       |
|              | `controller_epoch` | its epoch                                            |
|              | `event`            | its current event, [name, since_ms]; may be absent   |
| `brokers`    | broker id          | `BrokerMoment` of each registered broker             |
| `topics`     | topic              | `TopicMoment`                                        |
| `partitions` | (topic, partition) | `PartitionMoment`                                    |
| `deletions`  | topic              | how many of its replicas are deleted already         |
| `servers`    | server, as text    | "running", "paused" or "ended"                       |
| `faults`     | fault, as text     | the fault as text                                    |

What must stay true:
- The same entries make the same state, from a keyframe or from the start.
- An entry that contradicts the state, such as a state of an unknown partition, changes nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypedDict

import msgspec

from klamm.base import json_bytes
from klamm.faults.metadata_changes import partition_change
from klamm.protocol.vocabulary import NO_LEADER, PartitionKey, encode_topic_id
from klamm.recording.entries import FAULT, RECORD_KINDS, ZNODE, ZNODE_DELETED, EntryError, Json, text_of, znode_of
from klamm.znodes.brokers import BROKER_IDS_PATH, BrokerRegistration, broker_ids
from klamm.znodes.cluster import (
    CLUSTER_ID_PATH,
    CONTROLLER_EPOCH_PATH,
    CONTROLLER_PATH,
    Controller,
    decode_cluster_id,
    decode_controller_epoch,
)
from klamm.znodes.fields import ZnodeError
from klamm.znodes.requests import DELETE_TOPICS_PATH
from klamm.znodes.topics import TOPICS_PATH, LeaderAndIsr, TopicAssignment
from klamm.znodes.watch import Znode, child_of_path, partition_of_state_path

# The event of a preempted record was never in progress.
_PREEMPTED = "preempted"
_DELETED = "ReplicaDeletionSuccessful"


class BrokerMoment(NamedTuple):
    """A registered broker. `epoch` is its broker epoch; host and port are those of its first listener."""

    epoch: int
    host: str
    port: int
    rack: str | None


class TopicMoment(NamedTuple):
    """A topic. `czxid` distinguishes it from an earlier topic of the same name; `id` is None before Kafka 2.8."""

    czxid: int
    id: str | None
    partitions: int


class PartitionMoment(NamedTuple):
    """A partition: its assignment and, from the first election on, its state.

    `leader` is None without a leader; `leader_epoch` is -1 before the first election.
    """

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    leader: int | None = None
    leader_epoch: int = -1
    isr: tuple[int, ...] = ()
    controller_epoch: int = -1
    version: int = -1

    @property
    def is_reassigned(self) -> bool:
        return bool(self.adding or self.removing)


class Change(NamedTuple):
    """An entry's mark on a timeline, and a sentence about it; each is "" if there is none."""

    mark: str
    text: str


MARKS = ("election", "isr", "controller", "broker", "topic", "reassignment", "fault", "server", "failure", "event")
"""The marks of a timeline, the most important first."""

SECTIONS = ("cluster", "brokers", "topics", "partitions", "deletions", "servers", "faults")

_NOTHING = Change("", "")


class State:
    """See the module. Callers must not change `sections`."""

    def __init__(self) -> None:
        self.cluster: dict[str, Any] = {}
        self.brokers: dict[int, BrokerMoment] = {}
        self.topics: dict[str, TopicMoment] = {}
        self.partitions: dict[PartitionKey, PartitionMoment] = {}
        self.deletions: dict[str, int] = {}
        self.servers: dict[str, str] = {}
        self.faults: dict[str, str] = {}

    @property
    def sections(self) -> dict[str, dict[Any, Any]]:
        return {name: getattr(self, name) for name in SECTIONS}

    @property
    def controller(self) -> int | None:
        """The controller's broker id; None without a controller."""
        return self.cluster.get("controller")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and self.sections == other.sections

    __hash__ = None  # type: ignore[assignment]  # a state changes

    def copy(self) -> "State":
        copy = State()
        for name, section in self.sections.items():
            setattr(copy, name, dict(section))
        return copy

    # -- entries ------------------------------------------------------------------------------------------------------

    def apply(self, entry: Mapping[str, Any], at_ms: int) -> Change:
        """Changes the state as the entry says. Raises EntryError for an entry that klamm does not write."""
        kind = entry["kind"]
        if kind in (ZNODE, ZNODE_DELETED):
            return self._znode(znode_of(entry))
        if kind in RECORD_KINDS:
            return self._record(entry, at_ms)
        if kind == FAULT:
            return Change("fault", text_of(entry, "text"))
        return self._history(entry)

    def _znode(self, znode: Znode) -> Change:
        path = znode.path
        try:
            if (key := partition_of_state_path(path)) is not None:
                return self._partition_state(key, znode)
            if path == CONTROLLER_PATH:
                return self._controller(znode)
            if path == CONTROLLER_EPOCH_PATH:
                return self._set("controller_epoch", znode, decode_controller_epoch)
            if path == CLUSTER_ID_PATH:
                return self._set("id", znode, decode_cluster_id)
            child = child_of_path(path)
            if child is not None:
                return _CHILDREN[child[0]](self, child[1], znode)
        except ZnodeError as error:
            return Change("failure", str(error))
        return _NOTHING

    def _set(self, key: str, znode: Znode, decode: Callable[[bytes], object]) -> Change:
        if znode.data is None:
            self.cluster.pop(key, None)
        else:
            self.cluster[key] = decode(znode.data)
        return _NOTHING

    def _controller(self, znode: Znode) -> Change:
        before = self.controller
        if znode.data is None:
            self.cluster.pop("controller", None)
            return _NOTHING if before is None else Change("controller", f"broker {before} is no longer the controller")
        now = self.cluster["controller"] = Controller.decode(znode.data).broker_id
        epoch = self.cluster.get("controller_epoch")
        return Change("controller", f"broker {now} is the controller, controller epoch {epoch}")

    def _broker(self, name: str, znode: Znode) -> Change:
        for broker in broker_ids([name]):
            if znode.data is None:
                if self.brokers.pop(broker, None) is not None:
                    return Change("broker", f"broker {broker} is no longer registered")
                continue
            registration = BrokerRegistration.decode(broker, znode.data)
            host, port = next(((each.host, each.port) for each in registration.endpoints), ("", -1))
            before = self.brokers.get(broker)
            now = self.brokers[broker] = BrokerMoment(znode.czxid, host, port, registration.rack)
            if before is None or before.epoch != now.epoch:
                return Change("broker", f"broker {broker} is registered, broker epoch {now.epoch}")
        return _NOTHING

    def _topic(self, topic: str, znode: Znode) -> Change:
        before = self.topics.get(topic)
        if znode.data is None:
            if before is None:
                return _NOTHING
            self._drop_topic(topic, before)
            return Change("topic", f"topic {topic} is deleted")
        assignment = TopicAssignment.decode(topic, znode.data)
        if before is not None and before.czxid != znode.czxid:
            self._drop_topic(topic, before)
            before = None
        topic_id = None if assignment.topic_id is None else encode_topic_id(assignment.topic_id)
        self.topics[topic] = TopicMoment(znode.czxid, topic_id, len(assignment.partitions))
        reassigned, replicas_changed = 0, 0
        for number, replicas in assignment.partitions.items():
            key = (topic, number)
            known = self.partitions.get(key)
            adding = tuple(assignment.adding_replicas.get(number, ()))
            removing = tuple(assignment.removing_replicas.get(number, ()))
            if known is None:
                self.partitions[key] = PartitionMoment(tuple(replicas), adding, removing)
            elif (known.replicas, known.adding, known.removing) != (tuple(replicas), adding, removing):
                now = known._replace(replicas=tuple(replicas), adding=adding, removing=removing)
                reassigned += now.is_reassigned
                replicas_changed += 1
                self.partitions[key] = now
        if before is None or before.partitions != len(assignment.partitions):
            return Change("topic", f"topic {topic} has {partitions_text(len(assignment.partitions))}")
        if replicas_changed:
            step = f"{reassigned} of them under reassignment" if reassigned else "none of them under reassignment"
            changed = partitions_text(replicas_changed)
            return Change("reassignment", f"topic {topic}: other replicas of {changed}, {step}")
        return _NOTHING

    def _drop_topic(self, topic: str, moment: TopicMoment) -> None:
        del self.topics[topic]
        if moment.partitions * 4 < len(self.partitions):
            # Kafka numbers partitions from 0 on without gaps.
            for number in range(moment.partitions):
                self.partitions.pop((topic, number), None)
            return
        self.partitions = {key: value for key, value in self.partitions.items() if key[0] != topic}

    def _deletion(self, topic: str, znode: Znode) -> Change:
        if znode.data is None:
            self.deletions.pop(topic, None)
            return _NOTHING
        self.deletions[topic] = 0
        return Change("topic", f"topic {topic} is to be deleted")

    def _partition_state(self, key: PartitionKey, znode: Znode) -> Change:
        known = self.partitions.get(key)
        if known is None:
            return _NOTHING
        if znode.data is None:
            self.partitions[key] = PartitionMoment(known.replicas, known.adding, known.removing)
            return _NOTHING
        state = LeaderAndIsr.decode(*key, znode.data)
        self.partitions[key] = known._replace(
            leader=None if state.leader == NO_LEADER else state.leader,
            leader_epoch=state.leader_epoch,
            isr=tuple(state.isr),
            controller_epoch=state.controller_epoch,
            version=znode.version,
        )
        entry = partition_change(key, _leader_and_isr(known), state)
        if entry is None:
            return _NOTHING
        return Change("isr" if entry.kind == "isr_changed" else "election", str(entry))

    def _record(self, record: Mapping[str, Any], at_ms: int) -> Change:
        event = record.get("event")
        kind = record["kind"]
        if kind == "event":
            if record.get("outcome") != _PREEMPTED:
                self.cluster.pop("event", None)
            return Change("event", "")
        if isinstance(event, str) and event and self.cluster.get("event", ("",))[0] != event:
            self.cluster["event"] = (event, at_ms)
        topic = record.get("topic")
        if kind == "replica" and record.get("to") == _DELETED and isinstance(topic, str) and topic in self.deletions:
            self.deletions[topic] += 1
        return Change("failure" if record.get("failed") else "", "")

    def _history(self, entry: Mapping[str, Any]) -> Change:
        kind, text = entry["kind"], str(entry.get("text", ""))
        server, fault = str(entry.get("server", "")), str(entry.get("fault", ""))
        if kind in _SERVER_STATES:
            self.servers[server] = _SERVER_STATES[kind]
            return Change("server", text)
        if kind == "fault_installed":
            self.faults[fault] = text
        elif kind == "fault_removed":
            self.faults.pop(fault, None)
        if kind.startswith("fault_") or kind == "action_performed":
            return Change("fault", text)
        return Change("", text)

    # -- keyframes ----------------------------------------------------------------------------------------------------

    def to_json(self) -> Json:
        """The JSON form: a list of [key, value] for each section."""
        return {
            name: [(key, tuple(value) if isinstance(value, tuple) else value) for key, value in section.items()]
            for name, section in self.sections.items()
        }

    @classmethod
    def from_json(cls, form: object) -> "State":
        """The state of a keyframe. Raises EntryError."""
        try:
            found = json_bytes.of_form(form, _Keyframe)
            json_bytes.of_form(dict(found.cluster), _Cluster)
        except json_bytes.JsonError as error:
            raise EntryError(f"a keyframe has a wrong section: {error}") from None
        state = cls()
        for name in SECTIONS:
            setattr(state, name, dict(getattr(found, name)))
        return state


class _Keyframe(msgspec.Struct):
    """The JSON form of a state."""

    cluster: list[tuple[str, str | int | tuple[str, int]]]
    brokers: list[tuple[int, BrokerMoment]]
    topics: list[tuple[str, TopicMoment]]
    partitions: list[tuple[PartitionKey, PartitionMoment]]
    deletions: list[tuple[str, int]]
    servers: list[tuple[str, str]]
    faults: list[tuple[str, str]]


class _Cluster(TypedDict, total=False):
    id: str
    controller: int
    controller_epoch: int
    event: tuple[str, int]


_SERVER_STATES: Mapping[str, str] = {
    "server_started": "running",
    "server_resumed": "running",
    "server_paused": "paused",
    "server_ended": "ended",
}
_CHILDREN: Mapping[str, Callable[[State, str, Znode], Change]] = {
    BROKER_IDS_PATH: State._broker,
    TOPICS_PATH: State._topic,
    DELETE_TOPICS_PATH: State._deletion,
}


def _leader_and_isr(known: PartitionMoment) -> LeaderAndIsr | None:
    if known.leader_epoch < 0:
        return None
    leader = NO_LEADER if known.leader is None else known.leader
    return LeaderAndIsr(leader, known.leader_epoch, known.isr, known.controller_epoch)


def replicas_of(partition: PartitionMoment) -> Iterator[int]:
    """Every broker with a replica, including adding and removing replicas, each once."""
    return iter(dict.fromkeys((*partition.replicas, *partition.adding, *partition.removing)))


def partitions_text(count: int) -> str:
    """`1 partition`, `2 partitions`."""
    return "1 partition" if count == 1 else f"{count} partitions"
