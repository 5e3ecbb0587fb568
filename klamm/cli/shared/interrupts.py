"""What a command says after Ctrl-C: what may still be done, and the command that continues.

What must stay true: a command that changes a cluster calls `from_now_on` before the change, so that the user knows
what an interrupted one may have left. `confirm` does so for those that ask. Commands that end with Ctrl-C as a rule
say nothing.
"""

import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from klamm.cli.shared.output import print_line

CHANGES: Final = "what was asked for may still be done"
_REACH: Final = ("--bootstrap-server", "--zookeeper", "--command-config", "--admin.config")


class _Command:
    """The command that runs: its command line, and what it says when it is interrupted."""

    arguments: Sequence[str] = ()
    text: str | None = None


def begin(arguments: Sequence[str]) -> None:
    """A command begins. Until it calls `from_now_on` it has nothing to say."""
    _Command.arguments, _Command.text = arguments, None


def from_now_on(what: str = CHANGES, *, look: Sequence[str] | None = None) -> None:
    """From now on Ctrl-C says `what`, and names the same command.

    `look` is a command that shows what was done, where the same one would do more, or has a password in its line.
    """
    line = shlex.join(["klamm", *_Command.arguments]) if look is None else beside(*look)
    _Command.text = f"{what}. {'To continue' if look is None else 'To see what was done'}: {line}"


def beside(*command: str) -> str:
    """The line of another command for the same cluster."""
    return shlex.join(["klamm", *command, *_reach()])


def tell(instead: str | None = None) -> None:
    """Ctrl-C has ended the command. Says so once; `instead` is a text of the command's own."""
    text, _Command.text = _Command.text, None
    if instead is not None:
        print_line(instead, file=sys.stderr)
    elif text is not None:
        print_line(f"klamm: interrupted: {text}", file=sys.stderr)


def _reach() -> Iterator[str]:
    """The options with which the command has found the cluster."""
    arguments = iter(_Command.arguments)
    for argument in arguments:
        if argument in _REACH:
            yield argument
            yield next(arguments, "")
        elif argument.startswith(tuple(f"{option}=" for option in _REACH)):
            yield argument
