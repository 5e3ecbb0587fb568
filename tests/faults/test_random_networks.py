"""Random faults of the network, by seed, while a producer writes: no acknowledged record is lost, none is doubled."""

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from klamm.testing import Cluster, ClusterError
from klamm.testing.faults.faults import FaultHandle

PARTITIONS = 4
ROUNDS = 25
ROUND_S = 0.6
PROPERTIES = {
    "replica.lag.time.max.ms": 1000,
    "controller.socket.timeout.ms": 1000,
    "socket.connection.setup.timeout.ms": 1000,
    "request.timeout.ms": 2000,
    "min.insync.replicas": 2,
}


class Writer:
    """Writes numbers in order to each partition, and notes which are acknowledged."""

    def __init__(self, c: Cluster) -> None:
        self.acknowledged: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self.refused: list[str] = []
        self._next = 0
        self.producer = Producer(
            {
                "bootstrap.servers": c.bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": 240_000,
                "socket.timeout.ms": 2000,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 1000,
            }
        )

    def write(self, partition: int) -> None:
        number, self._next = self._next, self._next + 1

        def told(error: object, _: object) -> None:
            if error is None:
                self.acknowledged[partition].append(number)
            else:
                self.refused.append(str(error))

        self.producer.produce("t", str(number), partition=partition, on_delivery=told)


def random_fault(c: Cluster, chance: random.Random) -> FaultHandle | None:
    one: Any = chance.randrange(3)
    other: Any = chance.choice([place for place in (0, 1, 2, "zookeeper", "clients") if place != one])
    if chance.random() < 0.5:
        one, other = other, one
    one_way, refuse, seed = chance.random() < 0.4, chance.random() < 0.3, chance.randrange(100)
    bytes_per_s = chance.choice((5_000, 200_000))
    network = c.network
    faults: list[Callable[[], FaultHandle]] = [
        lambda: network.cut(one, other, one_way=one_way, refuse=refuse),
        lambda: network.partition(one, ("brokers", "zookeeper", "clients") if isinstance(one, int) else "brokers"),
        lambda: network.delay(one, other, ms=40, jitter_ms=40, seed=seed, one_way=one_way),
        lambda: network.rate(one, other, bytes_per_s=bytes_per_s, one_way=one_way),
        lambda: network.half_open(one, other),
        lambda: network.reset(one, other),
    ]
    try:
        return chance.choice(faults)()
    except ClusterError:
        return None  # No connection was open.


def consumed(c: Cluster, partition: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": c.bootstrap, "group.id": "reader", "enable.auto.commit": False})
    place = TopicPartition("t", partition, 0)
    _, end = consumer.get_watermark_offsets(place, timeout=120)
    consumer.assign([place])
    numbers: list[int] = []
    deadline_s = time.monotonic() + 120
    while consumer.position([place])[0].offset < end and time.monotonic() < deadline_s:
        for message in consumer.consume(10_000, 0.5):
            assert message.error() is None
            numbers.append(int(message.value() or b""))
    consumer.close()
    return numbers


class Faults:
    """Faults that come and go, at most four at a time."""

    def __init__(self, c: Cluster, seed: int) -> None:
        self.chance = random.Random(seed)
        self._c = c
        self._active: list[FaultHandle] = []

    def change(self) -> None:
        fault = random_fault(self._c, self.chance)
        if fault is not None:
            self._active.append(fault)
        while len(self._active) > 3 or (self._active and self.chance.random() < 0.4):
            self._active.pop(self.chance.randrange(len(self._active))).remove()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_acknowledged_records_survive_whatever_becomes_of_the_network(seed: int) -> None:
    with Cluster(3, properties=PROPERTIES, zookeeper_session_timeout_ms=1500) as c:
        c.create_topic("t", partitions=PARTITIONS)
        writer, faults = Writer(c), Faults(c, seed)
        for _ in range(ROUNDS):
            faults.change()
            until_s = time.monotonic() + ROUND_S
            while time.monotonic() < until_s:
                writer.write(faults.chance.randrange(PARTITIONS))
                writer.producer.poll(0.005)
        c.network.heal()
        assert writer.producer.flush(120) == 0
        assert writer.refused == []
        c.until(lambda: not c.under_replicated(), timeout=120)
        for partition in range(PARTITIONS):
            assert consumed(c, partition) == writer.acknowledged[partition]


class TransactionalWriter:
    """Writes transactions of a record to each partition. A record's value is the number of its transaction."""

    def __init__(self, c: Cluster) -> None:
        self.committed: list[int] = []
        self.unknown: list[int] = []
        self._c = c
        self._next = 0
        self._producer = self._initialized()

    def _initialized(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self._c.bootstrap,
                "transactional.id": "writer",
                "socket.timeout.ms": 2000,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 1000,
            }
        )
        _repeated(lambda: producer.init_transactions(5))
        return producer

    def write(self, *, commits: bool) -> None:
        number, self._next = self._next, self._next + 1
        producer, is_ending = self._producer, False
        try:
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce("t", str(number), partition=partition)
            if commits:
                is_ending = True
                _repeated(lambda: producer.commit_transaction(5))
                self.committed.append(number)
            else:
                _repeated(lambda: producer.abort_transaction(5))
        except KafkaException as error:
            if error.args[0].txn_requires_abort():
                _repeated(lambda: producer.abort_transaction(5))
                return
            # A producer that replaces it ends its transaction, one way or the other.
            if is_ending:
                self.unknown.append(number)
            self._producer = self._initialized()


def _repeated(step: Callable[[], None]) -> None:
    deadline_s = time.monotonic() + 240
    while True:
        try:
            return step()
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline_s:
                raise


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_transactions_are_seen_whole_or_not_at_all_whatever_becomes_of_the_network(seed: int) -> None:
    with Cluster(3, properties=PROPERTIES, zookeeper_session_timeout_ms=1500) as c:
        c.create_topic("t", partitions=PARTITIONS)
        writer, faults, chance = TransactionalWriter(c), Faults(c, seed), random.Random(seed)
        writing = threading.Event()

        def disturb() -> None:
            while not writing.wait(ROUND_S):
                faults.change()

        disturbing = threading.Thread(target=disturb)
        disturbing.start()
        try:
            until_s = time.monotonic() + ROUNDS * ROUND_S
            while time.monotonic() < until_s:
                writer.write(commits=chance.random() < 0.7)
        finally:
            writing.set()
            disturbing.join()
        c.network.heal()
        writer.write(commits=True)
        c.until(lambda: not c.under_replicated(), timeout=120)
        seen = [consumed(c, partition) for partition in range(PARTITIONS)]
        assert seen == [seen[0]] * PARTITIONS
        assert sorted(set(seen[0])) == seen[0]
        assert set(writer.committed) <= set(seen[0]) <= {*writer.committed, *writer.unknown}
        assert len(writer.committed) > 5
