"""A whole Apache Kafka 2.8.2 broker on the embedded server, with librdkafka's producer and consumer.

The broker is restarted, killed, and keeps its session and its leadership while the ZooKeeper server under it is killed
and restarted.
"""

import json
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from support.oracles import RealKafka, java_tool
from support.zookeeper.embedded import EmbeddedZooKeeper

PARTITIONS = 4


def wait_for_metadata(kafka: RealKafka, topics: set[str]) -> None:
    """Kafka says that it has started before its controller has told it of brokers and topics; a client that asks in
    between does not ask again for minutes."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    deadline_s = time.monotonic() + 120
    while True:
        metadata = admin.list_topics(timeout=120)
        known = {name for name, topic in metadata.topics.items() if topic.error is None}
        if metadata.controller_id == 0 and topics <= known:
            return
        assert time.monotonic() < deadline_s, f"{metadata.brokers} {known}"


def create_topic(kafka: RealKafka, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1)])[topic].result(120)


def produce(kafka: RealKafka, topic: str, first: int, count: int) -> None:
    """Produces the numbers from `first` on; every one is acknowledged."""
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
    for number in range(first, first + count):
        producer.produce(
            topic,
            str(number).encode(),
            partition=number % PARTITIONS,
            on_delivery=lambda error, _: errors.append(error) if error else None,
        )
    assert producer.flush(120) == 0
    assert errors == []


def consume(kafka: RealKafka, topic: str, count: int) -> list[int]:
    """So many records, as a consumer group reads them, sorted."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: list[int] = []
    try:
        while len(found) < count:
            message = consumer.poll(30)
            assert message is not None, f"{len(found)} of {count} records"
            assert message.error() is None, message.error()
            found.append(int(message.value() or b""))
    finally:
        consumer.close()
    return sorted(found)


def broker_epoch(zookeeper: EmbeddedZooKeeper) -> int:
    """The czxid of the broker's znode: it changes when the broker has to register again."""
    client = KazooClient(f"{zookeeper.connect}/kafka")
    client.start()
    try:
        data, stat = client.get("/brokers/ids/0")
        assert json.loads(data)["version"] == 5
        return int(stat.czxid)
    finally:
        client.stop()
        client.close()


@pytest.mark.parametrize("is_restarted", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_kafka_broker_lives_on_the_embedded_server(
    kafka_jars: Path, running: Callable[[Any], Any], tmp_path: Path, is_restarted: bool
) -> None:
    zookeeper = running(EmbeddedZooKeeper(tmp_path / "zookeeper"))
    zookeeper.directory.mkdir()
    zookeeper.start()
    properties = {
        "zookeeper.session.timeout.ms": 6000,
        "log.flush.interval.messages": 1,
        "offsets.topic.num.partitions": 1,
    }
    kafka = running(RealKafka(kafka_jars, tmp_path / "kafka", f"{zookeeper.connect}/kafka", properties=properties))
    kafka.start()
    wait_for_metadata(kafka, set())
    create_topic(kafka, "numbers")
    produce(kafka, "numbers", 0, 1000)
    assert consume(kafka, "numbers", 1000) == list(range(1000))

    if is_restarted:
        # The broker ends in order and comes again.
        kafka.restart()
        wait_for_metadata(kafka, {"numbers"})
    produce(kafka, "numbers", 1000, 500)

    # ZooKeeper is killed under the broker and restarted; the broker keeps its session, and ZooKeeper its data.
    epoch = broker_epoch(zookeeper)
    zookeeper.kill()
    produce(kafka, "numbers", 1500, 500)
    zookeeper.start()
    create_topic(kafka, "after")
    assert broker_epoch(zookeeper) == epoch
    produce(kafka, "after", 0, 100)

    # The broker is killed; its session has to expire before it can register again.
    kafka.kill()
    client = KazooClient(f"{zookeeper.connect}/kafka")
    client.start()
    gone = client.handler.event_object()
    if client.exists("/brokers/ids/0", watch=lambda event: gone.set()):
        assert gone.wait(120)
    client.stop()
    client.close()
    kafka.start()
    wait_for_metadata(kafka, {"numbers", "after", "__consumer_offsets"})
    assert broker_epoch(zookeeper) > epoch
    assert consume(kafka, "numbers", 2000) == list(range(2000))
    assert consume(kafka, "after", 100) == list(range(100))

    # Kafka's own tools speak to ZooKeeper directly.
    listed = java_tool(kafka_jars, "kafka.admin.TopicCommand", "--zookeeper", f"{zookeeper.connect}/kafka", "--list")
    assert {"after", "numbers"} <= set(listed.decode().split())
    shell = java_tool(
        kafka_jars,
        "org.apache.zookeeper.ZooKeeperMainWithTlsSupportForKafka",
        "-server",
        f"{zookeeper.connect}/kafka",
        "get",
        "/controller",
    )
    assert b'"brokerid":0' in shell
    kafka.stop()
    zookeeper.stop()
