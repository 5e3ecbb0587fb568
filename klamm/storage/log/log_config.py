"""The part of a topic's configuration that its logs need."""

from dataclasses import dataclass
from functools import cached_property

from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.compression import CompressionType

_MAX_LONG = 2**63 - 1
_CODECS = {
    "producer": None,
    "uncompressed": CompressionType.NONE,
    "gzip": CompressionType.GZIP,
    "snappy": CompressionType.SNAPPY,
    "lz4": CompressionType.LZ4,
    "zstd": CompressionType.ZSTD,
}


@dataclass(frozen=True)
class LogConfig:
    """The topic configurations that a log acts on, under Kafka's names (dots are underscores) and with its defaults.

    Values derived from them are computed once, because each append needs them.
    """

    segment_bytes: int = 1024**3
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * 1024**2
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = -1
    file_delete_delay_ms: int = 60_000
    flush_messages: int = _MAX_LONG
    flush_ms: int = _MAX_LONG
    max_message_bytes: int = 1_048_588
    message_timestamp_type: str = "CreateTime"
    message_timestamp_difference_max_ms: int = _MAX_LONG
    cleanup_policy: tuple[str, ...] = ("delete",)
    delete_retention_ms: int = 24 * 3600 * 1000
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = _MAX_LONG
    compression_type: str = "producer"
    # The size at which a segment is closed, if it is below segment.bytes, which then only bounds a batch.
    roll_bytes: int = 2**31 - 1
    preallocate: bool = False

    @cached_property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @cached_property
    def max_segment_bytes(self) -> int:
        """The size at which a segment is closed."""
        return min(self.segment_bytes, self.roll_bytes)

    @cached_property
    def max_segment_ms(self) -> int:
        """The age at which a segment is closed. Only closed segments are compacted, so max.compaction.lag.ms bounds
        it."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @cached_property
    def codec(self) -> CompressionType | None:
        """The compression of the topic's batches; None keeps the producer's."""
        return _CODECS[self.compression_type]

    @cached_property
    def uses_log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"

    def check_batch_size(self, size_bytes: int) -> None:
        """Raises KafkaError MESSAGE_TOO_LARGE or RECORD_LIST_TOO_LARGE when the topic does not accept that size."""
        if size_bytes > self.max_message_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the batch has {size_bytes} bytes, max.message.bytes is {self.max_message_bytes}",
            )
        if size_bytes > self.segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"the batch has {size_bytes} bytes, segment.bytes is {self.segment_bytes}",
            )
