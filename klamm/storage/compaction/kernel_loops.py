"""The loops over records of `compiled_kernel`, compiled by numba.

Importing this module imports numba and compiles the loops, or loads them from numba's cache on disk. So it is imported
in the worker process and nowhere else; where numba is not installed, `plain_kernel` works alone.

What must stay true:
- Compiled code does not check indexes, so each position is checked to be within the batch before it is read. The output
  has as much room as the input.
- Compiled code handles only valid batches. It stops before any other batch, and the plain code reports the error.
- The table has the layout of `offset_map`: a digest of 128 bits, and the offset plus one, zero in an empty slot.

The digest is SipHash-2-4 with 128 bits (Aumasson, Bernstein), as in its reference implementation.
"""

from typing import Any

import numpy as np
from numba import types

from klamm.base.compiling import compiled, inlined
from klamm.base.memcpy import copy_bytes
from klamm.protocol.compiled_fields import big_endian, field, little_endian_32, number
from klamm.storage.compaction.compiled_checksum import checksum

# The settings and the progress of a cleaning.
FIRST_DIRTY, LATEST, CAPACITY, COUNT, RETAINS_DELETES = range(5)
POSITION, RECORDS, KEPT_RECORDS, INVALID_RECORDS, OUT = range(5, 10)
INTERVAL, SINCE_ENTRY, SIZE, LARGEST, LARGEST_OFFSET, ENTRIES = range(10, 16)
NEXT, END = range(16, 18)
FIELDS = 18

# The results of the loops.
FINE, FULL, BAD = range(3)

HEADER_SIZE_BYTES = 61
_CRC_FROM = 21
ATTRIBUTES_AT = 22  # the lower byte
NOT_PLAIN = 0x37  # compressed, transactional or control
_LOG_APPEND_TIME = 0x08

_read = types.Array(types.uint8, 1, "C", readonly=True)
_bytes = types.uint8[::1]
_int64s = types.int64[::1]
_uint64s = types.uint64[::1]
_table = types.uint64[:, ::1]
_rows = types.int64[:, ::1]
_crc_table = types.Array(types.uint32, 2, "C", readonly=True)


@inlined
def _little_endian_64(data: Any, at: int) -> Any:
    return np.uint64(little_endian_32(data, at)) | np.uint64(little_endian_32(data, at + 4)) << np.uint64(32)


@inlined
def _write_big_endian(out: Any, position: int, size_bytes: int, value: int) -> None:
    for at in range(size_bytes):
        out[position + size_bytes - 1 - at] = (value >> (8 * at)) & 0xFF


# -- the offset map ---------------------------------------------------------------------------------------------------


@inlined
def _rotated(value: Any, by: int) -> Any:
    return (value << np.uint64(by)) | (value >> np.uint64(64 - by))


@inlined
def _round(v0: Any, v1: Any, v2: Any, v3: Any) -> tuple[Any, Any, Any, Any]:
    v0 += v1
    v1 = _rotated(v1, 13) ^ v0
    v0 = _rotated(v0, 32)
    v2 += v3
    v3 = _rotated(v3, 16) ^ v2
    v0 += v3
    v3 = _rotated(v3, 21) ^ v0
    v2 += v1
    v1 = _rotated(v1, 17) ^ v2
    v2 = _rotated(v2, 32)
    return v0, v1, v2, v3


@inlined
def _digest(data: Any, position: int, size: int, secret: Any) -> tuple[Any, Any]:
    v0 = np.uint64(0x736F6D6570736575) ^ secret[0]
    v1 = np.uint64(0x646F72616E646F6D) ^ secret[1] ^ np.uint64(0xEE)
    v2 = np.uint64(0x6C7967656E657261) ^ secret[0]
    v3 = np.uint64(0x7465646279746573) ^ secret[1]
    whole = position + size - size % 8
    at = position
    while at < whole:
        word = _little_endian_64(data, at)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
        at += 8
    word = np.uint64(size & 0xFF) << np.uint64(56)
    for byte in range(size % 8):
        word |= np.uint64(data[whole + byte]) << np.uint64(8 * byte)
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= np.uint64(0xEE)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= np.uint64(0xDD)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3


@inlined
def _find(table: Any, first: Any, second: Any) -> Any:
    """The slot that has the digest, or the empty slot where it belongs."""
    slots = len(table)
    slot: Any = np.int64(first % np.uint64(slots))
    while table[slot, 2] != 0 and (table[slot, 0] != first or table[slot, 1] != second):
        slot += 1
        if slot == slots:
            slot = 0
    return slot


@compiled(types.void(_table, types.int64, types.int64, _bytes))
def mark(table: Any, first_offset: int, offsets_per_mark: int, marks: Any) -> None:
    """Marks the offsets in the map, like `LastOffsets.mark`."""
    for slot in range(len(table)):
        if table[slot, 2] != 0:
            marks[(np.int64(table[slot, 2]) - 1 - first_offset) // offsets_per_mark] = 1


# -- the records of one batch -----------------------------------------------------------------------------------------


@inlined
def _fill(data: Any, position: int, end: int, count: int, base_offset: int, state: Any, table: Any, secret: Any) -> int:
    first_dirty, capacity = state[FIRST_DIRTY], state[CAPACITY]
    for _ in range(count):
        length, position = number(data, position, end, 5)
        if position < 0 or length < 0 or length > end - position:
            return BAD
        record_end = position + length
        _, position = number(data, position + 1, record_end, 10)
        offset_delta, position = number(data, position, record_end, 5)
        key_size, key_end = field(data, position, record_end)
        _, value_end = field(data, key_end, record_end)
        if value_end < 0:
            return BAD
        position = record_end
        offset = base_offset + offset_delta
        if key_size >= 0 and offset >= first_dirty:
            if state[COUNT] >= capacity:
                return FULL
            first, second = _digest(data, key_end - key_size, key_size, secret)
            slot = _find(table, first, second)
            if table[slot, 2] == 0:
                table[slot, 0], table[slot, 1] = first, second
                state[COUNT] += 1
            table[slot, 2] = np.uint64(offset + 1)
            state[LATEST] = offset
    return FINE if position == end else BAD


@inlined
def _keep(
    data: Any,
    position: int,
    end: int,
    count: int,
    base_offset: int,
    base_timestamp: int,
    state: Any,
    table: Any,
    secret: Any,
    out: Any,
    out_at: int,
) -> tuple[int, int, int, int, int]:
    """(status, number of kept records, position after them in `out`, their largest timestamp, records without a
    key)."""
    latest, retains_deletes = state[LATEST], state[RETAINS_DELETES]
    kept, invalid, largest = 0, 0, -1
    for _ in range(count):
        start = position
        length, position = number(data, position, end, 5)
        if position < 0 or length < 0 or length > end - position:
            return BAD, 0, 0, 0, 0
        record_end = position + length
        timestamp_delta, position = number(data, position + 1, record_end, 10)
        offset_delta, position = number(data, position, record_end, 5)
        key_size, key_end = field(data, position, record_end)
        value_size, value_end = field(data, key_end, record_end)
        if value_end < 0:
            return BAD, 0, 0, 0, 0
        position = record_end
        offset = base_offset + offset_delta
        stays = offset > latest
        if not stays:
            if key_size < 0:
                invalid += 1
            elif value_size >= 0 or retains_deletes:
                first, second = _digest(data, key_end - key_size, key_size, secret)
                stays = offset >= np.int64(table[_find(table, first, second), 2]) - 1
        if stays:
            copy_bytes(out, out_at, data, start, record_end - start)
            out_at += record_end - start
            kept += 1
            largest = max(largest, base_timestamp + timestamp_delta)
    if position != end:
        return BAD, 0, 0, 0, 0
    return FINE, kept, out_at, largest, invalid


@compiled(types.int64(_read, types.int64, types.int64, _int64s, _table, _uint64s))
def fill_body(data: Any, count: int, base_offset: int, state: Any, table: Any, secret: Any) -> int:
    """Puts the records of one batch into the map; `data` are the uncompressed records."""
    return _fill(data, 0, len(data), count, base_offset, state, table, secret)


@compiled(
    types.UniTuple(types.int64, 5)(_read, types.int64, types.int64, types.int64, _int64s, _table, _uint64s, _bytes)
)
def keep_body(
    data: Any, count: int, base_offset: int, base_timestamp: int, state: Any, table: Any, secret: Any, out: Any
) -> tuple[int, int, int, int, int]:
    """Writes the kept records of one batch into `out`; `data` are the uncompressed records. Returns like `_keep`."""
    return _keep(data, 0, len(data), count, base_offset, base_timestamp, state, table, secret, out, 0)


# -- runs of batches --------------------------------------------------------------------------------------------------


@inlined
def _plain_batch_size(data: Any, position: int, state: Any, crc_table: Any) -> int:
    """The size of the batch if it is whole, sound, between NEXT and END, and plain: uncompressed records outside of
    transactions; else 0."""
    available = len(data) - position
    if available < HEADER_SIZE_BYTES or data[position + 16] != 2 or data[position + ATTRIBUTES_AT] & NOT_PLAIN:
        return 0
    base_offset = big_endian(data, position, 8)
    if base_offset < state[NEXT] or base_offset >= state[END] - big_endian(data, position + 23, 4):
        return 0
    size = big_endian(data, position + 8, 4) + 12
    if size < HEADER_SIZE_BYTES or size > available or big_endian(data, position + 57, 4) < 1:
        return 0
    crc = big_endian(data, position + 17, 4) & 0xFFFFFFFF
    return size if np.int64(checksum(data, position + _CRC_FROM, position + size, crc_table)) == crc else 0


@compiled(types.int64(_read, _int64s, _table, _uint64s, _crc_table))
def fill_run(data: Any, state: Any, table: Any, secret: Any, crc_table: Any) -> int:
    """Puts the records of plain batches from POSITION on into the map, and moves POSITION behind them."""
    while True:
        position = state[POSITION]
        size = _plain_batch_size(data, position, state, crc_table)
        if size == 0:
            return FINE
        base_offset, count = big_endian(data, position, 8), big_endian(data, position + 57, 4)
        last_offset = base_offset + big_endian(data, position + 23, 4)
        if last_offset >= state[FIRST_DIRTY]:
            result = _fill(
                data, position + HEADER_SIZE_BYTES, position + size, count, base_offset, state, table, secret
            )
            if result == BAD:
                return FINE
            state[RECORDS] += count
            if result == FULL:
                return FULL
            state[LATEST] = last_offset
        state[POSITION] = position + size
        state[NEXT] = last_offset + 1


@inlined
def _contains(numbers: Any, number: int) -> Any:
    at = np.searchsorted(numbers, number)
    return at < len(numbers) and numbers[at] == number


@compiled(types.int64(_read, _int64s, _table, _uint64s, _crc_table, _bytes, _rows, _int64s))
def keep_run(
    data: Any, state: Any, table: Any, secret: Any, crc_table: Any, out: Any, entries: Any, last_data_offsets: Any
) -> int:
    """Writes the kept records of the plain batches from POSITION on into `out`, and moves POSITION behind them.

    Stops before the last batch of a producer, and when `entries` is full. Its rows are index entries: (last offset,
    position, largest timestamp, its offset)."""
    while state[ENTRIES] < len(entries):
        position = state[POSITION]
        size = _plain_batch_size(data, position, state, crc_table)
        if size == 0:
            return FINE
        base_offset, count = big_endian(data, position, 8), big_endian(data, position + 57, 4)
        last_offset = base_offset + big_endian(data, position + 23, 4)
        if big_endian(data, position + 43, 8) >= 0 and _contains(last_data_offsets, last_offset):
            return FINE
        at = state[OUT]
        status, kept, end, largest, invalid = _keep(
            data,
            position + HEADER_SIZE_BYTES,
            position + size,
            count,
            base_offset,
            big_endian(data, position + 27, 8),
            state,
            table,
            secret,
            out,
            at + HEADER_SIZE_BYTES,
        )
        if status != FINE:
            return FINE
        state[POSITION] = position + size
        state[NEXT] = last_offset + 1
        state[RECORDS] += count
        state[INVALID_RECORDS] += invalid
        if kept == 0:
            continue
        state[KEPT_RECORDS] += kept
        copy_bytes(out, at, data, position, HEADER_SIZE_BYTES)
        if kept < count:
            _write_big_endian(out, at + 8, 4, end - at - 12)
            if not data[position + ATTRIBUTES_AT] & _LOG_APPEND_TIME:
                _write_big_endian(out, at + 35, 8, largest)
            _write_big_endian(out, at + 57, 4, kept)
            _write_big_endian(out, at + 17, 4, int(checksum(out, at + _CRC_FROM, end, crc_table)))
        largest = big_endian(out, at + 35, 8)
        if largest > state[LARGEST]:
            state[LARGEST], state[LARGEST_OFFSET] = largest, last_offset
        if state[SINCE_ENTRY] > state[INTERVAL]:
            row = entries[state[ENTRIES]]
            row[0], row[1], row[2], row[3] = last_offset, state[SIZE], state[LARGEST], state[LARGEST_OFFSET]
            state[ENTRIES] += 1
            state[SINCE_ENTRY] = 0
        state[SINCE_ENTRY] += end - at
        state[SIZE] += end - at
        state[OUT] = end
    return FINE
