"""The settings that the driver sends to its workers: plain values, which can be pickled and compared.

What must stay true: importing this module, and with it `options.py`, imports nothing heavy. Spark starts several
processes for each query that only look at the options, and the user waits for them.
"""

from dataclasses import dataclass

from klamm.client.options import ClientOptions


class DataLoss(Exception):
    """Planned records no longer exist. The message names them and the reason."""


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """The records of one partition from `start_offset` to before `end_offset`.

    `topic_id` is the topic's UUID at the time of planning, as 32 hexadecimal digits; None if the brokers have no topic
    ids.
    """

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """How records are fetched.

    - `poll_timeout_ms`: how long to wait for the next records of a range before giving up.
    - `fail_on_data_loss`: whether a loss raises DataLoss. Otherwise it is a warning, and the remaining records are
      read.
    - `fetch_max_bytes`: the size of one fetch, unless a single batch is larger; at most 64 MB.
    - `max_batch_bytes`: the size of one Arrow record batch, unless a single record is larger.
    """

    client: ClientOptions
    read_committed: bool = False
    fail_on_data_loss: bool = True
    poll_timeout_ms: int = 120_000
    fetch_max_bytes: int = 4 * 1024 * 1024
    fetch_max_wait_ms: int = 500
    max_batch_bytes: int = 32 * 1024 * 1024
