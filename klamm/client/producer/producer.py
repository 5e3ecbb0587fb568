"""A producer of single records: chooses their partitions, collects them in batches, and passes these to a `Sender`.

What must stay true:
- The callback of every record that `send` has taken is called: with the record's offset once the replicas that `acks`
  requires have it, or with the error of its delivery. A callback that raises affects no other record.
- Records of one partition are written in the order of the calls of `send`, once their topic is known.
- Unacknowledged records take at most `buffer_memory_bytes`; `send` waits until there is room. Waiting calls get room in
  their order.
- A record is in the transaction in which its `send` began, or in none.

Source: org.apache.kafka.clients.producer.KafkaProducer; internals.RecordAccumulator, internals.ProducerBatch.
"""

import asyncio
import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import NamedTuple

from klamm.base.environment import Environment
from klamm.client.cluster import ClusterClient
from klamm.client.options import ProducerOptions
from klamm.client.producer.batches import Batch, Identity, Transaction, TransactionFailed
from klamm.client.producer.partitioner import StickyPartitions, partition_of_key
from klamm.client.producer.sender import PartitionQueue, Sender
from klamm.client.producer.topic_partitions import TopicPartitions, describe_topics
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.primitives import Buffer
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.record_batch import (
    HEADER_SIZE_BYTES,
    LOG_OVERHEAD_BYTES,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    compressed_batch,
    write_header,
)
from klamm.protocol.record.records import Record, encode_record
from klamm.protocol.vocabulary import UNKNOWN_OFFSET

logger = logging.getLogger(__name__)

# How long a topic's metadata is used (metadata.max.age.ms).
TOPIC_MAX_AGE_S = 300.0
# The memory of an unacknowledged record besides its own bytes.
RECORD_MEMORY_BYTES = 120


class ProducerRecord(NamedTuple):
    """A record to write. The default partition depends on the key; the default timestamp is the time of `send`."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class RecordMetadata(NamedTuple):
    """Where a record was written; the offset is -1 with ACKS_NONE."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


OnCompletion = Callable[[RecordMetadata | None, BaseException | None], object]
"""Called once, on the loop, with the record's metadata or the error (Kafka's `Callback`)."""


@dataclass(slots=True)
class _Topic:
    partitions: TopicPartitions
    described_at_s: float


class Producer:
    """Writes records, on the loop of its client. The caller closes the client.

    `transactional_producer.py` makes it transactional.
    """

    def __init__(
        self,
        client: ClusterClient,
        options: ProducerOptions,
        environment: Environment,
        transaction: Transaction | None = None,
    ) -> None:
        self._client = client
        self._sender = Sender(client, options, transaction)
        self._options = options
        self._environment = environment
        self._sticky = StickyPartitions(environment.random)
        self._topics: dict[str, _Topic] = {}
        self._open: dict[tuple[str, int], _ProducerBatch] = {}
        # The number of calls of `send` that wait for room. They take turns.
        self._waiting = 0
        self._turn = asyncio.Lock()

    async def partitions_for(self, topic: str) -> TopicPartitions:
        """The topic's partitions. Brokers with auto.create.topics.enable create a missing topic.

        Raises KafkaError if the topic does not exist within the client's time, and ClientError.
        """
        now_s = asyncio.get_running_loop().time()
        known = self._topics.get(topic)
        if known is None or now_s - known.described_at_s > TOPIC_MAX_AGE_S:
            described = await describe_topics(self._client, [topic])
            known = self._topics[topic] = _Topic(described[topic], now_s)
        return known.partitions

    async def send(self, record: ProducerRecord, on_completion: OnCompletion | None = None) -> None:
        """Takes the record as soon as there is room for it. `on_completion` gets the result of its delivery.

        Raises KafkaError for a record that cannot be written (its topic or partition does not exist, or it is larger
        than max.request.size), ClientError, and the error that ended the producer.
        """
        transaction = self._sender.transaction
        number = 0 if transaction is None else transaction.number
        partitions = await self.partitions_for(record.topic)
        timestamp_ms = self._environment.now_ms() if record.timestamp_ms is None else record.timestamp_ms
        encoded = Record(record.key, record.value, timestamp_ms, record.headers)
        size_bytes = _most_bytes(encoded)
        if size_bytes + HEADER_SIZE_BYTES > self._options.max_request_size_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record needs {size_bytes + HEADER_SIZE_BYTES} bytes, max.request.size allows"
                f" {self._options.max_request_size_bytes}",
            )
        if self._waiting or not self._sender.has_room(size_bytes):
            await self._wait_for_room(size_bytes)
        self._sender.check()
        if transaction is not None and transaction.number != number:
            raise TransactionFailed(
                ErrorCode.OPERATION_NOT_ATTEMPTED, "the record was not sent: its transaction has ended meanwhile"
            )
        batch, is_new = self._batch(record, partitions, size_bytes)
        added_bytes = batch.append(encoded, on_completion)
        if is_new:
            self._enqueue(batch)
        else:
            self._sender.account(added_bytes)

    async def flush(self) -> None:
        """Returns when every record that was sent before the call has been written or has failed.

        Raises the error that ended the producer.
        """
        await self._sender.flush()

    async def abandon(self, error: KafkaError) -> None:
        """Fails all records that were not sent. Returns when the others are answered or have failed."""
        await self._sender.abandon(error)

    async def close(self) -> None:
        """Fails all unacknowledged records. Idempotent."""
        await self._sender.close()

    # -- inside ---------------------------------------------------------------------------------------------------

    async def _wait_for_room(self, size_bytes: int) -> None:
        self._waiting += 1
        try:
            async with self._turn:
                await self._sender.wait_for_room(size_bytes)
        finally:
            self._waiting -= 1

    def _batch(
        self, record: ProducerRecord, partitions: TopicPartitions, size_bytes: int
    ) -> "tuple[_ProducerBatch, bool]":
        """The batch for the record, and whether the batch is new."""
        topic = record.topic
        limit_bytes = min(
            self._options.batch_size_bytes, self._sender.limits.get(topic, self._options.batch_size_bytes)
        )
        partition = self._partition(record, partitions)
        batch = self._open.get((topic, partition))
        if batch is not None and batch.has_room(size_bytes, limit_bytes):
            return batch, False
        if batch is not None and record.partition is None and record.key is None:
            # From now on records without keys go to another partition, where a batch may wait for more records.
            partition = self._sticky.next_partition(topic, partitions.available)
            batch = self._open.get((topic, partition))
            if batch is not None and batch.has_room(size_bytes, limit_bytes):
                return batch, False
        deadline = asyncio.get_running_loop().time() + self._options.delivery_timeout_ms / 1000
        return _ProducerBatch(self._sender.queue(topic, partition), self._options.compression, deadline), True

    def _partition(self, record: ProducerRecord, partitions: TopicPartitions) -> int:
        if record.partition is not None:
            if not 0 <= record.partition < partitions.count:
                raise KafkaError(
                    ErrorCode.INVALID_PARTITIONS,
                    f"{record.topic} has no partition {record.partition}, it has {partitions.count} partitions",
                )
            return record.partition
        if record.key is not None:
            return partition_of_key(record.key, partitions.count)
        return self._sticky.partition(record.topic, partitions.available)

    def _enqueue(self, batch: "_ProducerBatch") -> None:
        queue = batch.queue
        queue.make_ready()
        self._open[queue.topic, queue.number] = batch
        queue.append(batch)
        if self._options.linger_ms:
            asyncio.get_running_loop().call_later(self._options.linger_ms / 1000, batch.linger_is_over)
        else:
            batch.linger_is_over()


class _ProducerBatch(Batch):
    """Records for one partition, encoded as they come."""

    __slots__ = ("_body", "_callbacks", "_codec", "_is_closed", "_max_timestamp_ms", "_sealed", "queue")

    def __init__(self, queue: PartitionQueue, codec: CompressionType, deadline: float) -> None:
        super().__init__(0, deadline)
        self.queue = queue
        self._codec = codec
        self._max_timestamp_ms = NO_TIMESTAMP
        self._body = bytearray()
        # The timestamp and the callback of each record.
        self._callbacks: list[tuple[int, OnCompletion | None]] = []
        self._is_closed = False
        # The last sealed form of the batch, perhaps for another producer id.
        self._sealed: Buffer | None = None

    def has_room(self, size_bytes: int, limit_bytes: int) -> bool:
        """Whether a record of this size may be added."""
        return not self._is_closed and HEADER_SIZE_BYTES + len(self._body) + size_bytes <= limit_bytes

    def append(self, record: Record, on_completion: OnCompletion | None) -> int:
        """Adds a record. Returns how many bytes of memory it takes."""
        timestamp_ms = record.timestamp_ms
        base_timestamp_ms = self._callbacks[0][0] if self._callbacks else timestamp_ms
        encoded = encode_record(record, timestamp_ms - base_timestamp_ms, len(self._callbacks))
        self._body += encoded
        self._callbacks.append((timestamp_ms, on_completion))
        self._max_timestamp_ms = max(self._max_timestamp_ms, timestamp_ms)
        self.size_bytes += len(encoded)
        self.memory_bytes += len(encoded) + RECORD_MEMORY_BYTES
        return len(encoded) + RECORD_MEMORY_BYTES

    def linger_is_over(self) -> None:
        """The batch need not wait for more records."""
        if not self.is_ready:
            self.is_ready = True
            self.queue.wake()

    def seal(self, identity: Identity, sequence: int) -> Generator[int, None, None]:
        if self._sealed is not None:
            # The network buffers may still refer to the earlier bytes.
            sealed = bytearray(self._sealed)
            header = self._header(len(sealed), identity, sequence)
            write_header(sealed, 0, header._replace(attributes=header.attributes | self._codec))
        else:
            self._is_closed = True
            header = self._header(HEADER_SIZE_BYTES + len(self._body), identity, sequence)
            sealed = yield from compressed_batch(header, self._body, self._codec)
            self._body = bytearray()
        self._sealed = self.data = sealed

    def unseal(self) -> bool:
        self.data = None
        self.attempts = 0
        return True

    def part(self, size_bytes: int, data: Buffer, first: int, count: int) -> Batch:
        part = _ProducerBatch(self.queue, self._codec, self.deadline)
        part._callbacks = self._callbacks[first : first + count]
        part._max_timestamp_ms = max(timestamp_ms for timestamp_ms, _ in part._callbacks)
        part._sealed = part.data = data
        part._is_closed = True
        part.size_bytes, part.memory_bytes, part.is_ready = size_bytes, len(data), True
        return part

    def acknowledged(self, base_offset: int, log_append_time_ms: int) -> None:
        topic, partition = self.queue.topic, self.queue.number
        for index, (timestamp_ms, on_completion) in enumerate(self._callbacks):
            if on_completion is not None:
                offset = UNKNOWN_OFFSET if base_offset == UNKNOWN_OFFSET else base_offset + index
                written_ms = timestamp_ms if log_append_time_ms < 0 else log_append_time_ms
                self._tell(on_completion, RecordMetadata(topic, partition, offset, written_ms), None)
        self._end()

    def failed(self, error: BaseException) -> None:
        for _, on_completion in self._callbacks:
            if on_completion is not None:
                self._tell(on_completion, None, error)
        self._end()

    def _tell(self, on_completion: OnCompletion, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        try:
            on_completion(metadata, error)
        except Exception:
            topic, partition = self.queue.topic, self.queue.number
            logger.exception("Error executing user-provided callback on message for %s-%d", topic, partition)

    def _end(self) -> None:
        """Frees the batch's memory and takes no more records: the producer keeps a partition's last batch."""
        self._is_closed = True
        self._body, self._callbacks, self._sealed, self.data = bytearray(), [], None, None

    def _header(self, size_bytes: int, identity: Identity, sequence: int) -> BatchHeader:
        count = len(self._callbacks)
        return BatchHeader(
            0,
            size_bytes - LOG_OVERHEAD_BYTES,
            -1,
            2,
            0,
            0 if self.queue.sender.transaction is None else TRANSACTIONAL_FLAG,
            count - 1,
            self._callbacks[0][0],
            self._max_timestamp_ms,
            *identity,
            sequence,
            count,
        )


def _most_bytes(record: Record) -> int:
    """An upper bound of the record's size in a batch, by a few bytes too large."""
    size_bytes = 36 + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size_bytes += 10 + 3 * len(name) + len(value or b"")
    return size_bytes
