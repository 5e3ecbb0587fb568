"""Carries out elections, batch after batch.

What must stay true:
- A partition is looked at again right before its election: a preferred replica that has left the ISR, or has fallen
  behind, is not elected.
- The next batch begins only when each partition of the last one has its new leader and its former ISR.
- Each result is reported as soon as it is known, so that an interrupted command has reported what it did.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from klamm.diagnosis.cluster_view import ClusterView
from klamm.diagnosis.election_plans import (
    PartitionLogEnds,
    batches,
    lagging,
    preferred_plan,
    unsettled,
    without_live_leader,
)
from klamm.processes.tool_errors import ToolError
from klamm.protocol.vocabulary import TopicPartition

LOOK_EVERY_S: Final = 0.1


class Access(Protocol):
    """A way to the cluster."""

    async def look(self, topics: Sequence[str]) -> ClusterView:
        """The brokers, and the partitions of these topics."""
        ...

    async def log_ends(self, view: ClusterView, partitions: Sequence[TopicPartition]) -> PartitionLogEnds:
        """The log end offsets of the leader and of the preferred replica; empty if this access cannot know them."""
        ...

    async def elect(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, str | None]:
        """Holds the election. Returns each partition's error or None; NOT_NEEDED if the right replica leads already."""
        ...


NOT_NEEDED: Final = "ELECTION_NOT_NEEDED"


@dataclass(frozen=True, slots=True)
class Event:
    """The result for some partitions: "elected", "not_needed" or "failed"."""

    name: str
    partitions: Sequence[TopicPartition]
    reason: str | None = None

    def value(self) -> dict[str, Any]:
        value = {"event": self.name, "partitions": [each._asdict() for each in self.partitions]}
        return value if self.reason is None else {**value, "reason": self.reason}


Report = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Pace:
    """How many partitions a batch has, and how long the batch may take to settle. `max_lag` is in records."""

    batch_size: int
    timeout_ms: int
    max_lag: int | None = None


async def elect_preferred(access: Access, due: Sequence[TopicPartition], pace: Pace, report: Report) -> int:
    """Elects preferred leaders; returns the number of partitions that failed.

    Partitions whose preferred replicas are too far behind are tried again after the others, until none of them has
    caught up for the time-out. Raises ToolError when a batch does not settle; no further batch begins then.
    """
    failed, waiting = 0, {each: "" for each in due}
    deadline_s = _now_s() + pace.timeout_ms / 1000
    while waiting:
        behind: dict[TopicPartition, str] = {}
        left = len(waiting)
        for batch in batches(list(waiting), pace.batch_size):
            left -= len(batch)
            failures, late = await _elect_preferred(access, batch, pace, report, left)
            failed += failures
            behind.update(late)
        has_advanced = len(behind) < len(waiting)
        waiting = behind
        if has_advanced:
            deadline_s = _now_s() + pace.timeout_ms / 1000
        elif _now_s() >= deadline_s:
            break
        if waiting:
            await asyncio.sleep(LOOK_EVERY_S)
    for partition, reason in waiting.items():
        report(Event("failed", [partition], reason))
    return failed + len(waiting)


async def _elect_preferred(
    access: Access, batch: Sequence[TopicPartition], pace: Pace, report: Report, left: int
) -> tuple[int, dict[TopicPartition, str]]:
    """The number of partitions of the batch that failed, and those that lag too far."""
    view = await access.look(_topics(batch))
    ends = await access.log_ends(view, [each for each in batch if each in view.partitions])
    plan = preferred_plan(view, batch, log_ends=ends)
    for partition, reason in plan.refused.items():
        report(Event("failed", [partition], reason))
    if plan.not_needed:
        report(Event("not_needed", plan.not_needed))
    behind = {} if pace.max_lag is None else lagging(view, plan.due, ends, pace.max_lag)
    elected, failures = await _elect(access, [each for each in plan.due if each not in behind], report)
    await _settle(access, elected, pace, left, lambda now: unsettled(view, now, elected))
    return len(plan.refused) + failures, behind


async def elect_unclean(access: Access, due: Sequence[TopicPartition], pace: Pace, report: Report) -> int:
    """Elects leaders outside the ISR; returns the number of partitions that failed. Raises ToolError."""
    failed, left = 0, len(due)
    for batch in batches(due, pace.batch_size):
        left -= len(batch)
        elected, failures = await _elect(access, batch, report)
        failed += failures
        await _settle(access, elected, pace, left, partial(without_live_leader, elected))
    return failed


async def _elect(
    access: Access, partitions: Sequence[TopicPartition], report: Report
) -> tuple[list[TopicPartition], int]:
    """The partitions that were elected, and the number of those that failed."""
    results = await access.elect(partitions) if partitions else {}
    elected = [each for each, error in results.items() if error is None]
    not_needed = [each for each, error in results.items() if error == NOT_NEEDED]
    if elected:
        report(Event("elected", elected))
    if not_needed:
        report(Event("not_needed", not_needed))
    failed = {each: error for each, error in results.items() if error not in (None, NOT_NEEDED)}
    for partition, error in failed.items():
        report(Event("failed", [partition], error))
    return elected, len(failed)


async def _settle(
    access: Access,
    elected: Sequence[TopicPartition],
    pace: Pace,
    left: int,
    waits_for: Callable[[ClusterView], Mapping[TopicPartition, str]],
) -> None:
    """Returns when nothing is left to wait for. Raises ToolError after the time-out, with what it waited for."""
    deadline_s = _now_s() + pace.timeout_ms / 1000
    while elected and (waiting := waits_for(await access.look(_topics(elected)))):
        if _now_s() >= deadline_s:
            partition, reason = next(iter(waiting.items()))
            others = f", and {len(waiting) - 1} more have not settled" if len(waiting) > 1 else ""
            rest = f"; {left} partitions are left, run the command again when it has settled" if left else ""
            raise ToolError(f"{partition} {reason} after {pace.timeout_ms} ms{others}{rest}")
        await asyncio.sleep(LOOK_EVERY_S)


def _topics(partitions: Sequence[TopicPartition]) -> list[str]:
    return sorted({each.topic for each in partitions})


def _now_s() -> float:
    return asyncio.get_running_loop().time()
