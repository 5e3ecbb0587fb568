"""The durable tree: the znode tree with its transaction log and its snapshots.

What must stay true:
- A transaction is appended to the log before it is applied, so the log and the tree have the same order.
- A snapshot is due after a number of operations, bytes of log or logs since the last snapshot, however often the server
  was restarted in between: only a snapshot makes logs superfluous.
- `on_durable` and `on_failure` are those of `TransactionLog`; a snapshot that cannot be written is a failure too.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Final

from klamm.base.environment import Environment, File, FileSystem
from klamm.base.slices import in_one_go
from klamm.zookeeper.keeper_exceptions import BadArguments
from klamm.zookeeper.server.long_work import LongSteps, OpenTo, while_open_to
from klamm.zookeeper.server.records import encode_record_steps
from klamm.zookeeper.server.snapshots import publish_snapshot, recover, write_snapshot
from klamm.zookeeper.server.transaction_log import MAX_BATCH_BYTES, TransactionLog
from klamm.zookeeper.server.transactions import MultiTxn, Txn
from klamm.zookeeper.server.tree import Applied, ZnodeTree

LOG_BYTES_PER_SNAPSHOT: Final = 64 * 1024 * 1024
# Every start begins a new log.
LOGS_PER_SNAPSHOT: Final = 10


class Database:
    """`directory` (absolute) belongs to this database alone while it is open."""

    tree: ZnodeTree

    def __init__(
        self,
        environment: Environment,
        directory: str,
        snapshot_every: int,
        on_durable: Callable[[int], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._environment = environment
        self._directory = directory
        self._snapshot_every = snapshot_every
        self._on_durable = on_durable
        self._on_failure = on_failure
        self._operations_since_snapshot = 0
        # The bytes and the number of logs that earlier runs have written since the last snapshot.
        self._earlier_log_bytes = self._earlier_logs = 0
        self._snapshotting: asyncio.Task[None] | None = None
        # A transaction is half applied.
        self._is_applying = False
        self._durable_zxid = 0
        self._progress: asyncio.Future[None] | None = None  # a snapshot waits here for the log
        self._closing = False
        self._lock: File | None = None

    async def open(self) -> None:
        """Recovers. Raises CorruptDataError, BlockingIOError when another process has the directory, OSError."""
        file_system = self._environment.file_system
        self._lock = await self._environment.run_blocking(_take_directory, file_system, self._directory)
        try:
            recovered = await self._environment.run_long(recover, file_system, self._directory)
        except BaseException:
            self._lock.close()
            raise
        self.tree = recovered.tree
        self._operations_since_snapshot = recovered.transactions
        self._earlier_log_bytes, self._earlier_logs = recovered.log_bytes, recovered.logs
        self._durable_zxid = self.tree.zxid
        self._transaction_log = TransactionLog(
            self._environment, self._directory, self.tree.zxid + 1, self._durable, self._on_failure
        )

    def commit(self, txn: Txn) -> Applied:
        """Applies a transaction that was just prepared against the tree. It is durable when `on_durable` says so.

        Raises BadArguments when it is too large for the log (an ACL of many identities in many znodes).
        """
        return in_one_go(self.commit_steps(txn))

    def commit_steps(self, txn: Txn) -> LongSteps[Applied]:
        """Like `commit`, in steps."""
        time_ms = self._environment.now_ms()
        record = yield from while_open_to(OpenTo.READS, encode_record_steps(time_ms, txn))
        if len(record) > MAX_BATCH_BYTES:
            raise BadArguments(message=f"a transaction of {len(record)} bytes; {MAX_BATCH_BYTES} are allowed")
        try:
            self._transaction_log.append(record)
            self._is_applying = True
            steps = self.tree.apply_steps(txn, self.tree.zxid + 1, time_ms)
            applied = yield from while_open_to(OpenTo.NOTHING, steps)
        except Exception as error:
            # Log and tree may differ now, so no further transaction may be checked against this tree.
            self._on_failure(error)
            raise
        finally:
            self._is_applying = False
        self._operations_since_snapshot += len(txn.txns) if isinstance(txn, MultiTxn) else 1
        if self._snapshotting is None and self._is_snapshot_due():
            self._operations_since_snapshot = self._earlier_log_bytes = self._earlier_logs = 0
            self._snapshotting = asyncio.ensure_future(self._snapshot())
        return applied

    def _is_snapshot_due(self) -> bool:
        return (
            self._operations_since_snapshot >= self._snapshot_every
            or self._earlier_log_bytes + self._transaction_log.size_bytes >= LOG_BYTES_PER_SNAPSHOT
            or self._earlier_logs >= LOGS_PER_SNAPSHOT
        )

    async def close(self) -> None:
        """Waits until all commits are durable or have failed, and unlocks the directory. Idempotent.

        No blocking work is in progress afterwards: the next user of the directory has it alone.
        """
        self._closing = True
        await self._transaction_log.close()
        self._wake_snapshot()
        if self._snapshotting is not None:
            await self._snapshotting
        if self._lock is not None:
            self._lock.close()

    def _durable(self, zxid: int) -> None:
        self._durable_zxid = zxid
        self._wake_snapshot()
        self._on_durable(zxid)

    def _wake_snapshot(self) -> None:
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(None)

    async def _snapshot(self) -> None:
        while self._is_applying:  # noqa: ASYNC110  # Each turn of the loop applies some of it.
            await asyncio.sleep(0)
        capture = self.tree.capture()
        self._transaction_log.roll()
        try:
            path = await write_snapshot(self._environment, self._directory, capture, lambda: not self._closing)
            while self._durable_zxid < capture.zxid and not self._closing:
                self._progress = asyncio.get_running_loop().create_future()
                await self._progress
            if path is not None and not self._closing:
                await self._environment.run_long(publish_snapshot, self._environment.file_system, path)
        except Exception as error:
            self._on_failure(error)
        finally:
            self.tree.release_capture()
            self._snapshotting = None


def _take_directory(file_system: FileSystem, directory: str) -> File:
    """Creates the directory if needed, durably, and locks it. Blocking."""
    file_system.make_directories(directory)
    lock = file_system.lock(f"{directory}/.lock")
    if file_system.list_directory(directory) == [".lock"]:
        # The directory is empty, so its name and the names of its parents may be new.
        parent = directory
        while parent != os.path.dirname(parent):
            parent = os.path.dirname(parent)
            try:
                file_system.sync_directory(parent)
            except PermissionError:
                break  # a directory that we may not read is not ours
    return lock
