"""The help of every command ends with an example, and every example is a valid call."""

import shlex
from pathlib import Path

import pytest

from klamm.cli import main
from support.command_lines import called, commands

COMMANDS = dict(commands())


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_ends_with_an_example_that_is_a_valid_call(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = (COMMANDS[name].epilog or "").removeprefix("Example: ")
    assert main.run([*name.split()[1:], "--help"]) == 0
    assert capsys.readouterr().out.endswith(f"\n  Example: {example}\n")

    monkeypatch.chdir(tmp_path)
    for word in shlex.split(example):  # A file that must exist.
        if word.endswith((".properties", ".json", ".txt")):
            Path(word).touch()
    assert called(example) == name, capsys.readouterr().err
