"""JSON as bytes, and the check that a value has the form that was asked for.

A form is a type: a msgspec.Struct for an object whose fields are known, a NamedTuple for a list. Objects may have more
fields than their form.

What must stay true: whatever the bytes are, reading them returns or raises JsonError. They may be of any program: a
znode that was edited by hand, a file, the answer of a port.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")


class JsonError(ValueError):
    """The bytes are not JSON, or not of the form that was asked for. The message says what is wrong, and where."""


encode: Final[Callable[[Any], bytes]] = msgspec.json.Encoder().encode
"""The shortest form. Integers may have any size; a number that is not finite becomes null. Raises TypeError for a value
that JSON does not have, and ValueError for a text that UTF-8 does not have."""


_read: Final = msgspec.json.Decoder().decode


def decode(data: bytes) -> Any:
    """Dicts, lists, texts, numbers, booleans and None. Raises JsonError."""
    try:
        return _read(data)
    except (ValueError, RecursionError) as error:
        raise JsonError(str(error)) from None


def of_form(value: Any, form: type[T]) -> T:
    """A decoded value as one of this form. Raises JsonError."""
    try:
        return msgspec.convert(value, form)
    except (ValueError, RecursionError) as error:
        raise JsonError(str(error)) from None
