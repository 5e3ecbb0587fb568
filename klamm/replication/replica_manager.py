"""All partitions that this broker hosts, and the requests that read and write them (Kafka's `ReplicaManager`).

What must stay true:
- A partition is hosted from the first LeaderAndIsr that names this broker a replica until its StopReplica.
- A produce with acks=all is answered only after the high watermark has passed its records.
- A fetch that waits in purgatory leaves it as soon as enough bytes can be read, an error would be answered, or its
  time is up.
- When a log directory fails, its partitions answer KAFKA_STORAGE_ERROR and no other partition notices.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from klamm.config.topic import TopicConfig
from klamm.environment import Environment
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.fetch import FetchPartition, FetchResponsePartition
from klamm.replication.partition import READ_COMMITTED, Partition, PartitionState
from klamm.replication.purgatory import DelayedOperation, Purgatory
from klamm.storage.log_config import LogConfig
from klamm.storage.log_manager import LogManager
from klamm.tasks import OnFailure, start_task

TopicPartition = tuple[str, int]

# A fetch of more partitions than this lets other requests run in between.
PARTITIONS_PER_SLICE = 500


@dataclass(slots=True)
class ProduceResult:
    """How the append of one batch ended. Offsets are -1 where the append failed."""

    error_code: ErrorCode
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    # The offset that the high watermark must reach before acks=all may be answered.
    required_offset: int = -1


# What a client wants of one partition: the topic, and the rest as the request says it.
Wanted = tuple[str, FetchPartition]


class ReplicaManager:
    """Hosts partitions. `topic_config_of(topic)` is read when a partition's log is created or opened."""

    def __init__(
        self,
        environment: Environment,
        broker_id: int,
        log_manager: LogManager,
        topic_config_of: Callable[[str], TopicConfig],
        high_watermark_checkpoint_interval_ms: int,
        on_failure: OnFailure,
    ) -> None:
        self._environment = environment
        self._broker_id = broker_id
        self._log_manager = log_manager
        self._topic_config_of = topic_config_of
        self._checkpoint_interval_ms = high_watermark_checkpoint_interval_ms
        self._on_failure = on_failure
        self._checkpoint_timer: asyncio.TimerHandle | None = None
        self._is_stopping = False
        self._partitions: dict[TopicPartition, Partition] = {}
        self._offline: dict[TopicPartition, None] = {}
        self.produce_purgatory: Purgatory[TopicPartition] = Purgatory()
        self.fetch_purgatory: Purgatory[TopicPartition] = Purgatory()

    # -- what the controller says ---------------------------------------------------------------------------------

    def become_leader(self, topic_id: UUID | None, states: Mapping[TopicPartition, PartitionState]) -> None:
        """Hosts and leads these partitions of one topic.

        Raises KafkaError when the log of one of them cannot be opened: KAFKA_STORAGE_ERROR, which clients of that
        partition are answered from then on, or INCONSISTENT_TOPIC_ID.
        """
        for (topic, number), state in states.items():
            partition = self._partitions.get((topic, number))
            if partition is None:
                partition = self._open_partition(topic, number, topic_id, is_new=state.is_new)
            if state.leader_epoch > partition.leader_epoch:
                partition.make_leader(state)
            self._partition_changed((topic, number))
        self._start_checkpoints()

    def _open_partition(self, topic: str, number: int, topic_id: UUID | None, *, is_new: bool) -> Partition:
        config = self._topic_config_of(topic)
        try:
            log = self._log_manager.get_or_create(topic, number, topic_id, log_config(config), is_new=is_new)
        except KafkaError as error:
            if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
                self._offline[topic, number] = None
            raise
        self._offline.pop((topic, number), None)
        partition = self._partitions[topic, number] = Partition(topic, number, self._broker_id, log, config)
        return partition

    def stop_replica(self, topic: str, partition: int, *, delete: bool) -> None:
        """Stops hosting a partition; `delete` also removes its log.

        Raises KafkaError KAFKA_STORAGE_ERROR when the log cannot be removed now, or may be in an offline directory.
        """
        self._partitions.pop((topic, partition), None)
        self._offline.pop((topic, partition), None)
        self._partition_changed((topic, partition))
        if delete:
            self._log_manager.delete(topic, partition)

    def directory_failed(self, directory: str) -> None:
        """Takes every partition whose log is in `directory` offline."""
        for key, partition in list(self._partitions.items()):
            if partition.log.log_directory.path == directory:
                del self._partitions[key]
                self._offline[key] = None
                self._partition_changed(key)

    # -- what clients ask -----------------------------------------------------------------------------------------

    def partition(self, topic: str, partition: int) -> Partition:
        """The hosted partition. Raises KafkaError KAFKA_STORAGE_ERROR or UNKNOWN_TOPIC_OR_PARTITION."""
        found = self._partitions.get((topic, partition))
        if found is not None:
            return found
        if (topic, partition) in self._offline:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log of {topic}-{partition} cannot be used")
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition} is not hosted here")

    @property
    def partitions(self) -> Mapping[TopicPartition, Partition]:
        return self._partitions

    def append_records(self, topic: str, partition: int, records: memoryview, required_acks: int) -> ProduceResult:
        """Appends one client batch to a partition that this broker leads."""
        try:
            target = self.partition(topic, partition)
            info = target.append_records_as_leader(records, required_acks, self._environment.now_ms())
        except KafkaError as error:
            return ProduceResult(error.code, error_message=error.message or None)
        if not info.duplicate:
            self._partition_changed((topic, partition))
        return ProduceResult(
            ErrorCode.NONE,
            info.first_offset,
            info.log_append_time_ms,
            info.log_start_offset,
            required_offset=info.last_offset + 1,
        )

    def is_replicated(self, appended: Sequence[tuple[str, int, ProduceResult]]) -> bool:
        """Whether the high watermark has passed all that these appends wrote, or never will."""
        return all(self._acknowledgement(topic, partition, result) is not None for topic, partition, result in appended)

    async def wait_replicated(self, appended: Sequence[tuple[str, int, ProduceResult]], timeout_ms: int) -> None:
        """Waits for acks=all; afterwards each result holds its final error code (REQUEST_TIMED_OUT included)."""
        keys = [(topic, partition) for topic, partition, _ in appended]
        await self.produce_purgatory.wait(_DelayedProduce(self, appended), keys, timeout_ms)
        for topic, partition, result in appended:
            if result.error_code == ErrorCode.NONE:
                code = self._acknowledgement(topic, partition, result)
                result.error_code = ErrorCode.REQUEST_TIMED_OUT if code is None else code

    def _acknowledgement(self, topic: str, partition: int, result: ProduceResult) -> ErrorCode | None:
        """The code that acks=all is answered with, or None while replicas are behind."""
        if result.error_code != ErrorCode.NONE:
            return result.error_code
        try:
            target = self.partition(topic, partition)
            target.require_leader()
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE if target.log.high_watermark >= result.required_offset else None

    async def fetch(
        self,
        wanted: Sequence[Wanted],
        *,
        isolation_level: int,
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int,
    ) -> list[FetchResponsePartition]:
        """Reads for a consumer: at once if `min_bytes` are there or something is wrong, else within `max_wait_ms`.

        Results are in the order of `wanted`. The first non-empty partition may exceed `max_bytes` and its own limit by
        one batch, so that a batch larger than the limits can still be consumed (KIP-74). No more than `max_bytes` are
        waited for.
        """
        if wanted:
            delayed = _DelayedFetch(self, wanted, isolation_level, min(min_bytes, max_bytes))
            keys = [(topic, want.partition) for topic, want in wanted]
            await self.fetch_purgatory.wait(delayed, keys, max_wait_ms)
        results = []
        read_bytes = 0
        for index, (topic, want) in enumerate(wanted, 1):
            left_bytes = max(0, max_bytes - read_bytes)
            result = await self._read(topic, want, isolation_level, left_bytes, first=read_bytes == 0)
            read_bytes += len(result.records or b"")
            results.append(result)
            if index % PARTITIONS_PER_SLICE == 0:
                await asyncio.sleep(0)  # other requests of this process have their turn
        return results

    async def _read(
        self, topic: str, want: FetchPartition, isolation_level: int, left_bytes: int, *, first: bool
    ) -> FetchResponsePartition:
        try:
            partition = self.partition(topic, want.partition)
            partition.require_leader(want.current_leader_epoch)
            log = partition.log
            diverging_epoch = partition.diverging_epoch(want.fetch_offset, want.last_fetched_epoch)
            if diverging_epoch is not None:
                return FetchResponsePartition(
                    want.partition,
                    ErrorCode.NONE,
                    log.high_watermark,
                    log.last_stable_offset,
                    log.log_start_offset,
                    diverging_epoch=diverging_epoch,
                )
            # Taken before the read: an append meanwhile must not make the response claim more than it carries.
            high_watermark, last_stable_offset = log.high_watermark, log.last_stable_offset
            upper_bound = partition.fetch_upper_bound(isolation_level)
            fetched = await log.read(
                want.fetch_offset,
                min(want.partition_max_bytes, left_bytes),
                max_offset=upper_bound,
                minimum_one_batch=first,
            )
        except KafkaError as error:
            return FetchResponsePartition(want.partition, error.code)
        return FetchResponsePartition(
            want.partition,
            ErrorCode.NONE,
            high_watermark,
            last_stable_offset,
            log.log_start_offset,
            log.aborted_transactions(want.fetch_offset, fetched.next_offset)
            if isolation_level == READ_COMMITTED
            else None,
            records=fetched.data,
        )

    # -- life -----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Writes the high watermarks down once more."""
        self._is_stopping = True
        if self._checkpoint_timer is not None:
            self._checkpoint_timer.cancel()
        await self._log_manager.checkpoint_high_watermarks()

    def _start_checkpoints(self) -> None:
        if self._checkpoint_timer is None:
            loop = asyncio.get_running_loop()
            self._checkpoint_timer = loop.call_later(
                self._checkpoint_interval_ms / 1000, lambda: start_task(self._checkpoint(), self._on_failure)
            )

    async def _checkpoint(self) -> None:
        await self._log_manager.checkpoint_high_watermarks()
        self._checkpoint_timer = None
        if not self._is_stopping:
            self._start_checkpoints()

    def _partition_changed(self, key: TopicPartition) -> None:
        self.produce_purgatory.check(key)
        self.fetch_purgatory.check(key)


def log_config(config: TopicConfig) -> LogConfig:
    """The part of a topic's configuration that its logs need."""
    return LogConfig(**{name: getattr(config, name) for name in LogConfig.__dataclass_fields__})


class _DelayedProduce(DelayedOperation):
    def __init__(self, manager: ReplicaManager, appended: Sequence[tuple[str, int, ProduceResult]]) -> None:
        self._manager = manager
        self._appended = appended

    def is_ready(self) -> bool:
        return self._manager.is_replicated(self._appended)


class _DelayedFetch(DelayedOperation):
    """Ready when `min_bytes` can be read, or any partition would answer an error."""

    def __init__(self, manager: ReplicaManager, wanted: Sequence[Wanted], isolation_level: int, min_bytes: int) -> None:
        self._manager = manager
        self._wanted = wanted
        self._isolation_level = isolation_level
        self._min_bytes = min_bytes

    def is_ready(self) -> bool:
        readable_bytes = 0
        for topic, want in self._wanted:
            try:
                partition = self._manager.partition(topic, want.partition)
                partition.require_leader(want.current_leader_epoch)
                if partition.diverging_epoch(want.fetch_offset, want.last_fetched_epoch) is not None:
                    return True
            except KafkaError:
                return True
            log = partition.log
            if not log.log_start_offset <= want.fetch_offset <= log.log_end_offset:
                return True
            upper_bound = partition.fetch_upper_bound(self._isolation_level)
            if want.fetch_offset < upper_bound:
                readable_bytes += min(want.partition_max_bytes, log.readable_bytes(want.fetch_offset, upper_bound))
                if readable_bytes >= self._min_bytes:
                    return True
        return readable_bytes >= self._min_bytes
