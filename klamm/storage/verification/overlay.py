"""A file system on top of another one: changes stay in memory, the files below are only read.

On an overlay, code that repairs files as it reads them (`log_loader`) shows its repairs and changes no file.

What must stay true: no method changes a file below. Only the changed end of a file is in memory, because callers only
cut files and write at their ends.
"""

import errno
import os

from klamm.base.environment import Buffer, File, FileSystem


class _Content:
    """The first `kept_bytes` of the file `base` below, and `tail` behind them."""

    def __init__(self, base: str | None, kept_bytes: int, modified_ms: int) -> None:
        self.base = base
        self.kept_bytes = kept_bytes
        self.tail = bytearray()
        self.modified_ms = modified_ms

    @property
    def size_bytes(self) -> int:
        return self.kept_bytes + len(self.tail)


class OverlayFileSystem(FileSystem):
    """The files of `below`, as they would be after the changes."""

    def __init__(self, below: FileSystem) -> None:
        self._below = below
        # The files that were changed, created or renamed, by their new path; None for removed files.
        self._changed: dict[str, _Content | None] = {}
        # The unchanged files that have been opened, so that all handles of a file see a change.
        self._opened: dict[str, _Content] = {}

    # -- changes --------------------------------------------------------------------------------------------------

    def changed(self) -> list[str]:
        """The files that differ from those below or were removed, sorted."""
        return sorted(path for path in self._changed if self._differs(path))

    def _differs(self, path: str) -> bool:
        content = self._changed[path]
        if not self._below.exists(path):
            return content is not None
        if content is None or content.base not in (path, None):
            return True
        if content.size_bytes != self._below.size(path):
            return True
        return bool(content.tail) and self._read_below(path, content.kept_bytes, len(content.tail)) != content.tail

    # -- files ----------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> File:
        content = self._find(path)
        if content is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            content = self._changed[path] = _Content(None, 0, 0)
        return _OverlayFile(self, path, content)

    def open_to_read(self, path: str) -> File:
        return self.open(path)

    def exists(self, path: str) -> bool:
        if path in self._changed:
            return self._changed[path] is not None
        return self._below.exists(path)

    def is_directory(self, path: str) -> bool:
        return path not in self._changed and self._below.is_directory(path)

    def list_directory(self, path: str) -> list[str]:
        names = set(self._below.list_directory(path))
        for changed, content in self._changed.items():
            directory, _, name = changed.rpartition("/")
            if directory == path:
                (names.discard if content is None else names.add)(name)
        return sorted(names)

    def make_directories(self, path: str) -> None:
        if not self._below.is_directory(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def size(self, path: str) -> int:
        content = self._changed.get(path)
        return self._below.size(path) if content is None else content.size_bytes

    def modified_time_ms(self, path: str) -> int:
        content = self._changed.get(path)
        return self._below.modified_time_ms(path) if content is None else content.modified_ms

    def set_modified_time_ms(self, path: str, modified_ms: int) -> None:
        content = self._find(path)
        if content is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        content.modified_ms = modified_ms

    def rename(self, source: str, target: str) -> None:
        content = self._find(source)
        if content is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        self._changed[source] = None
        self._changed[target] = content

    def remove(self, path: str) -> None:
        if not self.exists(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._changed[path] = None

    def remove_tree(self, path: str) -> None:
        for name in self.list_directory(path):
            self.remove(f"{path}/{name}")

    def sync_directory(self, path: str) -> None:
        """Nothing reaches the disk."""

    def lock(self, path: str) -> File:
        return self.open(path, create=True)

    def change(self, path: str, content: _Content) -> None:
        """Called when a file is written to for the first time."""
        self._changed[path] = content

    def _find(self, path: str) -> _Content | None:
        if path in self._changed:
            return self._changed[path]
        if not self._below.exists(path) or self._below.is_directory(path):
            return None
        if path not in self._opened:
            self._opened[path] = _Content(path, self._below.size(path), self._below.modified_time_ms(path))
        return self._opened[path]

    def _read_below(self, path: str, position: int, size_bytes: int) -> bytearray:
        file = self._below.open_to_read(path)
        try:
            return file.read(position, size_bytes)
        finally:
            file.close()

    def open_below(self, path: str) -> File:
        return self._below.open_to_read(path)


class _OverlayFile(File):
    def __init__(self, file_system: OverlayFileSystem, path: str, content: _Content) -> None:
        self.path = path
        self._file_system = file_system
        self._content = content
        self._below: File | None = None

    def size(self) -> int:
        return self._content.size_bytes

    def read(self, position: int, size_bytes: int) -> bytearray:
        kept = self._content.kept_bytes
        data = bytearray()
        if position < kept:
            data = self._read_below(position, min(size_bytes, kept - position))
        if len(data) < size_bytes and position + len(data) >= kept:
            start = position + len(data) - kept
            data += self._content.tail[start : start + size_bytes - len(data)]
        return data

    def read_cached(self, position: int, size_bytes: int) -> bytearray | None:
        return self.read(position, size_bytes)

    def write(self, position: int, *buffers: Buffer) -> int:
        data = b"".join(buffers)
        content = self._content
        self._keep_at_most(position)
        start = position - content.kept_bytes
        if start > len(content.tail):
            content.tail += bytes(start - len(content.tail))
        content.tail[start : start + len(data)] = data
        self._file_system.change(self.path, content)
        return len(data)

    def truncate(self, size_bytes: int) -> None:
        content = self._content
        if size_bytes < content.kept_bytes:
            content.kept_bytes = size_bytes
            content.tail.clear()
        else:
            size = size_bytes - content.kept_bytes
            del content.tail[size:]
            content.tail += bytes(size - len(content.tail))
        self._file_system.change(self.path, content)

    def allocate(self, size_bytes: int) -> None:
        if size_bytes > self.size():
            self.truncate(size_bytes)

    def sync(self) -> None:
        """Nothing reaches the disk."""

    def close(self) -> None:
        if self._below is not None:
            self._below.close()
            self._below = None

    def _keep_at_most(self, size_bytes: int) -> None:
        """Moves the kept bytes behind `size_bytes` into memory, where they may be overwritten."""
        content = self._content
        if size_bytes < content.kept_bytes:
            moved = self._read_below(size_bytes, content.kept_bytes - size_bytes)
            content.kept_bytes = size_bytes
            content.tail[:0] = moved

    def _read_below(self, position: int, size_bytes: int) -> bytearray:
        assert self._content.base is not None
        if self._below is None:
            self._below = self._file_system.open_below(self._content.base)
        return self._below.read(position, size_bytes)
