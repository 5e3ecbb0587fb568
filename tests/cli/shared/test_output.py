"""Text from outside is printed through one place, and cannot forge a line there."""

import io
import json
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.base.visible import visible
from klamm.cli import main
from klamm.cli.shared.output import TABS, data_output, print_line, print_lines
from klamm.processes.tool_errors import EXIT_INCOMPLETE, ToolError, unverified_after_errors

# Characters that move, hide or reorder others, or end a line for some reader.
HOSTILE = (
    *map(chr, range(32)), "\x7f", *map(chr, range(0x80, 0xA0)), "\xad", "\u034f", "\u061c", "\u115f", "\u180e",
    "\u200b", "\u200d", "\u200e", "\u200f", "\u2028", "\u2029", *map(chr, range(0x202A, 0x202F)), "\u2060",
    *map(chr, range(0x2066, 0x206A)), "\u3164", "\ufe0f", "\ufeff", "\ufff9", "\U000e0001", "\U000e0100", "\ud800",
    "\ue000",
)  # fmt: skip


@pytest.mark.parametrize("character", HOSTILE, ids=lambda character: f"U+{ord(character):04X}")
def test_a_character_that_hides_or_moves_others_becomes_an_escape(character: str) -> None:
    assert visible(f"a{character}b") in (f"a\\u{ord(character):04x}b", f"a\\U{ord(character):08x}b")


@pytest.mark.parametrize("text", ["", "orders-1_a.b", "größe", "漢字", "مرحبا", "🙂", "a  b", "C:\\dir", "\u00a0"])
def test_what_is_seen_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


@given(st.text())
def test_nothing_hidden_is_left_and_a_second_call_changes_nothing(text: str) -> None:
    shown = visible(text)
    assert not any(unicodedata.category(each) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") for each in shown)
    assert visible(shown) == shown
    assert len(shown.splitlines()) <= 1


def test_a_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_line("a\n2*  broker\t\x1b[2J")
    print_lines(["a\tb\r", "c\u2028d"], keep=TABS, file=sys.stderr)
    assert capsys.readouterr() == ("a\\u000a2*  broker\\u0009\\u001b[2J\n", "a\tb\\u000d\nc\\u2028d\n")


def test_an_error_is_a_line_and_so_is_each_of_its_details(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object) -> None:
        with unverified_after_errors():
            raise ToolError("two are wrong:\n", details=["a\n: x", "b: y"])

    monkeypatch.setattr(main, "get_command", fails)
    assert main.run([]) == EXIT_INCOMPLETE
    assert capsys.readouterr().err == "klamm: two are wrong:\\u000a\na\\u000a: x\nb: y\n"


@given(st.text())
def test_json_stays_json(text: str) -> None:
    out = io.StringIO()
    print_line(json.dumps({"name": text}), file=out)
    assert out.getvalue().isascii() and out.getvalue()[:-1].isprintable()
    assert json.loads(out.getvalue()) == {"name": text}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_data_are_shown_to_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    data_output().writelines([b'{\n\t"a": "\x1b[2J\xe2\x80\xae\xff"}\r\n', b"\xc3\xa4\n"])
    data_output().flush()
    assert terminal.getvalue() == '{\n\t"a": "\\u001b[2J\\u202e\\xff"}\\u000d\nä\n'


def test_data_reach_a_program_as_they_are(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    data_output().writelines([b"\x1b[2J\xe2\x80\xae\xff\r\n"])
    data_output().flush()
    assert capsysbinary.readouterr().out == b"\x1b[2J\xe2\x80\xae\xff\r\n"
