"""Reads a range of one partition's offsets as Arrow record batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from klamm.spark.network import ClientOptions


class DataLoss(Exception):
    """Records that were to be read are gone; the message says which and why."""


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """The records of one partition from `start_offset` to before `end_offset`.

    `topic_id` is the topic's UUID as 32 hexadecimal digits, as it was when the range was planned; None where the
    brokers do not tell it.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """How records are fetched.

    - `poll_timeout_ms`: how long to wait for the next record of a range before giving up.
    - `fetch_max_bytes`: of one fetch; at most two fetches are in memory, beside the records that are handed out.
    - `max_batch_bytes`: of one Arrow record batch, unless a single record is larger.
    """

    client: ClientOptions
    read_committed: bool = False
    fail_on_data_loss: bool = True
    poll_timeout_ms: int = 120_000
    fetch_max_bytes: int = 8 * 1024 * 1024
    fetch_max_wait_ms: int = 500
    max_batch_bytes: int = 32 * 1024 * 1024


def read_range(options: FetchOptions, records: PartitionRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The records of a range, in the order of their offsets, with these columns (`schema.schema(columns)`).

    Offsets that compaction, transaction markers or (with `read_committed`) aborted transactions left without a record
    are passed over. Raises `DataLoss` when records of the range were removed, or the topic was deleted and created
    again, KafkaError and ClientError when the cluster does not give them within `poll_timeout_ms`.
    """
    raise NotImplementedError
