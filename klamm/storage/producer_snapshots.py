"""The snapshot files of one partition's producer state.

What must stay true: a malformed snapshot is removed, and an older snapshot is used. A missing snapshot only means that
more of the log is replayed, so snapshots are written without waiting for the disk.
"""

import logging

from klamm.environment import FileSystem
from klamm.protocol.errors import KafkaError
from klamm.storage.disk_errors import PASSING
from klamm.storage.producer_state import ProducerState
from klamm.storage.segment import SNAPSHOT_SUFFIX, file_name
from klamm.storage.unsynced_files import UnsyncedFiles

_LOGGER = logging.getLogger(__name__)


class ProducerSnapshots:
    """The snapshots in a partition's directory. Methods that touch the disk raise OSError."""

    __slots__ = ("_directory", "_distrusted", "_file_system", "_offsets", "_unsynced")

    def __init__(self, file_system: FileSystem, directory: str, unsynced: UnsyncedFiles, offsets: list[int]) -> None:
        self._file_system = file_system
        self._directory = directory
        self._unsynced = unsynced
        self._offsets = sorted(offsets)
        # The offsets of files that are not read, and are deleted soon unless they are written anew.
        self._distrusted: tuple[int, ...] = ()

    @property
    def offsets(self) -> list[int]:
        """The offsets of the snapshots, ascending. A snapshot holds the state before its offset."""
        return self._offsets

    def directory_renamed(self, directory: str) -> None:
        self._directory = directory

    def take(self, state: ProducerState) -> None:
        """Writes a snapshot of `state` unless the latest snapshot is as new."""
        if state.end_offset <= (self._offsets[-1] if self._offsets else 0):
            return
        path, content = self._path(state.end_offset), state.to_snapshot()
        if not self._has_already(state.end_offset, path, content):
            file = self._file_system.open(path, create=True)
            try:
                file.truncate(0)
                file.write(0, content)
            finally:
                file.close()
            self._unsynced.mark(path)
            self._unsynced.mark(self._directory)
        self._offsets.append(state.end_offset)

    def _has_already(self, offset: int, path: str, content: bytes) -> bool:
        """Whether a distrusted file turns out to have just this content."""
        if offset not in self._distrusted:
            return False
        self._distrusted = tuple(other for other in self._distrusted if other != offset)
        return self._file_system.read_file(path) == content

    def take_if_room(self, state: ProducerState) -> None:
        """As `take`, but tolerates a full disk: a snapshot of an open log only saves work."""
        try:
            self.take(state)
        except OSError as error:
            if error.errno not in PASSING:
                raise
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
        if offset in self._offsets:
            self._offsets.remove(offset)
            path = self._path(offset)
            self._unsynced.forget(path)
            self._unsynced.mark(self._directory)
            if self._file_system.exists(path):
                self._file_system.remove(path)

    def delete_after(self, offset: int) -> None:
        """Removes the snapshots above `offset`."""
        for stray in [stray for stray in self._offsets if stray > offset]:
            self.delete(stray)

    def distrust_after(self, offset: int) -> None:
        """Takes the snapshots above `offset` for wrong. `delete_distrusted` deletes those that have not proved right:
        most have, after the kill of a process, and deleting thousands of files takes long."""
        self._distrusted += tuple(other for other in self._offsets if other > offset)
        self._offsets = [other for other in self._offsets if other <= offset]

    def delete_distrusted(self) -> None:
        """Removes what is left of the distrusted snapshots."""
        self._offsets = sorted({*self._offsets, *self._distrusted})
        for offset in self._distrusted:
            self.delete(offset)
        self._distrusted = ()

    def keep_only(self, segment_offsets: list[int]) -> None:
        """Removes all snapshots except the latest and those at the segments' base offsets."""
        kept = {*segment_offsets, *self._offsets[-1:]}
        for stray in [stray for stray in self._offsets if stray not in kept]:
            self.delete(stray)

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"
