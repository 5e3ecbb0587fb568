"""The interfaces that group coordination needs from the rest of the broker."""

from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import NamedTuple, Protocol

from klamm.protocol.errors import ErrorCode
from klamm.protocol.vocabulary import UNKNOWN_OFFSET

KeyAndValue = tuple[bytes, bytes | None]


class Appended(NamedTuple):
    """The result of an append. `base_offset` is the offset of its first record, or UNKNOWN_OFFSET if it failed.

    NOT_ENOUGH_REPLICAS_AFTER_APPEND, REQUEST_TIMED_OUT and NOT_LEADER_OR_FOLLOWER leave open whether the records stay.
    """

    error_code: ErrorCode
    base_offset: int = UNKNOWN_OFFSET


class LogBatch(NamedTuple):
    """The records of one batch of the log, or a part of a large one."""

    base_offset: int  # of the first record here
    records: Sequence[tuple[int, bytes | None, bytes | None]]  # (offset, key, value)


class OffsetsLog(Protocol):
    """The partitions of __consumer_offsets, as the broker hosts them."""

    def append(self, partition: int, records: Sequence[KeyAndValue]) -> Awaitable[Appended]:
        """Appends the records, together and in this order, and waits until they are committed.

        Appends to one partition happen, and complete, in the order of the calls.
        """

    def append_unacknowledged(self, partition: int, records: Sequence[KeyAndValue]) -> None:
        """Appends without waiting (tombstones), if this broker leads the partition."""

    def read(self, partition: int) -> AsyncIterator[LogBatch]:
        """All batches of the log now, oldest first, without control batches; others have the loop in between.

        The records of a transaction come at its commit, and never without a commit. Records for which `append` was
        called before are included.

        Raises KafkaError when the log cannot be read, or this broker does not host the partition.
        """

    def is_leader(self, partition: int) -> bool:
        """Whether this broker leads the partition now."""
