"""Moves replicas between the log directories of this broker (KIP-113): copies their records into future logs.

    alter, or a start with a future log -> waiting for its turn -> copying -> promoted
                                              ^                       |
                                              |                       v
                                           waiting after a failure, or for the throttle

A step of a move is one of: truncate the future log where the current log was truncated, copy the next piece of records,
sync the copy, promote it. `storage.directories.future_logs` describes a promotion on the disk.

What must stay true:
- A future log gets only records that the current log has, in the same batches. When the current log is truncated, the
  future log is truncated there before it grows again. A start compares the leader epochs of both logs for the same
  reason.
- A future log that a start finds may belong to a deleted topic of the same name, if its log directory was offline when
  the topic was deleted. It is first compared with the current log, because the leader epochs do not show that.
- A future log is promoted only in the step that has checked that both logs have the same end offset. Before that, a
  sync must have covered all records that the current log has synced, and the future log's checkpoint must have the log
  start offset of the current log's checkpoint.
- Whether this broker leads, follows or does neither makes no difference: the source is always the current log.
- Once `remove` returns, no records are copied into these partitions' future logs, and no future log is promoted.
- A piece takes the loop for a few milliseconds at most. Reads from the disk and syncs happen off the loop. The copy is
  synced every few megabytes, so that a write need not wait for room in the kernel.

Source: kafka.server.ReplicaAlterLogDirsManager, ReplicaAlterLogDirsThread, ReplicaManager.alterReplicaLogDirs.
"""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from uuid import UUID

from klamm.base.metrics import MetricName, Metrics
from klamm.base.tasks import OnFailure, start_task
from klamm.config.broker import BrokerConfig
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.primitives import Buffer
from klamm.protocol.record.record_batch import iterate_batches
from klamm.protocol.vocabulary import NO_EPOCH, PartitionKey
from klamm.replication.fetcher.fetch_state import truncation_offset
from klamm.replication.partition.hosted_partitions import HostedPartitions
from klamm.replication.partition.partition import Partition
from klamm.replication.quota import ReplicationQuota
from klamm.storage.directories.log_manager import LogManager
from klamm.storage.log.log import AppendOrigin, Log
from klamm.storage.log.log_config import LogConfig
from klamm.storage.segments.log_directory import future_directory_name, is_possible_directory_name
from klamm.znodes.topics import is_legal_topic_name

_LOGGER = logging.getLogger(__name__)

# A piece is halved when it took the loop longer than LONG_PIECE_S, and doubled when it took less than SHORT_PIECE_S.
MIN_PIECE_BYTES = 16 * 1024
LONG_PIECE_S = 0.004
SHORT_PIECE_S = 0.001
# A copy is synced after this many bytes.
BYTES_PER_SYNC = 16 * 1024**2
# The shortest wait of a throttled move, so that pieces are not tiny, and the longest until it checks the throttle
# again.
LEAST_WAIT_MS = 20
LONGEST_WAIT_MS = 1_000
_NEVER = 2**63 - 1


class _Move:
    """One partition's move to another log directory. `future` is the log that it fills."""

    def __init__(self, partition: Partition, future: Log) -> None:
        self.partition = partition
        self.future = future
        self.piece_bytes = MIN_PIECE_BYTES
        self.unsynced_bytes = 0
        # Whether the future log is known to belong to the same topic.
        self.is_copy = False
        # Whether a sync has covered the whole future log once, including its directory's name.
        self.was_synced = False
        self.failures = 0
        self.timer: asyncio.TimerHandle | None = None
        self._is_over = asyncio.Event()

    @property
    def key(self) -> PartitionKey:
        return self.partition.topic_partition

    async def sleep(self, delay_s: float) -> None:
        """Returns after a while, or when the move ends."""
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._is_over.wait()

    def end(self) -> None:
        """Ends the move."""
        self._is_over.set()
        if self.timer is not None:
            self.timer.cancel()

    @property
    def lag(self) -> int:
        """How many offsets the future log lacks."""
        return max(0, self.partition.log.log_end_offset - self.future.log_end_offset)


class LogDirMoves:
    """All moves of this broker. Made while the loop runs."""

    def __init__(
        self,
        config: BrokerConfig,
        log_manager: LogManager,
        hosted: HostedPartitions,
        quota: ReplicationQuota,
        on_failure: OnFailure,
    ) -> None:
        self._config = config
        self._log_manager = log_manager
        self._hosted = hosted
        self._quota = quota
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._moves: dict[PartitionKey, _Move] = {}
        self._ready: dict[PartitionKey, _Move] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._is_stopping = False

    # -- moves in progress ----------------------------------------------------------------------------------------

    @property
    def partitions(self) -> list[PartitionKey]:
        """The partitions that are being moved."""
        return list(self._moves)

    @property
    def max_lag(self) -> int:
        """The largest number of offsets that a future log lacks."""
        return max((move.lag for move in self._moves.values()), default=0)

    @property
    def failing_count(self) -> int:
        """How many moves wait because their last step has failed."""
        return sum(move.failures > 0 for move in self._moves.values())

    def register(self, metrics: Metrics) -> None:
        """Under Kafka's names. Failed moves are repeated, so FailedPartitionsCount falls when they succeed."""
        for name, documentation, read in (
            ("MaxLag", "Offsets that the future log lacks that is furthest behind.", lambda: self.max_lag),
            ("FailedPartitionsCount", "Moves whose last step has failed.", lambda: self.failing_count),
            ("PartitionsCount", "Replicas that are being moved to another log directory.", lambda: len(self._moves)),
            ("DeadThreadCount", "Always 0: a move that dies ends the broker.", lambda: 0),
        ):
            metrics.gauges(
                MetricName("kafka.server", "ReplicaAlterLogDirsManager", name),
                documentation,
                "clientId",
                lambda read=read: {"ReplicaAlterLogDirs": read()},  # type: ignore[misc]
            )

    # -- requests of clients --------------------------------------------------------------------------------------

    def alter(self, key: PartitionKey, path: str) -> None:
        """Begins to move the partition's log to the log directory `path`, and ends a move to another directory. If
        `path` is the present directory, no move begins. A partition that is not hosted will be created in `path`.

        Raises KafkaError: INVALID_TOPIC_EXCEPTION for a topic whose name is too long for a future log;
        LOG_DIR_NOT_FOUND; KAFKA_STORAGE_ERROR; for a partition that is not hosted, REPLICA_NOT_AVAILABLE or
        UNKNOWN_TOPIC_OR_PARTITION.
        """
        name = future_directory_name(*key, UUID(int=0))
        if not is_possible_directory_name(name):
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is too long for a directory's name")
        self._log_manager.directory(path)
        partition = self._require(key, path)
        future = self._log_manager.future_logs.get(key)
        if future is not None and future.log_directory.path != path:
            self.remove([key])
            self._log_manager.delete_future(*key)
            partition.future_log = future = None
        if path == partition.log.log_directory.path:
            return
        if future is None:
            self._log_manager.create_future(partition.log, path)
        self.resume(partition)

    def _require(self, key: PartitionKey, path: str) -> Partition:
        try:
            return self._hosted.require(*key)
        except KafkaError as error:
            if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
                raise
            if is_legal_topic_name(key[0]) and key[1] >= 0:
                self._log_manager.preferred_directories.prefer(key, path)
            if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, error.message) from None
            raise

    # -- changes of partitions ------------------------------------------------------------------------------------

    def resume(self, partition: Partition) -> None:
        """Continues the move of a partition that has a future log, unless it is in progress."""
        key = partition.topic_partition
        future = self._log_manager.future_logs.get(key)
        partition.future_log = future
        if future is None or self._is_stopping:
            return
        move = self._moves.get(key)
        if move is not None and move.future is future and move.partition is partition:
            return
        self.remove([key])
        future.config = partition.log.config
        if future.leader_epochs.latest_epoch == NO_EPOCH and future.high_watermark < future.log_end_offset:
            # Without epochs, only the records below the high watermark are known to be in the current log.
            partition.cut_future_log_at(future.high_watermark)
        _LOGGER.info("Copying %s to %s, from offset %d", partition, future.directory, future.log_end_offset)
        self._moves[key] = self._ready[key] = _Move(partition, future)
        self._start()

    def remove(self, keys: Iterable[PartitionKey]) -> None:
        """Interrupts the moves of these partitions. Their future logs stay."""
        for key in keys:
            move = self._moves.pop(key, None)
            self._ready.pop(key, None)
            if move is not None:
                move.end()

    def directory_failed(self, path: str) -> None:
        """Ends the moves to a directory that has failed."""
        failed = [key for key, move in self._moves.items() if move.future.log_directory.path == path]
        self.remove(failed)

    async def shutdown(self) -> None:
        """Interrupts all moves and waits until the last step has ended."""
        self._is_stopping = True
        self.remove(list(self._moves))
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- turns ----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Starts as many moves as may copy at once (num.replica.alter.log.dirs.threads), by name."""
        while self._ready and len(self._tasks) < self._config.num_replica_alter_log_dirs_threads:
            move = self._ready.pop(min(self._ready))
            task = start_task(self._run(move), self._on_failure)
            self._tasks[task] = None
            task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        del self._tasks[task]
        if not self._is_stopping:
            self._start()

    async def _run(self, move: _Move) -> None:
        while self._is_valid(move):
            throttled_ms = self._quota.wait_ms(self._clock_ms())
            if throttled_ms > 0:
                # The move keeps its turn, so that one replica after another gets the whole rate.
                await move.sleep(min(max(throttled_ms, LEAST_WAIT_MS), LONGEST_WAIT_MS) / 1000)
                continue
            try:
                is_done = await self._step(move)
            except KafkaError as error:
                self._wait_after_failure(move, error)
                return
            if is_done:
                return
            await asyncio.sleep(0)

    def _wait_after_failure(self, move: _Move, error: KafkaError) -> None:
        if not self._is_valid(move):
            return
        move.failures += 1
        level = logging.WARNING if move.failures == 1 else logging.DEBUG
        _LOGGER.log(level, "Moving %s to %s waits: %s", move.partition, move.future.directory, error)

        def resume() -> None:
            move.timer = None
            self._ready[move.key] = move
            self._start()

        # Other moves copy meanwhile.
        move.timer = self._loop.call_later(self._config.replica_fetch_backoff_ms / 1000, resume)

    def _clock_ms(self) -> float:
        return self._loop.time() * 1000

    def _is_valid(self, move: _Move) -> bool:
        """Whether the move has not been removed, and its directory has not failed."""
        return self._moves.get(move.key) is move and move.partition.future_log is move.future

    # -- steps ----------------------------------------------------------------------------------------------------

    async def _step(self, move: _Move) -> bool:
        """Takes the next step. Returns whether the move is done. Raises KafkaError if it must be tried again later."""
        partition, current, future = move.partition, move.partition.log, move.future
        cut = where_to_cut(current, future, partition.future_log_cut)
        if cut is not None:
            await self._cut(move, cut)
        elif future.log_end_offset < current.log_start_offset:
            step = future.truncation_step(-1)
            if step is None:
                future.truncate_fully_and_start_at(current.log_start_offset)
            else:
                await self._cut(move, step)
        elif not move.is_copy:
            await self._compare(move)
            return False
        elif future.must_prepare or move.unsynced_bytes >= BYTES_PER_SYNC:
            await self._sync(move)
        elif future.log_end_offset < current.log_end_offset:
            await self._copy(move)
        if not self._is_valid(move) or not _are_equal(partition):
            return False
        is_behind = future.recovery_point < current.recovery_point
        if not move.was_synced or is_behind or future.durability.is_truncation_unsynced:
            await self._sync(move)
            return False
        if future.durable_log_start_offset < current.durable_log_start_offset:
            await self._settle_start(move, current.durable_log_start_offset)
            return False
        self._promote(move)
        return True

    async def _cut(self, move: _Move, offset: int) -> None:
        future = move.future
        before, step = _end(future), future.truncation_step(offset)
        prepared = await future.prepare_truncation(offset if step is None else step)
        if not self._is_valid(move) or _end(future) != before:
            return
        if step is not None:
            future.truncate_to(step, prepared)
            return
        future.truncate_to(offset, prepared)
        move.partition.future_log_was_cut(offset)
        if _end(future) == before and where_to_cut(move.partition.log, future, None) == offset:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the leader epochs of {move.partition} end nowhere")

    async def _compare(self, move: _Move) -> None:
        """Deletes a future log of another topic."""
        current, future, end = move.partition.log, move.future, move.future.log_end_offset
        is_copy = None in (current.topic_id, future.topic_id) or current.topic_id == future.topic_id
        if is_copy and max(current.log_start_offset, future.log_start_offset) < end:
            last, same = [
                (await log.read(end - 1, 1, max_offset=log.log_end_offset, minimum_one_batch=True)).data
                for log in (future, current)
            ]
            is_copy = bytes(last) == bytes(same)
        if not self._is_valid(move) or future.log_end_offset != end:
            return
        if not is_copy:
            _LOGGER.warning("Deleting %s, which is no copy of %s", future.directory, current.directory)
            self._log_manager.delete_future(*move.key)
            move.partition.future_log = None
            self.remove([move.key])
        move.is_copy = is_copy

    async def _copy(self, move: _Move) -> None:
        partition, current, future = move.partition, move.partition.log, move.future
        offset, end = future.log_end_offset, current.log_end_offset
        piece_bytes = min(move.piece_bytes, max(MIN_PIECE_BYTES, self._quota.allowance_bytes(self._clock_ms())))
        fetched = await current.read(offset, piece_bytes, max_offset=end, minimum_one_batch=True)
        is_changed = future.log_end_offset != offset or partition.future_log_cut is not None
        if not self._is_valid(move) or partition.log is not current or is_changed:
            return
        if not fetched.data:
            # Kafka's cleaner may have left no record in this range. The next append to the current log ends the gap.
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition} has no records from {offset} to {end}")
        # Before its last piece, a copy ignores flush.messages: it is synced as a whole, off the loop. With the last
        # piece flush.messages may cause a sync on the loop, as with any append.
        is_last = fetched.next_offset >= end
        if is_last and move.unsynced_bytes and current.config.flush_messages < _NEVER:
            await self._sync(move)
            return
        async with future.writing_ahead(fetched.data, AppendOrigin.REPLICATION):
            is_changed = future.log_end_offset != offset or partition.future_log_cut is not None
            if not self._is_valid(move) or partition.log is not current or is_changed:
                return
            began_s = self._loop.time()
            future.config = current.config if is_last else _without_syncs(current.config)
            appended_bytes = _append(future, fetched.data)
        future.update_high_watermark(current.high_watermark)
        future.update_log_start_offset(min(current.log_start_offset, future.high_watermark))
        self._quota.record(appended_bytes, self._clock_ms())
        move.failures = 0
        move.unsynced_bytes += appended_bytes if future.durability.has_unflushed else 0
        if appended_bytes < len(fetched.data):
            move.piece_bytes = max(MIN_PIECE_BYTES, appended_bytes)  # Small batches: the read was too large.
        else:
            self._adapt(move, self._loop.time() - began_s)

    def _adapt(self, move: _Move, taken_s: float) -> None:
        if taken_s > LONG_PIECE_S:
            move.piece_bytes = max(MIN_PIECE_BYTES, move.piece_bytes // 2)
        elif taken_s < SHORT_PIECE_S:
            move.piece_bytes = min(self._config.replica_fetch_max_bytes, move.piece_bytes * 2)

    async def _sync(self, move: _Move) -> None:
        copied_bytes = move.unsynced_bytes
        await move.future.flush()
        move.unsynced_bytes -= copied_bytes
        move.was_synced = True

    async def _settle_start(self, move: _Move, offset: int) -> None:
        """Checkpoints the future log's start offset: an acknowledged deletion of records must survive the promotion."""
        move.future.update_high_watermark(move.partition.log.high_watermark)
        move.future.update_log_start_offset(offset)
        await self._log_manager.settle_log_start(move.future)
        if move.future.durable_log_start_offset < offset:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "its log start offset cannot be checkpointed")

    def _promote(self, move: _Move) -> None:
        partition = move.partition
        move.future.config = partition.log.config
        partition.log = self._log_manager.promote_future(*move.key)
        partition.future_log = None
        self.remove([move.key])


def where_to_cut(current: Log, future: Log, cut: int | None) -> int | None:
    """The offset at which a future log must be truncated because it differs from the current log; None if it does not.

    `cut` is the lowest offset at which the current log was truncated since the future log was.
    """
    end = future.log_end_offset
    limit = min(current.log_end_offset, end if cut is None else cut)
    if limit < end:
        return limit
    if cut is not None:
        return cut  # Epochs without records may begin at this offset.
    epoch, latest_epoch = future.leader_epochs.latest_epoch, current.leader_epochs.latest_epoch
    if epoch == NO_EPOCH or current.log_start_offset == current.log_end_offset:
        return None
    if latest_epoch == NO_EPOCH:
        return future.log_start_offset if future.log_start_offset < end else None
    # If the current log does not know the future log's latest epoch, it no longer has the records of that epoch.
    known, end_of_epoch = current.leader_epochs.end_offset_for(min(epoch, latest_epoch), current.log_end_offset)
    if known == epoch and end_of_epoch >= end:
        return None
    return truncation_offset(future, known, end_of_epoch)[0]


def _are_equal(partition: Partition) -> bool:
    """Whether the future log has all records of the current log."""
    current, future = partition.log, partition.future_log
    return (
        future is not None
        and future.log_end_offset == current.log_end_offset
        and where_to_cut(current, future, partition.future_log_cut) is None
    )


def _append(future: Log, records: Buffer) -> int:
    """Appends what one append takes. Returns the number of appended bytes."""
    if future.log_end_offset == future.log_start_offset:
        # The current log may begin within a batch; an empty log begins with the whole batch.
        for _, header in iterate_batches(records, allow_partial_end=True):
            if header.base_offset < future.log_end_offset <= header.last_offset:
                future.truncate_fully_and_start_at(header.base_offset)
            break
    return future.append_as_follower(records).size_bytes


def _end(log: Log) -> tuple[int, int]:
    return log.log_end_offset, log.leader_epochs.latest_epoch


def _without_syncs(config: LogConfig) -> LogConfig:
    return replace(config, flush_messages=_NEVER, flush_ms=_NEVER)
