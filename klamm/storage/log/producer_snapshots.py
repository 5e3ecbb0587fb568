"""The snapshot files of one partition's producer state.

What must stay true: a malformed snapshot is removed, and an older snapshot is used. Without a snapshot, a longer part
of the log is replayed, so snapshots are written without waiting for the disk.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress

from klamm.base.environment import Environment, FileSystem
from klamm.base.slices import Steps, in_slices
from klamm.protocol.error_codes import KafkaError
from klamm.storage.log.producer_state import ProducerState
from klamm.storage.segments.disk_errors import PASSING
from klamm.storage.segments.segment import DELETED_SUFFIX, SNAPSHOT_SUFFIX, file_name
from klamm.storage.segments.unsynced_files import HALF_WRITTEN_SUFFIX, UnsyncedFiles, write_unsynced

_LOGGER = logging.getLogger(__name__)


class ProducerSnapshots:
    """The snapshots in a partition's directory. Methods that touch the disk raise OSError."""

    __slots__ = ("_directory", "_distrusted", "_file_system", "_offsets", "_pending", "_unsynced")

    def __init__(self, file_system: FileSystem, directory: str, unsynced: UnsyncedFiles, offsets: list[int]) -> None:
        self._file_system = file_system
        self._directory = directory
        self._unsynced = unsynced
        self._offsets = sorted(offsets)
        # The offsets of files that are not trusted. They are deleted soon, unless `take` finds them right.
        self._distrusted: tuple[int, ...] = ()
        # A large snapshot to write: the steps that make it, and its offset.
        self._pending: tuple[Steps[bytes], int] | None = None

    @property
    def offsets(self) -> list[int]:
        """The offsets of the snapshots, ascending. A snapshot holds the state before its offset."""
        return self._offsets

    @property
    def latest_offset(self) -> int:
        """0 if there is no snapshot."""
        return self._offsets[-1] if self._offsets else 0

    def directory_renamed(self, directory: str) -> None:
        self._directory = directory

    def take(self, state: ProducerState) -> None:
        """Writes a snapshot of `state` unless the latest snapshot is as new."""
        if state.end_offset <= self.latest_offset:
            return
        path, content = self._path(state.end_offset), state.to_snapshot()
        if not self._has_already(state.end_offset, path, content):
            write_unsynced(self._file_system, path, content)
            self._unsynced.mark(path)
            self._unsynced.mark(self._directory)
        self._offsets.append(state.end_offset)

    def _has_already(self, offset: int, path: str, content: bytes) -> bool:
        """Whether a distrusted file has exactly this content."""
        if offset not in self._distrusted:
            return False
        self._distrusted = tuple(other for other in self._distrusted if other != offset)
        return self._file_system.read_file(path) == content

    async def take_in_steps(
        self, steps: Steps[bytes], offset: int, environment: Environment, is_wanted: Callable[[], bool]
    ) -> None:
        """Like `take`, for a large state: `steps` make the content, which is written off the loop. If it is no longer
        wanted then, there is no snapshot."""
        content = await in_slices(steps)
        try:
            await environment.run_long(
                write_unsynced, self._file_system, self._path(offset) + HALF_WRITTEN_SUFFIX, content
            )
            # The directory may have been renamed.
            path = self._path(offset)
            if is_wanted() and offset > self.latest_offset:
                self._file_system.rename(path + HALF_WRITTEN_SUFFIX, path)
                self._unsynced.mark(path)
                self._unsynced.mark(self._directory)
                self._offsets.append(offset)
                return
        except FileNotFoundError:
            return  # The log was deleted or moved during the write.
        finally:
            with suppress(OSError):
                self._file_system.remove(self._path(offset) + HALF_WRITTEN_SUFFIX)

    def take_if_room(self, state: ProducerState) -> None:
        """Like `take`, but tolerates a full disk: a snapshot of an open log only saves work."""
        try:
            self.take(state)
        except OSError as error:
            self._tolerate(error)

    def take_soon(self, state: ProducerState) -> None:
        """Like `take_if_room`. A large state is left to `write_pending`, unless a newer one or a truncation follows."""
        if state.is_large:
            self._pending = state.begin_snapshot(), state.end_offset
        else:
            self.take_if_room(state)

    async def write_pending(self, environment: Environment, is_wanted: Callable[[], bool]) -> bool:
        """Writes the snapshot that `take_soon` has left, if there is one. Returns whether there was."""
        if self._pending is None:
            return False
        (steps, offset), self._pending = self._pending, None
        try:
            await self.take_in_steps(steps, offset, environment, is_wanted)
        except OSError as error:
            self._tolerate(error)
        return True

    def _tolerate(self, error: OSError) -> None:
        if error.errno not in PASSING:
            raise error
        _LOGGER.warning("No producer snapshot in %s: %s", self._directory, error)

    def load_latest(self, at_most: int) -> ProducerState | None:
        """The state of the latest good snapshot up to offset `at_most`."""
        for offset in self.latest_first(at_most):
            try:
                return self.read(offset)
            except KafkaError as error:
                self.drop_unreadable(offset, error)
        return None

    def latest_first(self, at_most: int) -> list[int]:
        """The offsets of the snapshots up to `at_most`, descending."""
        return [offset for offset in reversed(self._offsets) if offset <= at_most]

    def read(self, offset: int) -> ProducerState:
        """The state in one snapshot; changes nothing, so it may run off the loop. Raises KafkaError when malformed."""
        path = self._path(offset)
        return ProducerState.from_snapshot(self._file_system.read_file(path), offset, path)

    def drop_unreadable(self, offset: int, error: KafkaError) -> None:
        """Removes a snapshot that `read` has found malformed."""
        _LOGGER.warning("Removing a producer snapshot that cannot be read: %s", error.message)
        self.delete(offset)

    def delete(self, offset: int) -> None:
        """Removes the snapshot at `offset` if there is one."""
        path = self._path(offset)
        if self._forget(offset) and self._file_system.exists(path):
            self._file_system.remove(path)

    def _forget(self, offset: int) -> bool:
        """Returns whether there was a snapshot at `offset`."""
        at = bisect_left(self._offsets, offset)
        if self._offsets[at : at + 1] != [offset]:
            return False
        del self._offsets[at]
        self._unsynced.forget(self._path(offset))
        self._unsynced.mark(self._directory)
        return True

    def mark_deleted(self, offset: int) -> list[str]:
        """Like `delete`, but only renames the file to .deleted, which is quicker; returns its new path, if any."""
        path = self._path(offset)
        if not self._forget(offset) or not self._file_system.exists(path):
            return []
        self._file_system.rename(path, path + DELETED_SUFFIX)
        return [path + DELETED_SUFFIX]

    def delete_after(self, offset: int) -> None:
        """Removes the snapshots above `offset`, where the log is cut."""
        self._pending = None
        for stray in [stray for stray in self._offsets if stray > offset]:
            self.delete(stray)

    def distrust_after(self, offset: int) -> None:
        """Distrusts the snapshots above `offset`. `take` keeps a file that proves right, and `delete_distrusted`
        deletes the others: after the kill of a process most are right, and deleting thousands of files takes long."""
        self._distrusted += tuple(other for other in self._offsets if other > offset)
        self._offsets = [other for other in self._offsets if other <= offset]

    def delete_distrusted(self) -> None:
        """Removes the remaining distrusted snapshots."""
        self._offsets = sorted({*self._offsets, *self._distrusted})
        for offset in self._distrusted:
            self.delete(offset)
        self._distrusted = ()

    def drop_stray(self, is_segment: Callable[[int], bool]) -> None:
        """Removes the last snapshot but one, unless it is at the base offset of a segment. If each snapshot is followed
        by this call, only the latest snapshot may be another stray."""
        if len(self._offsets) > 1 and not is_segment(self._offsets[-2]):
            self.delete(self._offsets[-2])

    def keep_only(self, segment_offsets: list[int]) -> None:
        """Removes all snapshots except the latest and those at the segments' base offsets."""
        kept = {*segment_offsets, *self._offsets[-1:]}
        for stray in [stray for stray in self._offsets if stray not in kept]:
            self.delete(stray)

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
