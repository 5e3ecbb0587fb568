"""Users' regular expressions, and names of topics, groups and ids that any client may have made.

What must stay true: each comparison ends. Python's engine tries the ways in which an expression matches one after the
other, and `(a+)+b` has 2^40 ways to fail at forty letters. It holds the interpreter's lock meanwhile, so that not even
Ctrl-C ends it. So only an expression that is plainly harmless is compared in this process; any other in a process of
its own, whose processor time is limited.
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

# Without a repetition of a group, with one other repetition and few choices there are few ways to match.
_REPETITION: Final = re.compile(r"[*+{]")
_CHOICE: Final = re.compile(r"[?|]")
_REPEATED_GROUP: Final = re.compile(r"\)[*+{]|\\[1-9]|\(\?P=")
_FEW: Final = 8

_CHILD: Final = """
import json, re, signal, sys
text, flags, limit_s = json.loads(sys.stdin.readline())
signal.setitimer(signal.ITIMER_PROF, limit_s)  # its end is the end of this process
pattern = re.compile(text, flags)
for line in sys.stdin:
    how, name = json.loads(line)
    sys.stdout.write("1" if getattr(pattern, how)(name) else "0")
    sys.stdout.flush()
"""


class InvalidPattern(ValueError):
    """Not a regular expression; the message says why."""


class PatternTooSlow(ValueError):
    """The comparisons with an expression take too long; the message is a sentence for its author."""


class Pattern:
    """A regular expression. Raises InvalidPattern; the comparisons raise PatternTooSlow."""

    def __init__(self, text: str, flags: int = 0) -> None:
        self.text = text
        self._flags = flags
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # What later versions of Python may read in another way.
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
        # Most commands need no other process.
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
