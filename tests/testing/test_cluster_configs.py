"""Configurations that change while three brokers run, through the clients' own admin classes."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from kafka import KafkaProducer
from kafka.admin import ConfigResource as PythonResource
from kafka.admin import ConfigResourceType, KafkaAdminClient
from kafka.errors import NotEnoughReplicasError

from klamm.testing import Cluster, Helper

SET, DELETE = AlterConfigOpType.SET, AlterConfigOpType.DELETE
TOPIC, BROKER = ConfigResource.Type.TOPIC, ConfigResource.Type.BROKER


@pytest.fixture
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    with Cluster(3, helper=klamm_helper) as running:
        yield running


@pytest.fixture
def admin(cluster: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


def change(admin: AdminClient, kind: Any, name: str, key: str, value: str | None) -> None:
    operation = DELETE if value is None else SET
    entries = [ConfigEntry(key, value, incremental_operation=operation)]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(120)


def described(admin: AdminClient, kind: Any, name: str, key: str) -> str:
    resource = ConfigResource(kind, name)
    value: str = admin.describe_configs([resource])[resource].result(120)[key].value
    return value


def can_write(cluster: Cluster, topic: str) -> bool:
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all", retries=0)
    try:
        producer.send(topic, b"record", partition=0).get(30)
    except NotEnoughReplicasError:
        return False
    finally:
        producer.close()
    return True


def test_every_leader_heeds_a_change_at_once_and_after_a_restart(cluster: Cluster, admin: AdminClient) -> None:
    cluster.create_topic("t", partitions=3, replication_factor=2)
    assert can_write(cluster, "t")
    change(admin, TOPIC, "t", "min.insync.replicas", "3")
    cluster.until(lambda: not can_write(cluster, "t"))
    for broker in cluster.broker_ids:
        cluster.restart(broker)
    assert not can_write(cluster, "t")
    change(admin, TOPIC, "t", "min.insync.replicas", None)
    cluster.until(lambda: can_write(cluster, "t"))


def test_a_brokers_own_value_comes_before_the_default_of_all(cluster: Cluster, admin: AdminClient) -> None:
    first, second, _ = cluster.broker_ids
    python = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        resource = PythonResource(ConfigResourceType.BROKER, str(first), configs={"log.segment.bytes": "5555"})
        python.alter_configs([resource])
        python.alter_configs([resource], incremental=False)
    finally:
        python.close()
    cluster.until(lambda: described(admin, BROKER, str(first), "log.segment.bytes") == "5555")
    assert described(admin, BROKER, str(second), "log.segment.bytes") == str(1 << 30)
    cluster.stop(first)
    cluster.start(first)
    assert described(admin, BROKER, str(first), "log.segment.bytes") == "5555"
    with pytest.raises(KafkaException, match=r"broker\.id cannot be changed"):
        change(admin, BROKER, str(first), "broker.id", "9")


def test_a_leader_is_elected_when_unclean_elections_are_switched_on(cluster: Cluster, admin: AdminClient) -> None:
    """Nobody in the ISR is alive; the other replica leads as soon as the topic allows it."""
    cluster.create_topic("t", replication_factor=2)
    leader = cluster.leader("t")
    assert leader is not None
    (follower,) = set(cluster.replicas("t")) - {leader}
    cluster.stop(follower)
    cluster.until(lambda: cluster.isr("t") == [leader])
    cluster.stop(leader)
    cluster.start(follower)
    cluster.until(lambda: cluster.leader("t") is None)
    change(admin, TOPIC, "t", "unclean.leader.election.enable", "true")
    cluster.until(lambda: cluster.leader("t") == follower)
    assert cluster.isr("t") == [follower]
    assert can_write(cluster, "t")
