"""Arrow columns become record batches, message format v2, in bulk.

The rows of one Arrow batch that go to one target (a partition) keep their order; they are cut into batches of a given
size. `klamm.protocol.record_batch.build_batch` does the same one record at a time and is what the tests compare with.

What must stay true:
- A null is not an empty byte string, neither as key nor as value nor as a header's value.
- A sealed batch has memory of its own and is never written to again: it goes to a transport as it is.

Source: org.apache.kafka.common.record.DefaultRecordBatch, DefaultRecord.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.record_batch import (
    HEADER_SIZE_BYTES,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
    CompressionType,
    recompress,
    write_header,
)
from klamm.spark.write import encoding_kernels as kernels

Integers = npt.NDArray[np.int64]

# Batches are written side by side into memory of about this size: one call of compiled code makes many of them.
SLAB_BYTES = 2 * 1024 * 1024


class Strings(NamedTuple):
    """A column of byte strings: those of row r are `data[starts[r] : starts[r] + sizes[r]]`; a size of -1 is null."""

    data: npt.NDArray[np.uint8]
    starts: Integers
    sizes: Integers


class Headers(NamedTuple):
    """A column of headers: those of row r are `counts[r]` of `names` and `values`, from `starts[r]`."""

    starts: Integers
    counts: Integers
    names: Strings
    values: Strings


class Columns(NamedTuple):
    """What becomes records, one a row. Timestamps in ms since 1970."""

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


class EncodedBatch(NamedTuple):
    """A batch for `target`, complete but for producer id, epoch and sequence. `max_timestamp` belongs to its header."""

    target: int
    data: memoryview
    record_count: int
    base_timestamp: int
    max_timestamp: int

    def seal(
        self, codec: CompressionType, producer_id: int, producer_epoch: int, base_sequence: int
    ) -> bytes | bytearray:
        """The batch as it goes to a broker, in memory of its own: one that waits long keeps no others alive."""
        header = BatchHeader(
            0,
            len(self.data) - LOG_OVERHEAD_BYTES,
            -1,
            2,
            0,
            CompressionType.NONE,
            self.record_count - 1,
            self.base_timestamp,
            self.max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            self.record_count,
        )
        write_header(self.data, 0, header)
        return bytes(self.data) if codec == CompressionType.NONE else recompress(self.data, header, codec)


def record_sizes(columns: Columns) -> Integers:
    """How many bytes each row needs as a record without compression, or up to a dozen more."""
    sizes = np.empty(len(columns.timestamps), np.int64)
    same_timestamp = len(sizes) == 0 or bool((columns.timestamps == columns.timestamps[0]).all())
    kernels.measure(sizes, columns, same_timestamp)
    return sizes


def encode(columns: Columns, targets: Integers, sizes: Integers, limits: Sequence[int]) -> Iterator[EncodedBatch]:
    """The batches of all rows, target after target.

    `targets` has the target of each row, a number below `len(limits)`, and `sizes` what `record_sizes` found. A batch
    has at most `limits[target]` bytes, unless it has a single record.
    """
    rows = len(targets)
    order, first, needs = np.empty(rows, np.int64), np.empty(rows + 1, np.int64), np.empty(rows, np.int64)
    batch_targets = np.empty(rows, np.int64)
    room = np.array(limits, np.int64) - HEADER_SIZE_BYTES
    count = kernels.split(targets, len(limits), sizes, room, order, first, batch_targets, needs)
    needs = needs[:count] + HEADER_SIZE_BYTES
    start = 0
    while start < count:
        ends = np.cumsum(needs[start:])
        stop = start + max(1, int(np.searchsorted(ends, SLAB_BYTES, side="right")))
        yield from _write(columns, order, first[start : stop + 1], batch_targets[start:stop], needs[start:stop])
        start = stop


def _write(
    columns: Columns, order: Integers, first: Integers, targets: Integers, needs: Integers
) -> Iterator[EncodedBatch]:
    ends = np.cumsum(needs)
    starts = ends - needs + HEADER_SIZE_BYTES
    out = np.empty(int(ends[-1]), np.uint8)
    max_timestamps = np.empty(len(needs), np.int64)
    kernels.write(out, starts, ends, max_timestamps, order, first, columns)
    slab = memoryview(out)  # type: ignore[arg-type]  # numpy arrays are buffers, which typing cannot say before 3.12
    base_timestamps = columns.timestamps[order[first[:-1]]]
    return map(
        EncodedBatch,
        targets.tolist(),
        [slab[begin - HEADER_SIZE_BYTES : end] for begin, end in zip(starts.tolist(), ends.tolist(), strict=True)],
        np.diff(first).tolist(),
        base_timestamps.tolist(),
        max_timestamps.tolist(),
    )


# Arrow arrays


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
    """An array that cannot be written to, always: numba compiles anew for one that can."""
    array = np.frombuffer(b"" if buffer is None else buffer, dtype)
    array.flags.writeable = False
    return array
