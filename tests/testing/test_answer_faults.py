"""Faults of answers in a cluster of processes, with librdkafka as the client."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from klamm.testing import Cluster, Helper
from klamm.testing.faults.answers import AnswerHandle


@pytest.fixture(scope="module")
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    with Cluster(3, helper=klamm_helper) as c:
        yield c


@pytest.fixture
def c(cluster: Cluster) -> Iterator[Cluster]:
    yield cluster
    cluster.faults.remove_all()


def produce(c: Cluster, topic: str, values: list[str], **config: Any) -> list[KafkaError | None]:
    """Produces to partition 0, one record in each request; returns the error of each."""
    errors: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": c.bootstrap, "client.id": "x", "linger.ms": 0} | config)
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(120) == 0
    return errors


def values_of(c: Cluster, topic: str) -> list[str]:
    consumer = Consumer({"bootstrap.servers": c.bootstrap, "group.id": "reader"})
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=120)
    consumer.assign([TopicPartition(topic, 0, low)])
    values: list[str] = []
    while len(values) < high - low:
        values += [(message.value() or b"").decode() for message in consumer.consume(100, 1)]
    consumer.close()
    return values


def test_an_error_exactly_on_the_third_produce_of_one_client(c: Cluster) -> None:
    c.create_topic("third")
    fault = c.fail(api="Produce", error="RECORD_LIST_TOO_LARGE").when(topic="third", client_id="x").on_call(3)
    produce(c, "third", ["other client"], **{"client.id": "y"})
    codes = [error and error.name() for error in produce(c, "third", list("abcd"))]
    assert codes == [None, None, "RECORD_LIST_TOO_LARGE", None]
    assert (fault.calls, fault.hits) == (4, 1)
    assert values_of(c, "third") == ["other client", "a", "b", "d"]


def test_once_is_once_in_the_whole_cluster(c: Cluster) -> None:
    c.create_topic("spread", partitions=6)
    fault = c.fail(api="Produce", error="NOT_LEADER_OR_FOLLOWER", topic="spread").once()
    producer = Producer({"bootstrap.servers": c.bootstrap, "enable.idempotence": True})
    for partition in range(6):
        producer.produce("spread", b"v", partition=partition)
    assert producer.flush(120) == 0
    fault.wait()
    assert fault.hits == 1


@contextmanager
def clients_that_never_stop(c: Cluster, topic: str) -> Iterator[list[str]]:
    """A client for each partition of the topic sends one record after another. Afterwards: the errors of all."""
    errors: list[str] = []
    is_over = threading.Event()

    def send(partition: int) -> None:
        producer = Producer({"bootstrap.servers": c.bootstrap, "linger.ms": 0})
        while not is_over.is_set():
            producer.produce(
                topic,
                b"v",
                partition=partition,
                on_delivery=lambda error, _: errors.append(error.name()) if error else None,
            )
            producer.flush(120)

    clients = [threading.Thread(target=send, args=(partition,)) for partition in range(3)]
    for client in clients:
        client.start()
    try:
        yield errors
    finally:
        is_over.set()
        for client in clients:
            client.join()


def test_clients_that_never_stop_sending_meet_what_the_whole_expression_describes(c: Cluster) -> None:
    c.create_topic("busy", partitions=3)
    with clients_that_never_stop(c, "busy") as errors:
        for _ in range(10):
            once = c.fail(api="Produce", error="RECORD_LIST_TOO_LARGE").once()
            second = c.fail(api="Produce", error="INVALID_RECORD").when(topic="busy", partition=1).on_call(2)
            elsewhere = c.fail(api="Produce", error="INVALID_TIMESTAMP").when(topic="other")
            once.wait()
            second.wait()
            assert [once.hits, second.hits, elsewhere.hits] == [1, 1, 0]
            c.faults.remove_all()
    assert sorted(errors) == ["INVALID_RECORD"] * 10 + ["RECORD_LIST_TOO_LARGE"] * 10


def test_a_handle_that_was_kept_is_narrowed_later(c: Cluster) -> None:
    c.create_topic("kept")
    fault = c.fail(api="Produce", error="INVALID_RECORD", topic="kept")
    assert [error and error.name() for error in produce(c, "kept", ["a", "b"])] == ["INVALID_RECORD"] * 2
    fault.once()
    assert [error and error.name() for error in produce(c, "kept", ["c", "d"])] == ["INVALID_RECORD", None]
    assert (fault.calls, fault.hits) == (2, 1)


def test_a_wrong_method_of_an_expression_leaves_no_fault(c: Cluster) -> None:
    with pytest.raises(ValueError, match="times=0 is not allowed"):
        c.fail(api="Produce", error="INVALID_RECORD").when(topic="t").times(0)
    assert c.faults.active == []


def test_an_expression_through_a_function_of_the_test_holds_too(c: Cluster) -> None:
    c.create_topic("wrapped")

    def invalid(**narrowing: Any) -> AnswerHandle:
        return c.fail(api="Produce", error="INVALID_RECORD", **narrowing)

    for install in (lambda: invalid(topic="wrapped"), lambda: invalid().when(topic="wrapped")):
        fault = install()
        assert [error and error.name() for error in produce(c, "wrapped", ["a"])] == ["INVALID_RECORD"]
        assert fault.hits == 1
        fault.remove()


@pytest.mark.parametrize(("is_idempotent", "appended"), [(True, ["a"]), (False, ["a", "a"])])
def test_an_append_whose_answer_is_lost_is_repeated(c: Cluster, is_idempotent: bool, appended: list[str]) -> None:
    topic = f"lost-{is_idempotent}"
    c.create_topic(topic)
    fault = c.disconnect(api="Produce", topic=topic, after=True, times=1)
    config = {"enable.idempotence": is_idempotent, "retry.backoff.ms": 10, "reconnect.backoff.ms": 10}
    assert produce(c, topic, ["a"], **config) == [None]
    assert fault.hits == 1
    assert values_of(c, topic) == appended


def test_a_dropped_answer_is_noticed_by_the_client_s_timeout(c: Cluster) -> None:
    c.create_topic("silent")
    fault = c.drop(api="Produce", topic="silent").once()
    config = {"enable.idempotence": True, "socket.timeout.ms": 500, "request.timeout.ms": 500, "retry.backoff.ms": 10}
    assert produce(c, "silent", ["a"], **config) == [None]
    assert fault.hits == 1
    assert values_of(c, "silent") == ["a"]


def test_requests_between_brokers_fail_too(c: Cluster) -> None:
    c.create_topic("followed", replication_factor=3)
    leader = c.leader("followed")
    assert leader is not None
    fault = c.fail(api="Fetch", error="KAFKA_STORAGE_ERROR", broker=leader, topic="followed", times=3)
    producer = Producer({"bootstrap.servers": c.bootstrap, "acks": "all"})
    producer.produce("followed", b"v", partition=0)
    assert producer.flush(120) == 0
    fault.wait(hits=3)
    refused = c.fail(api="LeaderAndIsr", error="STALE_BROKER_EPOCH", broker=leader)
    c.create_topic("refused", partitions=3, replication_factor=1)
    refused.wait()
    assert not [path for path in c.data_directory(leader).iterdir() if path.name.startswith("refused-")]
    refused.remove()


def test_a_delay_can_last_until_it_is_removed(c: Cluster) -> None:
    c.create_topic("held")
    fault = c.delay(api="Produce", delay_ms=3_600_000, topic="held")
    delivered: list[str] = []
    producer = Producer({"bootstrap.servers": c.bootstrap})
    producer.produce("held", b"v", partition=0, on_delivery=lambda error, _: delivered.append(str(error)))
    producer.poll(0)
    fault.wait()
    assert producer.flush(0) == 1
    assert delivered == []
    fault.remove()
    assert producer.flush(120) == 0
    assert delivered == ["None"]


def test_a_broker_that_is_restarted_has_the_fault_still_and_its_counts_continue(c: Cluster) -> None:
    c.create_topic("again", replication_factor=1)
    leader = c.leader("again")
    assert leader is not None
    fault = c.fail(api="Produce", error="RECORD_LIST_TOO_LARGE", topic="again").on_call(1, 3)
    first = produce(c, "again", ["a", "b"])
    c.restart(leader)
    codes = [error and error.name() for error in [*first, *produce(c, "again", ["c", "d"])]]
    assert codes == ["RECORD_LIST_TOO_LARGE", None, "RECORD_LIST_TOO_LARGE", None]
    assert fault.hits == 2


def test_wrong_names_are_refused_with_what_is_allowed(c: Cluster) -> None:
    with pytest.raises(ValueError, match="api='Prodce' is not served; allowed: Produce, "):
        c.fail(api="Prodce", error="NOT_LEADER_OR_FOLLOWER")
    with pytest.raises(ValueError, match="'NOT_LEADER'; allowed: NOT_LEADER_OR_FOLLOWER, "):
        c.fail(api="Produce", error="NOT_LEADER")
    fault = c.fail(api="Produce", error="REQUEST_TIMED_OUT")
    with pytest.raises(ValueError, match="times=0 is not allowed; allowed: at least 1"):
        fault.times(0)
    assert len(c.faults.active) == 1


async def test_the_same_with_asyncio(klamm_helper: Helper) -> None:
    async with Cluster(1, helper=klamm_helper) as c:
        await c.create_topic("t")
        fault = await c.fail(api="Produce", error="RECORD_LIST_TOO_LARGE").when(topic="t").on_call(2)
        codes = [error and error.name() for error in produce(c.cluster, "t", ["a", "b", "c"])]
        assert codes == [None, "RECORD_LIST_TOO_LARGE", None]
        assert await fault.hits == 1
        await fault.remove()
