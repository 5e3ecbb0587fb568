"""Asks before a command changes something.

The plan goes to stderr, so that stdout holds only results. A user at a terminal is asked; a script must give `--yes`.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from klamm.base.visible import visible
from klamm.cli.shared import interrupts
from klamm.cli.shared.output import print_line, print_lines
from klamm.processes.tool_errors import ToolError

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Make the changes without asking.")]
Force = Annotated[bool, typer.Option("--force", help="The same as --yes, as Kafka's tool has it.")]


def confirm(
    plan: Iterable[str], question: str, *, yes: bool, keep: str = "", look: Sequence[str] | None = None
) -> None:
    """Shows the plan, and returns once its changes are approved.

    `question` is for example "Delete 3 topics?". `keep` is passed to `print_lines`, and `look` to
    `interrupts.from_now_on`. Raises typer.Abort when the answer is no, and ToolError when there is no terminal to ask.
    """
    print_lines(plan, keep=keep, file=sys.stderr)
    if not yes:
        _ask(question)
    interrupts.from_now_on(look=look)


def _ask(question: str) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ToolError(f"{question} Nothing was changed: say --yes, because there is no terminal to ask.")
    if not typer.confirm(visible(question), err=True):
        print_line("Nothing was changed.", file=sys.stderr)
        raise typer.Abort
