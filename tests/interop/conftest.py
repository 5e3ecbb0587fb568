"""Fixtures that run Apache Kafka 2.8.2 and Apache ZooKeeper beside klamm.

Every test in this directory is marked `java`. Without Java it is skipped; where Java exists, a skip is a failure.
"""

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import oracles
import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.java)


@pytest.fixture(scope="session", autouse=True)
def java() -> None:
    """Skips the test where there is no Java runtime."""
    if not oracles.java_available():
        pytest.skip("no Java runtime on this machine")


@pytest.fixture(scope="session")
def kafka_jars(java: None) -> Path:
    """Directory with the jars of Apache Kafka 2.8.2, its tools and ZooKeeper 3.5.9."""
    return oracles.kafka_jars()


@pytest.fixture(scope="session")
def zookeeper39_jars(java: None) -> Path:
    """Directory with the jars of Apache ZooKeeper 3.9."""
    return oracles.zookeeper39_jars()


Server = oracles.RealZooKeeper | oracles.RealKafka


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and HERE in item.path.parents and oracles.java_available():
        report.outcome = "failed"
        report.longrepr = f"Java is installed, so this test may not be skipped: {report.longrepr}"
    return report
