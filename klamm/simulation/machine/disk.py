"""The in-memory disk, which decides what survives the death of a process or of its machine.

Contents are durable once `File.sync` has returned, names (creations, renames, removals) once `sync_directory` of their
directory has. The death of a process loses neither: the kernel still holds the writes. The death of the machine keeps
all durable data and a seeded choice of the rest:

- Names come from a journal, as on every journaling file system: a prefix of the changes that are not durable yet
  survives, and each change (a rename too) survives as a whole or not at all.
- The unsynced writes of a file survive up to some byte, or page by page, or all, or none; pages lost below a surviving
  page read as zeros or as their earlier contents.
- Writes that a failed sync should have made durable never become durable, as on Linux.

What must stay true: every call of a dead process raises; every change of the disk is in the trace.
"""

import errno
import fnmatch
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from klamm.base.environment import Buffer, File, FileSystem
from klamm.simulation.machine.process import Process
from klamm.simulation.machine.step_meter import StepMeter
from klamm.simulation.machine.trace import Trace, checksum

PAGE_BYTES: Final = 4096
COLD_CHANCE: Final = 0.2
# A process with more open files is short of descriptors. The limit is low, so that logs close and reopen files in all
# runs.
FEW_FILES: Final = 3


class _Inode:
    """A file without its name. `durable` plus `pending` (writes and cuts in order) makes `content`."""

    def __init__(self, now_ms: int) -> None:
        self.content = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes | None]] = []  # (position, bytes), or (size, None) for a truncation
        self.modified_ms = now_ms
        self.locked_by: Process | None = None

    def change(self, position: int, data: bytes | None, now_ms: int) -> None:
        _apply(self.content, position, data)
        self.pending.append((position, data))
        self.modified_ms = now_ms

    def sync(self) -> None:
        for position, data in self.pending:
            _apply(self.durable, position, data)
        self.pending.clear()

    def lose_unsynced(self, chance: random.Random) -> None:
        """The machine died."""
        survivors = chance.choice((_none, _all, _torn, _scattered))(self.pending, chance)
        for position, data in survivors:
            _apply(self.durable, position, data)
        self.pending.clear()
        self.content = bytearray(self.durable)
        self.locked_by = None


class _Directory:
    """Names now, and the names that survive the machine's death."""

    def __init__(self, now_ms: int) -> None:
        self.entries: dict[str, _Node] = {}
        self.durable: dict[str, _Node] = {}
        self.modified_ms = now_ms


_Node = _Inode | _Directory
_Change = tuple[int, bytes | None]
# The changes of names by one operation, applied as a whole or not at all: directory, name, and the name's new node.
_NameChange = list[tuple[_Directory, str, _Node | None]]


@dataclass
class Fault:
    """The next `times` matching operations on a matching path fail with `error_number`; with None, all of them."""

    operation: str
    pattern: str
    error_number: int
    times: int | None


class Disk:
    """The disk of one machine. Programs reach it through a `SimulatedFileSystem`."""

    def __init__(self, name: str, chance: random.Random, trace: Trace, now_ms: Callable[[], int]) -> None:
        self.name = name
        self.random = chance
        self.trace = trace
        self.now_ms = now_ms
        self.capacity_bytes: int | None = None
        # The meter of the loop on which the programs of this machine run.
        self.meter: StepMeter | None = None
        self._root = _Directory(now_ms())
        self._journal: list[_NameChange] = []
        self._faults: list[Fault] = []
        # While descriptors are exhausted: the number of files closed since then, minus the number opened.
        self.spare_descriptors = 0

    def fail(self, operation: str, pattern: str, error_number: int = errno.EIO, times: int | None = 1) -> None:
        """Makes operations fail until they have failed `times` times, or (None) until `mend`.

        `operation` is an fnmatch pattern for names of methods of `File` and `FileSystem`, `pattern` is one for paths.
        """
        self._faults.append(Fault(operation, pattern, error_number, times))

    def mend(self) -> None:
        """Ends all faults and limits: the disk works and has room."""
        self._faults.clear()
        self.capacity_bytes = None

    def exhaust_descriptors(self, directory: str) -> None:
        """Until `free_descriptors`, a file below this directory can be opened only after another file was closed."""
        self.spare_descriptors = 0
        for operation in ("open", "list_directory", "sync_directory", "lock"):
            for pattern in (directory, f"{directory}/*"):
                self.fail(operation, pattern, errno.EMFILE, times=None)

    def free_descriptors(self) -> None:
        self._faults = [fault for fault in self._faults if fault.error_number != errno.EMFILE]

    def rot(self, path: str, position: int, bit: int) -> None:
        """Silently changes one bit of a file, in its current and in its durable content."""
        inode = self.find(path)
        assert isinstance(inode, _Inode)
        self.trace.add(self.name, "rot", path, position, bit)
        for content in (inode.content, inode.durable):
            if position < len(content):
                content[position] ^= 1 << bit

    def sizes(self) -> dict[str, int]:
        """The length of each file, by its path."""
        return {path: len(inode.content) for path, inode in self._files(self._root, "/")}

    def contents(self, directory: str, suffix: str) -> list[bytes]:
        """The contents of the files of a directory whose names end with `suffix`, ordered by name. Raises OSError."""
        entries = self.find_directory(directory).entries
        files = [entries[name] for name in sorted(entries) if name.endswith(suffix)]
        return [bytes(file.content) for file in files if isinstance(file, _Inode)]

    def used_bytes(self) -> int:
        """The length of all files together."""
        return sum(self.sizes().values())

    def crash(self, *, lose_unsynced: bool) -> None:
        """A process death only releases the locks; a machine's death loses data that is not durable."""
        self.trace.add(self.name, "disk-crash", "unsynced-lost" if lose_unsynced else "all-kept")
        if not lose_unsynced:
            for _, inode in self._files(self._root, "/"):
                inode.locked_by = None
            return
        survivors = self.random.choice((0, len(self._journal), self.random.randint(0, len(self._journal))))
        for change in self._journal[:survivors]:
            _settle_names(change)
        self._journal.clear()
        self._forget_names(self._root)
        for path, inode in self._files(self._root, "/"):
            inode.lose_unsynced(self.random)
            self.trace.add(self.name, "survived", path, len(inode.content), checksum(inode.content))

    def _forget_names(self, directory: _Directory) -> None:
        directory.entries = dict(directory.durable)
        for node in directory.entries.values():
            if isinstance(node, _Directory):
                self._forget_names(node)

    def _files(self, directory: _Directory, path: str) -> Iterator[tuple[str, _Inode]]:
        for name, node in sorted(directory.entries.items(), key=lambda entry: entry[0]):
            where = os.path.join(path, name)
            if isinstance(node, _Directory):
                yield from self._files(node, where)
            else:
                yield where, node

    # -- for the file system ----------------------------------------------------------------------------------------

    def touched(self, operation: str, path: str) -> None:
        """Counts the operation. Raises OSError for an injected fault."""
        if self.meter is not None:
            self.meter.operation(operation)
        for fault in self._faults:
            matches = fnmatch.fnmatchcase(operation, fault.operation) and fnmatch.fnmatchcase(path, fault.pattern)
            if matches and fault.error_number == errno.EMFILE and self.spare_descriptors > 0:
                continue
            if matches and fault.times != 0:
                if fault.times is not None:
                    fault.times -= 1
                self.trace.add(self.name, "fault", operation, path, errno.errorcode[fault.error_number])
                raise _error(fault.error_number, path)

    def find(self, path: str) -> _Node:
        """The node at a path. FileNotFoundError without one, NotADirectoryError when a parent is a file."""
        node: _Node = self._root
        for part in _parts(path):
            if not isinstance(node, _Directory):
                raise _error(errno.ENOTDIR, path)
            below = node.entries.get(part)
            if below is None:
                raise _error(errno.ENOENT, path)
            node = below
        return node

    def find_directory(self, path: str) -> _Directory:
        node = self.find(path)
        if not isinstance(node, _Directory):
            raise _error(errno.ENOTDIR, path)
        return node

    def rename_all(self, changes: _NameChange) -> None:
        """Changes names in one step of the journal."""
        for directory, name, node in changes:
            _name(directory.entries, name, node)
            directory.modified_ms = self.now_ms()
        self._journal.append(changes)

    def sync_all(self) -> None:
        """Makes all files and names durable. Raises OSError for an injected fault of any file's sync."""
        for path, inode in self._files(self._root, "/"):
            if inode.pending:
                try:
                    self.touched("sync", path)
                except OSError:
                    inode.pending.clear()
                    raise
                inode.sync()
        for change in self._journal:
            _settle_names(change)
        self._journal.clear()
        self.trace.add(self.name, "sync-all")

    def sync_names(self, directory: _Directory) -> None:
        """Makes the changes of this directory durable, with all changes that they depend on."""
        directories = {directory}
        durable: list[_NameChange] = []
        kept: list[_NameChange] = []
        for change in reversed(self._journal):
            touched = [touched_directory for touched_directory, _, _ in change]
            if directories.isdisjoint(touched):
                kept.append(change)
            else:
                directories.update(touched)
                durable.append(change)
        for change in reversed(durable):
            _settle_names(change)
        self._journal = kept[::-1]


class SimulatedFile(File):
    """An open file of one process."""

    def __init__(self, disk: Disk, process: Process, path: str, inode: _Inode) -> None:
        self.path = path
        self._disk = disk
        self._process = process
        self._inode = inode
        self._closed = False
        process.open_files += 1
        disk.spare_descriptors -= 1

    def size(self) -> int:
        self._check("size")
        return len(self._inode.content)

    def read(self, position: int, size_bytes: int) -> bytearray:
        self._check("read")
        data = self._inode.content[position : position + size_bytes]
        if self._disk.meter is not None:
            self._disk.meter.read(len(data))
        return data

    def read_cached(self, position: int, size_bytes: int) -> bytearray | None:
        self._check("read_cached")
        if self._disk.random.random() < COLD_CHANCE:
            return None
        return self._inode.content[position : position + size_bytes]

    def write(self, position: int, *buffers: Buffer) -> int:
        data = b"".join(buffers)
        try:
            self._check("write")
            self._check_space(position + len(data))
        except OSError:
            # Any part of the data may have been written.
            part = data[: self._disk.random.randint(0, len(data))]
            if part and not self._closed and self._grown(position + len(part)) == 0:
                self._inode.change(position, part, self._disk.now_ms())
            raise
        self._trace("write", position, len(data), checksum(data))
        if data:
            self._inode.change(position, data, self._disk.now_ms())
        return len(data)

    def truncate(self, size_bytes: int) -> None:
        self._check("truncate")
        self._check_space(size_bytes)
        self._trace("truncate", size_bytes)
        self._inode.change(size_bytes, None, self._disk.now_ms())

    def allocate(self, size_bytes: int) -> None:
        self._check("allocate")
        self._check_space(size_bytes)
        self._trace("allocate", size_bytes)
        if size_bytes > len(self._inode.content):
            self._inode.change(size_bytes, None, self._disk.now_ms())

    def sync(self) -> None:
        try:
            self._check("sync")
        except OSError:
            self._inode.pending.clear()
            raise
        self._trace("sync")
        self._inode.sync()

    def close(self) -> None:
        if self._inode.locked_by is self._process:
            self._inode.locked_by = None
        if not self._closed:
            self._process.open_files -= 1
            self._disk.spare_descriptors += 1
        self._closed = True

    def _check(self, operation: str) -> None:
        self._process.check_alive()
        if self._closed:
            raise _error(errno.EBADF, self.path)
        self._disk.touched(operation, self.path)

    def _grown(self, end: int) -> int:
        """How many bytes over its capacity the disk would be if the file ended there."""
        capacity_bytes = self._disk.capacity_bytes
        if capacity_bytes is None:
            return 0
        return max(0, self._disk.used_bytes() + max(0, end - len(self._inode.content)) - capacity_bytes)

    def _check_space(self, end: int) -> None:
        if end > len(self._inode.content) and self._grown(end):
            self._trace("disk-full")
            raise _error(errno.ENOSPC, self.path)

    def _trace(self, what: str, *details: object) -> None:
        self._disk.trace.add(self._disk.name, what, self.path, *details)


class SimulatedFileSystem(FileSystem):
    """A disk as one process sees it."""

    def __init__(self, disk: Disk, process: Process) -> None:
        self._disk = disk
        self._process = process

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        self._check("open", path)
        try:
            node = self._disk.find(path)
        except FileNotFoundError:
            if not create:
                raise
            node = _Inode(self._disk.now_ms())
            parent, name = self._parent(path)
            self._change("create", path, [(parent, name, node)])
        if isinstance(node, _Directory):
            raise _error(errno.EISDIR, path)
        return SimulatedFile(self._disk, self._process, path, node)

    def exists(self, path: str) -> bool:
        self._check("exists", path)
        try:
            self._disk.find(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def is_directory(self, path: str) -> bool:
        self._check("is_directory", path)
        return self.exists(path) and isinstance(self._disk.find(path), _Directory)

    def list_directory(self, path: str) -> list[str]:
        self._check("list_directory", path)
        return sorted(self._disk.find_directory(path).entries)

    def make_directories(self, path: str) -> None:
        self._check("make_directories", path)
        whole = "/"
        for part in _parts(path):
            parent, whole = self._disk.find_directory(whole), os.path.join(whole, part)
            if part not in parent.entries:
                self._change("mkdir", whole, [(parent, part, _Directory(self._disk.now_ms()))])
        if not self.is_directory(path):
            raise _error(errno.EEXIST, path)

    def size(self, path: str) -> int:
        self._check("size", path)
        node = self._disk.find(path)
        return len(node.content) if isinstance(node, _Inode) else PAGE_BYTES

    def modified_time_ms(self, path: str) -> int:
        self._check("modified_time_ms", path)
        return self._disk.find(path).modified_ms

    def set_modified_time_ms(self, path: str, modified_ms: int) -> None:
        self._check("set_modified_time_ms", path)
        self._disk.find(path).modified_ms = modified_ms
        self._disk.trace.add(self._disk.name, "set-modified", path, modified_ms)

    def rename(self, source: str, target: str) -> None:
        self._check("rename", source)
        node = self._disk.find(source)
        (old_parent, old_name), (new_parent, new_name) = self._parent(source), self._parent(target)
        replaced = new_parent.entries.get(new_name)
        if replaced is node:
            return
        if isinstance(node, _Directory):
            if target.startswith(source.rstrip("/") + "/"):
                raise _error(errno.EINVAL, target)
            if isinstance(replaced, _Inode):
                raise _error(errno.ENOTDIR, target)
            if replaced is not None and replaced.entries:
                raise _error(errno.ENOTEMPTY, target)
        elif isinstance(replaced, _Directory):
            raise _error(errno.EISDIR, target)
        self._change("rename", f"{source} {target}", [(old_parent, old_name, None), (new_parent, new_name, node)])

    def remove(self, path: str) -> None:
        self._check("remove", path)
        if isinstance(self._disk.find(path), _Directory):
            raise _error(errno.EISDIR, path)
        self._change("remove", path, [(*self._parent(path), None)])

    def remove_tree(self, path: str) -> None:
        self._check("remove_tree", path)
        if not self.exists(path):
            return
        # One change for each name: the machine may die in the middle.
        for name in self.list_directory(path):
            below = os.path.join(path, name)
            if self.is_directory(below):
                self.remove_tree(below)
            else:
                self.remove(below)
        self._change("rmdir", path, [(*self._parent(path), None)])

    def sync_directory(self, path: str) -> None:
        self._check("sync_directory", path)
        directory = self._disk.find_directory(path)
        self._disk.trace.add(self._disk.name, "sync-directory", path)
        self._disk.sync_names(directory)

    def sync_file_system(self, directories: Sequence[str]) -> bool:
        for directory in directories:
            self._check("sync_directory", directory)
        self._disk.sync_all()
        return True

    def is_short_of_descriptors(self) -> bool:
        return self._process.open_files > FEW_FILES

    def lock(self, path: str) -> SimulatedFile:
        file = self.open(path, create=True)
        owner = file._inode.locked_by
        if owner is not None and owner is not self._process and owner.alive:
            raise BlockingIOError(errno.EAGAIN, "locked by another process", path)
        file._inode.locked_by = self._process
        self._disk.trace.add(self._disk.name, "lock", path)
        return file

    def _check(self, operation: str, path: str) -> None:
        self._process.check_alive()
        if not path.startswith("/"):
            raise ValueError(f"not an absolute path: {path!r}")
        self._disk.touched(operation, path)

    def _parent(self, path: str) -> tuple[_Directory, str]:
        parent, _, name = path.rstrip("/").rpartition("/")
        return self._disk.find_directory(parent), name

    def _change(self, what: str, path: str, changes: _NameChange) -> None:
        self._disk.trace.add(self._disk.name, what, path)
        self._disk.rename_all(changes)


@lru_cache(10_000)
def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)


def _error(number: int, path: str) -> OSError:
    # OSError picks the subclass that belongs to the number.
    return OSError(number, os.strerror(number), path)


def _name(names: dict[str, _Node], name: str, node: _Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


def _settle_names(change: _NameChange) -> None:
    for directory, name, node in change:
        _name(directory.durable, name, node)


def _apply(content: bytearray, position: int, data: bytes | None) -> None:
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    if data is None:
        del content[position:]
    else:
        content[position : position + len(data)] = data


# -- which unsynced changes of a file survive -----------------------------------------------------------------------


def _none(pending: list[_Change], chance: random.Random) -> list[_Change]:
    return []


def _all(pending: list[_Change], chance: random.Random) -> list[_Change]:
    return pending


def _torn(pending: list[_Change], chance: random.Random) -> list[_Change]:
    """A prefix of the changes; the last surviving change may be cut short."""
    if not pending:
        return []
    last = chance.randrange(len(pending))
    position, data = pending[last]
    torn = data if data is None else data[: chance.randint(0, len(data))]
    return [*pending[:last], (position, torn)]


def _scattered(pending: list[_Change], chance: random.Random) -> list[_Change]:
    """Chance decides for each page whether it survives."""
    survivors: list[_Change] = []
    for position, data in pending:
        if data is None:
            survivors.append((position, None))
            continue
        start = 0
        while start < len(data):
            end = min(len(data), start + PAGE_BYTES - (position + start) % PAGE_BYTES)
            if chance.random() < 0.5:
                survivors.append((position + start, data[start:end]))
            start = end
    return survivors
