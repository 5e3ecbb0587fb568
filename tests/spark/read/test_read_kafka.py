"""What Apache Kafka writes, read by the plain Python API: transactions, compacted topics, timestamps, old formats."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.protocol.error_codes import KafkaError
from klamm.spark import arrow
from support.oracles import RealKafka, RealZooKeeper
from support.spark.producing import numbered, produce


@pytest.fixture(scope="module")
def kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker of Apache Kafka 2.8.2."""
    directory = tmp_path_factory.mktemp("kafka")
    zookeeper = RealZooKeeper(kafka_jars, directory)
    zookeeper.start()
    broker = RealKafka(
        kafka_jars,
        directory,
        zookeeper.connect,
        properties={
            "log.cleaner.backoff.ms": 100,
            "transaction.state.log.num.partitions": 1,
            "offsets.topic.num.partitions": 1,
        },
    )
    try:
        broker.start()
        yield broker.bootstrap
    finally:
        broker.kill()
        zookeeper.kill()


def create(bootstrap: str, topic: str, **configs: str) -> None:
    new = NewTopic(topic, num_partitions=1, replication_factor=1, config=configs)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([new]).values():
        future.result()


def consumed(bootstrap: str, topic: str, isolation_level: str) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of each record, as librdkafka reads them."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "isolation.level": isolation_level,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        found.append((message.offset(), message.key(), message.value()))
    assert message is not None
    consumer.close()
    return found


def read(bootstrap: str, topic: str, **options: str) -> list[tuple[int, bytes | None, bytes | None]]:
    table = arrow.read(bootstrap, subscribe=topic, columns=["offset", "key", "value"], options=options).read_all()
    return [(row["offset"], row["key"], row["value"]) for row in table.to_pylist()]


@pytest.mark.parametrize("fetch_max_bytes", ["1", "1000000"])
def test_transactions(kafka: str, fetch_max_bytes: str) -> None:
    topic = f"transactions-{fetch_max_bytes}"
    create(kafka, topic)
    plain = Producer({"bootstrap.servers": kafka})
    producers = [Producer({"bootstrap.servers": kafka, "transactional.id": f"{topic}-{name}"}) for name in "abc"]
    for producer in producers:
        producer.init_transactions()
    committed, aborted, left_open = producers
    for number in range(4):
        for producer in (committed, aborted):
            producer.begin_transaction()
        for part in range(3):
            for producer, name in ((committed, b"committed"), (aborted, b"aborted"), (plain, b"plain")):
                producer.produce(topic, b"%s-%d-%d" % (name, number, part))
                producer.flush()
        aborted.abort_transaction()
        committed.commit_transaction()
    everything = read(kafka, topic, **{"kafka.fetch.max.bytes": fetch_max_bytes})
    assert everything == consumed(kafka, topic, "read_uncommitted")
    assert len(everything) == 36
    options = {"kafka.isolation.level": "read_committed", "kafka.fetch.max.bytes": fetch_max_bytes}
    seen = read(kafka, topic, **options)
    assert seen == consumed(kafka, topic, "read_committed")
    assert len(seen) == 24
    assert not any(value is not None and value.startswith(b"aborted") for _, _, value in seen)
    # The end is the last stable offset: what follows an open transaction is not read.
    left_open.begin_transaction()
    left_open.produce(topic, b"open")
    left_open.flush()
    plain.produce(topic, b"later")
    plain.flush()
    assert read(kafka, topic, **options) == seen
    assert len(read(kafka, topic)) == 38
    left_open.abort_transaction()


def test_a_compacted_topic(kafka: str) -> None:
    create(
        kafka,
        "compacted",
        **{"cleanup.policy": "compact", "segment.bytes": "2000", "min.cleanable.dirty.ratio": "0.01"},
    )
    records = [{**record, "key": b"%d" % (number % 7)} for number, record in enumerate(numbered(500))]
    produce(kafka, "compacted", records, **{"batch.num.messages": 10})
    deadline = time.monotonic() + 120
    while len(found := consumed(kafka, "compacted", "read_uncommitted")) > 200:
        assert time.monotonic() < deadline
    assert found[-1][0] == 499
    # The cleaner may have gone on meanwhile.
    kept = read(kafka, "compacted")
    assert set(kept) <= set(found)
    assert {key: value for _, key, value in kept} == {b"%d" % (n % 7): b"%d" % n for n in range(493, 500)}
    # Offsets that compaction has left nothing of may be where reading begins and ends.
    offsets = [offset for offset, _, _ in kept]
    gap = next(offset for offset in range(500) if offset not in offsets)
    span = {
        "startingOffsets": f'{{"compacted": {{"0": {gap}}}}}',
        "endingOffsets": f'{{"compacted": {{"0": {gap + 1}}}}}',
    }
    assert read(kafka, "compacted", **span) == []


def test_timestamps_that_the_broker_has_set(kafka: str) -> None:
    create(kafka, "appended", **{"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000)
    produce(kafka, "appended", numbered(3))
    (row, *_) = rows = arrow.read(kafka, subscribe="appended").read_all().to_pylist()
    assert [each["timestampType"] for each in rows] == [1, 1, 1]
    assert row["timestamp"].timestamp() * 1000 >= before_ms


def test_a_message_format_that_is_not_supported(kafka: str) -> None:
    create(kafka, "old", **{"message.format.version": "0.10.2"})
    produce(kafka, "old", numbered(3), **{"enable.idempotence": False})
    with pytest.raises(KafkaError, match="old-0 at offset 0: message format v1 is not supported, only v2"):
        read(kafka, "old")
