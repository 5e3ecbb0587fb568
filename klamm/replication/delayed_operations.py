"""What waits in the replica manager's purgatories: produces with acks=all and fetches.

Source: kafka.server.DelayedProduce, kafka.server.DelayedFetch.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.fetch import FetchPartition
from klamm.replication.partition import Partition
from klamm.replication.purgatory import DelayedOperation
from klamm.znodes.topics import TopicPartition

# What a client wants of one partition: the topic, and the rest as the request says it.
Wanted = tuple[str, FetchPartition]

# The hosted partition, or KafkaError.
FindPartition = Callable[[str, int], Partition]

CONSUMER = -1

# What `DelayedFetch` finds in a partition that must be answered at once, whatever the others have.
_MUST_ANSWER = -1


@dataclass(slots=True)
class ProduceResult:
    """How the append of one batch ended. Offsets are -1 where the append failed."""

    error_code: ErrorCode
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    # The offset that the high watermark must reach before acks=all is answered, and the epoch of the append; -1 when
    # nothing is waited for any more.
    required_offset: int = -1
    leader_epoch: int = -1


Appended = Sequence[tuple[str, int, ProduceResult]]


class DelayedProduce(DelayedOperation):
    """Ready when each append is decided: on all in-sync replicas, or failed. What is decided stays so."""

    def __init__(self, partition: FindPartition, appended: Appended) -> None:
        self._partition = partition
        self._appended = appended

    def is_ready(self) -> bool:
        is_ready = True
        for topic, number, result in self._appended:
            if result.required_offset < 0:
                continue
            code: ErrorCode | None
            try:
                code = self._partition(topic, number).acknowledgement(result.required_offset, result.leader_epoch)
            except KafkaError as error:
                code = error.code
            if code is None:
                is_ready = False
            else:
                result.error_code = code
                result.required_offset = -1
        return is_ready

    def expire(self) -> None:
        """Time is up for what is not decided."""
        for _, _, result in self._appended:
            if result.required_offset >= 0:
                result.error_code = ErrorCode.REQUEST_TIMED_OUT
                result.required_offset = -1


class DelayedFetch(DelayedOperation):
    """Ready when `min_bytes` can be read, or any partition would answer an error or a diverging epoch."""

    def __init__(
        self,
        partition: FindPartition,
        wanted: Sequence[Wanted],
        replica_id: int,
        isolation_level: int,
        min_bytes: int,
    ) -> None:
        self._partition = partition
        self._wanted = wanted
        self._replica_id = replica_id
        self._isolation_level = isolation_level
        self._min_bytes = min_bytes
        self.keys: dict[TopicPartition, Wanted] = {}

    def record_follower(self, now_ms: float) -> bool:
        """Takes note of how far the follower is in each partition, if that agrees with this leader; else `is_ready`."""
        readable_bytes = 0
        must_answer = False
        for wanted in self._wanted:
            size_bytes = self._readable_bytes(wanted, now_ms)
            if size_bytes < 0:
                must_answer = True
            readable_bytes += size_bytes
        return must_answer or readable_bytes >= self._min_bytes

    def is_ready(self) -> bool:
        readable_bytes = 0
        for wanted in self._wanted:
            size_bytes = self._readable_bytes(wanted)
            if size_bytes < 0:
                return True
            readable_bytes += size_bytes
            if readable_bytes >= self._min_bytes:
                return True
        return readable_bytes >= self._min_bytes

    def watch_keys(self) -> dict[TopicPartition, Wanted]:
        """What to wait for."""
        self.keys = {(wanted[0], wanted[1].partition): wanted for wanted in self._wanted}
        return self.keys

    def has_become_ready(self, key: Hashable) -> bool:
        """Mostly one byte is enough; then no other partition needs a look than the one that has changed."""
        size_bytes = self._readable_bytes(self.keys[key])  # type: ignore[index]  # keys are TopicPartitions
        if size_bytes < 0 or size_bytes >= self._min_bytes:
            return True
        return size_bytes > 0 and self.is_ready()

    def _readable_bytes(self, wanted: Wanted, follower_now_ms: float | None = None) -> int:
        topic, want = wanted
        try:
            partition = self._partition(topic, want.partition)
            partition.require_leader(want.current_leader_epoch)
            if partition.diverging_epoch(want.fetch_offset, want.last_fetched_epoch) is not None:
                return _MUST_ANSWER
            is_follower = self._replica_id > CONSUMER
            if is_follower:
                partition.require_replica(self._replica_id)
        except KafkaError:
            return _MUST_ANSWER
        log = partition.log
        end_offset = log.log_end_offset
        if not log.log_start_offset <= want.fetch_offset <= end_offset:
            return _MUST_ANSWER
        if follower_now_ms is not None:
            partition.update_follower_fetch_state(
                self._replica_id, want.fetch_offset, want.log_start_offset, follower_now_ms
            )
        upper_bound = end_offset if is_follower else partition.fetch_upper_bound(self._isolation_level)
        if want.fetch_offset >= upper_bound:
            return 0
        return min(want.partition_max_bytes, log.readable_bytes(want.fetch_offset, upper_bound))
