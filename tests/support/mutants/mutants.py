"""The mutants of a source text. Pure.

| kind       | in the source                                                | in the mutant                         |
|------------|--------------------------------------------------------------|---------------------------------------|
| guard      | `if` whose block only leaves: return, raise, continue, break | the block is never entered            |
| comparison | `<`, `<=`, `>`, `>=`                                         | with and without equality exchanged   |
| equality   | `==`, `!=`, `is`, `is not`, `in`, `not in`                   | the opposite                          |
| durability | a statement that only calls something of `DURABLE`           | nothing                               |
| order      | two such statements in a row, with calls of `WRITES`         | the second before the first           |
| error      | `raise` in an `except` block                                 | nothing                               |
| code       | `ErrorCode.X` that is returned                               | `ErrorCode.NONE`                      |

What must stay true:
- A mutant's name says where it is and outlives changes elsewhere: module, function, kind, and a number within these.
- Assertions, type checking, log lines and `__repr__` are not mutated: nobody depends on them.
"""

import ast
import itertools
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple
from zlib import crc32

DURABLE = frozenset(
    {"flush", "fsync", "sync", "sync_directory", "sync_file", "wait_durable", "force", "wait_flushed", "checkpoint"}
)
WRITES = DURABLE | frozenset(
    {"write", "append", "create", "set", "delete", "multi", "rename", "replace", "truncate", "remove", "put", "unlink"}
)
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_COMPARISONS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_OPPOSITES = {
    ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_NOT_MUTATED = frozenset({"__repr__", "__str__"})


class Mutant(NamedTuple):
    """One change of a source text: the characters from `start` to `end` become `text`."""

    name: str
    kind: str
    line: int
    start: int
    end: int
    text: str
    was: str

    def applied_to(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]


def mutants(module: str, source: str) -> list[Mutant]:
    """The mutants of a module, in the order of the source."""
    finder = _Finder(module, source)
    finder.visit(ast.parse(source))
    return sorted(finder.found, key=lambda mutant: mutant.start)


class _Finder(ast.NodeVisitor):
    def __init__(self, module: str, source: str) -> None:
        self.found: list[Mutant] = []
        self._module = module
        self._source = source
        # The columns of ast count bytes.
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line.encode()))
        self._bytes = source.encode()
        self._functions: list[str] = []
        self._numbers: Counter[tuple[str, str]] = Counter()

    # -- where ----------------------------------------------------------------------------------------------------

    def _place(self, line: int, column: int) -> int:
        """The position in the text."""
        return len(self._bytes[: self._lines[line - 1] + column].decode())

    def _span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._place(node.lineno, node.col_offset), self._place(node.end_lineno, node.end_col_offset)

    def _text(self, node: ast.stmt | ast.expr) -> str:
        start, end = self._span(node)
        return self._source[start:end]

    def _add(self, kind: str, line: int, start: int, end: int, text: str) -> None:
        function = ".".join(self._functions) or "module"
        self._numbers[function, kind] += 1
        name = f"{self._module}:{function}:{kind}-{self._numbers[function, kind]}"
        self.found.append(Mutant(name, kind, line, start, end, text, self._source[start:end]))

    # -- what -----------------------------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in _NOT_MUTATED:
            return
        self._functions.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self._orders(node.body)
        self._functions.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._functions.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self._functions.pop()

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if len(node.body) == 1 and isinstance(node.body[0], _LEAVES) and self._functions:
            start, end = self._span(node.test)
            self._add("guard", node.lineno, start, end, "False")
        self.generic_visit(node)
        self._orders(node.body)

    def visit_Compare(self, node: ast.Compare) -> None:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            kind, table = ("comparison", _COMPARISONS) if type(operator) in _COMPARISONS else ("equality", _OPPOSITES)
            if (text := table.get(type(operator))) is not None and self._functions:
                between = self._span(left)[1], self._span(right)[0]
                lead, trail = self._around(*between)
                self._add(kind, node.lineno, between[0], between[1], f"{lead} {text} {trail}")
            left = right
        self.generic_visit(node)

    def _around(self, start: int, end: int) -> tuple[str, str]:
        """The parentheses around an operator, which belong to its operands."""
        between = self._source[start:end]
        return ")" * between.count(")"), "(" * between.count("(")

    def visit_Expr(self, node: ast.Expr) -> None:
        if _called(node) in DURABLE:
            self._add("durability", node.lineno, *self._span(node), "pass")
        self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        for statement in node.body:
            if isinstance(statement, ast.Raise):
                self._add("error", statement.lineno, *self._span(statement), "pass")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        value = node.value
        if isinstance(value, ast.Attribute) and self._text(value.value) == "ErrorCode" and value.attr != "NONE":
            self._add("code", node.lineno, *self._span(value), "ErrorCode.NONE")
        self.generic_visit(node)

    def _orders(self, body: list[ast.stmt]) -> None:
        for first, second in itertools.pairwise(body):
            if _called(first) in WRITES and _called(second) in WRITES:
                start, end = self._span(first)[0], self._span(second)[1]
                between = self._source[self._span(first)[1] : self._span(second)[0]]
                self._add("order", first.lineno, start, end, self._text(second) + between + self._text(first))


def _called(statement: ast.stmt) -> str | None:
    """The name of what a statement calls, without using the result."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(value, ast.Await | ast.YieldFrom):
        value = value.value
    if not isinstance(value, ast.Call):
        return None
    function = value.func
    return (
        function.attr
        if isinstance(function, ast.Attribute)
        else function.id
        if isinstance(function, ast.Name)
        else None
    )


def sample(found: Iterable[Mutant], share: float) -> list[Mutant]:
    """A share of the mutants, the same ones each time: a mutant's name decides."""
    return [mutant for mutant in found if crc32(mutant.name.encode()) % 1000 < share * 1000]
