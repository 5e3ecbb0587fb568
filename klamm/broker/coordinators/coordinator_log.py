"""The coordinators' access to the partitions of `__consumer_offsets` or `__transaction_state` that this broker hosts:
the port `CoordinatorLog`.

What must stay true:
- An append is answered when all in-sync replicas have its records (for groups: as `offsets.commit.required.acks` says,
  by default all), or with the reason why that is uncertain.
- Appends to one partition are in the log, and are answered, in the order of the calls.
- Queued records are appended only while this broker leads without a break: another leader in between may have written
  records that must not be overwritten.
- The first small append to a partition in a turn of the loop happens at once: on a loaded broker the client would wait
  long for one more turn. Later appends of the same turn become one batch, so that many small commits, or the tombstones
  of many groups, cost little more than two. The records of one caller always stay in one batch, and a batch that is too
  large has only one caller, so one client's records never fail another client's commit.
- The records of a transaction are a batch of their own, with the producer id and epoch. A reader gets them and the
  markers in the order of the log, and decides itself which records count.
- A reader does not decompress large batches on the loop, and decodes them in parts.
- A reader only gets batches as they were written: the checksum is verified, and the base offset, which the checksum
  does not cover, must continue the log. The error names the log and the remedy.

Source: kafka.coordinator.group.GroupMetadataManager (`appendForGroup`, `doLoadGroupsAndOffsets`),
kafka.coordinator.transaction.TransactionStateManager (`appendTransactionToLog`, `loadTransactionMetadata`).
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import NamedTuple

from klamm.base.environment import Environment
from klamm.base.slices import Slices, each
from klamm.base.tasks import OnFailure
from klamm.config.broker import BrokerConfig
from klamm.coordinator.ports import Appended, KeyAndValue, LogBatch, TransactionalProducer
from klamm.protocol.error_codes import ErrorCode, KafkaError, corrupt_message
from klamm.protocol.primitives import Buffer
from klamm.protocol.record.compression import CompressionType, decompress
from klamm.protocol.record.record_batch import (
    HEADER_SIZE_BYTES,
    NO_PRODUCER_ID,
    BatchHeader,
    check_crc,
    iterate_batches,
)
from klamm.protocol.record.records import (
    ControlRecordType,
    Record,
    build_batch,
    decode_end_transaction_marker,
    decode_keys_and_values,
)
from klamm.protocol.vocabulary import ACKS_ALL, ACKS_NONE, NO_EPOCH, UNKNOWN_OFFSET
from klamm.replication.partition.partition import Partition
from klamm.replication.replica_manager import ProduceResult, ReplicaManager
from klamm.storage.log.log import FetchedRecords
from klamm.storage.log.producer_state import AppendOrigin

# The most that is appended at once, in the step of the caller, which has other work as well.
APPENDED_AT_ONCE_MAX_BYTES = 4 * 1024
# Records of different callers share a batch up to this size, and up to half of the topic's limit.
SHARED_BATCH_MAX_BYTES = 64 * 1024
# An upper bound of the size of a record's lengths, deltas and attributes.
RECORD_OVERHEAD_BYTES = 24


# The most that a reader decodes in one slice, and the most that it decompresses on the loop.
BATCHES_PER_SLICE = 1_000
DECOMPRESSED_AT_ONCE_BYTES = 256 * 1024


class _Term(NamedTuple):
    """A time during which this broker leads without a break."""

    hosted: Partition | None
    since_epoch: int


class _Append(NamedTuple):
    """Records that wait for their turn of the loop. No caller waits for records without a `result`."""

    records: Sequence[KeyAndValue]
    result: "asyncio.Future[Appended] | None"
    term: _Term
    producer: TransactionalProducer | None = None

    def goes_with(self, other: "_Append") -> bool:
        """Whether both may share a batch: neither is in a transaction, and callers wait for both or for neither."""
        return (
            (self.result is None) is (other.result is None)
            and self.term == other.term
            and self.producer is None
            and other.producer is None
        )


class CoordinatorLogSettings(NamedTuple):
    """The settings for writing and reading a coordinator's topic."""

    required_acks: int
    append_timeout_ms: int
    codec: CompressionType
    load_buffer_bytes: int


def offsets_log_settings(config: BrokerConfig) -> CoordinatorLogSettings:
    """The settings of `__consumer_offsets`."""
    return CoordinatorLogSettings(
        config.offsets_commit_required_acks,
        config.offsets_commit_timeout_ms,
        CompressionType(config.offsets_topic_compression_codec),
        config.offsets_load_buffer_size,
    )


def transaction_log_settings(config: BrokerConfig) -> CoordinatorLogSettings:
    """The settings of `__transaction_state`."""
    return CoordinatorLogSettings(
        ACKS_ALL, config.request_timeout_ms, CompressionType.NONE, config.transaction_state_log_load_buffer_size
    )


class CoordinatorLog:
    """Appends to and reads from the partitions of `topic` that this broker hosts. Create it while the loop runs.

    `settings` returns the current settings. `on_failure` gets programming errors in work that no caller waits for.
    """

    def __init__(
        self,
        topic: str,
        settings: Callable[[], CoordinatorLogSettings],
        environment: Environment,
        replica_manager: ReplicaManager,
        on_failure: OnFailure,
    ) -> None:
        self._topic = topic
        self._settings = settings
        self._environment = environment
        self._replica_manager = replica_manager
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        # By partition, oldest first; each has a call of `_append_queued` to come.
        self._queued: dict[int, deque[_Append]] = {}

    def is_leader(self, partition: int) -> bool:
        hosted = self._replica_manager.hosted_partition((self._topic, partition))
        return hosted is not None and hosted.is_leader

    # -- append ---------------------------------------------------------------------------------------------------

    def append(
        self, partition: int, records: Sequence[KeyAndValue], producer: TransactionalProducer | None = None
    ) -> "asyncio.Future[Appended]":
        result: asyncio.Future[Appended] = self._loop.create_future()
        append = _Append(records, result, self._term(partition), producer)
        if self._may_append_at_once(partition, append):
            self._append_or_fail(partition, [append])
            self._gather(partition)
        else:
            self._queue(partition, append)
        return result

    def append_unacknowledged(self, partition: int, records: Sequence[KeyAndValue]) -> None:
        term = self._term(partition)
        for part in _parts(records, self._shared_batch_max_bytes(partition)):
            self._queue(partition, _Append(part, None, term))

    def _term(self, partition: int) -> _Term:
        hosted = self._replica_manager.hosted_partition((self._topic, partition))
        return _Term(hosted, NO_EPOCH if hosted is None else hosted.leading_since_epoch)

    def _may_append_at_once(self, partition: int, append: _Append) -> bool:
        hosted = append.term.hosted
        return (
            partition not in self._queued
            and _size_bytes(append.records) <= APPENDED_AT_ONCE_MAX_BYTES
            and (hosted is None or not hosted.log.durability.would_sync(len(append.records)))
        )

    def _queue(self, partition: int, append: _Append) -> None:
        if partition not in self._queued:
            self._gather(partition)
        self._queued[partition].append(append)

    def _gather(self, partition: int) -> None:
        """Has later appends wait for the next turn of the loop and share its batch."""
        self._queued[partition] = deque()
        self._loop.call_soon(self._append_queued, partition)

    def _append_queued(self, partition: int) -> None:
        """Appends one batch after the other. A batch that has synced the log (flush.messages) is the last of its
        step."""
        queued = self._queued[partition]
        while queued:
            if self._append_or_fail(partition, self._next_batch(partition, queued)):
                self._loop.call_soon(self._append_queued, partition)
                return
        del self._queued[partition]

    def _append_or_fail(self, partition: int, batch: Sequence[_Append]) -> bool:
        """Whether the append has waited for the disk."""
        try:
            return self._append_together(partition, batch)
        except Exception as error:
            # A fault of the program. The loop would only log it; the waiting callers raise it.
            self._fail(batch, error)
            return False

    def _next_batch(self, partition: int, queued: deque[_Append]) -> list[_Append]:
        """Takes the next appends that share a batch."""
        batch = [queued.popleft()]
        if queued:
            limit_bytes = self._shared_batch_max_bytes(partition) - _size_bytes(batch[0].records)
            while queued and queued[0].goes_with(batch[0]):
                limit_bytes -= _size_bytes(queued[0].records)
                if limit_bytes < 0:
                    break
                batch.append(queued.popleft())
        return batch

    def _fail(self, batch: Sequence[_Append], error: Exception) -> None:
        for append in batch:
            if append.result is None:
                self._on_failure(error)
            elif not append.result.done():
                append.result.set_exception(error)

    def _append_together(self, partition: int, appends: Sequence[_Append]) -> bool:
        """Whether the append has waited for the disk."""
        settings = self._settings()
        acks = ACKS_NONE if appends[0].result is None else settings.required_acks
        records = appends[0].records if len(appends) == 1 else [one for append in appends for one in append.records]
        if appends[0].term == self._term(partition):
            result = self._append_batch(partition, records, acks, settings.codec, appends[0].producer)
        else:
            result = ProduceResult(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        transaction_offset = UNKNOWN_OFFSET
        if appends[0].producer is not None and result.base_offset != UNKNOWN_OFFSET:
            transaction_offset = self._transaction_offset(partition, appends[0].producer)

        def answer() -> None:
            offset = result.base_offset
            for append in appends:
                # The waiting caller may have been cancelled.
                if append.result is not None and not append.result.done():
                    append.result.set_result(Appended(result.error_code, offset, transaction_offset))
                if offset != UNKNOWN_OFFSET:
                    offset += len(append.records)

        if acks == ACKS_ALL:
            appended = [(self._topic, partition, result)]
            self._replica_manager.when_replicated(appended, settings.append_timeout_ms, answer)
        else:
            answer()
        return result.has_waited_for_disk

    def _append_batch(
        self,
        partition: int,
        records: Sequence[KeyAndValue],
        acks: int,
        codec: CompressionType,
        producer: TransactionalProducer | None,
    ) -> ProduceResult:
        now_ms = self._environment.now_ms()
        least_bytes = sum(len(key) + len(value or b"") for key, value in records)
        if codec is CompressionType.NONE and least_bytes > self._max_message_bytes(partition):
            # The log would refuse the batch, but it takes long to build.
            return ProduceResult(ErrorCode.MESSAGE_TOO_LARGE)
        built = [Record(key, value, now_ms) for key, value in records]
        if producer is None:
            batch = build_batch(built, codec=codec)
        else:
            # Kafka's coordinator numbers every such batch 0 too; the log checks no sequence of a coordinator.
            batch = build_batch(
                built,
                codec=codec,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                base_sequence=0,
                is_transactional=True,
            )
        return self._replica_manager.append_records(
            self._topic, partition, memoryview(batch), acks, AppendOrigin.COORDINATOR
        )

    def _transaction_offset(self, partition: int, producer: TransactionalProducer) -> int:
        producers = self._replica_manager.partition(self._topic, partition).log.producer_state.entries
        return producers[producer.producer_id].transaction_first_offset

    def _shared_batch_max_bytes(self, partition: int) -> int:
        return min(SHARED_BATCH_MAX_BYTES, self._max_message_bytes(partition) // 2)

    def _max_message_bytes(self, partition: int) -> int:
        hosted = self._replica_manager.hosted_partition((self._topic, partition))
        return 2 * SHARED_BATCH_MAX_BYTES if hosted is None else hosted.log.config.max_message_bytes

    async def wait_committed(self, partition: int) -> None:
        hosted = self._replica_manager.partition(self._topic, partition)
        last = ProduceResult(
            ErrorCode.NONE, required_offset=hosted.log.log_end_offset, leader_epoch=hosted.leading_since_epoch
        )
        await self._replica_manager.wait_replicated(
            [(self._topic, partition, last)], self._settings().append_timeout_ms
        )
        # The records are committed also if the ISR is smaller than min.insync.replicas.
        if last.error_code not in (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
            raise KafkaError(last.error_code, f"the end of {self._topic}-{partition} is not on all in-sync replicas")

    # -- read -----------------------------------------------------------------------------------------------------

    async def read(self, partition: int) -> AsyncGenerator[LogBatch, None]:
        # After this loop all earlier appends are in the log or refused.
        while partition in self._queued:  # noqa: ASYNC110  # Each step of the loop appends some of it.
            await asyncio.sleep(0)
        log = self._replica_manager.partition(self._topic, partition).log
        if log.must_prepare:
            # Otherwise the first append after the read would hold the loop.
            await log.prepare_append()
        offset = log.log_start_offset
        slices = Slices(BATCHES_PER_SLICE, self._loop.time)
        # Records appended during the read come from the reader, which knows them already.
        end = log.log_end_offset
        try:
            while offset < end:
                fetched = await self._read(partition, offset, end)
                if fetched.next_offset <= offset:
                    # A part of the groups must not pass for all groups.
                    reason = f"{self._topic}-{partition} ends at offset {offset} instead of {end}"
                    raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, reason)
                for position, header in _checked_batches(fetched, offset, end):
                    body = b"" if header.is_control else await self._decompress(fetched.data, position, header)
                    async for batch in each(_log_batches(fetched.data, position, header, body), slices):
                        yield batch
                offset = fetched.next_offset
        except KafkaError as error:
            if error.code is not ErrorCode.CORRUPT_MESSAGE:
                raise
            raise corrupt_message(
                f"{log.directory} is damaged: {error.message}; let another in-sync replica lead, or stop this broker,"
                " remove the directory and start the broker: it copies the log again"
            ) from error

    async def _read(self, partition: int, offset: int, end: int) -> FetchedRecords:
        while True:
            log = self._replica_manager.partition(self._topic, partition).log
            try:
                return await log.read(
                    offset, self._settings().load_buffer_bytes, max_offset=end, minimum_one_batch=True
                )
            except KafkaError:
                if self._replica_manager.partition(self._topic, partition).log is log:
                    raise  # Otherwise the log has moved to another directory during the read.

    async def _decompress(self, data: Buffer, position: int, header: BatchHeader) -> Buffer:
        payload = memoryview(data)[position + HEADER_SIZE_BYTES : position + header.size_bytes]
        try:
            return decompress(header.codec, payload, DECOMPRESSED_AT_ONCE_BYTES)
        except KafkaError as error:
            if error.code is not ErrorCode.MESSAGE_TOO_LARGE:
                raise
        return await self._environment.run_blocking(decompress, header.codec, payload)


def _checked_batches(fetched: FetchedRecords, offset: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch that was read from `offset` on in a log that ends at `end`. The first batch may
    begin before `offset`. Raises KafkaError(CORRUPT_MESSAGE)."""
    if fetched.next_offset > end:
        raise corrupt_message(f"offset {fetched.next_offset} is behind its end {end}")
    for position, header in iterate_batches(fetched.data):
        try:
            check_crc(fetched.data, position, header)
        except KafkaError as error:
            raise corrupt_message(f"of offset {header.base_offset}, {error.message}") from error
        least = header.last_offset if position == 0 else header.base_offset
        if not offset <= least <= header.last_offset < fetched.next_offset:
            found = f"offsets {header.base_offset} to {header.last_offset}"
            raise corrupt_message(f"{found} are between offsets {offset} and {fetched.next_offset}")
        yield position, header
        offset = header.next_offset


def _log_batches(data: Buffer, position: int, header: BatchHeader, body: Buffer) -> Iterator[LogBatch]:
    """The batch at `position`, in parts if it is large. `body` holds its uncompressed records."""
    if header.is_control:
        marker = decode_end_transaction_marker(data, position, header)
        # A marker without a record, which compaction has emptied, commits nothing.
        is_committed = marker is not None and marker.type is ControlRecordType.COMMIT
        yield LogBatch(header.base_offset, (), header.producer_id, is_committed)
        return
    producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
    for records in decode_keys_and_values(body, header):
        yield LogBatch(records[0][0], records, producer_id)


def _size_bytes(records: Sequence[KeyAndValue]) -> int:
    """An upper bound of the records' size in a batch."""
    return sum(len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES for key, value in records)


def _parts(records: Sequence[KeyAndValue], limit_bytes: int) -> Iterator[Sequence[KeyAndValue]]:
    """The records in parts that fit into a batch of this many bytes, if each record does."""
    part: list[KeyAndValue] = []
    size_bytes = 0
    for record in records:
        record_bytes = _size_bytes([record])
        if part and size_bytes + record_bytes > limit_bytes:
            yield part
            part, size_bytes = [], 0
        part.append(record)
        size_bytes += record_bytes
    if part:
        yield part
