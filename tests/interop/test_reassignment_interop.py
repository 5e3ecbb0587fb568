"""Kafka's own kafka-reassign-partitions moves partitions of a klamm cluster: by the protocol and by ZooKeeper, between
brokers and between the log directories of a broker."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from klamm.processes.helper import Helper
from klamm.testing import Cluster
from support.clusters import KlammBroker, KlammZooKeeper
from support.oracles import JavaTools

TOOL = "kafka.admin.ReassignPartitionsCommand"
TOPIC = "moved"


@pytest.fixture
def cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    # A broker that was killed counts as alive for as long.
    with Cluster(brokers=4, zookeeper_session_timeout_ms=60_000, helper=klamm_helper) as running:
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


def test_execute_verify_list_and_cancel(cluster: Cluster, kafka_tools: JavaTools, tmp_path: Path) -> None:
    def tool(*arguments: str | Path) -> str:
        address = next(each.address for each in cluster.brokers if each.running)
        return kafka_tools.run(TOOL, "--bootstrap-server", address, *arguments).decode()

    def completes(wanted: Path, *numbers: int) -> bool:
        verified = tool("--verify", "--reassignment-json-file", wanted)
        return all(f"Reassignment of partition {TOPIC}-{number} is complete." in verified for number in numbers)

    first = plan(tmp_path, p0=[0, 1], p1=[1, 2])
    assert "Successfully started partition reassignments" in tool("--execute", "--reassignment-json-file", first)
    cluster.until(lambda: has(cluster, 0, [0, 1]) and has(cluster, 1, [1, 2]))
    # The broker that the tool asks may still know the old replicas when ZooKeeper has the new ones.
    cluster.until(lambda: completes(first, 0, 1))
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


def test_execute_and_verify_through_zookeeper(cluster: Cluster, kafka_tools: JavaTools, tmp_path: Path) -> None:
    def tool(*arguments: str | Path) -> str:
        return kafka_tools.run(TOOL, "--zookeeper", cluster.zookeeper, *arguments).decode()

    def completes(wanted: Path, count: int) -> bool:
        return tool("--verify", "--reassignment-json-file", wanted).count("is complete.") == count

    for targets in ({"p0": [2, 3], "p1": [3, 0]}, {"p0": [0, 1]}):
        wanted = plan(tmp_path, **targets)
        assert "Successfully started partition reassignment" in tool("--execute", "--reassignment-json-file", wanted)
        for name, target in targets.items():
            cluster.until(partial(has, cluster, int(name[1:]), target))
        # The controller takes a finished move out of /admin/reassign_partitions after the topic has its new replicas.
        cluster.until(partial(completes, wanted, len(targets)))


@pytest.fixture
def two_brokers(tmp_path: Path) -> Iterator[list[KlammBroker]]:
    """Two brokers, each with the log directories `one` and `two`."""
    zookeeper = KlammZooKeeper(tmp_path / "zookeeper")
    brokers = [
        KlammBroker(
            tmp_path / f"broker-{id_}",
            zookeeper.connect,
            broker_id=id_,
            properties={"log.dirs": f"{tmp_path}/broker-{id_}/one,{tmp_path}/broker-{id_}/two"},
        )
        for id_ in (0, 1)
    ]
    try:
        zookeeper.start()
        for broker in brokers:
            broker.start()
        yield brokers
    finally:
        for broker in brokers:
            broker.kill()
        zookeeper.kill()


@pytest.mark.long
def test_log_directories(two_brokers: list[KlammBroker], kafka_tools: JavaTools, tmp_path: Path) -> None:
    bootstrap = two_brokers[0].bootstrap

    def tool(*arguments: str | Path) -> str:
        return kafka_tools.run(TOOL, "--bootstrap-server", bootstrap, *arguments).decode()

    def move(replicas: list[int], *directories: str) -> Path:
        """The tool's file; a directory is `one`, `two` or `any`."""
        paths = [
            name if name == "any" else f"{tmp_path}/broker-{id_}/{name}"
            for id_, name in zip(replicas, directories, strict=True)
        ]
        file = tmp_path / "plan.json"
        one = {"topic": TOPIC, "partition": 0, "replicas": replicas, "log_dirs": paths}
        file.write_text(json.dumps({"version": 1, "partitions": [one]}))
        return file

    def held(id_: int) -> list[str]:
        return [name for name in ("one", "two") if (tmp_path / f"broker-{id_}" / name / f"{TOPIC}-0").exists()]

    def complete(file: Path) -> str:
        while "in progress" in (verified := tool("--verify", "--reassignment-json-file", file)):
            pass
        return verified

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, num_partitions=1, replica_assignment=[[0]])])[TOPIC].result(120)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(5_000):
        producer.produce(TOPIC, b"%d" % number + bytes(200))
    assert producer.flush(120) == 0

    # Within the broker, to the directory where the replica is not.
    other = "two" if held(0) == ["one"] else "one"
    within = move([0], other)
    assert f"Successfully started log directory move for: {TOPIC}-0-0" in tool(
        "--execute", "--reassignment-json-file", within
    )
    assert f"Reassignment of replica {TOPIC}-0-0 completed successfully." in complete(within)
    assert held(0) == [other]

    # To another broker, which gets the replica in the directory that the plan names.
    for target in ("two", "one"):
        onto = move([0, 1], "any", target)
        tool("--execute", "--reassignment-json-file", onto)
        verified = complete(onto)
        assert f"Reassignment of replica {TOPIC}-0-1 completed successfully." in verified
        assert held(1) == [target]

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    values = [message.value().rstrip(b"\0") for message in consumer.consume(5_000, 30)]
    consumer.close()
    assert values == [b"%d" % number for number in range(5_000)]
