"""Troubles of consumers. docs/recipes.md has each recipe with what it is about."""

# A recipe takes for granted that its partition has a leader.
# mypy: disable-error-code="arg-type"

import pytest

from klamm.testing import Cluster
from klamm.testing.recipes import Client, Failed


def test_a_connection_is_half_open(c: Cluster, client: Client, topic: str) -> None:
    """A connection is half open

    The broker has lost the connection, as after a crash of a machine between the two, and the client believes in it.
    Only the client's own timeout tells it that no answer will come.
    """
    producer = client.producer()
    consumer = client.consumer(topic, client_id=topic, request_timeout_ms=2_000)
    producer.write(topic, "one")
    assert consumer.read(1) == ["one"]
    c.network.half_open(client_id=topic)
    producer.write(topic, "two")
    assert consumer.read(1) == ["two"]


def test_records_that_were_read_are_lost(c: Cluster, client: Client, topic: str) -> None:
    """Records that were read are lost

    After an unclean election the log is shorter than the consumer's position, and then has other records at the offsets
    that the consumer has read. A consumer that compares leader epochs (KIP-320) notices. One that does not continues at
    its offset: it reads `new 3`, and never `new 1` and `new 2`.
    """
    consumer = client.consumer(topic, auto_offset_reset="none")
    client.producer().write(topic, "kept")
    stale = c.followers(topic)[0]
    lagging = c.disk.fail(stale, operations="write", topic=topic, file="*.log", error="ENOSPC")
    client.producer(acks=1, enable_idempotence=False).write(topic, "lost 1", "lost 2")
    assert consumer.read(3) == ["kept", "lost 1", "lost 2"]
    c.unclean_election(topic, to=stale)
    lagging.remove()
    client.producer().write(topic, "new 1", "new 2", "new 3")
    if "KIP-320" in client.lacks:
        assert consumer.read(1) == ["new 3"]
        return
    with pytest.raises(Failed) as truncated:
        consumer.read(1)
    assert truncated.value.error == "LOG_TRUNCATION"


def test_a_batch_is_damaged(c: Cluster, client: Client, topic: str) -> None:
    """A batch is damaged

    Bits of a batch have changed on the leader's disk. The consumer notices by the batch's checksum, and gives its
    application an error instead of wrong bytes. Another replica has the batch as it was written.
    """
    client.producer().write(topic, "one", "two", "three")
    c.corrupt(topic, offset=1)
    consumer = client.consumer(topic)
    with pytest.raises(Failed) as damaged:
        consumer.read(3)
    assert damaged.value.error == "CORRUPT_MESSAGE"
    assert "two" not in [record.value for record in consumer.records]
    c.stop(c.leader(topic))
    assert client.read(topic, until="three") == ["one", "two", "three"]


def test_a_clock_is_an_hour_behind(c: Cluster, client: Client, topic: str) -> None:
    """A clock is an hour behind

    With `message.timestamp.type=LogAppendTime` the leader's clock gives records their time. When a broker whose clock
    is wrong becomes the leader, times go back from one record to the next. Offsets do not: a stream engine must not
    take a late time for a late record.
    """
    c.create_topic(timed := f"{topic}-timed", configs={"message.timestamp.type": "LogAppendTime"})
    producer, consumer = client.producer(), client.consumer(timed)
    producer.write(timed, "one")
    leader, successor = c.replicas(timed)[:2]
    c.clock.shift(successor, ms=-3_600_000)
    c.stop(leader)
    producer.write(timed, "two")
    assert consumer.read(2) == ["one", "two"]
    one, two = consumer.records
    assert two.offset == one.offset + 1
    assert two.timestamp_ms < one.timestamp_ms - 1_800_000
