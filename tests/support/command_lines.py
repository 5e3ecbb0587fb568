"""Parses command lines of klamm without running them: for examples in help texts, documents and findings."""

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from klamm.cli import main


def commands(node: Any = None, path: tuple[str, ...] = ("klamm",)) -> Iterator[tuple[str, Any]]:
    """Every command with its name; those that only shell functions call are hidden."""
    node = node or get_command(main.app)
    if hasattr(node, "commands"):
        for name, command in node.commands.items():
            yield from commands(command, (*path, name))
    elif not node.hidden:
        yield " ".join(path), node


def called(line: str) -> str | None:
    """The command that a command line calls, `klamm topics create` for example; None if the call is wrong.

    The error is printed on stderr, as for people.
    """
    root, ran = get_command(main.app), list[str]()
    for name, command in commands(root):
        command.callback = lambda *, _called=name, **options: ran.append(_called)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(main, "get_command", lambda app: root)
        code = main.run(shlex.split(line)[1:])
    return ran[0] if code == 0 and len(ran) == 1 else None
