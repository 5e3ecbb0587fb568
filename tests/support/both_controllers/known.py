"""What the comparison leaves out, and the differences that are known, each with its reason.

What must stay true: nothing else is forgiven.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from support.both_controllers.observations import Observation
from support.both_controllers.steps import FAILOVERS, Step

# Znodes that are not looked at.
NOT_LOOKED_AT = {
    # The barrier's, whose changes show that a cluster is at rest.
    r"/brokers/topics/barrier(/.*)?": "the barrier's own",
    r"/config/topics/barrier": "the barrier's own",
    r"/brokers/ids/50": "the barrier's own broker",
    # The notifications of barriers; the controller removes all that it finds, at any time.
    r"/isr_change_notification/.*": "barriers come and go",
    # Written by the scenarios only, and removed by brokers a quarter of an hour later.
    r"/config/changes/.*": "removed after a quarter of an hour",
    r"/config/brokers/10[01]": "written by the scenarios to see that configurations have been applied",
    # Producer ids are no business of the controller in 2.8.
    r"/latest_producer_id_block": "each broker takes blocks when it starts",
}

_NOT_LOOKED_AT = re.compile("|".join(NOT_LOOKED_AT))


def is_looked_at(path: str) -> bool:
    return _NOT_LOOKED_AT.fullmatch(path) is None


def kind_of_path(path: str) -> str:
    """The path with `*` instead of the names in it."""
    return re.sub(r"(?<=topics/)[^/]+|(?<=/)[0-9]+", "*", path)


# -- leader epochs that only klamm begins


class Case(NamedTuple):
    """A step, with what Kafka's side showed before and shows now. `returned`: the brokers that have registered since
    klamm's side wrote the state of a partition last."""

    step: Step
    before: Observation
    now: Observation
    returned: Mapping[str, frozenset[int]]


class EpochRule(NamedTuple):
    """`reason` begins the row of docs/kafka-faults.md; each of `partitions` gets one more epoch at most."""

    reason: str
    partitions: Callable[[Case], Iterable[str]]


def _fenced(case: Case) -> Iterable[str]:
    if case.step.kind in FAILOVERS:
        return
    gone = {case.step.arguments[0]} if case.step.kind == "bounce" else set()
    for partition, replicas in case.before.replicas().items():
        state = case.before.state(partition)
        lost = (case.now.offline(partition) | gone) & set(replicas)
        if state is not None and (lost - set(state["isr"])) - case.before.offline(partition):
            yield partition


def _fenced_by_the_next(case: Case) -> Iterable[str]:
    if case.step.kind in FAILOVERS:
        yield from (partition for partition in case.now.replicas() if case.now.offline(partition))


def _bounced(case: Case) -> Iterable[str]:
    if case.step.kind in FAILOVERS:
        for partition, replicas in case.now.replicas().items():
            if case.returned.get(partition, frozenset()) & set(replicas):
                yield partition


EPOCH_RULES = [
    EpochRule("A leader's AlterIsr that takes a follower in, made before that follower died, is accepted", _fenced),
    EpochRule("The same AlterIsr is also accepted by a controller that was elected while", _fenced_by_the_next),
    EpochRule("A machine that dies with unsynced records may be back when the next controller is elected", _bounced),
]


def epochs_begun(case: Case) -> dict[str, list[str]]:
    """The reasons why klamm may begin a leader epoch in this step that Kafka does not begin, for each partition."""
    reasons: dict[str, list[str]] = {}
    for rule in EPOCH_RULES:
        for partition in rule.partitions(case):
            reasons.setdefault(partition, []).append(rule.reason)
    return reasons


# -- other differences


class DifferenceRule(NamedTuple):
    """`applies(case, where, what Kafka shows, what klamm shows)`. `ends`: both clusters go on from different states, so
    there is nothing to compare any more."""

    reason: str
    applies: Callable[[Case, str, Any, Any], bool]
    ends: bool = False


def _is_marked(case: Case, partition: str) -> bool:
    """Whether the partition's topic is being deleted."""
    return f"/admin/delete_topics/{partition.rpartition('-')[0]}" in (case.now.znodes | case.before.znodes)


def _partition(where: str) -> str:
    """Of a difference in states."""
    if match := re.search(r"/brokers/topics/(.+)/partitions/([0-9]+)/state", where):
        return f"{match[1]}-{match[2]}"
    match = re.search(r"of ([^ ]+-[0-9]+) told to", where)
    return match[1] if match else ""


def _joined_though_dead(case: Case, where: str, kafka: Any, klamm: Any) -> bool:
    if case.step.kind != "alter_isr" or where != "answers":
        return False
    partition, isr, *_ = case.step.arguments
    able = set(case.before.replicas().get(partition, ())) - case.before.offline(partition)
    return not able.issuperset(isr)


def _moved_before_it_was_led(case: Case, where: str, kafka: Any, klamm: Any) -> bool:
    if case.step.kind not in ("reassign", "reassign_by_znode"):
        return False
    existing = case.before.replicas()
    return any(name in existing and case.before.state(name) is None for name in case.step.arguments[0])


def _last_of_a_deleted_isr(case: Case, where: str, kafka: Any, klamm: Any) -> bool:
    """All replicas leave the ISR, in the order of a set of Scala; the last one stays in it."""
    if not where.startswith("znode state") or not _is_marked(case, _partition(where)):
        return False
    [old], [new] = kafka, klamm
    return old["leader"] == new["leader"] == -1 and len(old["isr"]) == len(new["isr"]) == 1


def _told_of_what_is_deleted(case: Case, where: str, kafka: Any, klamm: Any) -> bool:
    return bool(
        where.startswith(("LeaderAndIsr", "UpdateMetadata", "last LeaderAndIsr", "last UpdateMetadata"))
        and _is_marked(case, _partition(where))
        and (case.step.kind in ("start", "bounce") or case.step.kind in FAILOVERS)
    )


def _death_untold(case: Case, where: str, kafka: Any, klamm: Any) -> bool:
    """Kafka still calls brokers alive that are dead, while klamm does not."""
    if not where.startswith("live brokers") or not kafka or not klamm or not kafka.items() >= klamm.items():
        return False
    return not {int(id_) for id_ in kafka.keys() - klamm.keys()} & case.now.alive


DIFFERENCES = [
    DifferenceRule("AlterIsr writes any broker into the ISR that the leader names", _joined_though_dead, ends=True),
    DifferenceRule("A partition that has never had a leader cannot be moved", _moved_before_it_was_led, ends=True),
    DifferenceRule("(none: the order in which a deletion takes replicas out of the ISR)", _last_of_a_deleted_isr),
    DifferenceRule("A broker that dies during a deletion, and starts again, is told", _told_of_what_is_deleted),
    DifferenceRule("While some partition has no leader, no broker is told of another broker's death", _death_untold),
]
