"""JSON for the page's script, whose numbers are exact up to 2**53 only.

What must stay true: an integer that the script would round becomes a text: producer ids, timestamps and committed
offsets are what any client has written, and a sum of them may be beyond 64 bits.
"""

from typing import Any, Final

import orjson

MOST_EXACT: Final = 2**53 - 1


def encoded_json(value: Any) -> bytes:
    """`value` is what orjson takes, with integers of any size."""
    try:
        return orjson.dumps(value, option=orjson.OPT_STRICT_INTEGER)
    except TypeError:
        return orjson.dumps(_exact(value))


def _exact(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _exact(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_exact(each) for each in value]
    return str(value) if isinstance(value, int) and abs(value) > MOST_EXACT else value
