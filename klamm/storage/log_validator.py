"""What a batch must fulfil before a leader appends it.

The header is believed where Kafka looks into every record: the largest timestamp is the header's, and only the first
and the largest timestamp are compared with the clock. Records are decoded only for compacted topics, which need keys.

Source: kafka.log.LogValidator, kafka.log.Log (analyzeAndValidateRecords).
"""

from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.record_batch import (
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    CompressionType,
    check_crc,
    decode_records,
    most_records,
)
from klamm.storage.log_config import LogConfig
from klamm.storage.producer_state import AppendOrigin

_MAX_CODEC = max(CompressionType)
_NO_LIMIT_MS = 2**63 - 1


def validate_batch(records: Buffer, header: BatchHeader, config: LogConfig, origin: AppendOrigin, now_ms: int) -> None:
    """Checks the batch that `records` must consist of; a client's more closely than one that klamm has made.

    Raises KafkaError: MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, CORRUPT_MESSAGE, INVALID_RECORD, INVALID_TIMESTAMP,
    UNSUPPORTED_COMPRESSION_TYPE.
    """
    check_size(header, config)
    check_crc(records, 0, header)
    size_bytes = header.size_bytes
    if size_bytes != len(records):
        raise _invalid(f"one batch is allowed for each partition, {len(records) - size_bytes} bytes follow it")
    if origin is AppendOrigin.CLIENT:
        _validate_client_batch(records, header, config, now_ms)


def check_size(header: BatchHeader, config: LogConfig) -> None:
    """Raises KafkaError: MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE."""
    size_bytes = header.size_bytes
    if size_bytes > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {size_bytes} bytes, max.message.bytes is {config.max_message_bytes}",
        )
    if size_bytes > config.segment_bytes:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"the batch has {size_bytes} bytes, segment.bytes is {config.segment_bytes}",
        )


def _validate_client_batch(records: Buffer, header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    if header.base_offset != 0:
        raise _invalid(f"the base offset is {header.base_offset}, not 0")
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        raise _invalid(f"{header.record_count} records do not fill offsets 0 to {header.last_offset_delta}")
    if header.record_count > most_records(header):
        raise _invalid(f"{header.record_count} records do not fit into {header.size_bytes} bytes")
    if header.is_control:
        raise _invalid("clients may not write control batches")
    if header.producer_id > NO_PRODUCER_ID:
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise _invalid(f"sequence {header.base_sequence} of producer epoch {header.producer_epoch} is negative")
    elif header.is_transactional:
        raise _invalid("a transactional batch has no producer id")
    if header.codec > _MAX_CODEC:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression type {header.codec} is unknown, allowed are 0 to 4"
        )
    if not config.uses_log_append_time:
        _validate_timestamps(header, config, now_ms)
    if config.is_compacted:
        _require_keys(records, header)


def _validate_timestamps(header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    if header.is_log_append_time:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "a producer may not set the timestamp type LogAppendTime")
    limit_ms = config.message_timestamp_difference_max_ms
    if limit_ms == _NO_LIMIT_MS:
        return
    for timestamp_ms in (header.base_timestamp, header.max_timestamp):
        if timestamp_ms != NO_TIMESTAMP and abs(timestamp_ms - now_ms) > limit_ms:
            raise KafkaError(
                ErrorCode.INVALID_TIMESTAMP,
                f"timestamp {timestamp_ms} is more than message.timestamp.difference.max.ms={limit_ms} from {now_ms}",
            )


def _require_keys(records: Buffer, header: BatchHeader) -> None:
    for record in decode_records(records, 0, header):
        if record.key is None:
            raise _invalid(f"record {record.offset} has no key, which cleanup.policy=compact needs")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, message)
