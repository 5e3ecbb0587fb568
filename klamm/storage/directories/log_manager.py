"""All logs of a broker, in all its log directories: loading, creating, deleting, and periodic work.

What must stay true:
- A partition has one log, and at most one future log in another directory (`future_logs.py`). A log is created in its
  preferred directory, or else in the directory with the fewest logs. While a directory is offline, no log is created
  for a partition that may have its log there.
- A recovery point is checkpointed only after the records below it are synced, and again soon after a truncation.
- The clean-shutdown file is written last, and only when every log of its directory was closed without error.
- A failed directory takes only its own logs offline.

All changes to the set of logs are in this module, because memory, directories and checkpoints must agree.

Source: kafka.log.LogManager.
"""

import asyncio
import functools
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice
from uuid import UUID

from klamm.base.environment import Environment
from klamm.base.metrics import Histogram
from klamm.base.slices import Slices, Steps, each
from klamm.base.tasks import OnFailure
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import PartitionKey
from klamm.storage.directories.background import Background
from klamm.storage.directories.directory_checkpoints import DirectoryCheckpoints
from klamm.storage.directories.directory_loader import DirectoryLoader, LoadingProgress, WantedLog
from klamm.storage.directories.duplicate_logs import TopicIds, settle_duplicates
from klamm.storage.directories.future_logs import PreferredDirectories, finish_promotions, settle
from klamm.storage.directories.garbage import Garbage
from klamm.storage.directories.log_cleaner import CleanerSettings, LogCleaner, settle_first_dirty_offset
from klamm.storage.directories.shared_sync import sync_together
from klamm.storage.log.log import Log
from klamm.storage.log.log_config import LogConfig
from klamm.storage.log.log_loader import LoadedLog, load_log
from klamm.storage.segments.disk_errors import PASSING, SHORTAGE_BACK_OFF_MS
from klamm.storage.segments.log_directory import (
    LogDirectory,
    MetaProperties,
    delete_directory_name,
    future_directory_name,
    is_possible_directory_name,
    partition_directory_name,
    unique_id,
)
from klamm.storage.segments.open_files import OpenFiles

_LOGGER = logging.getLogger(__name__)
_NEVER_MS = 2**63 - 1
_INITIAL_DELAY_MS = 30_000
_DEFAULT_FLUSH_CHECK_MS = 1_000
LOGS_PER_SLICE = 50
# A thread loads this many logs in one go: handing over a single log costs a fifth of the time to load it.
LOGS_PER_LOADING = 16
# Several logs are closed at once, because concurrent syncs share the file system's journal.
_CLOSED_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class LogManagerSettings:
    """The intervals of the periodic work, with Kafka's defaults. Each field names its configuration."""

    retention_check_ms: int = 300_000  # log.retention.check.interval.ms
    flush_check_ms: int = _NEVER_MS  # log.flush.scheduler.interval.ms; "never" still honours a topic's flush.ms
    recovery_point_checkpoint_ms: int = 60_000  # log.flush.offset.checkpoint.interval.ms
    log_start_offset_checkpoint_ms: int = 60_000  # log.flush.start.offset.checkpoint.interval.ms
    producer_expiration_ms: int = 604_800_000  # transactional.id.expiration.ms
    producer_expiration_check_ms: int = 600_000
    recovery_threads_per_directory: int = 1  # num.recovery.threads.per.data.dir


class LogManager:
    """Call `load`, then `start`, and `stop` at the end. Call the other methods in between, on the loop's thread."""

    def __init__(
        self,
        environment: Environment,
        directories: Sequence[str],
        *,
        meta_properties: MetaProperties,
        default_config: LogConfig,
        settings: LogManagerSettings | None = None,
        cleaner_settings: CleanerSettings | None = None,
        on_directory_failure: Callable[[str, OSError], None],
        on_failure: OnFailure,
    ) -> None:
        """`directories` are absolute paths. `on_directory_failure` is called for each directory that goes offline,
        after its logs are closed; after the last directory the broker must stop. `on_failure` is called for bugs."""
        self._environment = environment
        self._file_system = environment.file_system
        self._meta_properties = meta_properties
        self._default_config = default_config
        # May be replaced while the broker runs.
        self.settings = settings or LogManagerSettings()
        self._on_directory_failure = on_directory_failure
        self._background = Background(on_failure)
        self._garbage = Garbage(environment, self._background)
        self._directories = [
            LogDirectory(environment.file_system, path, self._directory_failed) for path in dict.fromkeys(directories)
        ]
        self.flush_times_ms = Histogram()
        self.open_files = OpenFiles(environment.file_system.is_short_of_descriptors)
        self._logs: dict[PartitionKey, Log] = {}
        self._future_logs: dict[PartitionKey, Log] = {}
        self.preferred_directories = PreferredDirectories()
        self._checkpoints = {
            directory.path: DirectoryCheckpoints(
                environment, directory, (self._logs, self._future_logs), self._background.spawn
            )
            for directory in self._directories
        }
        self.cleaner = LogCleaner(
            environment,
            list(self._checkpoints),
            self._logs,
            self._future_logs,
            cleaner_settings or CleanerSettings(),
            lambda log: self._checkpoints[log.log_directory.path].write_first_dirty_offsets(),
            lambda log: self._checkpoints[log.log_directory.path].write_recovery_points(),
            self._retain,
            on_failure,
        )
        # Partitions whose log is in an offline directory, or may be because the directory failed during its creation.
        self._lost: dict[PartitionKey, None] = {}
        self._log_counts = {directory.path: 0 for directory in self._directories}
        # The logs that are being flushed because they have rolled or were truncated, and whether they did so again
        # during the flush.
        self._rolled: dict[Log, bool] = {}
        self._truncated: dict[Log, bool] = {}
        self._loading: list[LoadingProgress] = []
        self._is_loaded = False

    # -- the present logs -----------------------------------------------------------------------------------------

    @property
    def logs(self) -> Mapping[PartitionKey, Log]:
        return self._logs

    @property
    def directories(self) -> Sequence[LogDirectory]:
        """All of `log.dirs`, including offline directories."""
        return self._directories

    @property
    def is_loaded(self) -> bool:
        """Whether `load` has succeeded."""
        return self._is_loaded

    @property
    def live_directories(self) -> list[str]:
        return [directory.path for directory in self._directories if directory.is_online]

    def get(self, topic: str, partition: int) -> Log | None:
        return self._logs.get((topic, partition))

    @property
    def future_logs(self) -> Mapping[PartitionKey, Log]:
        """The future logs, which will replace the current logs of their partitions."""
        return self._future_logs

    def is_future(self, log: Log) -> bool:
        return self._future_logs.get((log.topic, log.partition)) is log

    def directory(self, path: str) -> LogDirectory:
        """The log directory with this path. Raises KafkaError: LOG_DIR_NOT_FOUND; KAFKA_STORAGE_ERROR if offline."""
        for directory in self._directories:
            if directory.path == path:
                directory.check_online()
                return directory
        raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not in log.dirs of this broker")

    def logs_in(self, directory: str) -> list[Log]:
        """The logs of one log directory, current logs and future logs."""
        return [
            log
            for logs in (self._logs, self._future_logs)
            for log in logs.values()
            if log.log_directory.path == directory
        ]

    # -- loading --------------------------------------------------------------------------------------------------

    async def load(self, topic_configs: Mapping[str, LogConfig], topic_ids: TopicIds | None = None) -> None:
        """Opens all logs. A directory whose disk fails goes offline. `topic_ids` is called only for the topics of
        partitions that are in two directories; without it their ids are unknown.

        Raises KafkaError when a directory is locked, belongs to another broker or cluster, or holds a malformed file;
        when it is not clear which of two directories holds a partition's log (`duplicate_logs.py`); and when no
        directory is left. Also raises the errors of `topic_ids`.
        """
        try:
            opened = [loader for loader in map(self._loader, self._directories) if await loader.open()]
            await finish_promotions(opened, self._environment.random_uuid)
            if len(opened) > 1:
                config_of = lambda topic: topic_configs.get(topic, self._default_config)  # noqa: E731  # short
                await settle_duplicates(opened, topic_ids, config_of, self._environment.random_uuid)
                opened = [loader for loader in opened if loader.directory.is_online]
            all_online = len(opened) == len(self._directories)
            await settle(opened, self._environment.random_uuid, all_online=all_online)
            to_load = [loader for loader in opened if loader.consume_clean_shutdown_file()]
        except KafkaError:
            self._release_directories()
            raise
        await self._load_all(to_load, topic_configs)
        if not self.live_directories:
            self._release_directories()
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                "no log directory can be used: "
                + "; ".join(f"{directory.path}: {directory.failure}" for directory in self._directories),
            )
        for loader in opened if all_online else ():
            # While a directory is offline, the garbage stays: it may show that a future log there is complete.
            for path in loader.garbage:
                self._garbage.remove_tree(self._default_config.file_delete_delay_ms, path)
        for checkpoints in self._checkpoints.values():
            await checkpoints.settle_first_dirty_offsets()
        self._is_loaded = True

    async def _load_all(self, loaders: Sequence[DirectoryLoader], topic_configs: Mapping[str, LogConfig]) -> None:
        threads = self.settings.recovery_threads_per_directory
        self._environment.set_long_workers(threads * len(loaders))
        self._loading = [LoadingProgress(loader, asyncio.get_running_loop().time) for loader in loaders]
        parts = []
        for progress in self._loading:
            progress.begin()
            wanted = iter(self._wanted(progress.loader, topic_configs))
            parts += [self._load_some(progress, wanted) for _ in range(threads)]
        results = await asyncio.gather(*parts, return_exceptions=True)
        self._environment.set_long_workers(0)
        for failure in results:
            if failure is not None:
                await self._restore_clean_marks(loaders)
                self._release_directories()
                raise failure
        for progress in self._loading:
            progress.end()

    async def _restore_clean_marks(self, loaders: Sequence[DirectoryLoader]) -> None:
        """Writes the clean-shutdown files again, because the start is refused and no log has grown. Without them the
        next start would mistake damage in a log for a write torn by a crash, and cut the log there."""
        for loader in loaders:
            if loader.is_clean:
                try:
                    for log in self.logs_in(loader.directory.path):
                        await log.close()
                    loader.directory.check_online()
                    await self._environment.run_blocking(loader.directory.write_clean_shutdown_file)
                except (KafkaError, OSError) as error:
                    _LOGGER.warning("%s stays without the clean mark: %s", loader.directory.path, error)

    def _wanted(self, loader: DirectoryLoader, topic_configs: Mapping[str, LogConfig]) -> Iterator[WantedLog]:
        for found, is_future in ((loader.partitions, False), (loader.future_logs, True)):
            for topic, partition in found:
                yield WantedLog(topic, partition, topic_configs.get(topic, self._default_config), is_future)

    async def _load_some(self, progress: LoadingProgress, wanted: Iterator[WantedLog]) -> None:
        loader = progress.loader
        while loader.directory.is_online and (part := list(islice(wanted, LOGS_PER_LOADING))):
            await loader.load(part, functools.partial(self._opened, loader))
            progress.tell()

    def _opened(self, loader: DirectoryLoader, wanted: WantedLog, loaded: LoadedLog) -> None:
        key = wanted.topic, wanted.partition
        log = Log(self._environment, loader.directory, *key, wanted.config, loaded, self, self.open_files)
        self._add(log, is_future=wanted.is_future)
        log.first_dirty_offset = loader.first_dirty_offset(key)
        settle_first_dirty_offset(log)
        high_watermark = loader.high_watermark(key)
        log.update_high_watermark(log.log_start_offset if high_watermark is None else high_watermark)

    def remaining_logs_to_recover(self) -> dict[str, int]:
        """The logs still to be recovered in each log directory; 0 after a clean shutdown."""
        loaders = [progress.loader for progress in self._loading]
        return {loader.directory.path: 0 if loader.is_clean else loader.remaining_logs for loader in loaders}

    def _release_directories(self) -> None:
        for directory in self._directories:
            directory.release()

    def _loader(self, directory: LogDirectory) -> DirectoryLoader:
        checkpoints = self._checkpoints[directory.path]
        return DirectoryLoader(self._environment, directory, checkpoints, self._meta_properties)

    # -- creating and deleting ------------------------------------------------------------------------------------

    def get_or_create(
        self, topic: str, partition: int, topic_id: UUID | None, config: LogConfig, *, is_new: bool = False
    ) -> Log:
        """The partition's log, created if necessary. `is_new`: the partition is known never to have had a log.

        Raises KafkaError: KAFKA_STORAGE_ERROR when no directory can hold the log, or an offline directory may have it;
        INCONSISTENT_TOPIC_ID; INVALID_PARTITIONS for a name that is too long for file systems.
        """
        log = self._logs.get((topic, partition))
        if log is None:
            offline = [directory.path for directory in self._directories if not directory.is_online]
            if offline and (not is_new or (topic, partition) in self._lost):
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"the log of {topic}-{partition} may be in an offline directory ({', '.join(offline)})",
                )
            log = self._create(topic, partition, config)
        if topic_id is not None:
            log.assign_topic_id(topic_id)
        return log

    def _create(self, topic: str, partition: int, config: LogConfig) -> Log:
        name = partition_directory_name(topic, partition)
        if not is_possible_directory_name(name):
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"{name} is too long for a directory's name")
        if (topic, partition) in self._future_logs:
            self.delete_future(topic, partition)  # The partition has no log that this could be a copy of.
        online = [directory for directory in self._directories if directory.is_online]
        preferred = self.preferred_directories.all.get((topic, partition))
        online.sort(key=lambda directory: (directory.path != preferred, self._log_counts[directory.path]))
        # The log goes where an earlier attempt left files: with two directories of a partition the next start may fail.
        begun = [directory for directory in online if self._file_system.exists(directory.file(name))]
        failure: KafkaError | None = None
        for directory in begun or online:
            path = directory.file(name)
            try:
                log = self._create_in(directory, name, topic, partition, config)
            except OSError as error:
                failure = directory.storage_error(error, f"creating the log of {topic}-{partition}")
                if not begun and self._remove_half_created(directory, path):
                    continue
                self._lost[topic, partition] = None
                break
            self._add(log)
            self.preferred_directories.forget((topic, partition))
            return log
        raise failure or KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no log directory is online")

    def _add(self, log: Log, *, is_future: bool = False) -> None:
        logs = self._future_logs if is_future else self._logs
        logs[log.topic, log.partition] = log
        self._log_counts[log.log_directory.path] += 1

    def _remove(self, log: Log) -> None:
        logs = self._future_logs if self.is_future(log) else self._logs
        del logs[log.topic, log.partition]
        self._log_counts[log.log_directory.path] -= 1

    def _abandon(self, log: Log) -> None:
        log.abandon()
        self._background.begin(log.close_abandoned())

    def _remove_half_created(self, directory: LogDirectory, path: str) -> bool:
        """Returns whether all files are removed, so that the log may be created in another directory."""
        try:
            if directory.is_online:
                self._file_system.remove_tree(path)
            return not self._file_system.exists(path)
        except OSError as error:
            directory.storage_error(error, f"removing {path}")
            return False

    def _create_in(self, directory: LogDirectory, name: str, topic: str, partition: int, config: LogConfig) -> Log:
        path = directory.file(name)
        self._file_system.make_directories(path)
        loaded = load_log(
            self._file_system,
            path,
            config,
            log_start_offset=0,
            recovery_point=0,
            is_clean=True,
            now_ms=self._environment.now_ms(),
        )
        loaded.unsynced.mark(directory.path)
        log = Log(self._environment, directory, topic, partition, config, loaded, self, self.open_files)
        self.segment_begun(log)
        return log

    def delete(self, topic: str, partition: int) -> bool:
        """Deletes the future log, then the log; their files are removed after file.delete.delay.ms. Returns whether
        there was a log.

        Raises KafkaError(KAFKA_STORAGE_ERROR) after a disk error, or when an offline directory may have the log. A
        deletion that failed on a transient error may be tried again.
        """
        log = self._logs.get((topic, partition))
        if log is None:
            if len(self.live_directories) < len(self._directories):
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"the log of {topic}-{partition} may be in an offline directory"
                )
            return False
        log.log_directory.check_online()
        self.delete_future(topic, partition)
        self._delete(log)
        return True

    def _delete(self, log: Log) -> None:
        directory = log.log_directory
        directory.check_online()
        unique = self._environment.random_uuid()
        target = directory.file(delete_directory_name(log.topic, log.partition, unique))
        try:
            self._checkpoints[directory.path].forget_starts([(log.topic, log.partition)])
            self._file_system.rename(log.directory, target)
        except OSError as error:
            raise directory.storage_error(error, f"deleting {log.name}") from error
        if not self.is_future(log):
            self.cleaner.removed(log)
        self._remove(log)
        self._abandon(log)
        self._checkpoints[directory.path].rewrite_soon()
        self._garbage.remove_tree(log.config.file_delete_delay_ms, target)

    # -- future logs ----------------------------------------------------------------------------------------------

    def create_future(self, log: Log, path: str) -> Log:
        """Creates an empty future log of a current log, in another log directory.

        Raises KafkaError: INVALID_TOPIC_EXCEPTION for a name that is too long for file systems; LOG_DIR_NOT_FOUND;
        KAFKA_STORAGE_ERROR, also while any log directory is offline, because it may have a future log of the partition.
        """
        assert path != log.log_directory.path and (log.topic, log.partition) not in self._future_logs
        directory = self.directory(path)
        for other in self._directories:
            other.check_online()
        name = future_directory_name(log.topic, log.partition, self._environment.random_uuid())
        if not is_possible_directory_name(name):
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is too long for a directory's name")
        try:
            future = self._create_in(directory, name, log.topic, log.partition, log.config)
            if log.topic_id is not None:
                future.assign_topic_id(log.topic_id)
        except OSError as error:
            failure = directory.storage_error(error, f"creating the future log of {log.name}")
            self._remove_half_created(directory, directory.file(name))
            raise failure from error
        except KafkaError:
            self._remove_half_created(directory, directory.file(name))
            raise
        self.cleaner.abort(log)
        self._add(future, is_future=True)
        self.preferred_directories.forget((log.topic, log.partition))
        return future

    def delete_future(self, topic: str, partition: int) -> None:
        """Deletes the partition's future log if there is one. Raises KafkaError(KAFKA_STORAGE_ERROR)."""
        future = self._future_logs.get((topic, partition))
        if future is not None:
            self._delete(future)

    def promote_future(self, topic: str, partition: int) -> Log:
        """Replaces the current log by the future log (steps P1 to P5 in `future_logs.py`).

        The logs must have the same records. Raises KafkaError(KAFKA_STORAGE_ERROR); then both are unchanged.
        """
        key = (topic, partition)
        source, future = self._logs[key], self._future_logs[key]
        directory = source.log_directory
        for replaced in (source, future):
            replaced.log_directory.check_online()
        unique = unique_id(future.directory.rpartition("/")[2])
        assert unique is not None
        target = directory.file(delete_directory_name(topic, partition, unique))
        future.take_place_of(source)
        try:
            self._file_system.rename(source.directory, target)  # P1
        except OSError as error:
            raise directory.storage_error(error, f"replacing {source.directory} by {future.directory}") from error
        self._abandon(source)
        self._remove(source)
        self._remove(future)
        self._add(future)
        _LOGGER.info("%s replaces %s", future.directory, source.directory)
        self._background.spawn(self._finish_promotion(future, directory, target))
        return future

    async def _finish_promotion(self, log: Log, former: LogDirectory, garbage: str) -> None:
        # If the former disk fails, the promotion continues: all records are in the new directory.
        if not await self._sync_directory(former) and former.is_online:  # P2
            return  # The broker stops. The next start finishes the promotion.
        directory = log.log_directory
        target = directory.file(partition_directory_name(log.topic, log.partition))
        while self._logs.get((log.topic, log.partition)) is log:
            try:
                self._file_system.rename(log.directory, target)  # P3
                self.cleaner.abort(log)
                log.directory_renamed(target)
                break
            except OSError as error:
                _LOGGER.warning("%s", directory.storage_error(error, f"renaming {log.directory} to {target}"))
                if error.errno not in PASSING:
                    return
            if self._background.is_stopping:
                return  # The next start does the rename.
            await asyncio.sleep(SHORTAGE_BACK_OFF_MS / 1000)
        if not await self._sync_directory(directory):  # P4
            return
        for path in (former.path, directory.path):
            self._checkpoints[path].rewrite_soon()
        self._garbage.remove_tree(log.config.file_delete_delay_ms, garbage)  # P5

    async def _sync_directory(self, directory: LogDirectory) -> bool:
        """Syncs a log directory; tries again after a shortage. False if its disk fails or the broker stops."""
        while True:
            try:
                await self._environment.run_long(self._file_system.sync_directory, directory.path)
                return True
            except OSError as error:
                _LOGGER.warning("%s", directory.storage_error(error, f"syncing {directory.path}"))
            if not directory.is_online or self._background.is_stopping:
                return False
            await asyncio.sleep(SHORTAGE_BACK_OFF_MS / 1000)

    # -- LogHost ----------------------------------------------------------------------------------------------------

    def log_rolled(self, log: Log) -> None:
        self._background.in_bursts(self._rolled, log, self._flush)

    def segment_begun(self, log: Log) -> None:
        if log.config.preallocate:
            self._background.spawn(self._preallocate(log))

    async def _preallocate(self, log: Log) -> None:
        try:
            await log.preallocate()
        except KafkaError as error:
            _LOGGER.warning("Preallocating %s: %s", log.name, error)

    def log_truncated(self, log: Log) -> None:
        self.cleaner.abort(log)
        self._background.in_bursts(self._truncated, log, self._settle_truncation)

    async def _settle_truncation(self, log: Log) -> None:
        await self._checkpoints[log.log_directory.path].truncated(log)
        await self._flush(log)

    def log_start_moved(self, log: Log) -> None:
        self._checkpoints[log.log_directory.path].start_moved()

    async def settle_log_start(self, log: Log) -> None:
        """Returns when the log start offset is checkpointed, or its checkpoint has failed
        (`Log.durable_log_start_offset`)."""
        if log.durable_log_start_offset < log.log_start_offset:
            await self._checkpoints[log.log_directory.path].settle_log_starts()

    def delete_later(self, log: Log, paths: Sequence[str]) -> None:
        names = [path.rpartition("/")[2] for path in paths]
        # The log's directory may be renamed before that.
        garbage = lambda: [f"{log.directory}/{name}" for name in names]  # noqa: E731  # short
        self._garbage.remove_files(log.config.file_delete_delay_ms, garbage)

    # -- from time to time ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins the periodic work."""
        settings = self.settings
        flush_check_ms = _DEFAULT_FLUSH_CHECK_MS if settings.flush_check_ms >= _NEVER_MS else settings.flush_check_ms
        for interval_ms, action in (
            (settings.retention_check_ms, self._apply_retention),
            (flush_check_ms, self._flush_dirty),
            (settings.recovery_point_checkpoint_ms, self.checkpoint_recovery_points),
            (settings.log_start_offset_checkpoint_ms, self.checkpoint_log_start_offsets),
            (settings.producer_expiration_check_ms, self._expire_producers),
        ):
            self._background.repeat(min(interval_ms, _INITIAL_DELAY_MS), interval_ms, action)
        self._background.spawn(self._flush_recovered())
        for checkpoints in self._checkpoints.values():
            checkpoints.forget_strangers()
        self.cleaner.start()

    async def _flush_recovered(self) -> None:
        """Syncs the writes of a killed process. Otherwise the first append to each log would wait for its sync."""
        for directory in self._directories:
            unsynced = [log for log in self.logs_in(directory.path) if log.durability.is_truncation_unsynced]
            await sync_together(self._environment, directory, unsynced)
        async with aclosing(self._each_online()) as logs:
            async for log in logs:
                if log.durability.is_truncation_unsynced:
                    await self._flush(log)

    async def stop(self) -> None:
        """Closes all logs in order and writes the clean-shutdown files, except in directories with errors."""
        self._background.begin_stop()
        await self.cleaner.stop()
        await self._background.stopped()
        for directory in self._directories:
            await self._stop_directory(directory)

    async def _stop_directory(self, directory: LogDirectory) -> None:
        try:
            # Until all logs are loaded, the directory may belong to another broker, and its checkpoints have more logs.
            if directory.is_online and self._is_loaded:
                await sync_together(self._environment, directory, self.logs_in(directory.path))
                logs = iter(self.logs_in(directory.path))

                async def close_some() -> None:
                    for log in logs:
                        await log.close()

                at_once = max(_CLOSED_AT_ONCE, self.settings.recovery_threads_per_directory)
                closing = [close_some() for _ in range(at_once)]
                for failure in await asyncio.gather(*closing, return_exceptions=True):
                    if failure is not None:
                        raise failure
                checkpoints = self._checkpoints[directory.path]
                await checkpoints.write_recovery_points()
                await checkpoints.write_log_start_offsets()
                await checkpoints.write_high_watermarks()
                # If the directory has failed meanwhile, its logs were not closed above.
                directory.check_online()
                await self._environment.run_blocking(directory.write_clean_shutdown_file)
        except (KafkaError, OSError) as error:
            _LOGGER.error("Shutting down %s without the clean mark: %s", directory.path, error)
        finally:
            directory.release()

    async def _each_online(self) -> AsyncGenerator[Log, None]:
        """All logs, in slices: looking at a log costs microseconds, deleting its segments a millisecond."""
        looked_at = Slices(LOGS_PER_SLICE, asyncio.get_running_loop().time)
        for logs in (self._logs, self._future_logs):
            # Only keys, because fifty thousand new pairs at once would trigger the garbage collector.
            async for key in each(logs, looked_at):
                log = logs.get(key)
                if log is not None and log.log_directory.is_online:
                    yield log

    async def _apply_retention(self) -> None:
        async with aclosing(self._each_online()) as logs:
            async for log in logs:
                await self._retain(log)

    async def _retain(self, log: Log) -> None:
        try:
            while self._has(log) and not self.cleaner.is_cleaning(log):
                if not log.delete_old_segments(self._environment.now_ms()):
                    break
                await asyncio.sleep(0)
            await log.release_unused()
        except KafkaError as error:
            _LOGGER.warning("Retention of %s: %s", log.name, error)

    def _has(self, log: Log) -> bool:
        """Whether the log is still in use."""
        return self._logs.get((log.topic, log.partition)) is log or self.is_future(log)

    async def _flush_dirty(self) -> None:
        async with aclosing(self._each_online()) as logs:
            async for log in logs:
                durability = log.durability
                idle_ms = self._environment.now_ms() - durability.last_flush_ms
                if durability.has_unflushed and idle_ms >= log.config.flush_ms:
                    await self._flush(log)

    async def _flush(self, log: Log) -> None:
        try:
            await log.flush()
        except KafkaError as error:
            _LOGGER.warning("Flushing %s: %s", log.name, error)

    async def _expire_producers(self) -> None:
        async with aclosing(self._each_online()) as logs:
            async for log in logs:
                await log.remove_expired_producers(self._environment.now_ms(), self.settings.producer_expiration_ms)

    # -- checkpoints ----------------------------------------------------------------------------------------------

    async def checkpoint_recovery_points(self) -> None:
        """Writes recovery-point-offset-checkpoint in every live directory."""
        for checkpoints in self._checkpoints.values():
            await checkpoints.write_recovery_points()

    async def checkpoint_log_start_offsets(self) -> None:
        """Writes log-start-offset-checkpoint in every live directory."""
        for checkpoints in self._checkpoints.values():
            await checkpoints.write_log_start_offsets()

    async def checkpoint_high_watermarks(self) -> None:
        """Writes replication-offset-checkpoint in every live directory."""
        for checkpoints in self._checkpoints.values():
            await checkpoints.write_high_watermarks()

    # -- common ---------------------------------------------------------------------------------------------------

    def _directory_failed(self, path: str, error: OSError) -> None:
        """Called from within the failing operation, so the logs are closed after the operation has ended."""
        _LOGGER.error("Log directory %s goes offline: %s", path, error)
        asyncio.get_running_loop().call_soon(lambda: self._background.begin(self._close_failed(path, error)))

    def _close_failed(self, path: str, error: OSError) -> Steps[None]:
        closed = Slices()
        for log in self.logs_in(path):
            # A log that is not closed yet refuses everything, because its directory has failed.
            if not self._has(log):
                continue
            if not self.is_future(log):
                self.cleaner.removed(log)
                self._lost[log.topic, log.partition] = None
            self._remove(log)
            log.abandon()
            yield from log.close_abandoned()
            if closed.spend():
                yield
        self._on_directory_failure(path, error)
