"""Ctrl-C names the command that continues."""

import pytest

from klamm.cli import main
from klamm.cli.shared import interrupts
from klamm.cli.shared.confirm import confirm
from klamm.cli.shared.options import ClusterOptions

REACH = ["--bootstrap-server", "127.0.0.1:9"]


def test_a_command_that_is_interrupted_before_it_changes_anything_says_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    interrupts.begin(["topics", "delete"])
    interrupts.tell()
    assert capsys.readouterr() == ("", "")


def test_after_the_answer_yes_the_same_command_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    interrupts.begin(["elect", "preferred", "--topic", "a b", "--yes"])
    confirm([], "Elect?", yes=True)
    interrupts.tell()
    interrupts.tell()
    told = "what was asked for may still be done. To continue: klamm elect preferred --topic 'a b' --yes"
    assert capsys.readouterr().err == f"klamm: interrupted: {told}\n"


def test_a_text_of_its_own_stands_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    interrupts.begin(["reassign", "execute"])
    confirm([], "Move?", yes=True)
    interrupts.tell("Interrupted; the reassignment is complete.")
    interrupts.tell()
    assert capsys.readouterr().err == "Interrupted; the reassignment is complete.\n"


@pytest.mark.parametrize("reach", [REACH, ["=".join(REACH)]])
def test_a_command_that_would_do_more_names_one_that_shows_what_was_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, reach: list[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ClusterOptions, "call", interrupted)
    assert main.run(["topics", "create", "--topic", "castle", *reach]) == 130
    told = f"To see what was done: klamm topics describe --topic castle {' '.join(reach)}\n"
    assert capsys.readouterr().err.endswith(told)
