"""kill -9 under an idempotent producer: all that was acknowledged is there, once and in order."""

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.client.admin.log_dirs import TopicPartitionReplica, alter_replica_log_dirs, describe_log_dirs
from klamm.client.options import ClientOptions
from klamm.client.properties import parse_addresses
from klamm.client.threads import call
from klamm.protocol.vocabulary import TopicPartition
from support.clients import TIMEOUT_S
from support.clusters import Broker, KlammBroker, KlammZooKeeper, ZooKeeper, forget_dead_broker
from support.oracles import RealKafka, RealZooKeeper

ACKNOWLEDGED_BETWEEN_KILLS = 2000
TOPIC = "killed"


@pytest.fixture
def broker(against_kafka: bool, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[ZooKeeper, Broker]]:
    zookeeper: ZooKeeper
    killed: Broker
    directories: dict[str, str | int] = {"log.dirs": f"{tmp_path}/one,{tmp_path}/two"}
    if against_kafka:
        jars: Path = request.getfixturevalue("kafka_jars")
        zookeeper = RealZooKeeper(jars, tmp_path / "zookeeper")
        killed = RealKafka(jars, tmp_path / "broker", zookeeper.connect, properties=directories)
    else:
        zookeeper = KlammZooKeeper(tmp_path / "zookeeper")
        killed = KlammBroker(tmp_path / "broker", zookeeper.connect, properties=directories)
    try:
        zookeeper.start()
        killed.start()
        yield zookeeper, killed
    finally:
        killed.kill()
        zookeeper.kill()


class NumberProducer:
    """Writes 0, 1, 2, ... from a thread without a pause, many in flight, and notes what has been acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: dict[int, int] = {}
        self.failed: list[Any] = []
        self.progress = threading.Condition()
        self._stop = threading.Event()
        # librdkafka's own retries and time-outs; only its back-off is shorter, so that twenty restarts pass quickly.
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "reconnect.backoff.max.ms": 200,
                "batch.num.messages": 100,
                "queue.buffering.max.messages": 20_000,
                "log_level": 2,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for number in itertools.count():
            if self._stop.is_set():
                return
            while True:
                try:
                    self._producer.produce(TOPIC, str(number).encode(), partition=0, on_delivery=self._delivered)
                    break
                except BufferError:
                    self._producer.poll(0.1)
            self._producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        number = int(message.value())
        with self.progress:
            if error is None:
                self.acknowledged[number] = message.offset()
            else:
                self.failed.append((number, error))
            self.progress.notify_all()

    def wait_for(self, count: int) -> None:
        with self.progress:
            arrived = self.progress.wait_for(lambda: self.failed or len(self.acknowledged) >= count, TIMEOUT_S)
        assert not self.failed, self.failed[:3]
        assert arrived, f"only {len(self.acknowledged)} of {count} records were acknowledged in {TIMEOUT_S} s"

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(TIMEOUT_S) == 0
        assert not self.failed, self.failed[:3]


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.long)])
def test_kills_lose_nothing(broker: tuple[ZooKeeper, Broker], kills: int) -> None:
    zookeeper, killed = broker
    admin = AdminClient({"bootstrap.servers": killed.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(120)
    producer = NumberProducer(killed.bootstrap)
    for _ in range(kills):
        producer.wait_for(len(producer.acknowledged) + ACKNOWLEDGED_BETWEEN_KILLS)
        killed.kill()
        if isinstance(killed, RealKafka):  # klamm knows its own session again
            forget_dead_broker(zookeeper.connect)
        killed.start()
    producer.wait_for(len(producer.acknowledged) + ACKNOWLEDGED_BETWEEN_KILLS)
    producer.finish()

    stored = read_all(killed.bootstrap)
    print(f"kills: {kills}; acknowledged: {len(producer.acknowledged)}; stored: {len(stored)}")
    # The producer has ended with nothing unacknowledged, so the log is exactly the numbers in order.
    assert len(producer.acknowledged) == len(stored)
    assert stored == list(range(len(stored)))
    assert all(stored[offset] == number for number, offset in producer.acknowledged.items() if offset >= 0)


@pytest.mark.parametrize("kills", [2, pytest.param(30, marks=pytest.mark.long)])
def test_kills_while_the_replica_moves_between_log_directories_lose_nothing(
    broker: tuple[ZooKeeper, Broker], tmp_path: Path, kills: int
) -> None:
    zookeeper, killed = broker
    admin = AdminClient({"bootstrap.servers": killed.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(120)
    producer = NumberProducer(killed.bootstrap)
    moves = 0
    for number in range(kills):
        # From once before the copying has begun to once after it is over.
        producer.wait_for(len(producer.acknowledged) + ACKNOWLEDGED_BETWEEN_KILLS)
        here = directory_of_replica(killed.bootstrap)
        there = tmp_path / ("two" if here == tmp_path / "one" else "one")
        alter_log_directory(killed.bootstrap, there)
        producer.wait_for(len(producer.acknowledged) + number * ACKNOWLEDGED_BETWEEN_KILLS // kills)
        killed.kill()
        if isinstance(killed, RealKafka):
            forget_dead_broker(zookeeper.connect)
        killed.start()
        while directory_of_replica(killed.bootstrap) != there:
            producer.wait_for(len(producer.acknowledged) + 100)
        moves += 1
    producer.finish()

    stored = read_all(killed.bootstrap)
    print(f"moves: {moves}; acknowledged: {len(producer.acknowledged)}; stored: {len(stored)}")
    assert len(producer.acknowledged) == len(stored)
    assert stored == list(range(len(stored)))
    assert all(stored[offset] == number for number, offset in producer.acknowledged.items() if offset >= 0)


def directory_of_replica(bootstrap: str) -> Path:
    """Where the current log of the partition is."""
    partition = TopicPartition(TOPIC, 0)
    options = ClientOptions(parse_addresses("bootstrap", bootstrap))
    found = call(options, lambda client: describe_log_dirs(client, [0], [partition]))[0]
    assert isinstance(found, dict), found
    (path,) = [
        path
        for path, directory in found.items()
        if partition in directory.replicas and not directory.replicas[partition].is_future
    ]
    return Path(path)


def alter_log_directory(bootstrap: str, path: Path) -> None:
    replica = TopicPartitionReplica(TOPIC, 0, 0)
    options = ClientOptions(parse_addresses("bootstrap", bootstrap))
    assert call(options, lambda client: alter_replica_log_dirs(client, {replica: str(path)})) == {replica: None}


def read_all(bootstrap: str) -> list[int]:
    config = {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False, "check.crcs": True}
    consumer = confluent_kafka.Consumer(config)
    where = confluent_kafka.TopicPartition(TOPIC, 0, 0)
    _, end = consumer.get_watermark_offsets(where, TIMEOUT_S)
    consumer.assign([where])
    numbers: list[int] = []
    while len(numbers) < end:
        messages = consumer.consume(min(1000, end - len(numbers)), TIMEOUT_S)
        assert messages, f"only {len(numbers)} of {end} records came"
        numbers += [int(message.value()) for message in messages]
    consumer.close()
    return numbers
