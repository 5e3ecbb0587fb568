"""The cluster that the recipes share, and the client that they try."""

import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from klamm.testing import Cluster, Helper
from support import recipe_clients
from support.go_programs import built
from support.oracles import SMALL_HEAP
from support.recipe_clients.contract import Client
from support.recipe_clients.driver import Client as DrivenClient
from support.recipe_clients.driver import Driver

DRIVERS = Path(recipe_clients.__file__).parent

PROPERTIES = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "group.min.session.timeout.ms": 500,
    "replica.lag.time.max.ms": 1_500,
}

CLIENTS = ("librdkafka", "aiokafka", "java", "franz-go")
# `make test` plays the recipes with this one; `make interop` plays them with all.
SHORT = "librdkafka"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "client_name" in metafunc.fixturenames:
        marks: dict[str, Any] = {SHORT: (), "java": (pytest.mark.java, pytest.mark.long)}
        if own := metafunc.config.getoption("--recipe-client"):
            metafunc.parametrize("client_name", [own], scope="session")
            return
        names = [pytest.param(name, marks=marks.get(name, pytest.mark.long)) for name in CLIENTS]
        metafunc.parametrize("client_name", names, scope="session")


@pytest.fixture(scope="package")
def shared_cluster(klamm_helper: Helper) -> Iterator[Cluster]:
    with Cluster(brokers=3, properties=PROPERTIES, zookeeper_session_timeout_ms=2_000, helper=klamm_helper) as cluster:
        yield cluster


@pytest.fixture
def c(shared_cluster: Cluster) -> Iterator[Cluster]:
    """Three brokers, without a fault when the recipe begins."""
    yield shared_cluster
    shared_cluster.heal()


@pytest.fixture
def topic(c: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic with one partition and three replicas, two of which must have a record that is acknowledged."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_")).strip("-")
    c.create_topic(name, configs={"min.insync.replicas": 2})
    return name


@pytest.fixture(scope="session")
def connect(
    client_name: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Client]]:
    """Makes a client for the brokers of these addresses."""
    command: list[str | Path]
    match client_name:
        case "java":
            jars = request.getfixturevalue("kafka_clients4_jars")
            command = ["java", *SMALL_HEAP, "-cp", f"{jars}/*", DRIVERS / "RecipeClient.java"]
        case "franz-go":
            request.getfixturevalue("go")
            command = [built(DRIVERS / "franz", "franz-recipes")]
        case "librdkafka" | "aiokafka":
            yield import_module(f"support.recipe_clients.{client_name}").Client
            return
        case _:
            module, _, name = client_name.partition(":")
            yield getattr(import_module(module), name)
            return
    driver = Driver(client_name, command, tmp_path_factory.mktemp(client_name))
    try:
        yield lambda bootstrap: DrivenClient(bootstrap, driver)
    finally:
        driver.kill()


@pytest.fixture
def client(c: Cluster, connect: Callable[[str], Client]) -> Iterator[Client]:
    """The client under test."""
    client = connect(c.bootstrap)
    yield client
    client.close()
