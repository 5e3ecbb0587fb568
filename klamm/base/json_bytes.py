"""JSON as bytes, and the check that a value has a given form.

A form is a type: a msgspec.Struct for an object with known fields, a NamedTuple for a list. Objects may have more
fields than their form.

What must stay true: reading arbitrary bytes returns or raises JsonError. The bytes may come from any program: a znode
that was edited by hand, a file, the answer of a port.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")


class JsonError(ValueError):
    """The bytes are not JSON, or not of the given form. The message says what is wrong, and where."""


encode: Final[Callable[[Any], bytes]] = msgspec.json.Encoder().encode
"""Encodes without blanks. Integers may have any size; infinity and NaN become null. Raises TypeError for a value that
JSON does not have, and ValueError for a text that UTF-8 cannot encode."""


_read: Final = msgspec.json.Decoder().decode


def decode(data: bytes) -> Any:
    """Dicts, lists, texts, numbers, booleans and None. Raises JsonError."""
    try:
        return _read(data)
    except (ValueError, RecursionError) as error:
        raise JsonError(str(error)) from None


def of_form(value: Any, form: type[T]) -> T:
    """Converts a decoded value to this form. Raises JsonError."""
    try:
        return msgspec.convert(value, form)
    except (ValueError, RecursionError) as error:
        raise JsonError(str(error)) from None
