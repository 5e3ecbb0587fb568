"""Disks of brokers that are slow, fail, or are full: `c.disk`.

    c.disk.fail(1, operations="sync", topic="orders").once()
    c.disk.slow(2, ms=50, operations="write")
    full = c.disk.full(1, bytes_left=100_000)
    full.remove()

`klamm.faults.commands.disk` lists the operations. Without `topic`, `directory` or `file` a fault concerns all files of
the broker; None as `broker` means every broker. `file` is a pattern for file names, such as `"*.index"`.
"""

from collections.abc import Sequence
from os import PathLike, fspath
from typing import Any, TypedDict, Unpack

from klamm.faults.commands.disk import DiskError, FailDisk, FullDisk, Operation, SlowDisk
from klamm.testing.faults.faults import FaultHandle, Faults
from klamm.testing.faults.narrowing import NarrowableHandle


class Files(TypedDict, total=False):
    """The operations and files that a fault concerns."""

    operations: Operation | Sequence[Operation]
    topic: str | None
    partition: int | None
    directory: str | PathLike[str] | None
    file: str | None


class FailureHandle(NarrowableHandle):
    """A disk that fails. The methods count operations."""


class Disk:
    """The disks of one cluster."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def slow(self, broker: int | None, ms: float, **files: Unpack[Files]) -> FaultHandle:
        """Each operation takes `ms` longer, until the fault is removed. A slow append holds the broker's loop, as a
        stalled disk does."""
        return self._faults.install(SlowDisk(broker=broker, ms=ms, **_fields(files)))

    def fail(
        self,
        broker: int | None,
        *,
        error: DiskError = "EIO",
        times: int | None = None,
        on_call: int | Sequence[int] = (),
        **files: Unpack[Files],
    ) -> FailureHandle:
        """Operations fail. EIO takes the broker's log directory offline, and with its last directory the broker stops;
        ENOSPC and shortages only refuse the operation."""
        calls = (on_call,) if isinstance(on_call, int) else tuple(on_call)
        fault = FailDisk(broker=broker, error=error, times=times, on_call=calls, **_fields(files))
        return FailureHandle(self._faults, fault)

    def full(
        self, broker: int | None, *, bytes_left: int = 0, directory: str | PathLike[str] | None = None
    ) -> FaultHandle:
        """The files may grow by `bytes_left` in total; then writes fail with ENOSPC. Removed files make room."""
        path = None if directory is None else fspath(directory)
        return self._faults.install(FullDisk(broker=broker, bytes_left=bytes_left, directory=path))


def _fields(files: Files) -> dict[str, Any]:
    """The fields of the fault. `operations` may be one name or several, `directory` a string or a path."""
    operations, directory = files.get("operations", ()), files.get("directory")
    return {
        **files,
        "operations": (operations,) if isinstance(operations, str) else tuple(operations),
        "directory": None if directory is None else fspath(directory),
    }
