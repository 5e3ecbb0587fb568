"""The decisions of an execution at each look at the cluster: where each partition stands, what begins next. Pure.

| the partition has | and | it is |
|---|---|---|
| the plan's replicas | no reassignment | DONE |
| a reassignment to the plan's replicas | | MOVING |
| replicas of before and of the plan | no reassignment | MOVING: a broker is behind the controller |
| the replicas from before | this process did not begin it | READY |
| the replicas from before | this process has begun it | CHANGED: another client has cancelled it |
| anything else, or another topic id | | CHANGED: another client works on it, and it stays as it is |
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from klamm.cli.reassign.planning.model import Move
from klamm.diagnosis.cluster_view import joined
from klamm.protocol.vocabulary import NO_LEADER, TopicPartition

if TYPE_CHECKING:
    from klamm.diagnosis.cluster_view import ClusterView

MAX_STARTED_AT_ONCE = 1_000
CANCELLED = "another client has cancelled its reassignment"
BEHIND = "the brokers show the replicas of its reassignment, which has ended"


@dataclass(frozen=True, slots=True)
class ClusterMoment:
    """The cluster at one moment. `targets` are the replicas after the reassignments in progress. A reassignment may
    begin if the cluster `accepts_more`: /admin/reassign_partitions holds one list at a time."""

    view: "ClusterView"
    targets: Mapping[TopicPartition, tuple[int, ...]]
    accepts_more: bool = True


class Standing(StrEnum):
    READY = "ready"
    MOVING = "moving"
    DONE = "done"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reason` says why a partition waits, or what another client has changed; otherwise it is empty."""

    standing: Standing
    reason: str = ""

    @property
    def is_final(self) -> bool:
        return self.standing in (Standing.DONE, Standing.CHANGED)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much moves at a time to and from each broker; None means no limit. The first partition always begins."""

    partitions: int | None = None
    size_bytes: int | None = None


def judge(move: Move, topic_id: str | None, look: ClusterMoment, *, is_sent: bool) -> Verdict:
    """The verdict by the module's table. `topic_id` is the topic's id when the execution began, None if unknown."""
    view = look.view
    partition = view.partitions.get(move.topic_partition)
    if partition is None:
        return Verdict(Standing.CHANGED, "the partition no longer exists")
    present_id = view.topic_ids.get(move.topic)
    if topic_id is not None and present_id is not None and str(present_id) != topic_id:
        return Verdict(Standing.CHANGED, "the topic was deleted and created again")
    target = move.after.replicas
    goes_to = look.targets.get(move.topic_partition)
    if goes_to is not None:
        if goes_to == target:
            return Verdict(Standing.MOVING, waits_for(move, view))
        return Verdict(Standing.CHANGED, f"another client moves it to {joined(goes_to)}")
    if partition.replicas == target:
        return Verdict(Standing.DONE)
    if _is_between(partition.replicas, move):
        return Verdict(Standing.MOVING, BEHIND)
    if partition.replicas != move.before.replicas:
        return Verdict(Standing.CHANGED, f"another client has changed its replicas to {joined(partition.replicas)}")
    if is_sent:
        return Verdict(Standing.CHANGED, CANCELLED)
    return Verdict(Standing.READY, waits_for(move, view))


def _is_between(replicas: Sequence[int], move: Move) -> bool:
    """Whether these are replicas during the move: all new ones, and some of those that its end removes."""
    target, shown = set(move.after.replicas), set(replicas)
    return target < shown <= target | set(move.before.replicas) and shown != set(move.before.replicas)


def waits_for(move: Move, view: "ClusterView") -> str:
    """Why the partition cannot get its replicas now; empty if it can."""
    if dead := [broker for broker in move.after.replicas if broker not in view.brokers]:
        return f"broker {dead[0]} is not alive" if len(dead) == 1 else f"brokers {joined(dead)} are not alive"
    partition = view.partitions[move.topic_partition]
    if move.adding_replicas and partition.leader == NO_LEADER:
        return f"no leader to copy from: the ISR is {joined(partition.isr) or 'empty'}"
    return ""


def next_batch(ready: Iterable[Move], moving: Iterable[Move], limits: Limits) -> list[Move]:
    """The moves of `ready` that may begin beside those that are `moving`, in the same order.

    A move that copies nothing, and only reorders or removes replicas, does not count towards the limits.
    """
    partitions: dict[int, int] = {}
    size_bytes: dict[int, int] = {}

    def add(move: Move) -> None:
        for broker in _copying_brokers(move):
            partitions[broker] = partitions.get(broker, 0) + 1
            size_bytes[broker] = size_bytes.get(broker, 0) + move.size_bytes

    def fits(move: Move) -> bool:
        return all(
            not partitions.get(broker)
            or (
                (limits.partitions is None or partitions[broker] < limits.partitions)
                and (limits.size_bytes is None or size_bytes[broker] + move.size_bytes <= limits.size_bytes)
            )
            for broker in _copying_brokers(move)
        )

    for move in moving:
        add(move)
    batch: list[Move] = []
    for move in ready:
        if len(batch) >= MAX_STARTED_AT_ONCE:
            break
        if fits(move):
            add(move)
            batch.append(move)
    return batch


def _copying_brokers(move: Move) -> tuple[int, ...]:
    """The brokers that send or receive a copy."""
    if not move.adding_replicas:
        return ()
    leader = move.before.replicas[0] if move.leader in (None, NO_LEADER) else move.leader
    return (leader, *move.adding_replicas)


def moved_bytes(move: Move, verdict: Verdict, sizes: Mapping[int, int]) -> int:
    """How many bytes of the move's copies exist. `sizes` are the bytes of the partition's replicas by broker."""
    if verdict.standing is Standing.DONE:
        return move.bytes_between_brokers
    return sum(min(sizes.get(broker, 0), move.size_bytes) for broker in move.adding_replicas)
