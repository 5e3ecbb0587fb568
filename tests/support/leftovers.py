"""Keeps what a test leaves behind out of the tests after it. A pytest plugin; tests/conftest.py loads it.

A client of librdkafka prints to this process's standard error, from threads of its own, as long as it lives: about
brokers that an earlier test has stopped, in the middle of a test that looks at what is printed. Its threads end when
the last reference to it goes.

What must stay true: a client outlives its file only as `lasting`, in a fixture of the session, and says nothing.
"""

import gc
import logging
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

import pytest

Client = TypeVar("Client")

# Every client of librdkafka has one thread of this name.
_MAIN_THREAD = "rdk:main"
# The addresses that the clients of fixtures of the session know.
_lasting: list[str] = []


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Generator[pytest.LogCaptureFixture]:
    """Lines of klamm's loggers only: clients of other files log from threads of theirs."""
    only = logging.Filter("klamm")
    caplog.handler.addFilter(only)
    yield caplog
    caplog.handler.removeFilter(only)


def lasting(make: Callable[[dict[str, Any]], Client], config: dict[str, Any]) -> Client:
    """A client of librdkafka for a fixture of the session, whose brokers live as long."""
    client = make({**config, "log_level": 0})
    _lasting.append(config["bootstrap.servers"])
    return client


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    # What failed keeps its variables.
    if (nextitem is not None and nextitem.path == item.path) or item.session.testsfailed:
        return
    # What the test's fixtures have returned; pytest forgets it a moment later.
    getattr(item, "funcargs", {}).clear()
    if (left := _clients() - len(_lasting)) > 0:
        gc.collect()
        left = _clients() - len(_lasting)
    assert left <= 0, (
        f"{item.path.name} leaves {left} clients of librdkafka behind, which print to the standard error of later"
        " tests: end them with the fixture that makes them, or make them with support.leftovers.lasting"
    )


def _clients() -> int:
    return sum(_name(thread) == _MAIN_THREAD for thread in Path("/proc/self/task").glob("*/comm"))


def _name(thread: Path) -> str:
    try:
        return thread.read_text().strip()
    except OSError:  # it has ended meanwhile
        return ""
