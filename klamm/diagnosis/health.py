"""Finds the problems of a cluster and their reasons. Pure: facts in, findings out. Their sentences are in
klamm.diagnosis.findings.

What must stay true: a partition without a live leader is only in the finding about offline partitions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from klamm.base.words import are, brokers_text, counted, do, have, size_text
from klamm.config.throttles import BROKER_THROTTLES
from klamm.diagnosis.cluster_facts import BrokerFacts, ClusterFacts
from klamm.diagnosis.cluster_view import PartitionView
from klamm.diagnosis.findings import Finding, Severity, finding, gravest, in_order
from klamm.diagnosis.partition_health import Predicate, is_under_replicated, out_of_sync
from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME, TopicPartition

# A line has at most this many names before "and N more".
NAMED: Final = 3
# A disk whose free fraction is smaller than this is a finding.
LEAST_FREE: Final = 0.1
# An imbalance of leaders up to this percentage is normal (Kafka's leader.imbalance.per.broker.percentage).
NORMAL_IMBALANCE_PERCENT: Final = 10


def diagnose(facts: ClusterFacts, controller: Mapping[str, Any] | None = None) -> list[Finding]:
    """The findings, the worst first. `controller` is the status of a klamm controller, if there is one."""
    return with_controller(diagnose_facts(facts), controller)


def diagnose_facts(facts: ClusterFacts) -> list[Finding]:
    """The findings that do not need the controller's status. Looks at each partition a few times."""
    return [
        *controller_findings(facts),
        *offline_partitions(facts),
        *_min_isr(facts),
        *_missing_brokers(facts),
        *_silent_brokers(facts),
        *_log_dirs(facts),
        *under_replicated(facts),
        *_unread_topics(facts),
        *_reassignments(facts),
        *_throttles(facts),
        *_imbalance(facts),
        *_versions(facts),
        *_forbidden(facts),
    ]


def with_controller(found: Iterable[Finding], controller: Mapping[str, Any] | None) -> list[Finding]:
    """All findings, the worst first."""
    work = [*_controller_work(controller)]
    if any(each.kind == "controller_reassignments" for each in work):
        # The findings from the facts say less, or were read before the reassignment began.
        found = [each for each in found if each.kind not in ("reassignments", "throttles")]
    return in_order([*found, *work])


def is_healthy(findings: Iterable[Finding]) -> bool | None:
    """Whether the cluster is healthy; None if that is unknown."""
    return {Severity.PROBLEM: False, Severity.UNKNOWN: None, Severity.NOTICE: True}[gravest(findings)]


# -- the controller ------------------------------------------------------------------------------------------------


def controller_findings(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.view.controller_id not in facts.brokers:
        yield finding("no_controller")
    elif facts.controller_error is not None:
        controller = "The controller" if facts.controller_id is None else f"Controller {facts.controller_id}"
        yield finding("silent_controller", (facts.controller_error,), controller=controller)


def _controller_work(controller: Mapping[str, Any] | None) -> Iterator[Finding]:
    if controller is None:
        return
    stuck = [each for each in controller.get("brokers", ()) if each.get("trouble")]
    if stuck:
        yield finding(
            "controller_cannot_send",
            (f"broker {each['broker_id']}: {each['trouble']}" for each in stuck[:NAMED]),
            brokers=", ".join(str(each["broker_id"]) for each in stuck),
        )
    deletions, reassignments = controller.get("deletions", {}), controller.get("reassignments", {})
    if count := deletions.get("count"):
        why = (f"{each['topic']} waits for: {each['waits_for']}" for each in deletions["first"][:NAMED])
        yield finding("controller_deletions", why, topics=counted(count, "topic"), are=are(count))
    if count := reassignments.get("count"):
        why = (
            f"{each['topic']}-{each['partition']} waits for: {each['waits_for']}"
            for each in reassignments["first"][:NAMED]
        )
        yield finding("controller_reassignments", why, partitions=counted(count, "partition"), are=are(count))


# -- partitions ----------------------------------------------------------------------------------------------------

Partitions = Mapping[TopicPartition, PartitionView]


def _all(facts: ClusterFacts, predicate: Predicate) -> Partitions:
    """The partitions for which the predicate holds."""
    return {
        key: each
        for key, each in facts.view.partitions.items()
        if predicate.holds(each, facts.brokers, facts.min_isr.get(key.topic))
    }


def _led(facts: ClusterFacts, predicate: Predicate) -> Partitions:
    """The partitions with a live leader for which the predicate holds."""
    return {
        key: each
        for key, each in _all(facts, predicate).items()
        if not Predicate.UNAVAILABLE.holds(each, facts.brokers, None)
    }


def _about(kind: str, partitions: Partitions, why: Iterable[str] = (), **words: object) -> Iterator[Finding]:
    """The finding about these partitions, if there are any."""
    if count := len(partitions):
        yield finding(
            kind,
            why,
            partitions=counted(count, "partition"),
            are=are(count),
            have=have(count),
            named=_listed([f"{key.topic}-{key.partition}" for key in partitions]),
            **words,
        )


def offline_partitions(facts: ClusterFacts) -> Iterator[Finding]:
    offline = _all(facts, Predicate.UNAVAILABLE)
    last = sorted({broker_id for each in offline.values() for broker_id in (each.isr or each.replicas)})
    down = [broker_id for broker_id in last if broker_id not in facts.brokers]
    why = [_because(offline, down, "is down and was the last in sync")] if down else []
    if broken := [broker_id for broker_id in last if broker_id in facts.brokers]:
        why.append(
            f"{brokers_text(broken).capitalize()} {are(len(broken))} up: the replica's log directory has failed, or an"
            " election is due"
        )
    if groups := sum(key.topic == GROUP_METADATA_TOPIC_NAME for key in offline):
        why.append(f"{groups} of them {are(groups)} of {GROUP_METADATA_TOPIC_NAME}: their groups have no coordinator")
    what = f"Start broker {', '.join(map(str, down))}." if down else "Look at the logs of these brokers."
    yield from _about("offline_partitions", offline, why, what=what)


def _min_isr(facts: ClusterFacts) -> Iterator[Finding]:
    yield from _about("under_min_isr", _led(facts, Predicate.UNDER_MIN_ISR), ("producers with acks=all are refused",))
    # Only partitions that have lost an in-sync replica: one with exactly min.insync.replicas replicas is always here.
    at_minimum = _led(facts, Predicate.AT_MIN_ISR)
    yield from _about("at_min_isr", {key: each for key, each in at_minimum.items() if is_under_replicated(each)})


def under_replicated(facts: ClusterFacts) -> Iterator[Finding]:
    short = _led(facts, Predicate.UNDER_REPLICATED)
    by_broker: dict[int, dict[TopicPartition, PartitionView]] = {}
    for key, each in short.items():
        for broker_id in out_of_sync(each):
            by_broker.setdefault(broker_id, {})[key] = each
    why = (
        f"broker {broker_id} {_fault(facts, broker_id, partitions)}: {counted(len(partitions), 'replica')}"
        for broker_id, partitions in sorted(by_broker.items(), key=lambda item: (-len(item[1]), item[0]))
    )
    yield from _about("under_replicated", short, why)


def _fault(facts: ClusterFacts, broker_id: int, partitions: Partitions) -> str:
    """Why replicas on a broker are not in sync."""
    broker = facts.brokers.get(broker_id)
    if broker is None:
        return "is down"
    if broker.error is not None:
        return "does not answer"
    if all(broker_id in each.offline for each in partitions.values()):
        # Brokers also list replicas that were offline in the controller's last update.
        if any(log_dir.error is not None for log_dir in broker.log_dirs):
            return "has them in a log directory that is offline"
        return "is up, and the controller has not used them since it came back"
    return "is up, and has not caught up"


def _imbalance(facts: ClusterFacts) -> Iterator[Finding]:
    # An election only helps if the preferred replica is in sync.
    off = [
        each
        for each in _led(facts, Predicate.OFF_PREFERRED).values()
        if each.replicas[0] in each.isr and each.replicas[0] in facts.brokers
    ]
    led = sum(
        bool(each.replicas) and not Predicate.UNAVAILABLE.holds(each, facts.brokers, None)
        for each in facts.view.partitions.values()
    )
    if off and 100 * len(off) > NORMAL_IMBALANCE_PERCENT * led:
        yield finding("leader_imbalance", off=len(off), partitions=counted(led, "partition"))


def _reassignments(facts: ClusterFacts) -> Iterator[Finding]:
    yield from _about("reassignments", _all(facts, Predicate.REASSIGNING))


# -- brokers -------------------------------------------------------------------------------------------------------


def _missing_brokers(facts: ClusterFacts) -> Iterator[Finding]:
    if missing := facts.missing:
        yield finding(
            "missing_brokers",
            (f"broker {broker_id}: {counted(len(facts.on(broker_id)), 'replica')}" for broker_id in missing[:10]),
            brokers=brokers_text(missing).capitalize(),
            are=are(len(missing)),
            them="it" if len(missing) == 1 else "them",
            first=missing[0],
        )


def _silent_brokers(facts: ClusterFacts) -> Iterator[Finding]:
    if silent := [broker for broker in facts.brokers.values() if broker.error is not None]:
        yield finding(
            "silent_brokers",
            (f"broker {each.broker_id}: {each.error}" for each in silent),
            brokers=brokers_text(each.broker_id for each in silent).capitalize(),
            are=are(len(silent)),
            do=do(len(silent)),
        )


def _log_dirs(facts: ClusterFacts) -> Iterator[Finding]:
    every = [(broker, each) for broker in facts.brokers.values() for each in broker.log_dirs]
    broken = [(broker, each) for broker, each in every if each.error is not None]
    full = [
        (broker, each)
        for broker, each in every
        if each.total_bytes > 0 and each.usable_bytes < LEAST_FREE * each.total_bytes
    ]
    if broken:
        why = [f"broker {broker.broker_id}: {each.path}: {each.error}" for broker, each in broken]
        yield finding("offline_log_dirs", why, log_dirs=_log_dirs_text(len(broken)), are=are(len(broken)))
    if full:
        why = [
            f"broker {broker.broker_id}: {each.path}: {size_text(each.usable_bytes)} of {size_text(each.total_bytes)}"
            f" free, replicas take {size_text(each.size_bytes)}"
            for broker, each in full
        ]
        yield finding("full_disks", why, log_dirs=_log_dirs_text(len(full)), are=are(len(full)))


def _log_dirs_text(count: int) -> str:
    return counted(count, "log directory", "log directories")


def _unread_topics(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.topics_error is not None:
        yield finding("unread_configs", (facts.topics_error,))


def _throttles(facts: ClusterFacts) -> Iterator[Finding]:
    throttled = {broker_id: each.throttles for broker_id, each in facts.brokers.items() if each.throttles}
    topics = sorted(facts.throttled_topics)
    is_moving = any(each.is_reassigning for each in facts.view.partitions.values()) or any(
        log_dir.future_replicas for broker in facts.brokers.values() for log_dir in broker.log_dirs
    )
    if is_moving or not (throttled or topics):
        return
    why = [
        f"broker {broker_id}: {', '.join(f'{name}={value}' for name, value in limits.items())}"
        for broker_id, limits in sorted(throttled.items())
    ]
    if topics:
        why.append(f"throttled replicas of {_listed(topics)}")
    if throttled:
        broker_id, limits = min(throttled.items())
        entity, names = f"--broker {broker_id}", [name for name in BROKER_THROTTLES if name in limits]
    else:
        entity, names = f"--topic {topics[0]}", list(facts.throttled_topics[topics[0]])
    yield finding("throttles", why, entity=entity, names=",".join(names))


def _versions(facts: ClusterFacts) -> Iterator[Finding]:
    groups: dict[tuple[object, ...], list[int]] = {}
    for broker in facts.brokers.values():
        if broker.error is None:
            groups.setdefault((broker.software, broker.protocol, broker.apis), []).append(broker.broker_id)
    if len(groups) > 1:
        yield finding(
            "version_mix",
            (
                f"{brokers_text(broker_ids).capitalize()}: {version_text(facts.brokers[broker_ids[0]])}"
                for broker_ids in groups.values()
            ),
        )


def _forbidden(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.forbidden:
        yield finding("forbidden", what=", ".join(facts.forbidden))


# -- text ----------------------------------------------------------------------------------------------------------


def version_text(broker: BrokerFacts) -> str:
    """The software of a broker, and its inter.broker.protocol.version."""
    protocol = "" if broker.protocol is None else f", inter.broker.protocol.version {broker.protocol}"
    return f"{broker.software or 'unknown'}{protocol}"


def _because(partitions: Partitions, down: Sequence[int], what: str) -> str:
    counts = [
        f"broker {broker_id} {what} for {sum(broker_id in (each.isr or each.replicas) for each in partitions.values())}"
        for broker_id in down
    ]
    return "; ".join(counts)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
