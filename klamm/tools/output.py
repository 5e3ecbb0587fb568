"""The way by which text of commands reaches a terminal, a pipe or a log. No other module of the tools calls `print`.

What must stay true:
- A line that is printed is one line, whatever names, values and messages of others it holds. Where tabs stand between
  the parts of a line, each part that comes from outside goes through `visible` before it becomes a part.
- JSON is ASCII.
- Data that a program reads (records, CSV) is written byte for byte. On a terminal it is made visible.
"""

import sys
from collections.abc import Iterable
from typing import Protocol, TextIO

from klamm.visible import visible

TABS = "\t"
"""For `keep`: the lines have parts with tabs between them."""


def print_line(text: str = "", *, keep: str = "", file: TextIO | None = None, flush: bool = False) -> None:
    """Prints one line; `file` is stdout unless given."""
    print(visible(text, keep=keep), file=file, flush=flush)


def print_lines(lines: Iterable[str], *, keep: str = "", file: TextIO | None = None, flush: bool = False) -> None:
    """Prints each line."""
    for line in lines:
        print_line(line, keep=keep, file=file, flush=flush)


class ByteWriter(Protocol):
    """Where records are written."""

    def writelines(self, parts: Iterable[bytes], /) -> object: ...

    def flush(self) -> object: ...


class _Terminal:
    """Shows bytes to a person: line ends and tabs stay, since many values are texts of several lines."""

    def writelines(self, parts: Iterable[bytes]) -> None:
        for part in parts:
            sys.stdout.write(visible(part.decode("utf-8", "backslashreplace"), keep="\n\t"))

    def flush(self) -> None:
        sys.stdout.flush()


def data_output() -> ByteWriter:
    """Standard output for data."""
    return _Terminal() if sys.stdout.isatty() else sys.stdout.buffer
