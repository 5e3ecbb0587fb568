"""The options of clients, producers and consumers: plain values, which can be pickled and compared.

What must stay true: importing this module imports nothing heavy. For each query Spark starts several processes that
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
    """The cluster, and how to reach it. Equal options share one client and its connections."""

    bootstrap: "tuple[Address, ...]"
    client_id: str = "klamm"
    # The time to connect doubles with each consecutive failure, up to the maximum.
    connect_timeout_ms: int = 10_000
    connect_timeout_max_ms: int = 30_000
    request_timeout_ms: int = 30_000
    # How long a command retries while nothing listens at any bootstrap address.
    refused_timeout_ms: int = 1_000
    # How long a request is retried while a leader changes or a broker restarts.
    retry_timeout_ms: int = 60_000
    # The wait before the first retry, which doubles up to the maximum.
    retry_backoff_ms: int = 50
    retry_backoff_max_ms: int = 1_000
    security: SecurityOptions = PLAINTEXT
    # The client's rack (client.rack). Followers in this rack may serve its fetches.
    client_rack: str = ""


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """How records are written. Sizes are those of uncompressed records.

    - `batch_size_bytes` (batch.size): the size of a batch, unless a single record is larger.
    - `max_request_size_bytes` (max.request.size): the size of a record; a larger record is an error.
    - `buffer_memory_bytes` (buffer.memory): the size of all unacknowledged batches, unless a single batch is larger.
    - `delivery_timeout_ms` (delivery.timeout.ms): how long a batch is retried until it counts as failed.
    - `linger_ms` (linger.ms): how long a batch of single records waits for more records.
    - `acks`: ACKS_ALL, ACKS_LEADER or ACKS_NONE.
    - `enable_idempotence` (enable.idempotence): only with ACKS_ALL; without it a retried batch may be written twice.
    - `transactional_id` (transactional.id): the id of a transactional producer, which is idempotent.
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
    """Where to read if there is no offset to begin at, or if the log no longer has it (auto.offset.reset)."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"
    """A missing offset is an error."""


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """How records are read. Sizes are those of records as brokers store them.

    - `isolation_level` (isolation.level): READ_UNCOMMITTED or READ_COMMITTED.
    - `auto_offset_reset` (auto.offset.reset).
    - `max_poll_records` (max.poll.records): the most records that a poll returns.
    - `fetch_max_bytes` (fetch.max.bytes): the size of all waiting records. A single batch may be larger.
    - `max_partition_fetch_bytes` (max.partition.fetch.bytes): the size of one partition in one response.
    - `fetch_min_bytes`, `fetch_max_wait_ms` (fetch.min.bytes, fetch.max.wait.ms): the bytes that a broker waits for,
      and how long.
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

    - `group_instance_id` (group.instance.id): makes a static member, which keeps its partitions over a restart.
    - `session_timeout_ms` (session.timeout.ms): how long the group waits for a heartbeat before it removes the member.
    - `max_poll_interval_ms` (max.poll.interval.ms): how long the member may process the records of one poll, and how
      long the group waits for it in a rebalance.
    - `assignors` (partition.assignment.strategy): by preference; all members must share one assignor.
    """

    group_id: str
    group_instance_id: str | None = None
    session_timeout_ms: int = 10_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    assignors: tuple[str, ...] = ("range",)
