"""Makes text from other programs safe to show: names, ids, config values, headers, messages.

What must stay true: any client may have written the text. `visible` leaves no character that moves, hides or reorders
other characters: control characters, line separators, bidirectional marks, zero-width characters. So one line stays one
line, and hidden characters cannot make two names look alike.
"""

import re
import unicodedata
from typing import Final

# Control, format (including bidirectional marks), surrogates, private use, unassigned; line and paragraph separators.
_HIDDEN_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# Letters and marks that are not drawn (Unicode's Default_Ignorable_Code_Point beyond the categories above).
_NOT_DRAWN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def visible(text: str, *, keep: str = "") -> str:
    """The text without invisible characters: each becomes an escape such as \\u202e, except those of `keep`.

    Visible text is returned unchanged, so a second call changes nothing.
    """
    if text.isprintable() and (text.isascii() or _NOT_DRAWN.search(text) is None):
        return text
    return "".join(each if each in keep or not is_hidden(each) else _escape(each) for each in text)


def is_hidden(character: str) -> bool:
    return unicodedata.category(character) in _HIDDEN_CATEGORIES or _NOT_DRAWN.match(character) is not None


def _escape(character: str) -> str:
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
