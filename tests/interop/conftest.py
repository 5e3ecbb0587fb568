"""Fixtures that run Apache Kafka 2.8.2 and Apache ZooKeeper beside klamm.

Every test in this directory is marked `java`; tests/conftest.py says what that means and has the jars' fixtures.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from klamm.processes.helper import Helper
from klamm.testing import Cluster
from support import oracles
from support.clusters import KlammBroker
from support.requests_beside.play import PROPERTIES

HERE = "tests/interop/"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(HERE):
            item.add_marker(pytest.mark.java)


@pytest.fixture(scope="session", autouse=True)
def needs_java(java: None) -> None:
    """Every test here needs it, with or without a fixture of its own."""


Server = oracles.RealZooKeeper | oracles.RealEnsemble | oracles.RealKafka | oracles.RealKraft


@pytest.fixture
def running() -> Iterator[Callable[[Any], Any]]:
    """Registers a server so that it is killed when the test ends: `zookeeper = running(RealZooKeeper(...))`."""
    servers: list[Server] = []

    def register(server: Server) -> Server:
        servers.append(server)
        return server

    yield register
    for server in reversed(servers):
        server.kill()


@pytest.fixture(scope="session")
def kafka_tools(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[oracles.JavaTools]:
    """The tools of Apache Kafka 2.8.2."""
    with closing(oracles.JavaTools(kafka_jars, tmp_path_factory.mktemp("tools"))) as tools:
        yield tools


@pytest.fixture(scope="session")
def kafka4_tools(kafka4_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[oracles.JavaTools]:
    """The tools of Apache Kafka 4.3."""
    with closing(oracles.JavaTools(kafka4_jars, tmp_path_factory.mktemp("tools-4.3"))) as tools:
        yield tools


@pytest.fixture(scope="session")
def real_zookeeper(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[oracles.RealZooKeeper]:
    """A running ZooKeeper 3.5.9 that the tests of a session share: use a chroot of your own."""
    server = oracles.RealZooKeeper(kafka_jars, tmp_path_factory.mktemp("zookeeper-3.5.9"))
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def real_zookeeper39(
    zookeeper39_jars: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[oracles.RealZooKeeper]:
    """A running ZooKeeper 3.9 that the tests of a session share: use a chroot of your own."""
    server = oracles.RealZooKeeper(zookeeper39_jars, tmp_path_factory.mktemp("zookeeper-3.9"))
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture
def kafka(
    request: pytest.FixtureRequest,
    kafka_jars: Path,
    real_zookeeper: oracles.RealZooKeeper,
    running: Callable[[Any], Any],
    tmp_path: Path,
) -> oracles.RealKafka:
    """A broker of Apache Kafka 2.8.2 of the test's own, with the PROPERTIES of its module, in a chroot `...-kafka`."""
    connect = f"{real_zookeeper.connect}/{tmp_path.name}-kafka"
    properties = request.module.PROPERTIES
    broker: oracles.RealKafka = running(
        oracles.RealKafka(kafka_jars, tmp_path / "kafka", connect, properties=properties)
    )
    broker.start()
    return broker


@pytest.fixture
def klamm(
    request: pytest.FixtureRequest,
    real_zookeeper: oracles.RealZooKeeper,
    running: Callable[[Any], Any],
    tmp_path: Path,
) -> KlammBroker:
    """A broker of klamm, set up as the one of `kafka`, in a chroot `...-klamm`."""
    connect = f"{real_zookeeper.connect}/{tmp_path.name}-klamm"
    broker: KlammBroker = running(KlammBroker(tmp_path / "klamm", connect, properties=request.module.PROPERTIES))
    broker.start()
    return broker


@pytest.fixture(scope="session")
def klamm_cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    """A running broker of klamm that the tests of a session share: use topics of your own."""
    with Cluster(brokers=1, helper=klamm_helper) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def real_kafka(
    kafka_jars: Path, real_zookeeper: oracles.RealZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[oracles.RealKafka]:
    """A running Apache Kafka 2.8.2 broker that the tests of a session share: use topics of your own."""
    server = oracles.RealKafka(kafka_jars, tmp_path_factory.mktemp("kafka"), f"{real_zookeeper.connect}/real-kafka")
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def coordinating_kafka(
    kafka_jars: Path, real_zookeeper: oracles.RealZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[oracles.RealKafka]:
    """A running Apache Kafka 2.8.2 broker with one partition of each internal topic, that the tests of a session share:
    use names of your own."""
    connect, directory = f"{real_zookeeper.connect}/coordinating-kafka", tmp_path_factory.mktemp("coordinating-kafka")
    server = oracles.RealKafka(kafka_jars, directory, connect, properties=PROPERTIES)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def real_kraft(kafka4_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[oracles.RealKraft]:
    """Three running brokers of Apache Kafka 4.3 in KRaft mode that the tests of a session share: use topics of your
    own."""
    cluster = oracles.RealKraft(kafka4_jars, tmp_path_factory.mktemp("kraft"), size=3)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
