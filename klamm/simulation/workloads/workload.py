"""The clients of a simulated cluster, and the records they keep for `klamm.simulation.workloads.verdict`.

A producer repeats each batch until it is acknowledged, by all in-sync replicas or only by the leader. Each attempt is a
separate request, so the acknowledging broker is known. An idempotent producer has up to three batches in flight, in any
order. Like librdkafka, it regards the batches before an acknowledged batch as acknowledged too. A consumer reads as far
as it can during the faults. With a rack it reads from the follower that the leader names (KIP-392).

What must stay true: an error that no fault of the cluster excuses is an AssertionError and ends the run.
"""

import asyncio
import itertools
import math
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from klamm.base.environment import Buffer
from klamm.client.admin.topics import NewTopic, create_topics, delete_topics
from klamm.client.cluster import ClusterClient
from klamm.client.consumer.fetching import FetchFrom, fetch_request
from klamm.client.producer.sender import init_producer_id, produce_request
from klamm.client.retries import RETRIABLE_ERRORS
from klamm.net.client import ClientError
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.record.record_batch import NO_SEQUENCE, crc_matches, iterate_batches
from klamm.protocol.record.records import Record, build_batch, decode_records
from klamm.protocol.vocabulary import (
    ACKS_ALL,
    ACKS_LEADER,
    INVALID_PREFERRED_REPLICA_ID,
    NO_EPOCH,
    PartitionKey,
    TopicPartition,
)
from klamm.simulation.machine.world import World

FIRST_TIMESTAMP_MS = 1_609_459_200_000
ATTEMPT_TIMEOUT_MS = 5_000
FETCH_MAX_BYTES = 1 << 20
# The timeout of requests to the controller.
REQUEST_TIMEOUT_MS = 10_000
BACK_OFF_S = 0.1
FAILURES_UNTIL_NEW_CLIENT = 5
MAX_IN_FLIGHT = 3
# A former leader that is cut off and does not know its successor may lack the last batches. It refuses new ones for as
# long as the outage lasts.
REFUSALS_OF_A_FORMER_LEADER = 600
# After this many fetches a consumer asks the leader again for a follower (metadata.max.age.ms).
FETCHES_OF_A_FOLLOWER = 20
# The errors for a batch that has overtaken another one, or that the leader has but no longer recognizes.
OUT_OF_SEQUENCE = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """An acknowledged batch, with the loop's time. `attempts` counts how often it was sent before the acknowledgement.

    The offset is None when only a later batch was acknowledged.
    """

    base_offset: int | None
    values: tuple[bytes, ...]
    broker_id: int
    attempts: int
    at_s: float = 0.0


class PartitionClient:
    """Sends to the leader of one partition, attempt by attempt.

    The broker that it asks for the leader may be cut off from the others and have old metadata. So the client ignores
    answers with an earlier leader epoch (KIP-320), and after some failures in a row it opens new connections.
    """

    def __init__(self, new_client: Callable[[], ClusterClient], key: PartitionKey) -> None:
        self.topic, self.partition = self.key = key
        self._new_client = new_client
        self._client = new_client()
        self._failures = 0
        self.leader_epoch = self._leader_id = -1

    async def attempt(self, api_key: ApiKey, request: Any, broker_id: int | None = None) -> tuple[Any, int] | None:
        """The partition's part of the response, and the broker that answered: the leader, or `broker_id`. None means
        try again.

        AssertionError for an error that is not retriable.
        """
        return (await self.attempts(api_key, [request], broker_id=broker_id))[0]

    async def attempts(
        self,
        api_key: ApiKey,
        requests: Sequence[Any],
        expected: Collection[ErrorCode] = (),
        broker_id: int | None = None,
    ) -> list[tuple[Any, int] | None]:
        """Like `attempt`, for several requests at once. A result may also have one of the `expected` errors."""
        try:
            leader = await self._leader() if broker_id is None else broker_id
            connection = await self._client.connection_to(leader)
        except (ClientError, KafkaError):
            return [None] * len(requests)

        async def send(request: Any) -> tuple[Any, int] | None:
            try:
                response = await connection.send(api_key, lambda version: request, timeout_ms=2 * ATTEMPT_TIMEOUT_MS)
            except (ClientError, KafkaError):
                return None
            topics = response.topics if api_key is ApiKey.DELETE_RECORDS else response.responses
            if not topics:
                return None  # A fetch beyond a quota is answered without partitions.
            topic = topics[0]
            result = topic.partition_responses[0] if api_key is ApiKey.PRODUCE else topic.partitions[0]
            if result.error_code in RETRIABLE_ERRORS:
                return None
            if broker_id is not None and result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                return None  # A follower may be behind. Consumers then ask the leader.
            allowed = (ErrorCode.NONE, *expected)
            assert result.error_code in allowed, f"{self.topic}-{self.partition}, broker {leader}: {result}"
            self._failures = 0
            return result, leader

        return await asyncio.gather(*map(send, requests))

    async def again(self) -> None:
        """Waits a little and asks for the current leader."""
        await asyncio.sleep(BACK_OFF_S)
        self._failures += 1
        if self._failures % FAILURES_UNTIL_NEW_CLIENT == 0:
            await self._client.close()
            self._client = self._new_client()
        try:
            await self._client.refresh_metadata([self.topic])
        except (ClientError, KafkaError):
            return

    async def _leader(self) -> int:
        if self.topic not in self._client.metadata.topics:
            await self._client.refresh_metadata([self.topic])
        topic = self._client.metadata.topics.get(self.topic)
        state = None if topic is None else topic.partitions.get(self.partition)
        if state is not None and state.leader_epoch >= self.leader_epoch:
            self.leader_epoch, self._leader_id = state.leader_epoch, state.leader
        return self._leader_id


class Producer:
    """Produces to one partition until `stop` is set, or a given number of batches.

    `progress` is set whenever a batch has been acknowledged. `sent` holds every value that was ever sent.
    """

    def __init__(
        self,
        new_client: Callable[[], ClusterClient],
        key: PartitionKey,
        chance: random.Random,
        progress: asyncio.Event,
        *,
        idempotent: bool,
        acks: int = ACKS_ALL,
    ) -> None:
        self.key = key
        self.idempotent = idempotent
        self.acks = acks
        self.sent: dict[bytes, None] = {}
        self.acknowledged: list[Acknowledged] = []
        self.stop = asyncio.Event()
        self._progress = progress
        self._partition_client = PartitionClient(new_client, key)
        self._new_client = new_client
        self._random = chance
        self._producer = (-1, -1)
        self._numbers = itertools.count()
        self._sequence = 0

    async def run(self, batches: int | None = None, pause_s: float = 0.05) -> None:
        """Produces, with pauses of up to `pause_s` seconds. A later run continues where the earlier run ended."""
        if self.idempotent and self._producer[0] < 0:
            self._producer = await self._producer_id()
        left = math.inf if batches is None else batches
        while left > 0 and not self.stop.is_set():
            count = min(self._random.randint(1, MAX_IN_FLIGHT), left) if self.idempotent else 1
            await self._produce([self._next_batch() for _ in range(int(count))])
            left -= count
            await asyncio.sleep(self._random.uniform(0, pause_s))

    def _next_batch(self) -> tuple[tuple[bytes, ...], bytes]:
        """The values of a new batch, and the batch."""
        number = next(self._numbers)
        values = tuple(b"%s-%d/%d/%d" % (self.key[0].encode(), self.key[1], number, n) for n in range(1 + number % 4))
        self.sent.update(dict.fromkeys(values))
        producer_id, producer_epoch = self._producer
        batch = build_batch(
            [Record(None, value, FIRST_TIMESTAMP_MS + number) for value in values],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=self._sequence if self.idempotent else NO_SEQUENCE,
        )
        self._sequence += len(values)
        return values, bytes(batch)

    async def _produce(self, batches: list[tuple[tuple[bytes, ...], bytes]]) -> None:
        """Sends the batches until all are acknowledged. Each attempt sends all batches that are not acknowledged."""
        expected = OUT_OF_SEQUENCE if self.idempotent else ()
        refusals = 0
        for attempts in itertools.count(1):
            # After a change of leaders a later batch may arrive first.
            order = self._random.sample(range(len(batches)), len(batches))
            requests = [
                # Each attempt sends a copy: the network may still hold the buffer of the last attempt.
                produce_request(self.key, bytearray(batches[number][1]), acks=self.acks, timeout_ms=ATTEMPT_TIMEOUT_MS)
                for number in order
            ]
            found = await self._partition_client.attempts(ApiKey.PRODUCE, requests, expected)
            answers = [answer for _, answer in sorted(zip(order, found, strict=True), key=itemgetter(0))]
            # The leader should accept the first batch, or recognize the last batch that it has.
            are_refused = all(answer is not None and answer[0].error_code in OUT_OF_SEQUENCE for answer in answers)
            refusals = refusals + 1 if are_refused else 0
            assert refusals < REFUSALS_OF_A_FORMER_LEADER, (
                f"{self.key}: the leader has lost batches before {batches[0][0]}: {answers}"
            )
            answers = [None if answer is not None and answer[0].error_code else answer for answer in answers]
            while batches and any(answers):
                (values, _), answer = batches.pop(0), answers.pop(0)
                base_offset, broker_id = (None, -1) if answer is None else (answer[0].base_offset, answer[1])
                now_s = asyncio.get_running_loop().time()
                self.acknowledged.append(Acknowledged(base_offset, values, broker_id, attempts, now_s))
                self._progress.set()
            if not batches:
                return
            await self._partition_client.again()

    async def _producer_id(self) -> tuple[int, int]:
        client = self._new_client()
        identity = await init_producer_id(client)
        await client.close()
        return identity


class Consumer:
    """Reads one partition from its beginning. `records` holds (offset, value, leader epoch); the offsets have no gaps.
    The epoch distinguishes a lost record from its retry, which may get the same offset.

    With a `rack` it reads from the follower that the leader has named, until this follower fails or after
    FETCHES_OF_A_FOLLOWER. It sends the leader epoch that it knows; without the epoch the leader names no follower.
    `fetched_from_followers` counts the answers of followers with records.
    """

    def __init__(self, new_client: Callable[[], ClusterClient], key: PartitionKey, rack: str = "") -> None:
        self.key = key
        self.rack = rack
        self.records: list[tuple[int, bytes, int]] = []
        self.stop_at: int | None = None
        self.fetched_from_followers = 0
        self._partition_client = PartitionClient(new_client, key)

    async def run(self) -> None:
        """Reads until `records` has `stop_at` records."""
        follower, left = None, 0
        while self.stop_at is None or len(self.records) < self.stop_at:
            leader_epoch = self._partition_client.leader_epoch if self.rack else NO_EPOCH
            wanted = {TopicPartition(*self.key): FetchFrom(len(self.records), leader_epoch, FETCH_MAX_BYTES)}
            request = fetch_request(wanted, max_bytes=FETCH_MAX_BYTES, max_wait_ms=500, rack_id=self.rack)
            left -= 1
            if left <= 0:
                follower = None
            answer = await self._partition_client.attempt(ApiKey.FETCH, request, follower)
            if answer is None or not is_intact(answer[0].records):
                follower = None
                await self._partition_client.again()
                continue
            if answer[0].preferred_read_replica != INVALID_PREFERRED_REPLICA_ID:
                follower, left = answer[0].preferred_read_replica, FETCHES_OF_A_FOLLOWER
            self.fetched_from_followers += bool(follower is not None and answer[0].records)
            self._take(answer[0].records)

    def _take(self, fetched: Buffer | None) -> None:
        for read in with_epochs(fetched or b""):
            if read[0] >= len(self.records):
                assert read[0] == len(self.records), f"{self.key}: {read} after {self.records[-1:]}"
                self.records.append(read)
            else:
                known = self.records[read[0]]
                assert known == read, f"{self.key}: a consumer has read {known}, and now {read}"


class Workload:
    """A producer and a consumer for each partition of `is_idempotent`, on one machine.

    The consumers are in these `racks` in turn. Producers use acks=1 for the partitions in `only_leader`. No consumer
    reads the partitions in `unread`, where records may be lost after they were read. Each producer and consumer has
    its own connections: a broker answers the requests of one connection in order, so a waiting fetch would delay
    others.
    """

    def __init__(
        self,
        world: World,
        new_client: Callable[[], ClusterClient],
        is_idempotent: dict[PartitionKey, bool],
        *,
        only_leader: Sequence[PartitionKey] = (),
        unread: Sequence[PartitionKey] = (),
        racks: Sequence[str] = ("",),
    ) -> None:
        self.node = world.node("client")
        self._progress = asyncio.Event()
        read = (*is_idempotent, *only_leader)
        self.consumers = [
            Consumer(new_client, key, rack) for key, rack in zip(read, itertools.cycle(racks), strict=False)
        ]
        self.producers = [
            Producer(new_client, key, world.random, self._progress, idempotent=idempotent)
            for key, idempotent in is_idempotent.items()
        ]
        self.producers += [
            Producer(new_client, key, world.random, self._progress, idempotent=False, acks=ACKS_LEADER)
            for key in (*only_leader, *unread)
        ]
        self._producing: list[asyncio.Future[None]] = []
        self._consuming: list[asyncio.Future[None]] = []

    def start(self, batches: int | None = None, pause_s: float = 0.05) -> None:
        """Starts every producer for `batches` batches, up to `pause_s` apart; None means until `stop_producing`."""
        self._producing = [self.node.run(producer.run(batches, pause_s)) for producer in self.producers]
        self._consuming = [self.node.run(consumer.run()) for consumer in self.consumers]

    async def produced(self, records: int) -> None:
        """Waits until at least `records` more records are acknowledged."""
        wanted = self.acknowledged_records() + records
        while self.acknowledged_records() < wanted:
            self._progress.clear()
            await self._progress.wait()

    async def produce_more(self, batches: int) -> None:
        """Makes every stopped producer send `batches` more batches; returns when all are acknowledged."""
        for producer in self.producers:
            producer.stop.clear()
        self._producing = [self.node.run(producer.run(batches)) for producer in self.producers]
        await self.until_produced()

    async def stop_producing(self) -> None:
        """Returns when every producer's last batch is acknowledged."""
        for producer in self.producers:
            producer.stop.set()
        await self.until_produced()

    async def until_produced(self) -> None:
        """Returns when the producers have sent the number of batches given to `start`, and all are acknowledged."""
        await asyncio.gather(*self._producing)

    async def stop_consuming(self, ends: dict[PartitionKey, int]) -> None:
        """Returns when every consumer has read its partition up to this end."""
        for consumer in self.consumers:
            consumer.stop_at = ends[consumer.key]
        await asyncio.gather(*self._consuming)

    def acknowledged_records(self) -> int:
        return sum(len(each.values) for producer in self.producers for each in producer.acknowledged)


def with_epochs(data: Buffer) -> Iterator[tuple[int, bytes, int]]:
    """(offset, value, leader epoch) of the records in whole batches."""
    for position, header in iterate_batches(data, allow_partial_end=True):
        for record in decode_records(data, position, header):
            assert record.value is not None
            yield record.offset, record.value, header.partition_leader_epoch


def is_intact(data: Buffer | None) -> bool:
    """Whether the checksums of all whole batches are right. On a replica with bit rot they may be wrong."""
    try:
        batches = list(iterate_batches(data or b"", allow_partial_end=True))
    except KafkaError:
        return False
    return all(crc_matches(data or b"", position, header) for position, header in batches)


def records_of(data: Buffer | None) -> Iterator[Record]:
    """The records in the bytes of a fetch response."""
    if data is not None:
        for position, header in iterate_batches(data, allow_partial_end=True):
            yield from decode_records(data, position, header)


async def create_topic(
    client: ClusterClient, name: str, *, partitions: int, replication_factor: int, configs: dict[str, str] | None = None
) -> bool:
    """Creates a topic; repeats the request until the topic exists. Returns whether the answer says that this request
    created it."""
    topic = NewTopic(name, partitions, replication_factor, configs=dict(configs or {}))
    passing = {*RETRIABLE_ERRORS, ErrorCode.INVALID_REPLICATION_FACTOR}
    while True:
        result = (await create_topics(client, [topic], timeout_ms=REQUEST_TIMEOUT_MS))[name]
        # After a timeout the topic is created, and has no leaders yet.
        if not isinstance(result, KafkaError) or result.code is ErrorCode.REQUEST_TIMED_OUT:
            return True
        # The topic exists already if the answer to an earlier attempt was lost.
        if result.code is ErrorCode.TOPIC_ALREADY_EXISTS:
            return False
        assert result.code in passing, result
        await asyncio.sleep(BACK_OFF_S)


async def delete_topic(client: ClusterClient, name: str) -> bool:
    """Deletes a topic; repeats the request until a broker says that the topic is marked for deletion or gone. Returns
    whether the answer says that this request has marked it."""
    while True:
        result = (await delete_topics(client, [name], timeout_ms=REQUEST_TIMEOUT_MS))[name]
        # After a timeout the topic is marked, and its deletion continues.
        if result is None or result.code is ErrorCode.REQUEST_TIMED_OUT:
            return True
        # An unknown topic means that the answer to an earlier attempt was lost.
        if result.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return False
        assert result.code in RETRIABLE_ERRORS, result
        await asyncio.sleep(BACK_OFF_S)
