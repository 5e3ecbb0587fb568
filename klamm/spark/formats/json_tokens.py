"""The tokens of a JSON document, for the loops of `json_kernels.py`: where each ends, and whether Jackson accepts it.

What must stay true: compiled code does not check indexes, so each function compares a position with the end of its
document before it reads there.

Source: com.fasterxml.jackson.core.json.ReaderBasedJsonParser.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from klamm.base.compiling import inlined

# The kinds of entries for a value: a kind of token, or a struct or list that has begun.
NOTHING, NULL, VALUE, PLAIN, ESCAPED, NUMBER, NOT_A_NUMBER, INFINITE, MINUS_INFINITE, RAW, OPENED, ELEMENTS = range(12)

# The flags for deviations that Jackson may allow.
COMMENTS, UNQUOTED_NAMES, SINGLE_QUOTES, LEADING_ZEROS, NOT_NUMBERS, ANY_ESCAPE, CONTROL = (
    1 << bit for bit in range(7)
)

# The most digits of a number.
MAX_DIGITS = 1000

_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
_BACKSLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES = np.uint64(0x2020202020202020)
_NO_BITS = np.uint64(0)
QUOTE, APOSTROPHE, BACKSLASH = 0x22, 0x27, 0x5C


@intrinsic
def _load64(typing_context: Any, data: Any, position: Any) -> Any:
    """Eight bytes as a little-endian number. Bounds are not checked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.gep(array.data, [arguments[1]])
        loaded = builder.load(builder.bitcast(pointer, ir.IntType(64).as_pointer()))
        loaded.align = 1
        return loaded

    return types.uint64(data, types.int64), generate


@inlined
def is_digit(byte: Any) -> bool:
    return 48 <= byte <= 57


@inlined
def _after_digits(data: Any, position: Any, end: Any) -> Any:
    while position < end and is_digit(data[position]):
        position += 1
    return position


@inlined
def _hex(byte: Any) -> Any:
    """The value of a hexadecimal digit, -1 for another byte."""
    if 48 <= byte <= 57:
        return byte - 48
    if 65 <= byte <= 70:
        return byte - 55
    if 97 <= byte <= 102:
        return byte - 87
    return -1


@inlined
def text_end(data: Any, position: Any, end: Any, quote: Any, flags: Any) -> tuple[Any, Any]:
    """(position of the closing quote, whether there are escapes). The position is -1 for a wrong text, -2 for a text
    without an end."""
    escaped = False
    quotes = _ONES * np.uint64(quote)
    while True:
        while position + 8 <= end:
            word = _load64(data, position)
            to_quote, to_backslash = word ^ quotes, word ^ _BACKSLASHES
            special = ((to_quote - _ONES) & ~to_quote) | ((to_backslash - _ONES) & ~to_backslash)
            if (special | ((word - _SPACES) & ~word)) & _HIGHS != _NO_BITS:
                break
            position += 8
        while position < end and data[position] >= 0x20 and data[position] != quote and data[position] != BACKSLASH:
            position += 1
        if position >= end:
            return -2, escaped
        byte = data[position]
        if byte == quote:
            return position, escaped
        if byte == BACKSLASH:
            escaped = True
            if position + 1 >= end:
                return -2, escaped
            byte = data[position + 1]
            if byte == 0x75:
                if position + 6 > end:
                    return -2, escaped
                for digit in range(position + 2, position + 6):
                    if _hex(data[digit]) < 0:
                        return -1, escaped
                position += 6
                continue
            known = (
                byte == QUOTE or byte == BACKSLASH or byte == 0x2F or byte == 0x62
                or byte == 0x66 or byte == 0x6E or byte == 0x72 or byte == 0x74
            )  # fmt: skip
            if not (known or flags & ANY_ESCAPE or (byte == APOSTROPHE and flags & SINGLE_QUOTES)):
                return -1, escaped
            position += 2
        elif flags & CONTROL:
            position += 1
        else:
            return -1, escaped


@inlined
def is_word(data: Any, position: Any, end: Any, word: Any) -> bool:
    """Whether the word is at this position, and no letter or digit follows it."""
    if position + len(word) > end:
        return False
    for index in range(len(word)):
        if data[position + index] != word[index]:
            return False
    if position + len(word) == end:
        return True
    byte = data[position + len(word)]
    return not (is_digit(byte) or 65 <= byte <= 90 or 97 <= byte <= 122 or byte == 95 or byte == 36 or byte >= 0x80)


@inlined
def number_end(data: Any, position: Any, end: Any, flags: Any) -> tuple[Any, Any, Any]:
    """(position after a number, -1 without a number, -2 for too many digits; its kind; whether it is an integer)."""
    byte = data[position]
    start = position
    if byte == 0x2D or byte == 0x2B:
        position += 1
        if position >= end:
            return -1, NUMBER, False
        if data[position] == 0x49:
            found = MINUS_INFINITE if byte == 0x2D else INFINITE
            if flags & NOT_NUMBERS and is_word(data, position, end, (0x49, 0x4E, 0x46)):
                return position + 3, found, False
            if flags & NOT_NUMBERS and is_word(data, position, end, (0x49, 0x6E, 0x66, 0x69, 0x6E, 0x69, 0x74, 0x79)):
                return position + 8, found, False
            return -1, NUMBER, False
        if byte == 0x2B:
            return -1, NUMBER, False
    elif byte == 0x4E:
        if flags & NOT_NUMBERS and is_word(data, position, end, (0x4E, 0x61, 0x4E)):
            return position + 3, NOT_A_NUMBER, False
        return -1, NUMBER, False
    elif byte == 0x49:
        if flags & NOT_NUMBERS and is_word(data, position, end, (0x49, 0x6E, 0x66, 0x69, 0x6E, 0x69, 0x74, 0x79)):
            return position + 8, INFINITE, False
        return -1, NUMBER, False
    if not is_digit(data[position]):
        return -1, NUMBER, False
    if data[position] == 0x30 and position + 1 < end and is_digit(data[position + 1]) and not flags & LEADING_ZEROS:
        return -1, NUMBER, False
    marks = position - start
    position = _after_digits(data, position, end)
    is_integer = True
    if position < end and data[position] == 0x2E:
        is_integer = False
        marks += 1
        position += 1
        first = position
        position = _after_digits(data, position, end)
        if position == first:
            return -1, NUMBER, False
    if position < end and (data[position] == 0x65 or data[position] == 0x45):
        is_integer = False
        marks += 1
        position += 1
        if position < end and (data[position] == 0x2D or data[position] == 0x2B):
            marks += 1
            position += 1
        first = position
        position = _after_digits(data, position, end)
        if position == first:
            return -1, NUMBER, False
    if position - start - marks > MAX_DIGITS:
        return -2, NUMBER, False
    return position, NUMBER, is_integer


@inlined
def integer(data: Any, start: Any, end: Any, lowest: Any, highest: Any) -> tuple[Any, Any]:
    """(an integer's value, whether it is within these bounds)."""
    negative = data[start] == 0x2D
    value = np.int64(0)
    # Computed as a negative number, because there is one more of these.
    limit = -(2**63)
    for position in range(start + 1 if negative else start, end):
        digit = np.int64(data[position] - 48)
        if value < (limit + digit) // 10:
            return 0, False
        if value * 10 < limit + digit:
            return 0, False
        value = value * 10 - digit
    if not negative:
        if value == limit:
            return 0, False
        value = -value
    return value, lowest <= value <= highest


@inlined
def unescape(data: Any, start: Any, end: Any, out: Any, at: Any) -> Any:
    """Copies a text and resolves its escapes, which makes it no longer. Returns the position after the copy."""
    position = start
    while position < end:
        byte = data[position]
        if byte != BACKSLASH:
            out[at] = byte
            at += 1
            position += 1
            continue
        byte = data[position + 1]
        if byte != 0x75:
            if byte == 0x62:
                byte = 8
            elif byte == 0x66:
                byte = 12
            elif byte == 0x6E:
                byte = 10
            elif byte == 0x72:
                byte = 13
            elif byte == 0x74:
                byte = 9
            out[at] = byte
            at += 1
            position += 2
            continue
        code = 0
        for digit in range(position + 2, position + 6):
            code = code * 16 + _hex(data[digit])
        position += 6
        if (
            0xD800 <= code < 0xDC00
            and position + 6 <= end
            and data[position] == BACKSLASH
            and data[position + 1] == 0x75
        ):
            low = 0
            for digit in range(position + 2, position + 6):
                low = low * 16 + _hex(data[digit])
            if 0xDC00 <= low < 0xE000:
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
                position += 6
        if code < 0x80:
            out[at] = code
            at += 1
        elif code < 0x800:
            out[at] = 0xC0 | code >> 6
            out[at + 1] = 0x80 | code & 0x3F
            at += 2
        elif 0xD800 <= code < 0xE000:
            # Java writes half of a surrogate pair as a question mark.
            out[at] = 0x3F
            at += 1
        elif code < 0x10000:
            out[at] = 0xE0 | code >> 12
            out[at + 1] = 0x80 | code >> 6 & 0x3F
            out[at + 2] = 0x80 | code & 0x3F
            at += 3
        else:
            out[at] = 0xF0 | code >> 18
            out[at + 1] = 0x80 | code >> 12 & 0x3F
            out[at + 2] = 0x80 | code >> 6 & 0x3F
            out[at + 3] = 0x80 | code & 0x3F
            at += 4
    return at


@inlined
def _after_comment(data: Any, position: Any, end: Any) -> Any:
    """The position after a comment that begins here; -1 without a comment, -2 for a comment without an end."""
    if position + 1 >= end:
        return -1
    if data[position + 1] == 0x2F:
        position += 2
        while position < end and data[position] != 10 and data[position] != 13:
            position += 1
        return position
    if data[position + 1] == 0x2A:
        position += 2
        while position + 1 < end:
            if data[position] == 0x2A and data[position + 1] == 0x2F:
                return position + 2
            position += 1
        return -2
    return -1


@inlined
def after_space(data: Any, position: Any, end: Any, flags: Any) -> Any:
    """The position of the next token, or of the end."""
    while position < end:
        byte = data[position]
        if byte == 0x20 or byte == 10 or byte == 13 or byte == 9:
            position += 1
        elif byte == 0x2F and flags & COMMENTS:
            after = _after_comment(data, position, end)
            if after == -2:
                return end
            if after < 0:
                return position
            position = after
        else:
            return position
    return position


@inlined
def is_special(data: Any, start: Any, end: Any) -> Any:
    """Whether a text names NaN or an infinity, and which; NOTHING for another text."""
    if is_word(data, start, end, (0x4E, 0x61, 0x4E)) and end - start == 3:
        return NOT_A_NUMBER
    sign = data[start]
    found = MINUS_INFINITE if sign == 0x2D else INFINITE
    if sign == 0x2D or sign == 0x2B:
        start += 1
        if is_word(data, start, end, (0x49, 0x4E, 0x46)) and end - start == 3:
            return found
    if is_word(data, start, end, (0x49, 0x6E, 0x66, 0x69, 0x6E, 0x69, 0x74, 0x79)) and end - start == 8:
        return found
    return NOTHING
