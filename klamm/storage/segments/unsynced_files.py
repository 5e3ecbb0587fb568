"""The files with writes that a machine crash would undo.

A log writes without waiting for the disk, and syncs all its writes before it moves its recovery point. What must stay
true: a path leaves this collection only after a sync that began after the path's last write, even if two flushes run
concurrently.
"""

from klamm.base.environment import FileSystem

# The suffix of a file until it is whole.
HALF_WRITTEN_SUFFIX = ".tmp"


class UnsyncedFiles:
    """Paths of files and directories with unsynced changes, each with the number of its latest change."""

    __slots__ = ("_version", "_versions")

    def __init__(self) -> None:
        self._versions: dict[str, int] = {}
        self._version = 0

    def __contains__(self, path: str) -> bool:
        return path in self._versions

    def mark(self, path: str) -> None:
        """This file or directory has changed."""
        self._version += 1
        self._versions[path] = self._version

    def forget(self, path: str) -> None:
        """This file is removed, or will be soon."""
        self._versions.pop(path, None)

    def directory_renamed(self, old: str, new: str) -> None:
        """The directory `old`, and with it each path below it, is renamed. A pending sync does not count for these
        paths."""
        for path in [path for path in self._versions if path == old or path.startswith(old + "/")]:
            del self._versions[path]
            self.mark(new + path[len(old) :])

    def pending(self) -> dict[str, int]:
        """The paths that a sync must cover now. Pass them to `sync`, and then to `settle`."""
        return dict(self._versions)

    def settle(self, pending: dict[str, int], missing: list[str]) -> None:
        """The sync of `pending` has succeeded, except for the `missing` files.

        Raises FileNotFoundError when a missing file is still unsynced.
        """
        for path in missing:
            if path in self._versions:
                raise FileNotFoundError(2, "file vanished before it was synced", path)
        for path, version in pending.items():
            if self._versions.get(path) == version:
                del self._versions[path]
        if not self._versions:
            # An emptied dict keeps its memory. Most logs of a broker have nothing to sync.
            self._versions = {}


def sync(file_system: FileSystem, pending: dict[str, int]) -> list[str]:
    """Syncs each path. May run off the loop. Returns the paths that do not exist. Raises OSError."""
    missing = []
    for path in pending:
        try:
            if file_system.is_directory(path):
                file_system.sync_directory(path)
                continue
            file = file_system.open(path)
        except FileNotFoundError:
            missing.append(path)
            continue
        try:
            file.sync()
        finally:
            file.close()
    return missing


def replace_unsynced(file_system: FileSystem, path: str, content: bytes, unsynced: UnsyncedFiles) -> None:
    """Replaces a small file atomically. A process crash does not undo this; it is durable after the next sync."""
    temporary = path + HALF_WRITTEN_SUFFIX
    write_unsynced(file_system, temporary, content)
    file_system.rename(temporary, path)
    # If the process is killed, the temporary file may stay; the loader then marks it with all other files.
    unsynced.forget(temporary)
    unsynced.mark(path)
    unsynced.mark(path.rpartition("/")[0])


def write_unsynced(file_system: FileSystem, path: str, content: bytes) -> None:
    """Gives a file this content. May run off the loop."""
    file = file_system.open(path, create=True)
    try:
        file.truncate(0)
        file.write(0, content)
    finally:
        file.close()
