"""The operations that wait in the replica manager's purgatories: produces with acks=all, fetches, deletions of records.

Source: kafka.server.DelayedProduce, kafka.server.DelayedFetch, kafka.server.DelayedDeleteRecords.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from klamm.base.purgatory import DelayedOperation
from klamm.protocol.apis.fetch import EpochEndOffset, FetchPartition, PartitionData
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.record_batch import NO_TIMESTAMP
from klamm.protocol.vocabulary import (
    CONSUMER_REPLICA_ID,
    DEBUGGING_REPLICA_ID,
    INVALID_PREFERRED_REPLICA_ID,
    NO_EPOCH,
    READ_COMMITTED,
    UNKNOWN_OFFSET,
    PartitionKey,
)
from klamm.replication.partition.partition import Partition
from klamm.replication.quota import ReplicationQuota

# The topic, and the partition's part of a fetch request.
Wanted = tuple[str, FetchPartition]

# The hosted partition, or KafkaError.
FindPartition = Callable[[str, int], Partition]

# The follower from which a consumer of a partition led here should read, or INVALID_PREFERRED_REPLICA_ID.
PreferredReplica = Callable[[Partition, FetchPartition], int]


@dataclass(slots=True)
class ProduceResult:
    """The result of the append of one batch. Offsets are UNKNOWN_OFFSET if the append failed."""

    error_code: ErrorCode
    base_offset: int = UNKNOWN_OFFSET
    log_append_time_ms: int = NO_TIMESTAMP
    log_start_offset: int = UNKNOWN_OFFSET
    error_message: str | None = None
    # (index in the batch, message) of each record that is itself invalid.
    record_errors: Sequence[tuple[int, str]] = ()
    # The offset that the high watermark must reach before acks=all is answered, and the epoch of the append; the offset
    # is unknown once the result is final.
    required_offset: int = UNKNOWN_OFFSET
    leader_epoch: int = NO_EPOCH
    # Whether the append synced its log (flush.messages), and so waited for the disk.
    has_waited_for_disk: bool = False


Appended = Sequence[tuple[str, int, ProduceResult]]


def decide(partition: FindPartition, topic: str, number: int, result: ProduceResult) -> bool:
    """Whether an append with acks=all is decided: it is on all in-sync replicas, or it has failed. Writes the error
    code into the result."""
    if result.required_offset < 0:
        return True
    code: ErrorCode | None
    try:
        code = partition(topic, number).acknowledgement(result.required_offset, result.leader_epoch)
    except KafkaError as error:
        code = error.code
    if code is None:
        return False
    result.error_code = code
    result.required_offset = UNKNOWN_OFFSET
    return True


class DelayedProduce(DelayedOperation):
    """Ready when each append is decided: it is on all in-sync replicas, or it has failed. A decision is final.

    `look` checks every append once. An undecided append is checked again only when its partition changes.
    """

    def __init__(self, partition: FindPartition, appended: Appended) -> None:
        self._partition = partition
        self._appended = appended
        self._looked_at = 0
        self._undecided: dict[Hashable, list[ProduceResult]] = {}

    def look(self, count: int) -> list[PartitionKey]:
        """Checks the next `count` appends. Returns the partitions of undecided appends, to wait for."""
        start, self._looked_at = self._looked_at, min(self._looked_at + count, len(self._appended))
        keys: dict[PartitionKey, None] = {}
        for topic, number, result in self._appended[start : self._looked_at]:
            if not decide(self._partition, topic, number, result):
                key = (topic, number)
                self._undecided.setdefault(key, []).append(result)
                keys[key] = None
        return list(keys)

    @property
    def is_looked_through(self) -> bool:
        """Whether every append has been checked."""
        return self._looked_at == len(self._appended)

    def is_ready(self) -> bool:
        return self.is_looked_through and not self._undecided

    def has_become_ready(self, key: Hashable) -> bool:
        topic, number = cast(PartitionKey, key)
        undecided = [one for one in self._undecided.pop(key, ()) if not decide(self._partition, topic, number, one)]
        if undecided:
            self._undecided[key] = undecided
        return self.is_ready()

    def expire(self) -> None:
        """Ends undecided appends with REQUEST_TIMED_OUT."""
        for _, _, result in self._appended:
            if result.required_offset >= 0:
                result.error_code = ErrorCode.REQUEST_TIMED_OUT
                result.required_offset = UNKNOWN_OFFSET


@dataclass(slots=True)
class DeleteRecordsResult:
    """The result of deleting one partition's records. `low_watermark` is UNKNOWN_OFFSET if the deletion failed."""

    error_code: ErrorCode
    low_watermark: int = UNKNOWN_OFFSET
    # The low watermark to wait for.
    required_offset: int = UNKNOWN_OFFSET


class DelayedDeleteRecords(DelayedOperation):
    """Ready when, for every partition, all live replicas have deleted the records, or the deletion has failed.

    `undecided` has the result of each partition to wait for. The operation removes decided partitions.
    """

    def __init__(
        self,
        partition: FindPartition,
        is_live: Callable[[int], object],
        undecided: dict[PartitionKey, DeleteRecordsResult],
    ) -> None:
        self._partition = partition
        self._is_live = is_live
        self._undecided = undecided

    def is_ready(self) -> bool:
        return not self._undecided

    def has_become_ready(self, key: Hashable) -> bool:
        topic, number = cast(PartitionKey, key)
        result = self._undecided.get((topic, number))
        if result is not None and self._decide(topic, number, result):
            del self._undecided[topic, number]
        return self.is_ready()

    def _decide(self, topic: str, number: int, result: DeleteRecordsResult) -> bool:
        try:
            partition = self._partition(topic, number)
            partition.require_leader()
            result.low_watermark = partition.low_watermark(self._is_live)
        except KafkaError as error:
            result.error_code, result.low_watermark = error.code, UNKNOWN_OFFSET
            return True
        return result.low_watermark >= result.required_offset


class Readable(NamedTuple):
    """Records that can be read: their partition, its leader epoch, whether this broker leads it, their end offset,
    their approximate size, and whether the leader's quota counts them."""

    partition: Partition
    leader_epoch: int
    is_led_here: bool
    upper_bound: int
    size_bytes: int
    is_throttled: bool


class DelayedFetch(DelayedOperation):
    """Ready when `min_bytes` can be read, or any partition answers with an error, a diverging epoch or the name of a
    follower that the consumer should read from.

    `look` checks every partition once. A partition is checked again only when it changes, so a fetch of many partitions
    pays only for changed ones. `results` has an answer without records for each checked member of `wanted`; `readable`
    has, by the same index, the partitions with records. While `quota` is exceeded, records for a throttled and
    out-of-sync follower do not count.

    The first check reports the follower's offset, as of `follower_now_ms`, to each partition whose log agrees with the
    follower's. Unless `only_leader`, followers answer too (KIP-392).
    """

    def __init__(
        self,
        partition: FindPartition,
        wanted: Sequence[Wanted],
        replica_id: int,
        isolation_level: int,
        min_bytes: int,
        follower_now_ms: float,
        *,
        only_leader: bool = True,
        quota: ReplicationQuota | None = None,
        preferred_replica: PreferredReplica | None = None,
    ) -> None:
        self._partition = partition
        self._wanted = wanted
        self._replica_id = replica_id
        self._isolation_level = isolation_level
        self._min_bytes = min_bytes
        self._only_leader = only_leader
        self._quota = quota
        self._preferred_replica = preferred_replica
        self._readable_bytes = 0
        self._must_answer = False
        self._follower_now_ms = follower_now_ms
        # The index in `wanted` of each partition that `next_keys` has returned: the first `_indexed` members.
        self._indexes: dict[PartitionKey, int] = {}
        self._indexed = 0
        self.results: list[PartitionData] = []
        self.readable: dict[int, Readable] = {}
        # Whether the quota has held records back.
        self.is_held_back = False

    def look(self, count: int) -> bool:
        """Checks the next `count` partitions. Returns whether more are left."""
        start = len(self.results)
        for index, want in enumerate(self._wanted[start : start + count], start):
            self.results.append(self._look(index, *want, self._follower_now_ms))
        return len(self.results) < len(self._wanted)

    def is_ready(self) -> bool:
        return self._must_answer or self._readable_bytes >= self._min_bytes

    def keys(self) -> Collection[PartitionKey]:
        """The partitions to wait for."""
        return self.next_keys(len(self._wanted))

    def next_keys(self, count: int) -> list[PartitionKey]:
        """The next `count` partitions to wait for; empty once all have been returned."""
        start, self._indexed = self._indexed, self._indexed + count
        keys = {
            (topic, want.partition): index
            for index, (topic, want) in enumerate(self._wanted[start : start + count], start)
        }
        self._indexes.update(keys)
        return list(keys)

    def look_again(self, changed: dict[PartitionKey, None], count: int) -> bool:
        """Checks up to `count` changed partitions again and removes them from `changed`. Returns whether more are
        left."""
        while changed and count:
            count -= 1
            key = changed.popitem()[0]
            if key in self._indexes:
                self.has_become_ready(key)
        return bool(changed)

    def has_become_ready(self, key: Hashable) -> bool:
        index = self._indexes[key]  # type: ignore[index]  # a PartitionKey: one of `keys`
        readable = self.readable.pop(index, None)
        if readable is not None:
            self._readable_bytes -= readable.size_bytes
        before, after = self.results[index], self._look(index, *self._wanted[index], None)
        self.results[index] = after
        if after.log_start_offset > before.log_start_offset >= 0:
            # A deletion of records waits until the followers have heard of it, so this fetch is answered.
            self._must_answer = True
        return self.is_ready()

    def _look(self, index: int, topic: str, want: FetchPartition, follower_now_ms: float | None) -> PartitionData:
        preferred_replica = INVALID_PREFERRED_REPLICA_ID
        try:
            partition = self._partition(topic, want.partition)
            if follower_now_ms is not None:
                partition.topic_counts.fetch_requests += 1
            if self._only_leader:
                partition.require_leader(want.current_leader_epoch)
            elif self._replica_id == DEBUGGING_REPLICA_ID:
                partition.require_leader_epoch(want.current_leader_epoch)
            else:
                partition.require_leader_or_follower(want.current_leader_epoch)
            diverging_epoch = partition.diverging_epoch(want.fetch_offset, want.last_fetched_epoch)
            if diverging_epoch is None:
                self._require_in_range(want, partition)
                if self._preferred_replica is not None and partition.is_leader:
                    preferred_replica = self._preferred_replica(partition, want)
            if diverging_epoch is not None or preferred_replica != INVALID_PREFERRED_REPLICA_ID:
                self._must_answer = True
            else:
                self._look_for_records(index, want, partition, follower_now_ms)
        except KafkaError as error:
            self._must_answer = True
            return PartitionData(partition_index=want.partition, error_code=error.code)
        # Taken before the read, so that a concurrent append cannot make the response claim more than it carries.
        log = partition.log
        return PartitionData(
            partition_index=want.partition,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=[] if self._isolation_level == READ_COMMITTED else None,
            diverging_epoch=None
            if diverging_epoch is None
            else EpochEndOffset(epoch=diverging_epoch[0], end_offset=diverging_epoch[1]),
            preferred_read_replica=preferred_replica,
        )

    def _require_in_range(self, want: FetchPartition, partition: Partition) -> None:
        log = partition.log
        if log.log_start_offset <= want.fetch_offset <= log.log_end_offset:
            return
        may_mistake = want.current_leader_epoch == NO_EPOCH and self._replica_id != DEBUGGING_REPLICA_ID
        if may_mistake and not partition.is_leader:
            # The client may mistake this broker for the leader. OFFSET_OUT_OF_RANGE would make it reset its offset.
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)

    def _look_for_records(
        self, index: int, want: FetchPartition, partition: Partition, follower_now_ms: float | None
    ) -> None:
        log, offset, is_throttled = partition.log, want.fetch_offset, False
        if self._replica_id > CONSUMER_REPLICA_ID:
            partition.require_replica(self._replica_id)
            if follower_now_ms is not None:
                partition.update_follower_fetch_state(self._replica_id, offset, want.log_start_offset, follower_now_ms)
            upper_bound = log.log_end_offset
            if self._quota is not None and self._replica_id not in partition.isr:
                is_throttled = self._quota.is_throttled(*partition.topic_partition)
                if is_throttled and self._quota.is_exceeded(partition.clock_ms()):
                    self.is_held_back = True
                    return
        else:
            upper_bound = partition.fetch_upper_bound(self._isolation_level)
        if offset < upper_bound:
            size_bytes = min(want.partition_max_bytes, log.readable_bytes(offset, upper_bound))
            self.readable[index] = Readable(
                partition, partition.leader_epoch, partition.is_leader, upper_bound, size_bytes, is_throttled
            )
            self._readable_bytes += size_bytes
