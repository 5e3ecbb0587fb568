"""Faults of the disk of brokers.

Each fault strikes some kinds of operations (`operations`; empty means all kinds) on some files: those of a `topic` or
one `partition`, those below a `directory`, or those whose name matches the pattern `file` (`*.index`). Without any of
these it strikes all files of the broker, including checkpoints and meta.properties.

| operation | is                                                              |
|-----------|-----------------------------------------------------------------|
| `read`    | reading a file, even if its data are in the page cache          |
| `write`   | writing, cutting or preallocating a file                        |
| `sync`    | syncing a file, a directory or the file system                  |
| `open`    | opening or creating a file, or creating a directory             |
| `rename`  | renaming a file or directory                                    |
| `remove`  | removing a file or directory                                    |
"""

import errno
import os
from dataclasses import dataclass
from typing import Literal

from klamm.faults.commands.codec import Fault, command
from klamm.processes.local_cluster import Server

Operation = Literal["read", "write", "sync", "open", "rename", "remove"]
DiskError = Literal["EIO", "ENOSPC", "EDQUOT", "EROFS", "EACCES", "EMFILE", "ENFILE", "ENOMEM", "ENODEV"]

MAX_DELAY_MS = 24 * 60 * 60 * 1000
MAX_BYTES = 2**62


@dataclass(frozen=True, kw_only=True)
class DiskFault(Fault):
    """A fault of one broker's disk, or of every broker's."""

    broker: int | None = None
    directory: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("broker", self.broker is None or self.broker >= 0, "the id of a broker")
        self._check("directory", self.directory is None or os.path.isabs(self.directory), "an absolute path")

    def concerns(self, server: Server) -> bool:
        return server != "zookeeper" and self.broker in (None, server)

    def _check(self, name: str, is_allowed: bool, allowed: str) -> None:
        if not is_allowed:
            raise ValueError(f"{self.kind}: {name}={getattr(self, name)!r} is not allowed; allowed: {allowed}")


@dataclass(frozen=True, kw_only=True)
class OperationFault(DiskFault):
    """A fault of some operations on some files."""

    operations: tuple[Operation, ...] = ()
    topic: str | None = None
    partition: int | None = None
    file: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("partition", self.partition is None or self.partition >= 0, "at least 0")
        if self.partition is not None and self.topic is None:
            raise ValueError(f"{self.kind}: partition={self.partition} needs a topic")


@command("disk.slow")
@dataclass(frozen=True, kw_only=True)
class SlowDisk(OperationFault):
    """Each operation takes `ms` longer. What a broker does to its disk on its loop holds the loop, as on a disk that
    stalls: appends among them."""

    method = "disk.slow"
    named = ("broker",)

    ms: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("ms", 0 <= self.ms <= MAX_DELAY_MS, f"0 to {MAX_DELAY_MS:,}")


@command("disk.fail")
@dataclass(frozen=True, kw_only=True)
class FailDisk(OperationFault):
    """Operations fail with `error`, and change nothing.

    `on_call` lists the numbers of the operations that fail, from 1; `times` ends the fault after this many failures.
    Operations are counted in the whole cluster, unless the fault is for one `broker`.
    """

    method = "disk.fail"
    named = ("broker",)

    error: DiskError = "EIO"
    times: int | None = None
    on_call: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("times", self.times is None or self.times >= 1, "at least 1")
        self._check("on_call", all(call >= 1 for call in self.on_call), "numbers of operations, from 1")

    @property
    def error_number(self) -> int:
        return int(getattr(errno, self.error))


@command("disk.full")
@dataclass(frozen=True, kw_only=True)
class FullDisk(DiskFault):
    """The files may grow by `bytes_left` together, then writes fail with ENOSPC. What is removed or cut makes room."""

    method = "disk.full"
    named = ("broker",)

    bytes_left: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("bytes_left", 0 <= self.bytes_left <= MAX_BYTES, f"0 to {MAX_BYTES:,}")
