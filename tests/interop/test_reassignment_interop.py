"""Kafka's own kafka-reassign-partitions moves partitions of a klamm cluster: by the protocol and by ZooKeeper."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.testing import Cluster
from support.oracles import java_tool

TOOL = "kafka.admin.ReassignPartitionsCommand"
TOPIC = "moved"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    # A broker that was killed counts as alive for as long.
    with Cluster(brokers=4, zookeeper_session_timeout_ms=60_000) as running:
        running.create_topic(TOPIC, 2, 2)
        yield running


def plan(directory: Path, **targets: list[int]) -> Path:
    """The tool's --reassignment-json-file; `p0=[1, 2]` is what partition 0 is to have."""
    partitions = [{"topic": TOPIC, "partition": int(name[1:]), "replicas": ids} for name, ids in targets.items()]
    file = directory / "plan.json"
    file.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return file


def has(cluster: Cluster, number: int, target: list[int]) -> bool:
    return cluster.replicas(TOPIC, number) == target and sorted(cluster.isr(TOPIC, number)) == sorted(target)


def test_execute_verify_list_and_cancel(cluster: Cluster, kafka_jars: Path, tmp_path: Path) -> None:
    def tool(*arguments: str | Path) -> str:
        address = next(each.address for each in cluster.brokers if each.running)
        return java_tool(kafka_jars, TOOL, "--bootstrap-server", address, *arguments).decode()

    first = plan(tmp_path, p0=[0, 1], p1=[1, 2])
    assert "Successfully started partition reassignments" in tool("--execute", "--reassignment-json-file", first)
    cluster.until(lambda: has(cluster, 0, [0, 1]) and has(cluster, 1, [1, 2]))
    verified = tool("--verify", "--reassignment-json-file", first)
    assert f"Reassignment of partition {TOPIC}-0 is complete." in verified
    assert f"Reassignment of partition {TOPIC}-1 is complete." in verified
    assert "No partition reassignments found." in tool("--list")

    dead = next(broker for broker in (3, 2) if broker != cluster.controller_id())
    cluster.kill(dead)
    second = plan(tmp_path, p0=[0, dead])
    tool("--execute", "--reassignment-json-file", second)
    verified = tool("--verify", "--reassignment-json-file", second, "--preserve-throttles")
    assert f"Reassignment of partition {TOPIC}-0 is still in progress." in verified
    assert f"{TOPIC}-0: replicas: 0,{dead},1. adding: {dead}. removing: 1." in tool("--list")
    assert "Successfully cancelled" in tool("--cancel", "--reassignment-json-file", second, "--preserve-throttles")
    assert "No partition reassignments found." in tool("--list")
    assert has(cluster, 0, [0, 1])


def test_execute_and_verify_through_zookeeper(cluster: Cluster, kafka_jars: Path, tmp_path: Path) -> None:
    def tool(*arguments: str | Path) -> str:
        return java_tool(kafka_jars, TOOL, "--zookeeper", cluster.zookeeper, *arguments).decode()

    for targets in ({"p0": [2, 3], "p1": [3, 0]}, {"p0": [0, 1]}):
        wanted = plan(tmp_path, **targets)
        assert "Successfully started partition reassignment" in tool("--execute", "--reassignment-json-file", wanted)
        cluster.until(
            lambda targets=targets: all(has(cluster, int(name[1:]), target) for name, target in targets.items())
        )
        verified = tool("--verify", "--reassignment-json-file", wanted)
        assert verified.count("is complete.") == len(targets), verified
