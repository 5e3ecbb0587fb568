"""The records inside a batch of message format v2, for the few callers that need them.

Decoding records is for lookups by timestamp, compacted topics, control batches, clients, tests and tools; a broker's
hot path treats a batch as opaque bytes (`record_batch`).

What must stay true:
- No length or count is trusted before it has been checked against the available bytes.
- Any bytes give a value or a `KafkaError`. Values are those that Java would have: numbers of 32 or 64 bits, whose sums
  wrap around.

Source: org.apache.kafka.common.record.DefaultRecord, EndTransactionMarker (KIP-98).
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeVar

from klamm.protocol.error_codes import corrupt_message
from klamm.protocol.primitives import Buffer
from klamm.protocol.record.compression import MAX_DECOMPRESSED_BYTES, CompressionType, compress, decompress
from klamm.protocol.record.record_batch import (
    CONTROL_FLAG,
    HEADER_SIZE_BYTES,
    LOG_OVERHEAD_BYTES,
    MIN_RECORD_SIZE_BYTES,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    write_header,
)

T = TypeVar("T")
_DECODED_AT_ONCE_BYTES = 32 * 1024
_CONTROL_KEY = struct.Struct(">hh")
_CONTROL_VALUE = struct.Struct(">hi")


class ControlRecordType(IntEnum):
    """The type of a control record: how its transaction ended."""

    ABORT = 0
    COMMIT = 1


class Record(NamedTuple):
    """One record. Headers are (key, value) pairs in order; a header's value may be None.

    When a batch is built, an offset of -1 means: the one after the previous record's.
    """

    key: bytes | None
    value: bytes | None
    timestamp_ms: int = NO_TIMESTAMP
    headers: tuple[tuple[str, bytes | None], ...] = ()
    offset: int = -1


class EndTransactionMarker(NamedTuple):
    """The content of a control batch's only record."""

    type: ControlRecordType
    coordinator_epoch: int


def wrapped_int64(value: int) -> int:
    """The sum after Java's overflow. Timestamps and offsets of records are sums of numbers that a client chooses."""
    return value if -(2**63) <= value < 2**63 else (value + 2**63) % 2**64 - 2**63


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    codec: CompressionType = CompressionType.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    partition_leader_epoch: int = -1,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytearray:
    """One batch of at least one record; record offsets are absolute, or -1 for the next one."""
    base_timestamp = records[0].timestamp_ms
    parts: list[bytes] = []
    offset = base_offset - 1
    for record in records:
        offset = record.offset if record.offset >= 0 else offset + 1
        parts.append(encode_record(record, record.timestamp_ms - base_timestamp, offset - base_offset))
    compressed = compress(codec, bytearray().join(parts))
    attributes = int(codec)
    attributes |= TRANSACTIONAL_FLAG if is_transactional else 0
    attributes |= CONTROL_FLAG if is_control else 0
    header = BatchHeader(
        base_offset,
        HEADER_SIZE_BYTES - LOG_OVERHEAD_BYTES + len(compressed),
        partition_leader_epoch,
        2,
        0,
        attributes,
        offset - base_offset,
        base_timestamp,
        max(record.timestamp_ms for record in records),
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    batch = bytearray(HEADER_SIZE_BYTES)
    batch += compressed
    write_header(batch, 0, header)
    return batch


def build_end_transaction_marker(
    marker: EndTransactionMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    partition_leader_epoch: int = -1,
) -> bytearray:
    """The control batch that ends a producer's transaction in one partition."""
    record = Record(_CONTROL_KEY.pack(0, marker.type), _CONTROL_VALUE.pack(0, marker.coordinator_epoch), timestamp_ms)
    return build_batch(
        [record],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        partition_leader_epoch=partition_leader_epoch,
        is_transactional=True,
        is_control=True,
    )


def encode_record(record: Record, timestamp_delta: int, offset_delta: int) -> bytes:
    """The bytes of the record in an uncompressed batch, with deltas from the batch's first record."""
    # After the length come the attributes, of which Kafka defines none.
    parts = [b"\0", _varint(timestamp_delta), _varint(offset_delta)]
    for data in record.key, record.value:
        if data is None:
            parts.append(_NULL_LENGTH)
        else:
            parts += _varint(len(data)), data
    parts.append(_varint(len(record.headers)))
    for name, value in record.headers:
        key = name.encode()
        parts += _varint(len(key)), key
        parts += (_NULL_LENGTH,) if value is None else (_varint(len(value)), value)
    encoded = b"".join(parts)
    return _varint(len(encoded)) + encoded


def _varint(value: int) -> bytes:
    """Encodes a varint or varlong. Zigzag makes small negative numbers short, too."""
    return _SHORT_VARINTS[value] if 0 <= value < len(_SHORT_VARINTS) else _encode_varint(value)


def _encode_varint(value: int) -> bytes:
    value = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# Lengths and deltas are mostly small; looking them up takes a tenth of the time.
_SHORT_VARINTS = [_encode_varint(value) for value in range(1024)]
_NULL_LENGTH = _encode_varint(-1)


def decode_records(
    buffer: Buffer, position: int, header: BatchHeader, *, max_bytes: int = MAX_DECOMPRESSED_BYTES
) -> Iterator[Record]:
    """The records of the batch at `position`, with absolute offsets.

    Raises KafkaError: CORRUPT_MESSAGE when the bytes are not the records that the header announces,
    UNSUPPORTED_COMPRESSION_TYPE, MESSAGE_TOO_LARGE when they would decompress to more than `max_bytes`.
    """
    payload = memoryview(buffer)[position + HEADER_SIZE_BYTES : position + header.size_bytes]
    body = decompress(header.codec, payload, max_bytes)
    if not 0 <= header.record_count <= len(body) // MIN_RECORD_SIZE_BYTES:
        raise corrupt_message(f"a record count of {header.record_count} does not fit into {len(body)} bytes")
    reader = _Reader(body)
    for _ in range(header.record_count):
        yield reader.record(header)
    if reader.position != len(body):
        raise corrupt_message(f"{len(body) - reader.position} bytes follow the last record")


KeyAndValueAt = tuple[int, bytes | None, bytes | None]


def decode_keys_and_values(body: Buffer, header: BatchHeader) -> Iterator[list[KeyAndValueAt]]:
    """(offset, key, value) of each record in `body`, the uncompressed records of the batch with this header.

    Takes a third of the time of `decode_records`, for callers that read a million records. Each part takes some
    milliseconds. Raises the errors of `decode_records`, possibly after the first parts.
    """
    return _decode_in_parts(body, header, _keys_and_values, lambda record: (record.offset, record.key, record.value))


def decode_in_parts(body: Buffer, header: BatchHeader) -> Iterator[list[Record]]:
    """Like `decode_keys_and_values`, but yields whole records."""
    return _decode_in_parts(body, header, _records, lambda record: record)


def _decode_in_parts(
    body: Buffer,
    header: BatchHeader,
    read: Callable[[bytes, BatchHeader], tuple[list[T], int]],
    convert: Callable[[Record], T],
) -> Iterator[list[T]]:
    """The results of `read` for usual records, and of `convert` for unusual ones."""
    view = memoryview(body)
    reader = _Reader(view)
    count = position = 0
    while count < header.record_count:
        records, size_bytes = read(bytes(view[position : position + _DECODED_AT_ONCE_BYTES]), header)
        if not records:
            # The reader that checks everything reads large and unusual records.
            reader.position = position
            records = [convert(reader.record(header))]
            size_bytes = reader.position - position
        count += len(records)
        position += size_bytes
        yield records
    if count != header.record_count or position != len(view):
        raise corrupt_message(
            f"not {header.record_count} records are there but {count}, in {position} of {len(view)} bytes"
        )


def _keys_and_values(data: bytes, header: BatchHeader) -> tuple[list[KeyAndValueAt], int]:
    """The complete records in `data`, up to the first unusual one, and their size together."""
    base_offset, end, records = header.base_offset, 0, []
    try:
        while end < len(data):
            length, at = _read_varint(data, end)
            record_end = at + length
            if record_end > len(data):
                break
            timestamp_delta_end = at + 2 if data[at + 1] < 0x80 else _read_varint(data, at + 1)[1]
            delta, at = _read_varint(data, timestamp_delta_end)
            key, value, at = _read_key_and_value(data, at, record_end)
            records.append((wrapped_int64(base_offset + delta), key, value))
            end = record_end
    except (IndexError, ValueError):
        pass
    return records, end


def _records(data: bytes, header: BatchHeader) -> tuple[list[Record], int]:
    """As `_keys_and_values`."""
    base_offset, base_timestamp, end, records = header.base_offset, header.base_timestamp, 0, []
    append_time = header.max_timestamp if header.is_log_append_time else None
    try:
        while end < len(data):
            length, at = _read_varint(data, end)
            record_end = at + length
            if record_end > len(data):
                break
            timestamp_delta, at = _read_varint(data, at + 1)
            delta, at = _read_varint(data, at)
            key, value, at = _read_key_and_value(data, at, record_end)
            timestamp_ms = wrapped_int64(base_timestamp + timestamp_delta) if append_time is None else append_time
            records.append(Record(key, value, timestamp_ms, (), wrapped_int64(base_offset + delta)))
            end = record_end
    except (IndexError, ValueError):
        pass
    return records, end


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """(number, position after it). Raises IndexError when the data end within the number, ValueError when it is too
    long."""
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value, shift = 0, 0
    while byte >= 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
        position += 1
        byte = data[position]
        if shift > 28:
            raise ValueError("no length and no offset has more than five bytes")
    value |= byte << shift
    if value >= 2**32:
        raise ValueError("a number with bits that Java drops")
    return (value >> 1) ^ -(value & 1), position + 1


def _read_key_and_value(data: bytes, at: int, record_end: int) -> tuple[bytes | None, bytes | None, int]:
    """(key, value, position after them). Raises IndexError or ValueError for a record with headers or another end."""
    key_length, at = _read_varint(data, at)
    key = value = None
    if key_length != -1:
        key = data[at : at + key_length]
        at += key_length
    value_length, at = _read_varint(data, at)
    if value_length != -1:
        value = data[at : at + value_length]
        at += value_length
    if key_length < -1 or value_length < -1 or at + 1 != record_end or data[at] != 0:
        raise ValueError("an unusual record")
    return key, value, at


def decode_end_transaction_marker(buffer: Buffer, position: int, header: BatchHeader) -> EndTransactionMarker | None:
    """The marker in the control batch at `position`; None when the batch is empty (compacted) or of an unknown type.

    Raises KafkaError(CORRUPT_MESSAGE).
    """
    record = next(decode_records(buffer, position, header), None)
    if record is None:
        return None
    key, value = record.key or b"", record.value or b""
    if len(key) < _CONTROL_KEY.size:
        raise corrupt_message(f"a control record's key has {len(key)} bytes, not {_CONTROL_KEY.size}")
    kind = _CONTROL_KEY.unpack_from(key)[1]
    if kind not in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
        return None
    if len(value) < _CONTROL_VALUE.size:
        raise corrupt_message(f"an end-transaction marker has {len(value)} bytes, not {_CONTROL_VALUE.size}")
    return EndTransactionMarker(ControlRecordType(kind), _CONTROL_VALUE.unpack_from(value)[1])


class _Reader:
    """Reads records from uncompressed bytes, checking every length."""

    __slots__ = ("_data", "position")

    def __init__(self, data: Buffer) -> None:
        self._data = data
        self.position = 0

    def record(self, header: BatchHeader) -> Record:
        length = self._varint()
        end = self.position + length
        if length < 0 or end > len(self._data):
            raise corrupt_message(f"a record's length of {length} bytes does not fit into its batch")
        self.position += 1  # the attributes
        timestamp_delta = self._varlong()
        offset_delta = self._varint()
        key = self._bytes(end)
        value = self._bytes(end)
        headers = self._headers(end)
        if self.position != end:
            raise corrupt_message("a record's fields do not end where its length says")
        timestamp_ms = header.max_timestamp
        if not header.is_log_append_time:
            timestamp_ms = wrapped_int64(header.base_timestamp + timestamp_delta)
        return Record(key, value, timestamp_ms, headers, wrapped_int64(header.base_offset + offset_delta))

    def _headers(self, end: int) -> tuple[tuple[str, bytes | None], ...]:
        count = self._varint()
        if not 0 <= count <= (end - self.position) // 2:
            raise corrupt_message(f"a count of {count} headers does not fit into its record")
        return tuple([(self._header_key(end), self._bytes(end)) for _ in range(count)])

    def _header_key(self, end: int) -> str:
        key = self._bytes(end)
        if key is None:
            raise corrupt_message("a header's key is null")
        try:
            return key.decode()
        except UnicodeDecodeError:
            raise corrupt_message("a header's key is not UTF-8") from None

    def _bytes(self, end: int) -> bytes | None:
        length = self._varint()
        if length == -1:
            return None
        start = self.position
        if length < 0 or start + length > end:
            raise corrupt_message(f"a field's length of {length} bytes does not fit into its record")
        self.position = start + length
        return bytes(self._data[start : self.position])

    def _varint(self) -> int:
        value = self._unsigned(5) & 0xFFFF_FFFF
        return (value >> 1) ^ -(value & 1)

    def _varlong(self) -> int:
        value = self._unsigned(10) & 0xFFFF_FFFF_FFFF_FFFF
        return (value >> 1) ^ -(value & 1)

    def _unsigned(self, max_size_bytes: int) -> int:
        """An unsigned varint. The last byte may have more bits than the number. Java drops them, and so does the
        caller."""
        data, position, value = self._data, self.position, 0
        for shift in range(0, 7 * max_size_bytes, 7):
            if position >= len(data):
                raise corrupt_message("the records end within a number")
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.position = position
                return value
        raise corrupt_message(f"a number has more than {max_size_bytes} bytes")
