"""The leader's records as a follower appends them: whole batches that follow the log's end, one write for a segment.

What must stay true:
- A batch is appended only if its checksum is right, and its offsets follow those before it.
- The follower keeps the leader's offsets and epochs as they are.

Source: kafka.log.Log (appendAsFollower, analyzeAndValidateRecords).
"""

from collections.abc import Sequence
from typing import NamedTuple

from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.primitives import Buffer
from klamm.protocol.record_batch import BatchHeader, check_crc, iterate_batches
from klamm.protocol.records import EndTransactionMarker, decode_end_transaction_marker
from klamm.storage.segment import LogSegment


class Batch(NamedTuple):
    """A batch to be appended, with its final offsets, and its marker if it is a control batch."""

    position: int
    header: BatchHeader
    marker: EndTransactionMarker | None


def check_batches(records: Buffer, log_end_offset: int, log_name: str) -> list[Batch]:
    """The whole batches in `records`. Raises KafkaError: CORRUPT_MESSAGE, OFFSET_OUT_OF_RANGE."""
    batches = []
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
        batches.append(Batch(position, header, marker))
        expected = header.next_offset
    return batches


def group_by_segment(batches: Sequence[Batch], active: LogSegment, segment_bytes: int) -> list[list[Batch]]:
    """Runs of batches. Each run fits into one segment and is written at once; the first may fit into `active`."""
    groups: list[list[Batch]] = []
    room = segment_bytes - active.size_bytes
    first_offset = active.base_offset
    for batch in batches:
        size_bytes = batch.header.size_bytes
        if not groups or size_bytes > room or batch.header.last_offset - first_offset >= 2**31:
            groups.append([])
            room = segment_bytes if len(groups) > 1 else max(room, size_bytes)
            first_offset = batch.header.base_offset
        groups[-1].append(batch)
        room -= size_bytes
    return groups
