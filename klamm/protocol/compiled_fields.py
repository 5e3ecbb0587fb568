"""Numbers in the bytes of records, for loops that numba compiles. Importing this module imports numba.

What must stay true: compiled code does not check indexes. `number` and `field` read nothing at or after `end`, and
return the position -1 if there is no number. Callers of the other functions check that the bytes are there.
"""

from typing import Any

import numpy as np

from klamm.base.compiling import inlined


@inlined
def little_endian_32(data: Any, at: int) -> Any:
    return (
        np.uint32(data[at])
        | np.uint32(data[at + 1]) << np.uint32(8)
        | np.uint32(data[at + 2]) << np.uint32(16)
        | np.uint32(data[at + 3]) << np.uint32(24)
    )


@inlined
def big_endian(data: Any, position: int, size_bytes: int) -> Any:
    """A signed number of `size_bytes` bytes."""
    value = np.int64(np.int8(data[position]))
    for at in range(position + 1, position + size_bytes):
        value = (value << 8) | np.int64(data[at])
    return value


@inlined
def number(data: Any, position: int, end: int, max_size_bytes: int) -> tuple[Any, int]:
    """(zigzag number, position after it). The position is -1 if there is no number, or if `position` is -1 already."""
    if position < 0:
        return np.int64(0), -1
    value, shift, end = np.uint64(0), np.uint64(0), min(end, position + max_size_bytes)
    while position < end:
        byte = data[position]
        position += 1
        value |= np.uint64(byte & 0x7F) << shift
        if byte < 0x80:
            if max_size_bytes == 5:
                value &= np.uint64(0xFFFFFFFF)
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), position
        shift += np.uint64(7)
    return np.int64(0), -1


@inlined
def field(data: Any, position: int, end: int) -> tuple[Any, int]:
    """(length, position after the field)."""
    length, position = number(data, position, end, 5)
    if position < 0 or length < -1 or length > end - position:
        return np.int64(0), -1
    return length, position + max(length, 0)
