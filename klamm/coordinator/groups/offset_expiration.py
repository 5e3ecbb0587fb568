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
from klamm.coordinator.groups.committed_offsets import OffsetAndMetadata
from klamm.coordinator.groups.group import Group, GroupState
from klamm.protocol.consumer_protocol import CONSUMER_PROTOCOL_TYPE
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
        partitions, generation_id = group.offsets.partitions, group.generation_id
        subscribed = yield from _subscribed(group, partitions, now_ms, retention_ms, slices)
        for piece in pieces(partitions):
            if group.generation_id != generation_id:
                break  # Its members may subscribe to other topics now.
            removed += groups.cleanup(
                [group],
                lambda group: expired_offsets(group, piece, now_ms, retention_ms, subscribed),  # noqa: B023  # called at once
            )
            if slices.spend(1 + len(piece)):
                yield
    return removed


def _subscribed(
    group: Group, partitions: Sequence[PartitionKey], now_ms: int, retention_ms: int, slices: Slices
) -> Steps[Collection[str]]:
    """The topics whose expired offsets stay because a member subscribes to them."""
    topics: dict[str, None] = {}
    if _keeps_subscribed(group):
        for piece in pieces(partitions):
            topics |= dict.fromkeys(topic for topic, _ in expired_offsets(group, piece, now_ms, retention_ms))
            if slices.spend(1 + len(piece)):
                yield
    return (yield from group.subscribed_among(topics)) if topics else ()


def _keeps_subscribed(group: Group) -> bool:
    """Whether offsets of subscribed topics do not expire."""
    return group.state is GroupState.STABLE and group.protocol_type == CONSUMER_PROTOCOL_TYPE


def expired_offsets(
    group: Group, partitions: Iterable[PartitionKey], now_ms: int, retention_ms: int, subscribed: Collection[str] = ()
) -> list[PartitionKey]:
    """The partitions whose offsets have expired, except of `subscribed` topics: for an Empty group all, `retention_ms`
    after it became Empty; for a Stable group of consumers, and for a group that only commits, `retention_ms` after the
    commit."""
    since_ms: int | None = None
    if group.protocol_type is not None:
        if group.state is GroupState.EMPTY:
            since_ms = group.state_timestamp_ms
        elif not _keeps_subscribed(group):
            return []
    offsets = group.offsets

    def is_expired(offset: OffsetAndMetadata) -> bool:
        if offset.expire_timestamp_ms is not None:
            return now_ms >= offset.expire_timestamp_ms
        return now_ms - (offset.commit_timestamp_ms if since_ms is None else since_ms) >= retention_ms

    return [
        partition
        for partition in partitions
        if partition[0] not in subscribed
        and not offsets.is_pending(partition)
        and (offset := offsets.get(partition)) is not None
        and is_expired(offset)
    ]


def pieces(partitions: Sequence[PartitionKey]) -> Iterator[Sequence[PartitionKey]]:
    """The partitions of one group in pieces, one for each step. At least one piece, so that a group without offsets is
    removed too."""
    for start in range(0, max(len(partitions), 1), OFFSETS_PER_SLICE):
        yield partitions[start : start + OFFSETS_PER_SLICE]
