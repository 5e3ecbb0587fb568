"""The loops that find the wanted values in JSON documents, compiled by numba.

`scan` walks each document once, token by token (`json_tokens.py`), checks its grammar as Jackson does for Spark's
`from_json`, and notes where the wanted values are: on a tape of (node of the schema, slot, kind, two numbers, row).
`gather` copies texts by the tape. `json.py` is the only user, and makes columns from the tape.

What must stay true:
- Compiled code does not check indexes. Each loop compares a position with the end of its document before it reads
  there.
- A bad document leaves no entry on the tape, and costs time only for its bytes: MAX_DEPTH bounds the nesting, and the
  caller bounds the size of the tape.
- A loop raises no error. It returns a status, and `json.py` makes the error's text.

Source: com.fasterxml.jackson.core.json.ReaderBasedJsonParser; org.apache.spark.sql.catalyst.json.JacksonParser.
"""

from typing import Any

import numpy as np
from numba import types

from klamm.base.compiling import compiled, inlined
from klamm.base.memcpy import copy_bytes
from klamm.spark.formats.json_tokens import (
    APOSTROPHE,
    ELEMENTS,
    ESCAPED,
    NOT_NUMBERS,
    NOTHING,
    NULL,
    NUMBER,
    OPENED,
    PLAIN,
    QUOTE,
    RAW,
    SINGLE_QUOTES,
    UNQUOTED_NAMES,
    VALUE,
    after_space,
    integer,
    is_digit,
    is_special,
    is_word,
    number_end,
    text_end,
    unescape,
)

# The kinds of a schema's nodes.
STRUCT, LIST, MAP, TEXT, BOOLEAN, INTEGER, FLOAT, DECIMAL, BYTES, TIMESTAMP, DATE = range(11)
# The fields of a node: its kind; its first child and the number of its children; the hash table of a struct's names
# (its start, its size - 1); the start and end of the node's name; the smallest and largest integer.
KIND, CHILD, CHILDREN, TABLE, TABLE_MASK, NAME_START, NAME_END, LOWEST, HIGHEST = range(9)
NODE_FIELDS = 9
# The fields of an entry of the tape. For a text, a number and raw JSON, A and B are its start and end. For an integer
# or boolean, A is its value. For a list or map, A is the slot of its first element, and B the number of elements.
NODE, SLOT, FOUND, A, B, ROW = range(6)
TAPE_FIELDS = 6

# The statuses of a document.
FINE, EMPTY, SYNTAX, TRUNCATED, NO_OBJECT, TOO_DEEP, TOO_LONG_NUMBER, WRONG_TYPE, FULL = range(9)
MAX_DEPTH = 1000
# The fields of an entry of the stack.
_IS_ARRAY, _NODE, _SLOT, _FIRST, _CAPTURE = range(5)
STACK_FIELDS = 5

_read = types.Array(types.uint8, 1, "C", readonly=True)
_nodes = types.Array(types.int64, 2, "C", readonly=True)
_table = types.Array(types.int64, 1, "C", readonly=True)
_read_offsets = types.Array(types.int32, 1, "C", readonly=True)
_bytes = types.uint8[::1]
_int8s = types.int8[::1]
_int32s = types.int32[::1]
_int64s = types.int64[::1]
_tape = types.int64[:, ::1]
_number = types.int64


def name_hash(first: Any, early: Any, middle: Any, late: Any, last: Any, size: Any) -> Any:
    """The hash of a non-empty name, from five of its bytes and its size."""
    found = (first | early << 8 | middle << 16 | late << 24 | last << 32) * 0x9E3779B1 + size * 0x85EBCA6B
    return found >> 20 ^ found


_name_hash = inlined(name_hash)


@inlined
def _child(data: Any, start: Any, end: Any, nodes: Any, names: Any, hashes: Any, node: Any) -> Any:
    """The child of a struct with this name; -1 if it does not exist."""
    size = end - start
    mask = nodes[node, TABLE_MASK]
    place = 0
    if size > 0:
        first, early, middle = data[start], data[start + size // 4], data[start + size // 2]
        late, last = data[start + size * 3 // 4], data[end - 1]
        place = (
            _name_hash(np.int64(first), np.int64(early), np.int64(middle), np.int64(late), np.int64(last), size) & mask
        )
    while True:
        child = hashes[nodes[node, TABLE] + place]
        if child < 0:
            return -1
        name = nodes[child, NAME_START]
        if nodes[child, NAME_END] - name == size:
            same = True
            for index in range(size):
                if names[name + index] != data[start + index]:
                    same = False
                    break
            if same:
                return child
        place = (place + 1) & mask


_AFTER, _KEY, _FIRST_KEY, _ITEM, _FIRST_ITEM, _MEMBER = range(6)


@inlined
def _document(
    data: Any, position: Any, end: Any, row: Any, flags: Any,
    nodes: Any, names: Any, hashes: Any, tape: Any, used: Any, counts: Any, stack: Any, scratch: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """(status, length of the tape) after one document."""
    position = after_space(data, position, end, flags)
    if position >= end:
        return EMPTY, used
    if data[position] != 0x7B:
        return NO_OBJECT, used
    position += 1
    depth = 1
    stack[0, _IS_ARRAY], stack[0, _NODE], stack[0, _SLOT], stack[0, _CAPTURE] = 0, 0, row, -1
    state, node, slot = _FIRST_KEY, -1, 0
    while True:
        position = after_space(data, position, end, flags)
        if position >= end:
            return TRUNCATED, used
        # A token adds at most two entries: the key of a map and its value.
        if used + 2 > len(tape):
            return FULL, used
        byte = data[position]
        if state == _KEY or state == _FIRST_KEY:
            if byte != 0x7D or state == _KEY:
                escaped = False
                if byte == QUOTE or (byte == APOSTROPHE and flags & SINGLE_QUOTES):
                    start = position + 1
                    stop, escaped = text_end(data, start, end, byte, flags)
                    if stop < 0:
                        return SYNTAX if stop == -1 else TRUNCATED, used
                    position = stop + 1
                elif flags & UNQUOTED_NAMES:
                    start = position
                    while position < end and (
                        is_digit(data[position]) or 65 <= data[position] <= 90 or 97 <= data[position] <= 122
                        or data[position] >= 0x80 or data[position] == 95 or data[position] == 36
                        or data[position] == 0x40 or data[position] == 0x23 or data[position] == 0x2A
                        or data[position] == 0x2B or data[position] == 0x2D
                    ):  # fmt: skip
                        position += 1
                    if position == start:
                        return SYNTAX, used
                    stop = position
                else:
                    return SYNTAX, used
                position = after_space(data, position, end, flags)
                if position >= end:
                    return TRUNCATED, used
                if data[position] != 0x3A:
                    return SYNTAX, used
                position += 1
                top = depth - 1
                parent = stack[top, _NODE]
                node = -1
                if parent >= 0:
                    if nodes[parent, KIND] == MAP:
                        slot = counts[parent]
                        counts[parent] += 1
                        tape[used, NODE], tape[used, SLOT], tape[used, ROW] = nodes[parent, CHILD], slot, row
                        tape[used, FOUND] = ESCAPED if escaped else PLAIN
                        tape[used, A], tape[used, B] = start, stop
                        used += 1
                        node = nodes[parent, CHILD] + 1
                    else:
                        slot = stack[top, _SLOT]
                        if not escaped:
                            node = _child(data, start, stop, nodes, names, hashes, parent)
                        elif stop - start <= len(scratch):
                            size = unescape(data, start, stop, scratch, 0)
                            node = _child(scratch, 0, size, nodes, names, hashes, parent)
                state = _MEMBER
                continue
        elif state == _AFTER:
            if byte == 0x2C:
                position += 1
                state = _ITEM if stack[depth - 1, _IS_ARRAY] else _KEY
                continue
        elif state == _MEMBER or state == _ITEM or byte != 0x5D:
            if state != _MEMBER:
                parent = stack[depth - 1, _NODE]
                node = -1
                if parent >= 0:
                    slot = counts[parent]
                    counts[parent] += 1
                    node = nodes[parent, CHILD]
            kind = nodes[node, KIND] if node >= 0 else -1
            state = _AFTER
            found, first, second = NOTHING, np.int64(0), np.int64(0)
            if byte == 0x7B or byte == 0x5B:
                if depth >= MAX_DEPTH:
                    return TOO_DEEP, used
                is_array = byte == 0x5B
                inner, capture = -1, -1
                if kind == TEXT:
                    capture = node
                elif kind >= 0:
                    if (kind == LIST) != is_array or kind > MAP:
                        return WRONG_TYPE, used
                    inner = node
                    if kind == STRUCT:
                        found = OPENED
                stack[depth, _IS_ARRAY], stack[depth, _NODE], stack[depth, _SLOT] = is_array, inner, slot
                stack[depth, _CAPTURE] = capture
                stack[depth, _FIRST] = position if capture >= 0 else (counts[inner] if inner >= 0 else 0)
                depth += 1
                position += 1
                state = _FIRST_ITEM if is_array else _FIRST_KEY
            elif byte == QUOTE or (byte == APOSTROPHE and flags & SINGLE_QUOTES):
                first = np.int64(position + 1)
                stop, escaped = text_end(data, position + 1, end, byte, flags)
                if stop < 0:
                    return SYNTAX if stop == -1 else TRUNCATED, used
                position = stop + 1
                second = np.int64(stop)
                if kind >= 0:
                    found = ESCAPED if escaped else PLAIN
                    if kind == FLOAT:
                        found = NOTHING
                        if flags & NOT_NUMBERS and first < second and not escaped:
                            found = is_special(data, first, second)
                        if found == NOTHING:
                            return WRONG_TYPE, used
                    elif not (
                        kind == TEXT or kind == BYTES
                        or (first < second and (kind == DECIMAL or kind == TIMESTAMP or kind == DATE))
                    ):  # fmt: skip
                        return WRONG_TYPE, used
            elif byte == 0x74 and is_word(data, position, end, (0x74, 0x72, 0x75, 0x65)):
                if kind >= 0 and kind != TEXT and kind != BOOLEAN:
                    return WRONG_TYPE, used
                found = RAW if kind == TEXT else VALUE
                first, second = (
                    (np.int64(position), np.int64(position + 4)) if kind == TEXT else (np.int64(1), np.int64(0))
                )
                position += 4
            elif byte == 0x66 and is_word(data, position, end, (0x66, 0x61, 0x6C, 0x73, 0x65)):
                if kind >= 0 and kind != TEXT and kind != BOOLEAN:
                    return WRONG_TYPE, used
                found = RAW if kind == TEXT else VALUE
                if kind == TEXT:
                    first, second = np.int64(position), np.int64(position + 5)
                position += 5
            elif byte == 0x6E and is_word(data, position, end, (0x6E, 0x75, 0x6C, 0x6C)):
                found = NULL
                position += 4
            else:
                after, found, is_integer = number_end(data, position, end, flags)
                if after < 0:
                    return SYNTAX if after == -1 else TOO_LONG_NUMBER, used
                first, second = np.int64(position), np.int64(after)
                position = after
                if is_integer and data[first] == 0x2D and second - first == 2 and data[first + 1] == 0x30:
                    # Jackson has no negative integer zero.
                    first += 1
                if kind == TEXT:
                    found = RAW
                elif kind == INTEGER or (kind == TIMESTAMP and is_integer):
                    if not is_integer:
                        return WRONG_TYPE, used
                    value, fits = integer(data, first, second, nodes[node, LOWEST], nodes[node, HIGHEST])
                    if not fits:
                        return WRONG_TYPE, used
                    found, first = VALUE, value
                elif kind >= 0 and kind != FLOAT and not (kind == DECIMAL and found == NUMBER):
                    return WRONG_TYPE, used
            if node >= 0 and found != NOTHING:
                tape[used, NODE], tape[used, SLOT], tape[used, FOUND] = node, slot, found
                tape[used, A], tape[used, B], tape[used, ROW] = first, second, row
                used += 1
            continue
        # The end of an object or of an array.
        depth -= 1
        if byte != (0x5D if stack[depth, _IS_ARRAY] else 0x7D):
            return SYNTAX, used
        position += 1
        if depth == 0:
            # Spark reads no further.
            return FINE, used
        inner, capture = stack[depth, _NODE], stack[depth, _CAPTURE]
        if capture >= 0 or (inner >= 0 and nodes[inner, KIND] != STRUCT):
            tape[used, SLOT], tape[used, ROW] = stack[depth, _SLOT], row
            tape[used, A] = stack[depth, _FIRST]
            if capture >= 0:
                tape[used, NODE], tape[used, FOUND], tape[used, B] = capture, RAW, position
            else:
                tape[used, NODE], tape[used, FOUND] = inner, ELEMENTS
                tape[used, B] = counts[inner] - stack[depth, _FIRST]
            used += 1
        state = _AFTER


@compiled(
    types.Tuple((_number, _number))(
        _read, _read_offsets, _number, _number, _number, _nodes, _read, _table, _tape, _number, _int64s, _int64s, _tape,
        _bytes, _int8s,
    )
)  # fmt: skip
def scan(
    data: Any, offsets: Any, row: Any, rows: Any, flags: Any, nodes: Any, names: Any, hashes: Any, tape: Any, used: Any,
    counts: Any, before: Any, stack: Any, scratch: Any, statuses: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Walks the documents from `row` on whose status is FINE. Row r is in `data[offsets[r] : offsets[r + 1]]`.

    Returns (the row where the tape is full, or `rows`; the length of the tape).
    """
    while row < rows:
        if statuses[row] == FINE:
            kept = used
            for node in range(len(counts)):
                before[node] = counts[node]
            status, used = _document(
                data, np.int64(offsets[row]), np.int64(offsets[row + 1]), row, flags,
                nodes, names, hashes, tape, used, counts, stack, scratch,
            )  # fmt: skip
            if status != FINE:
                used = kept
                for node in range(len(counts)):
                    counts[node] = before[node]
                if status == FULL:
                    return row, used
                statuses[row] = status
        row += 1
    return row, used


@compiled(_number(_read, _int8s, _int64s, _int64s, _int32s, _bytes))
def gather(data: Any, found: Any, starts: Any, ends: Any, offsets: Any, out: Any) -> Any:
    """Copies the texts of all slots one after another. Returns their total size."""
    at = np.int64(0)
    offsets[0] = 0
    for slot in range(len(found)):
        kind = found[slot]
        if kind == ESCAPED:
            at = np.int64(unescape(data, starts[slot], ends[slot], out, at))
        elif kind == PLAIN or kind == RAW or kind == NUMBER:
            size = ends[slot] - starts[slot]
            copy_bytes(out, at, data, starts[slot], size)
            at += size
        offsets[slot + 1] = at
    return at
