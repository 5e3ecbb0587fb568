"""`c.disk` and `c.clock` on real brokers: slow, failing and full disks, and wrong clocks."""

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from klamm.testing import Cluster, ClusterError, Helper


@pytest.fixture(scope="module")
def shared(klamm_helper: Helper) -> Iterator[Cluster]:
    with Cluster(3, helper=klamm_helper, properties={"replica.lag.time.max.ms": 1_500}) as cluster:
        yield cluster


@pytest.fixture
def c(shared: Cluster) -> Iterator[Cluster]:
    yield shared
    shared.faults.remove_all()


def write(c: Cluster, topic: str, *values: bytes, key: str | None = None, timeout_ms: int = 30_000) -> list[int | None]:
    """The offset of each record; raises the first error."""
    offsets: list[int | None] = []
    errors: list[KafkaError] = []
    producer = Producer(
        {
            "bootstrap.servers": c.bootstrap,
            "acks": "all",
            "linger.ms": 0,
            "delivery.timeout.ms": timeout_ms,
            "log_level": 0,
            "error_cb": lambda _: None,
        }
    )
    for value in values:
        producer.produce(
            topic,
            value,
            key,
            partition=0,
            on_delivery=lambda error, message: errors.append(error) if error else offsets.append(message.offset()),
        )
        producer.flush()
        if errors:
            raise KafkaException(errors[0])
    return offsets


def timestamp_of_first(c: Cluster, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": c.bootstrap, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    message = consumer.poll(30)
    assert message is not None
    assert message.error() is None
    consumer.close()
    return int(message.timestamp()[1])


def is_held_up(c: Cluster, topic: str) -> bool:
    """Whether the leader answers nothing."""
    consumer = Consumer({"bootstrap.servers": c.bootstrap, "group.id": topic, "log_level": 0})
    try:
        consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=1)
    except KafkaException:
        return True
    finally:
        consumer.close()
    return False


def test_a_follower_with_a_slow_disk_delays_acknowledgements(c: Cluster) -> None:
    c.create_topic("slow")
    assert write(c, "slow", b"a") == [0]
    slow = c.disk.slow(c.replicas("slow")[1], 400, operations="write", topic="slow")
    began_s = time.monotonic()
    assert write(c, "slow", b"b") == [1]
    assert time.monotonic() - began_s >= 0.4
    assert slow.hits == 1
    assert c.isr("slow") == c.replicas("slow")


def test_a_disk_that_holds_its_broker_up_does_not_hold_up_the_end_of_the_fault(c: Cluster) -> None:
    c.create_topic("stalled", replication_factor=1)
    slow = c.disk.slow(c.leader("stalled"), 3_600_000, operations="write", topic="stalled")
    producer = Producer({"bootstrap.servers": c.bootstrap, "linger.ms": 0})
    producer.produce("stalled", b"a")
    c.until(lambda: producer.flush(0.2) == 1 and is_held_up(c, "stalled"))
    slow.remove()
    assert producer.flush(120) == 0
    assert slow.hits == 1


def test_a_full_disk_refuses_appends_until_it_has_room(c: Cluster) -> None:
    c.create_topic("full", replication_factor=1)
    [leader] = c.replicas("full")
    full = c.disk.full(leader, bytes_left=1_000)
    assert write(c, "full", b"fits") == [0]
    with pytest.raises(KafkaException):
        write(c, "full", bytes(2_000), timeout_ms=1_000)
    assert full.hits >= 1
    full.remove()
    assert write(c, "full", b"fits again") == [1]


def test_an_append_that_fails_once_moves_the_leader_and_the_broker_stops(c: Cluster) -> None:
    """EIO takes the log directory offline; a broker without any other directory stops, as Kafka's does."""
    c.create_topic("broken", configs={"min.insync.replicas": 2})
    leader = c.leader("broken")
    assert leader is not None
    failing = c.disk.fail(None, operations="write", topic="broken", file="*.log").once()
    assert write(c, "broken", b"a") == [0]
    c.until(lambda: not c.broker(leader).running)
    assert c.leader("broken") != leader
    assert failing.hits == 1
    c.start(leader)
    c.until(lambda: not c.under_replicated())
    assert write(c, "broken", b"b") == [1]
    assert failing.hits == 1


def test_a_broker_has_the_faults_of_its_disk_from_its_start(c: Cluster) -> None:
    c.kill(2)
    failing = c.disk.fail(2, operations="open", file="meta.properties")
    with pytest.raises(ClusterError, match=r"Input/output error"):
        c.start(2)
    assert failing.hits >= 1
    failing.remove()
    c.start(2)
    c.until(lambda: not c.under_replicated())


def test_a_wrong_clock_gives_records_wrong_timestamps(c: Cluster) -> None:
    hour_ms = 3_600_000
    for topic, shift_ms in (("past", -hour_ms), ("future", hour_ms)):
        c.create_topic(topic, configs={"message.timestamp.type": "LogAppendTime"})
        shift = c.clock.shift(c.leader(topic), ms=shift_ms)
        write(c, topic, b"a")
        shift.remove()
        assert abs(timestamp_of_first(c, topic) - shift_ms - time.time() * 1000) < 60_000


def test_a_broker_whose_disk_failed_on_demand_is_no_failure_of_the_test(klamm_helper: Helper) -> None:
    with Cluster(2, helper=klamm_helper) as c:
        c.create_topic("t")
        follower = c.replicas("t")[1]
        for _ in range(2):
            c.heal()
            c.disk.fail(follower, operations="write", topic="t", times=1)
            write(c, "t", b"a")
            c.until(lambda: not c.broker(follower).running)


def test_the_log_cleaner_has_the_faults_of_its_brokers_disk(klamm_helper: Helper) -> None:
    properties = {"log.cleaner.backoff.ms": 100, "log.cleaner.min.cleanable.ratio": 0.01}
    with Cluster(1, helper=klamm_helper, properties=properties) as c:
        failing = c.disk.fail(0, operations="write", file="*.cleaned", error="ENOSPC", times=2)
        c.create_topic("compacted", configs={"cleanup.policy": "compact", "segment.bytes": 200})
        write(c, "compacted", *(b"a" * 100 for _ in range(4)), key="k")
        failing.wait(hits=2)
        checkpoint = c.data_directory(0) / "cleaner-offset-checkpoint"
        c.until(lambda: checkpoint.exists() and "compacted 0 " in checkpoint.read_text(encoding="ascii"))
