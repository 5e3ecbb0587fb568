"""Transactional producers of librdkafka with three brokers: what they commit is read once, and nothing else is read."""

import uuid
from collections.abc import Iterator, Sequence

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from klamm.processes.helper import Helper
from klamm.testing import Cluster

TIMEOUT_S = 120


@pytest.fixture(scope="module")
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    properties = {"offsets.topic.num.partitions": 4, "transaction.state.log.num.partitions": 4}
    with Cluster(brokers=3, properties=properties, helper=klamm_helper) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(name, partitions=3)
    return name


def producer(cluster: Cluster, id: str, **options: object) -> Producer:
    return Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": id, **options})


def begun(cluster: Cluster, id: str) -> Producer:
    one = producer(cluster, id)
    one.init_transactions(TIMEOUT_S)
    return one


def send(one: Producer, topic: str, values: Sequence[str]) -> None:
    for number, value in enumerate(values):
        one.produce(topic, value, partition=number % 3)
    assert one.flush(TIMEOUT_S) == 0


def reader(cluster: Cluster, topic: str, isolation: str = "read_committed", group: str | None = None) -> Consumer:
    """Reads the topic from its beginning to where it ends now."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group or uuid.uuid4().hex,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(3)])
    return consumer


def read(consumer: Consumer) -> list[str]:
    """Sorted; to the last stable offset of each partition with read_committed, else to its high watermark."""
    values, ended = [], set()
    while len(ended) < 3:
        message: Message | None = consumer.poll(TIMEOUT_S)
        assert message is not None
        error = message.error()
        if error is None:
            values.append((message.value() or b"").decode())
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add(message.partition())
    consumer.close()
    return sorted(values)


def committed(cluster: Cluster, topic: str) -> list[str]:
    return read(reader(cluster, topic))


def named(prefix: str) -> list[str]:
    return [f"{prefix}-{number}" for number in range(20)]


def test_committed_transactions_are_read_and_aborted_ones_are_not(cluster: Cluster, topic: str) -> None:
    one = begun(cluster, topic)
    for prefix, commits in ("a", True), ("b", False), ("c", True):
        one.begin_transaction()
        send(one, topic, named(prefix))
        if commits:
            one.commit_transaction(TIMEOUT_S)
        else:
            one.abort_transaction(TIMEOUT_S)
    one.begin_transaction()
    send(one, topic, named("open"))
    cluster.until(lambda: committed(cluster, topic) == sorted(named("a") + named("c")))
    everything = read(reader(cluster, topic, "read_uncommitted"))
    assert everything == sorted(named("a") + named("b") + named("c") + named("open"))
    one.abort_transaction(TIMEOUT_S)


def test_a_second_producer_fences_the_first_and_aborts_its_transaction(cluster: Cluster, topic: str) -> None:
    first = begun(cluster, topic)
    first.begin_transaction()
    send(first, topic, named("lost"))
    second = begun(cluster, topic)
    second.begin_transaction()
    send(second, topic, named("kept"))
    with pytest.raises(KafkaException) as fenced:
        first.commit_transaction(TIMEOUT_S)
    assert fenced.value.args[0].fatal()
    second.commit_transaction(TIMEOUT_S)
    cluster.until(lambda: committed(cluster, topic) == sorted(named("kept")))


def test_offsets_and_records_are_committed_together(cluster: Cluster, topic: str) -> None:
    cluster.create_topic(f"{topic}-in", partitions=3)
    source = producer(cluster, f"{topic}-source")
    source.init_transactions(TIMEOUT_S)
    source.begin_transaction()
    send(source, f"{topic}-in", named("in"))
    source.commit_transaction(TIMEOUT_S)

    copier = begun(cluster, topic)
    group = f"{topic}-group"
    cluster.until(lambda: committed(cluster, f"{topic}-in") == sorted(named("in")))
    for commits in False, True:
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": group,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([f"{topic}-in"])
        copier.begin_transaction()
        for _ in range(20):
            message = consumer.poll(TIMEOUT_S)
            assert message is not None and message.error() is None
            copier.produce(topic, message.value(), partition=message.partition())
        copier.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), TIMEOUT_S
        )
        if commits:
            copier.commit_transaction(TIMEOUT_S)
        else:
            copier.abort_transaction(TIMEOUT_S)
        consumer.close()
    cluster.until(lambda: committed(cluster, topic) == sorted(named("in")))
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    offsets = consumer.committed([TopicPartition(f"{topic}-in", number) for number in range(3)], TIMEOUT_S)
    consumer.close()
    # Each partition has a marker behind its records.
    assert sum(max(one.offset, 0) for one in offsets) in range(20, 24)


def test_a_transaction_is_committed_although_its_coordinator_is_killed(cluster: Cluster, topic: str) -> None:
    """The next coordinator knows the open transaction."""
    one = begun(cluster, topic)
    one.begin_transaction()
    send(one, topic, named("a"))
    coordinator = cluster.leader("__transaction_state", partition_of(topic, 4))
    assert coordinator is not None
    cluster.kill(coordinator)
    one.commit_transaction(TIMEOUT_S)
    cluster.until(lambda: committed(cluster, topic) == sorted(named("a")))
    cluster.start(coordinator)
    one.begin_transaction()
    send(one, topic, named("b"))
    one.commit_transaction(TIMEOUT_S)
    cluster.until(lambda: committed(cluster, topic) == sorted(named("a") + named("b")))


def partition_of(id: str, partitions: int) -> int:
    """Java's `String.hashCode`, as Kafka takes it modulo the number of partitions."""
    code = 0
    for letter in id:
        code = (31 * code + ord(letter)) & 0xFFFFFFFF
    code = code - 2**32 if code >= 2**31 else code
    return abs(code) % partitions
