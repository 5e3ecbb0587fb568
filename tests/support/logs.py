"""Helpers of the storage tests: logs on an in-memory disk, and batches to put into them."""

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

from klamm.base.environment import Environment
from klamm.base.metrics import Histogram
from klamm.base.slices import in_one_go
from klamm.protocol.record import record_batch as rb
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.record_batch import iterate_batches
from klamm.protocol.record.records import (
    ControlRecordType,
    EndTransactionMarker,
    Record,
    build_batch,
    build_end_transaction_marker,
    decode_records,
)
from klamm.simulation.machine.disk import Disk, SimulatedFile, SimulatedFileSystem
from klamm.simulation.machine.process import Process
from klamm.simulation.machine.trace import Trace
from klamm.storage.log.log import AppendInfo, Log, LogHost
from klamm.storage.log.log_config import LogConfig
from klamm.storage.log.log_loader import load_log
from klamm.storage.segments.log_directory import LogDirectory

NOW_MS = 1_700_000_000_000
DIRECTORY = "/data"


class DiskEnvironment(Environment):
    """A fixed clock, which tests move, and a disk whose blocking work happens at once, but after a pause."""

    def __init__(self, disk: Disk | None = None, seed: int = 0) -> None:
        self.clock_ms = NOW_MS
        self.disk = disk or Disk("disk", random.Random(seed), Trace(lambda: 0), lambda: self.clock_ms)
        self.random = random.Random(seed)
        self.process = Process("process", "host")
        self.file_system = _CountedFiles(self)
        # A test's chance to do something during a read or a flush.
        self.before_blocking: Callable[[], object] | None = None
        self.worked: list[object] = []  # what has run in the worker
        self.is_blocking = False
        self.bytes_read_on_the_loop = 0

    @property
    def open_files(self) -> int:
        return self.process.open_files

    def now_ms(self) -> int:
        return self.clock_ms

    def host_name(self) -> str:
        return "host"

    async def run_blocking(self, function: Callable[..., Any], *arguments: object) -> Any:
        hook, self.before_blocking = self.before_blocking, None
        if hook is not None:
            hook()
        self.is_blocking = True
        try:
            return function(*arguments)
        finally:
            self.is_blocking = False

    async def run_in_worker(self, work: Callable[..., Any], *arguments: object) -> Any:
        self.worked.append(work)
        return in_one_go(work(*arguments))

    async def run_in_background(self, work: Callable[..., Any], *arguments: object) -> Any:
        self.worked.append(work)
        self.is_blocking = True
        try:
            return in_one_go(work(self.file_system, *arguments))
        finally:
            self.is_blocking = False


class _CountedFiles(SimulatedFileSystem):
    """Counts what is read on the loop."""

    def __init__(self, environment: DiskEnvironment) -> None:
        super().__init__(environment.disk, environment.process)
        self._environment = environment

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        file = super().open(path, create=create)
        read = file.read

        def counted(position: int, size_bytes: int) -> bytearray:
            data = read(position, size_bytes)
            self._environment.bytes_read_on_the_loop += 0 if self._environment.is_blocking else len(data)
            return data

        file.read = counted  # type: ignore[method-assign]  # a file is made by its file system only
        return file


class RecordingHost(LogHost):
    """Remembers what a log asks for; deletes and checkpoints at once."""

    def __init__(self, environment: DiskEnvironment) -> None:
        self._file_system = environment.file_system
        self.rolled = 0
        self.begun = 0
        self.truncated = 0
        self.checkpoints_starts = True
        self.flush_times_ms = Histogram()

    def log_rolled(self, log: Log) -> None:
        self.rolled += 1

    def segment_begun(self, log: Log) -> None:
        self.begun += 1

    def log_truncated(self, log: Log) -> None:
        self.truncated += 1

    def log_start_moved(self, log: Log) -> None:
        if self.checkpoints_starts:
            log.checkpointed_start_offset = log.log_start_offset

    def delete_later(self, log: Log, paths: Sequence[str]) -> None:
        for path in paths:
            self._file_system.remove(path)


class ObservedLog(Log):
    """Keeps the failures of its log directory."""

    failures: list[OSError]


def open_log(
    environment: DiskEnvironment,
    config: LogConfig | None = None,
    *,
    is_clean: bool = False,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    first_dirty_offset: int = 0,
    high_watermark: int | None = None,
) -> ObservedLog:
    """The log of t-0, loaded from the environment's disk; made there if need be. Its high watermark is the given one,
    which a checkpoint has, or else the log's end."""
    config = config or LogConfig()
    file_system = environment.file_system
    failures: list[OSError] = []
    directory = LogDirectory(file_system, DIRECTORY, lambda path, error: failures.append(error))
    if not file_system.exists(f"{DIRECTORY}/t-0"):
        file_system.make_directories(f"{DIRECTORY}/t-0")
        file_system.sync_directory("/")
        file_system.sync_directory(DIRECTORY)
    loaded = load_log(
        file_system,
        f"{DIRECTORY}/t-0",
        config,
        log_start_offset=log_start_offset,
        recovery_point=recovery_point,
        first_dirty_offset=first_dirty_offset,
        high_watermark=high_watermark,
        is_clean=is_clean,
        now_ms=environment.now_ms(),
    )
    log = ObservedLog(environment, directory, "t", 0, config, loaded, RecordingHost(environment))
    log.failures = failures
    log.update_high_watermark(log.log_end_offset if high_watermark is None else high_watermark)
    return log


def batch(
    *values: bytes, timestamp_ms: int = NOW_MS, codec: CompressionType = CompressionType.NONE, **header: Any
) -> bytearray:
    """A producer's batch with these values."""
    return build_batch([Record(None, value, timestamp_ms) for value in values], codec=codec, **header)


def marker(
    kind: ControlRecordType, producer_id: int, epoch: int = 0, coordinator_epoch: int = 0, **header: Any
) -> bytearray:
    """A transaction's end."""
    return build_end_transaction_marker(
        EndTransactionMarker(kind, coordinator_epoch),
        producer_id=producer_id,
        producer_epoch=epoch,
        timestamp_ms=NOW_MS,
        **header,
    )


def append(log: Log, *values: bytes, leader_epoch: int = 0, now_ms: int = NOW_MS, **header: Any) -> AppendInfo:
    """Appends one client batch."""
    return log.append_as_leader(batch(*values, **header), leader_epoch, now_ms=now_ms)


def append_all(log: Log, records: bytes | bytearray) -> None:
    """Appends the leader's records as a follower does, in as many appends as that takes."""
    while size_bytes := log.append_as_follower(records).size_bytes:
        records = records[size_bytes:]


def aborted_in(log: Log, fetch_offset: int, upper_offset: int) -> list[tuple[int, int]]:
    """(producer id, first offset) of the aborted transactions with records there."""
    found = in_one_go(log.aborted_transactions(fetch_offset, upper_offset))
    assert found is not None, "the log was truncated meanwhile"
    return found


def records_in(data: bytes | bytearray | memoryview) -> list[tuple[int, bytes | None]]:
    """(offset, value) of every record in these batches."""
    return [
        (record.offset, record.value)
        for position, header in iterate_batches(data)
        for record in decode_records(data, position, header)
    ]


async def read_all(
    log: Log, offset: int | None = None, max_bytes: int = 1_000_000, max_offset: int | None = None
) -> list[tuple[int, bytes | None]]:
    """(offset, value) of every record from `offset` on, read like a consumer does."""
    position = log.log_start_offset if offset is None else offset
    end = log.log_end_offset if max_offset is None else max_offset
    found: list[tuple[int, bytes | None]] = []
    while position < end:
        fetched = await log.read(position, max_bytes, max_offset=end, minimum_one_batch=True)
        records = records_in(fetched.data)
        if not records:
            break
        found += [record for record in records if record[0] >= position]
        assert fetched.next_offset > position
        position = fetched.next_offset
    return found


def changed(data: bytearray, position: int, form: str, value: int) -> bytearray:
    """The batch with one header field changed and the checksum made to match."""
    struct.pack_into(form, data, position, value)
    struct.pack_into(">I", data, 17, rb._crc(data, 0, len(data)))
    return data
