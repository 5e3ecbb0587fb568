"""Offsets that nobody needs any more go after `offsets.retention.minutes` (KIP-211), and groups without any with them.

What must stay true: a look at all groups is taken in slices, of a group with very many offsets too, and each offset is
judged by what its group is at that moment.

Source: kafka.coordinator.group.GroupMetadataManager (cleanupGroupMetadata), GroupMetadata (removeExpiredOffsets).
"""

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Protocol

from klamm.coordinator.group import Group
from klamm.slices import Slices, in_slices
from klamm.znodes.topics import TopicPartition

# What a step looks at, in offsets: about a millisecond.
OFFSETS_PER_SLICE = 1000

_log = logging.getLogger(__name__)

Select = Callable[[Group], Iterable[TopicPartition]]


class Groups(Protocol):
    """The groups that this broker coordinates (`GroupMetadataManager`)."""

    def groups(self) -> list[Group]: ...

    def cleanup(self, groups: Iterable[Group], select: Select) -> int:
        """Removes what `select` names; returns how many offsets that were."""


async def expire_every(interval_ms: int, retention_ms: int, groups: Groups, clock_ms: Callable[[], int]) -> None:
    """Never ends."""
    while True:
        await asyncio.sleep(interval_ms / 1000)
        removed = await in_slices(expire(groups, clock_ms(), retention_ms))
        if removed:
            _log.info("removed %d expired offsets", removed)


def expire(groups: Groups, now_ms: int, retention_ms: int) -> Generator[None, None, int]:
    """Removes what has expired by now, in steps; returns how many offsets that were."""
    removed = 0
    slices = Slices(OFFSETS_PER_SLICE)
    for group in groups.groups():
        for piece in pieces(group.partitions):
            removed += groups.cleanup([group], lambda group: group.expired_offsets(piece, now_ms, retention_ms))  # noqa: B023  # called at once
            if slices.is_over(1 + len(piece)):
                yield
    return removed


def pieces(partitions: Sequence[TopicPartition]) -> Iterator[Sequence[TopicPartition]]:
    """What is looked at in one step, of one group. There is one piece at least: a group without offsets goes, too."""
    for start in range(0, max(len(partitions), 1), OFFSETS_PER_SLICE):
        yield partitions[start : start + OFFSETS_PER_SLICE]
