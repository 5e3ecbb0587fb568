"""Kafka and klamm compact the same logs: one continues where the other has stopped, and both at once in a cluster."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.clusters import Broker, KlammBroker
from support.oracles import RealKafka, RealZooKeeper

TOPIC = "table"
KEYS = 20
CHECKPOINT = "cleaner-offset-checkpoint"
TABLE = {
    "cleanup.policy": "compact",
    "segment.bytes": "50000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
    "file.delete.delay.ms": "0",
}
PROPERTIES: Mapping[str, str | int] = {
    "log.cleaner.backoff.ms": 100,
    "log.cleaner.dedupe.buffer.size": 10_000_000,
    "default.replication.factor": 1,
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 1,
    "controlled.shutdown.enable": "false",
}


def create(broker: Broker, replication_factor: int) -> None:
    """Creates the topic when the broker knows of so many."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    deadline = time.monotonic() + 120
    while len(known := admin.list_topics(timeout=120).brokers) < replication_factor:
        assert time.monotonic() < deadline, known
        time.sleep(0.1)
    topic = NewTopic(TOPIC, 1, replication_factor, config=TABLE)
    admin.create_topics([topic])[TOPIC].result(120)


class Table:
    """What was written: the newest value of each key, None for a tombstone."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes | None] = {}
        self.written = 0

    def write(self, broker: Broker, rounds: int) -> None:
        """A value for each key in every round; at the end tombstones for some, and one record that closes the rest."""
        # A batch must fit into a segment.
        options = {"enable.idempotence": True, "batch.num.messages": 10}
        producer = Producer({"bootstrap.servers": broker.bootstrap, **options})
        for _ in range(rounds):
            for number in range(KEYS):
                self._put(producer, b"key-%d" % number, b"%d " % self.written + b"." * 500)
        for number in range(0, KEYS, 4):
            self._put(producer, b"key-%d" % number, None)
        for number in range(120):
            self._put(producer, b"filler", b"%d" % number + b"." * 500)
        assert producer.flush(120) == 0

    def _put(self, producer: Producer, key: bytes, value: bytes | None) -> None:
        self.values[key] = value
        self.written += 1
        producer.produce(TOPIC, key=key, value=value, partition=0, on_delivery=self._delivered)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error

    @property
    def live(self) -> dict[bytes, bytes]:
        return {key: value for key, value in self.values.items() if value is not None}


def read(broker: Broker) -> list[tuple[bytes, bytes | None]]:
    """(key, value) of all records."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.partition.eof": True})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[tuple[bytes, bytes | None]] = []
    while True:
        message = consumer.poll(60)
        assert message is not None
        error = message.error()
        if error is None:
            found.append((message.key(), message.value()))
        elif error.code() == KafkaError._PARTITION_EOF:
            break
        # Other errors are news of brokers that have been killed.
    consumer.close()
    return found


def newest(records: list[tuple[bytes, bytes | None]]) -> dict[bytes, bytes]:
    return {key: value for key, value in dict(records).items() if value is not None}


def checkpoint(broker: Broker) -> int:
    """The first dirty offset that the broker has checkpointed; -1 without one."""
    path = broker.data_directory / CHECKPOINT
    lines = path.read_text().split("\n")[2:] if path.exists() else []
    return next((int(line.split()[2]) for line in lines if line.startswith(f"{TOPIC} 0 ")), -1)


def until_cleaned(broker: Broker, beyond: int) -> int:
    """Waits until the broker has cleaned beyond an offset; returns its checkpoint."""
    deadline = time.monotonic() + 120
    while (found := checkpoint(broker)) <= beyond:
        assert time.monotonic() < deadline, f"{CHECKPOINT} of {broker.data_directory} has {found}, not beyond {beyond}"
        time.sleep(0.05)
    return found


# The broker that stops first is also the one that starts again: either order has both changes of the program.
@pytest.mark.parametrize("first", [pytest.param("kafka", marks=pytest.mark.long), "klamm"])
def test_one_program_goes_on_compacting_where_the_other_has_stopped(
    first: str, kafka_jars: Path, tmp_path: Path, real_zookeeper: RealZooKeeper, running: Callable[[Any], Any]
) -> None:
    chroot = f"{real_zookeeper.connect}/compacting-{first}"
    kafka = RealKafka(kafka_jars, tmp_path / "broker", chroot, properties=PROPERTIES)
    klamm = KlammBroker(tmp_path / "broker", chroot, properties=PROPERTIES)
    one, other = (kafka, klamm) if first == "kafka" else (klamm, kafka)
    table = Table()
    cleaned = -1
    for number, broker in enumerate((one, other, one)):
        running(broker).start()
        if number == 0:
            create(broker, 1)
        else:
            # It may have gone on already.
            assert checkpoint(broker) >= cleaned
            assert newest(read(broker)) == table.live
        table.write(broker, 20)
        cleaned = until_cleaned(broker, cleaned)
        found = read(broker)
        assert newest(found) == table.live
        assert len(found) < table.written
        broker.stop()
        cleaned = checkpoint(broker)


def until_in_sync(broker: Broker, brokers: set[int]) -> None:
    """Waits until the partition's ISR has these brokers."""
    deadline = time.monotonic() + 120
    while True:
        partition = (
            AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=120).topics[TOPIC].partitions[0]
        )
        if set(partition.isrs) == brokers and partition.leader in brokers:
            return
        assert time.monotonic() < deadline, partition
        time.sleep(0.2)


@pytest.mark.long
@pytest.mark.parametrize("killed_first", [0, 1])
def test_replicas_that_both_programs_compact_each_have_the_newest_values(
    killed_first: int, kafka_jars: Path, tmp_path: Path, real_zookeeper: RealZooKeeper, running: Callable[[Any], Any]
) -> None:
    chroot = f"{real_zookeeper.connect}/compacting-together-{killed_first}"
    properties = {**PROPERTIES, "zookeeper.session.timeout.ms": 3000, "replica.lag.time.max.ms": 3000}
    kafka = RealKafka(kafka_jars, tmp_path / "kafka", chroot, broker_id=0, properties=properties)
    klamm = KlammBroker(tmp_path / "klamm", chroot, broker_id=1, properties=properties)
    brokers: dict[int, Broker] = {0: kafka, 1: klamm}
    for broker in brokers.values():
        running(broker).start()
    create(kafka, 2)
    table = Table()
    table.write(kafka, 20)
    cleaned = {number: until_cleaned(broker, -1) for number, broker in brokers.items()}
    dead, alive = brokers[killed_first], brokers[1 - killed_first]
    dead.kill()
    until_in_sync(alive, {1 - killed_first})
    assert newest(read(alive)) == table.live
    # While the other is away, its log and this one come to differ in what is compacted.
    table.write(alive, 20)
    until_cleaned(alive, cleaned[1 - killed_first])
    dead.start()
    until_in_sync(alive, {0, 1})
    alive.kill()
    until_in_sync(dead, {killed_first})
    found = read(dead)
    assert newest(found) == table.live
    before = checkpoint(dead)
    table.write(dead, 20)
    until_cleaned(dead, before)
    assert newest(read(dead)) == table.live
