"""An idempotent producer with acks=all, for batches that are already encoded."""

from dataclasses import dataclass

from klamm.protocol.record_batch import CompressionType
from klamm.spark.network import ClientOptions


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """How records are written. Sizes are of uncompressed records.

    - `batch_size_bytes` (batch.size): of one batch of one partition, unless a single record is larger.
    - `max_request_size_bytes` (max.request.size): of one record; a larger one is an error.
    - `buffer_memory_bytes` (buffer.memory): of what is written and not acknowledged yet.
    - `delivery_timeout_ms` (delivery.timeout.ms): how long a batch is repeated until it counts as failed.
    """

    client: ClientOptions
    compression: CompressionType = CompressionType.NONE
    batch_size_bytes: int = 512 * 1024
    max_request_size_bytes: int = 1024 * 1024
    buffer_memory_bytes: int = 32 * 1024 * 1024
    delivery_timeout_ms: int = 120_000
