"""How `pytest -n` shares the tests out among its workers. A pytest plugin; tests/conftest.py loads it.

The tests of a room that starts JVMs stay on one worker, so that they are started once: Spark's session, brokers of
Apache Kafka, ZooKeeper. Elsewhere the tests of a file stay together. What takes long begins first, so that no worker is
left alone with it at the end; tests that mostly wait run beside Spark, which can use every core.
"""

from typing import Any

import pytest

# The rooms whose tests run on one worker.
WHOLE = ("tests/spark", "tests/interop")
# The rooms and files that begin first, in this order.
FIRST = (
    "tests/spark",
    "tests/clients",
    "tests/recipes",
    "tests/faults",
    "tests/interop",
    "tests/walkthroughs",
    "tests/coordinator/groups/test_group_histories.py",
    "tests/simulation",
    "tests/cli",
    "tests/cockpit",
    "tests/testing",
)


def unit_of(nodeid: str) -> str:
    """The tests of a unit run on one worker, one after another."""
    path = nodeid.split("::", 1)[0]
    return next((room for room in WHOLE if path.startswith(f"{room}/")), path)


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
    items.sort(key=lambda item: turn_of(item.nodeid))
