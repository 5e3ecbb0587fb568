"""klamm's producer and consumer with real brokers: what librdkafka writes and reads, and a leader that is killed."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial

import confluent_kafka
import pytest

from klamm.base.system_environment import SystemEnvironment
from klamm.client.cluster import ClusterClient, make_client
from klamm.client.consumer.consumer import Consumer
from klamm.client.options import ClientOptions, ConsumerOptions, OffsetReset, ProducerOptions
from klamm.client.producer.producer import Producer, ProducerRecord, RecordMetadata
from klamm.client.properties import parse_addresses
from klamm.processes.helper import Helper
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.vocabulary import TopicPartition
from klamm.testing import Cluster
from support.present import present

RECORDS = [
    (b"key", b"value", (("name", b"x"), ("null", None))),
    (None, b"", ()),
    (b"", None, ()),
    (b"k" * 300, bytes(range(256)) * 200, (("name", b"1"), ("name", b"2"))),
]


@pytest.fixture(scope="module")
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    with Cluster(brokers=3, zookeeper_session_timeout_ms=2_000, helper=klamm_helper) as cluster:
        yield cluster


def options(cluster: Cluster) -> ClientOptions:
    return ClientOptions(parse_addresses("bootstrap.servers", cluster.bootstrap))


@asynccontextmanager
async def client(cluster: Cluster) -> AsyncIterator[ClusterClient]:
    client = make_client(options(cluster), SystemEnvironment().random)
    try:
        yield client
    finally:
        await client.close()


async def read(client: ClusterClient, topic: str, count: int) -> list[tuple[object, object, object]]:
    consumer = Consumer(client, ConsumerOptions(auto_offset_reset=OffsetReset.EARLIEST))
    consumer.assign({TopicPartition(topic, 0): None})
    found: list[tuple[object, object, object]] = []
    async with asyncio.timeout(120):
        while len(found) < count:
            found += [(record.key, record.value, record.headers) for record in await consumer.poll(1_000)]
    await consumer.close()
    return found


@pytest.mark.parametrize("codec", CompressionType)
async def test_records_are_the_same_to_librdkafka(cluster: Cluster, codec: CompressionType) -> None:
    """Both write all records, and both read them all."""
    topic = f"codec-{codec.name.lower()}"
    cluster.create_topic(topic, partitions=1)
    async with client(cluster) as ours:
        producer = Producer(ours, ProducerOptions(options(cluster), codec), SystemEnvironment())
        for key, value, headers in RECORDS:
            await producer.send(ProducerRecord(topic, value, key, headers))
        await producer.flush()
        await producer.close()

        theirs = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": topic[6:]})
        for key, value, headers in RECORDS:
            theirs.produce(topic, value, key, headers=list(headers), partition=0)
        assert theirs.flush(120) == 0

        assert await read(ours, topic, 2 * len(RECORDS)) == RECORDS * 2
    reader = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "unused"})
    reader.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    messages = []
    while len(messages) < 2 * len(RECORDS):
        messages += reader.consume(1, timeout=20)
    reader.close()
    assert [(each.key(), each.value(), tuple(each.headers() or ())) for each in messages] == RECORDS * 2


async def test_leaders_are_killed_while_records_are_written_and_read(cluster: Cluster) -> None:
    """Each record arrives once, in the order of its partition."""
    topic, partitions, rounds = "killed", 3, 150
    cluster.create_topic(topic, partitions=partitions, replication_factor=3)
    written: dict[int, list[tuple[int, bytes | None]]] = defaultdict(list)
    seen: dict[int, list[tuple[int, bytes | None]]] = defaultdict(list)

    def note(value: bytes, done: RecordMetadata | None, error: BaseException | None) -> None:
        written[present(done).partition].append((present(done).offset, value))

    async def write(ours: ClusterClient) -> None:
        producer = Producer(ours, ProducerOptions(options(cluster), CompressionType.LZ4, 2_000), SystemEnvironment())
        for number in range(rounds):
            for other in range(20):
                value = b"%d/%d" % (number, other)
                await producer.send(ProducerRecord(topic, value, key=b"%d" % other), partial(note, value))
            await asyncio.sleep(0.02)
        await producer.flush()

    async def follow(ours: ClusterClient) -> None:
        consumer = Consumer(ours, ConsumerOptions(auto_offset_reset=OffsetReset.NONE))
        consumer.assign({TopicPartition(topic, number): 0 for number in range(partitions)})
        while sum(map(len, seen.values())) < rounds * 20:
            for record in await consumer.poll(1_000):
                seen[record.partition].append((record.offset, record.value))
        await consumer.close()

    async def kill() -> None:
        for partition in (0, 1):
            await asyncio.sleep(0.7)
            leader = cluster.leader(topic, partition)
            assert leader is not None
            await asyncio.to_thread(cluster.kill, leader)
            await asyncio.sleep(0.7)
            await asyncio.to_thread(cluster.start, leader)
            await asyncio.to_thread(cluster.until, lambda: len(cluster.isr(topic, 0) or ()) == 3)

    async with asyncio.timeout(120), client(cluster) as ours:
        await asyncio.gather(write(ours), follow(ours), kill())
    assert seen == written
