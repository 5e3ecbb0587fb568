"""What a test does once to brokers: sessions end, leaders move, groups rebalance, transactions expire, batches rot."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from klamm.faults.entries import BrokerRegistered, ControllerElected, Truncated
from klamm.testing import Cluster, ClusterError, Helper


@pytest.fixture(scope="module")
def c(klamm_helper: Helper) -> Iterator[Cluster]:
    properties = {
        # Shorter than usual, for the test that awaits a replica out of sync; longer than a busy machine lets one wait.
        "replica.lag.time.max.ms": 5_000,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
        "group.initial.rebalance.delay.ms": 0,
    }
    with Cluster(3, helper=klamm_helper, properties=properties) as cluster:
        yield cluster


def write(c: Cluster, topic: str, *values: bytes, **config: object) -> list[int | None]:
    """Writes records and returns their offsets; raises the first error."""
    offsets: list[int | None] = []
    errors: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": c.bootstrap, "linger.ms": 0, "acks": "all", **config})
    for value in values:
        producer.produce(
            topic,
            value,
            on_delivery=lambda error, message: errors.append(error) if error else offsets.append(message.offset()),
        )
        producer.flush()
    if errors:
        raise KafkaException(errors[0])
    return offsets


def read(c: Cluster, topic: str, count: int) -> list[bytes | None]:
    """The first records of partition 0; raises the first error."""
    consumer = Consumer({"bootstrap.servers": c.bootstrap, "group.id": "none", "check.crcs": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        return [_value(consumer) for _ in range(count)]
    finally:
        consumer.close()


def _value(consumer: Consumer) -> bytes | None:
    message = consumer.poll(30)
    assert message is not None
    if message.error() is not None:
        raise KafkaException(message.error())
    return message.value()


def all_in_sync(c: Cluster) -> None:
    c.until(lambda: not c.under_replicated())


def registrations(c: Cluster, broker: int) -> int:
    return len([entry for entry in c.history.of(BrokerRegistered) if entry.broker == broker])


def expire(c: Cluster, broker: int) -> None:
    """Ends a session, and returns when the broker has registered again."""
    before = registrations(c, broker)
    c.expire_session(broker)
    assert "the ZooKeeper session has expired" in c.log(broker)
    c.until(lambda: registrations(c, broker) > before)
    all_in_sync(c)


def test_a_session_ends_and_the_broker_registers_again(c: Cluster) -> None:
    c.create_topic("sessions")
    leader = c.leader("sessions")
    assert leader is not None
    if leader == c.controller_id():
        c.move_controller()  # The next controller may find it registered again, and leave it its partitions.
    expire(c, leader)
    # The controller may hear of the end of the session after the broker has registered again.
    c.until(lambda: c.leader("sessions") not in (None, leader))
    assert write(c, "sessions", b"a") == [0]


def test_the_session_of_the_controller_ends(c: Cluster) -> None:
    former = c.controller_id()
    assert former is not None
    before = len(c.history.of(ControllerElected))
    expire(c, former)
    # Any broker may be first to become the controller, also this one with its new session.
    c.until(lambda: len(c.history.of(ControllerElected)) > before)
    assert c.controller_id() is not None


def test_a_replica_in_sync_is_elected(c: Cluster) -> None:
    c.create_topic("elect")
    preferred, *others = c.replicas("elect")
    for other in others:
        assert c.elect("elect", to=other) == other
        assert c.leader("elect") == other
        assert c.isr("elect") == [preferred, *others]
    assert c.elect("elect") == preferred
    assert c.leader("elect") == preferred
    assert write(c, "elect", b"a") == [0]


def test_a_replica_that_cannot_lead_is_refused(c: Cluster) -> None:
    c.create_topic("refused", replication_factor=2)
    leader, follower = c.replicas("refused")
    [third] = {0, 1, 2} - {leader, follower}
    with pytest.raises(ClusterError, match=r"there is no partition none-0"):
        c.elect("none")
    with pytest.raises(ClusterError, match=rf"broker {third} has no replica of refused-0; its replicas are \["):
        c.unclean_election("refused", to=third)
    # The follower has its log, whose creation would fail too.
    assert write(c, "refused", b"a") == [0]
    lagging = c.disk.fail(follower, operations="write", topic="refused", file="*.log", error="ENOSPC")
    write(c, "refused", b"b", acks=1)
    c.until(lambda: c.isr("refused") == [leader])
    with pytest.raises(ClusterError, match=rf"broker {follower} cannot lead refused-0; its ISR is \[{leader}\]"):
        c.elect("refused", to=follower)
    lagging.remove()
    all_in_sync(c)
    c.stop(follower)
    with pytest.raises(ClusterError, match=rf"the replica of refused-0 on broker {follower} is offline"):
        c.unclean_election("refused", to=follower)
    c.start(follower)
    all_in_sync(c)


def test_an_unclean_election_loses_records_and_the_other_replicas_truncate_their_logs(c: Cluster) -> None:
    c.create_topic("unclean")
    leader, stale, _ = c.replicas("unclean")
    assert write(c, "unclean", b"kept") == [0]
    lagging = c.disk.fail(stale, operations="write", topic="unclean", file="*.log", error="ENOSPC")
    assert write(c, "unclean", b"lost", b"lost too", acks=1) == [1, 2]
    lagging.wait()
    assert c.unclean_election("unclean", to=stale) == stale
    lagging.remove()
    assert write(c, "unclean", b"new") == [1]
    all_in_sync(c)
    assert c.elect("unclean", to=leader) == leader
    assert read(c, "unclean", 2) == [b"kept", b"new"]
    truncated = [entry for entry in c.history.of(Truncated) if (entry.topic, entry.server) == ("unclean", leader)]
    # It may have appended the new record too, before it learned that it no longer leads.
    assert [(entry.from_offset in (3, 4), entry.to_offset) for entry in truncated] == [(True, 1)]
    assert f"c.unclean_election('unclean', 0, to={stale})" in c.history.script()


def test_the_controller_moves_to_another_broker(c: Cluster) -> None:
    for _ in range(3):
        former = c.controller_id()
        latter = c.move_controller()
        assert latter != former
        assert c.controller_id() == latter


def test_a_group_rebalances(c: Cluster) -> None:
    c.create_topic("group")
    revoked, assigned = threading.Event(), threading.Event()
    consumer = Consumer({"bootstrap.servers": c.bootstrap, "group.id": "g", "heartbeat.interval.ms": 100})

    def on_revoke(*_: Any) -> None:
        assigned.clear()
        revoked.set()

    consumer.subscribe(["group"], on_assign=lambda *_: assigned.set(), on_revoke=on_revoke)
    while not assigned.is_set():
        consumer.poll(0.05)
    c.force_rebalance("g")
    while not (revoked.is_set() and assigned.is_set()):
        consumer.poll(0.05)
    consumer.close()
    with pytest.raises(ClusterError, match=r"group g has no members: it is Empty"):
        c.force_rebalance("g")
    with pytest.raises(ClusterError, match=r"group unknown has no members: it is Dead"):
        c.force_rebalance("unknown")


def test_an_open_transaction_expires_and_its_producer_is_fenced(c: Cluster) -> None:
    c.create_topic("transactions")
    producer = Producer({"bootstrap.servers": c.bootstrap, "transactional.id": "x", "log_level": 0})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("transactions", b"aborted")
    producer.flush()
    c.expire_transaction("x")
    with pytest.raises(KafkaException) as fenced:
        producer.commit_transaction()
    assert fenced.value.args[0].code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
    for transactional_id in ("x", "unknown"):
        with pytest.raises(ClusterError, match=r"has no open transaction|TRANSACTIONAL_ID_NOT_FOUND"):
            c.expire_transaction(transactional_id)


def test_a_damaged_batch_is_not_read(c: Cluster) -> None:
    c.create_topic("damaged")
    assert write(c, "damaged", b"a", b"b", b"c") == [0, 1, 2]
    follower = c.replicas("damaged")[1]
    assert c.corrupt("damaged", offset=1, broker=follower).parts[-3] == f"broker-{follower}"
    assert read(c, "damaged", 3) == [b"a", b"b", b"c"]
    for _ in range(2):  # A second time does not repair it.
        c.corrupt("damaged", offset=1)
    assert read(c, "damaged", 1) == [b"a"]
    with pytest.raises(KafkaException):
        read(c, "damaged", 2)
    with pytest.raises(ClusterError, match=r"damaged-0 has no batch with offset 3"):
        c.corrupt("damaged", offset=3)
    c.delete_topic("damaged")


def test_a_batch_of_a_stopped_broker_is_damaged(c: Cluster) -> None:
    c.create_topic("rotten")
    write(c, "rotten", b"a", b"b")
    follower = c.replicas("rotten")[1]
    c.kill(follower)
    c.corrupt("rotten", offset=1, broker=follower)
    assert c.history.script()[-1] == f"c.corrupt('rotten', 0, offset=1, broker={follower})"
    with pytest.raises(ClusterError, match=r"there is no log of rotten-1 in "):
        c.corrupt("rotten", 1, offset=1, broker=follower)
    c.start(follower)
    all_in_sync(c)
    assert c.elect("rotten", to=follower) == follower
    assert read(c, "rotten", 2) == [b"a", b"b"]


def test_a_paused_broker_cannot_end_its_session(c: Cluster) -> None:
    c.pause(1)
    with pytest.raises(ClusterError, match=r"^no running server, paused ones apart, can perform sessions\.expire$"):
        c.expire_session(1)
    c.resume(1)


async def test_actions_and_faults_of_the_disk_are_awaited(klamm_helper: Helper) -> None:
    async with Cluster(1, helper=klamm_helper) as c:
        slow = await c.disk.slow(None, 1, operations="write", topic="t")
        shift = await c.clock.shift(0, ms=5)
        assert await shift.hits == 1
        await c.create_topic("t")
        await slow.wait()
        await c.faults.remove_all()
        assert await c.elect("t") == 0
        with pytest.raises(ClusterError, match=r"t-0 has no batch with offset 0"):
            await c.corrupt("t", offset=0)
        assert await c.move_controller() == 0
