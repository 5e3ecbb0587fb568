"""The columns of records in the form for compiled code: arrays of numbers over Arrow's own memory.

What must stay true:
- Null and the empty byte string stay different, in keys, in values and in headers' values.
- The bytes of keys and values are not copied.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from klamm.protocol.error_codes import ErrorCode, KafkaError

Integers = npt.NDArray[np.int64]


class Strings(NamedTuple):
    """A column of byte strings: row r is `data[starts[r] : starts[r] + sizes[r]]`. A size of -1 means null."""

    data: npt.NDArray[np.uint8]
    starts: Integers
    sizes: Integers


class Headers(NamedTuple):
    """A column of headers: row r has `counts[r]` of `names` and `values`, from index `starts[r]` on."""

    starts: Integers
    counts: Integers
    names: Strings
    values: Strings


class Columns(NamedTuple):
    """The columns of records; each row is a record. Timestamps are in ms since 1970."""

    keys: Strings
    values: Strings
    headers: Headers
    timestamps: Integers

    @classmethod
    def from_arrow(
        cls, keys: pa.Array | None, values: pa.Array, headers: pa.Array | None, timestamps: Integers
    ) -> "Columns":
        """Keys and values are (large) strings or binaries, headers lists of structs of key (string) and value (binary).

        Raises KafkaError(INVALID_RECORD) for a column of another type, and when a header's key is null.
        """
        rows = len(values)
        return cls(
            _no_strings(rows) if keys is None else _strings(keys),
            _strings(values),
            _no_headers(rows) if headers is None else _headers(headers),
            timestamps,
        )


_OFFSET_TYPES: dict[pa.DataType, Any] = {
    pa.string(): np.int32,
    pa.binary(): np.int32,
    pa.large_string(): np.int64,
    pa.large_binary(): np.int64,
}


def _strings(array: pa.Array) -> Strings:
    offset_type = _OFFSET_TYPES.get(array.type)
    if offset_type is None:
        allowed = ", ".join(map(str, _OFFSET_TYPES))
        raise KafkaError(ErrorCode.INVALID_RECORD, f"a column is of the type {array.type}; allowed: {allowed}")
    _, offsets_buffer, data_buffer = array.buffers()
    offsets = _from_buffer(offsets_buffer, offset_type)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    if len(offsets) == 0:
        return _no_strings(0)
    sizes = np.diff(offsets)
    if array.null_count:
        sizes[_nulls(array)] = -1
    return Strings(_from_buffer(data_buffer, np.uint8), offsets[:-1].copy(), sizes)


def _headers(array: pa.Array) -> Headers:
    offsets = np.asarray(array.offsets).astype(np.int64)
    counts = np.diff(offsets)
    if array.null_count:
        counts[_nulls(array)] = 0
    names, values = (_strings(child) for child in array.values.flatten())
    first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    headers = Headers(offsets[:-1].copy(), counts, names, values)
    if (names.sizes[first:last] < 0).any():
        for row in range(len(counts)):
            start = int(headers.starts[row])
            if (names.sizes[start : start + int(counts[row])] < 0).any():
                raise KafkaError(ErrorCode.INVALID_RECORD, "the key of a header is null; only its value may be")
    return headers


def _no_strings(rows: int) -> Strings:
    return Strings(_from_buffer(None, np.uint8), np.zeros(rows, np.int64), np.full(rows, -1, np.int64))


def _no_headers(rows: int) -> Headers:
    nothing = np.zeros(rows, np.int64)
    return Headers(nothing, nothing, _no_strings(0), _no_strings(0))


def _nulls(array: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False), np.bool_)


def _from_buffer(buffer: pa.Buffer | None, dtype: Any) -> npt.NDArray[Any]:
    """A read-only array. All arrays are read-only, because numba would compile the loops again for writable arrays."""
    array = np.frombuffer(b"" if buffer is None else buffer, dtype)
    array.flags.writeable = False
    return array
