"""A log of __consumer_offsets in memory, for tests of what stands on it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from klamm.coordinator.ports import Appended, KeyAndValue, LogBatch, TransactionalProducer
from klamm.protocol.errors import ErrorCode, KafkaError
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


class MemoryCoordinatorLog:
    """Implements `CoordinatorLog`. Appends end at once, or when `held` is released, with the error in `outcome`."""

    def __init__(self) -> None:
        self.batches: dict[int, list[LogBatch]] = {}
        self._end_offsets: dict[int, int] = {}
        self.led: set[int] = set(range(50))
        self.outcome = ErrorCode.NONE
        # Appends that wait, oldest first, and how they will end; None: they do not wait.
        self.held: list[tuple[asyncio.Future[Appended], Appended]] | None = None
        # What reading raises after the batches, once for each.
        self.read_errors: list[Exception] = []
        self.reads = 0
        # Reading waits here before the first batch.
        self.may_read = asyncio.Event()
        self.may_read.set()

    def append(
        self, partition: int, records: Sequence[KeyAndValue], producer: TransactionalProducer | None = None
    ) -> "asyncio.Future[Appended]":
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        if self.outcome is not ErrorCode.NONE:
            future.set_result(Appended(self.outcome))
            return future
        base_offset = self._write(partition, records, NO_PRODUCER_ID if producer is None else producer.producer_id)
        appended = Appended(ErrorCode.NONE, base_offset)
        if producer is not None:
            begins_at = transaction_begins_at(self.batches[partition], producer.producer_id)
            appended = appended._replace(transaction_offset=begins_at)
        if self.held is not None:
            self.held.append((future, appended))
        else:
            future.set_result(appended)
        return future

    def append_unacknowledged(self, partition: int, records: Sequence[KeyAndValue]) -> None:
        if partition in self.led:
            self._write(partition, records)

    def release(self, index: int = 0, error_code: ErrorCode = ErrorCode.NONE) -> None:
        """The append ends; its records are in the log all the same."""
        assert self.held is not None
        future, appended = self.held.pop(index)
        future.set_result(appended._replace(error_code=error_code))

    def end_transaction(self, producer_id: int, is_committed: bool, partition: int = 0) -> int:
        """Writes a marker; returns its offset."""
        offset = self._end_offsets.get(partition, 0)
        self._end_offsets[partition] = offset + 1
        self.batches.setdefault(partition, []).append(LogBatch(offset, (), producer_id, is_committed))
        return offset

    async def read(self, partition: int) -> AsyncIterator[LogBatch]:
        self.reads += 1
        if partition not in self.led:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "somebody else leads it")
        await self.may_read.wait()
        for batch in list(self.batches.get(partition, [])):
            await asyncio.sleep(0)
            yield batch
        if self.read_errors:
            raise self.read_errors.pop(0)

    def is_leader(self, partition: int) -> bool:
        return partition in self.led

    def records(self, partition: int = 0) -> list[KeyAndValue]:
        """All keys and values, oldest first."""
        return [(key, value) for batch in self.batches.get(partition, []) for _, key, value in batch.records]

    def _write(self, partition: int, records: Sequence[KeyAndValue], producer_id: int = NO_PRODUCER_ID) -> int:
        base_offset = self._end_offsets.get(partition, 0)
        self._end_offsets[partition] = base_offset + len(records)
        numbered = [(base_offset + i, key, value) for i, (key, value) in enumerate(records)]
        self.batches.setdefault(partition, []).append(LogBatch(base_offset, numbered, producer_id))
        return base_offset
