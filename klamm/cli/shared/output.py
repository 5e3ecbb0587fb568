"""Writes the text of commands to a terminal, a pipe or a log. No other module of the tools calls `print`.

What must stay true:
- A printed line is one line, whatever names, values and messages from outside it holds. If a line has tabs between its
  parts, each part from outside goes through `visible` before it is joined.
- JSON is ASCII.
- Data that a program reads (records, CSV) is written byte for byte. On a terminal it is made visible.
- Output that cannot be written does not stop the command: the following lines are lost, and the exit code is that of
  the work. Unless the output was closed by its reader, the command then fails at its end (`finish`). Commands that
  print without end stop at once (`stream_line`, `data_output`).
"""

import io
import json
import os
import sys
from collections.abc import Iterable
from typing import Any, Final, Protocol, TextIO

from klamm.base.visible import visible
from klamm.processes.tool_errors import ToolError, describe_os_error

TABS: Final = "\t"
"""A value for `keep`: the lines have tabs between their parts."""


class _Stdout:
    """The running command's standard output, and why it could not be written. typer replaces `sys.stdout` when its
    reader has closed it."""

    stream: TextIO = sys.stdout
    error: OSError | None = None


def prepare() -> None:
    """Makes the standard streams usable, even if they are closed or have an encoding that lacks characters."""
    # Python sets a closed stream to None. A write to the stdout that replaces it fails, as it should.
    for name, mode in (("stdin", "r"), ("stdout", "r"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # as long as the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    _Stdout.stream, _Stdout.error = sys.stdout, None


def print_line(text: str = "", *, keep: str = "", file: TextIO | None = None, flush: bool = False) -> None:
    """Prints one line; `file` is stdout unless given."""
    try:
        print(visible(text, keep=keep), file=file, flush=flush)
    except OSError as error:
        _give_up(error, sys.stdout if file is None else file)


def print_lines(lines: Iterable[str], *, keep: str = "", file: TextIO | None = None, flush: bool = False) -> None:
    """Prints each line."""
    for line in lines:
        print_line(line, keep=keep, file=file, flush=flush)


def show(value: Any, lines: Iterable[str], *, as_json: bool, keep: str = "") -> None:
    """Prints the result of a command: the value as JSON, or the lines."""
    print_lines([json.dumps(value)] if as_json else lines, keep=keep)


def print_traceback(error: BaseException) -> None:
    """Prints a traceback on stderr."""
    import traceback

    print_lines("".join(traceback.format_exception(error)).rstrip("\n").split("\n"), file=sys.stderr)


def stream_line(text: str, *, flush: bool = True) -> None:
    """Prints one line of a long output. Raises BrokenPipeError when its reader has closed it, and OSError."""
    print(visible(text), flush=flush)


def finish() -> None:
    """Flushes the output. Raises ToolError if it could not be written, unless its reader has closed it."""
    try:
        _Stdout.stream.flush()
    except OSError as error:
        _give_up(error, _Stdout.stream)
    if _Stdout.error is not None:
        raise ToolError(f"standard output: {describe_os_error(_Stdout.error)}")


def _give_up(error: OSError, stream: TextIO) -> None:
    if stream is _Stdout.stream and _Stdout.error is None and not isinstance(error, BrokenPipeError):
        _Stdout.error = error
    _discard(stream)


def _discard(stream: TextIO) -> None:
    """Discards everything that is written to the stream from now on."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), number)


class ByteWriter(Protocol):
    """A stream to which records are written."""

    def writelines(self, parts: Iterable[bytes], /) -> object: ...

    def flush(self) -> object: ...


class _Terminal:
    """Shows bytes on a terminal. Line ends and tabs stay, because many values are texts of several lines."""

    def writelines(self, parts: Iterable[bytes]) -> None:
        for part in parts:
            sys.stdout.write(visible(part.decode("utf-8", "backslashreplace"), keep="\n\t"))

    def flush(self) -> None:
        sys.stdout.flush()


def data_output() -> ByteWriter:
    """Standard output for data. A failed write raises OSError."""
    return _Terminal() if sys.stdout.isatty() else sys.stdout.buffer
