"""The leader's records as a follower appends them: whole batches that follow the log's end, one write for a segment.

What must stay true:
- One append has so few batches and bytes that it is a short step. The next append takes the rest.
- A batch is appended only if its checksum is right and its offsets follow those of the batch before.
- The follower keeps the leader's offsets and epochs as they are.

Source: kafka.log.Log (appendAsFollower, analyzeAndValidateRecords).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.primitives import Buffer
from klamm.protocol.record.record_batch import BatchHeader, batch_size_bytes, check_crc, iterate_batches
from klamm.protocol.record.records import EndTransactionMarker, decode_end_transaction_marker
from klamm.storage.segments.segment import LogSegment

# The most that one append takes: some milliseconds of work. A batch with more bytes is an append by itself.
BATCHES_PER_SLICE = 300
BYTES_PER_SLICE = 1024 * 1024


class Batch(NamedTuple):
    """A batch to append, with its final offsets, and its marker if it is a control batch."""

    position: int
    header: BatchHeader
    marker: EndTransactionMarker | None


def check_batches(records: Buffer, log_end_offset: int, log_name: str) -> list[Batch]:
    """The first whole batches in `records`: as many as one append takes, or all before the first bad batch.

    Raises KafkaError if the first batch is bad: CORRUPT_MESSAGE, OFFSET_OUT_OF_RANGE.
    """
    batches: list[Batch] = []
    try:
        for batch in _checked(records, log_end_offset, log_name):
            if batches and batch.position + batch.header.size_bytes > BYTES_PER_SLICE:
                break
            batches.append(batch)
            if len(batches) == BATCHES_PER_SLICE:
                break
    except KafkaError:
        if not batches:
            raise
    return batches


def _checked(records: Buffer, log_end_offset: int, log_name: str) -> Iterator[Batch]:
    expected = log_end_offset
    for position, header in iterate_batches(records, allow_partial_end=True):
        check_crc(records, position, header)
        if not expected <= header.base_offset <= header.last_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"a batch with offsets {header.base_offset} to {header.last_offset} cannot be appended to"
                f" {log_name} at {expected}",
            )
        marker = decode_end_transaction_marker(records, position, header) if header.is_control else None
        yield Batch(position, header, marker)
        expected = header.next_offset


def first_batch(records: Buffer) -> Buffer:
    """The first whole batch; all of the records if there is none."""
    size_bytes = batch_size_bytes(records)
    return records if size_bytes is None or size_bytes >= len(records) else memoryview(records)[:size_bytes]


def first_segment(batches: Sequence[Batch], active: LogSegment, segment_bytes: int) -> Sequence[Batch]:
    """The first batches that fit into one segment: into `active`, or, if the first batch does not fit there, into the
    next segment."""
    room, base_offset = segment_bytes - active.size_bytes, active.base_offset
    for count, batch in enumerate(batches):
        room -= batch.header.size_bytes
        if room < 0 or batch.header.last_offset - base_offset >= 2**31:
            if count:
                return batches[:count]
            room, base_offset = segment_bytes - batch.header.size_bytes, batch.header.base_offset
    return batches
