"""Opens one log directory when its broker starts, finds its logs, and loads them.

A future log is a copy in another directory that is to replace a partition's log, its current log (`future_logs.py`).

What must stay true:
- A directory of another broker, cluster or process is refused before anything in it changes.
- The mark of a clean shutdown is consumed only when the start is no longer refused, so that a refused start leaves it.
- A directory whose disk fails goes offline and stops no other directory. A shortage (`disk_errors.SHORTAGES`) takes no
  directory offline.

Source: kafka.log.LogManager (loadLogs).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from typing import NamedTuple, TypeVar
from uuid import UUID

from klamm.base.environment import Environment, File, FileSystem
from klamm.base.slices import each
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.record_batch import BatchHeader
from klamm.protocol.vocabulary import NO_EPOCH, PartitionKey
from klamm.storage.directories.directory_checkpoints import DirectoryCheckpoints
from klamm.storage.log.leader_epoch_cache import EpochEntry
from klamm.storage.log.log_config import LogConfig
from klamm.storage.log.log_loader import LoadedLog, load_log, segment_file
from klamm.storage.segments.batch_scan import find_batch, headers
from klamm.storage.segments.disk_errors import SHORTAGE_BACK_OFF_MS, SHORTAGES
from klamm.storage.segments.log_directory import (
    CLEAN_SHUTDOWN_FILE,
    DELETE_SUFFIX,
    PARTITION_METADATA_FILE,
    STRAY_SUFFIX,
    LogDirectory,
    MetaProperties,
    check_meta_properties,
    delete_directory_name,
    format_topic_id,
    parse_directory_name,
    parse_partition_metadata,
    partition_directory_name,
    stray_directory_name,
    unique_id,
)
from klamm.storage.segments.segment import LOG_SUFFIX, file_name
from klamm.storage.verification.overlay import OverlayFileSystem

_T = TypeVar("_T")

_LOGGER = logging.getLogger(__name__)
NAMES_PER_SLICE = 1_000
PROGRESS_INTERVAL_S = 2.0
# Two logs are compared by at most this many batches, because compaction may have removed any batch.
BATCHES_COMPARED = 1_000
# An operation that fails on a shortage is tried this many times.
_SHORTAGE_ATTEMPTS = 10


class WantedLog(NamedTuple):
    """A log to be loaded."""

    topic: str
    partition: int
    config: LogConfig
    is_future: bool


class LogHistory(NamedTuple):
    """The offsets and leader epochs of a log on the disk: its start and end offset, and (epoch, start offset) of each
    leader epoch, ascending."""

    start_offset: int
    end_offset: int
    epochs: Sequence[EpochEntry]

    @property
    def latest_epoch(self) -> int:
        """-1 when no epoch is known."""
        return self.epochs[-1][0] if self.epochs else NO_EPOCH


class DirectoryLoader:
    """Call `open`; `finish_promotions` of `future_logs.py`, `settle_duplicates` of `duplicate_logs.py` and `settle` of
    `future_logs.py`; then `consume_clean_shutdown_file`, and `load` for all of `partitions` and `future_logs`, in any
    number of parts, also concurrently.

    `future_logs` has the name of each future log's directory, `deleted` the unique ids in the names of deleted logs.
    """

    def __init__(
        self,
        environment: Environment,
        directory: LogDirectory,
        checkpoints: DirectoryCheckpoints,
        meta_properties: MetaProperties,
    ) -> None:
        self.directory = directory
        self.partitions: list[PartitionKey] = []
        self.future_logs: dict[PartitionKey, str] = {}
        self.deleted: set[UUID] = set()
        # The directories of logs whose deletion was not finished when the broker stopped.
        self.garbage: list[str] = []
        self._environment = environment
        self._file_system = environment.file_system
        self._checkpoints = checkpoints
        self._meta_properties = meta_properties
        # Whether the last shutdown was clean; known once its mark is consumed.
        self.is_clean = False
        # How many logs have not been loaded yet.
        self.remaining_logs = 0
        self._is_cancelled = False
        self._recovery_points: dict[PartitionKey, int] = {}
        self._log_start_offsets: dict[PartitionKey, int] = {}
        self._high_watermarks: dict[PartitionKey, int] = {}
        self._first_dirty_offsets: dict[PartitionKey, int] = {}

    async def open(self) -> bool:
        """Reads the checkpoints and finds the partitions. Returns whether the directory is online.

        Raises KafkaError when the directory is locked, belongs to another broker or cluster, or holds a malformed file.
        """
        directory = self.directory
        try:
            directory.acquire()
            check_meta_properties(self._file_system, directory.path, self._meta_properties)
            self._recovery_points = await self._checkpoints.read_recovery_points()
            self._log_start_offsets = await self._checkpoints.read_log_start_offsets()
            self._high_watermarks = await self._checkpoints.read_high_watermarks()
            self._first_dirty_offsets = await self._checkpoints.read_first_dirty_offsets()
            names = await self._environment.run_blocking(_directories_in, self._file_system, directory.path)
            async for name in each(names, NAMES_PER_SLICE):
                self._found(name)
        except OSError as error:
            self._opening_failed(error)
        return directory.is_online

    def consume_clean_shutdown_file(self) -> bool:
        """Returns whether the directory is still online. From here on `remaining_logs` counts the logs to be loaded.

        Drops the log start offsets of logs that this start, or a killed one, has set aside."""
        here = {*self.partitions, *self.future_logs}
        try:
            self._checkpoints.forget_starts([key for key in self._log_start_offsets if key not in here])
            self.is_clean = self.directory.consume_clean_shutdown_file()
        except OSError as error:
            self._opening_failed(error)
        self.remaining_logs = len(self.partitions) + len(self.future_logs)
        return self.directory.is_online

    async def load(self, wanted: Sequence[WantedLog], opened: Callable[[WantedLog, LoadedLog], None]) -> None:
        """Loads these logs one after the other, and calls `opened` for each. Ends early when the directory is offline.

        Raises KafkaError after a shortage, or for a log that cannot be loaded.
        """
        attempts = 0
        while wanted and self.directory.is_online:
            loaded, error = await self._to_its_end(self._environment.run_long(self._load_each, wanted))
            if not self.directory.is_online:
                return  # Another part has met a disk error, and the directory's logs are closed already.
            for log, found in zip(wanted, loaded, strict=False):
                self.remaining_logs -= 1
                opened(log, found)
            wanted = wanted[len(loaded) :]
            if error is None:
                continue
            path = self._path_of(wanted[0])
            if error.errno not in SHORTAGES:
                self.directory.fail(error, f"loading {path}")
                continue
            attempts = 1 if loaded else attempts + 1
            if attempts == _SHORTAGE_ATTEMPTS:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"loading {path} failed: {error}") from error
            attempts_left = _SHORTAGE_ATTEMPTS - attempts
            _LOGGER.warning("Loading %s failed, %d attempts are left: %s", path, attempts_left, error)
            await asyncio.sleep(SHORTAGE_BACK_OFF_MS / 1000)

    async def history(self, key: PartitionKey, config: LogConfig) -> LogHistory | None:
        """The history of a log as this start would load it; nothing changes on the disk. None for a log that cannot be
        loaded; the directory may be offline then."""
        wanted = WantedLog(*key, config, is_future=False)
        try:
            return await self._to_its_end(self._environment.run_long(self._read_history, wanted))
        except OSError as error:
            self._opening_failed(error)
        except KafkaError as error:
            _LOGGER.warning("%s", error.message)
        return None

    def _read_history(self, wanted: WantedLog) -> LogHistory:
        """Runs off the loop."""
        is_clean = self._file_system.exists(self.directory.file(CLEAN_SHUTDOWN_FILE))
        overlay = OverlayFileSystem(self._file_system)
        loaded = self._load_one(overlay, wanted, is_clean=is_clean)
        for segment in loaded.segments:
            segment.close_handles()
        if is_clean and any(path.endswith(LOG_SUFFIX) for path in overlay.changed()):
            # The cut may hide records that the other logs lack.
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._path_of(wanted)} is damaged")
        return LogHistory(loaded.log_start_offset, loaded.log_end_offset, loaded.leader_epochs)

    async def batch_at(self, key: PartitionKey, offset: int) -> BatchHeader | None:
        """The header of the batch that has a record at `offset`, which is in the log. None if the batch cannot be read;
        the directory may be offline then."""
        return await self._read(key, _read_batch_header, offset)

    async def whole_batches(self, key: PartitionKey, offset: int) -> list[BatchHeader] | None:
        """The headers of the last batches that begin at or before `offset` and have lost no record to compaction, at
        most `BATCHES_COMPARED`. None if a batch cannot be read; the directory may be offline then."""
        return await self._read(key, _read_whole_batches, offset)

    async def _read(
        self, key: PartitionKey, read: Callable[[FileSystem, str, int], _T | None], offset: int
    ) -> _T | None:
        path = self.directory.file(partition_directory_name(*key))
        try:
            return await self._to_its_end(self._environment.run_long(read, self._file_system, path, offset))
        except OSError as error:
            self._opening_failed(error)
        except KafkaError as error:
            _LOGGER.warning("%s: %s", path, error.message)
        return None

    def _load_each(self, wanted: Sequence[WantedLog]) -> tuple[list[LoadedLog], OSError | None]:
        """The loaded logs, and the error that has stopped the loading. Runs off the loop."""
        loaded: list[LoadedLog] = []
        for log in wanted:
            if self._is_cancelled:
                break
            try:
                loaded.append(self._load_one(self._file_system, log, is_clean=self.is_clean))
            except OSError as error:
                return loaded, error
        return loaded, None

    def _load_one(self, file_system: FileSystem, log: WantedLog, *, is_clean: bool) -> LoadedLog:
        key = log.topic, log.partition
        return load_log(
            file_system,
            self._path_of(log),
            log.config,
            log_start_offset=self._log_start_offsets.get(key, 0),
            recovery_point=self._recovery_points.get(key, 0),
            first_dirty_offset=self._first_dirty_offsets.get(key, 0),
            high_watermark=self._high_watermarks.get(key),
            is_clean=is_clean,
            now_ms=self._environment.now_ms(),
        )

    def _path_of(self, log: WantedLog) -> str:
        key = log.topic, log.partition
        return self.directory.file(self.future_logs[key] if log.is_future else partition_directory_name(*key))

    async def _to_its_end(self, work: Awaitable[_T]) -> _T:
        """Waits for the work even if cancelled. A recovery continues off the loop and may truncate its log, so the
        directory must stay locked until the recovery ends. After a cancellation, no further log is loaded."""
        working = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            self._is_cancelled = True
            await asyncio.gather(working, return_exceptions=True)
            raise

    async def promote_future_log(self, key: PartitionKey) -> None:
        """Makes the future log the current one: its directory gets the partition's name."""
        name = self.future_logs[key]
        target = partition_directory_name(*key)
        _LOGGER.info("%s becomes the log of %s-%d", self.directory.file(name), *key)
        if await self._rename(name, target):
            del self.future_logs[key]
            self.partitions.append(key)

    async def drop_future_log(self, key: PartitionKey, unique: UUID) -> None:
        """Deletes the future log later. Until then, its directory's name has the id `unique`."""
        name = self.future_logs[key]
        target = delete_directory_name(*key, unique)
        _LOGGER.warning("Deleting %s, which is not needed", self.directory.file(name))
        if await self._rename(name, target):
            del self.future_logs[key]
            self.garbage.append(self.directory.file(target))

    async def _rename(self, name: str, target: str) -> bool:
        """Returns whether the rename succeeded. If not, the directory is offline."""
        directory = self.directory
        try:
            await self._environment.run_blocking(_rename_in, self._file_system, directory.path, name, target)
        except OSError as error:
            self._opening_failed(error)
        return directory.is_online

    def high_watermark(self, key: PartitionKey) -> int | None:
        """The checkpointed high watermark."""
        return self._high_watermarks.get(key)

    def first_dirty_offset(self, key: PartitionKey) -> int | None:
        """The checkpointed offset up to which the log was compacted."""
        return self._first_dirty_offsets.get(key)

    async def topic_id(self, key: PartitionKey) -> UUID | None:
        """The topic id of a log on the disk. None if there is no readable id; the directory may be offline then."""
        path = self.directory.file(f"{partition_directory_name(*key)}/{PARTITION_METADATA_FILE}")
        try:
            return await self._environment.run_blocking(_read_topic_id, self._file_system, path)
        except OSError as error:
            self._opening_failed(error)
            return None

    async def set_aside(self, keys: Collection[PartitionKey], new_unique: Callable[[], UUID]) -> None:
        """Renames the directories of these logs so that no start loads or deletes them. Ends early when the log
        directory is offline."""
        aside = frozenset(keys)
        for key in keys:
            if not self.directory.is_online:
                return
            name, target = partition_directory_name(*key), stray_directory_name(*key, new_unique())
            _LOGGER.warning(
                "%s is older than the log of the partition in another log directory, or of a former topic of that name:"
                " it becomes %s, which may be removed",
                *(self.directory.file(name), target),
            )
            await self._rename(name, target)
        self.partitions = [key for key in self.partitions if key not in aside]

    async def describe(self, key: PartitionKey) -> str:
        """A description by which an operator can tell which of two logs is up to date."""
        path = self.directory.file(partition_directory_name(*key))
        last = await self._environment.run_blocking(_describe_last_segment, self._file_system, path)
        topic_id = await self.topic_id(key)
        of = "unknown" if topic_id is None else format_topic_id(topic_id)
        return f"{path} ({last}; high watermark {self._high_watermarks.get(key, 'unknown')}; topic id {of})"

    def _opening_failed(self, error: OSError) -> None:
        path = self.directory.path
        if error.errno in SHORTAGES:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"opening {path} failed: {error}") from error
        self.directory.fail(error, "opening the log directory")

    def _found(self, name: str) -> None:
        parsed = parse_directory_name(name)
        path = self.directory.file(name)
        if parsed is None:
            _LOGGER.warning("Ignoring %s, which is no partition's directory", path)
        elif parsed[2] == DELETE_SUFFIX:
            self.garbage.append(path)
            self.deleted.add(_unique_id(name))
        elif parsed[2] == STRAY_SUFFIX:
            _LOGGER.warning("Ignoring %s, which an earlier start has set aside; it may be removed", path)
        elif parsed[2]:
            self._found_future(parsed[:2], name)
        else:
            self.partitions.append(parsed[:2])

    def _found_future(self, key: PartitionKey, name: str) -> None:
        if key in self.future_logs:
            # A machine crash can leave two future logs: the deletion of one had not reached the disk.
            _LOGGER.warning("Ignoring %s, another future log of %s-%d", self.directory.file(name), *key)
        else:
            self.future_logs[key] = name


class LoadingProgress:
    """Logs the progress of one directory: when the loading begins, every few seconds, and at its end."""

    def __init__(self, loader: DirectoryLoader, clock_s: Callable[[], float]) -> None:
        self.loader = loader
        self._clock_s = clock_s
        self._total = loader.remaining_logs
        self._begun_s = self._told_s = clock_s()

    def begin(self) -> None:
        """Loading begins."""
        path = self.loader.directory.path
        if self.loader.is_clean:
            _LOGGER.info("Skipping recovery for all logs in %s since clean shutdown file was found", path)
        elif self._total:
            _LOGGER.info("Attempting recovery for all logs in %s since no clean shutdown file was found", path)

    def tell(self) -> None:
        """More logs are loaded."""
        if self._clock_s() - self._told_s >= PROGRESS_INTERVAL_S:
            self._told_s = self._clock_s()
            done = self._total - self.loader.remaining_logs
            _LOGGER.info("Loaded %d of %d logs in %s", done, self._total, self.loader.directory.path)

    def end(self) -> None:
        """All logs are loaded, or the directory is offline."""
        if self.loader.directory.is_online:
            took_ms = (self._clock_s() - self._begun_s) * 1000
            _LOGGER.info("Loaded %d logs in %s in %.0fms", self._total, self.loader.directory.path, took_ms)


def _unique_id(name: str) -> UUID:
    unique = unique_id(name)
    assert unique is not None
    return unique


def _rename_in(file_system: FileSystem, directory: str, name: str, target: str) -> None:
    file_system.rename(f"{directory}/{name}", f"{directory}/{target}")
    file_system.sync_directory(directory)


def _read_topic_id(file_system: FileSystem, path: str) -> UUID | None:
    try:
        return parse_partition_metadata(file_system.read_file(path), path)
    except (FileNotFoundError, KafkaError):  # A machine crash may tear the file, or keep it from the disk.
        return None


def _read_batch_header(file_system: FileSystem, path: str, offset: int) -> BatchHeader | None:
    segments = _segments_up_to(file_system, path, offset)
    if not segments:
        return None
    file = file_system.open_to_read(segments[0])
    try:
        found = find_batch(file.read, 0, file.size(), offset)
    finally:
        file.close()
    return found[1] if found is not None and found[1].base_offset <= offset else None


def _read_whole_batches(file_system: FileSystem, path: str, offset: int) -> list[BatchHeader]:
    found: list[BatchHeader] = []
    for segment in _segments_up_to(file_system, path, offset):
        file = file_system.open_to_read(segment)
        try:
            found += deque(_whole_up_to(file, offset), maxlen=BATCHES_COMPARED - len(found))
        finally:
            file.close()
        if len(found) == BATCHES_COMPARED:
            break
    return found


def _whole_up_to(file: File, offset: int) -> Iterator[BatchHeader]:
    # Stops at `offset`: a crash may have torn the batches after it.
    for _, header in headers(file.read, 0, file.size()):
        if header.base_offset <= offset and header.record_count > header.last_offset_delta:
            yield header
        if header.last_offset >= offset:
            return


def _segments_up_to(file_system: FileSystem, path: str, offset: int) -> list[str]:
    """The log files of the segments that begin at or before `offset`, the last one first."""
    matches = [match for match in map(segment_file, file_system.list_directory(path)) if match is not None]
    bases = [int(match["offset"]) for match in matches if match["kind"] == LOG_SUFFIX]
    return [f"{path}/{file_name(base, LOG_SUFFIX)}" for base in sorted(bases, reverse=True) if base <= offset]


def _directories_in(file_system: FileSystem, path: str) -> list[str]:
    return [name for name in file_system.list_directory(path) if file_system.is_directory(f"{path}/{name}")]


def _describe_last_segment(file_system: FileSystem, path: str) -> str:
    try:
        segments = sorted(name for name in file_system.list_directory(path) if name.endswith(LOG_SUFFIX))
        if not segments:
            return "no segment"
        offset, size_bytes = segments[-1].removesuffix(LOG_SUFFIX), file_system.size(f"{path}/{segments[-1]}")
        return f"last segment from offset {offset.lstrip('0') or '0'}, {size_bytes} bytes"
    except OSError as error:
        return str(error)
