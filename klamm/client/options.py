"""How to reach a cluster, and how to write to it: plain values, which can be pickled and compared.

What must stay true: importing this module imports nothing heavy. Spark starts several processes for each query that
only look at the options, and the user waits for them.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from klamm.net.security import PLAINTEXT, SecurityOptions

if TYPE_CHECKING:
    from klamm.net.client import Address
    from klamm.protocol.record_batch import CompressionType


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Which cluster, and how to reach it. Equal options share one client and its connections."""

    bootstrap: "tuple[Address, ...]"
    client_id: str = "klamm"
    connect_timeout_ms: int = 10_000
    request_timeout_ms: int = 30_000
    # How long a request is repeated while a leader changes or a broker starts again.
    retry_timeout_ms: int = 60_000
    # The wait before the first repetition, which doubles up to the largest.
    retry_backoff_ms: int = 50
    retry_backoff_max_ms: int = 1_000
    security: SecurityOptions = PLAINTEXT


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """How records are written. Sizes are of uncompressed records.

    - `batch_size_bytes` (batch.size): of one batch of one partition, unless a single record is larger.
    - `max_request_size_bytes` (max.request.size): of one record; a larger one is an error.
    - `buffer_memory_bytes` (buffer.memory): of batches that are not acknowledged yet, unless a single one is larger.
    - `delivery_timeout_ms` (delivery.timeout.ms): how long a batch is repeated until it counts as failed.
    """

    client: ClientOptions
    compression: "CompressionType"
    batch_size_bytes: int = 512 * 1024
    max_request_size_bytes: int = 1024 * 1024
    buffer_memory_bytes: int = 32 * 1024 * 1024
    delivery_timeout_ms: int = 120_000
