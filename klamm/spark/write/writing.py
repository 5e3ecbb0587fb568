"""Writes Arrow batches to topics, from plain threads: chooses partitions, encodes rows and gives them to a producer.

What must stay true:
- This module gives the batches of an idempotent producer their sequence numbers, in the order in which the producer
  gets the batches. So a writer that was interrupted is never used again.
- A writer that has written everything is kept for the next task of this process, with its producer id, because brokers
  remember every producer id of a partition for days. A writer with a transactional id has one transaction and is not
  used again: its task leaves the transaction prepared, or aborts it.
"""

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from klamm.base.environment import Environment
from klamm.base.system_environment import SystemEnvironment
from klamm.client import threads as network
from klamm.client.cluster import ClusterClient
from klamm.client.producer.batches import NO_IDENTITY, Identity, PartitionBatch
from klamm.client.producer.sender import Sender
from klamm.client.producer.topic_partitions import describe_topics
from klamm.client.producer.transaction_requests import PreparedTransaction
from klamm.client.producer.transactions import State, TransactionManager
from klamm.net.client import ClientError
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.record_batch import HEADER_SIZE_BYTES, NO_SEQUENCE, advance_sequence
from klamm.protocol.vocabulary import PartitionKey
from klamm.spark.options import WriteOptions
from klamm.spark.write.columns import Columns, Integers
from klamm.spark.write.encoding import encode, record_sizes
from klamm.spark.write.partitioning import Topic, assign

# Arrow batches are collected until every partition can have batches of a useful size, within the memory for
# unacknowledged batches.
GATHERED_BYTES = 8 * 1024 * 1024
GATHERED_BYTES_PER_PARTITION = 64 * 1024
# The memory of a batch without its columns. It is more than the columns of a single row take.
BATCH_OVERHEAD_BYTES = 2048
# How long a closed writer waits for the abort of its transaction. Otherwise the brokers abort it later.
ABORT_TIMEOUT_S = 5.0
# Encoded batches of this size go to the producer, which sends them while more are encoded.
HANDED_OVER_BYTES = 2 * 1024 * 1024


class Continued(NamedTuple):
    """The producer state that a writer takes over from an earlier one. `sequences` has the next sequence number of
    partitions; it is 0 for other partitions. Brokers accept each sequence number of a producer once.
    """

    producer: Identity
    sequences: Mapping[PartitionKey, int]


class RecordWriter:
    """Writes the columns `key`, `value`, `topic`, `partition`, `headers` and `timestamp` of Arrow batches as records.

    Only `value` and (unless the options name the topic) `topic` are required; other columns are ignored.
    Timestamps are microseconds and are truncated to milliseconds; the default is the time of writing. When a record
    cannot be written, any method raises KafkaError or ClientError, and the writer must not be used again.

    With a transactional id all records are in one transaction, which ends with `prepare`.
    """

    def __init__(self, options: WriteOptions, environment: Environment, continued: Continued | None = None) -> None:
        self._topic = options.topic
        self._options = options.producer
        self._environment = environment
        self._continued = continued
        self._transaction: TransactionManager | None = None
        self._producer, self._identity = network.call(self._options.client, self._begin)
        self._sequences = {} if continued is None else dict(continued.sequences)
        self._topics: dict[str, Topic] = {}
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._limits: dict[str, int] = {}

    def forget_topics(self) -> None:
        """Drops the topics' metadata. The next write reads it again."""
        self._topics.clear()

    def write(self, batch: pa.RecordBatch) -> None:
        """Accepts rows. They are sent in the background."""
        self._gathered.append(batch)
        self._gathered_bytes += batch.nbytes + BATCH_OVERHEAD_BYTES
        if self._gathered_bytes >= self._enough_bytes:
            self._send_gathered()

    def flush(self) -> None:
        """Returns when the replicas that `acks` asks for have all records."""
        self._send_gathered()
        network.call(self._options.client, lambda _: self._producer.flush())

    def prepare(self) -> PreparedTransaction | None:
        """Flushes, and returns the transaction for `end_prepared`; None if it has no records."""
        self.flush()
        assert self._transaction is not None
        return self._transaction.prepare()

    @property
    def partitions(self) -> list[PartitionKey]:
        """The partitions that were written to, sorted."""
        return sorted(self._sequences)

    def end_offset(self, topic: str, partition: int) -> int:
        """The offset after the last record written to a partition. Final after `flush`."""
        return self._producer.end_offsets[topic, partition]

    def close(self) -> None:
        """Drops all unacknowledged batches, and aborts a transaction that is not prepared."""
        network.call(self._options.client, lambda _: self._close())

    # -- inside ---------------------------------------------------------------------------------------------------

    async def _begin(self, client: ClusterClient) -> tuple[Sender, Identity]:
        transactional_id = self._options.transactional_id
        if transactional_id is not None:
            self._transaction = TransactionManager(client, transactional_id, self._options.transaction_timeout_ms)
            identity = await self._transaction.init()
            self._transaction.begin()
            return Sender(client, self._options, self._transaction), identity
        producer = Sender(client, self._options)
        if not self._options.enable_idempotence:
            return producer, NO_IDENTITY
        return producer, await producer.init_producer_id() if self._continued is None else self._continued.producer

    async def _close(self) -> None:
        transaction = self._transaction
        if transaction is not None and transaction.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
            with suppress(KafkaError, ClientError, TimeoutError):
                async with asyncio.timeout(ABORT_TIMEOUT_S):
                    transaction.begin_abort()
                    await self._producer.abandon(KafkaError(ErrorCode.OPERATION_NOT_ATTEMPTED, "the task has failed"))
                    await transaction.abort()
        await self._producer.close()

    @property
    def _enough_bytes(self) -> int:
        partitions = sum(topic.partition_count for topic in self._topics.values())
        enough = max(GATHERED_BYTES, partitions * GATHERED_BYTES_PER_PARTITION)
        return min(enough, max(GATHERED_BYTES, self._options.buffer_memory_bytes))

    def _send_gathered(self) -> None:
        if self._gathered:
            table = pa.Table.from_batches(self._gathered).combine_chunks()
            self._gathered, self._gathered_bytes = [], 0
            for batch in table.to_batches():
                self._send(batch)

    def _send(self, batch: pa.RecordBatch) -> None:
        columns = {name: batch.column(name) for name in batch.schema.names}
        rows = batch.num_rows
        topics, topic_of = self._topics_of(columns.get("topic"), rows)
        timestamps = self._timestamps(columns.get("timestamp"), rows)
        records = Columns.from_arrow(columns.get("key"), columns["value"], columns.get("headers"), timestamps)
        sizes = record_sizes(records)
        self._check_sizes(sizes)
        assignment = assign(topics, topic_of, columns.get("partition"), records.keys, sizes)
        sealed: list[PartitionBatch] = []
        size_bytes = 0
        for encoded in encode(records, assignment.targets, sizes, assignment.limits):
            key = assignment.partitions[encoded.target]
            sequence = NO_SEQUENCE
            if self._options.enable_idempotence:
                sequence = self._sequences.get(key, 0)
                self._sequences[key] = advance_sequence(sequence, encoded.record_count)
            data = encoded.seal(
                self._options.compression,
                *self._identity,
                sequence,
                is_transactional=self._transaction is not None,
            )
            sealed.append(PartitionBatch(*key, data, len(encoded.data)))
            size_bytes += len(data)
            if size_bytes >= HANDED_OVER_BYTES:
                self._append(sealed)
                sealed, size_bytes = [], 0
        self._append(sealed)

    def _timestamps(self, column: pa.Array | None, rows: int) -> Integers:
        now_ms = self._environment.now_ms()
        if column is None:
            return np.full(rows, now_ms, np.int64)
        microseconds = pc.fill_null(column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()), now_ms * 1000)
        return np.array(microseconds.to_numpy(zero_copy_only=False), np.int64) // 1000

    def _append(self, batches: Sequence[PartitionBatch]) -> None:
        self._limits = network.call(self._options.client, lambda _: self._producer.append(batches))
        for name, limit in self._limits.items():
            if name in self._topics:
                self._topics[name].limit_bytes = min(limit, self._topics[name].limit_bytes)

    def _topics_of(self, column: pa.Array | None, rows: int) -> tuple[list[Topic], Integers]:
        """The topics, and the index of each row's topic."""
        if self._topic is not None:
            names, topic_of = [self._topic], np.zeros(rows, np.int64)
        elif column is None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "rows have no column topic, and no option topic is set")
        elif column.null_count:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                "the column topic is null in a row; the option topic sets the topic of all rows",
            )
        else:
            encoded = pc.dictionary_encode(column)
            names = encoded.dictionary.to_pylist()
            topic_of = np.array(encoded.indices.to_numpy(zero_copy_only=False), np.int64)
        unknown = [name for name in names if name not in self._topics]
        if unknown:
            described = network.call(self._options.client, lambda client: describe_topics(client, unknown))
            limit_bytes = min(self._options.batch_size_bytes, self._options.max_request_size_bytes)
            for name, partitions in described.items():
                first = self._environment.random.randrange(len(partitions.available))
                limit = min(limit_bytes, self._limits.get(name, limit_bytes))
                self._topics[name] = Topic(name, partitions.count, partitions.available, limit, first)
        return [self._topics[name] for name in names], topic_of

    def _check_sizes(self, sizes: Integers) -> None:
        limit = self._options.max_request_size_bytes - HEADER_SIZE_BYTES
        if len(sizes) and sizes.max() > limit:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record needs {sizes.max() + HEADER_SIZE_BYTES} bytes, kafka.max.request.size"
                f" allows {self._options.max_request_size_bytes}",
            )


_idle: dict[WriteOptions, list[RecordWriter]] = {}
os.register_at_fork(after_in_child=_idle.clear)


@contextmanager
def record_writer(
    options: WriteOptions, environment: Environment | None = None, continued: Continued | None = None
) -> Iterator[RecordWriter]:
    """A writer for one task, which ends with `flush` or `prepare`."""
    is_shared = continued is None and options.producer.transactional_id is None
    idle = _idle.setdefault(options, []) if is_shared else []
    writer = idle.pop() if idle else RecordWriter(options, environment or SystemEnvironment(), continued)
    writer.forget_topics()
    try:
        yield writer
    except BaseException:
        writer.close()
        raise
    idle.append(writer)
