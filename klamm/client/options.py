"""How to reach a cluster, how to write to it and how to read it: plain values, which can be pickled and compared.

What must stay true: importing this module imports nothing heavy. Spark starts several processes for each query that
only look at the options, and the user waits for them.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from klamm.net.security import PLAINTEXT, SecurityOptions
from klamm.protocol.vocabulary import ACKS_ALL, READ_UNCOMMITTED

if TYPE_CHECKING:
    from klamm.net.client import Address
    from klamm.protocol.record.compression import CompressionType


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Which cluster, and how to reach it. Equal options share one client and its connections."""

    bootstrap: "tuple[Address, ...]"
    client_id: str = "klamm"
    # The time for a connection doubles with each failure in a row, up to the largest.
    connect_timeout_ms: int = 10_000
    connect_timeout_max_ms: int = 30_000
    request_timeout_ms: int = 30_000
    # How long a command tries again while nothing listens at any bootstrap address.
    refused_timeout_ms: int = 1_000
    # How long a request is repeated while a leader changes or a broker starts again.
    retry_timeout_ms: int = 60_000
    # The wait before the first repetition, which doubles up to the largest.
    retry_backoff_ms: int = 50
    retry_backoff_max_ms: int = 1_000
    security: SecurityOptions = PLAINTEXT
    # Where the client is: followers there may serve its fetches (client.rack).
    client_rack: str = ""


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """How records are written. Sizes are of uncompressed records.

    - `batch_size_bytes` (batch.size): of one batch of one partition, unless a single record is larger.
    - `max_request_size_bytes` (max.request.size): of one record; a larger one is an error.
    - `buffer_memory_bytes` (buffer.memory): of batches that are not acknowledged yet, unless a single one is larger.
    - `delivery_timeout_ms` (delivery.timeout.ms): how long a batch is repeated until it counts as failed.
    - `linger_ms` (linger.ms): how long a batch of single records waits for more of them.
    - `acks`: ACKS_ALL, ACKS_LEADER or ACKS_NONE.
    - `enable_idempotence` (enable.idempotence): only with ACKS_ALL; without it a repeated batch may be written twice.
    - `transactional_id` (transactional.id): of a transactional producer, which is idempotent.
    - `transaction_timeout_ms` (transaction.timeout.ms): how long the brokers leave a transaction open.
    """

    client: ClientOptions
    compression: "CompressionType"
    batch_size_bytes: int = 512 * 1024
    max_request_size_bytes: int = 1024 * 1024
    buffer_memory_bytes: int = 32 * 1024 * 1024
    delivery_timeout_ms: int = 120_000
    linger_ms: int = 0
    acks: int = ACKS_ALL
    enable_idempotence: bool = True
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000


class OffsetReset(Enum):
    """Where to read where there is no offset to begin at, or where the log no longer has it (auto.offset.reset)."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"
    """Nowhere: this is an error."""


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """How records are read. Sizes are as brokers store the records.

    - `isolation_level` (isolation.level): READ_UNCOMMITTED or READ_COMMITTED.
    - `auto_offset_reset` (auto.offset.reset).
    - `max_poll_records` (max.poll.records): of one poll.
    - `fetch_max_bytes` (fetch.max.bytes): of all records that wait to be handed out. A single batch may be larger.
    - `max_partition_fetch_bytes` (max.partition.fetch.bytes): of one partition in one response.
    - `fetch_min_bytes`, `fetch_max_wait_ms` (fetch.min.bytes, fetch.max.wait.ms): what a broker waits for.
    """

    isolation_level: int = READ_UNCOMMITTED
    auto_offset_reset: OffsetReset = OffsetReset.LATEST
    max_poll_records: int = 500
    fetch_max_bytes: int = 50 * 1024 * 1024
    max_partition_fetch_bytes: int = 1024 * 1024
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """How a member takes part in its group.

    - `group_instance_id` (group.instance.id): makes the member a static one, which keeps its partitions over a restart.
    - `session_timeout_ms` (session.timeout.ms): how long the group waits for a heartbeat until the member is removed.
    - `max_poll_interval_ms` (max.poll.interval.ms): how long the member may take for the records of one poll. It is
      also how long the group waits for it in a rebalance.
    - `assignors` (partition.assignment.strategy): by preference; all members must have one in common.
    """

    group_id: str
    group_instance_id: str | None = None
    session_timeout_ms: int = 10_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    assignors: tuple[str, ...] = ("range",)
