"""docs/spark-tutorial.md: a reader who pastes its cells sees what it says.

Its outputs are compared as they stand there, except that `...` is for anything within one line.
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

TUTORIAL = Path(__file__).parents[2] / "docs" / "spark-tutorial.md"
CELL = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
CELLS: list[tuple[str, str]] = CELL.findall(TUTORIAL.read_text(encoding="utf-8"))


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


def test_the_whole_tutorial(spark: "SparkSession") -> None:
    """`SparkSession.builder...getOrCreate()` returns the session of the tests."""
    shell = Shell()
    assert len(CELLS) > 20
    try:
        for cell, expected in CELLS:
            printed = shell.run(cell)
            assert matches(expected, printed), f"{cell}\nprints\n\n{printed}\n\nand not\n\n{expected}"
    finally:
        if "cluster" in shell.locals:
            shell.locals["cluster"].close()  # type: ignore[attr-defined]
