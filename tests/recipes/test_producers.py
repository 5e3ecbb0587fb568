"""Troubles of producers. docs/recipes.md has each recipe with what it is about."""

# A recipe takes for granted that its partition has a leader.
# mypy: disable-error-code="arg-type"

import pytest

from klamm.testing import Cluster
from klamm.testing.recipes import TIMEOUT_S, Client, Failed


def test_a_leader_dies_in_mid_produce(c: Cluster, client: Client, topic: str) -> None:
    """A leader dies in mid-produce

    Records are on their way when the leader of their partition dies. The producer finds the next leader and sends again
    what was not acknowledged; no record is lost, repeated or out of order.
    """
    producer = client.producer()
    producer.write(topic, "first")
    values = [f"record-{number}" for number in range(200)]
    sent = [producer.send(topic, value) for value in values]
    c.kill(c.leader(topic))
    for record in sent:
        record.result(TIMEOUT_S)
    producer.write(topic, "last")
    assert client.read(topic, until="last") == ["first", *values, "last"]


def test_a_leader_stalls(c: Cluster, client: Client, topic: str) -> None:
    """A leader stalls, and comes back

    The leader's process stops for so long that another broker becomes the leader, as in a long pause of a garbage
    collector. Its connections stay open. When it continues, it still believes that it leads.
    """
    producer = client.producer(request_timeout_ms=2_000)
    producer.write(topic, "before")
    stalled = c.leader(topic)
    c.pause(stalled)
    waiting = producer.send(topic, "meanwhile")
    c.until(lambda: c.leader(topic) not in (None, stalled))
    c.resume(stalled)
    waiting.result(TIMEOUT_S)
    producer.write(topic, "after")
    assert client.read(topic, until="after") == ["before", "meanwhile", "after"]


def test_too_few_replicas_are_in_sync(c: Cluster, client: Client, topic: str) -> None:
    """Too few replicas are in sync

    With `acks=all`, a record is refused while fewer than `min.insync.replicas` are in sync, here because a broker is
    down for maintenance. The error can be retried: the producer gives up when its own time is over, and not before.
    A record that it has given up may still be in the log, if the ISR has shrunk after the append.
    """
    c.create_topic(strict := f"{topic}-strict", configs={"min.insync.replicas": 3})
    producer = client.producer(delivery_timeout_ms=2_000, request_timeout_ms=1_000)
    producer.write(strict, "before")
    c.stop(follower := c.followers(strict)[0])
    with pytest.raises(Failed) as refused:
        producer.write(strict, "meanwhile")
    assert refused.value.error in ("NOT_ENOUGH_REPLICAS", "TIMED_OUT")
    c.start(follower)
    c.until(lambda: len(c.isr(strict)) == 3)
    client.producer().write(strict, "after")
    before, *meanwhile, after = client.read(strict, until="after")
    assert (before, after) == ("before", "after")
    assert set(meanwhile) <= {"meanwhile"}


def test_the_answer_to_an_append_is_lost(c: Cluster, client: Client, topic: str) -> None:
    """The answer to an append is lost

    The leader has written the record, and the connection ends before its answer arrives. The producer cannot know, and
    sends the record again. With idempotence the leader recognizes it; without, the record is in the log twice.
    """
    for idempotence, value in ((True, "once"), (False, "twice")):
        lost = c.disconnect(api="Produce", topic=topic, after=True).once()
        client.producer(enable_idempotence=idempotence).write(topic, value)
        assert lost.hits == 1
    client.producer().write(topic, "end")
    assert client.read(topic, until="end") == ["once", "twice", "twice", "end"]


def test_the_third_append_is_refused_once(c: Cluster, client: Client, topic: str) -> None:
    """The third append is refused once

    A broker says that it does not lead the partition, as in the moment after an election. The producer asks for the
    leader again and repeats the record, and later records do not overtake it.
    """
    refused = c.fail(api="Produce", error="NOT_LEADER_OR_FOLLOWER", topic=topic).on_call(3)
    values = [f"record-{number}" for number in range(10)]
    producer = client.producer()
    producer.write(topic, *values[:2])
    sent = [producer.send(topic, value) for value in values[2:]]
    for record in sent:
        record.result(TIMEOUT_S)
    assert refused.hits == 1
    assert client.read(topic, until=values[-1]) == values


def test_a_follower_is_slow(c: Cluster, client: Client, topic: str) -> None:
    """A follower is slow

    A follower's disk takes longer than the producer is ready to wait for its answer. The leader has appended the record
    when the request times out. The producer sends it again, and is answered when the follower has it; it is in the log
    once.
    """
    slow = c.disk.slow(c.followers(topic)[0], ms=700, operations="write", topic=topic)
    client.producer(request_timeout_ms=500).write(topic, "one")
    assert slow.hits >= 1
    slow.remove()
    client.producer().write(topic, "two")
    assert client.read(topic, until="two") == ["one", "two"]


def test_the_disk_of_the_leader_is_full(c: Cluster, client: Client, topic: str) -> None:
    """The disk of the leader is full

    The leader refuses records while its disk has no room. The producer repeats them, and they are written when there is
    room again.
    """
    producer = client.producer()
    producer.write(topic, "before")
    full = c.disk.full(c.leader(topic))
    sent = [producer.send(topic, value) for value in ("one", "two", "three")]
    full.wait()
    full.remove()
    for record in sent:
        record.result(TIMEOUT_S)
    assert client.read(topic, until="three") == ["before", "one", "two", "three"]


def test_a_leader_is_cut_off(c: Cluster, client: Client, topic: str) -> None:
    """A leader is cut off

    The network separates the leader from ZooKeeper and the other brokers, and clients reach all of them. It appends
    records that it cannot replicate, so it acknowledges none of them: requests time out, which tells a client nothing
    about another leader. librdkafka asks for metadata only brokers that it is connected to, so it may wait until the
    network is whole again. The old leader then truncates its log, and the record is written by the new one.
    """
    producer = client.producer(request_timeout_ms=1_000)
    producer.write(topic, "before")
    cut_off = c.leader(topic)
    c.network.cut(cut_off, ["brokers", "zookeeper"])
    waiting = producer.send(topic, "meanwhile")
    c.until(lambda: c.leader(topic) not in (None, cut_off))
    c.network.heal()
    waiting.result(TIMEOUT_S)
    producer.write(topic, "after")
    assert client.read(topic, until="after") == ["before", "meanwhile", "after"]


def test_the_session_of_a_leader_expires(c: Cluster, client: Client, topic: str) -> None:
    """The ZooKeeper session of a leader expires

    The leader lives, but the cluster takes it for dead for a moment: its leaderships move while producers send to it.
    """
    producer = client.producer()
    producer.write(topic, "before")
    values = [f"record-{number}" for number in range(50)]
    sent = [producer.send(topic, value) for value in values]
    c.expire_session(leader := c.leader(topic))
    c.until(lambda: c.leader(topic) not in (None, leader))
    for record in sent:
        record.result(TIMEOUT_S)
    producer.write(topic, "after")
    assert client.read(topic, until="after") == ["before", *values, "after"]
