"""Parses `sasl.jaas.config`, the property that holds the credentials of Kafka's clients:

    org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="secret";

What must stay true: no error message repeats any part of the line, because everything in it may be the password.

Source: org.apache.kafka.common.security.JaasConfig, whose tokens are those of java.io.StreamTokenizer.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""(?P<space>[\x00-\x20]+|//[^\r\n]*|/\*.*?\*/)
    |(?P<word>[A-Za-z_$\u00a0-\U0010ffff][\w.$\u00a0-\U0010ffff-]*)
    |"(?P<double>(?:[^"\\\r\n]|\\.)*)"
    |'(?P<single>(?:[^'\\\r\n]|\\.)*)'
    |(?P<mark>[=;])""",
    re.DOTALL | re.VERBOSE,
)
_ESCAPE = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_FLAGS = ("required", "requisite", "sufficient", "optional")
_FORM = 'LoginModule required username="..." password="...";'


class JaasError(ValueError):
    """Not a valid JAAS line. The message says where the error is, but repeats no part of the line."""


@dataclass(frozen=True, slots=True)
class LoginModule:
    """A Java class with its options."""

    name: str
    options: dict[str, str] = field(repr=False)


def parse_login_module(line: str) -> LoginModule:
    """The one login module of a `sasl.jaas.config`. Raises JaasError."""
    tokens = _Tokens(line)
    name = tokens.word("the login module")
    tokens.word("the word required", allowed=_FLAGS)
    options = {}
    while not tokens.skip(";"):
        key = tokens.word("an option or a semicolon")
        if not tokens.skip("="):
            raise tokens.error("an option is followed by = and its value")
        options[key] = tokens.word("a value in quotation marks", quoted=True)
    if not tokens.at_end:
        raise tokens.error("there is one login module, and nothing comes after its semicolon")
    return LoginModule(name, options)


class _Tokens:
    """The rest of a line."""

    def __init__(self, line: str) -> None:
        self._line = line
        self._position = 0
        self._skip_space()

    @property
    def at_end(self) -> bool:
        return self._position == len(self._line)

    def skip(self, mark: str) -> bool:
        """Takes this mark if it is the next token; returns whether it was."""
        found = self._line.startswith(mark, self._position)
        if found:
            self._position += len(mark)
            self._skip_space()
        return found

    def word(self, what: str, *, quoted: bool = False, allowed: Sequence[str] = ()) -> str:
        """Takes a word: one of `allowed`, in any case, if given. With `quoted`, also a text in quotation marks."""
        match = _TOKEN.match(self._line, self._position)
        kind = match.lastgroup if match is not None else None
        if match is None or kind is None or kind in {"space", "mark"} or (kind != "word" and not quoted):
            raise self.error(f"{what} is missing")
        text = match[kind]
        if allowed and text.lower() not in allowed:
            raise self.error(f"{what} is missing")
        self._position = match.end()
        self._skip_space()
        return text if kind == "word" else _ESCAPE.sub(_unescape, text)

    def error(self, message: str) -> JaasError:
        where = "at its end" if self.at_end else f"at character {self._position + 1}"
        return JaasError(f"{where}: {message}; allowed: {_FORM}")

    def _skip_space(self) -> None:
        while (match := _TOKEN.match(self._line, self._position)) is not None and match.lastgroup == "space":
            self._position = match.end()


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code, 8)) if code[0] in "01234567" else _ESCAPED.get(code, code)
