"""Removes expired offsets after `offsets.retention.minutes` (KIP-211), and groups that have no offsets left.

What must stay true: groups, and the offsets of one group, are examined in slices. The state of the group at that moment
decides about each offset.

Source: kafka.coordinator.group.GroupMetadataManager (cleanupGroupMetadata), GroupMetadata (removeExpiredOffsets).
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Protocol

from klamm.base.slices import Slices, Steps, in_slices
from klamm.coordinator.groups.group import Group
from klamm.protocol.vocabulary import PartitionKey

# How many offsets a step examines, in about a millisecond.
OFFSETS_PER_SLICE = 1000

_log = logging.getLogger(__name__)

Select = Callable[[Group], Iterable[PartitionKey]]


class Groups(Protocol):
    """The groups that this broker coordinates (`GroupMetadataManager`)."""

    def groups(self) -> list[Group]: ...

    def cleanup(self, groups: Iterable[Group], select: Select) -> int:
        """Removes the offsets that `select` names; returns how many."""


async def expire_every(interval_ms: int, retention_ms: int, groups: Groups, clock_ms: Callable[[], int]) -> None:
    """Removes expired offsets once in each interval, for ever."""
    while True:
        await asyncio.sleep(interval_ms / 1000)
        removed = await in_slices(expire(groups, clock_ms(), retention_ms))
        if removed:
            _log.info("removed %d expired offsets", removed)


def expire(groups: Groups, now_ms: int, retention_ms: int) -> Steps[int]:
    """Removes the offsets that have expired at `now_ms`, in steps; returns how many."""
    removed = 0
    slices = Slices(OFFSETS_PER_SLICE)
    for group in groups.groups():
        partitions, generation_id = group.partitions, group.generation_id
        subscribed = yield from _subscribed(group, partitions, now_ms, retention_ms, slices)
        for piece in pieces(partitions):
            if group.generation_id != generation_id:
                break  # Its members may subscribe to other topics now.
            removed += groups.cleanup(
                [group],
                lambda group: group.expired_offsets(piece, now_ms, retention_ms, subscribed),  # noqa: B023  # called at once
            )
            if slices.spend(1 + len(piece)):
                yield
    return removed


def _subscribed(
    group: Group, partitions: Sequence[PartitionKey], now_ms: int, retention_ms: int, slices: Slices
) -> Steps[Collection[str]]:
    """The topics whose expired offsets stay because a member subscribes to them."""
    topics: dict[str, None] = {}
    if group.keeps_subscribed:
        for piece in pieces(partitions):
            topics |= dict.fromkeys(topic for topic, _ in group.expired_offsets(piece, now_ms, retention_ms))
            if slices.spend(1 + len(piece)):
                yield
    return (yield from group.subscribed_among(topics)) if topics else ()


def pieces(partitions: Sequence[PartitionKey]) -> Iterator[Sequence[PartitionKey]]:
    """The partitions of one group in pieces, one for each step. At least one piece, so that a group without offsets is
    removed too."""
    for start in range(0, max(len(partitions), 1), OFFSETS_PER_SLICE):
        yield partitions[start : start + OFFSETS_PER_SLICE]
