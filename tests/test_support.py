"""The tree of tests: helpers are in `support`, and every module has one name."""

import ast
import sys
from collections import defaultdict
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from support import scheduling
from support.paths import ROOT, TESTS

SUPPORT = TESTS / "support"


def test_what_is_no_test_is_in_support() -> None:
    """Else it would be importable, and one test would come to import another."""
    strays = [path for path in TESTS.rglob("*.py") if not path.name.startswith("test_") and path.name != "conftest.py"]
    assert [str(path) for path in strays if SUPPORT not in path.parents] == []


@pytest.mark.parametrize("directory", ["tests", "bench"])
def test_modules_of_the_tests_are_imported_from_support(directory: str) -> None:
    found = [
        f"{path}: {module}"
        for path in (ROOT / directory).rglob("*.py")
        for module in imports(path)
        if module.partition(".")[0] == "tests" or module.rpartition(".")[2].startswith("test_")
    ]
    assert found == []


def test_nothing_in_the_tree_shadows_another_module() -> None:
    """`tests` comes first on sys.path, so what is in it hides what has the same name elsewhere."""
    elsewhere = [entry for entry in sys.path if entry and Path(entry).resolve() not in (TESTS, ROOT)]
    shadowed = {
        name
        for name in {path.stem for path in TESTS.iterdir()} - {"__pycache__"}
        if name in sys.stdlib_module_names or PathFinder.find_spec(name, elsewhere) is not None
    }
    assert shadowed == set()


def test_no_module_has_been_imported_under_two_names() -> None:
    names = defaultdict(set)
    for name, module in list(sys.modules.items()):
        if file := getattr(module, "__file__", None):
            path = Path(file)
            if TESTS in path.parents:
                names[path].add(name)
    assert {str(path): given for path, given in names.items() if len(given) > 1} == {}


def imports(path: Path) -> list[str]:
    modules = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.append(node.module)
    return modules


def test_the_places_of_the_schedule_exist() -> None:
    for place in (*scheduling.WAITING, *scheduling.COMPUTING):
        assert (ROOT / place).exists(), f"{place} has moved, and its tests no longer begin in their turn"


@pytest.mark.parametrize(
    ("nodeid", "unit"),
    [
        ("tests/spark/write/test_sink.py::test_every_column", "tests/spark"),
        (
            "tests/spark/write/test_typed_sink.py::test_a_map_that_has_a_key_twice_is_told_with_its_row",
            "tests/spark/write/test_typed_sink.py",
        ),
        ("tests/spark/formats/test_csv_decoder.py::test_a", "tests/spark/formats/test_csv_decoder.py"),
        ("tests/interop/test_znodes_interop.py::test_kafka_understands_what_we_write[x::y]", "tests/interop"),
        (
            "tests/interop/test_groups_interop.py::test_groups_are_deleted[klamm]",
            "tests/interop/test_groups_interop.py",
        ),
        ("tests/interop/test_groups_interop.py::test_groups_are_deleted[real_kafka]", "tests/interop"),
        ("tests/clients/test_kill.py::test_a", "tests/clients/test_kill.py"),
        ("tests/config/test_topic_config.py::test_a", "tests/config/test_topic_config.py"),
    ],
)
def test_tests_that_share_a_jvm_are_one_unit(nodeid: str, unit: str) -> None:
    assert scheduling.unit_of(nodeid) == unit


def test_what_waits_takes_turns_with_what_computes() -> None:
    waiting = ["tests/testing/test_d.py", "tests/clients/test_a.py"]
    computing = ["tests/net/test_e.py", "tests/simulation/test_c.py", "tests/broker/test_f.py"]
    turns = scheduling.turns_of([*waiting, *computing, "tests/spark"])
    assert [unit.split("/")[1] for unit in sorted(turns, key=turns.__getitem__)] == [
        "spark",
        "simulation",
        "clients",
        "net",
        "testing",
        "broker",
    ]


def test_whatever_uses_a_shared_jvm_is_in_its_unit(request: pytest.FixtureRequest) -> None:
    """Of the tests that this run has collected."""
    alone = {
        item.nodeid
        for item in request.session.items
        for room, fixtures in scheduling.JVMS.items()
        if item.nodeid.startswith(f"{room}/") and {*fixtures} & {*getattr(item, "fixturenames", ())}
        if scheduling.unit_of(item.nodeid) != room
    }
    assert alone == set()
