"""Every call of klamm in a code block of the documents is valid: its command, options and values exist."""

import re
import shlex
from pathlib import Path

import pytest

from support.command_lines import called
from support.paths import ROOT

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCK = re.compile(r"^```[a-z]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def calls(page: Path) -> list[str]:
    """The calls of klamm in the page's code blocks. A backslash at the end continues a line; a pipe ends a call."""
    lines = "".join(BLOCK.findall(page.read_text(encoding="utf-8"))).replace("\\\n", " ").splitlines()
    found = [line.removeprefix("$ ") for line in lines if re.match(r"(\$ )?klamm [a-z]", line)]
    return [re.split(r" [|>&#] | [|>&#]$", line)[0] for line in found]


CALLS = [(page.name, call) for page in PAGES for call in calls(page)]


@pytest.mark.parametrize(("page", "call"), CALLS)
def test_a_call_in_a_document_is_valid(
    page: str, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for word in shlex.split(call):  # A file that must exist.
        if re.fullmatch(r"[\w./-]+\.(properties|json|csv|txt|log)", word) and not word.startswith("/"):
            (tmp_path / word).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / word).touch()
    assert called(call) is not None, capsys.readouterr().err
