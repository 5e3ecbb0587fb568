"""Matches users' regular expressions with names that any client may have chosen: topics, groups and ids.

What must stay true: each comparison ends. Python's engine tries all ways in which an expression may match, and `(a+)+b`
has 2^40 of them for forty letters. The engine holds the GIL meanwhile, so that not even Ctrl-C ends it. So only plainly
harmless expressions are compared in this process. Other expressions are compared in a process of their own with limited
processor time.
"""

import json
import re
import sys
import warnings
import weakref
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from subprocess import Popen

# The processor time that all comparisons with one expression may take together.
LIMIT_S: Final = 5.0

# An expression without repeated groups, with at most one other repetition and few choices has few ways to match.
_REPETITION: Final = re.compile(r"[*+{]")
_CHOICE: Final = re.compile(r"[?|]")
_REPEATED_GROUP: Final = re.compile(r"\)[*+{]|\\[1-9]|\(\?P=")
_FEW: Final = 8

_CHILD: Final = """
import json, re, signal, sys
text, flags, limit_s = json.loads(sys.stdin.readline())
signal.setitimer(signal.ITIMER_PROF, limit_s)  # when the time is used up, SIGPROF ends this process
pattern = re.compile(text, flags)
for line in sys.stdin:
    how, name = json.loads(line)
    sys.stdout.write("1" if getattr(pattern, how)(name) else "0")
    sys.stdout.flush()
"""


class InvalidPattern(ValueError):
    """The text is not a regular expression; the message says why."""


class PatternTooSlow(ValueError):
    """The comparisons with an expression take too long; the message is a sentence for its author."""


class Pattern:
    """A regular expression. The constructor raises InvalidPattern, the comparisons raise PatternTooSlow."""

    def __init__(self, text: str, flags: int = 0) -> None:
        self.text = text
        self._flags = flags
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Python warns of syntax whose meaning may change.
                self._pattern = re.compile(text, flags)
        except (re.error, OverflowError, RecursionError) as error:
            raise InvalidPattern(str(error)) from None
        self._is_harmless = (
            len(_REPETITION.findall(text)) <= 1
            and len(_CHOICE.findall(text)) <= _FEW
            and _REPEATED_GROUP.search(text) is None
        )
        self._child: Popen[str] | None = None

    def fullmatch(self, name: str) -> bool:
        """Whether the whole name matches."""
        return self._pattern.fullmatch(name) is not None if self._is_harmless else self._ask("fullmatch", name)

    def search(self, name: str) -> bool:
        """Whether a part of the name matches."""
        return self._pattern.search(name) is not None if self._is_harmless else self._ask("search", name)

    def _ask(self, how: str, name: str) -> bool:
        if self._child is None:
            self._child = self._start()
        requests, answers = _pipes(self._child)
        try:
            requests.write(json.dumps([how, name]) + "\n")
            requests.flush()
            answer = answers.read(1)
        except OSError:
            answer = ""
        if not answer:
            raise PatternTooSlow(
                f"{self.text!r} takes more than {LIMIT_S:g} s: it can match a name in too many ways, as a repetition"
                " within a repetition can"
            )
        return answer == "1"

    def _start(self) -> "Popen[str]":
        # Imported here: most commands start no process.
        from subprocess import DEVNULL, PIPE, Popen

        child = Popen(
            [sys.executable, "-I", "-S", "-c", _CHILD], stdin=PIPE, stdout=PIPE, stderr=DEVNULL, encoding="ascii"
        )
        weakref.finalize(self, _end, child)
        requests, _ = _pipes(child)
        requests.write(json.dumps([self.text, self._flags, LIMIT_S]) + "\n")
        return child


def _pipes(child: "Popen[str]") -> tuple[IO[str], IO[str]]:
    assert child.stdin is not None and child.stdout is not None
    return child.stdin, child.stdout


def _end(child: "Popen[str]") -> None:
    child.kill()
    child.communicate()
