"""Columns become record batches, message format v2, in bulk.

The rows of one Arrow batch that go to one target (a partition) keep their order; they are cut into batches of a given
size. `klamm.protocol.record.records.build_batch` does the same one record at a time and is what the tests compare with.

What must stay true:
- A sealed batch has memory of its own and is never written to again: the transport gets it without a copy.

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

# Batches are written side by side into memory of about this size: one call of compiled code makes many of them.
SLAB_BYTES = 2 * 1024 * 1024


class EncodedBatch(NamedTuple):
    """A batch for `target`, complete except for producer id, epoch and sequence. `max_timestamp` is its header's."""

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
        """The batch for a broker, in memory of its own: a batch that waits long keeps no other batch in memory."""
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
    """The bytes that each row needs as an uncompressed record, or up to a dozen more."""
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
