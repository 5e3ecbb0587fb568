"""Java's .properties syntax, as `java.util.Properties` reads and writes it: server.properties, meta.properties.

Pure. What must stay true: `parse_properties`, and Java, read the output of `format_properties` back as the same pairs.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

_WHITESPACE = " \t\f"
_LINE_END = re.compile(r"\r\n|\n|\r")
_LETTER_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f", "\\": "\\\\"} | {c: "\\" + c for c in "=:#!"}
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")


class PropertiesError(ValueError):
    """The text is not in .properties syntax; the message names the line."""


def parse_properties(content: bytes) -> dict[str, str]:
    """The pairs of a .properties file, in ISO 8859-1 as in Java. For a repeated key the last value counts.

    Raises PropertiesError for a `\\u` escape without four hexadecimal digits, the only possible malformed input.
    """
    properties: dict[str, str] = {}
    for number, line in _logical_lines(content.decode("iso-8859-1")):
        try:
            key, value = _split(line)
        except PropertiesError as error:
            raise PropertiesError(f"line {number}: {error}") from None
        properties[key] = value
    return properties


def format_properties(properties: Mapping[str, str], comments: Sequence[str] = ()) -> bytes:
    """A .properties file: one `#` line for each comment, then one `key=value` line for each pair, in order."""
    lines = ["#" + _escape(comment, also=" ") if not comment.isprintable() else "#" + comment for comment in comments]
    for key, value in properties.items():
        escaped_key = _escape(key, also=" ")
        leading = len(value) - len(value.lstrip(" "))
        lines.append(f"{escaped_key}={_escape(value[:leading], also=' ')}{_escape(value[leading:])}")
    return "".join(line + "\n" for line in lines).encode("iso-8859-1", "backslashreplace")


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """(number of its first line, text) of each line that is neither blank nor a comment, continuations joined."""
    joined: str | None = None
    first_number = 0
    for number, natural in enumerate(_LINE_END.split(text), start=1):
        line = natural.lstrip(_WHITESPACE)
        if joined is None:
            # Only a line of its own can be a comment; inside a continuation, # and ! are text.
            if not line or line[0] in "#!":
                continue
            joined, first_number = "", number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            joined += line[:-1]
            continue
        yield first_number, joined + line
        joined = None
    if joined is not None:
        yield first_number, joined


def _split(line: str) -> tuple[str, str]:
    """Key and value of a logical line: the key ends at the first unescaped `=`, `:` or white space."""
    position = 0
    while position < len(line) and line[position] not in "=:" + _WHITESPACE:
        position += 2 if line[position] == "\\" else 1
    key, rest = line[:position], line[position:].lstrip(_WHITESPACE)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_WHITESPACE)
    return _unescape(key), _unescape(rest)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\":
            parts.append(character)
            continue
        escaped = text[position : position + 1]
        position += 1
        if escaped != "u":
            parts.append(_LETTER_ESCAPES.get(escaped, escaped))
            continue
        digits = text[position : position + 4]
        if len(digits) < 4 or not _HEX_DIGITS.issuperset(digits):
            # What stands there may be a part of a password.
            raise PropertiesError("\\u must be followed by four hexadecimal digits")
        parts.append(chr(int(digits, 16)))
        position += 4
    # Java's strings are UTF-16: two escapes may be the halves of one character.
    return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _escape(text: str, also: str = "") -> str:
    return "".join(map(lambda character: _escape_character(character, also), text))


def _escape_character(character: str, also: str) -> str:
    if character in also:
        return "\\" + character
    if character in _ESCAPED:
        return _ESCAPED[character]
    if " " <= character <= "~":
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2))
