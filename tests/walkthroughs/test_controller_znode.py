"""The znode /controller, deleted and rewritten by hand while its owner lives."""

import json
from collections.abc import Callable, Iterator

import pytest
from kazoo.client import KazooClient

from klamm.testing import Cluster, Helper

TOPIC = "castle"
STATE = f"/brokers/topics/{TOPIC}/partitions/0/state"


@pytest.fixture
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    with Cluster(3, helper=klamm_helper) as started:
        started.create_topic(TOPIC, partitions=1, replication_factor=3)
        yield started


@pytest.fixture
def zookeeper(cluster: Cluster) -> Iterator[KazooClient]:
    client = KazooClient(cluster.zookeeper)
    client.start()
    yield client
    client.stop()
    client.close()


def epoch(zookeeper: KazooClient) -> int:
    return int(zookeeper.get("/controller_epoch")[0])


def controller(zookeeper: KazooClient) -> tuple[int, int] | None:
    """The broker that /controller names, and the session that owns the znode."""
    if zookeeper.exists("/controller") is None:
        return None
    content, stat = zookeeper.get("/controller")
    return json.loads(content)["brokerid"], stat.ephemeralOwner


def test_every_broker_elects_when_the_znode_is_deleted(cluster: Cluster, zookeeper: KazooClient) -> None:
    before = epoch(zookeeper)
    zookeeper.delete("/controller")
    cluster.until(lambda: cluster.controller_id() is not None and epoch(zookeeper) == before + 1)


def test_the_new_controller_heals_a_partition_without_a_leader(
    cluster: Cluster, zookeeper: KazooClient, klamm: Callable[..., str]
) -> None:
    state = json.loads(zookeeper.get(STATE)[0])
    preferred = cluster.replicas(TOPIC)[0]
    # No controller has elected this, and none looks at the znode while it leads.
    stuck = {**state, "leader": -1, "leader_epoch": state["leader_epoch"] + 1}
    zookeeper.set(STATE, json.dumps(stuck).encode())
    described = klamm("topics", "describe", "--unavailable-partitions", "--zookeeper", cluster.zookeeper)
    assert described.startswith(f"\tTopic: {TOPIC}\tPartition: 0\tLeader: none\t")
    zookeeper.delete("/controller")
    cluster.until(lambda: cluster.leader(TOPIC) == preferred)
    healed = json.loads(zookeeper.get(STATE)[0])
    assert healed["leader_epoch"] == stuck["leader_epoch"] + 1
    assert healed["controller_epoch"] == epoch(zookeeper)
    assert klamm("topics", "describe", "--unavailable-partitions", "--zookeeper", cluster.zookeeper) == ""


@pytest.mark.parametrize("content", [b'{"version":1,"brokerid":77,"timestamp":"1"}', b"mine"])
def test_the_owner_resigns_when_the_znode_is_rewritten(
    cluster: Cluster, zookeeper: KazooClient, content: bytes
) -> None:
    before = epoch(zookeeper)
    zookeeper.set("/controller", content)
    cluster.until(lambda: epoch(zookeeper) == before + 1 and zookeeper.get("/controller")[0] != content)
    found = controller(zookeeper)
    assert found is not None
    # The session that owns the znode is that of the broker that it names.
    assert zookeeper.exists(f"/brokers/ids/{found[0]}").ephemeralOwner == found[1]
    cluster.create_topic("later", partitions=3, replication_factor=3)
