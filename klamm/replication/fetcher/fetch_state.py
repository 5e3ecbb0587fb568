"""One partition as its fetcher sees it, and the truncation offset of a log that diverges from its leader's.

What must stay true: the fetch offset is never stored; it is always the log end offset. So no event in the log (a
half-done append, a truncation inside a batch) can make a fetcher ask for the wrong records.
"""

from dataclasses import dataclass
from typing import Protocol

from klamm.protocol.apis.fetch import FetchPartition
from klamm.protocol.primitives import Buffer
from klamm.protocol.vocabulary import NO_EPOCH
from klamm.storage.log.log import AppendInfo, Log
from klamm.storage.log.truncation import Truncation


@dataclass(frozen=True, slots=True)
class InitialFetchState:
    """The address of a partition's leader, and its leader epoch. The fetch offset is the log end offset."""

    leader_id: int
    host: str
    port: int
    current_leader_epoch: int


class FollowerPartition(Protocol):
    """What a fetcher needs from a partition. Every method may raise KafkaError KAFKA_STORAGE_ERROR."""

    @property
    def log(self) -> Log: ...

    @property
    def leader_id(self) -> int: ...

    @property
    def leader_epoch(self) -> int: ...

    def append_records_as_follower(self, records: Buffer) -> AppendInfo:
        """Appends the first of the leader's records. Raises KafkaError like `Log.append_as_follower`."""

    def truncate_to(self, offset: int, prepared: Truncation | None = None) -> object:
        """Removes all records from `offset` on; `prepared` comes from `Log.prepare_truncation`."""

    def truncate_fully_and_start_at(self, offset: int) -> object:
        """Removes all records. The next record gets `offset`."""

    def update_follower_high_watermark(self, leader_high_watermark: int) -> object:
        """Moves the high watermark to the leader's, or to the log end offset if that is lower."""

    def maybe_increment_log_start_offset(self, leader_log_start_offset: int) -> object:
        """Moves the log start offset forward to the leader's log start offset."""


class PartitionFetch:
    """One partition in one leader epoch. A new epoch gets a new object, so that pending work of the old one is void.

    `asked` is the partition's entry in the fetch session. It is None while the partition is not fetched: before its
    first request, while it waits after a failure or is throttled, and while it must be truncated first.
    `leader_high_watermark` is None until the leader has answered.
    """

    __slots__ = ("asked", "failures", "is_truncating", "leader_epoch", "leader_high_watermark", "partition")

    def __init__(self, partition: FollowerPartition, leader_epoch: int, *, is_truncating: bool) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.is_truncating = is_truncating
        self.asked: FetchPartition | None = None
        self.failures = 0
        self.leader_high_watermark: int | None = None

    @property
    def lag(self) -> int:
        """How many offsets below the leader's high watermark the log lacks; -1 before the leader's first answer."""
        if self.leader_high_watermark is None:
            return -1
        return max(self.leader_high_watermark - self.partition.log.log_end_offset, 0)

    @property
    def is_lagging(self) -> bool:
        """Whether the replica is out of sync: the log lacks committed records, or the leader has not answered yet."""
        return self.leader_high_watermark is None or self.partition.log.log_end_offset < self.leader_high_watermark


def truncation_offset(log: Log, leader_epoch: int, leader_end_offset: int) -> tuple[int, bool]:
    """The offset at which to truncate `log` when the leader's records of `leader_epoch` and earlier epochs end at
    `leader_end_offset`.

    Returns (offset, whether the logs are known to agree up to there). If this log has no record of that epoch, the
    agreement is unknown: the log is truncated to the epoch before, and the leader must be asked again (KIP-279). An end
    offset of -1 means that the leader does not know it; then only the records below the high watermark are safe.
    """
    end = log.log_end_offset
    if leader_end_offset < 0:
        return min(log.high_watermark, end), True
    if leader_epoch == NO_EPOCH:
        return min(leader_end_offset, end), True
    epoch, end_of_epoch = log.leader_epochs.end_offset_for(leader_epoch, end)
    if epoch == NO_EPOCH:
        return min(leader_end_offset, end), True
    if epoch != leader_epoch:
        return min(end_of_epoch, end), False
    return min(end_of_epoch, leader_end_offset, end), True
