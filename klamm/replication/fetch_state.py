"""One partition as its fetcher sees it, and where a log must be cut that differs from its leader's.

What must stay true: where to fetch from is never remembered, it is always the log's end. So nothing that happens to
the log (an append by halves, a truncation inside a batch) can make a fetcher ask for the wrong records.
"""

from dataclasses import dataclass
from typing import Protocol

from klamm.protocol.fetch import FetchPartition
from klamm.protocol.primitives import Buffer
from klamm.protocol.vocabulary import NO_EPOCH
from klamm.storage.log import AppendInfo, Log
from klamm.storage.truncation import Truncation


@dataclass(frozen=True, slots=True)
class InitialFetchState:
    """Where a partition's leader is reached, and in which epoch it leads. The log itself says where to fetch from."""

    leader_id: int
    host: str
    port: int
    current_leader_epoch: int


class FollowerPartition(Protocol):
    """What a fetcher needs of a partition. All of it may raise KafkaError KAFKA_STORAGE_ERROR."""

    @property
    def log(self) -> Log: ...

    @property
    def leader_id(self) -> int: ...

    @property
    def leader_epoch(self) -> int: ...

    def append_records_as_follower(self, records: Buffer) -> AppendInfo | None:
        """Appends whole batches of the leader's. Raises KafkaError as `Log.append_as_follower`."""

    def truncate_to(self, offset: int, prepared: Truncation | None = None) -> object:
        """Removes everything from `offset` on; `prepared` comes from `Log.prepare_truncation`."""

    def truncate_fully_and_start_at(self, offset: int) -> object:
        """Removes everything; the next record has `offset`."""

    def update_follower_high_watermark(self, leader_high_watermark: int) -> object:
        """Moves the high watermark to the leader's, or to the log's end if that is earlier."""

    def maybe_increment_log_start_offset(self, leader_log_start_offset: int) -> object:
        """Moves the log start offset forward to the leader's."""


class PartitionFetch:
    """One partition in one leader epoch. A new epoch gets a new object, so what is under way for an old one is void.

    `asked` is what the fetch session says of the partition, None while it does not fetch: before its first request,
    while it waits after a failure, and while it is to be truncated first.
    """

    __slots__ = ("asked", "failures", "is_truncating", "leader_epoch", "partition")

    def __init__(self, partition: FollowerPartition, leader_epoch: int, *, is_truncating: bool) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.is_truncating = is_truncating
        self.asked: FetchPartition | None = None
        self.failures = 0


def truncation_offset(log: Log, leader_epoch: int, leader_end_offset: int) -> tuple[int, bool]:
    """Where to cut `log` when the leader's records of `leader_epoch`, and all before, end at `leader_end_offset`.

    (offset, whether the logs are known to agree up to there). They are not when this log has nothing of that epoch:
    then it is cut to the epoch before, and the leader must be asked again (KIP-279). An end offset of -1 says that the
    leader knows nothing: only what is below the high watermark is sure then.
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
