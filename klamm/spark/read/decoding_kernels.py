"""The loops over bytes that turn record batches into columns, compiled by numba.

Importing this module imports numba and compiles the loops, or loads them from numba's cache on disk, so it is imported
where records are about to be read and nowhere else. `decoding.py` is its only user.

What must stay true:
- Compiled code does not check indexes. So the loops check that each byte is within its array before they read or write
  it. Every number from a record is compared with the end of its batch. Rows and column bytes never exceed the memory
  that `decoding.py` allocated (for the record counts of the batches, and the bytes of their records).
- A loop raises no error. It returns a status and a position, and `klamm.protocol.record.record_batch` makes the error's
  text.

Source: org.apache.kafka.common.record.DefaultRecordBatch, DefaultRecord.
"""

from typing import Any

import numpy as np
from numba import types

from klamm.base.compiling import compiled, inlined
from klamm.base.memcpy import copy_bytes
from klamm.protocol.compiled_fields import big_endian

# The table of batches that `scan` fills.
POSITION, SIZE, CRC, ATTRIBUTES, BASE_OFFSET, LAST_OFFSET, BASE_TIMESTAMP, MAX_TIMESTAMP, PRODUCER_ID = range(9)
RECORD_COUNT, LEADER_EPOCH = 9, 10
BATCH_FIELDS = 11
# The table of uncompressed records that `decode` reads: the position of each batch's records, and their common values.
# With LogAppendTime, COMMON_TIMESTAMP is the timestamp of all records.
BODY_START, BODY_END, FIRST_OFFSET, FIRST_TIMESTAMP, COMMON_TIMESTAMP, TIMESTAMP_TYPE, COUNT, EPOCH = range(8)
BODY_FIELDS = 8

# The statuses that the loops return.
FINE, CORRUPT, BAD_TIMESTAMP = range(3)

HEADER_SIZE_BYTES = 61
_LOG_OVERHEAD_BYTES = 12
MIN_RECORD_SIZE_BYTES = 7
_MAX_TIMESTAMP_MS = (2**63 - 1) // 1000

_read = types.Array(types.uint8, 1, "C", readonly=True)
_bytes = types.uint8[::1]
_int32s = types.int32[::1]
_int64s = types.int64[::1]
_table = types.int64[:, ::1]
_number = types.int64


@inlined
def _varint(data: Any, position: int, end: int, max_size_bytes: int) -> tuple[Any, int]:
    """(number, position after it). The position is -1 if there is no number, or if `position` is -1 already."""
    if position < 0:
        return 0, -1
    value, shift, end = np.uint64(0), np.uint64(0), min(end, position + max_size_bytes)
    while position < end:
        byte = data[position]
        position += 1
        value |= np.uint64(byte & 0x7F) << shift
        if byte < 0x80:
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), position
        shift += np.uint64(7)
    return 0, -1


@inlined
def _field(data: Any, position: int, end: int) -> tuple[int, int]:
    """(length of the field, -1 for null; position of its bytes, -1 if they do not fit)."""
    length, position = _varint(data, position, end, 5)
    if position < 0 or length < -1 or length > end - position:
        return 0, -1
    return length, position


@compiled(types.UniTuple(_number, 3)(_read, _number, _table))
def scan(data: Any, size_bytes: int, batches: Any) -> tuple[int, int, int]:
    """Fills the table with the headers of the whole batches in `data`.

    Returns (status, number of batches, position after the last). A batch that extends beyond the end is left out.
    """
    position, count = 0, 0
    while size_bytes - position >= _LOG_OVERHEAD_BYTES and count < len(batches):
        size = big_endian(data, position + 8, 4) + _LOG_OVERHEAD_BYTES
        if size > size_bytes - position:
            break
        if size < HEADER_SIZE_BYTES or data[position + 16] != 2:
            return CORRUPT, count, position
        batch = batches[count]
        batch[POSITION] = position
        batch[SIZE] = size
        batch[CRC] = big_endian(data, position + 17, 4) & 0xFFFFFFFF
        batch[BASE_OFFSET] = big_endian(data, position, 8)
        batch[LAST_OFFSET] = batch[BASE_OFFSET] + big_endian(data, position + 23, 4)
        batch[ATTRIBUTES] = big_endian(data, position + 21, 2)
        batch[BASE_TIMESTAMP] = big_endian(data, position + 27, 8)
        batch[MAX_TIMESTAMP] = big_endian(data, position + 35, 8)
        batch[PRODUCER_ID] = big_endian(data, position + 43, 8)
        batch[RECORD_COUNT] = big_endian(data, position + 57, 4)
        batch[LEADER_EPOCH] = big_endian(data, position + 12, 4)
        count += 1
        position += size
    return FINE, count, position


@inlined
def _skip_headers(data: Any, position: int, end: int, count: int) -> tuple[int, int, int]:
    """(position after a record's headers, bytes of their keys, bytes of their values). The position is -1 for invalid
    headers."""
    key_bytes, value_bytes = 0, 0
    for _ in range(count):
        length, position = _field(data, position, end)
        if length < 0 or position < 0:
            return -1, 0, 0
        key_bytes += length
        length, position = _field(data, position + length, end)
        if position < 0:
            return -1, 0, 0
        length = max(length, 0)
        value_bytes += length
        position += length
    return position, key_bytes, value_bytes


@compiled(
    types.UniTuple(_number, 10)(
        _read, _table, _number, _number,
        _int32s, _bytes, _bytes, _int32s, _bytes, _bytes,
        _int64s, _int64s, _int32s, _int32s, _int64s, _int32s,
    ),
)  # fmt: skip
def decode(
    data: Any,
    bodies: Any,
    start_offset: int,
    end_offset: int,
    key_ends: Any,
    key_bytes: Any,
    key_validity: Any,
    value_ends: Any,
    value_bytes: Any,
    value_validity: Any,
    offsets: Any,
    timestamps_us: Any,
    timestamp_types: Any,
    leader_epochs: Any,
    header_positions: Any,
    header_counts: Any,
) -> tuple[int, int, int, int, int, int, int, int, int, int]:
    """Writes the records whose offsets are in the range into columns. An empty array means that a column is not wanted.

    `bodies` has the positions of each batch's records in `data`. `..._ends` are Arrow's offsets of binary columns (one
    more than rows; the first is 0). `..._validity` are bitmaps of ones, in which nulls are cleared.
    Returns (status, number of the wrong batch or offset of the wrong record, rows, bytes of keys, bytes of values,
    null keys, null values, headers, bytes of headers' keys, bytes of headers' values).
    """
    wants_key, wants_value, wants_headers = len(key_ends) > 0, len(value_ends) > 0, len(header_counts) > 0
    wants_offset, wants_timestamp, wants_type = len(offsets) > 0, len(timestamps_us) > 0, len(timestamp_types) > 0
    wants_epoch = len(leader_epochs) > 0
    row, key_end, value_end, null_keys, null_values = 0, 0, 0, 0, 0
    headers, header_key_bytes, header_value_bytes = 0, 0, 0
    for number in range(len(bodies)):
        body = bodies[number]
        position, body_end = body[BODY_START], body[BODY_END]
        for _ in range(body[COUNT]):
            length, position = _varint(data, position, body_end, 5)
            if position < 0 or length < 1 or length > body_end - position:
                return CORRUPT, number, 0, 0, 0, 0, 0, 0, 0, 0
            end = position + length
            # The first byte holds attributes, of which none are defined.
            timestamp_delta, position = _varint(data, position + 1, end, 10)
            offset_delta, position = _varint(data, position, end, 5)
            key_size, key_at = _field(data, position, end)
            position = key_at + max(key_size, 0) if key_at >= 0 else -1
            value_size, value_at = _field(data, position, end)
            position = value_at + max(value_size, 0) if value_at >= 0 else -1
            header_count, position = _varint(data, position, end, 5)
            if position < 0 or header_count < 0 or header_count > (end - position) // 2:
                return CORRUPT, number, 0, 0, 0, 0, 0, 0, 0, 0
            headers_at = position
            its_key_bytes, its_value_bytes = 0, 0
            if header_count > 0:
                position, its_key_bytes, its_value_bytes = _skip_headers(data, position, end, header_count)
            if position != end:
                return CORRUPT, number, 0, 0, 0, 0, 0, 0, 0, 0
            offset = body[FIRST_OFFSET] + offset_delta
            if offset < start_offset or offset >= end_offset:
                continue
            if wants_key:
                if key_size >= 0:
                    copy_bytes(key_bytes, key_end, data, key_at, key_size)
                    key_end += key_size
                else:
                    key_validity[row >> 3] &= ~(1 << (row & 7))
                    null_keys += 1
                key_ends[row + 1] = key_end
            if wants_value:
                if value_size >= 0:
                    copy_bytes(value_bytes, value_end, data, value_at, value_size)
                    value_end += value_size
                else:
                    value_validity[row >> 3] &= ~(1 << (row & 7))
                    null_values += 1
                value_ends[row + 1] = value_end
            if wants_offset:
                offsets[row] = offset
            if wants_timestamp:
                timestamp_ms = body[COMMON_TIMESTAMP]
                if body[TIMESTAMP_TYPE] == 0:
                    timestamp_ms = body[FIRST_TIMESTAMP] + timestamp_delta
                if timestamp_ms > _MAX_TIMESTAMP_MS or timestamp_ms < -_MAX_TIMESTAMP_MS:
                    return BAD_TIMESTAMP, offset, 0, 0, 0, 0, 0, 0, 0, 0
                timestamps_us[row] = 1000 * timestamp_ms
            if wants_type:
                timestamp_types[row] = body[TIMESTAMP_TYPE]
            if wants_epoch:
                leader_epochs[row] = body[EPOCH]
            if wants_headers:
                header_positions[row] = headers_at
                header_counts[row] = header_count
                headers += header_count
                header_key_bytes += its_key_bytes
                header_value_bytes += its_value_bytes
            row += 1
        if position != body_end:
            return CORRUPT, number, 0, 0, 0, 0, 0, 0, 0, 0
    return (
        FINE, 0, row, key_end, value_end, null_keys, null_values, headers, header_key_bytes, header_value_bytes,
    )  # fmt: skip


@compiled(
    types.UniTuple(_number, 2)(
        _read, _number, _int64s, _int32s, _int32s, _bytes, _int32s, _bytes, _int32s, _bytes, _bytes
    ),
)
def decode_headers(
    data: Any,
    rows: int,
    positions: Any,
    counts: Any,
    ends: Any,
    validity: Any,
    key_ends: Any,
    key_bytes: Any,
    value_ends: Any,
    value_bytes: Any,
    value_validity: Any,
) -> tuple[int, int]:
    """Writes the headers that `decode` found into a list column and its two columns of keys and values.

    `decode` has checked every length, and its counts are the sizes of the arrays. A row without headers is null.
    Returns (null rows, null values).
    """
    header, key_end, value_end, null_rows, null_values = 0, 0, 0, 0, 0
    for row in range(rows):
        position = positions[row]
        if counts[row] == 0:
            validity[row >> 3] &= ~(1 << (row & 7))
            null_rows += 1
        for _ in range(counts[row]):
            size, position = _varint(data, position, len(data), 5)
            copy_bytes(key_bytes, key_end, data, position, size)
            key_end += size
            key_ends[header + 1] = key_end
            size, position = _varint(data, position + size, len(data), 5)
            if size >= 0:
                copy_bytes(value_bytes, value_end, data, position, size)
                value_end += size
                position += size
            else:
                value_validity[header >> 3] &= ~(1 << (header & 7))
                null_values += 1
            header += 1
            value_ends[header] = value_end
        ends[row + 1] = header
    return null_rows, null_values
