"""JSON as bytes: the one place that knows which library reads and writes it.

What must stay true: whatever the bytes are, `decode` returns or raises JsonError. They may be of any program: a znode
that was edited by hand, a file, the answer of a port.
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


def decoder(form: type[T]) -> Callable[[bytes], T]:
    """Reads JSON of this form, which may be a msgspec.Struct: the types must agree, and fields may be more."""
    read = msgspec.json.Decoder(form).decode

    def decode(data: bytes) -> T:
        try:
            return read(data)
        except (ValueError, RecursionError) as error:
            raise JsonError(str(error)) from None

    return decode


decode: Final[Callable[[bytes], Any]] = decoder(Any)
"""Dicts, lists, texts, numbers, booleans and None. Raises JsonError."""
