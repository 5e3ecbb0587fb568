"""The file of an index, which is only appended to or cut. No descriptor stays open: a broker has many thousand indexes.

What must stay true: the file always holds a prefix of the entries; later entries wait in memory. Each flush writes them
before the recovery point moves. So below the recovery point an index is whole, and above it a recovery rebuilds it. An
index that lacks its last entries only makes a lookup slower.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from klamm.base.environment import File, FileSystem
from klamm.storage.segments.unsynced_files import UnsyncedFiles


class CorruptIndexError(ValueError):
    """An index contradicts itself or its log; the message says how. It can be rebuilt from the log."""


class IndexFile:
    """Methods that touch the disk raise OSError. Then the entries in memory are kept."""

    __slots__ = ("_file", "_file_system", "_pending", "_size_bytes", "_unsynced", "path")

    def __init__(self, file_system: FileSystem, path: str, unsynced: UnsyncedFiles) -> None:
        self.path = path
        self._file_system = file_system
        self._unsynced = unsynced
        self._file: File | None = None
        self._size_bytes = -1
        self._pending = bytearray()

    def exists(self) -> bool:
        return self._file_system.exists(self.path)

    def read_all(self) -> bytes:
        """The file's content. Opens its own handle, so it may run off the loop."""
        return self._file_system.read_file(self.path)

    def read_tail(self, size_bytes: int) -> tuple[int, bytes]:
        """(size of the file, its last `size_bytes` bytes or fewer)."""
        file = self._file_system.open(self.path)
        try:
            size = file.size()
            return size, bytes(file.read(max(0, size - size_bytes), size_bytes))
        finally:
            file.close()

    def keep_open(self) -> None:
        """Opens the file until `close`, so that no change before `close` fails for lack of a descriptor."""
        if self._file is None:
            self._file = self._file_system.open(self.path, create=True)

    def append(self, data: bytes) -> None:
        """Adds data that `write_pending` will write."""
        self._pending += data

    def write_pending(self) -> None:
        """Writes the data that is only in memory."""
        if self._pending:
            with self._opened() as file:
                size_bytes = self._known_size(file)
                try:
                    file.write(size_bytes, self._pending)
                except OSError:
                    file.truncate(size_bytes)
                    raise
                self._size_bytes = size_bytes + len(self._pending)
                self._pending = bytearray()
                self._unsynced.mark(self.path)

    def truncate(self, size_bytes: int) -> None:
        """Cuts entries off the end, including entries that are only in memory."""
        with self._opened() as file:
            old_size_bytes = self._known_size(file)
            self._pending = self._pending[: max(0, size_bytes - old_size_bytes)]
            if size_bytes < old_size_bytes:
                file.truncate(size_bytes)
                self._size_bytes = size_bytes
                self._unsynced.mark(self.path)

    def close(self) -> None:
        """Ends `keep_open`."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @contextmanager
    def _opened(self) -> Iterator[File]:
        if self._file is not None:
            yield self._file
            return
        file = self._file_system.open(self.path, create=True)
        try:
            yield file
        finally:
            file.close()

    def _known_size(self, file: File) -> int:
        if self._size_bytes < 0:
            self._size_bytes = file.size()
        return self._size_bytes
