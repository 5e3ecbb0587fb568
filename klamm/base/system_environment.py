"""The real machine behind the seams of `environment.py`: its clock, randomness, disk, threads and processes.

What must stay true:
- No other module of klamm opens a file, reads the wall clock, draws a random number or starts a thread.
- If a system lacks a call, as macOS lacks fdatasync, syncfs, fallocate and RWF_NOWAIT, the seam's promise still holds,
  or the call raises an OSError.
"""

import asyncio
import concurrent.futures
import contextlib
import errno
import fcntl
import gc
import os
import random
import re
import resource
import shutil
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from klamm.base.environment import Buffer, Environment, File, FileSystem
from klamm.base.worker import Worker

T = TypeVar("T")

# The most descriptors that a process keeps free for files that are only open for a moment.
MAX_KEPT_DESCRIPTORS = 1000

# The most files that a process may open on macOS unless its user has raised the limit.
_OPEN_MAX = 10_240

# The types, in statfs(2), of ext4, XFS and Btrfs.
_SYNCED_FILE_SYSTEMS = (0xEF53, 0x58465342, 0x9123683E)

_BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"  # Only Linux has this file.
_MAX_BOOT_ID_LENGTH = 64
# On busy processors, a process with the lowest priority may need minutes for seconds of compilation.
_MAX_SILENT_IN_BACKGROUND_S = 600
# A process of `run_in_background` notices after this time that its broker has died.
_LONGEST_NAP_S = 0.25


class SystemFile(File):
    """A file descriptor."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, position: int, size_bytes: int) -> bytearray:
        data = bytearray(size_bytes)
        view = memoryview(data)
        done = 0
        while done < size_bytes:
            count = os.preadv(self._descriptor, [view[done:]], position + done)
            if count == 0:
                view.release()
                del data[done:]
                break
            done += count
        return data

    def read_cached(self, position: int, size_bytes: int) -> bytearray | None:
        if not hasattr(os, "RWF_NOWAIT"):
            return None  # Only Linux has it.
        data = bytearray(size_bytes)
        try:
            count = os.preadv(self._descriptor, [data], position, os.RWF_NOWAIT)
        except OSError as error:
            # EAGAIN: the page is not in memory. EOPNOTSUPP: this file system cannot tell.
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
                return None
            raise
        if count == size_bytes:
            return data
        if position + count >= self.size():
            del data[count:]
            return data
        return None

    def write(self, position: int, *buffers: Buffer) -> int:
        total = sum(map(len, buffers))
        done = os.pwritev(self._descriptor, buffers, position)
        while done < total:
            # A short write: the next call raises the reason (disk full) or continues.
            joined = memoryview(b"".join(buffers))
            count = os.pwrite(self._descriptor, joined[done:], position + done)
            if count == 0:
                raise OSError(errno.EIO, "write made no progress", self.path)
            done += count
        return total

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._descriptor, size_bytes)

    def allocate(self, size_bytes: int) -> None:
        import ctypes  # Few brokers need it.

        # Not os.posix_fallocate: if the file system cannot allocate, that function writes zeros into the file, and may
        # overwrite data that are appended meanwhile.
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "fallocate"):
            raise OSError(errno.EOPNOTSUPP, "this system has no fallocate", self.path)
        if libc.fallocate(self._descriptor, 0, ctypes.c_longlong(0), ctypes.c_longlong(size_bytes)) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), self.path)

    def sync(self) -> None:
        if hasattr(os, "fdatasync"):
            os.fdatasync(self._descriptor)
        else:
            _sync(self._descriptor)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class SystemFileSystem(FileSystem):
    """The operating system's files."""

    file_type: type[SystemFile] = SystemFile

    def __init__(self) -> None:
        self._last_descriptor = 0

    def open(self, path: str, *, create: bool = False) -> File:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)
        self._last_descriptor = descriptor
        return self.file_type(path, descriptor)

    def sync_file_system(self, directories: Sequence[str]) -> bool:
        if not directories or len({os.stat(directory).st_dev for directory in directories}) > 1:
            return False
        return _sync_file_system(directories[0])

    def is_short_of_descriptors(self) -> bool:
        return is_kept_descriptor(self._last_descriptor)

    def open_to_read(self, path: str) -> File:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file", path)
        return self.file_type(path, descriptor)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def list_directory(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_directories(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_time_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_time_ms(self, path: str, modified_ms: int) -> None:
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _sync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: str) -> File:
        file = SystemFile(path, descriptor := os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
        try:
            # A POSIX record lock, as Java's FileChannel takes it, so that Kafka and klamm exclude each other.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise BlockingIOError(errno.EAGAIN, "locked by another process", path) from None
            raise
        return file


class SystemEnvironment(Environment):
    """The real clock, randomness and disk. Blocking work and long work have a few threads each."""

    has_compiled_loops = True

    def __init__(self, blocking_workers: int = 4) -> None:
        self.file_system = SystemFileSystem()
        self.random = random.Random()
        self._usual_workers = self._long_workers = blocking_workers
        self._pool = _threads("klamm-blocking", blocking_workers)
        self._long_pool = _threads("klamm-long", blocking_workers)
        self._worker = Worker(self.run_blocking, self._reap)
        # One process for each call of `run_in_background` at a time.
        self._background: list[Worker] = []
        self._idle_background: list[Worker] = []
        self._on_gc_pause_ms: Callable[[float], None] | None = None
        self._gc_began_s = 0.0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # Not methods: every request reads these clocks, and a method would double the cost.
    work_clock_s = staticmethod(time.perf_counter)
    work_time_s = staticmethod(time.thread_time)

    async def run_blocking(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    async def run_long(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._long_pool, function, *arguments)

    async def run_foreign(self, function: Callable[..., T], *arguments: object) -> T:
        done: concurrent.futures.Future[T] = concurrent.futures.Future()
        done.set_running_or_notify_cancel()  # From here on, cancelling the caller does not cancel the function.

        def run() -> None:
            try:
                done.set_result(function(*arguments))
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=run, name="klamm-foreign", daemon=True).start()
        return await asyncio.wrap_future(done)

    def set_long_workers(self, count: int) -> None:
        count = max(count, self._usual_workers)
        if count != self._long_workers:
            self._long_workers = count
            # The former threads still finish their work.
            self._long_pool.shutdown(wait=False)
            self._long_pool = _threads("klamm-long", count)

    async def run_in_worker(self, work: Callable[..., Generator[int, None, T]], *arguments: object) -> T:
        return await self._worker.run(work, *arguments)

    async def run_in_background(self, work: Callable[..., Generator[float, None, T]], *arguments: object) -> T:
        if not self._idle_background:
            worker = Worker(self.run_blocking, self._reap, is_background=True, max_silent_s=_MAX_SILENT_IN_BACKGROUND_S)
            self._background.append(worker)
            self._idle_background.append(worker)
        worker = self._idle_background.pop()
        try:
            return await worker.run(_on_the_disk, work, arguments)
        except asyncio.CancelledError:
            # Only the end of the process is sure to end the work at once.
            worker.close()
            raise
        finally:
            self._idle_background.append(worker)

    @property
    def background_memory_bytes(self) -> int:
        return sum(_resident_bytes(worker.pid) for worker in self._background if worker.pid is not None)

    @property
    def memory_bytes(self) -> int:
        return _resident_bytes(os.getpid())

    def _reap(self, process: "subprocess.Popen[bytes]") -> None:
        self._long_pool.submit(process.wait)

    def host_name(self) -> str:
        return socket.getfqdn()

    def host_names(self) -> frozenset[str]:
        own = socket.gethostname()
        names = {own, socket.getfqdn()}
        with contextlib.suppress(OSError):  # No name server knows this host.
            canonical, aliases, _ = socket.gethostbyaddr(own)
            names |= {canonical, *aliases}
        return frozenset(names)

    def boot_id(self) -> str | None:
        try:
            with open(_BOOT_ID_PATH, encoding="ascii") as file:
                return file.read(_MAX_BOOT_ID_LENGTH).strip() or None
        except (OSError, ValueError):
            return None

    def watch_gc_pauses(self, on_pause_ms: Callable[[float], None] | None) -> None:
        if self._on_gc_pause_ms is not None:
            gc.callbacks.remove(self._gc_turned)
        self._on_gc_pause_ms = on_pause_ms
        if on_pause_ms is not None:
            gc.callbacks.append(self._gc_turned)

    def _gc_turned(self, phase: str, _info: object) -> None:
        if phase == "start":
            self._gc_began_s = time.perf_counter()
        elif self._on_gc_pause_ms is not None:
            self._on_gc_pause_ms((time.perf_counter() - self._gc_began_s) * 1000)

    def close(self) -> None:
        """Ends the workers, waits for pending blocking work and ends the threads."""
        for worker in (self._worker, *self._background):
            worker.close()
        self._pool.shutdown()
        self._long_pool.shutdown()


def _threads(name: str, count: int) -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(count, thread_name_prefix=name)


def _on_the_disk(
    work: Callable[..., Generator[float, None, T]], arguments: tuple[object, ...]
) -> Generator[int, None, T]:
    """The steps of `run_in_background` in its process."""
    steps = work(SystemFileSystem(), *arguments)
    while True:
        began_s = time.monotonic()
        try:
            least_s = next(steps)
        except StopIteration as end:
            value: T = end.value
            return value
        yield 0
        while (pause_s := began_s + least_s - time.monotonic()) > 0:
            time.sleep(min(pause_s, _LONGEST_NAP_S))
            yield 0


def _resident_bytes(pid: int) -> int:
    """The memory of a process; 0 if it has ended, or if the system does not tell."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


def _sync(descriptor: int) -> None:
    """Returns when the file or directory is on the disk. On macOS fsync only reaches the disk's cache."""
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is None:
        os.fsync(descriptor)
    else:
        fcntl.fcntl(descriptor, full_sync)


def _sync_file_system(directory: str) -> bool:
    """Calls syncfs(2), which reports failed writes since Linux 5.8. Returns False for other file systems: some, such as
    FUSE's, may answer before the data are on a disk."""
    system = os.uname()
    release = re.match(r"(\d+)\.(\d+)", system.release)
    if system.sysname != "Linux" or release is None or (int(release[1]), int(release[2])) < (5, 8):
        return False
    import ctypes  # Takes time that a start without many logs need not spend.

    libc = ctypes.CDLL(None, use_errno=True)
    # struct statfs begins with the type of the file system, and is shorter than this.
    status = (ctypes.c_long * 64)()
    if libc.statfs(os.fsencode(directory), ctypes.byref(status)) != 0 or status[0] not in _SYNCED_FILE_SYSTEMS:
        return False
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if libc.syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), directory)
    finally:
        os.close(descriptor)
    return True


def open_file_limit() -> int:
    """How many files, including connections, this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def is_kept_descriptor(descriptor: int) -> bool:
    """Whether this is one of the process's last descriptors: the last quarter, but at most MAX_KEPT_DESCRIPTORS.

    These are kept free of connections and files that stay open, so that requests can open a file for a moment.
    """
    limit = open_file_limit()
    return descriptor >= limit - min(limit // 4, MAX_KEPT_DESCRIPTORS)


def raise_open_file_limit() -> None:
    """Raises this process's limit of open files to the system's maximum (a broker opens several for each partition)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except ValueError:  # macOS refuses more than OPEN_MAX, whatever the hard limit is.
        if soft < _OPEN_MAX:
            resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_MAX, hard))
