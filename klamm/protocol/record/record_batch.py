"""Record batches, message format v2: the 61-byte header, and the records as opaque bytes after it.

The hot path reads a batch's header only; `records` decodes the records inside, `compression` has the codecs.

What must stay true:
- No length or count is trusted before it has been checked against the available bytes.
- The CRC-32C covers everything from the attributes (byte 21) to the end, so the base offset and the partition leader
  epoch can be set without touching it.
- Any bytes give a value or a `KafkaError`. Values are those that Java would have: numbers of 32 or 64 bits, whose sums
  wrap around.

Source: org.apache.kafka.common.record.DefaultRecordBatch.
"""

import struct
from collections.abc import Generator, Iterator
from typing import NamedTuple

from klamm.base.checksum import crc32c
from klamm.base.slices import in_one_go
from klamm.protocol.error_codes import ErrorCode, KafkaError, corrupt_message
from klamm.protocol.primitives import Buffer
from klamm.protocol.record.compression import MAX_DECOMPRESSED_BYTES, CompressionType, compress_in_steps, decompress

HEADER_SIZE_BYTES = 61
LOG_OVERHEAD_BYTES = 12  # the base offset and the length, which the length does not count
CRC_COVERS_FROM = 21
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
_ALWAYS_DECOMPRESSED_BYTES = 16 * 1024 * 1024
_MAX_COMPRESSION_FACTOR = 1100

_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH = struct.Struct(">i")
_OFFSET_LENGTH_EPOCH = struct.Struct(">qii")
_CRC_ATTRIBUTES = struct.Struct(">Ih")
_MAX_TIMESTAMP = struct.Struct(">q")
_LENGTH_AT, _MAGIC_AT, _CRC_AT, _MAX_TIMESTAMP_AT = 8, 16, 17, 35
# The bytes of a message of format v0 without key and value, behind its length.
_SMALLEST_MESSAGE_BYTES = 14
_FLAGS_AT = 22  # the lower byte of the attributes; the higher byte is unused

LOG_APPEND_TIME_FLAG = 0x08
CODEC_MASK = 0x07
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20

MIN_RECORD_SIZE_BYTES = 7  # seven fields of at least one byte each
MAX_SEQUENCE = 2**31 - 1
# The offset after the last record must also fit into 63 bits.
_MAX_OFFSET = 2**63 - 1


class BatchHeader(NamedTuple):
    """The header of one batch, in the order of the wire. Sizes in bytes, timestamps in ms since 1970 (-1: none)."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """The whole batch, header and length field included."""
        return self.batch_length + LOG_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequences wrap from 2^31-1 to 0."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return advance_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def codec(self) -> int:
        """A `CompressionType` number; 5 to 7 are undefined."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_FLAG)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_FLAG)


def advance_sequence(sequence: int, by: int) -> int:
    """The sequence number `by` records later (or, when negative, earlier), wrapping at 2^31."""
    return (sequence + by) & MAX_SEQUENCE


def parse_header(buffer: Buffer, position: int = 0, *, available_bytes: int | None = None) -> BatchHeader:
    """The header of the batch at `position`. The whole batch must lie within the buffer.

    `available_bytes`: if the buffer is only a window onto a file, how many bytes the file has from `position` on. Then
    only the header must lie within the buffer.
    Raises KafkaError: UNSUPPORTED_FOR_MESSAGE_FORMAT for message sets v0 and v1, else CORRUPT_MESSAGE.
    """
    visible = len(buffer) - position
    available = visible if available_bytes is None else available_bytes
    if visible <= _MAGIC_AT:
        raise corrupt_message(f"a record batch cannot fit into {visible} bytes")
    magic = buffer[position + _MAGIC_AT]
    if magic != 2:
        length: int = _LENGTH.unpack_from(buffer, position + _LENGTH_AT)[0]
        if length < _SMALLEST_MESSAGE_BYTES:
            raise corrupt_message(f"batch length {length} is smaller than any message's header")
        if magic in (0, 1):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"message format v{magic} is not supported, only v2"
            )
        raise corrupt_message(f"unknown message format {magic}, only v2 is supported")
    if visible < HEADER_SIZE_BYTES:
        raise corrupt_message(f"a record batch cannot fit into {visible} bytes")
    header = BatchHeader._make(_HEADER.unpack_from(buffer, position))
    size_bytes = header.batch_length + LOG_OVERHEAD_BYTES
    if size_bytes < HEADER_SIZE_BYTES:
        raise corrupt_message(f"batch length {header.batch_length} is smaller than a batch's header")
    if size_bytes > available:
        raise corrupt_message(f"batch length {header.batch_length} exceeds the {available} bytes that are there")
    if header.base_offset + header.last_offset_delta >= _MAX_OFFSET:
        raise corrupt_message(
            f"a batch at offset {header.base_offset} ends {header.last_offset_delta} later, above 2^63-2"
        )
    return header


def parse_header_of_one(buffer: Buffer) -> BatchHeader | None:
    """The header of the only batch in the buffer; None if the buffer is not exactly one batch."""
    try:
        header = parse_header(buffer)
    except KafkaError:
        return None
    return header if header.size_bytes == len(buffer) else None


def iterate_batches(buffer: Buffer, *, allow_partial_end: bool = False) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch, from the first byte to the last.

    `allow_partial_end`: the records of a fetch may end within a batch; the incomplete batch is left out.
    Raises KafkaError as `parse_header`.
    """
    position, end = 0, len(buffer)
    while position < end:
        if allow_partial_end and is_partial(buffer, position):
            return
        header = parse_header(buffer, position)
        yield position, header
        position += header.batch_length + LOG_OVERHEAD_BYTES


def is_partial(buffer: Buffer, position: int) -> bool:
    """Whether the batch at `position` continues after the buffer's end."""
    size_bytes = batch_size_bytes(buffer, position)
    return size_bytes is None or size_bytes > len(buffer) - position


def batch_size_bytes(buffer: Buffer, position: int = 0) -> int | None:
    """The size in the header of the batch at `position`; None if the buffer ends before the size."""
    if len(buffer) - position < LOG_OVERHEAD_BYTES:
        return None
    length: int = _LENGTH.unpack_from(buffer, position + _LENGTH_AT)[0]
    return length + LOG_OVERHEAD_BYTES


def is_transactional(buffer: Buffer) -> bool:
    """Whether the batch at the start of the buffer belongs to a transaction by its header; False without a batch. For
    requests, which are authorized before their batches are checked."""
    return len(buffer) >= HEADER_SIZE_BYTES and buffer[_MAGIC_AT] == 2 and bool(buffer[_FLAGS_AT] & TRANSACTIONAL_FLAG)


def is_zstd(buffer: Buffer) -> bool:
    """Whether the batch at the start of the buffer is compressed by zstd by its header; False without a batch."""
    return (
        len(buffer) >= HEADER_SIZE_BYTES
        and buffer[_MAGIC_AT] == 2
        and buffer[_FLAGS_AT] & CODEC_MASK == CompressionType.ZSTD
    )


def most_records(header: BatchHeader) -> int:
    """The most records that the batch can have, whatever its header says."""
    is_compressed = header.codec != CompressionType.NONE
    return (MAX_DECOMPRESSED_BYTES if is_compressed else header.size_bytes - HEADER_SIZE_BYTES) // MIN_RECORD_SIZE_BYTES


def max_decompressed_bytes(header: BatchHeader) -> int:
    """The most bytes that a broker decompresses from this batch, for an append or a lookup.

    The limit grows with the received bytes: gzip, snappy and lz4 cannot exceed the factor, but zstd could by far.
    """
    grown = header.size_bytes * _MAX_COMPRESSION_FACTOR
    return min(max(_ALWAYS_DECOMPRESSED_BYTES, grown), MAX_DECOMPRESSED_BYTES)


def crc_matches(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """Whether the CRC-32C in the header is right for the batch at `position`."""
    return bool(_crc(buffer, position, header.size_bytes) == header.crc)


def check_crc(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Raises KafkaError(CORRUPT_MESSAGE) unless the CRC matches."""
    if not crc_matches(buffer, position, header):
        raise corrupt_message(f"the record batch's checksum does not match its content (stored {header.crc:#010x})")


def set_offset_and_epoch(
    buffer: bytearray | memoryview, position: int, header: BatchHeader, base_offset: int, partition_leader_epoch: int
) -> BatchHeader:
    """Writes the offset and epoch that a leader assigns into the batch at `position`. Returns the new header. The CRC
    does not cover these fields."""
    assigned = base_offset, header.batch_length, partition_leader_epoch
    _OFFSET_LENGTH_EPOCH.pack_into(buffer, position, *assigned)
    return BatchHeader._make(assigned + header[3:])


def set_log_append_time(buffer: bytearray | memoryview, position: int, header: BatchHeader, timestamp_ms: int) -> None:
    """Makes `timestamp_ms` the time of every record of the batch at `position`, and updates the CRC."""
    _MAX_TIMESTAMP.pack_into(buffer, position + _MAX_TIMESTAMP_AT, timestamp_ms)
    _CRC_ATTRIBUTES.pack_into(buffer, position + _CRC_AT, 0, header.attributes | LOG_APPEND_TIME_FLAG)
    _write_crc(buffer, position, header.size_bytes)


def write_header(buffer: bytearray | memoryview, position: int, header: BatchHeader) -> None:
    """Writes the header before the records that are already in the buffer, with a newly computed CRC."""
    _HEADER.pack_into(buffer, position, *header)
    _write_crc(buffer, position, header.size_bytes)


def set_max_timestamp(buffer: bytearray | memoryview, position: int, header: BatchHeader, timestamp_ms: int) -> None:
    """Sets the largest timestamp in the header of the batch at `position`, and updates the CRC."""
    _MAX_TIMESTAMP.pack_into(buffer, position + _MAX_TIMESTAMP_AT, timestamp_ms)
    _write_crc(buffer, position, header.size_bytes)


def recompress(buffer: Buffer, header: BatchHeader, codec: CompressionType) -> bytearray:
    """The batch at the start of `buffer` with its records compressed by `codec`, and nothing else changed.

    Raises KafkaError as `decompress` does.
    """
    body = decompress(header.codec, memoryview(buffer)[HEADER_SIZE_BYTES : header.size_bytes])
    return in_one_go(compressed_batch(header, body, codec))


def compressed_batch(header: BatchHeader, body: Buffer, codec: CompressionType) -> Generator[int, None, bytearray]:
    """The batch with this header and these uncompressed records, compressed by `codec`; in steps of a few ms."""
    compressed = yield from compress_in_steps(codec, memoryview(body))
    batch = bytearray(HEADER_SIZE_BYTES)
    batch += compressed
    attributes = header.attributes & ~CODEC_MASK | codec
    write_header(batch, 0, header._replace(batch_length=len(batch) - LOG_OVERHEAD_BYTES, attributes=attributes))
    return batch


def _crc(buffer: Buffer, position: int, size_bytes: int) -> int:
    value: int = crc32c(memoryview(buffer)[position + CRC_COVERS_FROM : position + size_bytes])
    return value


def _write_crc(buffer: bytearray | memoryview, position: int, size_bytes: int) -> None:
    struct.pack_into(">I", buffer, position + _CRC_AT, _crc(buffer, position, size_bytes))
