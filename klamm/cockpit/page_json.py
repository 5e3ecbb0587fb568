"""JSON for the page's script, whose numbers are exact up to 2**53 only.

What must stay true: an integer that the script would round becomes a text. Clients may write any producer id, timestamp
and committed offset, and their sums may exceed 64 bits.
"""

import re
from typing import Any, Final

from klamm.base import json_bytes

MOST_EXACT: Final = 2**53 - 1
# A larger integer has at least this many digits. Texts and numbers with a decimal point may have as many.
_MANY_DIGITS: Final = b"0" * 16
_AS_DIGITS: Final = bytes(0x30 if chr(byte).isdecimal() else 0x20 for byte in range(256))
_INTEGER: Final = re.compile(rb"(?<![0-9.])[0-9]{16}")


def encoded_json(value: Any) -> bytes:
    """`value` is what `json_bytes.encode` takes."""
    encoded = json_bytes.encode(value)
    # The first search is quick, and excludes most values.
    if _MANY_DIGITS in encoded.translate(_AS_DIGITS) and _INTEGER.search(encoded):
        return json_bytes.encode(_with_exact_integers(value))
    return encoded


def _with_exact_integers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_exact_integers(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_exact_integers(each) for each in value]
    return str(value) if isinstance(value, int) and abs(value) > MOST_EXACT else value
