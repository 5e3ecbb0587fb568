"""The log of one partition replica: its offsets, its segments and its producer state, which must agree with each other.

An append, a roll, a truncation and a deletion each change all three in one step, and nothing else changes them. That is
why this class is long. Other modules decide about a change, or only read the log:

| module                              | what                                                         |
|-------------------------------------|--------------------------------------------------------------|
| `log_validator`, `follower_batches` | which batches are appended, and with which offsets           |
| `written_ahead`                     | the bytes of a large batch, before its append                |
| `truncation`                        | where the log is cut, and its state there                    |
| `retention`                         | which segments are deleted                                   |
| `durability`                        | the syncs, and the recovery point                            |
| `cleaning`                          | the job of a cleaning, and the swap of its segments          |
| `log_reader`                        | reads and lookups                                            |

What must stay true:
- log start offset <= high watermark <= log end offset; recovery point <= log end offset.
- Everything below the recovery point is on the disk, not only in the kernel: it moves only after a sync.
- An append is either whole in the log, with its indexes, producer state and leader epoch, or has no effect on readers
  and the next append. A full disk refuses an append in this way; appends work again when there is space.
- After any other disk error the log directory is offline, and the log answers KAFKA_STORAGE_ERROR.
- All methods run on the loop's thread. Only `flush` and reads of cold pages leave it, and check the log's state again
  afterwards.

Source: kafka.log.Log.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from klamm.base.environment import Environment, File
from klamm.base.metrics import Histogram
from klamm.base.slices import Slices, Steps, each, in_slices
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.primitives import Buffer
from klamm.protocol.record.record_batch import NO_TIMESTAMP
from klamm.storage.log.batch_inspection import Inspected
from klamm.storage.log.durability import Durability
from klamm.storage.log.follower_batches import Batch, check_batches, first_segment
from klamm.storage.log.leader_epoch_cache import EpochEntry, LeaderEpochCache
from klamm.storage.log.log_config import LogConfig
from klamm.storage.log.log_loader import LoadedLog
from klamm.storage.log.log_reader import FetchedRecords, LogReader
from klamm.storage.log.log_validator import demands_on, validate_and_assign_offsets
from klamm.storage.log.producer_state import AppendOrigin, BatchMetadata, ProducerState
from klamm.storage.log.retention import breaches
from klamm.storage.log.swap import begin_swap, end_swap
from klamm.storage.log.timestamp_lookup import Found
from klamm.storage.log.truncation import Truncation, prepare, take_at_once
from klamm.storage.log.written_ahead import WrittenAhead, header_of_large
from klamm.storage.segments.checkpoints import LEADER_EPOCH_CHECKPOINT, format_leader_epoch_checkpoint
from klamm.storage.segments.disk_errors import SHORTAGES
from klamm.storage.segments.log_directory import PARTITION_METADATA_FILE, LogDirectory, format_partition_metadata
from klamm.storage.segments.log_segments import LogSegments
from klamm.storage.segments.open_files import OpenFiles
from klamm.storage.segments.segment import LogSegment
from klamm.storage.segments.unsynced_files import replace_unsynced

__all__ = ["AppendInfo", "AppendOrigin", "FetchedRecords", "Log", "LogHost", "Oddity"]

_LOGGER = logging.getLogger(__name__)

# While more inactive segments than these wait for a flush, appends should wait: a client can begin segments faster than
# a disk can sync their files, and each unflushed segment takes memory.
MAX_UNFLUSHED_SEGMENTS = 64
# The files of this many segments are closed in one slice.
SEGMENTS_PER_SLICE = 50
# Deleting a segment renames its files, in some hundred microseconds.
DELETED_PER_SLICE = 20


class Oddity(Enum):
    """What is unusual about an append."""

    DUPLICATE = "nothing was appended"
    CONVERTED = "the records were compressed anew"


class AppendInfo(NamedTuple):
    """The result of an append. A duplicate has the offsets of the batch that it repeats."""

    first_offset: int
    last_offset: int
    max_timestamp: int
    log_append_time_ms: int  # -1 unless message.timestamp.type=LogAppendTime
    log_start_offset: int
    oddity: Oddity | None
    size_bytes: int  # in the log


class LogHost(Protocol):
    """Later work that a log leaves to its manager, and the counts of all logs together."""

    flush_times_ms: Histogram

    def log_rolled(self, log: "Log") -> None:
        """A segment has become inactive; it should be flushed."""

    def segment_begun(self, log: "Log") -> None:
        """The active segment is new and empty: `preallocate` should be called if the topic's `preallocate` is set."""

    def log_truncated(self, log: "Log") -> None:
        """The recovery point may have gone back: checkpoint it, then flush, so that the next append need not wait."""

    def log_start_moved(self, log: "Log") -> None:
        """The log start offset is within a segment: checkpoint it, then set `checkpointed_start_offset`."""

    def delete_later(self, log: "Log", paths: Sequence[str]) -> None:
        """Deletes these files after file.delete.delay.ms."""


class Log:
    """Made by the log manager from what `log_loader.load_log` found.

    Unless they say otherwise, methods that touch the disk raise KafkaError(KAFKA_STORAGE_ERROR).
    """

    # Attributes of the class, because few logs need their own: one more attribute costs each log 700 bytes.
    # Why the sync before the next append failed. That append fails, too, instead of trying again on the loop.
    _unsynced_because: KafkaError | None = None
    # The segment that is being preallocated, and the event that its preallocation has ended.
    _preallocating: LogSegment | None = None
    _preallocated: asyncio.Event | None = None
    _ahead: WrittenAhead | None = None

    def __init__(
        self,
        environment: Environment,
        log_directory: LogDirectory,
        topic: str,
        partition: int,
        config: LogConfig,
        loaded: LoadedLog,
        host: LogHost,
        open_files: OpenFiles | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.directory = loaded.directory
        self.log_directory = log_directory
        self.topic_id = loaded.topic_id
        self.config = config
        # The offset up to which the log was compacted; None if it never was.
        self.first_dirty_offset: int | None = None
        self._environment = environment
        self._file_system = environment.file_system
        self._host = host
        self._open_files = open_files
        self._segments = loaded.segments
        for segment in self._segments:
            segment.open_log_files = open_files
        self.snapshots = loaded.snapshots
        self._producer_state = loaded.producer_state
        self._log_start_offset = loaded.log_start_offset
        # This log's entry in log-start-offset-checkpoint.
        self.checkpointed_start_offset = loaded.log_start_offset
        self._log_end_offset = loaded.log_end_offset
        self._high_watermark = loaded.log_start_offset
        self._is_closed = False
        # Whether `prepare_append` should come before the next append.
        self.must_prepare = False
        # Shows a cleaning whether its records are still those of the log.
        self.truncations = 0
        self._reader = LogReader(environment, self)
        self.durability = Durability(
            environment,
            self,
            loaded.unsynced,
            host.flush_times_ms,
            recovery_point=loaded.recovery_point,
            is_clean=loaded.is_clean,
        )
        self.leader_epochs = LeaderEpochCache(loaded.leader_epochs, self._write_leader_epochs)
        self._update_must_prepare()

    def __repr__(self) -> str:
        return f"<Log {self.name} [{self._log_start_offset}, {self._log_end_offset})>"

    # -- offsets --------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def log_start_offset(self) -> int:
        """The first offset that may be read."""
        return self._log_start_offset

    @property
    def durable_log_start_offset(self) -> int:
        """The log start offset that a restart would find: below `log_start_offset` until that is checkpointed."""
        if self._log_start_offset <= self.checkpointed_start_offset:
            return self._log_start_offset
        return min(self._log_start_offset, max(self._segments.first.base_offset, self.checkpointed_start_offset))

    @property
    def needs_start_checkpoint(self) -> bool:
        """Whether a restart needs the checkpoint to find the log start offset: the offset is within a segment, or a
        machine crash could bring older segments back."""
        return self._log_start_offset > self._segments.first.base_offset or (
            self._log_start_offset > 0 and self.directory in self.durability.unsynced
        )

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self._log_end_offset

    @property
    def high_watermark(self) -> int:
        """The offset below which every record is on all in-sync replicas."""
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The offset below which every transaction is decided; never above the high watermark."""
        first_unstable = self._producer_state.first_unstable_offset
        if first_unstable is None or first_unstable >= self._high_watermark:
            return self._high_watermark
        return max(first_unstable, self._log_start_offset)

    @property
    def size_bytes(self) -> int:
        return self._segments.size_bytes

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def recovery_point(self) -> int:
        """The offset below which every record is on the disk."""
        return self.durability.recovery_point

    @property
    def segments(self) -> LogSegments:
        """All segments, from the oldest on; the last is the active one. Read only."""
        return self._segments

    @property
    def generation(self) -> int:
        """A number that changes with each truncation, swap or move: earlier reads are then void."""
        return self._reader.generation

    @property
    def producer_state(self) -> ProducerState:
        """The state of this partition's idempotent and transactional producers. Read only."""
        return self._producer_state

    def directory_renamed(self, directory: str) -> None:
        """The directory has the path `directory` now. Pending reads begin anew, and pending syncs do not count."""
        self.durability.unsynced.directory_renamed(self.directory, directory)
        self.snapshots.directory_renamed(directory)
        for segment in self._segments:
            segment.directory_renamed(directory)
        self.directory = directory
        self._reader.invalidate()

    def take_place_of(self, other: "Log") -> None:
        """Takes over the state of `other`, a log with the same records, that the records do not have: the topic id,
        leader epochs without records, the log start offset, the high watermark and the first dirty offset. Until the
        next sync, the log directory of `other` counts as unsynced.

        Raises KafkaError(KAFKA_STORAGE_ERROR); the changes made before the error do no harm.
        """
        if other.topic_id is not None:
            self.assign_topic_id(other.topic_id)
        for epoch, start_offset in list(other.leader_epochs.entries):
            if epoch > self.leader_epochs.latest_epoch:
                self.leader_epochs.assign(epoch, start_offset)
        self.update_high_watermark(other.high_watermark)
        self.update_log_start_offset(other.log_start_offset)
        self.first_dirty_offset = other.first_dirty_offset
        self.durability.unsynced.mark(other.log_directory.path)

    def update_high_watermark(self, offset: int) -> int:
        """Moves the high watermark to `offset`, or as near as the log allows. Returns the high watermark."""
        self._high_watermark = max(self._log_start_offset, min(offset, self._log_end_offset))
        self._producer_state.high_watermark_updated(self._high_watermark)
        return self._high_watermark

    def update_log_start_offset(self, offset: int) -> bool:
        """Moves the log start offset forward. Returns whether it moved. Older segments are deleted later.

        Raises KafkaError(OFFSET_OUT_OF_RANGE) above the high watermark.
        """
        if offset > self._high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"log start offset {offset} of {self.name} would be above the high watermark {self._high_watermark}",
            )
        if offset <= self._log_start_offset:
            return False
        self.check_usable()
        self._move_start(offset)
        self._host.log_start_moved(self)
        return True

    def _move_start(self, offset: int) -> None:
        try:
            self.leader_epochs.truncate_from_start(offset)
        except KafkaError:
            # On a full disk the epochs stay as they are, and the next start corrects them. Deletions must continue.
            self.check_usable()
        self._log_start_offset = offset
        self.durability.start_moved(offset)

    def assign_topic_id(self, topic_id: UUID) -> None:
        """Adopts the topic's id if the log has no id. Raises KafkaError(INCONSISTENT_TOPIC_ID)."""
        if self.topic_id == topic_id:
            return
        if self.topic_id is not None:
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID, f"the log of {self.name} is of topic {self.topic_id}, not {topic_id}"
            )
        path = f"{self.directory}/{PARTITION_METADATA_FILE}"
        try:
            replace_unsynced(self._file_system, path, format_partition_metadata(topic_id), self.durability.unsynced)
        except OSError as error:
            raise self.storage_error(error, "writing partition.metadata") from error
        self.topic_id = topic_id

    # -- append ---------------------------------------------------------------------------------------------------

    def append_as_leader(
        self,
        records: bytearray | memoryview,
        leader_epoch: int,
        *,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        now_ms: int,
        inspected: Inspected | None = None,
    ) -> AppendInfo:
        """Appends one batch. Writes its offsets and its leader epoch into `records`.

        A batch whose compression differs from compression.type is compressed anew first.

        Raises KafkaError: the errors of `validate_and_assign_offsets`, and KAFKA_STORAGE_ERROR. Raises LargeBatch for a
        batch that a worker must inspect. A second call with the worker's result appends the batch, and checks it again,
        because the log may have changed meanwhile.
        """
        self.check_usable()
        batch = validate_and_assign_offsets(records, self, leader_epoch, origin, now_ms, inspected)
        if isinstance(batch, BatchMetadata):
            return self._duplicate(batch)
        records, header, marker, is_converted = batch
        self._append(records, (Batch(0, header, marker),), now_ms)
        return AppendInfo(
            header.base_offset,
            self._log_end_offset - 1,
            header.max_timestamp,
            now_ms if self.config.uses_log_append_time else -1,
            self._log_start_offset,
            Oddity.CONVERTED if is_converted else None,
            len(records),
        )

    def append_as_follower(self, records: Buffer) -> AppendInfo:
        """Appends the first whole batches of the leader's records, with their offsets. A part of a batch may follow
        them.

        `size_bytes` of the result says how much was appended: a short step, in one segment. Further appends take the
        rest, and each may have to be prepared (`must_prepare`). If `size_bytes` is 0, there is no whole batch.

        Raises KafkaError: CORRUPT_MESSAGE; OFFSET_OUT_OF_RANGE when the records do not follow the log's end.
        """
        self.check_usable()
        batches = check_batches(records, self._log_end_offset, self.name)
        if not batches:
            end = self._log_end_offset
            return AppendInfo(end, end - 1, NO_TIMESTAMP, -1, self._log_start_offset, None, 0)
        appended = first_segment(batches, self._segments.active, self.config.max_segment_bytes)
        last = appended[-1]
        end = last.position + last.header.size_bytes
        whole = records if end == len(records) else memoryview(records)[:end]
        self._append(whole, appended, self._environment.now_ms())
        return AppendInfo(
            appended[0].header.base_offset,
            appended[-1].header.last_offset,
            max(batch.header.max_timestamp for batch in appended),
            -1,
            self._log_start_offset,
            None,
            end,
        )

    def _duplicate(self, batch: BatchMetadata) -> AppendInfo:
        log_append_time_ms = batch.timestamp_ms if self.config.uses_log_append_time else -1
        return AppendInfo(
            batch.first_offset,
            batch.last_offset,
            batch.timestamp_ms,
            log_append_time_ms,
            self._log_start_offset,
            Oddity.DUPLICATE,
            0,
        )

    def _append(self, records: Buffer, batches: Sequence[Batch], now_ms: int) -> None:
        if self.durability.is_truncation_unsynced:
            failed = self._unsynced_because
            if failed is not None:
                self._unsynced_because = None
                raise failed
            self.durability.flush_now(now_ms, may_be_repeated=True)
        first, last = batches[0].header, batches[-1].header
        newest = first
        for batch in batches:
            header = batch.header
            if header.max_timestamp > newest.max_timestamp:
                newest = header
            if header.partition_leader_epoch != self.leader_epochs.latest_epoch and header.partition_leader_epoch >= 0:
                self.leader_epochs.assign(header.partition_leader_epoch, header.base_offset)
        spare: File | None = None
        last_offset = last.last_offset
        try:
            if self.durability.is_sync_due(last_offset + 1):
                # A sync opens one file after another. After the append it must not fail for lack of a descriptor: the
                # records would be in the log and count as replicated.
                spare = self._file_system.open(self._segments.active.path)
            segment = self._segment_for(len(records), first.base_offset, last_offset, newest.max_timestamp, now_ms)
            is_written = self._ahead is not None and self._end_ahead(records, segment)
            newest_offset = last_offset if newest is last else newest.last_offset
            segment.append(records, last_offset, newest.max_timestamp, newest_offset, is_written=is_written)
            self._log_end_offset = last_offset + 1
            self._update_producer_state(segment, batches)
        except OSError as error:
            raise self.storage_error(error, "appending") from error
        finally:
            if spare is not None:
                spare.close()
        if spare is not None:
            self.durability.flush_now(now_ms)

    def _update_producer_state(self, segment: LogSegment, batches: Sequence[Batch]) -> None:
        ended = []
        for batch in batches:
            completed = self._producer_state.update(batch.header, batch.marker)
            if completed is not None:
                ended.append(completed)
        if ended:
            segment.transaction_index.note(ended)

    # -- before an append -----------------------------------------------------------------------------------------

    async def prepare_append(self) -> None:
        """Prepares the next append, which would otherwise hold the loop or come too early (`must_prepare`): syncs after
        a truncation, or if segments were begun too fast; reads large indexes; waits for the append of a batch that is
        being written ahead. If the sync after a truncation fails, the next append raises the error."""
        while self._ahead is not None:
            await self._ahead.ended.wait()
        try:
            if self._is_flush_due():
                await self.durability.flush(self._is_flush_due)
            await self._reader.load_large_indexes(self._segments.active)
        except KafkaError as error:
            if self.durability.is_truncation_unsynced:
                self._unsynced_because = error
        self._update_must_prepare()

    def _is_flush_due(self) -> bool:
        unflushed = self._segments.count_from(self.recovery_point) - 1
        return self.durability.is_truncation_unsynced or unflushed > MAX_UNFLUSHED_SEGMENTS

    def _update_must_prepare(self) -> None:
        self.must_prepare = self._ahead is not None or self._is_flush_due() or self._segments.active.is_slow_to_load

    @asynccontextmanager
    async def writing_ahead(
        self, records: Buffer, origin: AppendOrigin, inspected: Inspected | None = None
    ) -> AsyncIterator[None]:
        """Writes a large batch in pieces, so that its append is a short step (`written_ahead.py`). The append should
        follow inside this context with the same objects. Writes nothing if `records` are not one large batch, or must
        be inspected first.

        Raises KafkaError(KAFKA_STORAGE_ERROR).
        """
        if inspected is not None and inspected.found.batch is not None:
            records = inspected.found.batch
        now_ms, config = self._environment.now_ms(), self.config
        most = config.segment_bytes
        if origin is AppendOrigin.CLIENT:
            most = min(most, config.max_message_bytes)  # The append refuses larger batches.
        header = header_of_large(records, most)
        if header is None or (inspected is None and demands_on(header, config, origin, now_ms) is not None):
            yield
            return
        while self._ahead is not None:
            await self._ahead.ended.wait()
        self.check_usable()
        header = header._replace(base_offset=self._log_end_offset)
        try:
            segment = self._segment_for(
                len(records), header.base_offset, header.last_offset, header.max_timestamp, now_ms
            )
            ahead = self._ahead = WrittenAhead(segment, records)
        except OSError as error:
            raise self.storage_error(error, "appending") from error
        self.must_prepare = True
        try:
            try:
                await ahead.write()
            except OSError as error:
                raise self.storage_error(error, "appending") from error
            yield
        finally:  # Even if the task is cancelled, because other appends wait for this.
            if self._ahead is ahead:
                self._drop_ahead()

    def _end_ahead(self, records: Buffer, segment: LogSegment) -> bool:
        """Whether `records` are written ahead in `segment`. If not, throws away the bytes that are written ahead."""
        assert self._ahead is not None
        ahead, self._ahead = self._ahead, None
        self._update_must_prepare()
        is_kept = ahead.holds(records, segment)
        ahead.end(is_kept=is_kept)
        return is_kept

    def _drop_ahead(self) -> None:
        if self._ahead is not None:
            try:
                self._end_ahead(b"", self._segments.active)
            except OSError as error:
                # A client has chosen these bytes. A later append before them could turn them into batches.
                raise self.log_directory.fail(error, f"cutting {self.name}") from error

    def _segment_for(
        self, size_bytes: int, base_offset: int, last_offset: int, max_timestamp: int, now_ms: int
    ) -> LogSegment:
        active = self._segments.active
        if active.should_roll(
            size_bytes,
            last_offset,
            max_timestamp,
            now_ms,
            segment_bytes=self.config.max_segment_bytes,
            segment_ms=self.config.max_segment_ms,
            segment_index_bytes=self.config.segment_index_bytes,
        ):
            return self._roll(base_offset, now_ms)
        return active

    # -- segments -------------------------------------------------------------------------------------------------

    def roll(self) -> None:
        """Begins a new segment, unless the active segment is empty."""
        self.check_usable()
        self._drop_ahead()
        try:
            self._roll(self._log_end_offset, self._environment.now_ms())
        except OSError as error:
            raise self.storage_error(error, "rolling") from error

    def _roll(self, base_offset: int, now_ms: int) -> LogSegment:
        active = self._segments.active
        if active.base_offset == base_offset:
            return active
        segment = self.new_segment(base_offset, now_ms)
        segment.create_files()
        if active is not self._preallocating:
            active.trim()
        active.become_inactive()
        self._producer_state.end_offset = base_offset
        self.snapshots.take_soon(self._producer_state)
        self._segments.add(segment)
        self._update_must_prepare()
        self._host.log_rolled(self)
        self._host.segment_begun(self)
        # Truncations and a clean stop leave snapshots that belong to no segment.
        self.snapshots.drop_stray(self._segments.has_base)
        return segment

    async def write_large_snapshot(self) -> None:
        """Writes the producer snapshot that waits for a flush, if there is one. Raises OSError."""
        truncations = self.truncations
        is_wanted = lambda: not self._is_closed and self.truncations == truncations  # noqa: E731  # short
        if await self.snapshots.write_pending(self._environment, is_wanted):
            self.snapshots.drop_stray(self._segments.has_base)

    def write_small_snapshot(self) -> None:
        """Writes a producer snapshot, unless it is large. Raises OSError."""
        if not self._producer_state.is_large:
            self.snapshots.take_if_room(self._producer_state)

    @property
    def preallocating(self) -> LogSegment | None:
        """The segment that is being preallocated. The recovery point stays before it."""
        return self._preallocating

    async def preallocation_ended(self) -> None:
        if self._preallocated is not None:
            await self._preallocated.wait()

    async def preallocate(self) -> None:
        """Reserves the disk space of a whole segment (segment.bytes) for the active segment, off the loop.

        Appends also work without preallocation, so a failure is only logged. A segment that becomes inactive meanwhile
        is trimmed afterwards; until then a crash would cause its recovery.
        """
        segment = self._segments.active
        if self._is_closed or self._preallocating is not None or segment.is_preallocated:
            return
        try:
            file = segment.pin()
        except OSError as error:
            # A log that was not loaded completely may have been abandoned.
            _LOGGER.warning("%s is not preallocated: %s", segment.path, error)
            return
        self._preallocating = segment
        self._preallocated = asyncio.Event()
        segment.is_preallocated = True
        has_failed = False
        try:
            await self._environment.run_long(file.allocate, self.config.segment_bytes)
        except OSError as error:
            has_failed = True
            _LOGGER.warning("%s is not preallocated: %s", segment.path, error)
        finally:
            self._preallocating = None
        try:
            if not segment.is_gone and (has_failed or segment is not self._segments.active):
                self._drop_ahead()
                segment.trim()
        except OSError as error:
            raise self.storage_error(error, "trimming") from error
        finally:
            segment.unpin()
            self._preallocated.set()
            self._preallocated = None

    def new_segment(self, base_offset: int, created_ms: int | None = None, *, suffix: str = "") -> LogSegment:
        """A segment that is not in the log yet. Its files need not exist. Without `created_ms` it is created now."""
        jitter_ms = min(self.config.segment_jitter_ms, self.config.segment_ms)
        segment = LogSegment(
            self._file_system,
            self.directory,
            base_offset,
            self.durability.unsynced,
            index_interval_bytes=self.config.index_interval_bytes,
            roll_jitter_ms=self._environment.random.randrange(jitter_ms) if jitter_ms > 0 else 0,
            created_ms=self._environment.now_ms() if created_ms is None else created_ms,
            suffix=suffix,
        )
        segment.open_log_files = self._open_files
        return segment

    def _remove_segments(self, segments: Sequence[LogSegment]) -> None:
        paths = []
        for segment in segments:
            self._segments.remove(segment)
            paths += segment.mark_deleted()
        self._reader.forget_segments()
        if paths:
            self._host.delete_later(self, paths)

    def _remove_snapshots(self, segments: Sequence[LogSegment]) -> None:
        """Removes the snapshots at the base offsets of these segments."""
        paths = []
        for segment in segments:
            paths += self.snapshots.mark_deleted(segment.base_offset)
        if paths:
            self._host.delete_later(self, paths)

    def delete_old_segments(self, now_ms: int) -> int:
        """Deletes some of the oldest segments that breach retention (`retention.breaches`). Returns how many. The
        caller repeats the call until it returns 0."""
        self.check_usable()
        count = 0
        try:
            for breach in breaches(self, now_ms, DELETED_PER_SLICE):
                for line in breach.lines:
                    _LOGGER.info("[Log partition=%s, dir=%s] %s", self.name, self.log_directory.path, line)
                self._delete(breach.segments, now_ms)
                count += len(breach.segments)
                if count >= DELETED_PER_SLICE:
                    break
        except OSError as error:
            raise self.storage_error(error, "deleting old segments") from error
        return count

    def _delete(self, oldest: Sequence[LogSegment], now_ms: int) -> None:
        if len(oldest) == len(self._segments):
            self._drop_ahead()
            self._roll(self._log_end_offset, now_ms)
        # The epochs are written first: if the disk then fails, the segments still exist.
        self._move_start(max(self._log_start_offset, self._segments.following_base(oldest[-1])))
        self._remove_segments(oldest)
        self._remove_snapshots(oldest)

    def replace_segments(self, new: LogSegment, old: Sequence[LogSegment]) -> None:
        """Replaces the segments that a cleaned segment was made from (`swap.py`). Raises OSError; then only the next
        start can finish the swap."""
        begin_swap(self._file_system, self.directory, new.base_offset)
        # Pending reads begin anew: the end of an old segment may no longer be the beginning of the next segment.
        self._reader.invalidate()
        self._remove_segments(old)
        end_swap(self._file_system, self.directory, new.base_offset)
        new.swapped_in()
        self._segments.add(new)
        self._remove_snapshots(old[1:])

    def discard(self, segment: LogSegment) -> None:
        """Deletes the files of a segment that is not in the log, after file.delete.delay.ms. Raises OSError."""
        self._host.delete_later(self, segment.mark_deleted())

    # -- truncation -----------------------------------------------------------------------------------------------

    def truncation_step(self, offset: int) -> int | None:
        """The offset to truncate to first, on the way to `offset` (-1: everything), so that each truncation is a short
        step. Some of the newest segments go at a time. None once few segments are left to remove."""
        if self._segments.count_from(offset) - 1 <= DELETED_PER_SLICE:
            return None
        return self._segments.base_offsets[-1 - DELETED_PER_SLICE]

    def prepare_truncation(self, offset: int) -> Coroutine[Any, Any, Truncation | None]:
        """Does the long part of `truncate_to(offset)` off the loop (`truncation.prepare`)."""
        return prepare(self._environment, self, offset)

    def truncate_to(self, offset: int, prepared: Truncation | None = None) -> bool:
        """Removes all records from `offset` on. Returns whether there was a record to remove.

        When `offset` lies within a batch, the whole batch is removed, and the log ends at the batch's base offset. The
        next append waits for the disk, unless a `flush` comes first. `prepared` saves the loop a walk through the log,
        unless the log has changed since.
        """
        self.check_usable()
        if offset >= self._log_end_offset:
            # A leader epoch without records may begin at the log's end.
            self.leader_epochs.truncate_from_end(self._log_end_offset)
            return False
        if offset < self._segments.first.base_offset:
            self.truncate_fully_and_start_at(offset)
            return True
        self._drop_ahead()
        _LOGGER.info("Truncating %s to offset %d", self.name, offset)
        try:
            truncation = take_at_once(self._file_system, self, offset, prepared)
            truncation.segment.open_files()
        except OSError as error:
            raise self.storage_error(error, "truncating") from error
        end = truncation.end_offset
        self.truncations += 1
        self._reader.invalidate()
        try:
            self._remove_newest_first([segment for segment in self._segments if segment.base_offset > offset])
            truncation.segment.cut(truncation.position, end, truncation.largest_timestamp)
            self._truncated(min(end, self._log_start_offset), end, truncation.producer_state)
        except OSError as error:
            # A half-done truncation cannot be undone, so even a full disk takes the directory offline.
            raise self.log_directory.fail(error, f"truncating {self.name}") from error
        # If this write fails, the epochs of removed records stay known until the next truncation or append.
        self.leader_epochs.truncate_from_end(end)
        return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Removes all records. The next record gets `offset`."""
        self.check_usable()
        self._drop_ahead()
        try:
            # Opened first: closing it later frees the one descriptor that the new segment needs at a time.
            self._segments.active.file()
        except OSError as error:
            if error.errno in SHORTAGES:
                raise self.storage_error(error, "truncating") from error
        _LOGGER.info("Truncating %s fully, to start at offset %d", self.name, offset)
        self.truncations += 1
        self._reader.invalidate()
        try:
            self._remove_newest_first(list(self._segments))
            segment = self.new_segment(offset)
            segment.create_files()
            self._segments.add(segment)
            self.snapshots.delete_after(-1)
            self._truncated(offset, offset, ProducerState(offset))
        except OSError as error:
            raise self.log_directory.fail(error, f"truncating {self.name}") from error
        self.leader_epochs.clear()
        self._host.segment_begun(self)

    def _truncated(self, start: int, end: int, producer_state: ProducerState) -> None:
        self._log_start_offset = start
        self.checkpointed_start_offset = min(self.checkpointed_start_offset, start)
        self._log_end_offset = end
        self.durability.truncated(end)
        if self.first_dirty_offset is not None:
            self.first_dirty_offset = min(self.first_dirty_offset, self._segments.active.base_offset)
        self.must_prepare = True
        self.snapshots.delete_after(end)
        self._producer_state = producer_state
        if not producer_state.is_empty:
            self.snapshots.take_soon(self._producer_state)
        self.update_high_watermark(min(self._high_watermark, end))
        self._host.log_truncated(self)

    def _remove_newest_first(self, segments: Sequence[LogSegment]) -> None:
        """Removes the newest segment first, so that a process killed meanwhile leaves no hole in the log."""
        self._remove_segments(segments[::-1])

    # -- read -----------------------------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, *, max_offset: int, minimum_one_batch: bool
    ) -> Coroutine[Any, Any, FetchedRecords]:
        """See `LogReader.read`."""
        return self._reader.read(offset, max_bytes, max_offset, minimum_one_batch=minimum_one_batch)

    def readable_bytes(self, offset: int, max_offset: int) -> int:
        """See `LogReader.readable_bytes`."""
        return self._reader.readable_bytes(offset, max_offset)

    def aborted_transactions(
        self, fetch_offset: int, upper_offset: int, most: int | None = None
    ) -> Steps[list[tuple[int, int]] | None]:
        """See `LogReader.aborted_transactions`."""
        return self._reader.aborted_transactions(fetch_offset, upper_offset, most)

    def offset_for_timestamp(self, timestamp_ms: int) -> Coroutine[Any, Any, Found | None]:
        """See `LogReader.offset_for_timestamp`."""
        return self._reader.offset_for_timestamp(timestamp_ms)

    # -- life -----------------------------------------------------------------------------------------------------

    def flush(self) -> Coroutine[Any, Any, None]:
        """See `Durability.flush`."""
        return self.durability.flush()

    def synced(self) -> None:
        """The recovery point may have moved."""
        self._update_must_prepare()

    async def release_unused(self) -> None:
        """Frees memory and file handles of segments that were not used since the last call."""
        try:
            async for segment in each(self._segments, SEGMENTS_PER_SLICE):
                if self._is_closed or not self.log_directory.is_online:
                    return
                if segment.was_used:
                    segment.was_used = False
                elif not segment.is_gone:
                    segment.release()
            self._update_must_prepare()
        except OSError as error:
            raise self.storage_error(error, "closing idle files") from error

    async def remove_expired_producers(self, now_ms: int, expiration_ms: int) -> None:
        """Forgets producers that have been idle for `expiration_ms` (transactional.id.expiration.ms)."""
        # A truncation meanwhile replaces the producer state.
        await in_slices(self._producer_state.remove_expired(now_ms, expiration_ms))

    async def close(self) -> None:
        """Writes the producer snapshot, syncs everything and closes all files. Idempotent."""
        if self._is_closed:
            return
        self.check_usable()
        self._drop_ahead()
        self._is_closed = True
        self._reader.invalidate()
        try:
            state = self._producer_state
            if state.is_large and state.end_offset > self.snapshots.latest_offset:
                steps = state.begin_snapshot()
                await self.snapshots.take_in_steps(steps, state.end_offset, self._environment, lambda: True)
            else:
                self.snapshots.take(state)
            async for segment in each(self._segments, SEGMENTS_PER_SLICE):
                segment.close()
        except OSError as error:
            raise self.storage_error(error, "closing") from error
        await self.durability.sync(self._log_end_offset, self.generation)

    def abandon(self) -> None:
        """Ends all use of the log, because it is deleted or its disk has failed. Nothing more is written. The steps of
        `close_abandoned` should follow. Idempotent."""
        self._is_closed = True
        self.durability.abandon()
        self._reader.invalidate()
        if self._ahead is not None:
            self._ahead.end(is_kept=True)
            self._ahead = None

    def close_abandoned(self) -> Steps[None]:
        """Closes all files."""
        closed = Slices(SEGMENTS_PER_SLICE)
        for segment in list(self._segments):
            segment.is_gone = True
            segment.close_handles()
            if closed.spend():
                yield

    # -- common ---------------------------------------------------------------------------------------------------

    def check_usable(self) -> None:
        if self._is_closed or self.log_directory.failure is not None:
            self.log_directory.check_online()
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log of {self.name} is closed")

    def storage_error(self, error: OSError, action: str) -> KafkaError:
        return self.log_directory.storage_error(error, f"{action} {self.name}")

    def _write_leader_epochs(self, entries: Sequence[EpochEntry]) -> None:
        path = f"{self.directory}/{LEADER_EPOCH_CHECKPOINT}"
        try:
            replace_unsynced(self._file_system, path, format_leader_epoch_checkpoint(entries), self.durability.unsynced)
        except OSError as error:
            raise self.storage_error(error, "writing leader epochs of") from error
