"""The protocol's elementary values (varints, text, array counts, tagged fields), and the error for invalid bytes.

Readers take the frame and a position and return the value and the position after it. They raise `InvalidFrame`, or
IndexError or struct.error where the frame ends too early, which the reader of the whole message converts.
"""

import struct
from uuid import UUID

Buffer = bytes | bytearray | memoryview

# As in Kafka, the limit also holds for compact strings, so that every version can encode every string.
MAX_STRING_BYTES = 2**15 - 1

# The most tagged fields of one struct, unknown ones included; Kafka defines at most four. They are read in one step.
MAX_TAGGED_FIELDS = 20

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_ZERO_UUID = bytes(16)


class InvalidFrame(ValueError):
    """Invalid bytes: the reason, the byte position in the frame, the path of the field."""

    def __init__(self, reason: str, position: int, *path: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.position = position
        self.path = list(path)

    def __str__(self) -> str:
        where = ".".join(self.path).replace(".[", "[")
        return f"{where + ': ' if where else ''}{self.reason} at byte {self.position}"


def read_unsigned_varint(data: Buffer, position: int) -> tuple[int, int]:
    """A base-128 number below 2^32 in at most five bytes. IndexError when the frame ends within it."""
    byte = data[position]
    if byte < 0x80:
        return byte, position + 1
    value = byte & 0x7F
    start = position
    for shift in (7, 14, 21, 28):
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, position + 1
    raise InvalidFrame("a varint of more than 32 bits", start)


def read_length(data: Buffer, position: int) -> tuple[int, int]:
    """The length that precedes compact strings, bytes and arrays; -1 is null."""
    length = data[position]
    if length < 0x80:
        return length - 1, position + 1
    length, position = read_unsigned_varint(data, position)
    return length - 1, position


def read_string(data: Buffer, position: int) -> tuple[str, int]:
    value, position = read_nullable_string(data, position)
    if value is None:
        raise InvalidFrame("null where text is required", position)
    return value, position


def read_nullable_string(data: Buffer, position: int) -> tuple[str | None, int]:
    (length,) = _INT16.unpack_from(data, position)
    return _text(data, position + 2, length)


def read_compact_string(data: Buffer, position: int) -> tuple[str, int]:
    value, position = read_compact_nullable_string(data, position)
    if value is None:
        raise InvalidFrame("null where text is required", position)
    return value, position


def read_compact_nullable_string(data: Buffer, position: int) -> tuple[str | None, int]:
    length, position = read_length(data, position)
    return _text(data, position, length)


def _text(data: Buffer, position: int, length: int) -> tuple[str | None, int]:
    if length < 0:
        if length == -1:
            return None, position
        raise InvalidFrame(f"a length of {length}", position)
    end = position + length
    if length > MAX_STRING_BYTES:
        raise InvalidFrame(f"text of {length} bytes, allowed are {MAX_STRING_BYTES}", position)
    if end > len(data):
        raise InvalidFrame(f"a length of {length}, but {len(data) - position} bytes are left", position)
    try:
        return str(data[position:end], "utf-8"), end
    except UnicodeDecodeError as error:
        raise InvalidFrame(f"text that is not UTF-8 ({error.reason})", position + error.start) from None


def read_tagged_fields(data: Buffer, position: int, elements: list[int]) -> tuple[dict[int, tuple[int, int]], int]:
    """The tagged-field section at the end of a flexible struct: tag -> (start, end) of its value.

    The fields count as elements of the message (see `check_count`).
    """
    count, position = read_unsigned_varint(data, position)
    if count > MAX_TAGGED_FIELDS:
        raise InvalidFrame(f"{count} tagged fields, allowed are {MAX_TAGGED_FIELDS}", position)
    check_count(count, 2, data, position, elements)
    fields: dict[int, tuple[int, int]] = {}
    previous = -1
    for _ in range(count):
        tag, start = read_unsigned_varint(data, position)
        if tag <= previous:
            raise InvalidFrame(f"tag {tag} after tag {previous}", position)
        previous = tag
        size, start = read_unsigned_varint(data, start)
        position = start + size
        if position > len(data):
            raise InvalidFrame(f"a tagged field of {size} bytes, but {len(data) - start} are left", start)
        fields[tag] = (start, position)
    return fields, position


def check_count(count: int, element_bytes: int, data: Buffer, position: int, elements: list[int]) -> None:
    """Refuses a count of elements that cannot fit (each has at least `element_bytes`) or that is too much work.

    `elements` holds how many elements the message may still have, and is counted down.
    """
    if count * element_bytes > len(data) - position:
        raise InvalidFrame(f"{count} elements, but {len(data) - position} bytes are left", position)
    elements[0] -= count
    if elements[0] < 0:
        raise InvalidFrame(f"{count} elements are more than a message of this kind may hold", position)


def check_end(data: Buffer, position: int) -> None:
    if position != len(data):
        raise InvalidFrame(f"{len(data) - position} bytes after the end of the message", position)


def read_count(data: Buffer, position: int, flexible: bool) -> tuple[int, int]:
    """The count of an array that may not be null."""
    if flexible:
        count, position = read_length(data, position)
    else:
        (count,) = _INT32.unpack_from(data, position)
        position += 4
    if count < 0:
        raise InvalidFrame("null where an array is required" if count == -1 else f"a count of {count}", position)
    return count, position


def read_int32_array(data: Buffer, position: int, flexible: bool, elements: list[int]) -> tuple[tuple[int, ...], int]:
    """An array of int32 that may not be null. Its numbers count as elements of the message (see `check_count`)."""
    count, position = read_count(data, position, flexible)
    check_count(count, 4, data, position, elements)
    return struct.unpack_from(f">{count}i", data, position), position + 4 * count


def read_records(data: Buffer, position: int, flexible: bool) -> tuple[memoryview | None, int]:
    """Records or bytes as a part of the frame's own memory, or null."""
    if flexible:
        length, position = read_length(data, position)
    else:
        (length,) = _INT32.unpack_from(data, position)
        position += 4
    if length == -1:
        return None, position
    if not 0 <= length <= len(data) - position:
        raise InvalidFrame(f"{length} bytes of data, but {len(data) - position} are left", position)
    end = position + length
    return memoryview(data)[position:end], end


def skip_tagged_fields(data: Buffer, position: int, elements: list[int]) -> int:
    """The position after a tagged-field section whose fields are all unknown."""
    return position + 1 if data[position] == 0 else read_tagged_fields(data, position, elements)[1]


def unsigned_varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def string(value: str) -> bytes:
    text = value.encode()
    return _INT16.pack(len(text)) + text


def nullable_string(value: str | None) -> bytes:
    return b"\xff\xff" if value is None else string(value)


def uuid_bytes(value: UUID | None) -> bytes:
    return _ZERO_UUID if value is None else value.bytes
