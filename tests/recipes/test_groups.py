"""Troubles of consumer groups. docs/recipes.md has each recipe with what it is about."""

# A recipe takes for granted that its partition has a leader.
# mypy: disable-error-code="arg-type"

import pytest

from klamm.testing import Cluster
from klamm.testing.recipes import TIMEOUT_S, Client, Failed


def test_the_coordinator_of_a_group_dies(c: Cluster, client: Client, topic: str) -> None:
    """The coordinator of a group dies

    The broker that coordinates the group dies, with the group's offsets and members. The consumer finds the next
    coordinator, and continues where it is; offsets that were committed are known to it.
    """
    producer = client.producer()
    consumer = client.consumer(topic, group_id=topic)
    producer.write(topic, "one")
    assert consumer.read(1) == ["one"]
    consumer.commit()
    c.kill(coordinator := c.leader("__consumer_offsets"))
    c.until(lambda: c.leader("__consumer_offsets") not in (None, coordinator))
    producer.write(topic, "two")
    assert consumer.read(1) == ["two"]
    consumer.commit()
    consumer.close()
    producer.write(topic, "three")
    assert client.consumer(topic, group_id=topic).read(1) == ["three"]


def test_a_group_rebalances_again_and_again(c: Cluster, client: Client, topic: str) -> None:
    """A group rebalances again and again

    Each rebalance takes partitions from members that have just begun to read, so a group may be busy with nothing else.
    Members that commit when their partitions are taken continue where the last one was: every record is read.
    """
    c.create_topic(shared := f"{topic}-shared", partitions=4)
    producer = client.producer()
    member = {"group_id": topic, "heartbeat_interval_ms": 200, "commit_on_revoke": True}
    members = [client.consumer(shared, **member) for _ in range(2)]
    members[0].until_assigned()
    expected = set()
    for turn in range(4):
        c.force_rebalance(topic)
        for partition in range(4):
            producer.send(shared, value := f"{turn}-{partition}", partition).result(TIMEOUT_S)
            expected.add(value)
    members[1].until_assigned()
    c.until(lambda: {record.value for consumer in members for record in consumer.records} == expected)


def test_a_member_works_for_too_long(c: Cluster, client: Client, topic: str) -> None:
    """A member works for too long

    A consumer's application is busy for longer than `max.poll.interval.ms`. Its partitions go to another member, which
    reads the records that were not committed. The first one learns at its commit that it is too late.
    """
    producer = client.producer()
    producer.write(topic, "one")
    times = {"session_timeout_ms": 1_500, "heartbeat_interval_ms": 300, "max_poll_interval_ms": 1_500}
    busy = client.consumer(topic, group_id=topic, **times)
    assert busy.read(1) == ["one"]
    busy.hold()
    other = client.consumer(topic, group_id=topic, **times)
    assert other.read(1) == ["one"]
    other.commit()
    with pytest.raises(Failed) as late:
        busy.commit()
    assert late.value.error == "EXPELLED"
