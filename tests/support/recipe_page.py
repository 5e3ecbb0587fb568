"""Writes the recipes into docs/recipes.md, as they stand in tests/recipes: `python -m support.recipe_page FILE`."""

import ast
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

from klamm.testing import recipes as recipes_package

RECIPES = Path(__file__).parents[1] / "recipes"
BEGIN, END = "<!-- begin: recipes -->\n", "<!-- end: recipes -->\n"
# The modules in the order of the page, and their headings.
ROOMS = {
    "test_producers.py": "Producers",
    "test_consumers.py": "Consumers",
    "test_groups.py": "Consumer groups",
    "test_transactions.py": "Transactions",
}
ANNOTATIONS = re.compile(r": (?:Cluster|Client|str)(?=[,)])| -> None")


class Recipe(NamedTuple):
    room: str
    title: str
    prose: str
    code: str


def recipes() -> list[Recipe]:
    """All recipes in the order of the page."""
    found = []
    for name, room in ROOMS.items():
        source = (RECIPES / name).read_text(encoding="utf-8")
        for test in ast.parse(source).body:
            if isinstance(test, ast.FunctionDef) and test.name.startswith("test_"):
                found.append(_recipe(room, test, source.splitlines()))
    return found


def _recipe(room: str, test: ast.FunctionDef, lines: list[str]) -> Recipe:
    title, _, prose = inspect.cleandoc(ast.get_docstring(test) or "").partition("\n")
    docstring, first = test.body[0], test.body[1]
    assert docstring.end_lineno is not None
    signature = lines[test.lineno - 1 : docstring.lineno - 1]
    body = lines[first.lineno - 1 : test.end_lineno]
    code = "\n".join([ANNOTATIONS.sub("", "\n".join(signature)), *body])
    return Recipe(room, title, prose.strip(), _imports(code) + code)


def _imports(code: str) -> str:
    """What a recipe imports where it stands alone."""
    names = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    ours = ", ".join(name for name in recipes_package.__all__ if name in names)
    blocks = ["import pytest"] * ("pytest" in names) + [f"from klamm.testing.recipes import {ours}"] * bool(ours)
    return "\n\n".join(blocks) + "\n\n\n" if blocks else ""


def page() -> str:
    """The generated part of the page."""
    parts: list[str] = []
    room = ""
    for number, recipe in enumerate(recipes(), 1):
        if recipe.room != room:
            room = recipe.room
            parts.append(f"## {room}\n")
        prose = textwrap.fill(" ".join(recipe.prose.split()), 120)
        parts.append(f"### {number}. {recipe.title}\n\n{prose}\n\n```python\n{recipe.code}\n```\n")
    return "\n".join(parts)


def written(text: str) -> str:
    """A page with its generated part written anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{page()}\n{END}{after}"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(written(file.read_text(encoding="utf-8")), encoding="utf-8")
