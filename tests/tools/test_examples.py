"""The help of every command ends with an example, and every example is a valid call."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from klamm.tools import main


def commands(node: Any, path: tuple[str, ...] = ("klamm",)) -> Iterator[tuple[str, Any]]:
    """Every command with its name; those that only shell functions call are hidden."""
    if hasattr(node, "commands"):
        for name, command in node.commands.items():
            yield from commands(command, (*path, name))
    elif not node.hidden:
        yield " ".join(path), node


COMMANDS = dict(commands(get_command(main.app)))


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_ends_with_an_example_that_is_a_valid_call(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = (COMMANDS[name].epilog or "").removeprefix("Example: ")
    assert example.startswith(f"{name} ") or example == name
    assert main.run([*name.split()[1:], "--help"]) == 0
    assert capsys.readouterr().out.endswith(f"\n  Example: {example}\n")

    root = get_command(main.app)
    called = []
    for command_name, command in commands(root):
        command.callback = lambda command_name=command_name, **options: called.append(command_name)
    monkeypatch.setattr(main, "get_command", lambda app: root)
    monkeypatch.chdir(tmp_path)
    for word in shlex.split(example):  # A file that must exist.
        if word.endswith((".properties", ".json", ".txt")):
            Path(word).touch()
    assert main.run(shlex.split(example)[1:]) == 0, capsys.readouterr().err
    assert called == [name]
