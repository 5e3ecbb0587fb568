"""The error for a message that cannot be encoded: it names the field whose value does not fit the protocol.

Encoders check nothing themselves, because that would cost time for every message. Only after an encoder has failed,
this module searches the message for the reason.
"""

import struct
from typing import Any
from uuid import UUID

from klamm.protocol.compiler.writing import CODES
from klamm.protocol.primitives import MAX_STRING_BYTES
from klamm.protocol.schema import Field, Struct, fields_of


class UnencodableMessage(Exception):
    """A message with a value that its field cannot hold. The program that made the message is at fault."""


def unencodable(message: Any, message_class: type[Struct], version: int, flexible: bool, error: Exception) -> Exception:
    """The error to raise for a message whose encoder has raised `error`."""
    name = message_class.__name__
    if not isinstance(message, message_class):
        return UnencodableMessage(f"{name} v{version}: it is a {type(message).__name__}")
    path, reason = _fault_of_struct(message, version, flexible) or ((), f"{type(error).__name__}: {error}")
    where = ".".join(path).replace(".[", "[")
    return UnencodableMessage(": ".join(filter(None, (f"{name} v{version}", where, reason))))


_Fault = tuple[tuple[str, ...], str] | None
"""The path of a value, and why it cannot be encoded; None if it can."""


def _fault_of_struct(message: Struct, version: int, flexible: bool) -> _Fault:
    for field in fields_of(type(message)):
        if version not in field.versions or (field.is_tagged_in(version) and not flexible):
            continue
        found = _fault_of_field(field, getattr(message, field.name), version, flexible)
        if found is not None:
            path, reason = found
            return (field.name, *path), reason
    return None


def _fault_of_field(field: Field, value: Any, version: int, flexible: bool) -> _Fault:
    if value is None and (version in field.nullable or field.is_left_out_as_none):
        return None
    if not field.is_array:
        return _fault_of_value(field.kind, value, version, flexible)
    if not isinstance(value, (list, tuple)):
        return (), f"{_shown(value)} is not a list"
    for position, element in enumerate(value):
        found = _fault_of_value(field.kind, element, version, flexible)
        if found is not None:
            path, reason = found
            return (f"[{position}]", *path), reason
    return None


def _fault_of_value(kind: str | type[Struct], value: Any, version: int, flexible: bool) -> _Fault:
    if not isinstance(kind, str):
        if isinstance(value, kind):
            return _fault_of_struct(value, version, flexible)
        return (), f"{_shown(value)} is not a {kind.__name__}"
    return None if _fits(kind, value, flexible) else ((), f"{_shown(value)} does not fit {kind}")


def _fits(kind: str, value: Any, flexible: bool) -> bool:
    match kind:
        case "String":
            return isinstance(value, str) and _is_text(value) and (flexible or len(value.encode()) <= MAX_STRING_BYTES)
        case "Bytes" | "Records":
            return isinstance(value, (bytes, bytearray, memoryview))
        case "Uuid":
            return value is None or isinstance(value, UUID)
        case "BitField":
            return value is None or (isinstance(value, set) and value <= set(range(32)))
        case _:
            return _can_be_packed(CODES[kind], value)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _can_be_packed(code: str, value: Any) -> bool:
    try:
        struct.pack(f">{code}", value)
    except (struct.error, OverflowError):
        return False
    return True


def _shown(value: Any) -> str:
    """A value as an error shows it. Texts and bytes may be long or secret."""
    if value is None:
        return "null"
    if isinstance(value, (int, float)):
        return str(value)
    size = f" of length {len(value)}" if isinstance(value, (str, bytes, bytearray, memoryview)) else ""
    return f"a {type(value).__name__}{size}"
