"""The interfaces that coordinators need from the rest of the broker."""

from collections.abc import AsyncGenerator, Awaitable, Sequence
from typing import NamedTuple, Protocol

from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.record.record_batch import NO_PRODUCER_ID
from klamm.protocol.vocabulary import UNKNOWN_OFFSET

KeyAndValue = tuple[bytes, bytes | None]


class TransactionalProducer(NamedTuple):
    """The producer whose open transaction records belong to."""

    producer_id: int
    producer_epoch: int


class Appended(NamedTuple):
    """The result of an append. `base_offset` is the offset of its first record, or UNKNOWN_OFFSET if the log has not
    taken the records. `transaction_offset` is the offset at which the producer's transaction begins in this log, if the
    records are of one.

    NOT_ENOUGH_REPLICAS_AFTER_APPEND, REQUEST_TIMED_OUT and NOT_LEADER_OR_FOLLOWER leave open whether the records stay.
    """

    error_code: ErrorCode
    base_offset: int = UNKNOWN_OFFSET
    transaction_offset: int = UNKNOWN_OFFSET


class LogBatch(NamedTuple):
    """The records of one batch of the log, or a part of a large one; or the end of a transaction, without records."""

    base_offset: int  # of the first record here, or of the marker
    records: Sequence[tuple[int, bytes | None, bytes | None]]  # (offset, key, value)
    # The producer whose transaction the records belong to, or the marker ends.
    producer_id: int = NO_PRODUCER_ID
    # How the marker ends the transaction. None: not a marker.
    is_committed: bool | None = None


class CoordinatorLog(Protocol):
    """The partitions of a coordinator's topic, as the broker hosts them."""

    def append(
        self, partition: int, records: Sequence[KeyAndValue], producer: TransactionalProducer | None = None
    ) -> Awaitable[Appended]:
        """Appends the records, together and in this order, and waits until they are committed. With a `producer` they
        belong to its transaction, and are a batch of their own.

        Appends to one partition happen, and complete, in the order of the calls.
        """

    def append_unacknowledged(self, partition: int, records: Sequence[KeyAndValue]) -> None:
        """Appends without waiting (tombstones), if this broker leads the partition."""

    def read(self, partition: int) -> AsyncGenerator[LogBatch, None]:
        """All batches of the log now, oldest first, with open and aborted transactions; others have the loop in
        between. Records for which `append` was called before are included.

        Raises KafkaError when the log cannot be read, is damaged (CORRUPT_MESSAGE, and what to do), or this broker does
        not host the partition.
        """

    def wait_committed(self, partition: int) -> Awaitable[None]:
        """Returns when all records that the log has now are on all in-sync replicas, so that every later leader has
        them.

        Raises KafkaError when that takes too long, or this broker does not lead the partition.
        """

    def is_leader(self, partition: int) -> bool:
        """Whether this broker leads the partition now."""
