"""The tree of tests: helpers are in `support`, and every module has one name."""

import ast
import sys
from collections import defaultdict
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

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
