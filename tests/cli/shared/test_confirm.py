"""Commands ask before they change something."""

import io

import pytest
import typer

from klamm.cli.shared.confirm import confirm
from klamm.processes.tool_errors import ToolError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def answered(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer + "\n"))
    monkeypatch.setattr("sys.stderr", Terminal())


def test_the_plan_is_shown_and_yes_asks_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    confirm(["delete t", "delete u"], "Delete 2 topics?", yes=True)
    assert capsys.readouterr() == ("", "delete t\ndelete u\n")


def test_without_a_terminal_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(ToolError, match=r"Delete 2 topics\? Nothing was changed: say --yes"):
        confirm(["delete t"], "Delete 2 topics?", yes=False)


@pytest.mark.parametrize("answer", ["n", ""])
def test_a_terminal_says_no(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    answered(monkeypatch, answer)
    with pytest.raises(typer.Abort):
        confirm([], "Delete 2 topics?", yes=False)


def test_a_terminal_says_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, "y")
    confirm([], "Delete 2 topics?", yes=False)
