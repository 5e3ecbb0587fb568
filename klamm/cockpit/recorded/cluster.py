"""A recording as the source of pages: the documents of a live cluster, made from the state at a moment.

What must stay true: a value that a recording lacks is null in a document, with the reason beside it.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from klamm.cockpit.partition_map import PartitionMap
from klamm.cockpit.source import Subscription
from klamm.diagnosis.cluster_facts import BrokerFacts, ClusterFacts
from klamm.diagnosis.cluster_view import ClusterView, PartitionView
from klamm.diagnosis.controller_records import record_text
from klamm.diagnosis.health import controller_findings, offline_partitions, under_replicated
from klamm.diagnosis.partition_health import is_unavailable
from klamm.processes.tool_errors import ToolError
from klamm.protocol.vocabulary import NO_EPOCH, NO_LEADER, TopicPartition
from klamm.recording.blocks import RecordingError
from klamm.recording.entries import ZNODE, Json
from klamm.recording.reader import NumberedEntry, Recording
from klamm.recording.state import PartitionMoment, State, replicas_of
from klamm.znodes.brokers import broker_ids

if TYPE_CHECKING:
    from klamm.client.cluster import ClusterClient
    from klamm.znodes.store import KafkaZooKeeper

NOT_RECORDED: Final = "A recording has no measurements of brokers."
NO_GROUPS: Final = "A recording has no groups."
# A list in a document has at most this many partitions or topics.
LISTED: Final = 100


class RecordedCluster:
    """The `Source` of a recording. Its Now document is that of the last moment."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._subscriptions: dict[Subscription, None] = {}

    @property
    def client(self) -> "ClusterClient | None":
        return None

    @property
    def znodes(self) -> "KafkaZooKeeper | None":
        return None

    @property
    def reassignments(self) -> None:
        return None

    async def now(self) -> Mapping[str, Any]:
        with _tool_errors():
            return await asyncio.to_thread(now_document, self.recording, self.recording.count - 1)

    async def map(self, *, is_known: bool = False) -> PartitionMap:
        with _tool_errors():
            return await asyncio.to_thread(partition_map, self.recording, self.recording.count - 1)

    def followed(self) -> None:
        return None

    def subscribe(self) -> Subscription:
        # Nothing happens in a recording; the stream tells the page when the server ends.
        subscription = Subscription()
        self._subscriptions[subscription] = None
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        self._subscriptions.pop(subscription, None)

    async def close(self) -> None:
        for subscription in list(self._subscriptions):
            subscription.close()
            self.unsubscribe(subscription)
        self.recording.close()


@contextmanager
def _tool_errors() -> Iterator[None]:
    """Turns an error of the recording into an error that pages can answer with."""
    try:
        yield
    except RecordingError as error:
        raise ToolError(str(error)) from None


def now_document(recording: Recording, number: int) -> dict[str, Any]:
    """The Now document of the moment after this entry. Raises RecordingError."""
    state, entry = recording.moment(number), recording.entry(number)
    controller = state.controller
    host = None if controller not in state.brokers else state.brokers[controller].host
    event, since_ms = state.cluster.get("event", (None, entry.at_ms))
    return {
        "cluster": {"id": state.cluster.get("id"), "kind": "recording", "version": None},
        "time_ms": entry.at_ms,
        "entry": number,
        "controller": {
            "id": controller,
            "epoch": state.cluster.get("controller_epoch"),
            "host": host,
            "status": None,
            "why_not": "A recording has the controller's events, not its status.",
        },
        "events": None
        if event is None
        else {
            "event": event,
            "event_for_ms": entry.at_ms - since_ms,
            "event_queue_size": None,
            "event_waits_ms": None,
            "state": None,
        },
        "states": None,
        "machines": machines(state),
        "brokers": _brokers(state),
        "work": work(state),
        "groups": None,
        "groups_why_not": NO_GROUPS,
        "findings": _findings(state),
        "faults": list(state.faults.values()),
        "servers": state.servers,
    }


def partition_map(recording: Recording, number: int) -> PartitionMap:
    """The map of partitions of the moment after this entry. Raises RecordingError."""
    state = recording.moment(number)
    states: dict[str, dict[int, PartitionView]] = {}
    for (topic, partition), moment in state.partitions.items():
        states.setdefault(topic, {})[partition] = partition_view(moment)._replace(leader_epoch=NO_EPOCH)
    made = PartitionMap()
    for _ in made.look(states, state.brokers):
        pass
    return made


def partition_view(moment: PartitionMoment, offline: tuple[int, ...] = ()) -> PartitionView:
    """The partition as in a view of a live cluster."""
    return PartitionView(
        NO_LEADER if moment.leader is None else moment.leader,
        moment.leader_epoch,
        tuple(replicas_of(moment)),
        moment.isr,
        moment.adding,
        moment.removing,
        offline,
    )


def machines(state: State) -> dict[str, dict[str, int]]:
    """How many partitions and replicas are in each state, from ZooKeeper's data, under Kafka's names."""
    partitions: Counter[str] = Counter()
    replicas: Counter[str] = Counter()
    for partition in state.partitions.values():
        partitions[partition_state(state, partition)] += 1
        for broker in replicas_of(partition):
            replicas["OnlineReplica" if broker in state.brokers else "OfflineReplica"] += 1
    return {"partitions": dict(partitions), "replicas": dict(replicas)}


def partition_state(state: State, partition: PartitionMoment) -> str:
    """The partition's state under Kafka's name."""
    if partition.leader_epoch < 0:
        return "NewPartition"
    return "OfflinePartition" if is_unavailable(partition_view(partition), state.brokers) else "OnlinePartition"


def _brokers(state: State) -> list[dict[str, Any]]:
    every = set(state.brokers) | {each for server in state.servers for each in broker_ids([server])}
    every |= {broker for partition in state.partitions.values() for broker in partition.replicas}
    documents = []
    for broker_id in sorted(every):
        broker, server = state.brokers.get(broker_id), state.servers.get(str(broker_id))
        said = f"its process is {server}" if server in ("paused", "ended") else None
        documents.append(
            {
                "id": broker_id,
                "host": None if broker is None else broker.host,
                "port": None if broker is None else broker.port,
                "rack": None if broker is None else broker.rack,
                "alive": broker is not None,
                "epoch": None if broker is None else broker.epoch,
                "why_not": said or (NOT_RECORDED if broker is not None else "it is not registered"),
            }
        )
    return documents


def work(state: State) -> dict[str, list[dict[str, Any]]]:
    """Reassignments and deletions in progress, up to LISTED of each."""
    reassigned = [(key, each) for key, each in state.partitions.items() if each.is_reassigned][:LISTED]
    return {
        "reassignments": [
            {
                "topic": topic,
                "partition": number,
                "replicas": each.replicas,
                "adding_replicas": each.adding,
                "removing_replicas": each.removing,
                "isr": each.isr,
                "waits_for": _waits_for(state, each),
            }
            for (topic, number), each in reassigned
        ],
        "deletions": [
            {
                "topic": topic,
                "replicas": sum(len(each.replicas) for (name, _), each in state.partitions.items() if name == topic),
                "deleted": deleted,
                "waits_for": None,
            }
            for topic, deleted in list(state.deletions.items())[:LISTED]
        ],
        "elections": [],
    }


def _waits_for(state: State, partition: PartitionMoment) -> str:
    missing = [each for each in partition.replicas if each not in partition.removing and each not in partition.isr]
    dead = [each for each in missing if each not in state.brokers]
    if dead:
        return f"not alive: broker {', '.join(map(str, dead))}"
    return f"not caught up: broker {', '.join(map(str, missing))}" if missing else "its turn"


def _findings(state: State) -> list[dict[str, Any]]:
    """The findings at this moment, without remedies: the moment is over."""
    brokers = {each: BrokerFacts(each, (known.host, known.port), known.rack) for each, known in state.brokers.items()}
    partitions = {TopicPartition(*key): partition_view(each) for key, each in state.partitions.items()}
    view = ClusterView({}, partitions, controller_id=NO_LEADER if state.controller is None else state.controller)
    facts = ClusterFacts(state.cluster.get("id"), view, brokers)
    found = (*controller_findings(facts), *offline_partitions(facts), *under_replicated(facts))
    return [replace(each, advice="", command="").document() for each in found]


# -- entries -----------------------------------------------------------------------------------------------------------


def entry_document(entry: NumberedEntry) -> dict[str, Any]:
    """An entry for a list: its text, its mark, and the entry itself."""
    found = entry.entry
    text = found.get("text")
    return {
        "number": entry.number,
        "time_ms": entry.at_ms,
        "kind": found["kind"],
        "mark": found.get("mark"),
        "text": text if isinstance(text, str) and text else _text(found),
    }


def _text(entry: Json) -> str:
    """The text of an entry that brings none."""
    try:
        if entry["kind"] in ("znode", "znode_deleted"):
            version = f" has version {entry.get('version')}" if entry["kind"] == ZNODE else " is deleted"
            return f"{entry.get('path')}{version}"
        event = f"{entry['event']}: " if entry.get("event") else ""
        return f"{event}{record_text(entry)}"
    except (KeyError, TypeError):
        return str(entry["kind"])
