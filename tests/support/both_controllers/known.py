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
    gone = {case.step.arguments[0]} if case.step.kind in ("bounce", "shut_down") else set()
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


def superseded(case: Case) -> set[str]:
    """The partitions whose reassignment is cancelled or gets another target."""
    if case.step.kind not in ("reassign", "reassign_by_znode"):
        return set()
    return {partition for partition in case.step.arguments[0] if partition in case.before.reassigning()}


EPOCH_RULES = [
    EpochRule("A leader's AlterIsr that takes a follower in, made before that follower died, is accepted", _fenced),
    EpochRule("The same AlterIsr is also accepted by a controller that was elected while", _fenced_by_the_next),
    EpochRule("A cancelled reassignment, or one that gets another target, leaves unneeded", superseded),
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
    if not _is_marked(case, _partition(where)):
        return False
    if where.startswith(("last LeaderAndIsr", "last UpdateMetadata")):
        return True
    is_told_all = case.step.kind in ("start", "bounce") or case.step.kind in FAILOVERS
    return where.startswith(("LeaderAndIsr", "UpdateMetadata")) and is_told_all


def _death_untold(case: Case, where: str, kafka: Any, klamm: Any) -> bool:
    """Kafka still calls brokers alive that are dead, while klamm does not."""
    if not where.startswith("live brokers") or not kafka or not klamm or not kafka.items() >= klamm.items():
        return False
    return not {str(id_) for id_ in case.now.alive} & (kafka.keys() - klamm.keys())


def _deleted_while_it_moves(case: Case, where: str, kafka: Any, klamm: Any) -> bool:
    topics = {partition.rpartition("-")[0] for partition in case.before.reassigning()}
    return case.step.kind in ("delete", "delete_by_request") and case.step.arguments[0] in topics


def _would_lose_records(case: Case, where: str, kafka: Any, klamm: Any) -> bool:
    """klamm refuses a target without a member of the ISR that stays."""
    if case.step.kind not in ("reassign", "reassign_by_znode"):
        return False
    moving = case.before.reassigning()
    for partition in superseded(case):
        adding, _ = moving[partition]
        target = case.step.arguments[0][partition]
        replicas = case.before.replicas()[partition]
        rest = target if target is not None else [id_ for id_ in replicas if id_ not in adding]
        if (state := case.before.state(partition)) is not None and not set(state["isr"]) & set(rest):
            return True
    return False


def _whole_target_is_dead(case: Case, where: str, kafka: Any, klamm: Any) -> bool:
    moving = case.before.reassigning() | case.now.reassigning()
    if case.step.kind in ("reassign", "reassign_by_znode"):
        moving |= {name: ([], []) for name in case.step.arguments[0]}
    for partition in moving:
        assigned = case.before.replicas().get(partition, [])
        target = set(assigned) - set(moving[partition][1])
        if case.step.kind in ("reassign", "reassign_by_znode") and case.step.arguments[0].get(partition):
            target = set(case.step.arguments[0][partition])
        dead = {id_ for id_ in target if id_ not in case.now.alive or partition in case.now.failed.get(id_, ())}
        if target and dead == target and (not where or partition in where or partition.partition("-")[0] in where):
            return True
    return False


def _refused_request_empties_znode(case: Case, where: str, kafka: Any, klamm: Any) -> bool:
    return (
        "/admin/reassign_partitions" in where and case.step.kind == "reassign" and kafka is None and klamm is not None
    )


def _nonsense_stays(case: Case, where: str, kafka: Any, klamm: Any) -> bool:
    is_election = "/admin/preferred_replica_election" in where
    return is_election and case.step.kind == "put" and kafka is not None and klamm is None


def _disk_works_again(case: Case, where: str, kafka: Any, klamm: Any) -> bool:
    """klamm elects a leader as soon as a broker says that its disk works."""
    if not where.startswith("znode state"):
        return False
    [old], [new] = kafka, klamm
    return old["leader"] == -1 and new["leader"] in case.now.alive


DIFFERENCES = [
    DifferenceRule("A topic that is marked for deletion while a partition", _deleted_while_it_moves, ends=True),
    DifferenceRule("A cancellation, or another target, deletes the only replica", _would_lose_records, ends=True),
    DifferenceRule("When the whole target is dead, but still in the ISR", _whole_target_is_dead, ends=True),
    DifferenceRule("A request that is refused takes its partitions out of", _refused_request_empties_znode, ends=True),
    DifferenceRule("A `/admin/preferred_replica_election` that is JSON, but not", _nonsense_stays, ends=True),
    DifferenceRule("A partition that had no leader because its only replica's disk", _disk_works_again, ends=True),
    DifferenceRule("AlterIsr writes any broker into the ISR that the leader names", _joined_though_dead, ends=True),
    DifferenceRule("A partition that has never had a leader cannot be moved", _moved_before_it_was_led, ends=True),
    DifferenceRule("(none: the order in which a deletion takes replicas out of the ISR)", _last_of_a_deleted_isr),
    DifferenceRule("A broker that dies during a deletion, and starts again, is told", _told_of_what_is_deleted),
    DifferenceRule("While some partition has no leader, no broker is told of another broker's death", _death_untold),
]
