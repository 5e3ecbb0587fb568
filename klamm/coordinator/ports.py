"""The interfaces that coordinators need from the rest of the broker."""

from collections.abc import AsyncGenerator, Awaitable, Sequence
from typing import NamedTuple, Protocol

from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.record.record_batch import NO_PRODUCER_ID
from klamm.protocol.vocabulary import UNKNOWN_OFFSET

KeyAndValue = tuple[bytes, bytes | None]


class TransactionalProducer(NamedTuple):
    """The producer of the transaction that records belong to."""

    producer_id: int
    producer_epoch: int


class Appended(NamedTuple):
    """The result of an append. `base_offset` is the offset of its first record, or UNKNOWN_OFFSET if the records were
    not appended. `transaction_offset` is the offset at which the producer's transaction begins in this log, if the
    records belong to a transaction.

    After NOT_ENOUGH_REPLICAS_AFTER_APPEND, REQUEST_TIMED_OUT or NOT_LEADER_OR_FOLLOWER the records may stay.
    """

    error_code: ErrorCode
    base_offset: int = UNKNOWN_OFFSET
    transaction_offset: int = UNKNOWN_OFFSET


class LogBatch(NamedTuple):
    """The records of one batch of the log, or of a part of a large batch; or a transaction marker, without records."""

    base_offset: int  # of the first record here, or of the marker
    records: Sequence[tuple[int, bytes | None, bytes | None]]  # (offset, key, value)
    # The producer of the transaction that the records belong to or that the marker ends.
    producer_id: int = NO_PRODUCER_ID
    # The marker's outcome. None: not a marker.
    is_committed: bool | None = None


class CoordinatorLog(Protocol):
    """The partitions of a coordinator's topic, as the broker hosts them."""

    def append(
        self, partition: int, records: Sequence[KeyAndValue], producer: TransactionalProducer | None = None
    ) -> Awaitable[Appended]:
        """Appends the records together and in this order, and waits until they are committed. With a `producer` the
        records are a batch of their own in the producer's transaction.

        Appends to one partition happen and complete in the order of the calls.
        """

    def append_unacknowledged(self, partition: int, records: Sequence[KeyAndValue]) -> None:
        """Appends without waiting (tombstones), if this broker leads the partition."""

    def read(self, partition: int) -> AsyncGenerator[LogBatch, None]:
        """All current batches of the log, oldest first, including open and aborted transactions. The loop has turns
        between batches. Records of earlier calls of `append` are included.

        Raises KafkaError when the log cannot be read, is damaged (CORRUPT_MESSAGE, and what to do), or this broker does
        not host the partition.
        """

    def wait_committed(self, partition: int) -> Awaitable[None]:
        """Returns when all current records of the log are on all in-sync replicas, so that every later leader has them.

        Raises KafkaError when that takes too long, or this broker does not lead the partition.
        """

    def is_leader(self, partition: int) -> bool:
        """Whether this broker leads the partition now."""
