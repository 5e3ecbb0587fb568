"""A producer of a compacted topic, and a client that reads the topic again and again. What must be true:

- Whenever the topic is read from its start to its end, each key has its newest acknowledged value, or a later one.
- No deleted key returns: a key whose newest record is a tombstone is gone, or only has the tombstone.
- In the end every replica has the newest value of each key.

A read takes much less than delete.retention.ms. A slower reader could see a value and miss the tombstone after it.
"""

import asyncio
import random
from collections.abc import Iterable, Mapping

from klamm.client.consumer.fetching import FetchFrom, fetch_request
from klamm.protocol.messages import ApiKey
from klamm.protocol.record.record_batch import NO_SEQUENCE, iterate_batches
from klamm.protocol.record.records import Record, build_batch
from klamm.protocol.vocabulary import NO_EPOCH, PartitionKey, TopicPartition
from klamm.simulation.cluster.cluster import SimulatedCluster
from klamm.simulation.machine.world import World
from klamm.simulation.workloads.verdict import replica_bytes
from klamm.simulation.workloads.workload import (
    FETCH_MAX_BYTES,
    FIRST_TIMESTAMP_MS,
    PartitionClient,
    Producer,
    is_intact,
    records_of,
)

# How many keys are in use at a time, and after how many records the oldest key is retired.
KEYS = 6
RECORDS_BETWEEN_NEW_KEYS = 10
TOMBSTONES = 0.3
PAUSE_S = 1.0
# Longer than an outage, so that no follower misses a tombstone while it is down.
DELETE_RETENTION_S = 60
MOST_S_OF_A_READ = 20.0
# With these configs every closed segment makes the log dirty enough to be cleaned.
TOPIC_CONFIGS: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "segment.bytes": "1024",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": str(DELETE_RETENTION_S * 1000),
}

# By key: the number of the producer's record, and whether it is a tombstone.
Table = dict[bytes, tuple[int, bool]]


class KeyedProducer(Producer):
    """A producer of records with keys; some are tombstones. In the lists of sent and acknowledged values, a record is
    b"NUMBER KEY VALUE"; VALUE is empty for a tombstone."""

    records_between_new_keys = RECORDS_BETWEEN_NEW_KEYS

    def _next_batch(self) -> tuple[tuple[bytes, ...], bytes]:
        values, records = [], []
        for _ in range(self._random.randint(1, 4)):
            number = next(self._numbers)
            key = b"key-%d" % (number // self.records_between_new_keys + self._random.randrange(KEYS))
            value = (
                b"" if self._random.random() < TOMBSTONES else b"%d %s" % (number, b"." * self._random.randint(0, 50))
            )
            values.append(b"%d %s %s" % (number, key, value))
            # A tombstone has no value for its number, so the timestamp has the number.
            records.append(Record(key, value or None, FIRST_TIMESTAMP_MS + number))
        self.sent.update(dict.fromkeys(values))
        producer_id, producer_epoch = self._producer
        batch = build_batch(
            records,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=self._sequence if self.idempotent else NO_SEQUENCE,
        )
        self._sequence += len(values)
        return tuple(values), bytes(batch)


class Compacting:
    """The producer and the reader of one partition, on their own machine."""

    def __init__(self, world: World, cluster: SimulatedCluster, key: PartitionKey) -> None:
        self.key = key
        self.producer = KeyedProducer(cluster.client, key, world.random, asyncio.Event(), idempotent=True)
        self.reads = 0
        self._cluster = cluster
        self._random: random.Random = world.random
        self._client = PartitionClient(cluster.client, key)
        self._node = world.node("compacting")
        self._is_stopping = False
        self._running: list[asyncio.Future[None]] = []

    def start(self, pause_s: float) -> None:
        """Starts both, with up to `pause_s` seconds between two batches."""
        self._running = [self._node.run(self.producer.run(None, pause_s)), self._node.run(self._read_again_and_again())]

    async def stop(self) -> None:
        """Returns when the last batch is acknowledged and the last read has ended."""
        self.producer.stop.set()
        self._is_stopping = True
        await asyncio.gather(*self._running)

    def acknowledged(self) -> Table:
        """The newest acknowledged record of each key."""
        table: Table = {}
        for each in self.producer.acknowledged:
            for text in each.values:
                number, key, value = text.split(b" ", 2)
                table[key] = int(number), not value
        return table

    async def _read_again_and_again(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._is_stopping:
            await asyncio.sleep(self._random.uniform(0, PAUSE_S))
            before, end, began_s = self.acknowledged(), self._acknowledged_end(), loop.time()
            records = await self._read(end)
            if records is not None and loop.time() - began_s < MOST_S_OF_A_READ:
                self._check(before, newest(records), "the leader")
                self.reads += 1

    async def _read(self, least_end: int) -> list[Record] | None:
        """All records up to the high watermark of the last answer. None if the partition gets a new leader meanwhile or
        does not answer, or if its leader does not know yet that the records up to `least_end` are committed."""
        records: list[Record] = []
        offset = 0
        leader_id = None
        while True:
            wanted = {TopicPartition(*self.key): FetchFrom(offset, NO_EPOCH, FETCH_MAX_BYTES)}
            request = fetch_request(wanted, max_bytes=FETCH_MAX_BYTES, max_wait_ms=500)
            answer = await self._client.attempt(ApiKey.FETCH, request)
            if answer is None or not is_intact(answer[0].records):
                await self._client.again()
                return None
            result, broker_id = answer
            # The newest high watermark counts: a record below an earlier one may have been compacted away meanwhile
            # because of a newer record of its key above it.
            end = result.high_watermark
            if leader_id is None:
                leader_id = broker_id
            if broker_id != leader_id or end < least_end:
                return None
            records += [record for record in records_of(result.records) if record.offset >= offset]
            headers = [header for _, header in iterate_batches(result.records or b"", allow_partial_end=True)]
            offset = headers[-1].next_offset if headers else end
            if offset >= end:
                return records

    def _acknowledged_end(self) -> int:
        """The offset after the last acknowledged record that has an offset."""
        last = next((each for each in reversed(self.producer.acknowledged) if each.base_offset is not None), None)
        return 0 if last is None or last.base_offset is None else last.base_offset + len(last.values)

    def _check(self, acknowledged: Table, found: Table, where: str, *, is_at_rest: bool = False) -> None:
        """AssertionError if a key has an older record than was acknowledged."""
        topic, partition = self.key
        for key, (number, is_tombstone) in acknowledged.items():
            there = found.get(key)
            if there is None:
                # The key may be gone if its newest record is a tombstone, here or later. Otherwise the value must be
                # there.
                assert is_tombstone or (not is_at_rest and self._was_deleted_since(key, number)), (
                    f"{topic}-{partition} at {where}: {key!r} is gone; record {number} was acknowledged, with a value"
                )
            else:
                assert there[0] >= number, (
                    f"{topic}-{partition} at {where}: {key!r} has record {there[0]}, {number} was acknowledged"
                    f"{' as its tombstone' if is_tombstone else ''}"
                )

    def _was_deleted_since(self, key: bytes, number: int) -> bool:
        parts = (text.split(b" ", 2) for text in self.producer.sent)
        return any(its_key == key and int(its_number) > number and not value for its_number, its_key, value in parts)

    def check_replicas(self) -> None:
        """AssertionError unless every replica in the ISR has the newest value of each key. Nothing is produced."""
        acknowledged = self.acknowledged()
        for broker_id in self._cluster.state.partition(*self.key).isr:
            records = records_of(replica_bytes(self._cluster.brokers[broker_id], self.key))
            self._check(acknowledged, newest(records), f"broker {broker_id}", is_at_rest=True)


def newest(records: Iterable[Record]) -> Table:
    """The newest record of each key."""
    table: Table = {}
    for record in records:
        assert record.key is not None, f"{record} has no key"
        table[record.key] = record.timestamp_ms - FIRST_TIMESTAMP_MS, record.value is None
    return table
