"""A disk that fails on demand, under production code: for tests of what a broker does then."""

import errno
import os
from collections.abc import Callable

from klamm.base.environment import Buffer, File, FileSystem
from klamm.base.system_environment import SystemEnvironment, SystemFileSystem

# Operations that need space on the disk.
GROWING = ("write", "create", "make_directories", "rename", "lock")
# Operations that need a file descriptor of their own.
OPENING = ("open", "create", "list_directory", "sync_directory", "lock", "remove_tree")


class FailingDisk(SystemEnvironment):
    """The real environment, with a rule about which operations fail: `fail` sets it, `heal` ends it.

    An operation is one of read, write, truncate, sync, open, create, list_directory, make_directories, rename, remove,
    remove_tree, sync_directory, lock.
    """

    def __init__(self) -> None:
        super().__init__()
        self._rule: Callable[[str, str], int | None] = lambda operation, path: None
        self.file_system: FileSystem = _FailingFileSystem(self)
        self.failures = 0

    def fail(self, error_number: int, *operations: str, below: str = "/", matching: str = "") -> None:
        """From now on these operations (none named: all) fail on what lies below a directory.

        `matching`: only files whose names contain this.
        """

        def rule(operation: str, path: str) -> int | None:
            inside = path == below or path.startswith(below.rstrip("/") + "/")
            wanted = not operations or operation in operations
            return error_number if inside and wanted and matching in os.path.basename(path) else None

        self._rule = rule

    def fill(self, **where: str) -> None:
        """The disk has no space left."""
        self.fail(errno.ENOSPC, *GROWING, **where)

    def exhaust_descriptors(self, error_number: int, **where: str) -> None:
        """Nothing more can be opened; what is open works."""
        self.fail(error_number, *OPENING, **where)

    def heal(self) -> None:
        self._rule = lambda operation, path: None

    def check(self, operation: str, path: str) -> None:
        number = self._rule(operation, path)
        if number is not None:
            self.failures += 1
            raise OSError(number, os.strerror(number), path)


class _FailingFile(File):
    def __init__(self, disk: FailingDisk, file: File) -> None:
        self._disk, self._file, self.path = disk, file, file.path

    def size(self) -> int:
        return self._file.size()

    def read(self, position: int, size_bytes: int) -> bytearray:
        self._disk.check("read", self.path)
        return self._file.read(position, size_bytes)

    def read_cached(self, position: int, size_bytes: int) -> bytearray | None:
        self._disk.check("read", self.path)
        return self._file.read_cached(position, size_bytes)

    def write(self, position: int, *buffers: Buffer) -> int:
        try:
            self._disk.check("write", self.path)
        except OSError:
            # A real disk may have written a part.
            whole = b"".join(buffers)
            self._file.write(position, whole[: len(whole) // 2])
            raise
        return self._file.write(position, *buffers)

    def truncate(self, size_bytes: int) -> None:
        self._disk.check("truncate", self.path)
        self._file.truncate(size_bytes)

    def allocate(self, size_bytes: int) -> None:
        self._disk.check("allocate", self.path)
        self._file.allocate(size_bytes)

    def sync(self) -> None:
        self._disk.check("sync", self.path)
        self._file.sync()

    def close(self) -> None:
        self._file.close()


class _FailingFileSystem(SystemFileSystem):
    def __init__(self, disk: FailingDisk) -> None:
        self._disk = disk

    def open(self, path: str, *, create: bool = False) -> File:
        self._disk.check("create" if create and not self.exists(path) else "open", path)
        return _FailingFile(self._disk, super().open(path, create=create))

    def remove_tree(self, path: str) -> None:
        self._disk.check("remove_tree", path)
        super().remove_tree(path)

    def list_directory(self, path: str) -> list[str]:
        self._disk.check("list_directory", path)
        return super().list_directory(path)

    def make_directories(self, path: str) -> None:
        self._disk.check("make_directories", path)
        super().make_directories(path)

    def rename(self, source: str, target: str) -> None:
        self._disk.check("rename", source)
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self._disk.check("remove", path)
        super().remove(path)

    def sync_directory(self, path: str) -> None:
        self._disk.check("sync_directory", path)
        super().sync_directory(path)

    def lock(self, path: str) -> File:
        self._disk.check("lock", path)
        return super().lock(path)
