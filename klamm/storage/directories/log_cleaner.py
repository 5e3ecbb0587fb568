"""The log cleaner: its cleaners take turns to find the dirtiest compacted log, and compact it off the broker's loop.

    choose (`cleanable_logs.py`) -> job -> process of its own -> swap, one group of segments after another -> checkpoint

What must stay true:
- One cleaner at a time cleans a log. A truncation, a deletion or a move of the log aborts the cleaning.
- The first dirty offset of a log moves, and is checkpointed, only after the log consists of cleaned segments below it.
- No segment above the checkpointed recovery point is replaced: there, a recovery may mistake a gap for a loss.
- A log that is being copied to another log directory is not cleaned, so the copy is as clean as its original.
- A log that cannot be cleaned is marked uncleanable, shown, and skipped until the broker restarts. It stops no other
  log.
- A log that cannot be cleaned for now, for example because the disk is full or the process was killed, is tried again
  after all other logs.
- While a log is cleaned, retention deletes none of its segments. Retention follows when the cleaning ends.

Source: kafka.log.LogCleaner, LogCleanerManager. Differences: a cleaner is a coroutine whose work runs in a process with
the lowest priority; an abort does not wait for the cleaner; log.retention.check.interval.ms also governs logs with the
policy compact,delete.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from klamm.base.environment import Environment, FileSystem, WorkerFailed
from klamm.base.metrics import MetricName, Metrics
from klamm.base.slices import Slices, each
from klamm.base.tasks import OnFailure, start_task
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import PartitionKey
from klamm.storage.compaction.cleaned_segment import remove_cleaned_files
from klamm.storage.compaction.cleaner import clean, kernel_for
from klamm.storage.compaction.plain_kernel import PlainKernel
from klamm.storage.directories.cleanable_logs import NEVER_MS, Cleanable, CompactedLog, first_dirty, measure
from klamm.storage.log.cleaning import cleaning_job, swap_cleaned, uncleanable_from
from klamm.storage.log.job import CleaningJob, CleaningResult, CleaningStatistics
from klamm.storage.log.log import Log

_LOGGER = logging.getLogger(__name__)

LOGS_PER_SLICE = 50
# After this many deaths of its process in a row, with other logs cleaned in between, a log is uncleanable: the log
# seems to kill the process.
MAX_PROCESS_DEATHS = 3
_MEGABYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class CleanerSettings:
    """Kafka's configurations of the log cleaner, with its defaults. Each field names its configuration."""

    is_enabled: bool = True  # log.cleaner.enable
    threads: int = 1  # log.cleaner.threads
    max_bytes_per_second: float = float("inf")  # log.cleaner.io.max.bytes.per.second
    dedupe_buffer_bytes: int = 128 * _MEGABYTE  # log.cleaner.dedupe.buffer.size
    dedupe_buffer_load_factor: float = 0.9  # log.cleaner.io.buffer.load.factor
    backoff_ms: int = 15_000  # log.cleaner.backoff.ms


@dataclass(slots=True)
class _Cleaning:
    """A cleaning in progress. `work` is its part in another process."""

    log: Log
    range: Cleanable
    is_aborted: bool = False
    work: "asyncio.Future[CleaningResult] | None" = None

    def abort(self) -> None:
        self.is_aborted = True
        if self.work is not None:
            self.work.cancel()


class _Deaths(NamedTuple):
    """The deaths in a row of a log's process, and how many logs the cleaners had cleaned before the last death."""

    in_a_row: int
    cleaned_before: int


@dataclass(slots=True)
class _Cleaner:
    """One of log.cleaner.threads cleaners, and the figures of its last cleaning."""

    number: int
    statistics: CleaningStatistics = field(default_factory=CleaningStatistics)
    elapsed_s: float = 0.0
    max_compaction_delay_ms: int = 0
    # Whether its last process died or could not be started.
    is_dead: bool = False


class UncleanablePartition(NamedTuple):
    """A partition that the cleaner skips, and why."""

    key: PartitionKey
    log_directory: str
    reason: str


class LogCleaner:
    """`logs` and `future_logs` are the log manager's present logs. `checkpoint` writes the first dirty offsets of a
    log's directory, `checkpoint_recovery_points` its recovery points. `cleaned` is called after each attempt to clean a
    log. Call `start` when the logs are loaded, and `stop` before they are closed."""

    def __init__(
        self,
        environment: Environment,
        directories: Sequence[str],
        logs: Mapping[PartitionKey, Log],
        future_logs: Mapping[PartitionKey, Log],
        settings: CleanerSettings,
        checkpoint: Callable[[Log], Awaitable[None]],
        checkpoint_recovery_points: Callable[[Log], Awaitable[None]],
        cleaned: Callable[[Log], Awaitable[None]],
        on_failure: OnFailure,
    ) -> None:
        self._environment = environment
        self._directories = directories
        self._logs = logs
        self._future_logs = future_logs
        self._settings = settings
        self._checkpoint = checkpoint
        self._checkpoint_recovery_points = checkpoint_recovery_points
        self._cleaned = cleaned
        self._on_failure = on_failure
        self._is_started = False
        self._cleaners: dict[asyncio.Task[None], _Cleaner] = {}
        self._cleanings: dict[PartitionKey, _Cleaning] = {}
        self._uncleanable: dict[PartitionKey, str] = {}
        self._process_deaths: dict[PartitionKey, _Deaths] = {}
        self._cleaned_logs = 0
        # The logs that could not be cleaned for now. They wait until no other log is due.
        self._postponed: dict[PartitionKey, None] = {}
        self._choosing = asyncio.Lock()
        self._restarting: asyncio.Task[None] | None = None
        self._max_dirty_ratio = 0.0
        self._last_run_ms = environment.now_ms()

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._last_run_ms = self._environment.now_ms()
        if self._settings.is_enabled:
            _LOGGER.info("Starting the log cleaner")
            self._is_started = True
            self._start_cleaners()

    async def stop(self) -> None:
        """Returns when all cleaners have ended. Idempotent."""
        self._is_started = False
        if self._restarting is not None:
            await asyncio.gather(self._restarting, return_exceptions=True)
        await self._stop_cleaners()

    def reconfigure(self, settings: CleanerSettings) -> None:
        """As in Kafka, a change stops all cleaners and starts new ones. Interrupted cleanings begin again."""
        if settings == self._settings:
            return
        self._settings = settings
        if self._is_started and self._restarting is None:
            self._restarting = start_task(self._restart(), self._on_failure)

    async def _restart(self) -> None:
        _LOGGER.info("Shutting down the log cleaner.")
        await self._stop_cleaners()
        self._restarting = None
        if self._is_started:
            _LOGGER.info("Starting the log cleaner")
            self._start_cleaners()

    def _start_cleaners(self) -> None:
        for number in range(self._settings.threads):
            cleaner = _Cleaner(number)
            self._cleaners[start_task(self._run(cleaner), self._on_failure)] = cleaner

    async def _stop_cleaners(self) -> None:
        tasks = list(self._cleaners)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._cleaners.clear()

    # -- what happens to logs -------------------------------------------------------------------------------------

    def is_cleaning(self, log: Log) -> bool:
        """Whether the log's segments must stay, because they are being cleaned."""
        cleaning = self._cleanings.get((log.topic, log.partition))
        return cleaning is not None and cleaning.log is log

    def abort(self, log: Log) -> None:
        """The log was truncated, is deleted, or moves: aborts its cleaning."""
        cleaning = self._cleanings.get((log.topic, log.partition))
        if cleaning is not None and cleaning.log is log and not cleaning.is_aborted:
            _LOGGER.info("The cleaning for partition %s is aborted", log.name)
            cleaning.abort()

    def removed(self, log: Log) -> None:
        """The log is deleted or its disk has failed. Forgets its faults: a later log of the partition starts anew."""
        self.abort(log)
        self._uncleanable.pop((log.topic, log.partition), None)
        self._process_deaths.pop((log.topic, log.partition), None)
        self._postponed.pop((log.topic, log.partition), None)

    @property
    def uncleanable(self) -> list[UncleanablePartition]:
        """The partitions that the cleaner skips, because an attempt has failed with a permanent error."""
        return [
            UncleanablePartition(key, log.log_directory.path, reason)
            for key, reason in self._uncleanable.items()
            if (log := self._logs.get(key)) is not None
        ]

    # -- cleaning -------------------------------------------------------------------------------------------------

    async def _run(self, cleaner: _Cleaner) -> None:
        while True:
            if not await self._clean_dirtiest(cleaner):
                await asyncio.sleep(self._settings.backoff_ms / 1000)

    async def _clean_dirtiest(self, cleaner: _Cleaner) -> bool:
        """Returns whether another log may be due."""
        async with self._choosing:
            cleaning = await self._choose(cleaner)
        if cleaning is None:
            self._postponed.clear()
            return False
        log = cleaning.log
        key = (log.topic, log.partition)
        is_clean = False
        try:
            is_clean = await self._clean(cleaner, cleaning)
        except WorkerFailed as error:
            self._process_died(cleaner, key, error)
        except (KafkaError, OSError) as error:
            self._failed(cleaning, error)
        except ValueError as error:  # The offset map has no room for a key.
            self._mark_uncleanable(key, str(error))
        finally:
            del self._cleanings[key]
        await self._cleaned(log)
        return is_clean or key in self._postponed

    async def _clean(self, cleaner: _Cleaner, cleaning: _Cleaning) -> bool:
        log, settings, loop = cleaning.log, self._settings, asyncio.get_running_loop()
        began_s = loop.time()
        job = self._job(cleaning)
        if job is None:
            return False
        rate = settings.max_bytes_per_second / settings.threads
        environment = self._environment
        work = environment.run_in_background(clean_at_rate, job, rate, environment.has_compiled_loops)
        cleaning.work = asyncio.ensure_future(work)
        try:
            result = await cleaning.work
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not cleaning.is_aborted or (task is not None and task.cancelling()):
                raise  # The cleaner itself ends.
            await self._discard(job)
            return False
        finally:
            cleaning.work = None
        cleaner.is_dead = False
        self._cleaned_logs += 1
        self._process_deaths.pop((log.topic, log.partition), None)
        # Cleaned segments lie below the recovery point. With its checkpoint, a recovery knows that gaps are no damage.
        await self._checkpoint_recovery_points(log)
        if not await self._swap(cleaning, job, result):
            await self._discard(job)
            return False
        # The old segments must not return after a machine crash: below the checkpoint they would never be cleaned.
        await log.flush()
        if cleaning.is_aborted:
            return False
        log.first_dirty_offset = result.new_first_dirty_offset
        await self._checkpoint(log)
        cleaner.statistics, cleaner.elapsed_s = result.statistics, loop.time() - began_s
        _LOGGER.info("%s", _report(cleaner, log, cleaning.range.first_dirty_offset, result))
        if result.statistics.invalid_records_read:
            _LOGGER.warning("Found %d invalid messages during compaction.", result.statistics.invalid_records_read)
        return True

    def _job(self, cleaning: _Cleaning) -> CleaningJob | None:
        settings, range_ = self._settings, cleaning.range
        return cleaning_job(
            self._environment,
            cleaning.log,
            range_.first_dirty_offset,
            range_.end_offset,
            delete_retention_ms=cleaning.log.config.delete_retention_ms,
            map_bytes=settings.dedupe_buffer_bytes // settings.threads,
            map_load_factor=settings.dedupe_buffer_load_factor,
        )

    async def _swap(self, cleaning: _Cleaning, job: CleaningJob, result: CleaningResult) -> bool:
        """Puts the new segments into the log. Returns whether all were put in."""
        log = cleaning.log
        for group in result.groups:
            await asyncio.sleep(0)
            if cleaning.is_aborted or not swap_cleaned(log, job, group):
                return False
        return True

    async def _discard(self, job: CleaningJob) -> None:
        """Removes the files of the cleaning. If that fails, the next cleaning removes them first."""
        with suppress(OSError):
            await self._environment.run_long(remove_cleaned_files, self._environment.file_system, job.directory)

    def _process_died(self, cleaner: _Cleaner, key: PartitionKey, error: WorkerFailed) -> None:
        """A death counts against the log only if another log was cleaned after the last death. Otherwise something
        kills every process, such as a lack of memory, and the log is not to blame."""
        cleaner.is_dead = True
        _LOGGER.warning("Cleaner %d: cleaning %s-%d failed: %s", cleaner.number, *key, error)
        self._postponed[key] = None
        last = self._process_deaths.get(key)
        if last is not None and last.cleaned_before == self._cleaned_logs:
            return
        count = 1 if last is None else last.in_a_row + 1
        self._process_deaths[key] = _Deaths(count, self._cleaned_logs)
        if count >= MAX_PROCESS_DEATHS:
            self._mark_uncleanable(
                key, f"the process that cleaned it died {count} times in a row, and other logs were cleaned in between"
            )

    def _failed(self, cleaning: _Cleaning, error: KafkaError | OSError) -> None:
        log = cleaning.log
        if cleaning.is_aborted or self._logs.get((log.topic, log.partition)) is not log:
            return  # The files were changed or removed under the cleaner.
        key = (log.topic, log.partition)
        if isinstance(error, FileNotFoundError):
            # The disk works, but another program removes files. A reader of the log will find out if they are needed.
            _LOGGER.warning("Cleaning %s: %s", log.name, error)
            self._postponed[key] = None
            return
        if isinstance(error, OSError):
            error = log.log_directory.storage_error(error, f"cleaning {log.name}")
        if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
            _LOGGER.warning("Cleaning %s: %s", log.name, error.message)
            self._postponed[key] = None
        else:
            self._mark_uncleanable(key, error.message or str(error))

    def _mark_uncleanable(self, key: PartitionKey, reason: str) -> None:
        log = self._logs.get(key)
        if log is not None:
            _LOGGER.warning(
                "Unexpected exception thrown when cleaning log %s. Marking its partition (%s-%d) as uncleanable: %s",
                *(log, *key, reason),
            )
            self._uncleanable[key] = reason

    # -- choosing -------------------------------------------------------------------------------------------------

    async def _choose(self, cleaner: _Cleaner) -> _Cleaning | None:
        """Begins the cleaning of the dirtiest log that is due."""
        self._last_run_ms = self._environment.now_ms()
        looked_at = Slices(LOGS_PER_SLICE, asyncio.get_running_loop().time)
        chosen: _Cleaning | None = None
        max_dirty_ratio, max_delay_ms = 0.0, 0
        # Iterates over keys only, like the log manager.
        async for key in each(self._logs, looked_at):
            await self._read_timestamps(key, looked_at)
            if (found := self._measure(key)) is not None:
                max_dirty_ratio = max(max_dirty_ratio, found.range.dirty_ratio)
                max_delay_ms = max(max_delay_ms, found.range.delay_ms)
                if found.range.is_due(found.log.config) and (
                    chosen is None or found.range.dirty_ratio > chosen.range.dirty_ratio
                ):
                    chosen = found
        self._max_dirty_ratio = max_dirty_ratio
        cleaner.max_compaction_delay_ms = max_delay_ms
        if chosen is None:
            return None
        # The log may have changed while other logs were measured.
        key = (chosen.log.topic, chosen.log.partition)
        chosen = self._measure(key)
        if chosen is not None and chosen.range.is_due(chosen.log.config):
            self._cleanings[key] = chosen
            return chosen
        return None

    async def _read_timestamps(self, key: PartitionKey, looked_at: Slices) -> None:
        """Reads the timestamps for `_measure` into memory, in slices, because a log may have thousands of segments."""
        log = self._logs.get(key)
        if log is None or not log.config.is_compacted:
            return
        has_min_lag, has_max_lag = log.config.min_compaction_lag_ms > 0, log.config.max_compaction_lag_ms < NEVER_MS
        if not has_min_lag and not has_max_lag:
            return
        with suppress(KafkaError, OSError):  # `_measure` meets the same error.
            async for segment in each(log.segments, looked_at):
                if has_min_lag:
                    segment.largest_timestamp()
                if has_max_lag:
                    _ = segment.first_timestamp

    def _measure(self, key: PartitionKey) -> _Cleaning | None:
        """How dirty the partition's log is; None if it must not be cleaned now."""
        log = self._logs.get(key)
        if (
            log is None
            or not log.config.is_compacted
            or key in self._cleanings
            or key in self._uncleanable
            or key in self._postponed
            or key in self._future_logs
            or not log.log_directory.is_online
        ):
            return None
        settle_first_dirty_offset(log)
        try:
            range_ = _measured(log, self._environment.now_ms())
        except OSError as error:
            _LOGGER.warning("%s", log.log_directory.storage_error(error, f"looking how dirty {log.name} is"))
            return None
        except KafkaError as error:
            self._mark_uncleanable(key, error.message or str(error))
            return None
        return _Cleaning(log, range_) if range_.clean_bytes + range_.cleanable_bytes else None

    # -- metrics --------------------------------------------------------------------------------------------------

    def register(self, metrics: Metrics) -> None:
        """Under Kafka's names."""
        for name, documentation, read in (
            ("max-buffer-utilization-percent", "Use of the offset map in the last cleaning.", self._max_map_percent),
            ("cleaner-recopy-percent", "Share of bytes that the last cleanings kept.", self._recopy_percent),
            ("max-clean-time-secs", "Time of the last cleaning.", lambda: int(self._max_over(_elapsed_s))),
            (
                "max-compaction-delay-secs",
                "Time since a log should have been compacted for its age (max.compaction.lag.ms).",
                lambda: int(self._max_over(lambda cleaner: cleaner.max_compaction_delay_ms) / 1000),
            ),
            (
                "DeadThreadCount",
                "Cleaners whose last process has died.",
                lambda: sum(cleaner.is_dead for cleaner in self._cleaners.values()),
            ),
        ):
            metrics.gauge(MetricName("kafka.log", "LogCleaner", name), documentation, read)
        for name, documentation, read in (
            ("max-dirty-percent", "Dirty share of the dirtiest log.", lambda: int(100 * self._max_dirty_ratio)),
            (
                "time-since-last-run-ms",
                "Time since a cleaner last looked for a dirty log.",
                lambda: self._environment.now_ms() - self._last_run_ms,
            ),
        ):
            metrics.gauge(MetricName("kafka.log", "LogCleanerManager", name), documentation, read)
        metrics.gauges(
            MetricName("kafka.log", "LogCleanerManager", "uncleanable-partitions-count"),
            "Partitions that the cleaner leaves alone after an error.",
            "logDirectory",
            self._uncleanable_counts,
        )
        metrics.gauges(
            MetricName("kafka.log", "LogCleanerManager", "uncleanable-bytes"),
            "Cleanable bytes of these partitions.",
            "logDirectory",
            self._uncleanable_bytes,
        )
        metrics.gauge(
            MetricName("klamm", "LogCleaner", "MemoryBytes"),
            "Memory of the cleaners' processes.",
            lambda: self._environment.background_memory_bytes,
        )

    def _max_over(self, read: Callable[[_Cleaner], float]) -> float:
        return max(map(read, self._cleaners.values()), default=0)

    def _max_map_percent(self) -> int:
        return int(100 * self._max_over(lambda cleaner: cleaner.statistics.map_utilization))

    def _recopy_percent(self) -> int:
        all_statistics = [cleaner.statistics for cleaner in self._cleaners.values()]
        read_bytes = sum(statistics.bytes_read for statistics in all_statistics)
        return 100 * sum(statistics.bytes_written for statistics in all_statistics) // max(read_bytes, 1)

    def _uncleanable_counts(self) -> Mapping[str, int]:
        counts = dict.fromkeys(self._directories, 0)
        for partition in self.uncleanable:
            counts[partition.log_directory] += 1
        return counts

    def _uncleanable_bytes(self) -> Mapping[str, int]:
        sizes = dict.fromkeys(self._directories, 0)
        for partition in self.uncleanable:
            log = self._logs[partition.key]
            sizes[partition.log_directory] += self._cleanable_bytes(log)
        return sizes

    def _cleanable_bytes(self, log: Log) -> int:
        try:
            return _measured(log, self._environment.now_ms()).cleanable_bytes
        except (KafkaError, OSError):
            return 0  # A scrape leaves out what cannot be read.


def settle_first_dirty_offset(log: Log) -> None:
    """Replaces a first dirty offset that is outside the log."""
    dirty = first_dirty(_view(log), log.first_dirty_offset)
    if dirty.is_reset:
        if dirty.problem:
            _LOGGER.warning("%s", dirty.problem)
        log.first_dirty_offset = dirty.offset


def clean_at_rate(
    file_system: FileSystem, job: CleaningJob, bytes_per_second: float, is_compiled: bool
) -> Generator[float, None, CleaningResult]:
    """The cleaning. Each step yields the seconds that it must take at least."""
    steps = clean(job, file_system, kernel_for(job) if is_compiled else PlainKernel)
    reported_bytes = 0
    while True:
        try:
            progress = next(steps)
        except StopIteration as end:
            result: CleaningResult = end.value
            break
        reported_bytes += progress.size_bytes
        yield progress.size_bytes / bytes_per_second
    statistics = result.statistics
    # A small log has a single step.
    size_bytes = statistics.map_bytes_read + statistics.bytes_read + statistics.bytes_written
    yield max(0, size_bytes - reported_bytes) / bytes_per_second
    return result


def _view(log: Log) -> CompactedLog:
    return CompactedLog(
        log.name, log.config, log.log_start_offset, uncleanable_from(log), log.log_end_offset, list(log.segments)
    )


def _measured(log: Log, now_ms: int) -> Cleanable:
    view = _view(log)
    return measure(view, first_dirty(view, log.first_dirty_offset).offset, now_ms)


def _elapsed_s(cleaner: _Cleaner) -> float:
    return cleaner.elapsed_s


def _report(cleaner: _Cleaner, log: Log, first_dirty_offset: int, result: CleaningResult) -> str:
    """Kafka's lines about a cleaning."""
    statistics = result.statistics
    read_mb, written_mb = statistics.bytes_read / _MEGABYTE, statistics.bytes_written / _MEGABYTE
    elapsed_s = max(cleaner.elapsed_s, 1e-9)
    fewer_bytes = 100 * (1 - statistics.bytes_written / max(statistics.bytes_read, 1))
    fewer_records = 100 * (1 - statistics.records_written / max(statistics.records_read, 1))
    return (
        f"\n\tLog cleaner thread {cleaner.number} cleaned log {log.name} (dirty section = [{first_dirty_offset},"
        f" {result.new_first_dirty_offset}])\n"
        f"\t{read_mb:,.1f} MB of log processed in {cleaner.elapsed_s:,.1f} seconds"
        f" ({read_mb / elapsed_s:,.1f} MB/sec).\n"
        f"\tIndexed {statistics.map_bytes_read / _MEGABYTE:,.1f} MB\n"
        f"\tBuffer utilization: {100 * statistics.map_utilization:.1f}%\n"
        f"\tStart size: {read_mb:,.1f} MB ({statistics.records_read:,} messages)\n"
        f"\tEnd size: {written_mb:,.1f} MB ({statistics.records_written:,} messages)\n"
        f"\t{fewer_bytes:.1f}% size reduction ({fewer_records:.1f}% fewer messages)"
    )
