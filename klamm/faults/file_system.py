"""The disk of a broker under faults: slow, failing or full.

A file reads and writes like a `SystemFile` while no disk fault is installed: its class changes when the first fault
begins, and changes back when the last ends. So without faults only the opening of a file costs more.

What must stay true:
- A fault also holds for open files, from the moment at which its installation returns.
- A failed operation has changed nothing, except a write without enough room: as on a real disk, the part that fits is
  written.
- Faults strike in any thread. A tally is used in the loop's thread, or under the lock.
- Waits for a slow disk end when the fault is removed, also in the loop's thread, which no command reaches while it
  waits.
- A full disk has no more room when its broker starts again.
"""

import asyncio
import errno
import os
import threading  # noqa: TID251  # files are used in threads
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial

from klamm.base.environment import Buffer, File
from klamm.base.system_environment import SystemFile, SystemFileSystem
from klamm.faults.commands import Json
from klamm.faults.commands.disk import DiskFault, FailDisk, FullDisk, Operation, OperationFault, SlowDisk
from klamm.faults.tally import Tally
from klamm.protocol.vocabulary import PartitionKey
from klamm.storage.segments.log_directory import parse_directory_name

# How often a wait for a slow disk checks whether the fault is still wanted.
LOOK_AGAIN_S = 0.02


class QuietFile(SystemFile):
    """An open file while no fault is installed."""

    faults: "DiskFaults"


class TroubledFile(QuietFile):
    """An open file while faults are installed. It may become a QuietFile during a call, where `super()` would fail."""

    def read(self, position: int, size_bytes: int) -> bytearray:
        self.faults.strike("read", self.path)
        return SystemFile.read(self, position, size_bytes)

    def read_cached(self, position: int, size_bytes: int) -> bytearray | None:
        # The caller then reads from the disk, where the fault may strike.
        return None if self.faults.concern("read", self.path) else SystemFile.read_cached(self, position, size_bytes)

    def write(self, position: int, *buffers: Buffer) -> int:
        self.faults.strike("write", self.path)
        size_bytes = sum(map(len, buffers))
        missing_bytes = self.faults.take_room(self.path, position + size_bytes - self.size())
        if missing_bytes:
            SystemFile.write(self, position, b"".join(buffers)[: max(0, size_bytes - missing_bytes)])
            raise _error(errno.ENOSPC, self.path)
        return SystemFile.write(self, position, *buffers)

    def truncate(self, size_bytes: int) -> None:
        self.faults.strike("write", self.path)
        former_bytes = self.size()
        SystemFile.truncate(self, size_bytes)
        self.faults.give_room(self.path, former_bytes - size_bytes)

    def allocate(self, size_bytes: int) -> None:
        self.faults.strike("write", self.path)
        growth_bytes = size_bytes - self.size()
        missing_bytes = self.faults.take_room(self.path, growth_bytes)
        if missing_bytes:
            self.faults.give_room(self.path, growth_bytes - missing_bytes)
            raise _error(errno.ENOSPC, self.path)
        SystemFile.allocate(self, size_bytes)

    def sync(self) -> None:
        self.faults.strike("sync", self.path)
        SystemFile.sync(self)


class FaultyFileSystem(SystemFileSystem):
    """The operating system's files, under faults."""

    file_type = QuietFile

    def __init__(self, faults: "DiskFaults") -> None:
        super().__init__()
        self._faults = faults

    def open(self, path: str, *, create: bool = False) -> File:
        self._faults.strike("open", path)
        return self._faults.opened(super().open(path, create=create))

    def open_to_read(self, path: str) -> File:
        self._faults.strike("open", path)
        return self._faults.opened(super().open_to_read(path))

    def make_directories(self, path: str) -> None:
        self._faults.strike("open", path)
        super().make_directories(path)

    def rename(self, source: str, target: str) -> None:
        self._faults.strike("rename", source)
        replaced_bytes = self._faults.size_if_limited(target)
        super().rename(source, target)
        self._faults.give_room(target, replaced_bytes)

    def remove(self, path: str) -> None:
        self._faults.strike("remove", path)
        removed_bytes = self._faults.size_if_limited(path)
        super().remove(path)
        self._faults.give_room(path, removed_bytes)

    def remove_tree(self, path: str) -> None:
        self._faults.strike("remove", path)
        removed_bytes = self._faults.size_if_limited(path)
        super().remove_tree(path)
        self._faults.give_room(path, removed_bytes)

    def sync_directory(self, path: str) -> None:
        self._faults.strike("sync", path)
        super().sync_directory(path)

    def sync_file_system(self, directories: Sequence[str]) -> bool:
        # The caller then syncs each file, so that a fault strikes the files that it names.
        if self._faults.is_active:
            return False
        return super().sync_file_system(directories)


@dataclass(eq=False)
class Active:
    """An installed fault. `bytes_left` is for a full disk, `hits` for a fault that ends after a number of failures."""

    number: int
    fault: DiskFault
    tally: Tally
    bytes_left: int = 0
    hits: int = 0
    ended: threading.Event = field(default_factory=threading.Event)  # work off the loop waits for it

    def covers(self, operation: Operation, path: str, partition: PartitionKey | None) -> bool:
        """Whether the fault strikes this operation on this path, which belongs to the partition."""
        fault = self.fault
        if not isinstance(fault, OperationFault) or (fault.operations and operation not in fault.operations):
            return False
        if not self.is_at(path):
            return False
        if fault.file is not None and not fnmatchcase(os.path.basename(path), fault.file):
            return False
        if fault.topic is None:
            return True
        return partition is not None and partition[0] == fault.topic and fault.partition in (None, partition[1])

    def is_at(self, path: str) -> bool:
        """Whether the path is below the fault's directory."""
        directory = self.fault.directory
        return directory is None or path == directory or path.startswith(directory.rstrip("/") + "/")


class DiskFaults:
    """The faults of one process's disk, and its open files. `log_directories` hold the partitions."""

    def __init__(self, log_directories: Sequence[str]) -> None:
        self._log_directories = [directory + "/" for directory in log_directories]
        self.installed: list[Active] = []
        self._lock = threading.Lock()  # files are used in threads
        self._files: weakref.WeakSet[QuietFile] = weakref.WeakSet()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = threading.get_ident()

    # -- installing -----------------------------------------------------------------------------------------------

    def install(self, fault: DiskFault, tally: Tally) -> Callable[[], None]:
        """Begins a fault; returns a function that ends it. Call it on the loop, or in a process without a loop."""
        with suppress(RuntimeError):
            self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        return self.begin(Active(tally.number, fault, tally, self._room(fault, tally)))

    def begin(self, active: Active) -> Callable[[], None]:
        """Begins a fault that may have struck before; returns a function that ends it."""
        with self._lock:
            self.installed = [*self.installed, active]
            self._change_files()
        return partial(self._end, active)

    def _end(self, active: Active) -> None:
        with self._lock:
            self.installed = [other for other in self.installed if other is not active]
            self._change_files()
            active.ended.set()

    def _change_files(self) -> None:
        kind = TroubledFile if self.installed else QuietFile
        for file in self._files:
            file.__class__ = kind

    @property
    def is_active(self) -> bool:
        return bool(self.installed)

    # -- for files ------------------------------------------------------------------------------------------------

    def opened(self, file: File) -> File:
        """Registers an open file."""
        assert isinstance(file, QuietFile)
        file.faults = self
        with self._lock:
            self._files.add(file)
            if self.installed:
                file.__class__ = TroubledFile
        return file

    def concern(self, operation: Operation, path: str) -> bool:
        """Whether a fault covers this operation."""
        return any(active.covers(operation, path, self._partition_of(path)) for active in self.installed)

    def strike(self, operation: Operation, path: str) -> None:
        """Call it before an operation. Waits if the disk is slow, and raises OSError if it fails."""
        for active in self.installed:
            if not active.covers(operation, path, self._partition_of(path)) or not self._decide(active):
                continue
            self._report(active, operation, path)
            if isinstance(active.fault, SlowDisk):
                self._wait(active, active.fault.ms / 1000)
            elif isinstance(active.fault, FailDisk):
                raise _error(active.fault.error_number, path)

    def _wait(self, active: Active, rest_s: float) -> None:
        """Waits for this time, or until the fault ends."""
        while rest_s > 0 and active.tally.is_wanted and not active.ended.wait(min(rest_s, LOOK_AGAIN_S)):
            rest_s -= LOOK_AGAIN_S

    def _decide(self, active: Active) -> bool:
        """Whether the fault strikes this call."""
        fault, tally = active.fault, active.tally
        with self._lock:
            # The tally of an ended fault is closed.
            if active.ended.is_set():
                return False
            tally.asked()
            if not isinstance(fault, FailDisk):
                return True
            if fault.on_call and tally.turns("calls").take() not in fault.on_call:
                return False
            if fault.times is None:
                return True
            # After the last failure no call takes a turn, so that the shared count stays small.
            if active.hits < fault.times:
                active.hits = tally.turns("hits").take()
                return active.hits <= fault.times
            active.hits = fault.times + 1
            return False

    def _report(self, active: Active, operation: Operation, path: str) -> None:
        details: dict[str, Json] = {"operation": operation, "path": path}
        partition = self._partition_of(path)
        if partition is not None:
            details["topic"], details["partition"] = partition
        if self._loop is None or threading.get_ident() == self._loop_thread:
            active.tally.struck(**details)
        else:
            with suppress(RuntimeError):  # The loop has ended.
                self._loop.call_soon_threadsafe(partial(active.tally.struck, **details))

    def _partition_of(self, path: str) -> PartitionKey | None:
        """The partition that a file or a directory belongs to, or None."""
        for directory in self._log_directories:
            if path.startswith(directory):
                name = path[len(directory) :].partition("/")[0]
                parsed = parse_directory_name(name)
                return None if parsed is None else parsed[:2]
        return None

    # -- room -----------------------------------------------------------------------------------------------------

    def take_room(self, path: str, growth_bytes: int) -> int:
        """Takes room for a growing file; returns how many bytes do not fit."""
        limits = list(self._limits(path)) if growth_bytes > 0 else []
        if not limits:
            return 0
        with self._lock:
            taken_bytes = min(growth_bytes, *(active.bytes_left for active in limits))
            short = [active for active in limits if active.bytes_left < growth_bytes]
            for active in limits:
                active.tally.asked()
                active.bytes_left -= taken_bytes
        for active in short:
            self._report(active, "write", path)
        return growth_bytes - taken_bytes

    def give_room(self, path: str, freed_bytes: int) -> None:
        """Returns room after a file below the path was shortened or removed."""
        if freed_bytes > 0:
            for active in self._limits(path):
                with self._lock:
                    active.bytes_left += freed_bytes

    def _room(self, fault: DiskFault, tally: Tally) -> int:
        """How much the files may still grow. After a restart the growth from before counts too."""
        if not isinstance(fault, FullDisk):
            return 0
        directories = self._log_directories if fault.directory is None else [fault.directory]
        used_bytes = sum(map(_size, directories))
        capacity_bytes = tally.first(f"capacity-{tally.server}", used_bytes + fault.bytes_left)
        return max(0, capacity_bytes - used_bytes)

    def size_if_limited(self, path: str) -> int:
        """The bytes that removing this file or directory would free; 0 if no fault limits it."""
        return _size(path) if any(True for _ in self._limits(path)) else 0

    def _limits(self, path: str) -> Iterator[Active]:
        return (active for active in self.installed if isinstance(active.fault, FullDisk) and active.is_at(path))


def _size(path: str) -> int:
    with suppress(OSError):
        if not os.path.isdir(path):
            return os.stat(path).st_size
        return sum(_size(os.path.join(path, name)) for name in os.listdir(path))
    return 0


def _error(number: int, path: str) -> OSError:
    # OSError picks the subclass for the number.
    return OSError(number, os.strerror(number), path)
