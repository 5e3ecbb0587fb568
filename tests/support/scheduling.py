"""How `pytest -n` shares the tests out among its workers. A pytest plugin; tests/conftest.py loads it.

The tests of a room that share a JVM stay on one worker, so that it starts once: Spark's session, the brokers of Apache
Kafka and the ZooKeeper of tests/interop. The fixtures that a test names, itself or through fixtures of its file, say
whether it is one of these; where a parameter chooses a fixture, the test's id has its name. The other tests of the file
need not wait for them. Everywhere else the tests of a file stay together. The units with a JVM begin first. Beside and
after them, what mostly waits takes turns with what computes, so that the cores are busy from the beginning to the end;
what takes long comes before what does not, so that no worker is left alone with it.
"""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import pytest

from support.paths import ROOT

# By room: the fixtures that give its tests a JVM of the session.
JVMS = {
    "tests/spark": ("spark", "spark_connect"),
    "tests/interop": (
        "real_zookeeper",
        "real_zookeeper39",
        "real_kafka",
        "coordinating_kafka",
        "real_kraft",
        "kafka",
        "klamm",
    ),
}
# Rooms of tests that wait for other processes and for time to pass, and rooms of tests that compute, in the order in
# which they begin; all other rooms compute, too.
WAITING = (
    "tests/clients",
    "tests/recipes",
    "tests/faults",
    "tests/walkthroughs",
    "tests/spark",
    "tests/interop",
    "tests/cockpit",
    "tests/testing",
)
COMPUTING = ("tests/simulation", "tests/cli")


def unit_of(nodeid: str) -> str:
    """The tests of a unit run on one worker, one after another: those of a file, or those of a room that share its
    JVM."""
    path, _, test = nodeid.partition("::")
    room = next((room for room in JVMS if path.startswith(f"{room}/")), None)
    if room is None:
        return path
    function, _, parameters = test.partition("[")
    always, by_name = _with_jvm(path, room)
    names_jvm = any(name in parameters for name in _named_in_texts(JVMS[room]))
    return room if function in always or (function in by_name and names_jvm) else path


@cache
def _with_jvm(path: str, room: str) -> tuple[frozenset[str], frozenset[str]]:
    """The functions of a file that have a JVM of the room; and those that have one if their parameters name it."""
    # xdist asks in a process that collects no tests, so the text must tell.
    arguments: dict[str, set[str]] = {}
    texts: dict[str, set[str]] = {}
    texts_anywhere: set[str] = set()
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments[node.name] = {*_arguments(node)}
            texts[node.name] = {*_texts(node)}
        else:
            texts_anywhere.update(_texts(node))
    always = _asking(arguments, {*JVMS[room]})
    if texts_anywhere & {*JVMS[room]}:
        return always, frozenset(arguments)
    return always, _asking({name: asked | texts[name] for name, asked in arguments.items()}, {*JVMS[room]})


def _asking(asked_by: dict[str, set[str]], fixtures: set[str]) -> frozenset[str]:
    """The functions that ask for one of these fixtures, or for another function that does."""
    while more := {name for name, asked in asked_by.items() if asked & fixtures} - fixtures:
        fixtures = fixtures | more
    return frozenset(fixtures)


def _arguments(node: ast.AST) -> Iterator[str]:
    return (part.arg for part in ast.walk(node) if isinstance(part, ast.arg))


def _texts(node: ast.AST) -> Iterator[str]:
    texts = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str))
    return _named_in_texts(texts)


def _named_in_texts(texts: Iterable[str]) -> Iterator[str]:
    """`request.getfixturevalue("real_kafka")`. Texts like "spark" and "kafka" say other things."""
    return (text for text in texts if "_" in text)


def turns_of(units: Iterable[str]) -> dict[str, float]:
    """Where each unit stands in the order, from 0 to 1; those with a JVM before all others."""
    by_unit = {unit: -1.0 for unit in units}
    for rooms, is_waiting in ((WAITING, True), (COMPUTING, False)):
        alike = [unit for unit in by_unit if unit not in JVMS and (_place(unit, WAITING) < len(WAITING)) == is_waiting]
        alike.sort(key=lambda unit: _place(unit, rooms))
        by_unit.update((unit, (number + 0.5) / len(alike)) for number, unit in enumerate(alike))
    return by_unit


def _place(unit: str, rooms: tuple[str, ...]) -> int:
    return next((place for place, room in enumerate(rooms) if unit.startswith(f"{room}/")), len(rooms))


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
    units = {item: unit_of(item.nodeid) for item in items}
    turns = turns_of(units.values())
    items.sort(key=lambda item: turns[units[item]])
