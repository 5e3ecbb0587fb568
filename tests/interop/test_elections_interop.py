"""Kafka's own election tools, and its admin client's updateFeatures, with a klamm cluster."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from klamm.testing import Cluster, Helper
from support.oracles import JavaTools
from support.processes import ProcessFailed

TOPIC, PARTITIONS = "elected", 3


@pytest.fixture(scope="module")
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    """Three brokers that give no leadership back by themselves; each partition of TOPIC has all three."""
    with Cluster(3, helper=klamm_helper) as running:
        running.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        yield running


@pytest.fixture
def lost(cluster: Cluster) -> list[int]:
    """The partitions that a broker, stopped and started, no longer leads."""
    broker = cluster.replicas(TOPIC, 0)[0]
    cluster.stop(broker)
    cluster.start(broker)
    numbers = range(PARTITIONS)
    cluster.until(lambda: all(len(cluster.isr(TOPIC, number)) == 3 for number in numbers))
    lost = [number for number in numbers if cluster.leader(TOPIC, number) != cluster.replicas(TOPIC, number)[0]]
    assert lost
    return lost


def are_led_by_preferred(cluster: Cluster) -> bool:
    return all(cluster.leader(TOPIC, number) == cluster.replicas(TOPIC, number)[0] for number in range(PARTITIONS))


def partitions_file(directory: Path, *partitions: tuple[str, int]) -> Path:
    path = directory / "partitions.json"
    path.write_text(json.dumps({"partitions": [{"topic": topic, "partition": number} for topic, number in partitions]}))
    return path


Tool = Callable[..., str]


@pytest.fixture
def tool(kafka_tools: JavaTools, cluster: Cluster) -> Tool:
    """Runs `kafka.admin.NAME` with the cluster's address."""

    def run(name: str, *arguments: str | Path) -> str:
        return kafka_tools.run(f"kafka.admin.{name}", *arguments).decode()

    return run


def test_kafka_leader_election_elects_preferred_leaders(cluster: Cluster, lost: list[int], tool: Tool) -> None:
    preferred = ("LeaderElectionCommand", "--bootstrap-server", cluster.bootstrap, "--election-type", "preferred")
    first, *others = lost
    output = tool(*preferred, "--topic", TOPIC, "--partition", str(first))
    assert f"Successfully completed leader election (PREFERRED) for partitions {TOPIC}-{first}" in output
    output = tool(*preferred, "--all-topic-partitions")
    for number in others:
        assert f"{TOPIC}-{number}" in output
    assert are_led_by_preferred(cluster)
    # Kafka's tool means to list the partitions that needed none.
    assert "Valid replica already elected" in tool(*preferred, "--topic", TOPIC, "--partition", str(first))


def test_kafka_leader_election_tells_what_cannot_be_elected(cluster: Cluster, tool: Tool, tmp_path: Path) -> None:
    bootstrap = ("LeaderElectionCommand", "--bootstrap-server", cluster.bootstrap)
    file = partitions_file(tmp_path, ("unknown", 0), (TOPIC, 99))
    with pytest.raises(ProcessFailed) as failed:
        tool(*bootstrap, "--election-type", "preferred", "--path-to-json-file", file)
    assert str(failed.value).count("UnknownTopicOrPartitionException") >= 2
    output = tool(*bootstrap, "--election-type", "unclean", "--topic", TOPIC, "--partition", "0")
    assert "Valid replica already elected" in output


def test_kafka_leader_election_elects_an_unclean_leader(cluster: Cluster, tool: Tool) -> None:
    cluster.create_topic("unclean", replication_factor=2)
    last, other = cluster.replicas("unclean")
    cluster.stop(other)
    cluster.until(lambda: cluster.isr("unclean") == [last])
    cluster.stop(last)
    cluster.start(other)
    cluster.until(lambda: cluster.leader("unclean") is None)
    unclean = ("--election-type", "unclean", "--topic", "unclean", "--partition", "0")
    tool("LeaderElectionCommand", "--bootstrap-server", cluster.bootstrap, *unclean)
    assert (cluster.leader("unclean"), cluster.isr("unclean")) == (other, [other])
    cluster.start(last)


@pytest.mark.parametrize("way", [pytest.param("--bootstrap-server", marks=pytest.mark.long), "--zookeeper"])
def test_kafka_preferred_replica_election(
    cluster: Cluster, lost: list[int], tool: Tool, tmp_path: Path, way: str
) -> None:
    address = cluster.bootstrap if way == "--bootstrap-server" else cluster.zookeeper
    file = partitions_file(tmp_path, *[(TOPIC, number) for number in lost])
    output = tool("PreferredReplicaLeaderElectionCommand", way, address, "--path-to-json-file", file)
    for number in lost:
        assert f"{TOPIC}-{number}" in output
    cluster.until(lambda: are_led_by_preferred(cluster))


def test_kafka_features_are_described(cluster: Cluster, tool: Tool) -> None:
    """There are none; what matters is that Kafka's client understands the answers."""
    bootstrap = ("FeatureCommand", "--bootstrap-server", cluster.bootstrap)
    assert tool(*bootstrap, "--describe").strip() == ""
    assert tool(*bootstrap, "--upgrade-all").strip() == ""
