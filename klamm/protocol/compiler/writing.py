"""The functions that compiled functions call, and the writer of the lines of compiled functions."""

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from uuid import UUID

from klamm.protocol import primitives
from klamm.protocol.primitives import Buffer, InvalidFrame
from klamm.protocol.schema import ZEROS, Field, Request, Struct, fields_of

# How many bytes one step reads or writes, in at most about a millisecond. Records cost nothing and do not count. In a
# step that counts error codes, this is the number of elements.
STEP_BYTES = 8 * 1024
# Copying fewer bytes than this into the head of a frame costs less than another buffer in the system call.
INLINE_BYTES = 4096

# The letters of `struct` for types of a fixed size. UUIDs and bit fields are converted afterwards.
CODES = {
    "Int8": "b",
    "Int16": "h",
    "Uint16": "H",
    "Int32": "i",
    "Int64": "q",
    "Float64": "d",
    "Bool": "?",
    "Uuid": "16s",
    "BitField": "i",
}
CONVERTED = ("Uuid", "BitField")
_LOWEST_INT32 = -(2**31)
SHORT = 33


def _read_tags(data: Buffer, position: int, left: int) -> tuple[dict[int, tuple[int, int]], int, int]:
    elements = [left]
    tags, position = primitives.read_tagged_fields(data, position, elements)
    return tags, position, elements[0]


def _skip_tags(data: Buffer, position: int, left: int) -> tuple[int, int]:
    elements = [left]
    return primitives.skip_tagged_fields(data, position, elements), elements[0]


def _check_count(count: int, element_bytes: int, data: Buffer, position: int, left: int) -> None:
    """Raises InvalidFrame for a count that is negative, does not fit into the frame or means too much work."""
    if count < 0:
        raise InvalidFrame("null where an array is required" if count == -1 else f"a count of {count}", position)
    primitives.check_count(count, element_bytes, data, position, [left])


def _check_null(count: int, position: int) -> None:
    if count != -1:
        raise InvalidFrame(f"a count of {count}", position)


def _read_data(data: Buffer, position: int, flexible: bool, nullable: bool) -> tuple[memoryview | None, int]:
    value, end = primitives.read_records(data, position, flexible)
    if value is None and not nullable:
        raise InvalidFrame(f"-1 bytes of data, but {len(data) - end} are left", end)
    return value, end


def _check_marker(marker: int, position: int) -> None:
    if marker != 1:
        raise InvalidFrame(f"a struct begins with {marker}, allowed are 1 (present) and 255 (null)", position)


def _uuid(value: bytes) -> UUID | None:
    return UUID(bytes=value) if any(value) else None


def _bits(value: int) -> set[int] | None:
    return None if value == _LOWEST_INT32 else {bit for bit in range(32) if value >> bit & 1}


def _bits_of(value: set[int] | None) -> int:
    if value is None:
        return _LOWEST_INT32
    number = sum(1 << bit for bit in value)
    return number - 2**32 if number >= 2**31 else number


_FAULTS = (InvalidFrame, struct.error, IndexError, UnicodeDecodeError)


class Place(NamedTuple):
    """The fields that a line reads: one path, or the paths of fields that are read together, each with its end.

    A part of a path is a field's name or, after a star, the name of the list that holds the elements read so far.
    """

    path: tuple[str, ...]
    run: tuple[tuple[tuple[str, ...], int], ...] = ()


def _explain(error: Exception, places: Sequence[Place]) -> InvalidFrame:
    """The error for the bytes, with the path of the field that the failing line reads."""
    assert error.__traceback__ is not None
    frame, line = error.__traceback__.tb_frame, error.__traceback__.tb_lineno
    variables = frame.f_locals
    # The variables in the traceback would keep the frame in memory.
    error.__traceback__ = None
    place, position = places[line], variables["p"]
    cut = [path for path, end in place.run if position + end > len(variables["data"])]
    names = cut[0] if cut else place.path
    path = [f"[{len(variables[name[1:]])}]" if name[0] == "*" else name for name in names]
    if isinstance(error, InvalidFrame):
        return InvalidFrame(error.reason, error.position, *path, *error.path)
    if isinstance(error, UnicodeDecodeError):
        return InvalidFrame(f"text that is not UTF-8 ({error.reason})", position + error.start, *path)
    return InvalidFrame("the frame ends within the field", position, *path)


HELPERS: dict[str, Any] = {
    "FAULTS": _FAULTS,
    "INLINE": INLINE_BYTES,
    "InvalidFrame": InvalidFrame,
    "STEP": STEP_BYTES,
    "bits": _bits,
    "bits_of": _bits_of,
    "check_count": _check_count,
    "check_end": primitives.check_end,
    "check_marker": _check_marker,
    "check_null": _check_null,
    "explain": _explain,
    "new": object.__new__,
    "pack": struct.pack,
    "read_compact_nullable_string": primitives.read_compact_nullable_string,
    "read_compact_string": primitives.read_compact_string,
    "read_data": _read_data,
    "read_length": primitives.read_length,
    "read_nullable_string": primitives.read_nullable_string,
    "read_string": primitives.read_string,
    "read_tags": _read_tags,
    "skip_tags": _skip_tags,
    "unpack_from": struct.unpack_from,
    "uuid": _uuid,
    "uuid_bytes": primitives.uuid_bytes,
    "varint": primitives.unsigned_varint,
}


class Writer:
    """The lines of one function, and the constants it uses."""

    def __init__(self, version: int, flexible: bool, in_steps: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.in_steps = in_steps
        self.lines: list[str] = []
        self.places: list[Place] = [Place(())]
        self.constants: dict[str, Any] = dict(HELPERS)
        self.path: tuple[str, ...] = ()
        self._indent = 0
        self._names = 0

    def add(self, line: str, place: Place | None = None) -> None:
        self.lines.append("    " * self._indent + line)
        self.places.append(place or Place(self.path))

    @contextmanager
    def block(self, line: str) -> Iterator[None]:
        self.add(line)
        self._indent += 1
        yield
        self._indent -= 1

    @contextmanager
    def within(self, *path: str) -> Iterator[None]:
        outer = self.path
        self.path = (*outer, *filter(None, path))
        yield
        self.path = outer

    def name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def constant(self, prefix: str, value: Any) -> str:
        for name, known in self.constants.items():
            if known is value:
                return name
        name = self.name(prefix)
        self.constants[name] = value
        return name

    def packed(self, method: str, codes: str) -> str:
        """The constant for a method of a `struct.Struct`."""
        name = f"{method}_{codes.replace('?', 'o')}"
        self.constants.setdefault(name, getattr(struct.Struct(">" + codes), method))
        return name

    def short_arrays(self, method: str, code: str) -> str:
        """The constant for a list of a method's forms for short arrays, by their length."""
        name = f"{method}s_{code.replace('?', 'o')}"
        if name not in self.constants:
            self.constants[name] = [getattr(struct.Struct(f">{count}{code}"), method) for count in range(SHORT)]
        return name

    def function(self, name: str) -> Any:
        source = "\n".join(self.lines)
        exec(compile(source, f"<{name}>", "exec"), self.constants)
        return self.constants["function"]

    def plain_fields(self, struct_class: type[Struct]) -> list[Field]:
        return [one for one in fields_of(struct_class) if one.is_plain_in(self.version)]

    def tagged_fields(self, struct_class: type[Struct]) -> list[Field]:
        tagged = [one for one in fields_of(struct_class) if one.is_tagged_in(self.version)]
        return sorted(tagged, key=lambda one: one.tag or 0) if self.flexible else []

    def least_bytes(self, field: Field) -> int:
        """The minimum size of a value of the field."""
        if field.is_array:
            return 1 if self.flexible else 4
        if isinstance(field.kind, str):
            if field.kind in CODES:
                return struct.calcsize(">" + CODES[field.kind])
            return 1 if self.flexible else 2 if field.kind == "String" else 4
        return 1 if self.version in field.nullable else self.least_struct_bytes(field.kind)

    def least_struct_bytes(self, struct_class: type[Struct]) -> int:
        return self.has_tags(struct_class) + sum(map(self.least_bytes, self.plain_fields(struct_class)))

    def has_tags(self, struct_class: type[Struct]) -> bool:
        untagged: Any = struct_class
        return self.flexible and self.version not in untagged._untagged

    def group(self, struct_class: type[Struct]) -> tuple[Field, Field, type[Struct]]:
        """The name of a flat array's groups, their list, and the class of its members."""
        name, members = self.plain_fields(struct_class)
        assert not isinstance(members.kind, str)
        return name, members, members.kind

    def default(self, field: Field) -> str:
        """An expression for the default of a field."""
        value = field.default
        if value is None or value == () or isinstance(value, (bool, int, str, bytes)):
            return repr(value)
        if field.makes_list:
            return "[]" if not value else f"[*{self.constant('default', value)}]"
        return self.constant("default", value)


def element(kind: str) -> Field:
    """A nameless field for an element of an array of this type."""
    return Field(Struct, "", kind, ZEROS[kind])


def nothing_kept(struct_class: type[Struct]) -> str:
    """The value of `_encoded` before a `Kept` is encoded."""
    return "{}" if issubclass(struct_class, Request) else "None"


def arrays_of(struct_class: type[Struct]) -> list[Field]:
    """The arrays that need a loop."""
    return [one for one in fields_of(struct_class) if one.is_array and one.kind not in CODES]


def has_own_error_code(struct_class: type[Struct]) -> bool:
    return any(one.name == "error_code" for one in fields_of(struct_class))


def has_error_codes(struct_class: type[Struct]) -> bool:
    return has_own_error_code(struct_class) or any(
        not isinstance(one.kind, str) and has_error_codes(one.kind) for one in arrays_of(struct_class)
    )
