"""Two brokers and every client, for the tests of consumer groups; with --bootstrap=kafka the brokers are Kafka's."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from klamm.testing import Cluster
from support.group_clients.cluster import GroupCluster
from support.group_clients.hosts import World
from support.oracles import RealKafka, RealZooKeeper

PROPERTIES: dict[str, str | int] = {
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 2,
    # So that a test which waits for the end of a session is short.
    "group.min.session.timeout.ms": 500,
    "group.initial.rebalance.delay.ms": 0,
}


@pytest.fixture(scope="session")
def group_cluster(
    against_kafka: bool, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[GroupCluster]:
    with ExitStack() as stack:
        if against_kafka:
            jars: Path = request.getfixturevalue("kafka_jars")
            zookeeper = RealZooKeeper(jars, tmp_path_factory.mktemp("zookeeper"))
            stack.callback(zookeeper.kill)
            zookeeper.start()
            brokers = []
            for number in (0, 1):
                directory = tmp_path_factory.mktemp("kafka")
                kafka = RealKafka(jars, directory, zookeeper.connect, broker_id=number, properties=PROPERTIES)
                stack.callback(kafka.kill)
                kafka.start()
                brokers.append(kafka.bootstrap)
            bootstrap = ",".join(brokers)
        else:
            bootstrap = stack.enter_context(Cluster(brokers=2, properties=PROPERTIES)).bootstrap
        cluster = GroupCluster(bootstrap)
        stack.callback(cluster.close)
        yield cluster


@pytest.fixture(scope="session")
def all_members(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("members"), request.getfixturevalue)
    yield world
    world.close()


@pytest.fixture
def world(all_members: World) -> Iterator[World]:
    """The clients; a test's members end with the test."""
    yield all_members
    all_members.forget()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A group and its topics are named after the test."""
    return "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in request.node.name).strip("-")
