"""Strict decoding of messages: whatever a peer sends is either exactly a message of the schema, or refused.

`compile_decoder` turns a message class of kafka-python into a decoder for one version. The schema and the classes are
the library's; reading is done here, because the library's own decoder accepts cut strings, negative lengths and
trailing bytes.

What must stay true:
- A decoder raises `InvalidFrame`, and nothing else, for any bytes that are not such a message: cut or oversized fields,
  null where the schema allows none, text that is not UTF-8, tagged fields out of order or of another size than theirs,
  bytes after the end.
- The work and memory that a frame costs are bounded before they are spent: an array's count must fit into the bytes
  that follow it, and all arrays and tagged fields of a message together hold at most `max_elements` elements.
"""

import struct
import uuid
from collections.abc import Callable
from typing import Any

from klamm.protocol.primitives import (
    Buffer,
    InvalidFrame,
    Steps,
    check_count,
    check_end,
    read_compact_nullable_string,
    read_compact_string,
    read_length,
    read_nullable_string,
    read_string,
    read_tagged_fields,
    read_uuid,
)

__all__ = ["MAX_ELEMENTS", "Buffer", "Decoder", "InvalidFrame", "compile_decoder"]

# A reader takes the frame, a position in it and what is left of the message's elements (a list of one number, so that
# all readers count down the same one); it returns the value and the position after it.
Reader = Callable[[Buffer, int, list[int]], tuple[Any, int]]
ReaderInSteps = Callable[[Buffer, int, list[int]], Steps[tuple[Any, int]]]
Decoder = Callable[[Buffer, int], Any]

MAX_ELEMENTS = 100_000
# What a step of decoding reads: a millisecond or two.
ELEMENTS_PER_STEP = 1_000

_FIXED = {
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "uint16": struct.Struct(">H"),
    "int32": struct.Struct(">i"),
    "int64": struct.Struct(">q"),
    "float64": struct.Struct(">d"),
    "bool": struct.Struct(">?"),
}
_INT32 = _FIXED["int32"]


def compile_decoder(
    message_class: Any, version: int, max_elements: int = MAX_ELEMENTS, surplus_bytes: int = 0
) -> Decoder:
    """A function (frame, position of the body) -> message, for one version of a kafka-python message class.

    Exactly `surplus_bytes` more may follow the message, for a client known to send them.
    """
    flexible = message_class.flexible_version_q(version)
    read = _struct_reader(message_class._struct, message_class, version, flexible)[0]

    def decode(data: Buffer, position: int) -> Any:
        message, position = read(data, position, [max_elements])
        if len(data) - position != surplus_bytes:
            check_end(data, position)
        return message

    return decode


def compile_steps(
    message_class: Any, version: int, max_elements: int = MAX_ELEMENTS, surplus_bytes: int = 0
) -> Callable[[Buffer, int], Steps[Any]]:
    """As `compile_decoder`, in steps of `ELEMENTS_PER_STEP`."""
    flexible = message_class.flexible_version_q(version)
    read = _struct_reader_in_steps(message_class._struct, message_class, version, flexible)

    def decode(data: Buffer, position: int) -> Steps[Any]:
        message, position = yield from read(data, position, [max_elements])
        if len(data) - position != surplus_bytes:
            check_end(data, position)
        return message

    return decode


def _struct_reader_in_steps(schema: Any, data_class: Any, version: int, flexible: bool) -> ReaderInSteps:
    """As `_struct_reader`, but its arrays of structs are read in steps."""
    arrays: dict[str, ReaderInSteps] = {}
    for field in schema.untagged_fields(version):
        if field.is_struct_array():
            arrays[field.name] = _array_reader_in_steps(field, version, flexible)
    fields = [(field.name, _field_reader(field, version, flexible)[0]) for field in schema.untagged_fields(version)]
    read_tags = _tags_reader(schema, version) if flexible else None

    def read(data: Buffer, position: int, elements: list[int]) -> Steps[tuple[Any, int]]:
        message = object.__new__(data_class)
        message._version = version
        message.tags = None
        message.unknown_tags = None
        name = ""
        try:
            for name, read_field in fields:
                read_array = arrays.get(name)
                if read_array is None:
                    value, position = read_field(data, position, elements)
                else:
                    value, position = yield from read_array(data, position, elements)
                setattr(message, name, value)
            if read_tags is not None:
                name = "tagged fields"
                position = read_tags(message, data, position, elements)
        except InvalidFrame as error:
            error.path.insert(0, name)
            raise
        except (struct.error, IndexError):
            raise InvalidFrame("the frame ends within the field", position, name) from None
        return message, position

    return read


def _array_reader_in_steps(field: Any, version: int, flexible: bool) -> ReaderInSteps:
    nullable = field.nullable_for_version_q(version)
    read_element, element_bytes = _struct_reader(field.array_of, field.data_class, version, flexible)
    has_arrays = any(inner.is_struct_array() for inner in field.array_of.untagged_fields(version))
    read_in_steps = _struct_reader_in_steps(field.array_of, field.data_class, version, flexible) if has_arrays else None

    def read(data: Buffer, position: int, elements: list[int]) -> Steps[tuple[list[Any] | None, int]]:
        count, position = _read_count(data, position, nullable, flexible)
        if count < 0:
            return None, position
        check_count(count, max(1, element_bytes), data, position, elements)
        values: list[Any] = []
        left, in_step = elements[0], 0
        try:
            for _ in range(count):
                if read_in_steps is None:
                    value, position = read_element(data, position, elements)
                else:
                    value, position = yield from read_in_steps(data, position, elements)
                values.append(value)
                in_step += 1
                if in_step + left - elements[0] >= ELEMENTS_PER_STEP:
                    left, in_step = elements[0], 0
                    yield
        except InvalidFrame as error:
            error.path.insert(0, f"[{len(values)}]")
            raise
        return values, position

    return read


def _struct_reader(schema: Any, data_class: Any, version: int, flexible: bool) -> tuple[Reader, int]:
    """The reader of a struct and the least number of bytes it takes."""
    steps: list[tuple[str, Reader]] = []
    least_bytes = 1 if flexible else 0
    for field in schema.untagged_fields(version):
        reader, size_bytes = _field_reader(field, version, flexible)
        steps.append((field.name, reader))
        least_bytes += size_bytes
    read_tags = _tags_reader(schema, version) if flexible else None
    knows_tags = flexible and any(
        field.for_version_q(version) and field.tagged_field_q(version) for field in schema._fields
    )

    def read(data: Buffer, position: int, elements: list[int]) -> tuple[Any, int]:
        message = object.__new__(data_class)
        message._version = version
        message.tags = None
        message.unknown_tags = None
        name = ""
        try:
            for name, read_field in steps:
                value, position = read_field(data, position, elements)
                setattr(message, name, value)
            if read_tags is not None:
                name = "tagged fields"
                if not knows_tags and data[position] == 0:
                    return message, position + 1
                position = read_tags(message, data, position, elements)
        except InvalidFrame as error:
            error.path.insert(0, name)
            raise
        except (struct.error, IndexError):
            raise InvalidFrame("the frame ends within the field", position, name) from None
        return message, position

    return read, least_bytes


def _tags_reader(schema: Any, version: int) -> Callable[[Any, Buffer, int, list[int]], int]:
    """Reads a struct's tagged fields into its message; the position after them."""
    tagged: dict[int, tuple[str, Reader]] = {}
    for field in schema._fields:
        if field.for_version_q(version) and field.tagged_field_q(version):
            tagged[field.tag] = (field.name, _field_reader(field, version, True)[0])
    # The fields that a tagged section may leave out get their defaults now: nothing else would set them.
    defaults = [(name, schema.fields[name]) for name, _ in tagged.values()]

    def read(message: Any, data: Buffer, position: int, elements: list[int]) -> int:
        for name, field in defaults:
            setattr(message, name, field.default)
        if data[position] == 0:
            return position + 1
        values, position = read_tagged_fields(data, position, elements)
        for tag, (start, end) in values.items():
            if tag in tagged:
                name, read_field = tagged[tag]
                try:
                    value, value_end = read_field(data, start, elements)
                    if value_end != end:
                        raise InvalidFrame(f"a tagged field of {end - start} bytes, not {value_end - start}", start)
                except InvalidFrame as error:
                    error.path.insert(0, name)
                    raise
                setattr(message, name, value)
        return position

    return read


def _field_reader(field: Any, version: int, flexible: bool) -> tuple[Reader, int]:
    nullable = field.nullable_for_version_q(version)
    if field.is_struct():
        reader, size_bytes = _struct_reader(field, field.data_class, version, flexible)
        return (_nullable_struct_reader(reader), 1) if nullable else (reader, size_bytes)
    if field.is_struct_array():
        element, size_bytes = _struct_reader(field.array_of, field.data_class, version, flexible)
        return _array_reader(element, size_bytes, nullable, flexible)
    if field.is_array():
        element_type = field.array_of.type_str
        if element_type in _FIXED:
            return _fixed_array_reader(element_type, nullable, flexible)
        return _array_reader(*_simple_reader(element_type, False, flexible), nullable, flexible)
    return _simple_reader(field.type_str, nullable, flexible)


def _simple_reader(type_name: str, nullable: bool, flexible: bool) -> tuple[Reader, int]:
    if type_name in _FIXED:
        return _fixed_reader(_FIXED[type_name])
    if type_name == "string":
        functions: dict[tuple[bool, bool], Callable[[Buffer, int], tuple[str | None, int]]] = {
            (False, False): read_string,
            (False, True): read_nullable_string,
            (True, False): read_compact_string,
            (True, True): read_compact_nullable_string,
        }
        function = functions[flexible, nullable]
        return (lambda data, position, elements: function(data, position)), 1 if flexible else 2
    if type_name in ("bytes", "records"):
        return _bytes_reader(nullable, flexible)
    if type_name == "uuid":
        return _read_uuid, 16
    if type_name == "bitfield":
        return _read_bit_field, 4
    raise TypeError(f"no reader for schema type {type_name}")


def _fixed_reader(fixed: struct.Struct) -> tuple[Reader, int]:
    unpack_from, size_bytes = fixed.unpack_from, fixed.size

    def read(data: Buffer, position: int, elements: list[int]) -> tuple[Any, int]:
        return unpack_from(data, position)[0], position + size_bytes

    return read, size_bytes


def _bytes_reader(nullable: bool, flexible: bool) -> tuple[Reader, int]:
    def read(data: Buffer, position: int, elements: list[int]) -> tuple[bytes | None, int]:
        if flexible:
            length, position = read_length(data, position)
        else:
            (length,) = _INT32.unpack_from(data, position)
            position += 4
        if length == -1 and nullable:
            return None, position
        if not 0 <= length <= len(data) - position:
            raise InvalidFrame(f"{length} bytes of data, but {len(data) - position} are left", position)
        end = position + length
        return bytes(data[position:end]), end

    return read, 1 if flexible else 4


def _read_uuid(data: Buffer, position: int, elements: list[int]) -> tuple[uuid.UUID | None, int]:
    return read_uuid(data, position)


def _read_bit_field(data: Buffer, position: int, elements: list[int]) -> tuple[set[int] | None, int]:
    # The numbers of the bits that are set; the lowest int32, which on the wire means "not asked for", is None.
    (bits,) = _INT32.unpack_from(data, position)
    if bits == -(2**31):
        return None, position + 4
    return {bit for bit in range(32) if bits >> bit & 1}, position + 4


def _read_count(data: Buffer, position: int, nullable: bool, flexible: bool) -> tuple[int, int]:
    if flexible:
        count, position = read_length(data, position)
    else:
        (count,) = _INT32.unpack_from(data, position)
        position += 4
    if count < 0 and not (count == -1 and nullable):
        raise InvalidFrame("null where an array is required" if count == -1 else f"a count of {count}", position)
    return count, position


def _array_reader(element: Reader, element_bytes: int, nullable: bool, flexible: bool) -> tuple[Reader, int]:
    element_bytes = max(1, element_bytes)

    def read(data: Buffer, position: int, elements: list[int]) -> tuple[list[Any] | None, int]:
        count, position = _read_count(data, position, nullable, flexible)
        if count < 0:
            return None, position
        check_count(count, element_bytes, data, position, elements)
        values = []
        try:
            for _ in range(count):
                value, position = element(data, position, elements)
                values.append(value)
        except InvalidFrame as error:
            error.path.insert(0, f"[{len(values)}]")
            raise
        return values, position

    return read, 1 if flexible else 4


def _fixed_array_reader(type_name: str, nullable: bool, flexible: bool) -> tuple[Reader, int]:
    code, size_bytes = _FIXED[type_name].format[1:], _FIXED[type_name].size

    def read(data: Buffer, position: int, elements: list[int]) -> tuple[list[Any] | None, int]:
        count, position = _read_count(data, position, nullable, flexible)
        if count < 0:
            return None, position
        check_count(count, size_bytes, data, position, elements)
        return list(struct.unpack_from(f">{count}{code}", data, position)), position + count * size_bytes

    return read, 1 if flexible else 4


def _nullable_struct_reader(reader: Reader) -> Reader:
    def read(data: Buffer, position: int, elements: list[int]) -> tuple[Any, int]:
        marker = data[position]
        if marker == 0xFF:
            return None, position + 1
        if marker != 1:
            raise InvalidFrame(f"a struct begins with {marker}, allowed are 1 (present) and 255 (null)", position)
        return reader(data, position + 1, elements)

    return read
