"""docs/spark-tutorial.md and docs/spark-weather.md: a reader who pastes their cells sees what they say.

Their outputs are compared as they stand there, except that `...` is for anything within one line.
"""

import io
import re
import sys
from code import InteractiveConsole
from contextlib import redirect_stdout
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCS = Path(__file__).parents[2] / "docs"
CELL = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


def cells(page: str) -> list[tuple[str, str]]:
    """The cells of a page, and what they print."""
    return CELL.findall((DOCS / page).read_text(encoding="utf-8"))


class Shell(InteractiveConsole):
    """Python's shell, which takes line after line and shows values; errors are the test's."""

    def runcode(self, code: CodeType) -> None:
        exec(code, self.locals)

    def showsyntaxerror(self, *_: object, **__: object) -> NoReturn:
        raise AssertionError("a line cannot be pasted") from sys.exc_info()[1]

    def run(self, cell: str) -> str:
        """What is printed when a cell is pasted, without empty lines around it."""
        with redirect_stdout(io.StringIO()) as printed:
            for line in [*cell.splitlines(), ""]:
                incomplete = self.push(line)
        assert not incomplete
        return printed.getvalue().strip()


def matches(expected: str, printed: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("..."))
    return re.fullmatch(pattern, printed) is not None


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("a (b)\nc\n", "a (b)\nc", True),
        ("a ... b\nc", "a 1.2 b\nc", True),
        ("a ... b", "a\nb b", False),
        ("a.b", "axb", False),
        ("a", "a b", False),
        ("", "a", False),
    ],
)
def test_what_is_the_same(expected: str, printed: str, same: bool) -> None:
    assert matches(expected, printed) == same


@pytest.mark.parametrize(("page", "count"), [("spark-tutorial.md", 20), ("spark-weather.md", 10)])
def test_the_whole_tutorial(spark: "SparkSession", page: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`SparkSession.builder...getOrCreate()` returns the session of the tests."""
    # The pages set it; other tests keep their own.
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    shell = Shell()
    assert len(cells(page)) > count
    try:
        for cell, expected in cells(page):
            printed = shell.run(cell)
            assert matches(expected, printed), f"{cell}\nprints\n\n{printed}\n\nand not\n\n{expected}"
    finally:
        if "cluster" in shell.locals:
            shell.locals["cluster"].close()
