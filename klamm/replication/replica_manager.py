"""All partitions that this broker hosts, and the requests that read and write them (Kafka's `ReplicaManager`).

What must stay true:
- A produce with acks=all is answered only after the high watermark has passed its records.
- A follower's fetch acknowledges every record before its offset, but only if the follower's log agrees with the
  leader's. The acknowledgement counts before the fetch waits.
- A fetch leaves the purgatory as soon as enough bytes can be read, its answer has an error, or its time is up.
  Followers may read up to the log end offset, consumers up to the high watermark.
- A deletion of records is answered only after all live replicas have reported a log start offset that a restart keeps.
- When a log directory fails, its partitions answer KAFKA_STORAGE_ERROR and no other partition is affected.

`state_changes.py` applies the controller's requests; `partition.py` has the rules of one partition;
`fetched_records.py` reads. This module has all requests that touch many partitions, so it is long.
"""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import TypeVar

from klamm.base.environment import Environment, WorkerFailed
from klamm.base.purgatory import Purgatory, Watch
from klamm.base.slices import SLICE, Slices, Steps, begin, each, in_slices, slices
from klamm.base.tasks import OnFailure, start_task
from klamm.config.broker import BrokerConfig
from klamm.config.topic import TopicConfig
from klamm.net.server.response_memory import ResponseMemory
from klamm.plugins.replica_selection import ClientMetadata
from klamm.protocol.apis.fetch import PartitionData
from klamm.protocol.apis.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from klamm.protocol.apis.stop_replica import StopReplicaRequest
from klamm.protocol.apis.update_metadata import UpdateMetadataRequest
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import CONSUMER_REPLICA_ID, UNKNOWN_OFFSET, PartitionKey
from klamm.replication.fetched_records import PARTITIONS_PER_SLICE, read_records
from klamm.replication.log_dir_moves import LogDirMoves
from klamm.replication.partition.delayed_operations import (
    Appended,
    DelayedDeleteRecords,
    DelayedFetch,
    DelayedProduce,
    DeleteRecordsResult,
    PreferredReplica,
    ProduceResult,
    Wanted,
    decide,
)
from klamm.replication.partition.hosted_partitions import HostedPartitions, log_config
from klamm.replication.partition.isr import IsrStatistics
from klamm.replication.partition.partition import Partition
from klamm.replication.partition.topic_metrics import TopicCounts, TopicStatistics
from klamm.replication.ports import (
    FollowerFetchers,
    IsKnownPartition,
    IsrChanges,
    LiveBroker,
    OnLeadership,
    TopicConfigSource,
)
from klamm.replication.quota import ReplicationQuota
from klamm.replication.read_replicas import ReadReplicas
from klamm.replication.state_change_lines import StateChangeLines
from klamm.replication.state_changes import StateChanges
from klamm.storage.directories.log_manager import LogManager
from klamm.storage.log.batch_inspection import Inspected, LargeBatch, inspect
from klamm.storage.log.log import AppendInfo, Log, Oddity
from klamm.storage.log.log_validator import RecordsRefused
from klamm.storage.log.producer_state import AppendOrigin

__all__ = ["DeleteRecordsResult", "ProduceResult", "ReplicaManager", "Wanted", "log_config"]

T = TypeVar("T")

_log = logging.getLogger(__name__)

# Reads the clock after this many partitions: a follower's offset may move the high watermark, which wakes other
# operations.
LOOK_SLICE = 50
# Checking an append takes some microseconds.
APPENDS_PER_SLICE = 500
# A fetch that the leader's quota holds back waits at least this long.
LEAST_HOLD_MS = 50
# The shortest and the longest wait before the next try to open logs that had no space.
REOPEN_MIN_MS = 1_000
REOPEN_MAX_MS = 30_000
# Refusals of a batch that do not name the log start offset, as in Kafka.
REFUSED_WITHOUT_START_OFFSET = (
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)


class ReplicaManager:
    """Hosts partitions. Made while the loop runs.

    The ports are described in `ports.py`. `notify_log_dir_failure` tells the controller that a directory has failed, or
    that there is space for logs again. The controller then asks which partitions can be hosted.
    """

    def __init__(
        self,
        config: BrokerConfig,
        environment: Environment,
        broker_id: int,
        log_manager: LogManager,
        *,
        response_memory: ResponseMemory,
        leader_quota: ReplicationQuota,
        log_dirs_quota: ReplicationQuota,
        topic_configs: TopicConfigSource,
        followers: FollowerFetchers,
        isr_changes: IsrChanges,
        live_broker: LiveBroker,
        is_known_partition: IsKnownPartition,
        on_leadership: OnLeadership,
        notify_log_dir_failure: Callable[[], None],
        on_failure: OnFailure,
        read_replicas: ReadReplicas | None = None,
    ) -> None:
        self._config = config
        self._environment = environment
        self._broker_id = broker_id
        self._log_manager = log_manager
        self._response_memory = response_memory
        self._leader_quota = leader_quota
        self._followers = followers
        self._isr_changes = isr_changes
        self.isr_statistics = IsrStatistics()
        self._on_leadership = on_leadership
        self._notify_log_dir_failure = notify_log_dir_failure
        self._on_failure = on_failure
        self._read_replicas = read_replicas
        # Makes a hosted partition. Fault tests put a class with witnesses here.
        self.new_partition: Callable[..., Partition] = Partition
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._reopening: asyncio.Task[None] | None = None
        self._is_running = False
        self._is_stopping = False
        self._live_broker = live_broker
        self.produce_purgatory: Purgatory[PartitionKey] = Purgatory()
        self.fetch_purgatory: Purgatory[PartitionKey] = Purgatory()
        self.follower_fetch_purgatory: Purgatory[PartitionKey] = Purgatory()
        self.delete_records_purgatory: Purgatory[PartitionKey] = Purgatory()
        self._hosted = HostedPartitions(
            log_manager, topic_configs.of, is_known_partition, self._make_partition, self._partition_changed
        )
        self.log_dir_moves = LogDirMoves(config, log_manager, self._hosted, log_dirs_quota, on_failure)
        self._state_changes = StateChanges(
            broker_id,
            log_manager,
            self._hosted,
            topic_configs,
            followers,
            self.log_dir_moves,
            live_broker,
            self._partition_changed,
            StateChangeLines(broker_id, environment.now_ms),
        )
        # See `HostedPartitions.require`.
        self.partition = self._hosted.require

    def _make_partition(
        self, topic: str, partition: int, log: Log, config: TopicConfig, counts: TopicCounts
    ) -> Partition:
        return self.new_partition(
            topic,
            partition,
            self._broker_id,
            log,
            config,
            replica_lag_time_max_ms=self._config.replica_lag_time_max_ms,
            clock_ms=self._clock_ms,
            isr_changes=self._isr_changes,
            isr_statistics=self.isr_statistics,
            topic_counts=counts,
            on_high_watermark=self._high_watermark_advanced,
            on_low_watermark=self._low_watermark_changed,
        )

    def _clock_ms(self) -> float:
        return self._loop.time() * 1000

    @property
    def partitions(self) -> Mapping[PartitionKey, Partition]:
        return self._hosted.all

    @property
    def topic_statistics(self) -> TopicStatistics:
        return self._hosted.topic_statistics

    @property
    def offline_count(self) -> int:
        """The number of this broker's replicas whose logs cannot be used."""
        return self._hosted.offline_count

    def hosted_partition(self, key: PartitionKey) -> Partition | None:
        return self._hosted.get(key)

    async def update_topic_configs(self, topic: str | None = None) -> None:
        """See `HostedPartitions.update_topic_configs`."""
        await self._hosted.update_topic_configs(topic)

    # -- requests of the controller -------------------------------------------------------------------------------

    @property
    def controller_epoch(self) -> int:
        """The latest controller epoch of any request."""
        return self._state_changes.controller_epoch

    async def become_leader_or_follower(
        self, request: LeaderAndIsrRequest, correlation_id: int = 0
    ) -> LeaderAndIsrResponse:
        """See `StateChanges.become_leader_or_follower`."""
        response = await self._state_changes.become_leader_or_follower(request, correlation_id)
        self._start_periodic_work()
        if self._reopening is None and not self._is_stopping and self._hosted.waiting_for_space:
            self._reopening = start_task(self._reopen_logs(), self._on_failure)
        return response

    async def stop_replicas(
        self, request: StopReplicaRequest, correlation_id: int = 0
    ) -> tuple[ErrorCode, dict[PartitionKey, ErrorCode]]:
        """See `StateChanges.stop_replicas`."""
        return await self._state_changes.stop_replicas(request, correlation_id)

    async def update_metadata(
        self, request: UpdateMetadataRequest, apply: Callable[[], Steps[T]], correlation_id: int = 0
    ) -> T:
        """See `StateChanges.update_metadata`."""
        return await self._state_changes.update_metadata(request, apply, correlation_id)

    async def in_turn(self, apply: Callable[[], Steps[T]]) -> T:
        """See `StateChanges.in_turn`."""
        return await self._state_changes.in_turn(apply)

    def leave(self, partition: Partition) -> None:
        """Like `StateChanges.leave`, if the partition is still hosted. Must be called `in_turn`."""
        if self._hosted.get(partition.topic_partition) is partition:
            self._state_changes.leave(partition)

    def brokers_died(self, broker_ids: Sequence[int]) -> Steps[None]:
        """The controller has reported these brokers dead: calls `Partition.broker_died` of all partitions."""
        if not broker_ids:
            return
        looked_at = Slices(SLICE)
        for key in list(self._hosted.all):
            partition = self._hosted.get(key)
            if partition is not None:
                for broker_id in broker_ids:
                    partition.broker_died(broker_id)
            if looked_at.spend():
                yield
        for key in self.delete_records_purgatory.watched_keys():
            # The low watermark no longer waits for a dead broker.
            self.delete_records_purgatory.check(key)
            if looked_at.spend():
                yield

    async def alter_replica_log_dirs(self, directories: Mapping[PartitionKey, str]) -> dict[PartitionKey, ErrorCode]:
        """Calls `LogDirMoves.alter` for each partition; returns their error codes."""
        return await self._state_changes.in_turn(lambda: self._alter_replica_log_dirs(directories))

    def _alter_replica_log_dirs(self, directories: Mapping[PartitionKey, str]) -> Steps[dict[PartitionKey, ErrorCode]]:
        codes = {}
        refused: list[tuple[PartitionKey, KafkaError]] = []
        # By time, because a directory may have to be created.
        slices = Slices(SLICE, self._loop.time)
        for key, path in directories.items():
            codes[key] = ErrorCode.NONE
            try:
                self.log_dir_moves.alter(key, path)
            except KafkaError as error:
                codes[key] = error.code
                refused.append((key, error))
            if slices.spend():
                yield
        if refused:
            (topic, number), first = refused[0]
            _log.warning(
                "Unable to alter the log directories of %d of %d replicas; the first is %s-%d: %s",
                *(len(refused), len(codes), topic, number, first),
            )
        return codes

    def directory_failed(self, directory: str) -> None:
        """Takes every partition whose log is in `directory` offline, then tells the controller."""
        rest = begin(self._take_offline(directory))
        if rest is not None:
            start_task(rest, self._on_failure)

    def _take_offline(self, directory: str) -> Steps[None]:
        yield from self._state_changes.directory_failed(directory)
        self._notify_log_dir_failure()

    # -- produce --------------------------------------------------------------------------------------------------

    def unprepared_logs(self, batches: Iterable[tuple[str, int, object]]) -> list[Log]:
        """The logs to prepare (`Log.prepare_append`) before these (topic, partition, batch) are appended."""
        found = []
        for topic, partition, _ in batches:
            hosted = self._hosted.get((topic, partition))
            if hosted is not None and hosted.log.must_prepare:
                found.append(hosted.log)
        return found

    def append_records(
        self,
        topic: str,
        partition: int,
        records: memoryview,
        required_acks: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        inspected: Inspected | None = None,
    ) -> ProduceResult:
        """Appends one batch to a partition that this broker leads. Raises LargeBatch like `Log.append_as_leader`."""
        try:
            target = self.partition(topic, partition)
            syncs = target.log.durability.syncs_on_loop
            info = target.append_records_as_leader(
                records, required_acks, self._environment.now_ms(), origin, inspected
            )
        except KafkaError as error:
            self.topic_statistics.of(topic).refused(len(records), error)
            # A producer that the log does not know compares the log start offset with its own last offset.
            hosted = self._hosted.get((topic, partition))
            start = UNKNOWN_OFFSET
            if hosted is not None and error.code not in REFUSED_WITHOUT_START_OFFSET:
                start = hosted.log.log_start_offset
            return ProduceResult(
                error.code,
                log_start_offset=start,
                error_message=error.message or None,
                record_errors=error.record_errors if isinstance(error, RecordsRefused) else (),
            )
        first_offset, last_offset, _, log_append_time_ms, log_start_offset, oddity, size_bytes = info
        end_offset = last_offset + 1
        counts = target.topic_counts
        counts.produce_requests += 1
        counts.messages_in += end_offset - first_offset
        counts.bytes_in += size_bytes
        if oddity is None:
            self.follower_fetch_purgatory.check(target.topic_partition)
        else:
            self._appended_oddly(target, info, len(records))
        return ProduceResult(
            ErrorCode.NONE,
            first_offset,
            log_append_time_ms,
            log_start_offset,
            required_offset=end_offset,
            leader_epoch=target.leader_epoch,
            has_waited_for_disk=target.log.durability.syncs_on_loop > syncs,
        )

    @asynccontextmanager
    async def writing_ahead(
        self, topic: str, partition: int, records: memoryview | None, inspected: Inspected | None
    ) -> AsyncIterator[None]:
        """Like `Log.writing_ahead`, for a client's batch. Leaves errors to the append."""
        hosted = self._hosted.get((topic, partition))
        async with AsyncExitStack() as stack:
            if records is not None and hosted is not None and hosted.is_leader:
                writing = hosted.log.writing_ahead(records, AppendOrigin.CLIENT, inspected)
                with suppress(KafkaError):
                    await stack.enter_async_context(writing)
            yield

    def _appended_oddly(self, target: Partition, info: AppendInfo, sent_bytes: int) -> None:
        counts = target.topic_counts
        # Counts the bytes that the producer has sent, not the bytes that the log has stored.
        counts.bytes_in += sent_bytes - info.size_bytes
        if info.oddity is Oddity.CONVERTED:
            counts.produce_conversions += info.last_offset + 1 - info.first_offset
            self.follower_fetch_purgatory.check(target.topic_partition)

    async def inspect(self, large: LargeBatch) -> Inspected:
        """Inspects a batch in a worker, so that it can be appended afterwards. Raises KafkaError."""
        try:
            found = await self._environment.run_in_worker(inspect, bytes(large.batch), large.demands, large.config)
        except WorkerFailed as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from None
        return large.inspected(found)

    def is_replicated(self, appended: Appended) -> bool:
        """Whether acks=all can be answered: each append is on all in-sync replicas, or its result holds the error."""
        is_replicated = True
        for topic, number, result in appended:
            is_replicated &= decide(self.partition, topic, number, result)
        return is_replicated

    async def wait_replicated(self, appended: Appended, timeout_ms: int) -> None:
        """Waits for acks=all; afterwards each result holds its final error code (REQUEST_TIMED_OUT included)."""
        delayed = DelayedProduce(self.partition, appended)
        with self.produce_purgatory.watching(delayed, max(0, timeout_ms)) as watch:
            # Registered in the same step as the check, so that no change is missed.
            watch.add(delayed.look(APPENDS_PER_SLICE))
            while not delayed.is_looked_through:
                await asyncio.sleep(0)
                watch.add(delayed.look(APPENDS_PER_SLICE))
            if not delayed.is_ready() and not await watch.future:
                delayed.expire()

    def when_replicated(self, appended: Appended, timeout_ms: int, on_done: Callable[[], None]) -> None:
        """Like `wait_replicated`, but without a task: calls `on_done` as soon as each result holds its final error
        code, possibly at once."""
        delayed = DelayedProduce(self.partition, appended)
        keys = delayed.look(len(appended))
        if not keys:
            on_done()
            return

        def decided(is_ready: bool) -> None:
            if not is_ready:
                delayed.expire()
            on_done()

        self.produce_purgatory.put(delayed, keys, timeout_ms, decided)

    # -- deletion of records --------------------------------------------------------------------------------------

    def delete_records(self, topic: str, partition: int, offset: int) -> DeleteRecordsResult:
        """Moves the log start offset of a partition that this broker leads (`Partition.delete_records`)."""
        try:
            target = self.partition(topic, partition)
            required_offset = target.delete_records(offset)
        except KafkaError as error:
            return DeleteRecordsResult(error.code)
        # Followers hear of the new offset in the answer to their waiting fetch.
        self.follower_fetch_purgatory.check(target.topic_partition)
        return DeleteRecordsResult(ErrorCode.NONE, required_offset=required_offset)

    async def wait_deleted(self, deleted: dict[PartitionKey, DeleteRecordsResult], timeout_ms: int) -> None:
        """Waits until all live replicas have deleted the records, and no restart brings them back. Afterwards each
        result holds its final error code (REQUEST_TIMED_OUT included), and `deleted` has the timed-out partitions."""
        deadline_ms = self._clock_ms() + timeout_ms
        delayed = DelayedDeleteRecords(self.partition, self._live_broker, deleted)
        keys = list(deleted)
        async for key in each(keys):
            settled = None
            # The log may move to another directory meanwhile.
            while (log := self._log_manager.get(*key)) is not None and log is not settled:
                await self._log_manager.settle_log_start(log)
                settled = log
        with self.delete_records_purgatory.watching(delayed, max(0, deadline_ms - self._clock_ms())) as watch:
            async for piece in slices(keys):
                # Registered in the same step as the check, so that no change is missed.
                for key in piece:
                    delayed.has_become_ready(key)
                watch.add(piece)
            if not delayed.is_ready() and not await watch.future:
                # A timed-out deletion is not undone.
                async for result in each(deleted.values()):
                    result.error_code = ErrorCode.REQUEST_TIMED_OUT

    # -- fetch ----------------------------------------------------------------------------------------------------

    async def fetch(
        self,
        wanted: Sequence[Wanted],
        *,
        replica_id: int = CONSUMER_REPLICA_ID,
        isolation_level: int,
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        only_leader: bool = True,
        consumer: ClientMetadata | None = None,
    ) -> list[PartitionData]:
        """Reads for a consumer, or for the follower `replica_id`: at once if `min_bytes` are available or a partition
        has an error, else within `max_wait_ms`. Unless `only_leader`, a consumer also reads partitions that this broker
        follows. If `consumer` should read a partition led here from a follower, it gets the follower's id and no
        records.

        Results are in the order of `wanted`. The first non-empty partition may exceed `max_bytes` and its own limit by
        one batch, so that a batch larger than the limits can still be consumed (KIP-74). A fetch never waits for more
        than `max_bytes`, and reads less when the broker's memory for responses is short.
        """
        is_follower = replica_id > CONSUMER_REPLICA_ID
        delayed = DelayedFetch(
            self.partition,
            wanted,
            replica_id,
            isolation_level,
            min(min_bytes, max_bytes),
            self._clock_ms(),
            only_leader=only_leader,
            quota=self._leader_quota if is_follower and self._leader_quota.has_throttled_replicas else None,
            preferred_replica=self._preferred_replica(consumer),
        )
        purgatory = self.follower_fetch_purgatory if is_follower else self.fetch_purgatory
        if not self._look_at_once(delayed):
            if delayed.is_held_back:
                # The follower asks again when the quota has room.
                room_ms = self._leader_quota.wait_ms(self._clock_ms())
                max_wait_ms = math.ceil(min(max_wait_ms, max(room_ms, LEAST_HOLD_MS)))
            await _wait(purgatory, delayed, max_wait_ms)
        else:
            await self._look_and_wait(purgatory, delayed, max_wait_ms)
        if delayed.readable:
            share = await self._response_memory.share(is_follower=is_follower)
            if share > 0 or is_follower:
                max_bytes = min(max_bytes, share)
                with self._response_memory.reading(max_bytes):
                    await read_records(delayed, wanted, max_bytes, self._leader_quota)
        return delayed.results

    def records_sent(self, topic: str, partition: int, size_bytes: int, replica_id: int) -> None:
        """Counts the records in the answer to a fetch of the follower `replica_id` or of a consumer."""
        hosted = self._hosted.get((topic, partition))
        counts = self.topic_statistics.others if hosted is None else hosted.topic_counts
        if replica_id > CONSUMER_REPLICA_ID:
            is_reassignment = hosted is not None and replica_id in hosted.adding_replicas
            counts.sent_to_follower(size_bytes, is_reassignment=is_reassignment)
        else:
            counts.bytes_out += size_bytes

    def _preferred_replica(self, consumer: ClientMetadata | None) -> PreferredReplica | None:
        return (
            None if consumer is None or self._read_replicas is None else partial(self._read_replicas.choose, consumer)
        )

    def _look_at_once(self, delayed: DelayedFetch) -> bool:
        """Checks the first partitions. Returns whether more are left."""
        if not delayed.look(LOOK_SLICE):
            return False
        slices = Slices(PARTITIONS_PER_SLICE, self._loop.time)
        while not slices.spend(LOOK_SLICE):
            if not delayed.look(LOOK_SLICE):
                return False
        return True

    async def _look_and_wait(self, purgatory: Purgatory[PartitionKey], delayed: DelayedFetch, max_wait_ms: int) -> None:
        """Checks the rest of many partitions in slices, and registers for them in slices. Partitions that change
        meanwhile are checked again before the wait."""
        with purgatory.watching(delayed, max_wait_ms) as watch:
            with purgatory.noting_changes() as changed:
                slices = Slices(PARTITIONS_PER_SLICE, self._loop.time)
                await in_slices(_look(delayed, changed, watch if max_wait_ms > 0 else None, slices))
            # Every change has been checked, because nothing else has run on the loop since.
            if max_wait_ms > 0 and not delayed.is_ready():
                await watch.future

    # -- life -----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Ends the fetchers, then writes the high watermark checkpoint once more."""
        self._is_stopping = True
        self._state_changes.stop()
        for timer in self._timers.values():
            timer.cancel()
        if self._reopening is not None:
            self._reopening.cancel()
            await asyncio.gather(self._reopening, return_exceptions=True)
        await self._followers.shutdown()
        await self.log_dir_moves.shutdown()
        await self._log_manager.checkpoint_high_watermarks()

    def _start_periodic_work(self) -> None:
        """Called after the first LeaderAndIsr: an earlier checkpoint would lack the partitions."""
        if not self._is_running:
            self._is_running = True
            config = self._config
            checkpoint = self._log_manager.checkpoint_high_watermarks
            self._repeat("checkpoint", config.replica_high_watermark_checkpoint_interval_ms, checkpoint)
            self._repeat("shrink", config.replica_lag_time_max_ms / 2, self._shrink_isrs)

    def _repeat(self, name: str, interval_ms: float, action: Callable[[], Awaitable[None]]) -> None:
        async def run() -> None:
            await action()
            self._repeat(name, interval_ms, action)

        if not self._is_stopping:
            start = lambda: start_task(run(), self._on_failure)  # noqa: E731  # short
            self._timers[name] = self._loop.call_later(interval_ms / 1000, start)

    async def _reopen_logs(self) -> None:
        """Runs until no partition waits for space. Tells the controller when a partition has got space."""
        back_off_ms = REOPEN_MIN_MS
        while self._hosted.waiting_for_space:
            await asyncio.sleep(back_off_ms / 1000)
            if await self._state_changes.reopen_logs():
                self._notify_log_dir_failure()
            back_off_ms = min(back_off_ms * 2, REOPEN_MAX_MS)
        self._reopening = None

    async def _shrink_isrs(self) -> None:
        async for piece in slices(self._hosted.all):
            for key in piece:
                partition = self._hosted.get(key)
                if partition is not None:
                    partition.maybe_shrink_isr()

    def _high_watermark_advanced(self, partition: Partition) -> None:
        self.produce_purgatory.check(partition.topic_partition)
        self.fetch_purgatory.check(partition.topic_partition)

    def _low_watermark_changed(self, partition: Partition) -> None:
        self.delete_records_purgatory.check(partition.topic_partition)

    def _partition_changed(self, key: PartitionKey) -> None:
        self.produce_purgatory.check(key)
        self.delete_records_purgatory.check(key)
        self.fetch_purgatory.check(key)
        self.follower_fetch_purgatory.check(key)
        partition = self._hosted.get(key)
        if partition is None:
            self._on_leadership(key, False, None)
        elif not partition.is_leader:
            self._on_leadership(key, False, partition.leader_epoch)
        else:
            self._on_leadership(key, True, partition.leader_epoch)


def _look(
    delayed: DelayedFetch, changed: dict[PartitionKey, None], watch: Watch[PartitionKey] | None, slices: Slices
) -> Steps[None]:
    yield
    while delayed.look(LOOK_SLICE):
        if slices.spend(LOOK_SLICE):
            yield
    if watch is not None and not delayed.is_ready():
        while not delayed.is_ready() and (keys := delayed.next_keys(PARTITIONS_PER_SLICE)):
            watch.add(keys)
            yield
        while not delayed.is_ready() and delayed.look_again(changed, LOOK_SLICE):
            if slices.spend(LOOK_SLICE):
                yield


async def _wait(purgatory: Purgatory[PartitionKey], delayed: DelayedFetch, max_wait_ms: int) -> None:
    """Waits until the fetch is ready or its time is up. Registers before it yields to the loop."""
    if delayed.results and max_wait_ms > 0 and not delayed.is_ready():
        await purgatory.watch(delayed, delayed.keys(), max_wait_ms)
