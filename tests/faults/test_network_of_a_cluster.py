"""Faults of the network between the brokers of a real cluster, ZooKeeper, and real clients."""

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from klamm.testing import AsyncCluster, Cluster, ClusterError, Helper

PROPERTIES = {
    "replica.lag.time.max.ms": 1000,
    "controller.socket.timeout.ms": 1000,
    "socket.connection.setup.timeout.ms": 1000,
    "request.timeout.ms": 2000,
    "replica.fetch.backoff.ms": 100,
}


@pytest.fixture(scope="module")
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    with Cluster(3, helper=klamm_helper, properties=PROPERTIES, zookeeper_session_timeout_ms=1500) as cluster:
        yield cluster


@pytest.fixture
def c(cluster: Cluster) -> Iterator[Cluster]:
    yield cluster
    cluster.network.heal()
    cluster.until(lambda: not cluster.under_replicated())


class Client:
    """A producer that waits for all replicas, and tells what became of each record."""

    def __init__(self, c: Cluster, client_id: str = "somebody", **config: object) -> None:
        common = {"bootstrap.servers": c.bootstrap, "client.id": client_id, "reconnect.backoff.max.ms": 100}
        self.producer = Producer({**common, "topic.metadata.refresh.interval.ms": 500, **config})

    def send(self, topic: str, value: bytes = b"value", partition: int = 0) -> list[str]:
        """Returns a list that gets the outcome of the record."""
        outcome: list[str] = []
        self.producer.produce(
            topic,
            value,
            partition=partition,
            on_delivery=lambda error, _: outcome.append(str(error or "acknowledged")),
        )
        self.producer.poll(0)
        return outcome

    def sent(self, topic: str, value: bytes = b"value", partition: int = 0) -> str:
        """The outcome of one record."""
        outcome = self.send(topic, value, partition)
        self.producer.flush(120)
        return outcome[0]


def led_by_another(c: Cluster, topic: str) -> tuple[int, int, int]:
    """A new partition, its leader, and a follower. Neither is the controller, which changes their ISR."""
    c.create_topic(topic, partitions=3)
    controller = c.controller_id()
    for partition in range(3):
        leader = c.leader(topic, partition)
        if leader not in (controller, None):
            return partition, leader, next(other for other in c.broker_ids if other not in (leader, controller))
    raise AssertionError("the controller leads all partitions")


@pytest.mark.parametrize("way", ["both ways", "fetches", "answers"])
def test_a_follower_that_is_cut_off_from_its_leader_leaves_the_isr_and_returns(c: Cluster, way: str) -> None:
    topic = f"followers-{way.replace(' ', '-')}"
    partition, leader, follower = led_by_another(c, topic)
    one, other = (leader, follower) if way == "answers" else (follower, leader)
    cut = c.network.cut(one, other, one_way=way != "both ways")
    assert Client(c).sent(topic, partition=partition) == "acknowledged"
    assert follower not in c.isr(topic, partition)
    assert cut.hits >= 1
    cut.remove()
    c.until(lambda: follower in c.isr(topic, partition))


def test_a_leader_without_zookeeper_loses_its_session_and_its_leadership_and_returns(c: Cluster) -> None:
    partition, former, _ = led_by_another(c, "leaders")
    # Without the second cut it would serve clients on and tell them that it leads: it hears of nothing.
    c.network.cut(former, {"zookeeper", "clients"})
    c.until(lambda: c.leader("leaders", partition) not in (former, None))
    others = ",".join(broker.address for broker in c.brokers if broker.id != former)
    assert Client(c, **{"bootstrap.servers": others}).sent("leaders", partition=partition) == "acknowledged"
    c.network.heal()
    c.until(lambda: former in c.isr("leaders", partition))


def test_a_controller_that_is_alone_is_replaced_and_obeys_the_next_one(c: Cluster) -> None:
    c.create_topic("controlled", partitions=3)
    controller = c.controller_id()
    assert controller is not None
    rest = [broker for broker in c.broker_ids if broker != controller]
    c.network.partition({controller}, {*rest, "zookeeper"})
    c.until(lambda: c.controller_id() in rest)
    c.until(lambda: not any(controller in c.isr("controlled", partition) for partition in range(3)))
    c.network.heal()
    c.until(lambda: all(controller in c.isr("controlled", partition) for partition in range(3)))


def test_refused_connections_fail_at_once_instead_of_hanging(c: Cluster) -> None:
    _, leader, follower = led_by_another(c, "refused")
    refusing = c.network.cut(follower, leader, refuse=True)
    c.network.reset(follower, leader)
    refusing.wait(120, hits=10)
    refusing.remove()
    c.until(lambda: c.network.reset(follower, leader))
    hanging = c.network.cut(follower, leader)
    hanging.wait(120)
    assert hanging.hits <= 2


def test_a_cut_holds_in_a_broker_that_starts_later(c: Cluster) -> None:
    partition, leader, follower = led_by_another(c, "restarted")
    cut = c.network.cut(leader, follower)
    c.kill(follower)
    c.until(lambda: follower not in c.isr("restarted", partition))
    c.start(follower)
    cut.wait()
    assert Client(c).sent("restarted", partition=partition) == "acknowledged"
    assert follower not in c.isr("restarted", partition)
    c.network.heal()
    c.until(lambda: follower in c.isr("restarted", partition))


def test_one_client_is_cut_off_by_its_id_and_the_others_are_served(c: Cluster) -> None:
    c.create_topic("clients")
    cut_off, other = Client(c, "cut-off"), Client(c, "other")
    assert cut_off.sent("clients") == "acknowledged"
    cut = c.network.cut("clients", "brokers", client_id="cut-off")
    outcome = cut_off.send("clients")
    cut.wait()
    assert other.sent("clients") == "acknowledged"
    assert outcome == []
    c.network.heal()
    cut_off.producer.flush(120)
    assert outcome == ["acknowledged"]


def test_all_clients_are_cut_off_but_not_the_cluster_itself(c: Cluster) -> None:
    cut = c.network.cut("clients", "brokers")
    with pytest.raises(Exception, match="Local: "):
        Client(c, "late").producer.list_topics(timeout=0.5)
    assert cut.hits >= 1
    c.create_topic("created-meanwhile")
    c.until(lambda: len(c.isr("created-meanwhile")) == 3)


def test_a_half_open_connection_is_left_by_a_client_that_waits_for_an_answer_in_vain(c: Cluster) -> None:
    c.create_topic("half-open")
    client = Client(c, "believer", **{"socket.timeout.ms": 1000})
    assert client.sent("half-open") == "acknowledged"
    half_open = c.network.half_open(client_id="believer")
    assert half_open.hits >= 1
    started_s = time.monotonic()
    assert client.sent("half-open") == "acknowledged"
    assert time.monotonic() - started_s >= 0.9


def test_a_client_that_has_lost_its_connection_is_served_on_another_one(c: Cluster) -> None:
    c.create_topic("other-half")
    client = Client(c, "loser")
    assert client.sent("other-half") == "acknowledged"
    assert c.network.half_open("clients", "brokers", client_id="loser").hits >= 1
    assert client.sent("other-half") == "acknowledged"


def test_a_reset_connection_is_opened_again(c: Cluster) -> None:
    c.create_topic("reset")
    client = Client(c, "victim")
    assert client.sent("reset") == "acknowledged"
    reset = c.network.reset("clients", "brokers", client_id="victim")
    assert reset.hits >= 1
    assert client.sent("reset") == "acknowledged"
    with pytest.raises(ClusterError, match="no connection of client 'stranger' is open between clients and broker 0"):
        c.network.reset("clients", 0, client_id="stranger")
    assert c.faults.active == []


@pytest.mark.parametrize("method", ["reset", "half_open"])
def test_a_paused_broker_loses_its_connections_when_it_is_resumed(c: Cluster, method: str) -> None:
    c.create_topic(f"paused-{method}", replication_factor=1)
    leader = c.leader(f"paused-{method}")
    assert leader is not None
    client = Client(c, "patient", **{"socket.timeout.ms": 1000})
    assert client.sent(f"paused-{method}") == "acknowledged"
    c.pause(leader)
    fault = getattr(c.network, method)(leader, "clients", client_id="patient")
    assert fault.hits == 0
    c.resume(leader)
    assert fault.hits >= 1
    assert client.sent(f"paused-{method}") == "acknowledged"


def test_answers_are_late_by_the_delays_of_both_ways(c: Cluster) -> None:
    c.create_topic("late")
    client = Client(c, "far-away")
    assert client.sent("late") == "acknowledged"
    delay = c.network.delay("clients", "brokers", ms=150, jitter_ms=50, seed=7, client_id="far-away")
    started_s = time.monotonic()
    assert client.sent("late") == "acknowledged"
    assert time.monotonic() - started_s >= 0.2
    assert delay.hits >= 1


def test_a_slow_connection_takes_its_time_for_many_bytes(c: Cluster) -> None:
    c.create_topic("slow")
    client = Client(c, "narrow")
    assert client.sent("slow") == "acknowledged"
    c.network.rate("clients", "brokers", bytes_per_s=100_000, one_way=True, client_id="narrow")
    started_s = time.monotonic()
    assert client.sent("slow", bytes(60_000)) == "acknowledged"
    assert time.monotonic() - started_s >= 0.5


def test_a_broker_that_is_not_there_is_named(c: Cluster) -> None:
    with pytest.raises(ValueError, match="broker 7 is not in this cluster; allowed: 0, 1, 2"):
        c.network.cut(7, "zookeeper")
    with pytest.raises(ValueError, match="are not the two ends of a connection"):
        c.network.cut("clients", "zookeeper")


async def test_an_async_cluster_has_the_same_network(c: Cluster) -> None:
    same = AsyncCluster(c)
    for fault in (
        await same.network.partition({0, 1}, 2),
        await same.network.cut("clients", 0, refuse=True),
        await same.network.delay("clients", 0, ms=1),
        await same.network.rate("clients", 0, bytes_per_s=1),
    ):
        assert await fault.hits >= 0
    for of_no_connection in (same.network.reset, same.network.half_open):
        with pytest.raises(ClusterError):
            await of_no_connection("clients", "brokers", client_id="stranger")
    await same.network.heal()
    assert same.faults.active == []


def test_a_zookeeper_that_is_not_the_clusters_own_is_cut_off_too(c: Cluster, klamm_helper: Helper) -> None:
    zookeeper = f"{c.zookeeper}/elsewhere"
    with Cluster(1, helper=klamm_helper, zookeeper=zookeeper, zookeeper_session_timeout_ms=1500) as other:
        other.network.cut(0, "zookeeper").wait()
        other.network.heal()
        other.create_topic("later")
