"""The file of an index. It is opened at its first use, and only appended to or cut.

What must stay true: the file always holds a prefix of the entries. When the disk is full, or the file cannot be opened
for a while (`disk_errors.PASSING`), entries wait in memory and go out with the next write: an index that lacks its last
entries only makes a lookup slower.
"""

from klamm.environment import File, FileSystem
from klamm.storage.disk_errors import PASSING
from klamm.storage.unsynced_files import UnsyncedFiles


class CorruptIndexError(ValueError):
    """An index contradicts itself or its log; the message says how. It can be rebuilt from the log."""


class IndexFile:
    """All methods raise OSError, except those that say that they tolerate a full disk."""

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

    def open(self) -> None:
        """Opens the file, so that the next operation need not open it."""
        self._open()

    def append(self, data: bytes) -> None:
        """Writes at the end. When the disk is full, the data wait for the next append or `write_pending`."""
        self._pending += data
        try:
            self.write_pending()
        except OSError as error:
            if error.errno not in PASSING:
                raise

    def write_pending(self) -> None:
        """Writes the data that a full disk has kept in memory."""
        if self._pending:
            file = self._open()
            try:
                file.write(self._size_bytes, self._pending)
            except OSError:
                file.truncate(self._size_bytes)
                raise
            self._size_bytes += len(self._pending)
            self._pending = bytearray()
            self._unsynced.mark(self.path)

    def replace(self, data: bytes) -> None:
        """Makes `data` the whole content. Tolerates a full disk."""
        self.truncate(0)
        self.append(data)

    def truncate(self, size_bytes: int) -> None:
        """Cuts entries off the end, including entries that wait in memory."""
        file = self._open()
        self._pending = self._pending[: max(0, size_bytes - self._size_bytes)]
        if size_bytes < self._size_bytes:
            file.truncate(size_bytes)
            self._size_bytes = size_bytes
            self._unsynced.mark(self.path)

    def close(self) -> None:
        """Closes the handle; the next use opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> File:
        if self._file is None:
            self._file = self._file_system.open(self.path, create=True)
            self._size_bytes = self._file.size()
        return self._file
