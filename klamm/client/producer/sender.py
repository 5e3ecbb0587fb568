"""Sends batches of records to their partitions' leaders until they are acknowledged. Every producer uses it.

A batch comes sealed, with its producer id and sequence numbers (`PartitionBatch`, from Spark), or the sender seals it
when it is sent for the first time (`Batch.seal`, from `klamm.client.producer.producer`). `batches.py` has both kinds.
A `Sender` and the `PartitionQueue` of each partition need each other, so they are in one module.

What must stay true:
- A batch counts as acknowledged when the replicas that `acks` requires have it. Only then the sender forgets it.
- With idempotence (KIP-98) no batch is written twice or out of order: a partition's batches have consecutive sequence
  numbers, and a batch is resent unchanged. At most `MAX_IN_FLIGHT` batches of a partition are in flight: a broker
  recognizes only a producer's last five batches. Without idempotence one batch is in flight at a time.
  One exception remains, as in Java's client: a leader that has stopped cleanly keeps only a producer's last batch. If
  the answers to several batches are lost with it, and no other replica leads, the earlier ones are written again.
- Only one batch of a partition is in flight until one has been acknowledged, and again after each failure. A Kafka
  broker that does not know the producer yet accepts any sequence number as the first, so the second batch must not
  overtake the first.
- The first sealed batch that cannot be delivered ends the sender: later batches could not be in order.
- If the sender seals the batches, a failed batch only fails those later batches that may be in the log. The other
  batches continue, with a new producer id unless the failed batch was certainly never appended. A sequence number that
  may be in the log, or may still reach it, is never given to other records: a broker would take these for duplicates,
  and acknowledge records that it does not write.
- The batches of a transactional producer go only to partitions that the transaction's coordinator knows. When one of
  them fails, the transaction fails: unsent batches are dropped, and sent batches are resent until they are answered,
  because a batch that a leader appends after the end of its transaction stays open.
- With acks=0 `flush` still waits until the brokers have read the sent batches: the program may end then, and unsent
  bytes would be lost.
- Every batch ends: without an acknowledgement within `delivery_timeout_ms` it fails.

Source: org.apache.kafka.clients.producer.internals.Sender, TransactionManager.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from klamm.base.tasks import start_task
from klamm.client.cluster import ClusterClient
from klamm.client.options import ProducerOptions
from klamm.client.producer.batches import (
    NO_IDENTITY,
    Batch,
    Identity,
    PartitionBatch,
    SealedBatch,
    Transaction,
    TransactionFailed,
)
from klamm.client.retries import RETRIABLE_ERRORS
from klamm.net.client import BuildRequest, Connection, Disconnected, InvalidResponse, NotSent
from klamm.protocol.apis.init_producer_id import InitProducerIdRequest
from klamm.protocol.apis.produce import ProduceRequest, ProduceResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.primitives import Buffer
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.record_batch import NO_SEQUENCE, BatchHeader, advance_sequence
from klamm.protocol.record.records import Record, build_batch, decode_records
from klamm.protocol.vocabulary import ACKS_ALL, ACKS_NONE, UNKNOWN_OFFSET, PartitionKey

MAX_IN_FLIGHT = 5
BACKOFF_S = 0.1
Result = ProduceResponse.TopicProduceResponse.PartitionProduceResponse

# Errors with which a leader has certainly not appended the batch.
_NOT_APPENDED = frozenset(
    {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.POLICY_VIOLATION,
    }
)
# Errors with which the leader does not have the producer id's earlier batches.
_PRODUCER_LOST = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)


async def init_producer_id(client: ClusterClient) -> Identity:
    """A new producer id and its epoch. Raises KafkaError and ClientError."""
    response = await client.send_to_any(
        ApiKey.INIT_PRODUCER_ID,
        lambda version: InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1),
        errors_of=lambda response: [response.error_code],
    )
    if response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "writing needs IdempotentWrite on the cluster")
    if response.error_code != ErrorCode.NONE:
        raise KafkaError(ErrorCode(response.error_code), "no producer id")
    return Identity(response.producer_id, response.producer_epoch)


def produce_request(
    partition: PartitionKey, batch: Buffer | None, *, acks: int, timeout_ms: int, transactional_id: str | None = None
) -> ProduceRequest:
    """The request with one batch, for the leader of its partition."""
    topic, number = partition
    return ProduceRequest.of(transactional_id, acks, timeout_ms, [(topic, [(number, batch)])])


class Sender:
    """Sends batches to their partitions' leaders until all are acknowledged, on the loop of its client.

    With a `transaction`, each batch belongs to the transaction in which it is added. Batches that come sealed have the
    transaction's identity.
    """

    def __init__(self, client: ClusterClient, options: ProducerOptions, transaction: Transaction | None = None) -> None:
        self._client = client
        self._options = options
        self.transaction = transaction
        self._partitions: dict[tuple[str, int], PartitionQueue] = {}
        # The queues whose last batch may wait for more records, in the order of these batches.
        self._waiting: dict[tuple[str, int], PartitionQueue] = {}
        # The offset after the last acknowledged batch of each partition.
        self.end_offsets: dict[tuple[str, int], int] = {}
        self._pending_bytes = 0
        # The number of batches so far.
        self._appended = 0
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        # The new limit of uncompressed batches for topics whose brokers found a batch too large.
        self.limits: dict[str, int] = {}
        self._identity: asyncio.Task[Identity] | None = None

    async def init_producer_id(self) -> Identity:
        """A new producer id and its epoch. Raises KafkaError and ClientError."""
        return await init_producer_id(self._client)

    async def append(self, batches: Sequence[PartitionBatch]) -> dict[str, int]:
        """Takes sealed batches in the order of their sequence numbers, as soon as there is room for them.

        Returns the new limit of batches for topics whose brokers found a batch too large. Raises the error that ended
        the sender.
        """
        for batch in batches:
            await self.wait_for_room(len(batch.data))
            deadline = asyncio.get_running_loop().time() + self._options.delivery_timeout_ms / 1000
            self.queue(batch.topic, batch.partition).append(SealedBatch(batch.size_bytes, deadline, batch.data))
        return dict(self.limits)

    async def wait_for_room(self, size_bytes: int) -> None:
        """Returns when there is memory for this many more bytes. Raises the error that ended the sender."""
        self.check()
        while not self.has_room(size_bytes):
            # No more records come, so the batches that wait for more of them need not wait any longer.
            self._make_all_ready()
            await self._change()

    def has_room(self, size_bytes: int) -> bool:
        """Whether there is memory for this many more bytes. A single batch may be larger than the limit."""
        return not self._pending_bytes or self._pending_bytes + size_bytes <= self._options.buffer_memory_bytes

    def queue(self, topic: str, partition: int) -> "PartitionQueue":
        """The batches of a partition."""
        queue = self._partitions.get((topic, partition))
        if queue is None:
            queue = PartitionQueue(self, self._client, self._options, topic, partition)
            self._partitions[topic, partition] = queue
        return queue

    async def flush(self) -> None:
        """Returns when every batch that was added before the call is acknowledged or has failed.

        Raises the error that ended the sender.
        """
        self._make_all_ready()
        last = self._appended
        for queue in list(self._partitions.values()):
            while queue.batches and queue.batches[0].number <= last:
                await self._change()
        self.check()
        unanswered = dict.fromkeys(queue.take_unanswered() for queue in self._partitions.values())
        # A connection that has ended took its batches with it, which acks=0 accepts.
        await asyncio.gather(
            *(connection.round_trip() for connection in unanswered if connection is not None), return_exceptions=True
        )

    async def abandon(self, error: KafkaError) -> None:
        """Fails the batches that were never sent, and returns when the others are answered or have failed."""
        for queue in self._partitions.values():
            queue.abandon(error)
        self._make_all_ready()
        while self._pending_bytes and self._failure is None:
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        """Fails all unacknowledged batches. Idempotent."""
        self.fail(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the producer is closed"))

    def check(self) -> None:
        """Raises the error that ended the sender, if it has ended."""
        if self._failure is not None:
            raise self._failure

    # -- called by the partitions ---------------------------------------------------------------------------------

    async def identity(self) -> Identity:
        """The producer id of this sender, the same for all partitions. Raises like `init_producer_id`."""
        if self._identity is None or (self._identity.done() and self._identity.exception() is not None):
            self._identity = asyncio.create_task(self.init_producer_id())
        return await asyncio.shield(self._identity)

    def account(self, difference_bytes: int) -> None:
        """Adds to the number of unacknowledged bytes."""
        self._pending_bytes += difference_bytes
        self._changed.set()

    def next_number(self) -> int:
        """The number of the next batch."""
        self._appended += 1
        return self._appended

    def waits(self, queue: "PartitionQueue") -> None:
        """The last batch of this partition is not ready."""
        self._waiting[queue.topic, queue.number] = queue

    def too_large(self, topic: str, size_bytes: int) -> None:
        """A batch of this size was too large for the topic."""
        self.limits[topic] = min(self.limits.get(topic, size_bytes), size_bytes // 2)

    def fail(self, error: BaseException) -> None:
        """Ends the sender with this error, unless an earlier error has ended it."""
        if self._failure is None:
            self._failure = error
            self._changed.set()
            if self.transaction is not None:
                self.transaction.batch_failed(error, may_come_late=True)
            if self._identity is not None:
                self._identity.cancel()
            for partition in self._partitions.values():
                partition.stop(error)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _make_all_ready(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for queue in waiting.values():
            queue.make_ready()

    async def _change(self) -> None:
        self.check()
        self._changed.clear()
        await self._changed.wait()
        self.check()


@dataclass(slots=True)
class PartitionQueue:
    """The unacknowledged batches of one partition, in the order of their sequence numbers.

    `ClusterClient.send_to_leader`, which finds the leader and retries, sends one batch at a time until one is
    acknowledged. Then up to `MAX_IN_FLIGHT` go straight to the leader until one fails, which is then sent alone again.
    """

    sender: Sender
    client: ClusterClient
    options: ProducerOptions
    topic: str
    number: int
    batches: deque[Batch] = field(default_factory=deque)
    # Whether the leader took the last batch, so that it knows the producer.
    in_step: bool = False
    task: "asyncio.Task[None] | None" = None
    # The identity for sealing batches; None before the first batch, and after the sequence has broken.
    identity: Identity | None = None
    next_sequence: int = 0  # after the last acknowledged batch
    needs_new_identity: bool = False
    # The connection with batches that get no answer (acks=0).
    unanswered: Connection | None = None

    def append(self, batch: Batch) -> None:
        """Adds a batch, which is sent when it is ready."""
        batch.number = self.sender.next_number()
        self.sender.account(batch.memory_bytes)
        self.batches.append(batch)
        if batch.is_ready:
            self.wake()
        else:
            self.sender.waits(self)

    def make_ready(self) -> None:
        """Makes the last batch ready to be sent. The other batches are ready already."""
        if self.batches and not self.batches[-1].is_ready:
            self.batches[-1].is_ready = True
            self.wake()

    def wake(self) -> None:
        """Sends the batches that are ready."""
        if self.task is None or self.task.done():
            self.task = start_task(self._deliver(), self.sender.fail)

    def stop(self, error: BaseException) -> None:
        """Fails all batches with `error`."""
        if self.task is not None:
            self.task.cancel()
        for batch in self.batches:
            batch.failed(error)
        self.batches.clear()

    def abandon(self, error: KafkaError) -> None:
        """Fails all batches if the first was never sent. Behind a sent batch, `_seal` refuses the unsent ones."""
        if self.batches and not self.batches[0].attempts:
            if self.task is not None:
                self.task.cancel()
                self.task = None
            self._fail_all(error)

    def take_unanswered(self) -> Connection | None:
        """The connection on which the broker may not have read a batch yet, at the first call after that batch."""
        connection, self.unanswered = self.unanswered, None
        return connection

    # -- sending --------------------------------------------------------------------------------------------------

    async def _deliver(self) -> None:
        while self._is_ready(0):
            transaction = self.sender.transaction
            if transaction is not None and self.identity != transaction.identity:
                self.identity, self.next_sequence, self.in_step = transaction.identity, 0, False
            try:
                if self.in_step:
                    await self._send_many()
                else:
                    await self._send_first()
            except _Refused as refused:
                self._give_up(self.batches[0], refused)

    def _is_ready(self, index: int) -> bool:
        return index < len(self.batches) and self.batches[index].is_ready

    async def _send_first(self) -> None:
        """Sends the first batch, with the client's retries, and waits a little if they were not enough."""
        batch = self.batches[0]
        why = ""

        def error_of(response: ProduceResponse | None) -> list[int]:
            nonlocal why
            if response is None:
                return []
            code = self._result(response).error_code
            why = ErrorCode(code).name
            return [code]

        try:
            async with asyncio.timeout_at(batch.deadline):
                await self._seal(0)
                response = await self._send_to_leader(batch, error_of)
                result = None if response is None else self._result(response)
        except TimeoutError:
            raise self._timed_out(why or f"{self._leader_text()} did not answer") from None
        except (NotSent, Disconnected) as error:
            why = str(error)
        except KafkaError as error:
            if error.code not in RETRIABLE_ERRORS or isinstance(error, TransactionFailed):
                raise _Refused(error.code, error.message) from None
            why = str(error)
        else:
            if result is None:
                self._forget(batch).acknowledged(UNKNOWN_OFFSET, -1)
                return
            if self._settle(batch, result):
                return
        if asyncio.get_running_loop().time() + BACKOFF_S >= batch.deadline:
            raise self._timed_out(why)
        await asyncio.sleep(BACKOFF_S)

    async def _send_to_leader(self, batch: Batch, error_of: Any) -> ProduceResponse | None:
        """The leader's response, or None with acks=0."""
        if self.options.acks != ACKS_NONE:
            return await self.client.send_to_leader(
                self.topic, self.number, ApiKey.PRODUCE, self._request(batch), errors_of=error_of
            )
        # With acks=0, a broker that refuses a batch closes the connection: the only sign that it may no longer lead.
        connection = await self.client.leader_connection(self.topic, self.number)
        self.unanswered = connection
        await connection.send(ApiKey.PRODUCE, self._request(batch), expect_response=False)
        return None

    async def _send_many(self) -> None:
        """Sends batches until no batch is ready or an error occurs."""
        topic = self.client.metadata.topics.get(self.topic)
        state = None if topic is None else topic.partitions.get(self.number)
        in_flight: deque[asyncio.Task[ProduceResponse]] = deque()
        try:
            connection = await self.client.connection_to(-1 if state is None else state.leader)
            while self.in_step and self._is_ready(0):
                while len(in_flight) < MAX_IN_FLIGHT and self._is_ready(len(in_flight)):
                    await self._seal(len(in_flight))
                    build = self._request(self.batches[len(in_flight)])
                    in_flight.append(asyncio.create_task(connection.send(ApiKey.PRODUCE, build)))
                response = await in_flight[0]
                in_flight.popleft()
                self._settle(self.batches[0], self._result(response))
        except _Refused:
            await self._unseal_refused(in_flight)
            raise
        except (NotSent, Disconnected, KafkaError):
            self.in_step = False
        finally:
            # These batches are sent again, and brokers recognize duplicates.
            for task in in_flight:
                task.cancel()
            await asyncio.gather(*in_flight, return_exceptions=True)

    async def _unseal_refused(self, in_flight: Iterable["asyncio.Task[ProduceResponse]"]) -> None:
        """Unseals batches that the leader has refused for their sequence numbers, because it refused an earlier
        batch."""
        if isinstance(self.batches[0], SealedBatch):
            return
        responses = await asyncio.gather(*in_flight, return_exceptions=True)
        for batch, response in zip(islice(self.batches, 1, None), responses, strict=False):
            if isinstance(response, ProduceResponse) and batch.attempts == 1:
                result = self._find_result(response)
                code = ErrorCode.NONE if result is None else result.error_code
                if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER or code in _NOT_APPENDED:
                    batch.unseal()

    async def _seal(self, index: int) -> None:
        batch = self.batches[index]
        if self.sender.transaction is not None and not batch.attempts:
            await self.sender.transaction.add_partition((self.topic, self.number))
        if batch.data is not None:
            return
        identity, sequence = NO_IDENTITY, NO_SEQUENCE
        if self.options.enable_idempotence and self.options.acks == ACKS_ALL:
            if self.identity is None:
                new = self.sender.init_producer_id if self.needs_new_identity else self.sender.identity
                self.identity = await new()
            identity, sequence = self.identity, self.next_sequence
            if index:
                before = self.batches[index - 1].header
                sequence = advance_sequence(before.base_sequence, before.record_count)
        for _ in batch.seal(identity, sequence):
            await asyncio.sleep(0)

    def _request(self, batch: Batch) -> BuildRequest[ProduceResponse]:
        timeout_ms = self.options.client.request_timeout_ms
        partition = (self.topic, self.number)
        transaction = self.sender.transaction
        request = produce_request(
            partition,
            batch.data,
            acks=self.options.acks,
            timeout_ms=timeout_ms,
            transactional_id=None if transaction is None else transaction.transactional_id,
        )

        def build(version: int) -> ProduceRequest:
            batch.attempts += 1
            return request

        return build

    # -- answers --------------------------------------------------------------------------------------------------

    def _result(self, response: ProduceResponse) -> Result:
        """The response's result for this partition. Raises InvalidResponse if the response has none."""
        result = self._find_result(response)
        if result is None:
            raise InvalidResponse(f"the leader returned nothing for {self.topic}-{self.number}")
        return result

    def _find_result(self, response: ProduceResponse) -> Result | None:
        for topic in response.responses:
            for result in topic.partition_responses:
                if (topic.name, result.index) == (self.topic, self.number):
                    return result
        return None

    def _settle(self, batch: Batch, result: Result) -> bool:
        """Handles the answer to the first batch. Returns whether the batch is finished. Raises _Refused if it will
        never be acknowledged."""
        code = ErrorCode(result.error_code)
        header = batch.header
        self.in_step = code is ErrorCode.NONE and header.base_sequence != NO_SEQUENCE
        if code is ErrorCode.NONE:
            self._forget(batch)
            self.next_sequence = advance_sequence(header.base_sequence, header.record_count)
            self.sender.end_offsets[self.topic, self.number] = result.base_offset + header.last_offset_delta + 1
            batch.acknowledged(result.base_offset, result.log_append_time_ms)
        elif code is ErrorCode.MESSAGE_TOO_LARGE and header.record_count > 1:
            self._split(batch, header)
        elif code in _PRODUCER_LOST and self.sender.transaction is None and batch.unseal():
            self._begin_anew()
            return False
        elif code not in RETRIABLE_ERRORS:
            raise self._refused(batch, result)
        return code not in RETRIABLE_ERRORS

    def _forget(self, batch: Batch) -> Batch:
        """Takes the first batch, which is `batch`, off the queue."""
        self.batches.popleft()
        self.sender.account(-batch.memory_bytes)
        return batch

    def _split(self, batch: Batch, header: BatchHeader) -> None:
        """Replaces the first batch by two halves with the same sequence numbers."""
        self.sender.too_large(self.topic, batch.size_bytes)
        assert batch.data is not None
        records = list(decode_records(batch.data, 0, header))
        middle = len(records) // 2
        self._forget(batch)
        for part, first in ((records[middle:], middle), (records[:middle], 0)):
            half = batch.part(batch.size_bytes // 2, _rebuilt(part, header, first), first, len(part))
            half.number = batch.number
            self.batches.appendleft(half)
            self.sender.account(half.memory_bytes)

    def _begin_anew(self) -> None:
        """The leader has lost the state of this producer id, and so has none of the remaining batches. They continue
        with a new producer id."""
        for batch in self.batches:
            batch.unseal()
        self.identity, self.next_sequence, self.needs_new_identity = None, 0, True

    def _give_up(self, batch: Batch, refused: "_Refused") -> None:
        """Fails the first batch, and the later batches that may be in the log. Raises `refused` for a sealed batch."""
        if isinstance(batch, SealedBatch):
            raise refused
        if self.sender.transaction is not None:
            unanswered = sum(each.attempts for each in self.batches) - isinstance(refused, _RefusedByLeader)
            self.sender.transaction.batch_failed(refused.public(), may_come_late=unanswered > 0)
            self._fail_all(refused.public())
            return
        may_be_in_log = batch.attempts > 1 or (batch.attempts == 1 and refused.code not in _NOT_APPENDED)
        self._forget(batch).failed(refused.public())
        self.in_step = False
        for other in list(self.batches):
            if other.attempts:
                may_be_in_log = True
                self.batches.remove(other)
                self.sender.account(-other.memory_bytes)
                why = f"behind a batch that failed, and perhaps in the log: {refused.message}"
                other.failed(KafkaError(refused.code, why))
            else:
                other.unseal()
        if may_be_in_log:
            self.identity, self.next_sequence, self.needs_new_identity = None, 0, True

    def _fail_all(self, error: KafkaError) -> None:
        self.in_step = False
        while self.batches:
            self._forget(self.batches[0]).failed(error)

    def _refused(self, batch: Batch, result: Result) -> "_Refused":
        assert batch.data is not None
        code = ErrorCode(result.error_code)
        count = batch.header.record_count
        reasons = [
            result.error_message,
            *(f"record {one.batch_index}: {one.batch_index_error_message}" for one in result.record_errors),
        ]
        why = "; ".join(filter(None, reasons)) or _EXPLANATIONS.get(code, "")
        what = f"{self.topic}-{self.number}: a batch of {count} records in {len(batch.data)} bytes was refused"
        return _RefusedByLeader(code, f"{what}: {why}" if why else what)

    def _leader_text(self) -> str:
        topic = self.client.metadata.topics.get(self.topic)
        state = None if topic is None else topic.partitions.get(self.number)
        return "the leader" if state is None else f"the leader, broker {state.leader},"

    def _timed_out(self, why: str) -> "_Refused":
        return _Refused(
            ErrorCode.REQUEST_TIMED_OUT,
            f"{self.topic}-{self.number}: a batch was not acknowledged within delivery.timeout.ms: {why}",
        )


class _Refused(KafkaError):
    """The first batch will never be acknowledged."""

    def public(self) -> KafkaError:
        return KafkaError(self.code, self.message)


class _RefusedByLeader(_Refused):
    """The leader has refused the first batch."""


_EXPLANATIONS = {
    ErrorCode.MESSAGE_TOO_LARGE: "the topic's max.message.bytes (the broker's message.max.bytes) is smaller",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "writing needs Write on the topic",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: (
        "the leader has lost batches that it had acknowledged, or another attempt of a replay has written"
    ),
    ErrorCode.INVALID_PRODUCER_EPOCH: "the producer's id is in use by another",
    ErrorCode.INVALID_RECORD: "a compacted topic takes no records without keys",
}


def _rebuilt(records: Sequence[Record], header: BatchHeader, first: int) -> bytearray:
    """A batch of `records`, which begin at the index `first` of another batch."""
    sequence = header.base_sequence
    return build_batch(
        [record._replace(offset=-1) for record in records],
        codec=CompressionType(header.codec),
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=sequence if sequence == NO_SEQUENCE else advance_sequence(sequence, first),
        is_transactional=header.is_transactional,
    )
