"""An asynchronous generator that is left in its middle keeps its connection until the garbage collector comes."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import klamm

SOURCES = sorted(Path(klamm.__file__).parent.rglob("*.py"))


def is_generator(function: ast.AsyncFunctionDef) -> bool:
    def yields(node: ast.AST) -> bool:
        return any(
            isinstance(child, ast.Yield)
            or (not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and yields(child))
            for child in ast.iter_child_nodes(node)
        )

    return yields(function) and not function.decorator_list


def loops_over_calls(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The name of what is called and the line, for each `async for ... in name(...)`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFor | ast.comprehension) and isinstance(node.iter, ast.Call):
            called = node.iter.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if isinstance(node, ast.AsyncFor) or node.is_async:
                yield name, node.iter.lineno


def test_who_loops_over_a_generator_closes_it() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCES}
    # To parse all modules would take seconds.
    trees = {
        path: ast.parse(text)
        for path, text in texts.items()
        if re.search(r"async\s+for|async\s+def.*\byield\b", text, re.DOTALL)
    }
    generators = {
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncFunctionDef) and is_generator(node)
    }
    assert {"read_lines", "_each_online"} <= generators
    found = [
        f"{path.name}:{line}: {name}"
        for path, tree in trees.items()
        for name, line in loops_over_calls(tree)
        if name in generators
    ]
    assert not found, "put contextlib.aclosing around these:\n" + "\n".join(found)
