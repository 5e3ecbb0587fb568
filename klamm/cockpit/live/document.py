"""The Now document, made from the readings of a live cluster. Pure.

What must stay true:
- An unknown value is null, and a `why_not` beside it says why. An outdated reading (`Dated.now` is None) never counts
  as current: `readings` has the time of each reading, and why it is outdated.
- Findings are made from current readings. It is also a finding that no broker answers, or that ZooKeeper does not.
- The partitions and live brokers in findings are those of the map of partitions at `findings_of`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from klamm.base.words import brokers_text, counted
from klamm.cockpit.live.pulse import Heard
from klamm.cockpit.live.readings import Dated
from klamm.diagnosis.cluster_facts import KLAMM, BrokerFacts, ClusterFacts
from klamm.diagnosis.cluster_view import BrokerView, PartitionView
from klamm.diagnosis.findings import Finding, finding
from klamm.diagnosis.health import NAMED, diagnose_facts, with_controller
from klamm.protocol.vocabulary import TopicPartition

if TYPE_CHECKING:
    from klamm.access.controller import ControllerAddress
    from klamm.cockpit.partition_map import PartitionMap, Totals
    from klamm.znodes.store import LiveBroker

# The seventeen states of the controller, and Idle, in Kafka's order (klamm.controller.events.ControllerState).
CONTROLLER_STATES: Final = (
    "Idle",
    "ControllerChange",
    "BrokerChange",
    "TopicChange",
    "TopicDeletion",
    "AlterPartitionReassignment",
    "AutoLeaderBalance",
    "ManualLeaderBalance",
    "ControlledShutdown",
    "IsrChange",
    "LeaderAndIsrResponseReceived",
    "LogDirChange",
    "ControllerShutdown",
    "UncleanLeaderElectionEnable",
    "TopicUncleanLeaderElectionEnable",
    "ListPartitionReassignment",
    "UpdateMetadataResponseReceived",
    "UpdateFeatures",
)

# The number of work items that klamm's controller lists.
LISTED: Final = 100

KAFKA_SHOWS_LESS: Final = "Apache Kafka shows its controller's queue and state machines through JMX only."
KRAFT_SHOWS_LESS: Final = (
    "In KRaft mode the controller is not among the brokers, and the protocol does not show its work."
)
KAFKA_NUMBERS: Final = "Apache Kafka shows these numbers through JMX only."


@dataclass(frozen=True, slots=True)
class Registrations:
    """What ZooKeeper holds about the brokers and the controller."""

    controller: "ControllerAddress | None"
    live: "Mapping[int, LiveBroker]"


class Place(NamedTuple):
    """The state of a copy of the map of partitions."""

    version: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Digest:
    """Facts, and the findings from them and from the map of partitions at `place`. `moving` are the first partitions
    that are being reassigned."""

    facts: ClusterFacts
    place: Place
    moving: Sequence[Mapping[str, Any]]
    moving_count: int
    findings: Sequence[Finding]


def digested(
    facts: ClusterFacts, found: "PartitionMap", silent: Mapping[int, str], controller_id: int, place: Place
) -> Digest:
    """The facts with the map's partitions and live brokers, and with the `silent` brokers. Looks at each partition a
    few times: with 100,000 partitions it takes a part of a second."""
    partitions = {
        TopicPartition(topic, number): each for topic, some in found.topics() for number, each in some.items()
    }
    brokers = {}
    for broker_id in sorted(found.live):
        fact = facts.brokers.get(broker_id) or BrokerFacts(broker_id, ("", -1))
        brokers[broker_id] = replace(fact, error=silent[broker_id], log_dirs=()) if broker_id in silent else fact
    views = {broker_id: BrokerView(broker_id, each.address, each.rack) for broker_id, each in brokers.items()}
    view = replace(facts.view, brokers=views, partitions=partitions, controller_id=controller_id)
    # An error of an earlier controller says nothing about the current one.
    is_same = facts.controller_id in (None, controller_id)
    error = facts.controller_error if is_same else None
    whole = replace(facts, view=view, brokers=brokers, controller_error=error)
    moving = [(key, each) for key, each in partitions.items() if each.is_reassigning]
    return Digest(
        whole, place, [_moving(key, each) for key, each in moving[:LISTED]], len(moving), diagnose_facts(whole)
    )


@dataclass(frozen=True, slots=True)
class Read:
    """The readings. `heard` has the pulse of each broker. The times in `states_over_time` are of the controller's
    clock, which shows `controller_time_ms` now. The states are known until `states_until_ms`. Both are None while no
    controller has told its time. `partitions` are the totals of the map, `live` are its live brokers, and `shown` are
    all its brokers. `groups_hidden` counts the partitions of __consumer_offsets without a leader: no broker lists their
    groups."""

    time_ms: int
    heard: Mapping[int, Heard] = field(default_factory=dict)
    registrations: Dated[Registrations] = Dated()  # noqa: RUF009  # it is frozen
    status: Dated[Mapping[str, Any]] = Dated()  # noqa: RUF009
    numbers: Dated[Mapping[int, Mapping[str, Any]]] = Dated()  # noqa: RUF009
    partitions: "Dated[Totals]" = Dated()  # noqa: RUF009
    digest: Dated[Digest] = Dated()  # noqa: RUF009
    groups: Dated[Sequence[Mapping[str, Any]]] = Dated()  # noqa: RUF009
    live: frozenset[int] = frozenset()
    shown: Sequence[int] = ()
    states_over_time: Sequence[tuple[int, str]] = ()
    controller_time_ms: int | None = None
    states_until_ms: int | None = None
    groups_hidden: int = 0


def kind_of(facts: ClusterFacts | None) -> str | None:
    """The kind of a cluster. A cluster with a klamm broker is klamm's. None while the kind is unknown."""
    if facts is None:
        return None
    if any(broker.is_kraft for broker in facts.brokers.values()):
        return "kafka-kraft"
    software = {broker.software for broker in facts.brokers.values()} - {""}
    return None if not software else "klamm" if KLAMM in software else "kafka-zookeeper"


def now_document(read: Read) -> dict[str, Any]:
    """See klamm.cockpit."""
    digest, last = read.digest.now, read.digest.value
    kind = kind_of(None if last is None else last.facts)
    status = read.status.now
    if status is not None and not _is_of_controller(status, read.registrations.now):
        status = None
    why_not = None if status is not None else _why_no_status(read, kind)
    return {
        "cluster": {
            "id": None if last is None else last.facts.cluster_id,
            "kind": kind,
            "version": _version(None if last is None else last.facts),
        },
        "time_ms": read.time_ms,
        "live": _liveness(read, kind),
        "readings": {
            "registrations": read.registrations.described(),
            "status": read.status.described(),
            "partitions": read.partitions.described(),
            "findings": read.digest.described(),
            "groups": read.groups.described(),
        },
        "controller": _controller(read, status, why_not),
        "events": None
        if status is None
        else {
            "event": status["event"],
            "event_for_ms": status["event_for_ms"],
            "queue_size": status["event_queue_size"],
            "waits_ms": status["event_waits_ms"],
            "waiting": status.get("waiting_events", []),
        },
        "states": {
            "names": CONTROLLER_STATES,
            "now": None if status is None else status["state"],
            "over_time": read.states_over_time,
            "time_ms": read.controller_time_ms,
            "until_ms": read.states_until_ms,
            "why_not": why_not,
        },
        "machines": None if status is None else status.get("machines"),
        "totals": None if read.partitions.value is None else read.partitions.value._asdict(),
        "brokers": _brokers(read, kind, status, why_not),
        "work": _work(digest, status, why_not),
        "groups": read.groups.value,
        "groups_hidden": read.groups_hidden,
        "findings": [each.document() for each in _findings(read, kind, status)],
        "findings_of": None if digest is None else digest.place._asdict(),
        "why_not": why_not,
    }


# -- what answers -----------------------------------------------------------------------------------------------------


def _answering(read: Read) -> list[int]:
    return [broker_id for broker_id, each in read.heard.items() if each.why_not is None]


def _has_zookeeper(kind: str | None) -> bool:
    return kind != "kafka-kraft"


def _liveness(read: Read, kind: str | None) -> dict[str, Any]:
    """Whether the page shows current data: `state` is live, partly, lost or opening. `since_ms` is the time of the last
    answer of the part that does not answer now."""
    answering = _answering(read)
    lacks_zookeeper = _has_zookeeper(kind) and read.registrations.why_not is not None
    state, text, since_ms = "live", "live", None
    if read.heard and not answering:
        state, text = "lost", "no broker answers"
        if lacks_zookeeper:
            text = "neither a broker nor ZooKeeper answers"
        since_ms = max((each.at_ms for each in read.heard.values() if each.at_ms is not None), default=None)
    elif read.partitions.at_ms is None:
        state, text = "opening", "reading the cluster"
    elif read.partitions.why_not is not None:
        state, text, since_ms = "lost", "the partitions are not known", read.partitions.at_ms
    elif lacks_zookeeper:
        state, text, since_ms = "partly", "ZooKeeper does not answer", read.registrations.at_ms
    elif silent := sorted(read.heard.keys() - set(answering) & read.live):
        state, text = "partly", f"no answer from {brokers_text(silent)}"
        since_ms = max((read.heard[each].at_ms or 0 for each in silent), default=0) or None
    return {"state": state, "text": text, "since_ms": since_ms}


def _findings(read: Read, kind: str | None, status: Mapping[str, Any] | None) -> list[Finding]:
    digest = read.digest.now
    found = [] if digest is None else with_controller(digest.findings, status)
    return [*_unreachable(read, kind), *found]


def _unreachable(read: Read, kind: str | None) -> Iterator[Finding]:
    """Findings about a cluster or ZooKeeper that does not answer. Single silent brokers are findings of the facts."""
    if read.heard and not _answering(read):
        silent = sorted(read.heard.items())
        registrations = read.registrations.now
        if registrations is None:
            what = "See whether the cluster runs, and whether this machine can reach it."
        elif registrations.live:
            hang = "it hangs" if len(registrations.live) == 1 else "they hang"
            registered = brokers_text(registrations.live)
            what = f"ZooKeeper has {registered} registered: {hang}, or the network to this machine is cut."
        else:
            what = "ZooKeeper has no broker registered: they have stopped or died. Start them."
        more = (f"and {len(silent) - NAMED} more",) if len(silent) > NAMED else ()
        why = (*(f"broker {broker_id}: {each.why_not}" for broker_id, each in silent[:NAMED]), *more)
        yield finding("no_answer", why, brokers=counted(len(silent), "broker"), what=what)
    if _has_zookeeper(kind) and read.registrations.why_not is not None and read.registrations.at_ms is not None:
        yield finding("no_zookeeper", (read.registrations.why_not,))


def _is_of_controller(status: Mapping[str, Any], registrations: Registrations | None) -> bool:
    """Whether the status is of the current controller. The last request may have gone to the former one."""
    found = None if registrations is None else registrations.controller
    return bool(status.get("active")) and (found is None or status.get("epoch") == found.epoch)


def _version(facts: ClusterFacts | None) -> str | None:
    """The lowest inter.broker.protocol.version; KRaft's brokers have no such config."""
    versions = set() if facts is None else {broker.protocol for broker in facts.brokers.values() if broker.protocol}
    return min(versions, default=None)


def _why_no_status(read: Read, kind: str | None) -> str:
    if kind == "kafka-kraft":
        return KRAFT_SHOWS_LESS
    if read.registrations.value is None:
        return f"ZooKeeper names the controller's port, and it could not be read: {read.registrations.why_not}"
    controller = read.registrations.value.controller
    if read.registrations.why_not is not None:
        return read.status.why_not or f"ZooKeeper names the controller: {read.registrations.why_not}"
    if controller is None:
        return "The cluster has no controller now."
    if not controller.registered:
        return f"Broker {controller.broker_id} is not registered: it has died, or lost its session."
    if kind == "kafka-zookeeper":
        return KAFKA_SHOWS_LESS
    if controller.port is None:
        return f"Broker {controller.broker_id} serves no status: its klamm.metrics.port is -1."
    return read.status.why_not or "The controller is taking over."


def controller_id(read: Read) -> int:
    """The controller if it is live, else -1, from ZooKeeper, or without ZooKeeper from the brokers that answer."""
    registrations = read.registrations.now
    if registrations is not None:
        found = registrations.controller
        return found.broker_id if found is not None and found.broker_id in read.live else -1
    if not _has_zookeeper(kind_of(None if read.digest.value is None else read.digest.value.facts)):
        return -1  # A broker of KRaft names any live broker.
    named = [each.controller_id for each in read.heard.values() if each.why_not is None]
    return next((each for each in named if each in read.live), -1)


def _controller(read: Read, status: Mapping[str, Any] | None, why_not: str | None) -> dict[str, Any]:
    """`is_known` says whether `id` is current. If it is, a null `id` means that there is no controller."""
    last = None if read.registrations.value is None else read.registrations.value.controller
    is_known = read.registrations.why_not is None
    by_brokers = -1 if is_known else controller_id(read)
    if by_brokers >= 0 and (last is None or last.broker_id != by_brokers):
        # ZooKeeper does not answer; brokers tell only the id.
        return {
            "id": by_brokers,
            "is_known": True,
            "epoch": None,
            "since_ms": None,
            "host": None,
            "status": status,
            "silent": None,
            "why_not": why_not,
        }
    heard = None if last is None else read.heard.get(last.broker_id)
    return {
        "id": None if last is None else last.broker_id,
        "is_known": is_known or by_brokers >= 0,
        "epoch": None if last is None else last.epoch,
        "since_ms": None if last is None else last.since_ms,
        "host": None if last is None else last.host,
        "status": status,
        "silent": None if heard is None else heard.why_not,
        "why_not": why_not,
    }


# -- brokers ----------------------------------------------------------------------------------------------------------

ALIVE, SILENT, UNREGISTERED, DOWN, UNKNOWN = "alive", "silent", "unregistered", "down", "unknown"


def _state(broker_id: int, read: Read) -> tuple[str, str | None]:
    """The state of a broker, and what is wrong with it."""
    heard = read.heard.get(broker_id)
    is_answering = heard is not None and heard.why_not is None
    if read.registrations.why_not is not None and read.partitions.why_not is not None:
        # Which brokers are live is unknown.
        if is_answering:
            return ALIVE, None
        return (UNKNOWN, None) if heard is None else (SILENT, heard.why_not)
    if broker_id not in read.live:
        if is_answering:
            return UNREGISTERED, "it answers, and is not registered: it starts or stops, or has lost its session"
        return DOWN, "it is not registered: it has stopped, has died or has lost its session"
    if heard is not None and heard.why_not is not None:
        return SILENT, heard.why_not
    if heard is not None and heard.controller_id < 0:
        return ALIVE, "it has not been told of the cluster by a controller yet"
    return ALIVE, None


def _brokers(
    read: Read, kind: str | None, status: Mapping[str, Any] | None, why_not: str | None
) -> list[dict[str, Any]]:
    """All brokers that any reading names, by id."""
    last = read.digest.value
    facts = {} if last is None else last.facts.brokers
    registered = {} if read.registrations.value is None else read.registrations.value.live
    queues = {} if status is None else {each["broker_id"]: each for each in status["brokers"]}
    of_all = read.numbers.now or {}
    now_controller = controller_id(read)
    described = []
    for broker_id in sorted({*read.shown, *read.live, *read.heard}):
        fact, known, queue = facts.get(broker_id), registered.get(broker_id), queues.get(broker_id, {})
        heard = read.heard.get(broker_id)
        state, trouble = _state(broker_id, read)
        if trouble is None and fact is not None and read.digest.why_not is None:
            trouble = fact.error
        numbers = of_all.get(broker_id, {}) if state == ALIVE else {}
        described.append(
            {
                "id": broker_id,
                "host": fact.address[0] if fact is not None else None,
                "port": fact.address[1] if fact is not None else None,
                "rack": fact.rack if fact is not None else None,
                "software": fact.software if fact is not None else "",
                "state": state,
                "alive": state == ALIVE,
                "answered_ms": None if heard is None else heard.at_ms,
                "is_controller": broker_id == now_controller,
                "epoch": None if known is None else known.epoch,
                "shutting_down": queue.get("shutting_down"),
                "offline_replicas": queue.get("offline_replicas"),
                "queue_size": queue.get("queue_size"),
                "sending": queue.get("sending"),
                "sending_for_ms": queue.get("sending_for_ms"),
                "trouble": queue.get("trouble") or trouble,
                "loop_lag_ms": numbers.get("loop_lag_ms"),
                "longest_loop_lag_ms": numbers.get("longest_loop_lag_ms"),
                "memory_bytes": numbers.get("memory_bytes"),
                "bytes_in_per_s": numbers.get("bytes_in_per_s"),
                "bytes_out_per_s": numbers.get("bytes_out_per_s"),
                "messages_in_per_s": numbers.get("messages_in_per_s"),
                "replication_bytes_in_per_s": numbers.get("replication_bytes_in_per_s"),
                "size_bytes": fact.size_bytes if fact is not None and fact.error is None else None,
                "why_not": numbers.get("why_not", KAFKA_NUMBERS if kind != "klamm" else why_not),
            }
        )
    return described


def _work(digest: Digest | None, status: Mapping[str, Any] | None, why_not: str | None) -> dict[str, Any]:
    """Pending work: with the controller's status, what each item waits for; without, what the protocol shows."""
    if status is not None:
        return {
            "reassignments": status["reassignments"]["first"],
            "reassignments_count": status["reassignments"]["count"],
            "deletions": status["deletions"]["first"],
            "deletions_count": status["deletions"]["count"],
            "elections": status.get("elections", []),
            "why_not": None,
        }
    return {
        "reassignments": None if digest is None else digest.moving,
        "reassignments_count": None if digest is None else digest.moving_count,
        "deletions": None,
        "deletions_count": None,
        "elections": None,
        "why_not": why_not,
    }


def _moving(key: "TopicPartition", partition: "PartitionView") -> dict[str, Any]:
    return {
        "topic": key.topic,
        "partition": key.partition,
        "replicas": partition.replicas,
        "adding_replicas": partition.adding,
        "removing_replicas": partition.removing,
        "isr": partition.isr,
        "step": "new replicas catch up" if set(partition.target) - set(partition.isr) else "old replicas leave",
        "waits_for": None,
    }
