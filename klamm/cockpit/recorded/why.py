"""The reasons for a partition's state at a moment of a recording. The answer is that of `partition_facts` and `story`
for a live cluster, made from the recording's entries.

What must stay true:
- A recording has no configurations, log ends and throttles. An answer says what it lacks.
- Remedies have no command: the moment is over, and the cluster may be gone.
- Controller records are in the order of their epochs and numbers, as in a live story, in the places that such records
  have among the znode versions of the recording.
- A file is not trusted: an entry that lacks a field becomes a line without that field.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from klamm.cockpit import story
from klamm.cockpit.recorded.cluster import entry_document, partition_view
from klamm.diagnosis.partition_conditions import PartitionFacts, explain
from klamm.diagnosis.reasons import Circumstances
from klamm.protocol.vocabulary import TopicPartition
from klamm.recording.entries import RECORD_KINDS, ZNODE, ZNODE_DELETED, EntryError, Json, znode_of
from klamm.recording.reader import NumberedEntry, Recording
from klamm.recording.state import PartitionMoment, State, replicas_of
from klamm.znodes.brokers import BROKER_IDS_PATH, broker_ids
from klamm.znodes.cluster import CONTROLLER_EPOCH_PATH, CONTROLLER_PATH, Controller, decode_controller_epoch
from klamm.znodes.fields import ZnodeError
from klamm.znodes.topics import LeaderAndIsr
from klamm.znodes.watch import Znode, child_of_path, partition_of_state_path

T = TypeVar("T")

NO_LOG_ENDS: Final = "the loss is unknown, as a recording has no log ends"
NO_RECORDS: Final = (
    "The recording has no record of a klamm controller about this partition, so this is the story of its znodes. They"
    " show each decision, and not what was tried before it."
)
# The events in which a controller marks replicas of live brokers as offline.
_DISK_FAILED: Final = "LeaderAndIsrResponseReceived"
_SHUTS_DOWN: Final = "ControlledShutdown"


def why_document(recording: Recording, topic: str, partition: int, number: int) -> dict[str, Any] | None:
    """The answer of `/api/why` for the moment after this entry; None for a partition that does not exist then.

    Raises RecordingError.
    """
    state = recording.moment(number)
    moment = state.partitions.get((topic, partition))
    if moment is None:
        return None
    key = TopicPartition(topic, partition)
    told = _Told(key)
    found = recording.story(topic, partition, last=number, brokers=replicas_of(moment))
    lines = [line for entry in _in_order(found) if (line := told.line(entry)) is not None]
    shown = lines[-story.MOST_ENTRIES :]
    answer = explain(_facts(state, key, moment, told)).value()
    for condition in answer["conditions"]:
        condition["remedies"] = [{**each, "command": ""} for each in condition["remedies"]]
    return {
        "topic": topic,
        "partition": partition,
        "leader": moment.leader,
        "leader_epoch": moment.leader_epoch,
        "isr": moment.isr,
        "replicas_assigned": moment.replicas,
        "adding": moment.adding,
        "removing": moment.removing,
        **answer,
        "story": {
            "source": f"the recording {recording.name}",
            "why_no_more": "" if told.has_records else NO_RECORDS,
            "left_out": len(lines) - len(shown),
            "entries": [each.value() for each in shown],
        },
    }


def _facts(state: State, key: TopicPartition, moment: PartitionMoment, told: "_Told") -> PartitionFacts:
    live = state.brokers.keys()
    paused = [each for each in live if state.servers.get(str(each)) == "paused"]
    of_topic = [each for (topic, _), each in state.partitions.items() if topic == key.topic]
    deletion = {
        "topic": key.topic,
        "deleted": state.deletions.get(key.topic, 0),
        "replicas": sum(len(each.replicas) for each in of_topic),
        "started": state.deletions.get(key.topic, 0) > 0,
        "waits_for": "",
    }
    return PartitionFacts(
        key,
        partition_view(moment, tuple(told.failed_disks)),
        Circumstances(live, marked_for_deletion=key.topic in state.deletions, broken=frozenset(told.failed_disks)),
        -1 if state.controller is None else state.controller,
        {
            "brokers": [{"broker_id": each, "shutting_down": True} for each in told.shutting_down if each in live],
            "deletions": {"first": [deletion]},
        },
        price=NO_LOG_ENDS,
        silent={each: "its process is paused" for each in paused},
        offline_since_ms=told.offline_since_ms,
        topic_brokers=sorted({each for one in of_topic for each in one.replicas}),
        why_no_settings="is not in a recording",
    )


def _in_order(entries: Sequence[NumberedEntry]) -> Iterator[NumberedEntry]:
    """The entries, with the records of controllers in the order of their epochs and numbers."""
    records = iter(sorted((each for each in entries if _number(each.entry) is not None), key=_sorted_by))
    for each in entries:
        yield each if _number(each.entry) is None else next(records)


def _number(entry: Json) -> tuple[int, int, int] | None:
    """The position of a record among those of all controllers; None for other entries."""
    found = tuple(_said(entry, name, int) for name in ("epoch", "controller", "sequence"))
    epoch, controller, sequence = found
    if entry["kind"] not in RECORD_KINDS or epoch is None or controller is None or sequence is None:
        return None
    return epoch, controller, sequence


def _sorted_by(entry: NumberedEntry) -> tuple[int, int, int]:
    return _number(entry.entry) or (0, 0, 0)


def _said(entry: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    value = entry.get(name)
    return value if type(value) is kind else None


@dataclass
class _Told:
    """What the entries about a partition have told so far. Takes them one after the other."""

    key: TopicPartition
    has_records: bool = False
    failed_disks: dict[int, None] = field(default_factory=dict)
    shutting_down: dict[int, None] = field(default_factory=dict)
    offline_since_ms: dict[int, int] = field(default_factory=dict)
    _epoch: int | None = None
    _controllers: dict[int, int] = field(default_factory=dict)
    """The controller of each epoch."""
    _last: LeaderAndIsr | None = None

    def line(self, entry: NumberedEntry) -> story.StoryEntry | None:
        """The line of the story about the next entry; None for an entry that only explains others."""
        found = entry.entry
        line = story.StoryEntry(
            entry.at_ms,
            None,
            "",
            _said(found, "epoch", int),
            "partition",
            _said(found, "from", str),
            _said(found, "to", str),
            None,
            None,
            None,
            entry_document(entry)["text"],
            found.get("failed") is True,
        )
        if found["kind"] in (ZNODE, ZNODE_DELETED):
            line = replace(line, writer="ZooKeeper")
            try:
                return self._znode(znode_of(found), line)
            except (EntryError, ZnodeError):
                return line
        if found["kind"] in RECORD_KINDS:
            return self._record(found, line)
        return replace(line, writer=f"broker {found['server']}") if "server" in found else line

    def _znode(self, znode: Znode, line: story.StoryEntry) -> story.StoryEntry | None:
        if znode.path == CONTROLLER_EPOCH_PATH:
            self._epoch = None if znode.data is None else decode_controller_epoch(znode.data)
            return None
        if znode.path == CONTROLLER_PATH:
            if znode.data is not None and self._epoch is not None:
                self._controllers[self._epoch] = Controller.decode(znode.data).broker_id
            return replace(line, subject="controller", controller_epoch=self._epoch)
        child = child_of_path(znode.path)
        if child is not None and child[0] == BROKER_IDS_PATH:
            for broker_id in broker_ids([child[1]]):
                self._registration(broker_id, None if znode.data is not None else line.time_ms)
            return replace(line, subject=f"broker {child[1]}")
        if partition_of_state_path(znode.path) != self.key or znode.data is None:
            return line
        state, before = LeaderAndIsr.decode(*self.key, znode.data, znode.version), self._last
        self._last = state
        # A controller that changes a partition raises its leader epoch; a leader that changes its ISR does not.
        if before is not None and (before.leader, before.leader_epoch) == (state.leader, state.leader_epoch):
            writer = f"leader {state.leader}"
        else:
            known = self._controllers.get(state.controller_epoch)
            writer = "ZooKeeper" if known is None else f"controller {known}"
        return replace(
            line,
            writer=writer,
            controller_epoch=state.controller_epoch,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            isr=tuple(state.isr),
        )

    def _registration(self, broker_id: int, ended_ms: int | None) -> None:
        self.failed_disks.pop(broker_id, None)
        self.shutting_down.pop(broker_id, None)
        self.offline_since_ms.pop(broker_id, None)
        if ended_ms is not None:
            self.offline_since_ms[broker_id] = ended_ms

    def _record(self, record: Json, line: story.StoryEntry) -> story.StoryEntry:
        self.has_records = True
        controller, event, after = _said(record, "controller", int), _said(record, "event", str), line.after
        if controller is not None and line.controller_epoch is not None:
            self._controllers[line.controller_epoch] = controller
        replica, leader = _said(record, "replica", int), _said(record, "leader", int)
        if event == _SHUTS_DOWN and line.is_failed and leader is not None:
            # The controller found no successor for the leader.
            self.shutting_down[leader] = None
        if replica is not None and not line.is_failed:
            self._replica(replica, event, line)
        isr = _said(record, "isr", list)
        return replace(
            line,
            writer=f"controller {'?' if controller is None else controller}",
            subject="partition" if replica is None else f"replica {replica}",
            before=None if after is None else line.before,
            leader=leader,
            leader_epoch=_said(record, "leader_epoch", int),
            isr=None if isr is None else tuple(isr),
            text=story.because(_said(record, "why", str) or "", event),
        )

    def _replica(self, replica: int, event: str | None, line: story.StoryEntry) -> None:
        if line.after != story.OFFLINE_REPLICA:
            self._registration(replica, None)
            return
        if line.time_ms is not None:
            self.offline_since_ms.setdefault(replica, line.time_ms)
        if event == _DISK_FAILED:
            self.failed_disks[replica] = None
        elif event == _SHUTS_DOWN:
            self.shutting_down[replica] = None
