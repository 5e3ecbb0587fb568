"""An idempotent producer with acks=all, for batches that are already encoded (KIP-98).

What must stay true:
- A batch is acknowledged when all in-sync replicas have it, and only then is it forgotten here.
- Nothing is written twice and nothing out of order: a partition's batches carry consecutive sequence numbers, and what
  is sent again is sent unchanged. At most `MAX_IN_FLIGHT` of a partition are on their way, because a broker knows a
  producer's last five batches again and no more.
- Only one batch of a partition is on its way until one has been acknowledged, and again after each failure. A broker
  that does not know the producer yet takes any sequence number for its first, so the second batch must not overtake.
- The first batch that cannot be delivered ends the producer: what comes after it could not be in order.
- Everything ends: a batch that is not acknowledged within `delivery_timeout_ms` is an error.

Source: org.apache.kafka.clients.producer.internals.Sender, TransactionManager.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from klamm.client.cluster import RETRIABLE_ERRORS, ClusterClient
from klamm.client.options import ProducerOptions
from klamm.net.client import BuildRequest, Disconnected, NotSent
from klamm.protocol.apis.init_producer_id import InitProducerIdRequest
from klamm.protocol.apis.metadata import MetadataRequest
from klamm.protocol.apis.produce import ProduceRequest, ProduceResponse
from klamm.protocol.errors import ErrorCode, KafkaError, error_name
from klamm.protocol.messages import ApiKey
from klamm.protocol.record_batch import (
    Buffer,
    CompressionType,
    advance_sequence,
    build_batch,
    decode_records,
    parse_header,
)
from klamm.protocol.vocabulary import ACKS_ALL
from klamm.tasks import start_task

MAX_IN_FLIGHT = 5
BACKOFF_S = 0.1
Result = ProduceResponse.TopicProduceResponse.PartitionProduceResponse


@dataclass(frozen=True, slots=True)
class PartitionBatch:
    """A sealed batch for a partition; `size_bytes` without compression."""

    topic: str
    partition: int
    data: Buffer
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    """How many partitions a topic has, and which of them have a leader."""

    count: int
    available: list[int]


class Identity(NamedTuple):
    """The producer id and epoch."""

    producer_id: int
    producer_epoch: int


class Producer:
    """Sends batches to their partitions' leaders until all are acknowledged. Belongs to the loop of its client."""

    def __init__(self, client: ClusterClient, options: ProducerOptions) -> None:
        self._client = client
        self._options = options
        self._partitions: dict[tuple[str, int], _Partition] = {}
        # After the last acknowledged batch of each partition.
        self.end_offsets: dict[tuple[str, int], int] = {}
        self._pending_bytes = 0
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        # Of topics whose brokers found a batch too large: how large a batch, without compression, may be from now on.
        self._limits: dict[str, int] = {}

    async def init_producer_id(self) -> Identity:
        """A new producer id and its epoch, for the batches that will be appended. Raises KafkaError, ClientError."""
        response = await self._client.send_to_any(
            ApiKey.INIT_PRODUCER_ID,
            lambda version: InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1),
            errors_of=lambda response: [response.error_code],
        )
        if response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "writing needs IdempotentWrite on the cluster")
        if response.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode(response.error_code), "no producer id")
        return Identity(response.producer_id, response.producer_epoch)

    async def describe(self, topics: Iterable[str]) -> dict[str, TopicPartitions]:
        """The partitions of these topics; brokers that may create topics (auto.create.topics.enable) do.

        Raises KafkaError when there is no such topic within the client's time, or it may not be written to.
        """
        names = list(topics)
        response = await self._client.send_to_any(
            ApiKey.METADATA,
            lambda version: _metadata_request(version, names),
            errors_of=lambda response: [topic.error_code for topic in response.topics],
        )
        found = {}
        for topic in response.topics:
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic.name}")
            if topic.error_code != ErrorCode.NONE:
                raise KafkaError(ErrorCode(topic.error_code), f"topic {topic.name}")
            partitions = topic.partitions
            led = [partition.partition_index for partition in partitions if partition.leader_id >= 0]
            found[topic.name] = TopicPartitions(len(partitions), sorted(led) or list(range(len(partitions))))
        return found

    async def append(self, batches: Sequence[PartitionBatch]) -> dict[str, int]:
        """Takes batches over, in the order of their sequence numbers, as soon as there is room for them.

        Returns, by topic, how large batches should be from now on where brokers found one too large. Raises what ended
        the producer.
        """
        for batch in batches:
            size_bytes = len(batch.data)
            while self._pending_bytes and self._pending_bytes + size_bytes > self._options.buffer_memory_bytes:
                await self._change()
            self._check()
            self._pending_bytes += size_bytes
            key = (batch.topic, batch.partition)
            partition = self._partitions.get(key)
            if partition is None:
                partition = self._partitions[key] = _Partition(self, self._client, self._options, *key)
            partition.append(batch)
        return dict(self._limits)

    async def flush(self) -> None:
        """Returns when everything that was appended is acknowledged. Raises what ended the producer."""
        while self._pending_bytes:
            await self._change()
        self._check()

    async def close(self) -> None:
        """Gives up all unacknowledged batches. Idempotent."""
        self.fail(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the producer is closed"))

    # -- called by the partitions ---------------------------------------------------------------------------------

    def account(self, difference_bytes: int) -> None:
        """Adds to the number of unacknowledged bytes."""
        self._pending_bytes += difference_bytes
        self._changed.set()

    def too_large(self, topic: str, size_bytes: int) -> None:
        """A batch of this size was too large for the topic."""
        self._limits[topic] = min(self._limits.get(topic, size_bytes), size_bytes // 2)

    def fail(self, error: BaseException) -> None:
        """Ends the producer with this error, unless an earlier error has ended it."""
        if self._failure is None:
            self._failure = error
            self._changed.set()
            for partition in self._partitions.values():
                partition.stop()

    # -- inside ---------------------------------------------------------------------------------------------------

    async def _change(self) -> None:
        self._check()
        self._changed.clear()
        await self._changed.wait()
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure


@dataclass(slots=True)
class _Sending:
    """A batch on its way. `deadline` is a time of the loop's clock."""

    data: Buffer
    size_bytes: int
    deadline: float


@dataclass(slots=True)
class _Partition:
    """The batches of one partition that are not acknowledged, in the order of their sequence numbers.

    The leader is found, and a failure waited for, by `ClusterClient.send_to_leader`: one batch goes that way until one
    is acknowledged. Then `MAX_IN_FLIGHT` go straight to the leader until one fails, whose turn it is again to be sent
    alone.
    """

    producer: Producer
    client: ClusterClient
    options: ProducerOptions
    topic: str
    number: int
    batches: deque[_Sending] = field(default_factory=deque)
    # The leader took the last batch, so it knows the producer.
    in_step: bool = False
    task: "asyncio.Task[None] | None" = None

    def append(self, batch: PartitionBatch) -> None:
        deadline = asyncio.get_running_loop().time() + self.options.delivery_timeout_ms / 1000
        self.batches.append(_Sending(batch.data, batch.size_bytes, deadline))
        if self.task is None or self.task.done():
            self.task = start_task(self._deliver(), self.producer.fail)

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()

    async def _deliver(self) -> None:
        while self.batches:
            if self.in_step:
                await self._send_many()
            else:
                await self._send_first()

    async def _send_first(self) -> None:
        """Sends the first batch once, with the client's patience, and waits a little if that was not enough."""
        batch = self.batches[0]
        why = "the leader did not answer"

        def error_of(response: ProduceResponse) -> list[int]:
            nonlocal why
            code = _result(response).error_code
            why = error_name(code)
            return [code]

        try:
            async with asyncio.timeout_at(batch.deadline):
                response = await self.client.send_to_leader(
                    self.topic,
                    self.number,
                    ApiKey.PRODUCE,
                    self._request(batch),
                    errors_of=error_of,
                )
        except TimeoutError:
            raise self._timed_out(why) from None
        except (NotSent, Disconnected) as error:
            why = str(error)
        except KafkaError as error:
            if error.code not in RETRIABLE_ERRORS:
                raise
            why = str(error)
        else:
            if self._settle(batch, _result(response)):
                return
        if asyncio.get_running_loop().time() + BACKOFF_S >= batch.deadline:
            raise self._timed_out(why)
        await asyncio.sleep(BACKOFF_S)

    async def _send_many(self) -> None:
        """Sends batches until no batch is left or a transient error occurs."""
        topic = self.client.metadata.topics.get(self.topic)
        state = None if topic is None else topic.partitions.get(self.number)
        in_flight: deque[asyncio.Task[ProduceResponse]] = deque()
        try:
            connection = await self.client.connection_to(-1 if state is None else state.leader)
            while self.in_step and self.batches:
                while len(in_flight) < min(MAX_IN_FLIGHT, len(self.batches)):
                    build = self._request(self.batches[len(in_flight)])
                    in_flight.append(asyncio.create_task(connection.send(ApiKey.PRODUCE, build)))
                response = await in_flight[0]
                in_flight.popleft()
                self._settle(self.batches[0], _result(response))
        except _Refused:
            raise
        except (NotSent, Disconnected, KafkaError):
            self.in_step = False
        finally:
            # What they bring is asked for again.
            for task in in_flight:
                task.cancel()
            await asyncio.gather(*in_flight, return_exceptions=True)

    def _request(self, batch: _Sending) -> BuildRequest[ProduceResponse]:
        timeout_ms = self.options.client.request_timeout_ms
        request = ProduceRequest.of(None, ACKS_ALL, timeout_ms, [(self.topic, [(self.number, batch.data)])])
        return lambda version: request

    def _settle(self, batch: _Sending, result: Result) -> bool:
        """Takes note of the answer to the first batch; whether it is done with. Raises when it never will be."""
        code = ErrorCode(result.error_code)
        self.in_step = code is ErrorCode.NONE
        if code is ErrorCode.NONE:
            self.batches.popleft()
            self.producer.end_offsets[self.topic, self.number] = (
                result.base_offset + parse_header(batch.data).last_offset_delta + 1
            )
            self.producer.account(-len(batch.data))
        elif code is ErrorCode.MESSAGE_TOO_LARGE and parse_header(batch.data).record_count > 1:
            self._split(batch)
        elif code not in RETRIABLE_ERRORS:
            raise self._refused(batch, result)
        return code not in RETRIABLE_ERRORS

    def _split(self, batch: _Sending) -> None:
        """Replaces the first batch by two halves, whose sequence numbers are those of the whole."""
        self.producer.too_large(self.topic, batch.size_bytes)
        header = parse_header(batch.data)
        records = list(decode_records(batch.data, 0, header))
        middle = len(records) // 2
        self.batches.popleft()
        for part, by in ((records[middle:], middle), (records[:middle], 0)):
            data = build_batch(
                [record._replace(offset=-1) for record in part],
                codec=CompressionType(header.codec),
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=advance_sequence(header.base_sequence, by),
            )
            self.batches.appendleft(_Sending(data, batch.size_bytes // 2, batch.deadline))
            self.producer.account(len(data))
        self.producer.account(-len(batch.data))

    def _refused(self, batch: _Sending, result: Result) -> KafkaError:
        code = ErrorCode(result.error_code)
        count = parse_header(batch.data).record_count
        reasons = [
            result.error_message,
            *(f"record {one.batch_index}: {one.batch_index_error_message}" for one in result.record_errors),
        ]
        why = "; ".join(filter(None, reasons)) or _EXPLANATIONS.get(code, "")
        what = f"{self.topic}-{self.number}: a batch of {count} records in {len(batch.data)} bytes was refused"
        return _Refused(code, f"{what}: {why}" if why else what)

    def _timed_out(self, why: str) -> KafkaError:
        return _Refused(
            ErrorCode.REQUEST_TIMED_OUT,
            f"{self.topic}-{self.number}: a batch was not acknowledged within kafka.delivery.timeout.ms: {why}",
        )


class _Refused(KafkaError):
    """A batch will never be acknowledged."""


_EXPLANATIONS = {
    ErrorCode.MESSAGE_TOO_LARGE: "the topic's max.message.bytes (the broker's message.max.bytes) is smaller",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "writing needs Write on the topic",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: (
        "the leader has lost batches that it had acknowledged, or another attempt of a replay has written"
    ),
    ErrorCode.INVALID_PRODUCER_EPOCH: "the producer's id is in use by another",
    ErrorCode.INVALID_RECORD: "a compacted topic takes no records without keys",
}


def _result(response: ProduceResponse) -> Result:
    return response.responses[0].partition_responses[0]


def _metadata_request(version: int, names: Sequence[str]) -> Any:
    topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=True)
