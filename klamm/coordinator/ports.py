"""What group coordination needs of the rest of the broker, which supplies it."""

from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import NamedTuple, Protocol

from klamm.protocol.errors import ErrorCode

KeyAndValue = tuple[bytes, bytes | None]


class Appended(NamedTuple):
    """How an append ended. `base_offset` is the offset of its first record, -1 where it failed.

    NOT_ENOUGH_REPLICAS_AFTER_APPEND, REQUEST_TIMED_OUT and NOT_LEADER_OR_FOLLOWER leave open whether the records stay.
    """

    error_code: ErrorCode
    base_offset: int = -1


class LogBatch(NamedTuple):
    """The records of one batch of the log, or a part of a large one."""

    base_offset: int  # of the first record here
    records: Sequence[tuple[int, bytes | None, bytes | None]]  # (offset, key, value)


class OffsetsLog(Protocol):
    """The partitions of __consumer_offsets, as the broker hosts them."""

    def append(self, partition: int, records: Sequence[KeyAndValue]) -> Awaitable[Appended]:
        """Appends the records, together and in this order, and waits until they are committed.

        Appends to one partition are in the order of the calls, and end in it.
        """

    def append_unacknowledged(self, partition: int, records: Sequence[KeyAndValue]) -> None:
        """Appends if this broker leads the partition; nobody waits for that (tombstones)."""

    def read(self, partition: int) -> AsyncIterator[LogBatch]:
        """All batches that are there now, oldest first, without control batches; others have the loop in between.

        What a transaction has written comes where it was committed; never, if it was not. Records for which `append`
        was called before are there.

        Raises KafkaError when the log cannot be read, or the partition is not hosted (any more).
        """

    def is_leader(self, partition: int) -> bool:
        """Whether this broker leads the partition now."""
