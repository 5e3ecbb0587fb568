"""The checkpoints of one log directory: recovery points, log start offsets, high watermarks and first dirty offsets.

What must stay true:
- At most one checkpoint of a directory is being written at a time.
- The offsets of a deleted log leave the checkpoints, its log start offset before its files are renamed. Otherwise a
  later partition of the same name would inherit them: it would lose records, or regard records as committed that no
  other replica has.
- A directory that is offline is not written to.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from klamm.base.environment import Environment
from klamm.base.slices import slices
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.vocabulary import PartitionKey
from klamm.storage.log.log import Log
from klamm.storage.segments.checkpoints import (
    CLEANER_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    format_offset_checkpoint,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from klamm.storage.segments.log_directory import LogDirectory

_LOGGER = logging.getLogger(__name__)
OFFSETS_PER_SLICE = 1_000


class DirectoryCheckpoints:
    """`logs` are the present logs of all directories, current logs and future logs. `spawn` starts work that the log
    manager waits for.

    A directory has at most one log of a partition, so current and future logs share its checkpoints, as in Kafka.
    """

    def __init__(
        self,
        environment: Environment,
        directory: LogDirectory,
        logs: Sequence[Mapping[PartitionKey, Log]],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._environment = environment
        self._file_system = environment.file_system
        self._directory = directory
        self._logs = logs
        self._spawn = spawn
        self._lock = asyncio.Lock()
        # Writes of log-start-offset-checkpoint are numbered: the last begun write, and the last successful one.
        self._starts_begun = self._starts_written = 0
        self._settling = asyncio.Lock()
        self._has_moved_starts = False
        # The entries of log-start-offset-checkpoint. Only logs that need an entry have one.
        self._written_starts: Mapping[PartitionKey, int] = {}
        # The entries of cleaner-offset-checkpoint. Only logs that were compacted have an entry.
        self._written_first_dirty: Mapping[PartitionKey, int] = {}
        # The partitions in the checkpoints as read at the start; forgotten once the logs are loaded.
        self._named: set[PartitionKey] = set()
        # None unless the checkpoints are being rewritten; True if they must be rewritten again.
        self._is_outdated: bool | None = None

    # -- reading --------------------------------------------------------------------------------------------------

    async def read_recovery_points(self) -> dict[PartitionKey, int]:
        return await self._read(RECOVERY_POINT_CHECKPOINT)

    async def read_log_start_offsets(self) -> dict[PartitionKey, int]:
        starts = await self._read(LOG_START_OFFSET_CHECKPOINT)
        self._written_starts = starts
        return starts

    async def read_high_watermarks(self) -> dict[PartitionKey, int]:
        return await self._read(HIGH_WATERMARK_CHECKPOINT)

    async def read_first_dirty_offsets(self) -> dict[PartitionKey, int]:
        offsets = await self._read(CLEANER_OFFSET_CHECKPOINT)
        self._written_first_dirty = offsets
        return offsets

    async def _read(self, name: str) -> dict[PartitionKey, int]:
        path = self._directory.file(name)
        try:
            offsets = await self._environment.run_blocking(read_offset_checkpoint, self._file_system, path)
        except KafkaError as error:
            # Without a checkpoint the log is recovered whole, starts at its first segment, has no high watermark, or is
            # compacted anew.
            _LOGGER.warning("Ignoring a checkpoint that cannot be read: %s", error.message)
            return {}
        self._named.update(offsets)
        return offsets

    # -- writing --------------------------------------------------------------------------------------------------

    async def write_recovery_points(self) -> None:
        await self._write(RECOVERY_POINT_CHECKPOINT, lambda log: log.recovery_point)

    async def write_high_watermarks(self) -> None:
        await self._write(HIGH_WATERMARK_CHECKPOINT, lambda log: log.high_watermark)

    async def write_first_dirty_offsets(self) -> None:
        written = await self._write(CLEANER_OFFSET_CHECKPOINT, lambda log: log.first_dirty_offset)
        if written is not None:
            self._written_first_dirty = written

    async def settle_first_dirty_offsets(self) -> None:
        """Writes first dirty offsets that loading the logs has lowered, before the logs grow again."""
        for key, offset in self._written_first_dirty.items():
            if any(offset > (log.first_dirty_offset or 0) for log in self._logs_here(key)):
                await self.write_first_dirty_offsets()
                return

    async def write_log_start_offsets(self) -> None:
        self._starts_begun += 1
        number = self._starts_begun
        written = await self._write(LOG_START_OFFSET_CHECKPOINT, _start_to_checkpoint)
        if written is not None:
            self._written_starts = written
            self._starts_written = number
            async for piece in slices(written.items(), OFFSETS_PER_SLICE):
                for key, start_offset in piece:
                    for log in self._logs_here(key):
                        # The log may have been truncated since.
                        log.checkpointed_start_offset = min(start_offset, log.log_start_offset)

    def start_moved(self) -> None:
        """Writes log-start-offset-checkpoint soon."""
        if not self._has_moved_starts:
            self._has_moved_starts = True
            self._spawn(self._write_moved_starts())

    async def _write_moved_starts(self) -> None:
        async with self._settling:
            self._has_moved_starts = False
            await self.write_log_start_offsets()

    async def settle_log_starts(self) -> None:
        """Returns when a checkpoint begun after this call has been written, or its write has failed. Calls during a
        write share the next one."""
        begun = self._starts_begun
        async with self._settling:
            if self._starts_written <= begun:
                await self.write_log_start_offsets()

    async def truncated(self, log: Log) -> None:
        """Writes the offsets that a truncation may have moved back."""
        await self.write_recovery_points()
        key = (log.topic, log.partition)
        # A checkpointed log start offset above the log's new end would drop the next records at the next start.
        if self._written_starts.get(key, 0) > log.log_start_offset:
            await self.write_log_start_offsets()
        # The next records below a checkpointed first dirty offset would count as compacted.
        if self._written_first_dirty.get(key, 0) > (log.first_dirty_offset or 0):
            await self.write_first_dirty_offsets()

    def forget_starts(self, keys: Collection[PartitionKey]) -> None:
        """Drops the log start offsets of logs that are about to be deleted, or are not in this directory. Raises
        OSError."""
        if self._written_starts.keys().isdisjoint(keys):
            return
        if self._lock.locked():
            return  # `rewrite_soon` drops them.
        starts = {key: start_offset for key, start_offset in self._written_starts.items() if key not in keys}
        path = self._directory.file(LOG_START_OFFSET_CHECKPOINT)
        self._file_system.replace_file(path, format_offset_checkpoint(starts))
        self._written_starts = starts

    def forget_strangers(self) -> None:
        """Rewrites the checkpoints soon if they have entries of logs that are not in this directory: this start has set
        the logs aside, or a killed process had deleted them or moved them to another directory."""
        here = {key for logs in self._logs for key, log in logs.items() if log.log_directory is self._directory}
        if not here.issuperset(self._named):
            self.rewrite_soon()
        self._named = set()

    def rewrite_soon(self) -> None:
        """Rewrites the checkpoints soon, because a log was deleted or moved here. However many logs change meanwhile,
        other writes wait for at most two rewrites."""
        is_under_way = self._is_outdated is not None
        self._is_outdated = True
        if not is_under_way:
            self._spawn(self._update())

    async def _update(self) -> None:
        while self._is_outdated:
            self._is_outdated = False
            await self._sync_names()
            await self.write_recovery_points()
            await self.write_high_watermarks()
            await self.write_log_start_offsets()
            await self.write_first_dirty_offsets()
        self._is_outdated = None

    async def _sync_names(self) -> None:
        """Syncs the log directory. Each checkpoint does so, too, but a full disk takes no checkpoint. A log that is
        deleted then would be back after a power failure, and prevent a new topic of that name."""
        if self._directory.is_online:
            path = self._directory.path
            try:
                await self._environment.run_long(self._file_system.sync_directory, path)
            except OSError as error:
                _LOGGER.warning("%s", self._directory.storage_error(error, f"syncing {path}"))

    async def _write(self, name: str, offset_of: Callable[[Log], int | None]) -> Mapping[PartitionKey, int] | None:
        """The entries that were written; None if the write failed."""
        async with self._lock:
            if not self._directory.is_online:
                return None
            offsets = await self._offsets(offset_of)
            path = self._directory.file(name)
            writing = asyncio.ensure_future(
                self._environment.run_blocking(write_offset_checkpoint, self._file_system, path, offsets)
            )
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                # The write continues without its caller, and the next write must not begin before it ends.
                await asyncio.gather(writing, return_exceptions=True)
                raise
            except OSError as error:
                _LOGGER.warning("%s", self._directory.storage_error(error, f"writing {name}"))
                return None
            return offsets

    async def _offsets(self, offset_of: Callable[[Log], int | None]) -> dict[PartitionKey, int]:
        """The entries of a checkpoint of this directory. A change of a log meanwhile requests another checkpoint."""
        offsets = {}
        for logs in self._logs:
            async for piece in slices(logs, OFFSETS_PER_SLICE):
                for key in piece:
                    for log in self._logs_here(key):
                        offset = offset_of(log)
                        if offset is not None:
                            offsets[key] = offset
        return offsets

    def _logs_here(self, key: PartitionKey) -> list[Log]:
        """The partition's log in this directory, if it has one."""
        found = [log for logs in self._logs if (log := logs.get(key)) is not None]
        return [log for log in found if log.log_directory is self._directory]


def _start_to_checkpoint(log: Log) -> int | None:
    return log.log_start_offset if log.needs_start_checkpoint else None
