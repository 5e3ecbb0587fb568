"""A pytest plugin with the fixtures of the recipes: `c`, `client` and `topic`.

It is not loaded by itself, since a project may have fixtures of these names.
"""

import re
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from klamm.testing.recipes.contract import Client

if TYPE_CHECKING:
    from klamm.testing.cluster import Cluster
    from klamm.testing.helper import Helper

CLIENTS = ("librdkafka", "aiokafka")
# One partition for each internal topic, so that a recipe can name the broker that leads all of it.
PROPERTIES = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "group.min.session.timeout.ms": 500,
    "replica.lag.time.max.ms": 1_500,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--recipe-client",
        metavar="CLIENT",
        help="the client under test in recipes: librdkafka, aiokafka, or MODULE:CLASS, a class derived from"
        " klamm.testing.recipes.Client",
    )


def client_class(name: str) -> Callable[[str], Client]:
    """The class of a client, by its name or as MODULE:CLASS; it is called with the brokers' addresses.

    Raises pytest.UsageError when there is no such class.
    """
    module, _, attribute = name.partition(":")
    if name in CLIENTS:
        module, attribute = f"klamm.testing.recipes.{name}", "Client"
    try:
        found: Any = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        allowed = f"allowed: {', '.join(CLIENTS)}, or MODULE:CLASS"
        raise pytest.UsageError(f"--recipe-client {name}: {error}; {allowed}") from None
    return found  # type: ignore[no-any-return]


@pytest.fixture(scope="package")
def shared_cluster(klamm_helper: "Helper") -> "Iterator[Cluster]":
    """Three brokers, which all recipes of a folder share."""
    from klamm.testing.cluster import Cluster

    with Cluster(brokers=3, properties=PROPERTIES, zookeeper_session_timeout_ms=2_000, helper=klamm_helper) as cluster:
        yield cluster


@pytest.fixture
def c(shared_cluster: "Cluster") -> "Iterator[Cluster]":
    """The shared cluster, without a fault when the recipe begins."""
    yield shared_cluster
    shared_cluster.heal()


@pytest.fixture
def topic(c: "Cluster", request: pytest.FixtureRequest) -> str:
    """A topic with one partition and three replicas, two of which must have a record that is acknowledged."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower()).strip("-")
    c.create_topic(name, configs={"min.insync.replicas": 2})
    return name


@pytest.fixture(scope="session")
def connect(pytestconfig: pytest.Config) -> Callable[[str], Client]:
    """Makes a client for the brokers of these addresses."""
    return client_class(pytestconfig.getoption("--recipe-client") or CLIENTS[0])


@pytest.fixture
def client(c: "Cluster", connect: Callable[[str], Client]) -> Iterator[Client]:
    """The client under test."""
    client = connect(c.bootstrap)
    yield client
    client.close()
