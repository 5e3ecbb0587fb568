"""How `pytest -n` shares the tests out among its workers. A pytest plugin; tests/conftest.py loads it.

The files whose tests share a JVM stay on one worker, so that it starts once: Spark's session, the brokers of Apache
Kafka and the ZooKeeper of tests/interop. The fixtures that a file names say whether it is one of these. Elsewhere the
tests of a file stay together. These units begin first, and beside them what mostly waits; then what takes long, so that
no worker is left alone with it at the end.
"""

import re
from functools import cache
from typing import Any

import pytest

from support.paths import ROOT

# By room: the fixtures that give its tests a JVM of the session.
JVMS = {
    "tests/spark": ("spark", "spark_connect"),
    "tests/interop": ("real_zookeeper", "real_zookeeper39", "real_kafka", "real_kraft", "kafka", "klamm"),
}
# The rooms and files whose tests begin next, in this order.
FIRST = (
    "tests/clients",
    "tests/recipes",
    "tests/faults",
    "tests/walkthroughs",
    "tests/spark",
    "tests/interop",
    "tests/simulation",
    "tests/cli",
    "tests/cockpit",
    "tests/testing",
)


def unit_of(nodeid: str) -> str:
    """The tests of a unit run on one worker, one after another: a file, or a room for the files that share its JVM."""
    return _unit_of_file(nodeid.split("::", 1)[0])


@cache
def _unit_of_file(path: str) -> str:
    # xdist asks in a process that collects no tests, so the text must tell.
    room = next((room for room in JVMS if path.startswith(f"{room}/")), None)
    if room is None:
        return path
    fixture = rf'[( "](?:{"|".join(JVMS[room])})[:,)"]'
    return room if re.search(fixture, (ROOT / path).read_text(encoding="utf-8")) else path


def turn_of(nodeid: str) -> int:
    """Where a test stands in the order; those of one turn stay in the order in which they were found."""
    path = nodeid.split("::", 1)[0]
    turns = (turn for turn, place in enumerate(FIRST) if path == place or path.startswith(f"{place}/"))
    return next(turns, len(FIRST))


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class RoomScheduling(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    if config.getvalue("dist") != "loadfile":
        return None
    # xdist would begin with the files that have most tests, which says nothing about their time.
    config.option.loadscopereorder = False
    return RoomScheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: (unit_of(item.nodeid) not in JVMS, turn_of(item.nodeid)))
