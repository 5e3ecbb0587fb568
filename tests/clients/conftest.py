"""A running broker for the tests of clients: klamm's own, or with --bootstrap any other, to test these tests."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support.clusters import KlammCluster
from support.leftovers import lasting
from support.oracles import RealKafka, RealZooKeeper

HERE = "tests/clients/"


# What `make test` plays of the matrices of clients and compressions; `make interop` plays all of them.
SHORT = {
    "client": ("librdkafka", "klamm", "java-2.8"),
    "compression": ("none", "zstd"),
    "assignor": ("range", "cooperative-sticky"),
}


@pytest.hookimpl(tryfirst=True)  # before those marked as long are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(HERE) and isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            given = item.callspec.params
            if any(given.get(name, short[0]) not in short for name, short in SHORT.items()):
                item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session")
def against_kafka(pytestconfig: pytest.Config) -> bool:
    """Whether Apache Kafka stands in for klamm."""
    return bool(pytestconfig.getoption("--bootstrap") == "kafka")


@pytest.fixture(scope="session")
def bootstrap(
    pytestconfig: pytest.Config,
    against_kafka: bool,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[str]:
    """The bootstrap address of one broker that all tests of a worker share."""
    if against_kafka:
        jars: Path = request.getfixturevalue("kafka_jars")
        zookeeper = RealZooKeeper(jars, tmp_path_factory.mktemp("zookeeper"))
        kafka = RealKafka(jars, tmp_path_factory.mktemp("kafka"), zookeeper.connect)
        try:
            zookeeper.start()
            kafka.start()
            yield kafka.bootstrap
        finally:
            kafka.kill()
            zookeeper.kill()
    elif given := pytestconfig.getoption("--bootstrap"):
        yield given
    else:
        cluster = KlammCluster(tmp_path_factory.mktemp("klamm"))
        try:
            cluster.start()
            yield cluster.bootstrap
            assert cluster.stop() == 0, cluster.process.tail() if cluster.process else ""
        finally:
            cluster.kill()


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> AdminClient:
    """librdkafka's admin client."""
    return lasting(AdminClient, {"bootstrap.servers": bootstrap})


@pytest.fixture
def make_topic(admin: AdminClient, request: pytest.FixtureRequest) -> Callable[..., str]:
    """`make_topic(partitions=1, **configs)` creates a topic named after the test; returns its name."""
    made = 0

    def make(partitions: int = 1, **configs: str) -> str:
        nonlocal made
        made += 1
        name = re.sub(r"[^a-zA-Z0-9._-]+", "-", f"{request.node.name}-{made}")
        config = {key.replace("_", "."): value for key, value in configs.items()}
        admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(120)
        return name

    return make


@pytest.fixture
def topic(make_topic: Callable[..., str]) -> str:
    """A new topic with one partition."""
    return make_topic()
