"""How a command ends: the exit codes, and the errors that are one line for a person instead of a traceback.

| code | meaning |
|---|---|
| 0 | done; a server was stopped by SIGTERM or Ctrl-C; the program that reads the output has closed it |
| 1 | failed; the reason is on stderr |
| 2 | the command was called wrongly |
| 3 | the result is incomplete: a broker did not answer, or a verification reached no verdict; the output says why |
| 130 | interrupted by Ctrl-C; `produce` and `consume` also by SIGTERM |
"""

import errno
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INCOMPLETE: Final = 3
EXIT_INTERRUPTED: Final = 130

# The text of asyncio's and uvloop's error about an address that cannot be bound.
_BIND_ERROR = re.compile(r"error while attempting to bind on address \('(?P<host>.*)', (?P<port>\d+).*\): (?P<why>.*)")


class ToolError(Exception):
    """The command has failed; the message is one line with the reason, and each of `details` is a line after it."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED, *, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.details = tuple(details)


@contextmanager
def unverified_after_errors() -> Iterator[None]:
    """For verifications: an error is no verdict, so it ends the command with EXIT_INCOMPLETE."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (ToolError, OSError) as error:
        if isinstance(error, OSError):
            raise ToolError(describe_os_error(error), EXIT_INCOMPLETE) from error
        raise ToolError(str(error), EXIT_INCOMPLETE, details=error.details) from error


def describe_os_error(error: OSError) -> str:
    """One line for an operating system's error, with the file or address if it is known."""
    what = error.strerror or str(error)
    if bind := _BIND_ERROR.fullmatch(what):
        what = f"{bind['host']}:{bind['port']}: {bind['why']}"
    where = f"{error.filename}: " if error.filename else ""
    hint = "; another program uses it" if error.errno == errno.EADDRINUSE else ""
    return f"{where}{what[:1].lower()}{what[1:]}{hint}"
