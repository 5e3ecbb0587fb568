"""The checks of a produced batch on its way into a leader's log, and the offsets that it gets.

`validate_and_assign_offsets` checks a batch once: its size and checksum, its counts and flags, its producer and
sequence, and the topic's demands on its records. It uses only its arguments, and writes only into the batch.

If the topic's configuration has no demands on records, the header is trusted and the records stay opaque; Kafka
inspects every record even then. Otherwise `batch_inspection` inspects them, and the error names the records that the
topic does not accept (KIP-467).

Source: kafka.log.LogValidator, kafka.log.Log (analyzeAndValidateRecords).
"""

from collections.abc import Sequence
from typing import NamedTuple

from klamm.base.slices import in_one_go
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.primitives import Buffer
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.record_batch import (
    CODEC_MASK,
    CONTROL_FLAG,
    LOG_APPEND_TIME_FLAG,
    NO_PRODUCER_ID,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    check_crc,
    most_records,
    parse_header,
    set_log_append_time,
    set_max_timestamp,
    set_offset_and_epoch,
)
from klamm.protocol.record.record_walk import MAX_NAMED_RECORDS, Refusal, RefusedRecord, Wanted
from klamm.protocol.record.records import EndTransactionMarker, decode_end_transaction_marker
from klamm.storage.log.batch_inspection import (
    Demands,
    Inspected,
    Inspection,
    LargeBatch,
    inspect,
    inspect_at_once,
)
from klamm.storage.log.log_config import LogConfig
from klamm.storage.log.log_view import LogView
from klamm.storage.log.producer_state import AppendOrigin, BatchMetadata

_MAX_CODEC = max(CompressionType)
_NO_LIMIT_MS = 2**63 - 1


class RecordsRefused(KafkaError):
    """The topic does not accept some records of a batch; the whole batch is refused.

    `record_errors` has (index in the batch, message) of the first of these records. `keyless_count` is the number of
    records without a required key.
    """

    def __init__(
        self, code: ErrorCode, message: str, record_errors: Sequence[tuple[int, str]], keyless_count: int = 0
    ) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors
        self.keyless_count = keyless_count


class OffsetsRefused(KafkaError):
    """The offsets, the number of records or the sequence number of a batch cannot be right."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, message)


class ValidBatch(NamedTuple):
    """A batch with all fields that a leader writes. `header` has them, too, except for the timestamp type and the
    CRC."""

    records: bytearray | memoryview
    header: BatchHeader
    marker: EndTransactionMarker | None
    is_converted: bool


def validate_and_assign_offsets(
    records: bytearray | memoryview,
    log: LogView,
    leader_epoch: int,
    origin: AppendOrigin,
    now_ms: int,
    inspected: Inspected | None,
) -> ValidBatch | BatchMetadata:
    """Checks a batch and writes its offsets, at the log's end, into `records`. A batch whose compression differs from
    compression.type is compressed anew. For a duplicate, returns the batch that it repeats.

    Raises KafkaError: MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, CORRUPT_MESSAGE, INVALID_RECORD, INVALID_TIMESTAMP,
    UNSUPPORTED_COMPRESSION_TYPE, and the errors of `ProducerState.check`. Raises LargeBatch for a client's batch that a
    worker must inspect; the caller then calls again with the worker's result.
    """
    config = log.config
    header = parse_header(records)
    size_bytes = header.size_bytes
    config.check_batch_size(size_bytes)
    check_crc(records, 0, header)
    if size_bytes != len(records):
        raise _invalid(f"one batch is allowed for each partition, {len(records) - size_bytes} bytes follow it")
    if origin is AppendOrigin.CLIENT:
        _check_client_batch(header)
    marker = decode_end_transaction_marker(records, 0, header) if header.attributes & CONTROL_FLAG else None
    if header.producer_id > NO_PRODUCER_ID:
        producers = log.producer_state
        if origin is AppendOrigin.CLIENT:
            duplicate = producers.find_duplicate(header)
            if duplicate is not None:
                return duplicate
        producers.check(header, marker, origin, log.log_start_offset)
    is_converted = False
    demands = demands_on(header, config, origin, now_ms)
    if demands is not None:
        if inspected is None or inspected.config is not config:
            inspected = _inspect(records, header, demands, config, origin)
        records, header = _fulfil(inspected, records, header)
        is_converted = inspected.found.batch is not None
    if config.uses_log_append_time:
        set_log_append_time(records, 0, header, now_ms)
        header = header._replace(max_timestamp=now_ms)
    header = set_offset_and_epoch(records, 0, header, log.log_end_offset, leader_epoch)
    return ValidBatch(records, header, marker, is_converted)


def _check_client_batch(header: BatchHeader) -> None:
    """A client's batch is checked more strictly than one that klamm has made."""
    attributes = header.attributes
    if header.base_offset != 0:
        raise OffsetsRefused(f"the base offset is {header.base_offset}, not 0")
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        raise OffsetsRefused(f"{header.record_count} records do not fill offsets 0 to {header.last_offset_delta}")
    if header.record_count > most_records(header):
        raise _invalid(f"{header.record_count} records do not fit into {header.size_bytes} bytes")
    if attributes & CONTROL_FLAG:
        raise OffsetsRefused("clients may not write control batches")
    if header.producer_id > NO_PRODUCER_ID:
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise OffsetsRefused(
                f"sequence {header.base_sequence} of producer epoch {header.producer_epoch} is negative"
            )
    elif attributes & TRANSACTIONAL_FLAG:
        raise _invalid("a transactional batch has no producer id")
    if attributes & CODEC_MASK > _MAX_CODEC:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression type {header.codec} is unknown, allowed are 0 to 4"
        )
    if attributes & LOG_APPEND_TIME_FLAG:
        message = "a producer may not set the timestamp type LogAppendTime"
        named = range(min(header.record_count, MAX_NAMED_RECORDS))
        raise RecordsRefused(ErrorCode.INVALID_TIMESTAMP, message, [(index, message) for index in named])


def demands_on(header: BatchHeader, config: LogConfig, origin: AppendOrigin, now_ms: int) -> Demands | None:
    """The topic's demands on the records of a batch or its compression; None without demands."""
    codec = config.codec
    if codec is not None and (codec == header.codec or header.is_control):
        codec = None
    if origin is AppendOrigin.CLIENT:
        limit_ms = config.message_timestamp_difference_max_ms
        has_limit = limit_ms != _NO_LIMIT_MS and not config.uses_log_append_time
        if config.is_compacted or has_limit:
            wanted = Wanted(config.is_compacted)
            if has_limit:
                wanted = wanted._replace(earliest_ms=now_ms - limit_ms, latest_ms=now_ms + limit_ms)
            return Demands(wanted, codec)
    return Demands(Wanted(), codec) if codec is not None else None


def _inspect(
    records: Buffer, header: BatchHeader, demands: Demands, config: LogConfig, origin: AppendOrigin
) -> Inspected:
    """Inspects each record. Raises LargeBatch for a client's batch that a worker must inspect, and KafkaError."""
    found = inspect_at_once(records, header, demands, config)
    if found is None:
        if origin is AppendOrigin.CLIENT:
            raise LargeBatch(records, demands, config)
        # klamm's own batches are small, or a single client's commit.
        found = in_one_go(inspect(bytes(records), demands, config))
    return Inspected(config, demands, found)


def _fulfil(
    inspected: Inspected, records: bytearray | memoryview, header: BatchHeader
) -> tuple[bytearray | memoryview, BatchHeader]:
    """The batch as the topic demands it, and its header. Raises RecordsRefused, KafkaError(INVALID_RECORD)."""
    config, demands, found = inspected
    if found.refused:
        raise _refused(found, demands, config)
    if not found.is_numbered:
        raise _invalid("the records do not number themselves 0, 1, 2 and so on")
    if found.batch is not None:
        records = found.batch
        header = parse_header(records)
    if found.max_timestamp_ms != header.max_timestamp and not config.uses_log_append_time:
        set_max_timestamp(records, 0, header, found.max_timestamp_ms)
        header = header._replace(max_timestamp=found.max_timestamp_ms)
    return records, header


def _refused(found: Inspection, demands: Demands, config: LogConfig) -> RecordsRefused:
    wanted = demands.wanted
    no_key = "a record has no key, which cleanup.policy=compact needs"

    def reason(record: RefusedRecord) -> str:
        if record.refusal is Refusal.NO_KEY:
            return no_key
        return (
            f"timestamp {record.timestamp_ms} is not from {wanted.earliest_ms} to {wanted.latest_ms}"
            f" (message.timestamp.difference.max.ms={config.message_timestamp_difference_max_ms})"
        )

    counts = (
        (found.out_of_range_count, "have a timestamp that is out of range"),
        (found.keyless_count, "have no key, which cleanup.policy=compact needs"),
    )
    message = ", ".join(f"{count} records {what}" for count, what in counts if count)
    code = ErrorCode.INVALID_TIMESTAMP if found.out_of_range_count else ErrorCode.INVALID_RECORD
    named = [(record.batch_index, reason(record)) for record in found.refused]
    return RecordsRefused(code, message, named, found.keyless_count)


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, message)
