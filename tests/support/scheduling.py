"""How `pytest -n` shares the tests out among its workers. A pytest plugin; tests/conftest.py loads it.

The tests of a room that share a JVM stay on one worker, so that it starts once: Spark's session, the brokers of Apache
Kafka and the ZooKeeper of tests/interop. The fixtures that a test names, itself or through fixtures of its file, say
whether it is one of these; the other tests of the file need not wait for them. Everywhere else the tests of a file stay
together. The units with a JVM begin first, and beside them what mostly waits; then what takes long, so that no worker
is left alone with it at the end.
"""

import ast
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
    """The tests of a unit run on one worker, one after another: those of a file, or those of a room that share its
    JVM."""
    path, _, test = nodeid.partition("::")
    room = next((room for room in JVMS if path.startswith(f"{room}/")), None)
    if room is None:
        return path
    return room if test.partition("[")[0] in _with_jvm(path, room) else path


@cache
def _with_jvm(path: str, room: str) -> frozenset[str]:
    """The functions of a file that have a JVM of the room."""
    # xdist asks in a process that collects no tests, so the text must tell.
    source = (ROOT / path).read_text(encoding="utf-8")
    lines = source.splitlines()
    asked_by: dict[str, set[str]] = {}
    asked_anywhere: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            begins = min((each.lineno for each in node.decorator_list), default=node.lineno)
            arguments = (each.arg for each in (*node.args.args, *node.args.kwonlyargs))
            asked_by[node.name] = {*arguments, *_texts(lines[begins - 1 : node.end_lineno])}
        else:
            asked_anywhere.update(_texts(lines[node.lineno - 1 : node.end_lineno]))
    found = {*JVMS[room]}
    while more := {name for name, asked in asked_by.items() if asked & found} - found:
        found |= more
    return frozenset(asked_by if asked_anywhere & found else found)


def _texts(lines: list[str]) -> list[str]:
    """`request.getfixturevalue("real_kafka")`. Texts like "spark" and "kafka" say other things."""
    return re.findall(r'"(\w+_\w+)"', "\n".join(lines))


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
