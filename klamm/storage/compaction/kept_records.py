"""Which records of one batch stay, and the batch that holds only those.

What must stay true of a batch that loses records: its base offset, last offset, producer, epochs, sequence numbers and
flags stay, because they are the producer's state; each record keeps its offset, timestamp and bytes. A batch that loses
no records is copied as it is.

Source: org.apache.kafka.common.record.MemoryRecords (filterTo, buildRetainedRecordsInto).
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from klamm.protocol.error_codes import corrupt_message
from klamm.protocol.record.compression import CompressionType, compress
from klamm.protocol.record.record_batch import (
    CODEC_MASK,
    HEADER_SIZE_BYTES,
    LOG_OVERHEAD_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    write_header,
)
from klamm.protocol.record.record_walk import skip_field, varint, varlong
from klamm.protocol.record.records import wrapped_int64


class PlacedRecord(NamedTuple):
    """A record and the place of its bytes among the uncompressed records of its batch."""

    start: int
    end: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    has_value: bool


class Kept(NamedTuple):
    """The remaining records of a batch: their number, their uncompressed bytes, and their largest timestamp."""

    record_count: int
    body: bytes
    max_timestamp_ms: int


def placed_records(body: bytes, header: BatchHeader) -> Iterator[PlacedRecord]:
    """The records of a batch whose uncompressed records are `body`. Raises KafkaError(CORRUPT_MESSAGE)."""
    position, size = 0, len(body)
    append_time = header.max_timestamp if header.is_log_append_time else None
    for index in range(header.record_count):
        start = position
        try:
            length, position = varint(body, start)
            end = position + length
            if length < 0 or end > size:
                raise corrupt_message(f"record {index} does not fit into its batch")
            timestamp_delta, position = varlong(body, position + 1)  # after the attributes, which are not used
            offset_delta, position = varint(body, position)
            key_length, key_end = skip_field(body, position)
            value_length, value_end = skip_field(body, key_end)
        except IndexError:
            raise corrupt_message("the records end within a number") from None
        if value_end > end:
            raise corrupt_message(f"the fields of record {index} do not end where its length says")
        timestamp_ms = append_time
        if timestamp_ms is None:
            timestamp_ms = wrapped_int64(header.base_timestamp + timestamp_delta)
        key = None if key_length < 0 else body[key_end - key_length : key_end]
        yield PlacedRecord(
            start, end, wrapped_int64(header.base_offset + offset_delta), timestamp_ms, key, value_length >= 0
        )
        position = end
    if position != size:
        raise corrupt_message(f"{size - position} bytes follow the last record")


def keep_records(body: bytes, header: BatchHeader, is_kept: Callable[[PlacedRecord], bool]) -> Kept:
    """The records for which `is_kept` is true. Raises KafkaError(CORRUPT_MESSAGE)."""
    parts: list[bytes] = []
    max_timestamp_ms = NO_TIMESTAMP
    for record in placed_records(body, header):
        if is_kept(record):
            parts.append(body[record.start : record.end])
            max_timestamp_ms = max(max_timestamp_ms, record.timestamp_ms)
    return Kept(len(parts), b"".join(parts), max_timestamp_ms)


def batch_of(header: BatchHeader, kept: Kept) -> bytearray:
    """The batch with only the records that stay, compressed as before."""
    codec = CompressionType(header.codec)
    batch = bytearray(HEADER_SIZE_BYTES)
    batch += compress(codec, kept.body)
    written = header._replace(
        batch_length=len(batch) - LOG_OVERHEAD_BYTES,
        record_count=kept.record_count,
        max_timestamp=header.max_timestamp if header.is_log_append_time else kept.max_timestamp_ms,
    )
    write_header(batch, 0, written)
    return batch


def empty_batch(header: BatchHeader) -> bytearray:
    """The batch without records, which keeps its producer's last sequence number in the log."""
    batch = bytearray(HEADER_SIZE_BYTES)
    written = header._replace(
        batch_length=HEADER_SIZE_BYTES - LOG_OVERHEAD_BYTES,
        attributes=header.attributes & ~CODEC_MASK,
        base_timestamp=NO_TIMESTAMP,
        record_count=0,
    )
    write_header(batch, 0, written)
    return batch
