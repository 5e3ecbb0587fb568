"""The seams between klamm and the machine: wall clock, randomness, disk and blocking work.

Timers and deadlines use the clock of the running asyncio loop. All other sources of difference between two runs are
reached through the `Environment` that the composition root passes on. Production uses that of `system_environment.py`.
The simulator has its own, so that the same code runs on virtual time and an in-memory disk.

What must stay true:
- No module of klamm but `system_environment.py` opens a file, reads the wall clock, draws a random number or starts a
  thread.
- A path is an absolute `str`. Directory listings are sorted.
- Nothing is durable before `File.sync` (contents) or `FileSystem.sync_directory` (names) has returned.
- Every failure of the disk is an `OSError`.
"""

import asyncio
import os
import random
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from klamm.base.worker import WorkerFailed

__all__ = ["Buffer", "Environment", "File", "FileSystem", "Random", "WorkerFailed"]

T = TypeVar("T")
# The type of `Environment.random`, for signatures elsewhere.
Random = random.Random
Buffer = bytes | bytearray | memoryview


class File(ABC):
    """An open file that is read and written at explicit positions (bytes); it has no cursor."""

    path: str

    @abstractmethod
    def size(self) -> int:
        """The file's length in bytes."""

    @abstractmethod
    def read(self, position: int, size_bytes: int) -> bytearray:
        """Reads up to `size_bytes` at `position`; shorter only at the end of the file. May wait for the disk."""

    @abstractmethod
    def read_cached(self, position: int, size_bytes: int) -> bytearray | None:
        """Like `read` but never waits: None when not all of it is in memory (`preadv` with RWF_NOWAIT)."""

    @abstractmethod
    def write(self, position: int, *buffers: Buffer) -> int:
        """Writes the buffers one after another at `position`, all of them or OSError; returns the bytes written.

        After an OSError the bytes from `position` on are undefined.
        """

    @abstractmethod
    def truncate(self, size_bytes: int) -> None:
        """Cuts or extends the file to `size_bytes`."""

    @abstractmethod
    def allocate(self, size_bytes: int) -> None:
        """Reserves disk space for the first `size_bytes`, and extends a smaller file to this size. May wait for the
        disk. After an OSError the file may be larger than before."""

    @abstractmethod
    def sync(self) -> None:
        """Returns when all earlier writes survive a machine crash (fdatasync)."""

    @abstractmethod
    def close(self) -> None:
        """Closes the file. Idempotent."""


class FileSystem(ABC):
    """The directories and files that klamm may touch."""

    @abstractmethod
    def open(self, path: str, *, create: bool = False) -> File:
        """Opens for reading and writing. FileNotFoundError when absent, unless `create`."""

    def open_to_read(self, path: str) -> File:
        """Opens a file only for reading; it may be read-only. FileNotFoundError when absent; OSError if it is not a
        regular file: opening a pipe could wait forever."""
        return self.open(path)

    @abstractmethod
    def exists(self, path: str) -> bool: ...

    @abstractmethod
    def is_directory(self, path: str) -> bool: ...

    @abstractmethod
    def list_directory(self, path: str) -> list[str]:
        """The names in a directory, sorted."""

    @abstractmethod
    def make_directories(self, path: str) -> None:
        """Creates the directory and its missing parents. It may exist already."""

    @abstractmethod
    def size(self, path: str) -> int: ...

    @abstractmethod
    def modified_time_ms(self, path: str) -> int: ...

    @abstractmethod
    def set_modified_time_ms(self, path: str, modified_ms: int) -> None: ...

    @abstractmethod
    def rename(self, source: str, target: str) -> None:
        """Renames a file or directory; an existing target file is replaced atomically."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Removes a file. FileNotFoundError when absent."""

    @abstractmethod
    def remove_tree(self, path: str) -> None:
        """Removes a directory and everything below it. It may be absent."""

    @abstractmethod
    def sync_directory(self, path: str) -> None:
        """Makes creations, renames and removals in this directory survive a machine crash."""

    def sync_file_system(self, directories: Sequence[str]) -> bool:
        """Makes all files and names below these directories survive a machine crash, with one sync of their file
        system. May wait for the disk. Returns False, without a promise, if they are on several file systems, or on a
        file system that may hide errors of the disk; the caller then syncs each file."""
        return False

    def is_short_of_descriptors(self) -> bool:
        """Whether the file that was opened last has a descriptor that should be kept free (`is_kept_descriptor`). Then
        close files that can be opened again."""
        return False

    @abstractmethod
    def lock(self, path: str) -> File:
        """Creates the file and locks it until closed. BlockingIOError when another process has the lock."""

    def read_file(self, path: str) -> bytes:
        """The whole content of a file."""
        file = self.open(path)
        try:
            return bytes(file.read(0, file.size()))
        finally:
            file.close()

    def make_durable_directories(self, path: str) -> None:
        """Like `make_directories`, and makes the directories survive a machine crash."""
        self.make_directories(path)
        # Existing directories are synced too: an earlier process may have created them and died before this point.
        while path != os.path.dirname(path):
            path = os.path.dirname(path)
            try:
                self.sync_directory(path)
            except PermissionError:
                return  # This process did not create a directory that it cannot read.

    def replace_file(self, path: str, content: Buffer) -> None:
        """Atomically and durably gives the file this content: write `path`.tmp, sync, rename, sync the directory."""
        temporary = path + ".tmp"
        file = self.open(temporary, create=True)
        try:
            file.truncate(0)
            file.write(0, content)
            file.sync()
        finally:
            file.close()
        self.rename(temporary, path)
        self.sync_directory(os.path.dirname(path))


class Environment(ABC):
    """All access of a klamm process to its machine."""

    file_system: FileSystem
    random: Random
    # Whether the work of `run_in_background` may use compiled loops.
    has_compiled_loops: bool = False

    @abstractmethod
    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970. For timestamps only; deadlines use the loop's clock."""

    @abstractmethod
    async def run_blocking(self, function: Callable[..., T], *arguments: object) -> T:
        """Runs `function(*arguments)` off the loop, where it may wait for the disk. For short work that a client may
        wait for: a read, or writing one small file.

        The function must not touch state that the loop's code may change meanwhile.
        """

    async def run_long(self, function: Callable[..., T], *arguments: object) -> T:
        """Like `run_blocking`, for work that may take seconds: syncs of logs, recovery, deletion, copies. It has its
        own threads, so that no work of `run_blocking` waits for it."""
        return await self.run_blocking(function, *arguments)

    async def run_foreign(self, function: Callable[..., T], *arguments: object) -> T:
        """Like `run_blocking`, for an operator's own code. It may never end, so it gets its own thread, for which the
        program's end does not wait."""
        return await self.run_blocking(function, *arguments)

    def set_long_workers(self, count: int) -> None:  # noqa: B027  # optional
        """Has `run_long` do at least `count` pieces of work at once from now on; 0 restores the default."""

    @abstractmethod
    async def run_in_worker(self, work: Callable[..., Generator[int, None, T]], *arguments: object) -> T:
        """Runs the steps of `work(*arguments)`, possibly very many, in another process, off the loop.

        `work` is a pure function of a module. Its arguments and its result are plain values, because they are passed
        between processes. Each step yields how many more bytes the next steps will hold, mostly 0, and may then wait
        for room. The work ends soon after its caller is cancelled. Raises the errors of `work`, and WorkerFailed when
        the process has died.
        """

    @abstractmethod
    async def run_in_background(self, work: Callable[..., Generator[float, None, T]], *arguments: object) -> T:
        """Runs the steps of `work(file_system, *arguments)` in a process of its own that has the lowest priority.

        For work of minutes that no client waits for. `work` is a function of a module. Its arguments and its result are
        plain values. Each step does less than a second of work, and yields how many seconds it must take at least,
        which limits the rate of the work. A cancelled call ends only after the work has ended. Raises the errors of
        `work`, and WorkerFailed when the process has died.
        """

    @property
    def memory_bytes(self) -> int:
        """The resident memory of this process; 0 where the system does not tell."""
        return 0

    @property
    def background_memory_bytes(self) -> int:
        """The memory of the processes of `run_in_background`."""
        return 0

    @abstractmethod
    def host_name(self) -> str:
        """The name by which other machines reach this machine, for listeners without a host name."""

    def host_names(self) -> frozenset[str]:
        """All names of this machine. May wait for a name server, so call it in `run_foreign`."""
        return frozenset((self.host_name(),))

    def boot_id(self) -> str | None:
        """Identifies the machine's last boot. While the id stays the same, no write to the disk is lost. None if the
        machine has no such id."""
        return None

    def work_clock_s(self) -> float:
        """A clock for the duration of work that holds the loop, during which uvloop's own clock stands still. Under
        virtual time work takes no time, and waits take as long as by the loop's clock."""
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:
            return 0.0  # Without a loop there are no waits.

    def work_time_s(self) -> float:
        """The processor time of the calling thread. Under virtual time work takes no time."""
        return 0.0

    def watch_gc_pauses(self, on_pause_ms: Callable[[float], None] | None) -> None:  # noqa: B027  # optional
        """Calls `on_pause_ms` with the duration of each later garbage collection, in any thread. None stops this."""

    def random_uuid(self) -> uuid.UUID:
        """A random (version 4) UUID."""
        return uuid.UUID(int=self.random.getrandbits(128), version=4)
