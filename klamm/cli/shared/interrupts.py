"""The message of a command after Ctrl-C: the changes that may still be made, and the command to continue.

What must stay true: a command that changes a cluster calls `from_now_on` before the change, so that the user knows what
an interrupted command may have left. `confirm` makes this call for commands that ask. Commands that normally end with
Ctrl-C print no message.
"""

import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from klamm.cli.shared.output import print_line

CHANGES: Final = "what was asked for may still be done"
_REACH: Final = ("--bootstrap-server", "--zookeeper", "--command-config", "--admin.config")


class _Command:
    """The running command: its arguments, and its message for an interrupt."""

    arguments: Sequence[str] = ()
    text: str | None = None


def begin(arguments: Sequence[str]) -> None:
    """A command begins. Until it calls `from_now_on`, it has no message."""
    _Command.arguments, _Command.text = arguments, None


def from_now_on(what: str = CHANGES, *, look: Sequence[str] | None = None) -> None:
    """From now on, the message after Ctrl-C is `what`, with the command to continue.

    `look` is a command that shows what was done. Give it if repeating the same command would do more, or if its line
    holds a password.
    """
    line = shlex.join(["klamm", *_Command.arguments]) if look is None else beside(*look)
    _Command.text = f"{what}. {'To continue' if look is None else 'To see what was done'}: {line}"


def beside(*command: str) -> str:
    """The line of another command for the same cluster."""
    return shlex.join(["klamm", *command, *_reach()])


def tell(instead: str | None = None) -> None:
    """Prints the message after Ctrl-C, once. `instead` replaces it by another text."""
    text, _Command.text = _Command.text, None
    if instead is not None:
        print_line(instead, file=sys.stderr)
    elif text is not None:
        print_line(f"klamm: interrupted: {text}", file=sys.stderr)


def _reach() -> Iterator[str]:
    """The options by which the command reaches the cluster."""
    arguments = iter(_Command.arguments)
    for argument in arguments:
        if argument in _REACH:
            yield argument
            yield next(arguments, "")
        elif argument.startswith(tuple(f"{option}=" for option in _REACH)):
            yield argument
