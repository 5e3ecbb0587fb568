"""A coordinator's topic in memory, for tests of what stands on it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Collection, Sequence
from typing import NamedTuple

from klamm.coordinator.ports import Appended, CoordinatorLog, KeyAndValue, LogBatch, TransactionalProducer
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.record_batch import NO_PRODUCER_ID


class OffsetsSettings(NamedTuple):
    """What offsets need of the configuration."""

    offset_metadata_max_bytes: int = 4096
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000


def transaction_begins_at(batches: Sequence[LogBatch], producer_id: int) -> int:
    """The offset of the first record of the producer's open transaction; -1 if it has none."""
    begins_at = -1
    for batch in batches:
        if batch.producer_id == producer_id and batch.is_committed is not None:
            begins_at = -1
        elif batch.producer_id == producer_id and begins_at < 0:
            begins_at = batch.base_offset
    return begins_at


def _answer(future: asyncio.Future[Appended], appended: Appended) -> None:
    if not future.done():
        future.set_result(appended)


class MemoryCoordinatorLog(CoordinatorLog):
    """The partitions of a coordinator's topic in memory. This broker leads those in `led`.

    An append ends with `error`, at once, after `delay_s`, or when `held` is released. After an error in `taken` the log
    has the records all the same.
    """

    taken: Collection[ErrorCode] = (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT)

    def __init__(self) -> None:
        self.batches: dict[int, list[LogBatch]] = {}
        self._end_offsets: dict[int, int] = {}
        self.led: set[int] = set(range(50))
        self.error = ErrorCode.NONE
        self.delay_s = 0.0
        self.append_count = 0
        # Appends that wait, oldest first, and how they will end; None: they do not wait.
        self.held: list[tuple[asyncio.Future[Appended], Appended]] | None = None
        # What reading raises after the batches, once for each.
        self.read_errors: list[Exception] = []
        self.reads = 0
        # A reader gets the batches before this offset: it sees nothing that is written after it has begun.
        self.reads_up_to = 2**63 - 1
        # Reading waits here before the first batch.
        self.readable = asyncio.Event()
        self.readable.set()
        self.wait_errors: list[Exception] = []
        self.waits = 0
        # Whether the end of the log is on all in-sync replicas.
        self.committed = asyncio.Event()
        self.committed.set()

    def append(
        self, partition: int, records: Sequence[KeyAndValue], producer: TransactionalProducer | None = None
    ) -> Awaitable[Appended]:
        self.append_count += 1
        appended = Appended(self.error)
        if self.error in self.taken:
            producer_id = NO_PRODUCER_ID if producer is None else producer.producer_id
            appended = appended._replace(base_offset=self.write(partition, records, producer_id))
            if producer is not None:
                begins_at = transaction_begins_at(self.batches[partition], producer_id)
                appended = appended._replace(transaction_offset=begins_at)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Appended] = loop.create_future()
        if self.held is not None:
            self.held.append((future, appended))
        elif self.delay_s:
            loop.call_later(self.delay_s, _answer, future, appended)
        else:
            future.set_result(appended)
        return future

    def append_unacknowledged(self, partition: int, records: Sequence[KeyAndValue]) -> None:
        if self.is_leader(partition):
            self.write(partition, records)

    def write(self, partition: int, records: Sequence[KeyAndValue], producer_id: int = NO_PRODUCER_ID) -> int:
        """The records are in the log; returns the offset of the first."""
        base_offset = self.end_offset(partition)
        self._end_offsets[partition] = base_offset + len(records)
        numbered = [(base_offset + i, key, value) for i, (key, value) in enumerate(records)]
        self.batches.setdefault(partition, []).append(LogBatch(base_offset, numbered, producer_id))
        return base_offset

    def release(self, index: int = 0, error_code: ErrorCode = ErrorCode.NONE) -> None:
        """The append ends; its records are in the log all the same."""
        assert self.held is not None
        future, appended = self.held.pop(index)
        future.set_result(appended._replace(error_code=error_code))

    def end_offset(self, partition: int = 0) -> int:
        return self._end_offsets.get(partition, 0)

    def end_transaction(self, producer_id: int, is_committed: bool, partition: int = 0) -> int:
        """Writes a marker; returns its offset."""
        offset = self.end_offset(partition)
        self._end_offsets[partition] = offset + 1
        self.batches.setdefault(partition, []).append(LogBatch(offset, (), producer_id, is_committed))
        return offset

    async def read(self, partition: int) -> AsyncGenerator[LogBatch, None]:
        self.reads += 1
        if not self.is_leader(partition):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "somebody else leads it")
        await self.readable.wait()
        for batch in list(self.batches.get(partition, [])):
            if batch.base_offset < self.reads_up_to:
                await asyncio.sleep(0)
                yield batch
        if self.read_errors:
            raise self.read_errors.pop(0)

    async def wait_committed(self, partition: int) -> None:
        self.waits += 1
        await self.committed.wait()
        if self.wait_errors:
            raise self.wait_errors.pop(0)

    def is_leader(self, partition: int) -> bool:
        return partition in self.led

    def records(self, partition: int = 0) -> list[KeyAndValue]:
        """All keys and values, oldest first."""
        numbered = (record for batch in self.batches.get(partition, []) for record in batch.records)
        return [(key, value) for _, key, value in numbered if key is not None]
