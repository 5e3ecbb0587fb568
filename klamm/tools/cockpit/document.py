"""The Now document: what the readings of a live cluster come to. Pure.

What cannot be read is null, and a `why_not` beside it says why.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from klamm.tools.cluster_facts import KLAMM, ClusterFacts
from klamm.tools.health import FactFindings, diagnose_facts, with_controller

if TYPE_CHECKING:
    from klamm.protocol.vocabulary import TopicPartition
    from klamm.tools.cluster_view import PartitionView
    from klamm.tools.controller import ControllerAddress
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

# As many items of work as klamm's controller lists.
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


@dataclass(frozen=True, slots=True)
class Digest:
    """Facts, and what is counted and found in them. `moving` are the first partitions of a reassignment."""

    facts: ClusterFacts
    totals: Mapping[str, Any]
    missing: Sequence[int]
    moving: Sequence[Mapping[str, Any]]
    findings: FactFindings


def digested(facts: ClusterFacts) -> Digest:
    """Looks at each partition some times: with 100,000 it takes a part of a second."""
    moving = [(key, each) for key, each in facts.view.partitions.items() if each.is_reassigning]
    return Digest(
        facts,
        _totals(facts, len(moving)),
        facts.missing,
        [_moving(key, each) for key, each in moving[:LISTED]],
        diagnose_facts(facts),
    )


@dataclass(frozen=True, slots=True)
class Read:
    """The newest value of each reading, and why there is no newer one: `groups_why_not` and the others are None where
    the value is of now. `states_over_time` has times of the controller's clock, which stands at `controller_time_ms`;
    None while no controller has told. `digest` is that of the facts, if it is made already."""

    time_ms: int
    facts: ClusterFacts | None = None
    facts_why_not: str | None = None
    registrations: Registrations | None = None
    registrations_why_not: str | None = None
    status: Mapping[str, Any] | None = None
    status_why_not: str | None = None
    numbers: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    groups: Sequence[Mapping[str, Any]] | None = None
    groups_why_not: str | None = None
    states_over_time: Sequence[tuple[int, str]] = ()
    controller_time_ms: int | None = None
    digest: Digest | None = None
    facts_age_ms: int | None = None
    groups_age_ms: int | None = None


def kind_of(facts: ClusterFacts | None) -> str | None:
    """The kind of a cluster; one with a broker of klamm is klamm's. None while it is not known."""
    if facts is None:
        return None
    if any(broker.is_kraft for broker in facts.brokers.values()):
        return "kafka-kraft"
    software = {broker.software for broker in facts.brokers.values()} - {""}
    return None if not software else "klamm" if KLAMM in software else "kafka-zookeeper"


def now_document(read: Read) -> dict[str, Any]:
    """See klamm.tools.cockpit."""
    facts, status = read.facts, read.status
    digest = read.digest or (None if facts is None else digested(facts))
    kind = kind_of(facts)
    if status is not None and not _is_of_controller(status, read.registrations):
        status = None
    why_not = None if status is not None else _why_no_status(read, kind)
    return {
        "cluster": {"id": None if facts is None else facts.cluster_id, "kind": kind, "version": _version(facts)},
        "time_ms": read.time_ms,
        "trouble": read.facts_why_not or (None if read.registrations is None else read.registrations_why_not),
        "controller": _controller(read, kind, status, why_not),
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
            "why_not": why_not,
        },
        "machines": None if status is None else status.get("machines"),
        "totals": None
        if digest is None
        else {**digest.totals, "not_preferred": None if status is None else status["preferred_replica_imbalance"]},
        "brokers": _brokers(read, digest, kind, status, why_not),
        "work": _work(digest, status, why_not),
        "groups": read.groups,
        "groups_why_not": read.groups_why_not,
        "groups_age_ms": read.groups_age_ms,
        "facts_age_ms": read.facts_age_ms,
        "findings": []
        if digest is None
        else [
            finding.value() | {"is_problem": finding.is_problem} for finding in with_controller(digest.findings, status)
        ],
        "why_not": why_not,
    }


def _is_of_controller(status: Mapping[str, Any], registrations: Registrations | None) -> bool:
    """Whether the status is that of the present controller: the one before may have been asked last."""
    found = None if registrations is None else registrations.controller
    return bool(status.get("active")) and (found is None or status.get("epoch") == found.epoch)


def _version(facts: ClusterFacts | None) -> str | None:
    """The lowest inter.broker.protocol.version; KRaft's brokers have no such config."""
    versions = set() if facts is None else {broker.protocol for broker in facts.brokers.values() if broker.protocol}
    return min(versions, default=None)


def _why_no_status(read: Read, kind: str | None) -> str:
    if kind == "kafka-kraft":
        return KRAFT_SHOWS_LESS
    if read.registrations is None:
        return f"ZooKeeper names the controller's port, and it could not be read: {read.registrations_why_not}"
    controller = read.registrations.controller
    if controller is None:
        return "The cluster has no controller now."
    if not controller.registered:
        return f"Broker {controller.broker_id} is not registered: it has died, or lost its session."
    if kind == "kafka-zookeeper":
        return KAFKA_SHOWS_LESS
    if controller.port is None:
        return f"Broker {controller.broker_id} serves no status: its klamm.metrics.port is -1."
    return read.status_why_not or "The controller is taking over."


def _controller(read: Read, kind: str | None, status: Mapping[str, Any] | None, why_not: str | None) -> dict[str, Any]:
    found = None if read.registrations is None else read.registrations.controller
    by_protocol = None if read.facts is None else read.facts.controller_id
    return {
        "id": found.broker_id if found is not None else by_protocol,
        "epoch": None if found is None else found.epoch,
        "since_ms": None if found is None else found.since_ms,
        "host": None if found is None else found.host,
        "status": status,
        "why_not": why_not,
    }


def _totals(facts: ClusterFacts, reassigning: int) -> dict[str, Any]:
    partitions = facts.view.partitions.values()
    return {
        "topics": len({key.topic for key in facts.view.partitions}),
        "partitions": len(partitions),
        "replicas": sum(len(each.replicas) for each in partitions),
        "offline": sum(each.leader < 0 for each in partitions),
        "under_replicated": sum(each.leader >= 0 and len(each.isr) < len(each.origin) for each in partitions),
        "reassigning": reassigning,
        "size_bytes": sum(broker.size_bytes for broker in facts.brokers.values()),
    }


def _brokers(
    read: Read, digest: Digest | None, kind: str | None, status: Mapping[str, Any] | None, why_not: str | None
) -> list[dict[str, Any]]:
    """All brokers that any reading names, by id."""
    facts, registrations = read.facts, read.registrations
    known = {} if facts is None else facts.brokers
    live = {} if registrations is None else registrations.live
    queues = {} if status is None else {each["broker_id"]: each for each in status["brokers"]}
    missing = [] if digest is None else digest.missing
    knows_live = registrations is not None and read.registrations_why_not is None
    controller_id = None if registrations is None or registrations.controller is None else registrations.controller
    described = []
    for broker_id in sorted({*known, *live, *missing}):
        fact, registered, queue = known.get(broker_id), live.get(broker_id), queues.get(broker_id, {})
        numbers = read.numbers.get(broker_id, {})
        is_alive = broker_id in live if knows_live else fact is not None
        trouble = None
        if not is_alive:
            trouble = "it is not registered: it has stopped, has died or has lost its session"
        elif fact is not None and fact.error is not None:
            trouble = fact.error
        described.append(
            {
                "id": broker_id,
                "host": fact.address[0] if fact is not None else None,
                "port": fact.address[1] if fact is not None else None,
                "rack": fact.rack if fact is not None else None,
                "software": fact.software if fact is not None else "",
                "alive": is_alive,
                "is_controller": controller_id is not None and controller_id.broker_id == broker_id,
                "epoch": None if registered is None else registered.epoch,
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
    """With the controller's status what each waits for; else what the protocol shows."""
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
        "reassignments": [] if digest is None else digest.moving,
        "reassignments_count": 0 if digest is None else digest.totals["reassigning"],
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
