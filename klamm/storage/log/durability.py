"""Which part of a log is on the disk: its syncs, and the recovery point that follows them.

What must stay true:
- Everything below the recovery point is on the disk, not only in the kernel: it moves only after a sync, and only if
  the log is still the one that was synced (`Log.generation`).
- A sync covers the writes before it began; later writes stay unsynced (`unsynced_files.py`).
- A failed sync is never tried again, because the kernel's copy is in an unknown state. The exception is a file that
  could not be opened.

Source: kafka.log.Log (flush).
"""

from collections.abc import Callable
from typing import Protocol

from klamm.base.environment import Environment
from klamm.base.metrics import Histogram
from klamm.base.slices import each
from klamm.protocol.error_codes import KafkaError
from klamm.storage.log.log_view import LogView
from klamm.storage.log.shared_flush import SharedFlush
from klamm.storage.segments.disk_errors import NO_DESCRIPTORS, PASSING
from klamm.storage.segments.segment import LogSegment
from klamm.storage.segments.unsynced_files import UnsyncedFiles, sync

# Index entries of this many segments are written in one slice.
SEGMENTS_PER_SLICE = 50


class SyncedLog(LogView, Protocol):
    """A log, as this module needs it."""

    @property
    def preallocating(self) -> LogSegment | None:
        """The segment that is being preallocated. The recovery point stays before it."""

    async def preallocation_ended(self) -> None: ...

    async def write_large_snapshot(self) -> None:
        """Writes the producer snapshot that waits for a flush, if there is one. Raises OSError."""

    def write_small_snapshot(self) -> None:
        """Writes a producer snapshot, unless it is large. Raises OSError."""

    def synced(self) -> None:
        """The recovery point may have moved."""


class Durability:
    """All methods that touch the disk raise KafkaError(KAFKA_STORAGE_ERROR)."""

    __slots__ = (
        "_environment",
        "_flush_times_ms",
        "_flushes",
        "_is_abandoned",
        "_log",
        "is_truncation_unsynced",
        "last_flush_ms",
        "recovery_point",
        "syncs_on_loop",
        "unsynced",
    )

    def __init__(
        self,
        environment: Environment,
        log: SyncedLog,
        unsynced: UnsyncedFiles,
        flush_times_ms: Histogram,
        *,
        recovery_point: int,
        is_clean: bool,
    ) -> None:
        self._environment = environment
        self._log = log
        self._flush_times_ms = flush_times_ms
        self._flushes: SharedFlush | None = None
        self._is_abandoned = False
        self.unsynced = unsynced
        self.recovery_point = recovery_point
        self.last_flush_ms = environment.now_ms()
        # How many times the loop has waited for the disk.
        self.syncs_on_loop = 0
        # Whether a truncation may not be durable, perhaps one by a killed process. If a machine crash undid it below
        # newer records, the log would mix two histories, and recovery could not detect that.
        self.is_truncation_unsynced = not is_clean

    @property
    def has_unflushed(self) -> bool:
        """Whether a machine crash would lose records."""
        return self.recovery_point < self._log.log_end_offset

    def is_sync_due(self, end_offset: int) -> bool:
        """Whether flush.messages demands a sync when the log ends at `end_offset`."""
        return end_offset - self.recovery_point >= self._log.config.flush_messages

    def would_sync(self, records: int) -> bool:
        """Whether an append of `records` records would wait for a sync of the log."""
        return self.is_truncation_unsynced or self.is_sync_due(self._log.log_end_offset + records)

    def truncated(self, end_offset: int) -> None:
        """The log ends at `end_offset` now."""
        self.recovery_point = min(self.recovery_point, end_offset)
        self.is_truncation_unsynced = True

    def start_moved(self, log_start_offset: int) -> None:
        self.recovery_point = max(self.recovery_point, log_start_offset)

    def abandon(self) -> None:
        """The files are gone, or their disk has failed: pending syncs end without an error."""
        self._is_abandoned = True

    # -- beside the loop ------------------------------------------------------------------------------------------

    async def flush(self, is_needed: Callable[[], bool] | None = None) -> None:
        """Syncs all records appended before this call, and moves the recovery point to their end, or further. With
        `is_needed`, no flush begins if none is needed once the present flush has ended."""
        if self._flushes is None:
            self._flushes = SharedFlush()
        await self._flushes.join(self._flush, is_needed)

    async def _flush(self) -> None:
        log = self._log
        await log.preallocation_ended()  # Until then the recovery point stays before that segment.
        log.check_usable()
        # Records appended while the index entries are written have entries that may not be written yet.
        end, generation = log.log_end_offset, log.generation
        try:
            await log.write_large_snapshot()
            async for segment in each(log.segments.starting_with(self.recovery_point), SEGMENTS_PER_SLICE):
                if self._is_abandoned:
                    return
                if not segment.is_gone:
                    segment.write_pending()
        except OSError as error:
            if self._is_abandoned:
                return
            raise log.storage_error(error, "flushing") from error
        await self.sync(end, generation)

    async def sync(self, end: int, generation: int) -> None:
        """Syncs, and moves the recovery point to `end` unless the log has been truncated since `generation`."""
        now_ms = self._environment.now_ms()
        pending = self.unsynced.pending()
        started_s = self._environment.work_clock_s()
        try:
            file_system = self._environment.file_system
            missing = await self._environment.run_long(sync, file_system, pending) if pending else []
            if self._is_abandoned:
                return
            self.unsynced.settle(pending, missing)
        except OSError as error:
            if self._is_abandoned:
                return
            raise self._sync_error(error) from error
        self._flush_times_ms.update(1000 * (self._environment.work_clock_s() - started_s))
        if generation == self._log.generation:
            self._flushed(end, now_ms)

    def begin_shared_sync(self) -> Callable[[], None]:
        """Writes index entries and snapshots that are only in memory. Call the returned function once the file system's
        present writes have been synced; a later `flush` or `close` then syncs only later writes.
        """
        self._log.check_usable()
        try:
            self._log.write_small_snapshot()
            for segment in self._log.segments.starting_with(self.recovery_point):
                segment.write_all()
        except OSError as error:
            raise self._log.storage_error(error, "flushing") from error
        pending = self.unsynced.pending()

        def synced() -> None:
            if not self._is_abandoned:
                self.unsynced.settle(pending, [])

        return synced

    # -- on the loop ----------------------------------------------------------------------------------------------

    def flush_now(self, now_ms: int, *, may_be_repeated: bool = False) -> None:
        """Like `flush`, but blocks the loop. Unless `may_be_repeated`, every sync error is final.

        If there is no space for index entries, the records become durable but the recovery point stays: a recovery
        would rebuild the indexes.
        """
        end = self._log.log_end_offset
        try:
            for segment in self._log.segments.starting_with(self.recovery_point):
                segment.write_pending()
        except OSError as error:
            if error.errno not in PASSING:
                raise self._log.storage_error(error, "flushing") from error
            end = self.recovery_point
        self.syncs_on_loop += 1
        pending = self.unsynced.pending()
        started_s = self._environment.work_clock_s()
        try:
            self.unsynced.settle(pending, sync(self._environment.file_system, pending))
        except OSError as error:
            raise (self._sync_error(error) if may_be_repeated else self._failed(error)) from error
        self._flush_times_ms.update(1000 * (self._environment.work_clock_s() - started_s))
        self._flushed(end, now_ms)

    def _sync_error(self, error: OSError) -> KafkaError:
        if error.errno in NO_DESCRIPTORS:
            return self._log.storage_error(error, "syncing")  # The file could not be opened, so no sync was tried.
        return self._failed(error)

    def _failed(self, error: OSError) -> KafkaError:
        return self._log.log_directory.fail(error, f"syncing {self._log.name}")

    def _flushed(self, end: int, now_ms: int) -> None:
        preallocating = self._log.preallocating
        if preallocating is not None:
            end = min(end, preallocating.base_offset)
        self.recovery_point = max(self.recovery_point, end)
        self.last_flush_ms = now_ms
        self.is_truncation_unsynced = False
        self._log.synced()
