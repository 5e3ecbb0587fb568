"""The loops over rows that turn columns into record batches, compiled by numba.

Importing this module imports numba and compiles the loops, or loads them from disk. So it is imported only when records
are about to be written. `encoding.py` is its only user.

What must stay true: compiled code does not check indexes. Every record is written into memory of the size that
`measure` found, which is never less than `write` needs.

Source: org.apache.kafka.common.record.DefaultRecord.
"""

from typing import Any

import numpy as np
from numba import types

from klamm.base.compiling import compiled, inlined
from klamm.base.memcpy import copy_bytes
from klamm.spark.write.columns import Columns, Headers, Strings

# The size of a record's attributes, and the largest size of an offset delta.
_FIXED_BYTES = 1 + 5
_MAX_VARLONG_BYTES = 10

_integers = types.int64[::1]
_number = types.int64
_strings = types.NamedTuple((types.Array(types.uint8, 1, "C", readonly=True), _integers, _integers), Strings)
_headers = types.NamedTuple((_integers, _integers, _strings, _strings), Headers)
_columns = types.NamedTuple((_strings, _strings, _headers, _integers), Columns)


@inlined
def _varint_size(number: int) -> int:
    value = np.uint64((number << 1) ^ (number >> 63))
    size = 1
    while value > np.uint64(0x7F):
        value >>= np.uint64(7)
        size += 1
    return size


@inlined
def _write_varint(out: Any, at: int, number: int) -> int:
    """Writes a zigzag varint or varlong; returns the position after it."""
    value = np.uint64((number << 1) ^ (number >> 63))
    while value > np.uint64(0x7F):
        out[at] = (value & np.uint64(0x7F)) | np.uint64(0x80)
        value >>= np.uint64(7)
        at += 1
    out[at] = value
    return at + 1


@inlined
def _string_size(size: int) -> int:
    return _varint_size(size) + max(size, 0)


@inlined
def _write_string(out: Any, at: int, data: Any, start: int, size: int) -> int:
    at = _write_varint(out, at, size)
    if size > 0:
        copy_bytes(out, at, data, start, size)
        at += size
    return at


@inlined
def _headers_size(name_sizes: Any, value_sizes: Any, first: int, count: int) -> int:
    size = _varint_size(count)
    for index in range(first, first + count):
        size += _string_size(name_sizes[index]) + _string_size(value_sizes[index])
    return size


# Arrays are taken out of their tuples before a loop, because inside the loop this costs as much as a record.


@compiled(types.void(_integers, _columns, types.boolean))
def measure(sizes: Any, columns: Columns, same_timestamp: bool) -> None:
    """Sets `sizes` to the size of each row's record, or a few bytes more."""
    key_sizes, value_sizes = columns.keys.sizes, columns.values.sizes
    header_starts, header_counts = columns.headers.starts, columns.headers.counts
    name_sizes, text_sizes = columns.headers.names.sizes, columns.headers.values.sizes
    fixed = _FIXED_BYTES + (1 if same_timestamp else _MAX_VARLONG_BYTES)
    for row in range(len(sizes)):
        size = fixed + _string_size(key_sizes[row]) + _string_size(value_sizes[row])
        size += _headers_size(name_sizes, text_sizes, header_starts[row], header_counts[row])
        sizes[row] = size + _varint_size(size)


@compiled(_number(_integers, _number, _integers, _integers, _integers, _integers, _integers, _integers))
def split(
    targets: Any, target_count: int, sizes: Any, limits: Any, order: Any, first: Any, batch_targets: Any, needs: Any
) -> int:
    """Sorts the rows by target, keeping their order within it, and cuts them into batches. Returns the number of
    batches.

    Batch b, for target `batch_targets[b]`, has the rows `order[first[b] : first[b + 1]]`, which need `needs[b]` bytes:
    at most the target's limit, unless it is a single row. The arrays have room for one batch a row, `first` for one
    more.
    """
    place = np.zeros(target_count + 1, np.int64)
    for row in range(len(targets)):
        place[targets[row] + 1] += 1
    for target in range(target_count):
        place[target + 1] += place[target]
    for row in range(len(targets)):
        target = targets[row]
        order[place[target]] = row
        place[target] += 1
    batch = -1
    for index in range(len(order)):
        row = order[index]
        target = targets[row]
        if batch < 0 or target != batch_targets[batch] or needs[batch] + sizes[row] > limits[target]:
            batch += 1
            first[batch], batch_targets[batch], needs[batch] = index, target, 0
        needs[batch] += sizes[row]
    first[batch + 1] = len(order)
    return batch + 1


@compiled(types.void(types.uint8[::1], _integers, _integers, _integers, _integers, _integers, _columns))
def write(out: Any, starts: Any, ends: Any, max_timestamps: Any, order: Any, first: Any, columns: Columns) -> None:
    """Writes the records of each batch b into `out` from `starts[b]`, and the position after them into `ends[b]`."""
    keys, key_starts, key_sizes = columns.keys
    values, value_starts, value_sizes = columns.values
    header_starts, header_counts, header_names, header_values = columns.headers
    names, name_starts, name_sizes = header_names
    texts, text_starts, text_sizes = header_values
    timestamps = columns.timestamps
    for batch in range(len(starts)):
        at = starts[batch]
        base_timestamp = timestamps[order[first[batch]]]
        max_timestamp = base_timestamp
        for index in range(first[batch], first[batch + 1]):
            row = order[index]
            max_timestamp = max(max_timestamp, timestamps[row])
            timestamp_delta, offset_delta = timestamps[row] - base_timestamp, index - first[batch]
            first_header, header_count = header_starts[row], header_counts[row]
            size = 1 + _varint_size(timestamp_delta) + _varint_size(offset_delta)
            size += _string_size(key_sizes[row]) + _string_size(value_sizes[row])
            size += _headers_size(name_sizes, text_sizes, first_header, header_count)
            at = _write_varint(out, at, size)
            out[at] = 0
            at = _write_varint(out, at + 1, timestamp_delta)
            at = _write_varint(out, at, offset_delta)
            at = _write_string(out, at, keys, key_starts[row], key_sizes[row])
            at = _write_string(out, at, values, value_starts[row], value_sizes[row])
            at = _write_varint(out, at, header_count)
            for header in range(first_header, first_header + header_count):
                at = _write_string(out, at, names, name_starts[header], name_sizes[header])
                at = _write_string(out, at, texts, text_starts[header], text_sizes[header])
        ends[batch], max_timestamps[batch] = at, max_timestamp
