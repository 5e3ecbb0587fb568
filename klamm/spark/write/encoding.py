"""Encodes columns as record batches, message format v2, in bulk.

The rows of one Arrow batch for one target (a partition) keep their order, and are cut into batches of a given size.
`klamm.protocol.record.records.build_batch` does the same one record at a time; tests compare the two.

What must stay true:
- A sealed batch has its own memory and is never changed again, because the transport gets it without a copy.

Source: org.apache.kafka.common.record.DefaultRecordBatch, DefaultRecord.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.record_batch import (
    HEADER_SIZE_BYTES,
    LOG_OVERHEAD_BYTES,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    recompress,
    write_header,
)
from klamm.spark.write import encoding_kernels as kernels
from klamm.spark.write.columns import Columns, Integers

# One call of compiled code writes many batches into memory of about this size.
SLAB_BYTES = 2 * 1024 * 1024


class EncodedBatch(NamedTuple):
    """A batch for `target`, without producer id, epoch and sequence. `max_timestamp` is for its header."""

    target: int
    data: memoryview
    record_count: int
    base_timestamp: int
    max_timestamp: int

    def seal(
        self,
        codec: CompressionType,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        *,
        is_transactional: bool = False,
    ) -> bytes | bytearray:
        """The batch for a broker, in its own memory, so that a batch that waits long keeps no other batch in memory."""
        header = BatchHeader(
            0,
            len(self.data) - LOG_OVERHEAD_BYTES,
            -1,
            2,
            0,
            CompressionType.NONE | (TRANSACTIONAL_FLAG if is_transactional else 0),
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
    """The size of each row as an uncompressed record, or up to a dozen bytes more."""
    sizes = np.empty(len(columns.timestamps), np.int64)
    same_timestamp = len(sizes) == 0 or bool((columns.timestamps == columns.timestamps[0]).all())
    kernels.measure(sizes, columns, same_timestamp)
    return sizes


def encode(columns: Columns, targets: Integers, sizes: Integers, limits: Sequence[int]) -> Iterator[EncodedBatch]:
    """The batches of all rows, target after target.

    `targets` has the target of each row, a number below `len(limits)`, and `sizes` the result of
    `record_sizes`. A batch has at most `limits[target]` bytes, unless it has a single record.
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
