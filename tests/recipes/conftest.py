"""The clients with which the recipes are played; the other fixtures come from klamm.testing.recipes.plugin."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from klamm.testing.recipes import Client
from klamm.testing.recipes.plugin import CLIENTS, client_class
from support import recipe_clients
from support.go_programs import built
from support.oracles import SMALL_HEAP
from support.recipe_clients.driver import Client as DrivenClient
from support.recipe_clients.driver import Driver

DRIVERS = Path(recipe_clients.__file__).parent

# `make test` plays the recipes with this one; `make interop` plays them with all.
SHORT = "librdkafka"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "client_name" in metafunc.fixturenames:
        marks: dict[str, Any] = {SHORT: (), "java": (pytest.mark.java, pytest.mark.long)}
        if own := metafunc.config.getoption("--recipe-client"):
            metafunc.parametrize("client_name", [own], scope="session")
            return
        names = [pytest.param(name, marks=marks.get(name, pytest.mark.long)) for name in (*CLIENTS, "java", "franz-go")]
        metafunc.parametrize("client_name", names, scope="session")


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
        case _:
            yield client_class(client_name)
            return
    driver = Driver(client_name, command, tmp_path_factory.mktemp(client_name))
    try:
        yield lambda bootstrap: DrivenClient(bootstrap, driver)
    finally:
        driver.kill()
