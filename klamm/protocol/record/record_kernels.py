"""The walk of `record_walk`, compiled by numba, for batches of very many records.

Importing this module imports numba and compiles the walk, or loads it from numba's cache on disk. So only the worker
process imports it, and only for very many records. Without numba, `record_walk` does the work alone.

What must stay true:
- Compiled code does not check indexes, so every position is checked to be within the batch before it is read.
- Compiled code handles only valid records. It stops before any other record, and `record_walk` reports the error.
"""

from typing import Any

import numpy as np
from numba import types

from klamm.base.compiling import compiled
from klamm.protocol.compiled_fields import field, number
from klamm.protocol.record.record_walk import MAX_NAMED_RECORDS, RecordWalk, Refusal, RefusedRecord

# The input of the walk, and its progress.
COUNT, BASE_OFFSET, BASE_TIMESTAMP, HAS_APPEND_TIME, APPEND_TIME = range(5)
NEEDS_KEYS, EARLIEST, LATEST, HAS_FROM, FROM_TIMESTAMP, FROM_OFFSET = range(5, 11)
POSITION, INDEX, MAX_TIMESTAMP, KEYLESS, OUT_OF_RANGE, IS_NUMBERED, NAMED = range(11, 18)
HAS_MATCH, MATCH_TIMESTAMP, MATCH_OFFSET = range(18, 21)
FIELDS = 21

NO_KEY, BAD_TIMESTAMP = int(Refusal.NO_KEY), int(Refusal.TIMESTAMP_OUT_OF_RANGE)

_read = types.Array(types.uint8, 1, "C", readonly=True)
_int64s = types.int64[::1]
_table = types.int64[:, ::1]


@compiled(types.boolean(_read, _int64s, _table, types.int64))
def _walk(data: Any, state: Any, refused: Any, most_steps: int) -> bool:
    """Returns whether the walk stopped before an invalid record."""
    size = len(data)
    while state[INDEX] < state[COUNT] and most_steps > 0:
        length, position = number(data, state[POSITION], size, 5)
        if position < 0 or length < 0 or length > size - position:
            return True
        end = position + length
        delta, position = number(data, position + 1, end, 10)
        offset_delta, position = number(data, position, end, 5)
        key_length, position = field(data, position, end)
        _, position = field(data, position, end)
        headers, position = number(data, position, end, 5)
        if position < 0 or headers < 0 or headers > (end - position) // 2:
            return True
        for _ in range(headers):
            name_length, position = field(data, position, end)
            if name_length < 0:
                return True
            _, position = field(data, position, end)
        if position != end:
            return True
        most_steps -= 1 + headers
        index = state[INDEX]
        state[INDEX] = index + 1
        state[POSITION] = position
        if offset_delta != index:
            state[IS_NUMBERED] = 0
        timestamp = state[APPEND_TIME] if state[HAS_APPEND_TIME] else state[BASE_TIMESTAMP] + delta
        state[MAX_TIMESTAMP] = max(state[MAX_TIMESTAMP], timestamp)
        refusal = 0
        if state[NEEDS_KEYS] and key_length < 0:
            refusal = NO_KEY
            state[KEYLESS] += 1
        elif timestamp != -1 and (timestamp < state[EARLIEST] or timestamp > state[LATEST]):
            refusal = BAD_TIMESTAMP
            state[OUT_OF_RANGE] += 1
        if refusal != 0 and state[NAMED] < len(refused):
            named = state[NAMED]
            refused[named, 0], refused[named, 1], refused[named, 2] = index, refusal, timestamp
            state[NAMED] = named + 1
        if state[HAS_FROM] and timestamp >= state[FROM_TIMESTAMP]:
            offset = state[BASE_OFFSET] + offset_delta
            if offset >= state[FROM_OFFSET]:
                state[HAS_MATCH], state[MATCH_TIMESTAMP], state[MATCH_OFFSET] = 1, timestamp, offset
                return False
    return False


def advance(walk: RecordWalk, most_steps: int) -> bool:
    """As `RecordWalk.advance`."""
    header, wanted = walk.header, walk.wanted
    state = np.zeros(FIELDS, np.int64)
    state[COUNT], state[BASE_OFFSET], state[BASE_TIMESTAMP] = (
        header.record_count,
        header.base_offset,
        header.base_timestamp,
    )
    state[HAS_APPEND_TIME], state[APPEND_TIME] = header.is_log_append_time, header.max_timestamp
    state[NEEDS_KEYS], state[EARLIEST], state[LATEST] = (
        wanted.needs_keys,
        _int64(wanted.earliest_ms),
        _int64(wanted.latest_ms),
    )
    if wanted.from_timestamp_ms is not None:
        state[HAS_FROM], state[FROM_TIMESTAMP], state[FROM_OFFSET] = 1, wanted.from_timestamp_ms, wanted.from_offset
    state[POSITION], state[INDEX], state[MAX_TIMESTAMP] = walk.position, walk.index, walk.max_timestamp_ms
    state[IS_NUMBERED] = walk.is_numbered
    refused = np.zeros((MAX_NAMED_RECORDS - len(walk.refused), 3), np.int64)
    is_odd = _walk(np.frombuffer(walk.body, np.uint8), state, refused, most_steps)
    walk.position, walk.index, walk.max_timestamp_ms = (
        int(state[POSITION]),
        int(state[INDEX]),
        int(state[MAX_TIMESTAMP]),
    )
    walk.is_numbered = bool(state[IS_NUMBERED])
    walk.keyless_count += int(state[KEYLESS])
    walk.out_of_range_count += int(state[OUT_OF_RANGE])
    for index, refusal, timestamp_ms in refused[: state[NAMED]].tolist():
        walk.refused.append(RefusedRecord(index, Refusal(refusal), timestamp_ms))
    if state[HAS_MATCH]:
        walk.match = int(state[MATCH_TIMESTAMP]), int(state[MATCH_OFFSET])
        return True
    # One more step reports the invalid record, or the end of the walk.
    return walk.advance(1) if is_odd or walk.index >= header.record_count else False


def _int64(value: int) -> int:
    return min(max(value, -(2**63)), 2**63 - 1)
