"""What is wrong with a cluster, why, and what to do about it. Pure: facts in, findings out."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from klamm.base.words import are, brokers_text, counted, do, have, size_text
from klamm.config.throttles import BROKER_THROTTLES
from klamm.diagnosis.cluster_facts import BrokerFacts, ClusterFacts
from klamm.diagnosis.cluster_view import PartitionView
from klamm.diagnosis.partition_health import (
    is_at_min_isr,
    is_off_preferred,
    is_unavailable,
    is_under_min_isr,
    is_under_replicated,
    out_of_sync,
)
from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME, TopicPartition

# Names in a line, and lines of a finding, before "and N more".
NAMED: Final = 3
LINES: Final = 5
# A disk with less than this part free is a finding.
LEAST_FREE: Final = 0.1
# An imbalance of leaders up to this percentage is normal (Kafka's leader.imbalance.per.broker.percentage).
NORMAL_IMBALANCE_PERCENT: Final = 10


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that an operator should know. The cluster is unhealthy when a finding `is_problem`, and not known to
    be healthy when a finding `is_unknown`, because something could not be read.

    `why` has one line for each broker or thing at fault; `command` is a call of klamm that helps.
    """

    kind: str
    text: str
    why: tuple[str, ...] = ()
    advice: str = ""
    command: str = ""
    is_problem: bool = True
    is_unknown: bool = False

    def lines(self) -> Iterator[str]:
        """The finding on a screen."""
        yield f"- {self.text}"
        yield from (f"    {line}" for line in self.why[:LINES])
        if len(self.why) > LINES:
            yield f"    ... and {len(self.why) - LINES} more"
        if self.advice:
            yield f"    What to do: {self.advice}"
        if self.command:
            yield f"    {self.command}"

    def value(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "text": self.text,
            "why": list(self.why),
            "advice": self.advice,
            "command": self.command,
        }

    def document(self) -> dict[str, Any]:
        """The finding for a page, which sorts by severity."""
        return {**self.value(), "is_problem": self.is_problem, "is_unknown": self.is_unknown}


def diagnose(facts: ClusterFacts, controller: Mapping[str, Any] | None = None) -> list[Finding]:
    """The findings, the worst first. `controller` is the status of a klamm controller, if it could be asked."""
    return with_controller(diagnose_facts(facts), controller)


FactFindings = tuple[list[Finding], list[Finding]]
"""The findings that are worse than those about the controller's work, and the others."""


def diagnose_facts(facts: ClusterFacts) -> FactFindings:
    """The findings that need no status of the controller. Looks at each partition some times."""
    worse = [
        *_no_controller(facts),
        *_offline(facts),
        *_under_min_isr(facts),
        *_missing_brokers(facts),
        *_silent_brokers(facts),
        *_log_dirs(facts),
        *_under_replicated(facts),
        *_unread_topics(facts),
    ]
    others = [
        *_reassignments(facts),
        *_throttles(facts),
        *_imbalance(facts),
        *_at_min_isr(facts),
        *_versions(facts),
        *_forbidden(facts),
    ]
    return worse, others


def with_controller(found: FactFindings, controller: Mapping[str, Any] | None) -> list[Finding]:
    """All findings, the worst first."""
    worse, others = found
    work = [*_controller_work(controller)]
    if any(each.kind == "controller_reassignments" for each in work):
        # The facts say the same with less, or were read before the reassignment began.
        others = [each for each in others if each.kind not in ("reassignments", "throttles")]
    return [*worse, *work, *others]


def is_healthy(findings: Sequence[Finding]) -> bool | None:
    """None if it is not known."""
    if any(finding.is_problem for finding in findings):
        return False
    return None if any(finding.is_unknown for finding in findings) else True


# -- the controller ------------------------------------------------------------------------------------------------


def _no_controller(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.view.controller_id not in facts.brokers:
        yield Finding(
            "no_controller",
            "The cluster has no controller: leaders are not elected, and topics are not created or deleted.",
            advice="See whether brokers reach ZooKeeper (or, in KRaft mode, the controllers have a majority).",
        )
    elif facts.controller_error is not None:
        yield Finding(
            "silent_controller",
            "The controller does not list reassignments."
            if facts.controller_id is None
            else f"Controller {facts.controller_id} does not list reassignments.",
            (facts.controller_error,),
            "Look at the controller's log, and on klamm at what it is doing:",
            "klamm controller status",
        )


def _controller_work(controller: Mapping[str, Any] | None) -> Iterator[Finding]:
    if controller is None:
        return
    stuck = [each for each in controller.get("brokers", ()) if each.get("trouble")]
    if stuck:
        yield Finding(
            "controller_cannot_send",
            f"The controller cannot reach broker {', '.join(str(each['broker_id']) for each in stuck)}.",
            tuple(f"broker {each['broker_id']}: {each['trouble']}" for each in stuck[:NAMED]),
            "Those brokers do not learn of new leaders and topics; look at their logs and their network.",
        )
    for key, verb in (("deletions", "deleted"), ("reassignments", "reassigned")):
        listed = controller.get(key, {})
        if listed.get("count"):
            what = "topic" if key == "deletions" else "partition"
            yield Finding(
                f"controller_{key}",
                f"{counted(listed['count'], what)} {are(listed['count'])} being {verb}.",
                tuple(
                    f"{each['topic']}{'' if key == 'deletions' else '-' + str(each['partition'])} waits for:"
                    f" {each['waits_for']}"
                    for each in listed["first"][:NAMED]
                ),
                "See how far they are:" if key == "reassignments" else "",
                "klamm reassign list" if key == "reassignments" else "",
                is_problem=False,
            )


# -- partitions ----------------------------------------------------------------------------------------------------


def _offline(facts: ClusterFacts) -> Iterator[Finding]:
    offline = {key: each for key, each in facts.view.partitions.items() if is_unavailable(each, facts.brokers)}
    if not offline:
        return
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
    yield Finding(
        "offline_partitions",
        f"{counted(len(offline), 'partition')} {have(len(offline))} no leader, and cannot be read or written:"
        f" {_named(offline)}.",
        tuple(why),
        f"Start broker {', '.join(map(str, down))}." if down else "Look at the logs of these brokers.",
    )


def _under_min_isr(facts: ClusterFacts) -> Iterator[Finding]:
    under = _led(facts, lambda key, each: is_under_min_isr(each, facts.min_isr.get(key.topic)))
    if under:
        yield Finding(
            "under_min_isr",
            f"{counted(len(under), 'partition')} {have(len(under))} fewer in-sync replicas than min.insync.replicas:"
            f" {_named(under)}.",
            ("producers with acks=all are refused",),
            "Bring the replicas below back in sync.",
        )


def _at_min_isr(facts: ClusterFacts) -> Iterator[Finding]:
    """Only partitions that have lost a replica: with as many replicas as min.insync.replicas this is normal."""
    at_minimum = _led(
        facts, lambda key, each: is_at_min_isr(each, facts.min_isr.get(key.topic)) and is_under_replicated(each)
    )
    if at_minimum:
        yield Finding(
            "at_min_isr",
            f"{counted(len(at_minimum), 'partition')} would refuse acks=all after one more failure:"
            f" {_named(at_minimum)}.",
            is_problem=False,
        )


def _under_replicated(facts: ClusterFacts) -> Iterator[Finding]:
    short = _led(facts, lambda key, each: is_under_replicated(each))
    if not short:
        return
    by_broker: dict[int, dict[TopicPartition, PartitionView]] = {}
    for key, each in short.items():
        for broker_id in out_of_sync(each):
            by_broker.setdefault(broker_id, {})[key] = each
    yield Finding(
        "under_replicated",
        f"{counted(len(short), 'partition')} {are(len(short))} under-replicated: {_named(short)}.",
        tuple(
            f"broker {broker_id} {_fault(facts, broker_id, partitions)}: {counted(len(partitions), 'replica')}"
            for broker_id, partitions in sorted(by_broker.items(), key=lambda item: (-len(item[1]), item[0]))
        ),
        "Start the brokers that are down. Replicas on a broker that is up catch up by themselves; if they do not, look"
        " at its log and at throttles.",
    )


def _fault(facts: ClusterFacts, broker_id: int, partitions: Mapping[TopicPartition, PartitionView]) -> str:
    """Why replicas on a broker are not in sync."""
    broker = facts.brokers.get(broker_id)
    if broker is None:
        return "is down"
    if broker.error is not None:
        return "does not answer"
    if all(broker_id in each.offline for each in partitions.values()):
        # Brokers also name replicas offline that were so when the controller told them last.
        if any(log_dir.error is not None for log_dir in broker.log_dirs):
            return "has them in a log directory that is offline"
        return "is up, and the controller has not used them since it came back"
    return "is up, and has not caught up"


def _imbalance(facts: ClusterFacts) -> Iterator[Finding]:
    partitions = _led(facts, lambda key, each: bool(each.replicas)).values()
    # An election helps only where the preferred replica is in sync.
    off = [
        each
        for each in partitions
        if is_off_preferred(each) and each.replicas[0] in each.isr and each.replicas[0] in facts.brokers
    ]
    if off and 100 * len(off) > NORMAL_IMBALANCE_PERCENT * len(partitions):
        yield Finding(
            "leader_imbalance",
            f"{len(off)} of {counted(len(partitions), 'partition')} are not led by their preferred replica, which is in"
            " sync.",
            advice="Elect the preferred replicas:",
            command="klamm elect preferred --all-topic-partitions",
            is_problem=False,
        )


def _reassignments(facts: ClusterFacts) -> Iterator[Finding]:
    moving = {key: each for key, each in facts.view.partitions.items() if each.is_reassigning}
    if moving:
        yield Finding(
            "reassignments",
            f"{counted(len(moving), 'partition')} {are(len(moving))} being reassigned: {_named(moving)}.",
            advice="See how far they are:",
            command="klamm reassign list",
            is_problem=False,
        )


# -- brokers -------------------------------------------------------------------------------------------------------


def _missing_brokers(facts: ClusterFacts) -> Iterator[Finding]:
    if missing := facts.missing:
        yield Finding(
            "missing_brokers",
            f"{brokers_text(missing).capitalize()} {are(len(missing))} named in assignments and not in the cluster.",
            tuple(f"broker {broker_id}: {counted(len(facts.on(broker_id)), 'replica')}" for broker_id in missing[:10]),
            f"Start {'it' if len(missing) == 1 else 'them'}, or move the replicas away:",
            f"klamm brokers decommission --broker {missing[0]}",
        )


def _silent_brokers(facts: ClusterFacts) -> Iterator[Finding]:
    if silent := [broker for broker in facts.brokers.values() if broker.error is not None]:
        yield Finding(
            "silent_brokers",
            f"{brokers_text(each.broker_id for each in silent).capitalize()} {are(len(silent))} registered and"
            f" {do(len(silent))} not answer.",
            tuple(f"broker {each.broker_id}: {each.error}" for each in silent),
            "Look at the process and its log; a listener may be unreachable from here.",
        )


def _log_dirs(facts: ClusterFacts) -> Iterator[Finding]:
    broken = [(broker, each) for broker in facts.brokers.values() for each in broker.log_dirs if each.error is not None]
    if broken:
        yield Finding(
            "offline_log_dirs",
            f"{counted(len(broken), 'log directory', 'log directories')} {are(len(broken))} offline.",
            tuple(f"broker {broker.broker_id}: {each.path}: {each.error}" for broker, each in broken),
            "Repair or replace the disk, and restart the broker.",
        )
    full = [
        (broker, each)
        for broker in facts.brokers.values()
        for each in broker.log_dirs
        if each.total_bytes > 0 and each.usable_bytes < LEAST_FREE * each.total_bytes
    ]
    if full:
        yield Finding(
            "full_disks",
            f"{counted(len(full), 'log directory', 'log directories')} {are(len(full))} on a disk that is nearly full.",
            tuple(
                f"broker {broker.broker_id}: {each.path}: {size_text(each.usable_bytes)} of"
                f" {size_text(each.total_bytes)} free, replicas take {size_text(each.size_bytes)}"
                for broker, each in full
            ),
            "Shorten retention, or move replicas away.",
        )


def _unread_topics(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.topics_error is not None:
        yield Finding(
            "unread_configs",
            "The configs of some topics could not be read, so min.insync.replicas and throttles are not known.",
            (facts.topics_error,),
            is_problem=False,
            is_unknown=True,
        )


def _throttles(facts: ClusterFacts) -> Iterator[Finding]:
    throttled = {broker_id: each.throttles for broker_id, each in facts.brokers.items() if each.throttles}
    if not throttled and not facts.throttled_topics:
        return
    is_moving = any(each.is_reassigning for each in facts.view.partitions.values()) or any(
        log_dir.future_replicas for broker in facts.brokers.values() for log_dir in broker.log_dirs
    )
    if is_moving:
        return
    topics = sorted(facts.throttled_topics)
    why = [
        f"broker {broker_id}: {', '.join(f'{name}={value}' for name, value in limits.items())}"
        for broker_id, limits in sorted(throttled.items())
    ]
    if topics:
        why.append(f"throttled replicas of {_listed(topics)}")
    command = ""
    if throttled:
        broker_id, limits = min(throttled.items())
        names = ",".join(name for name in BROKER_THROTTLES if name in limits)
        command = f"klamm configs alter --broker {broker_id} --delete-config {names}"
    elif topics:
        command = (
            f"klamm configs alter --topic {topics[0]} --delete-config {','.join(facts.throttled_topics[topics[0]])}"
        )
    yield Finding(
        "throttles",
        "Replication is throttled, and nothing is being moved: throttles may have been left behind.",
        tuple(why),
        "Remove them unless they are meant to stay:",
        command,
        is_problem=False,
    )


def _versions(facts: ClusterFacts) -> Iterator[Finding]:
    groups: dict[tuple[object, ...], list[int]] = {}
    for broker in facts.brokers.values():
        if broker.error is None:
            groups.setdefault((broker.software, broker.protocol, broker.apis), []).append(broker.broker_id)
    if len(groups) > 1:
        yield Finding(
            "version_mix",
            "Brokers run different versions.",
            tuple(
                f"{brokers_text(broker_ids).capitalize()}: {version_text(facts.brokers[broker_ids[0]])}"
                for broker_ids in groups.values()
            ),
            "Normal during an upgrade; finish it before features of the new version are used.",
            is_problem=False,
        )


def _forbidden(facts: ClusterFacts) -> Iterator[Finding]:
    if facts.forbidden:
        yield Finding(
            "forbidden",
            f"This client may not see {', '.join(facts.forbidden)}, so faults there do not show.",
            advice="Grant its user Describe and DescribeConfigs on the cluster, and DescribeConfigs on all topics.",
            is_problem=False,
            is_unknown=True,
        )


# -- text ----------------------------------------------------------------------------------------------------------


def version_text(broker: BrokerFacts) -> str:
    """The software of a broker, and its inter.broker.protocol.version."""
    protocol = "" if broker.protocol is None else f", inter.broker.protocol.version {broker.protocol}"
    return f"{broker.software or 'unknown'}{protocol}"


def _led(
    facts: ClusterFacts, is_meant: Callable[[TopicPartition, PartitionView], bool]
) -> dict[TopicPartition, PartitionView]:
    """Those of the partitions with a live leader: one without is a finding of its own."""
    return {
        key: each
        for key, each in facts.view.partitions.items()
        if not is_unavailable(each, facts.brokers) and is_meant(key, each)
    }


def _because(partitions: Mapping[TopicPartition, PartitionView], down: Sequence[int], what: str) -> str:
    counts = [
        f"broker {broker_id} {what} for {sum(broker_id in (each.isr or each.replicas) for each in partitions.values())}"
        for broker_id in down
    ]
    return "; ".join(counts)


def _named(partitions: Iterable[TopicPartition]) -> str:
    return _listed([f"{key.topic}-{key.partition}" for key in partitions])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
