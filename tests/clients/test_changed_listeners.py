"""Listeners come, move and go while librdkafka's producers write through them: all is delivered, once."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from klamm.processes.helper import Helper
from klamm.testing import Cluster
from support.processes import free_port

TOPIC = "t"
BROKERS = range(3)
RECORDS = 200


@pytest.fixture
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    with Cluster(len(BROKERS), helper=klamm_helper) as started:
        started.create_topic(TOPIC, partitions=3)
        yield started


class Writer:
    """An idempotent producer that writes a number after the other."""

    def __init__(self, name: str, bootstrap: str) -> None:
        self.name, self.written = name, 0
        self.errors: list[object] = []
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "reconnect.backoff.max.ms": 100}
        )

    def write(self, count: int) -> None:
        for _ in range(count):
            value = f"{self.name} {self.written}".encode()
            self._producer.produce(TOPIC, value, on_delivery=lambda error, _: self.errors.append(error))
            self.written += 1
        assert self._producer.flush(120) == 0


def change(admin: AdminClient, broker: int, own: str, *more: str) -> None:
    """The broker listens at its `own` listener and these."""
    keys = {
        "listeners": ",".join([own, *more]),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,EXTERNAL:PLAINTEXT",
    }
    resource = ConfigResource(
        ResourceType.BROKER,
        str(broker),
        incremental_configs=[
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in keys.items()
        ],
    )
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(120)


def own_listener(admin: AdminClient, broker: int) -> str:
    resource = ConfigResource(ResourceType.BROKER, str(broker))
    (future,) = admin.describe_configs([resource]).values()
    return str(future.result(120)["listeners"].value)


def test_nothing_is_lost_and_nothing_twice(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    own = {broker: own_listener(admin, broker) for broker in BROKERS}
    inside = Writer("inside", cluster.bootstrap)
    inside.write(RECORDS)
    former, ports = {}, {broker: free_port() for broker in BROKERS}
    for broker, port in ports.items():
        change(admin, broker, own[broker], f"EXTERNAL://127.0.0.1:{port}")
    outside = Writer("outside", ",".join(f"127.0.0.1:{port}" for port in ports.values()))
    outside.write(RECORDS)
    # One broker after the other moves its listener: the others tell the producer where it is.
    for broker in BROKERS:
        former[broker], ports[broker] = ports[broker], free_port()
        change(admin, broker, own[broker], f"EXTERNAL://127.0.0.1:{ports[broker]}")
        inside.write(RECORDS)
        if broker != BROKERS[-1]:
            outside.write(RECORDS)
    # It can bootstrap from where the listeners are now, and only from there.
    late = Writer("late", ",".join(f"127.0.0.1:{port}" for port in ports.values()))
    late.write(RECORDS)
    for broker in BROKERS:
        change(admin, broker, own[broker])
    inside.write(RECORDS)

    writers = (inside, outside, late)
    assert [writer.errors for writer in writers] == [[None] * writer.written for writer in writers]
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(3)])
    expected = sorted(f"{one.name} {number}".encode() for one in writers for number in range(one.written))
    found: list[bytes] = []
    while len(found) < len(expected):
        message = consumer.poll(30)
        assert message is not None and message.error() is None
        found.append(message.value())
    consumer.close()
    assert sorted(found) == expected
