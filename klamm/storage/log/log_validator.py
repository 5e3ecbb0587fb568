"""The checks that a batch must pass before a leader appends it.

If the topic's configuration demands nothing of single records, the header is trusted and the records stay opaque; Kafka
inspects every record even then. Otherwise `batch_inspection` inspects them, and records that the topic does not accept
are refused one by one (KIP-467).

Source: kafka.log.LogValidator, kafka.log.Log (analyzeAndValidateRecords).
"""

from collections.abc import Sequence

from klamm.base.slices import in_one_go
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.primitives import Buffer
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.record_batch import (
    NO_PRODUCER_ID,
    BatchHeader,
    check_crc,
    most_records,
    parse_header,
    set_max_timestamp,
)
from klamm.protocol.record.record_walk import MAX_NAMED_RECORDS, Refusal, RefusedRecord, Wanted
from klamm.storage.log.batch_inspection import (
    Demands,
    Inspected,
    Inspection,
    LargeBatch,
    check_size,
    inspect,
    inspect_at_once,
)
from klamm.storage.log.log_config import LogConfig
from klamm.storage.log.producer_state import AppendOrigin

_MAX_CODEC = max(CompressionType)
_NO_LIMIT_MS = 2**63 - 1


class RecordsRefused(KafkaError):
    """The topic does not accept some records of a batch; the whole batch is refused.

    `record_errors` has (index in the batch, message) of the first of these records. `keyless_count` is how many are
    refused because they have no key.
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


def validate_batch(records: Buffer, header: BatchHeader, config: LogConfig, origin: AppendOrigin, now_ms: int) -> None:
    """Checks that `records` is one valid batch. A client's batch is checked more strictly than one that klamm has made.

    Raises KafkaError: MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, CORRUPT_MESSAGE, INVALID_RECORD, INVALID_TIMESTAMP,
    UNSUPPORTED_COMPRESSION_TYPE.
    """
    size_bytes = header.size_bytes
    check_size(size_bytes, config)
    check_crc(records, 0, header)
    if size_bytes != len(records):
        raise _invalid(f"one batch is allowed for each partition, {len(records) - size_bytes} bytes follow it")
    if origin is AppendOrigin.CLIENT:
        _validate_client_batch(records, header, config, now_ms)


def _validate_client_batch(records: Buffer, header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    if header.base_offset != 0:
        raise OffsetsRefused(f"the base offset is {header.base_offset}, not 0")
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        raise OffsetsRefused(f"{header.record_count} records do not fill offsets 0 to {header.last_offset_delta}")
    if header.record_count > most_records(header):
        raise _invalid(f"{header.record_count} records do not fit into {header.size_bytes} bytes")
    if header.is_control:
        raise OffsetsRefused("clients may not write control batches")
    if header.producer_id > NO_PRODUCER_ID:
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise OffsetsRefused(
                f"sequence {header.base_sequence} of producer epoch {header.producer_epoch} is negative"
            )
    elif header.is_transactional:
        raise _invalid("a transactional batch has no producer id")
    if header.codec > _MAX_CODEC:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression type {header.codec} is unknown, allowed are 0 to 4"
        )
    if header.is_log_append_time:
        message = "a producer may not set the timestamp type LogAppendTime"
        named = range(min(header.record_count, MAX_NAMED_RECORDS))
        raise RecordsRefused(ErrorCode.INVALID_TIMESTAMP, message, [(index, message) for index in named])


def demands_on(header: BatchHeader, config: LogConfig, origin: AppendOrigin, now_ms: int) -> Demands | None:
    """The topic's demands on the records of a batch or its compression; None if it has none."""
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


def inspect_batch(
    records: Buffer, header: BatchHeader, demands: Demands, config: LogConfig, origin: AppendOrigin
) -> Inspected:
    """Looks at each record. Raises LargeBatch for a client's batch that a worker must inspect, and KafkaError."""
    found = inspect_at_once(records, header, demands, config)
    if found is None:
        if origin is AppendOrigin.CLIENT:
            raise LargeBatch(records, demands, config)
        # A batch that klamm itself makes is small, or a single client's commit.
        found = in_one_go(inspect(bytes(records), demands, config))
    return Inspected(config, demands, found)


def fulfil(
    inspected: Inspected, records: bytearray | memoryview, header: BatchHeader
) -> tuple[bytearray | memoryview, BatchHeader]:
    """The batch as the topic demands it, and its header. Raises RecordsRefused, MESSAGE_TOO_LARGE."""
    config, demands, found = inspected
    _check_inspection(found, demands, config)
    if found.batch is not None:
        records = found.batch
        header = parse_header(records)
    if found.max_timestamp_ms != header.max_timestamp and not config.uses_log_append_time:
        set_max_timestamp(records, 0, header, found.max_timestamp_ms)
        header = header._replace(max_timestamp=found.max_timestamp_ms)
    return records, header


def _check_inspection(found: Inspection, demands: Demands, config: LogConfig) -> None:
    """Raises RecordsRefused or KafkaError(INVALID_RECORD) if the records do not meet the demands."""
    if found.refused:
        raise _refused(found, demands, config)
    if not found.is_numbered:
        raise _invalid("the records do not number themselves 0, 1, 2 and so on")


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
