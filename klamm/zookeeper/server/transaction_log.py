"""The transaction log, with group commit: all transactions that arrive during one sync share the next.

Files are called `log.<zxid of the first transaction, 16 hex digits>`; each block is one batch.

What must stay true:
- `on_durable(zxid)` is called only after everything up to `zxid` has been synced, and in ascending order.
- A new file exists durably (its header and its name are synced) before the first batch goes into it, and only after
  the last batch of the file before it has been synced.
- After a failure nothing more is written. Bytes that may have reached the file are cut off again, as far as the disk
  still allows, so that a restart does not find transactions that no sync confirmed.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from klamm.base.environment import Environment, File
from klamm.zookeeper.server.blocks import HEADER_BYTES, LOG_MAGIC, encode_block, encode_header
from klamm.zookeeper.server.records import encode_batch

PREFIX = "log."
MAX_BATCH_BYTES = 4 * 1024 * 1024

_log = logging.getLogger(__name__)


class _Batch:
    """Transactions that will be synced together. `salt` is set when a new file begins with this batch."""

    def __init__(self, first_zxid: int, salt: int | None = None) -> None:
        self.first_zxid = first_zxid
        self.salt = salt
        self.records: list[bytes] = []
        self.size_bytes = 0


class TransactionLog:
    """The log that is being written. It starts a new file.

    `on_durable(zxid)` and `on_failure(error)` are called on the loop.
    """

    def __init__(
        self,
        environment: Environment,
        directory: str,
        next_zxid: int,
        on_durable: Callable[[int], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._environment = environment
        self._directory = directory
        self._next_zxid = next_zxid
        self._on_durable = on_durable
        self._on_failure = on_failure
        self.size_bytes = 0  # appended since the last roll
        self._batches: deque[_Batch] = deque()
        self._committing: asyncio.Task[None] | None = None
        # Only the blocking part of a commit uses these, and there is one commit at a time.
        self._file: File | None = None
        self._salt = 0
        self._position = 0
        self.roll()

    def append(self, record: bytes) -> None:
        """Takes the transaction with the next zxid, encoded, of at most `MAX_BATCH_BYTES`.

        It is durable when `on_durable` says so.
        """
        batch = self._batches[-1] if self._batches else None
        if batch is None or batch.size_bytes + len(record) > MAX_BATCH_BYTES:
            batch = _Batch(self._next_zxid)
            self._batches.append(batch)
        batch.records.append(record)
        batch.size_bytes += len(record)
        self.size_bytes += len(record)
        self._next_zxid += 1
        if self._committing is None:
            # The task starts in the next turn of the loop, so its batch has everything that arrives until then.
            self._committing = asyncio.ensure_future(self._commit_all())

    def roll(self) -> None:
        """The next transaction begins a new file."""
        self.size_bytes = 0
        if not self._batches or self._batches[-1].records:
            self._batches.append(_Batch(self._next_zxid, self._environment.random.getrandbits(32)))

    async def close(self) -> None:
        """Waits until all appended transactions are durable, and closes the file."""
        if self._committing is not None:
            await self._committing
        if self._file is not None:
            self._file.close()

    async def _commit_all(self) -> None:
        while self._batches and self._batches[0].records:
            batch = self._batches.popleft()
            try:
                await self._environment.run_blocking(self._commit, batch)
                self._on_durable(batch.first_zxid + len(batch.records) - 1)
            except Exception as error:
                self._on_failure(error)
                return  # `_committing` stays set, so nothing more is committed
        self._committing = None

    def _commit(self, batch: _Batch) -> None:
        if batch.salt is not None:
            self._open_file(batch.first_zxid, batch.salt)
        assert self._file is not None
        block = encode_block(encode_batch(batch.first_zxid, batch.records), self._salt)
        try:
            self._file.write(self._position, block)
            self._file.sync()
        except OSError:
            self._cut()
            raise
        self._position += len(block)

    def _open_file(self, first_zxid: int, salt: int) -> None:
        if self._file is not None:
            self._file.close()
        file_system = self._environment.file_system
        self._file = file_system.open(f"{self._directory}/{PREFIX}{first_zxid:016x}", create=True)
        self._file.truncate(0)
        self._file.write(0, encode_header(LOG_MAGIC, salt))
        self._file.sync()
        file_system.sync_directory(self._directory)
        self._salt = salt
        self._position = HEADER_BYTES

    def _cut(self) -> None:
        assert self._file is not None
        try:
            self._file.truncate(self._position)
            self._file.sync()
        except OSError as error:
            _log.error("%s: cannot be cut to %d bytes: %s", self._file.path, self._position, error)
