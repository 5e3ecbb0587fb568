"""The batches of records that a `Sender` sends, with a producer's identity, in a transaction or not.

What must stay true: a sealed batch never changes, so that a broker recognizes duplicates. Only a batch that was never
sent may be sealed again.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import dataclass
from typing import NamedTuple

from klamm.protocol.error_codes import KafkaError
from klamm.protocol.primitives import Buffer
from klamm.protocol.record.record_batch import NO_PRODUCER_ID, BatchHeader, parse_header
from klamm.protocol.vocabulary import PartitionKey


@dataclass(frozen=True, slots=True)
class PartitionBatch:
    """A sealed batch for a partition. `size_bytes` is its size without compression."""

    topic: str
    partition: int
    data: Buffer
    size_bytes: int


class Identity(NamedTuple):
    """The producer id and epoch."""

    producer_id: int
    producer_epoch: int


NO_IDENTITY = Identity(NO_PRODUCER_ID, -1)


class TransactionFailed(KafkaError):
    """No more records can be sent in this transaction."""


class Transaction(ABC):
    """The transactions of a producer, one at a time: the part that its sender needs."""

    transactional_id: str
    identity: Identity
    """The producer id and epoch. Sequence numbers start at 0 in each epoch."""
    number: int = 0
    """The number of transactions that have ended."""

    @abstractmethod
    async def add_partition(self, partition: PartitionKey) -> None:
        """Returns when the coordinator knows that the transaction writes to this partition.

        Raises TransactionFailed; KafkaError and ClientError when the coordinator did not answer in time.
        """

    @abstractmethod
    def batch_failed(self, error: BaseException, *, may_come_late: bool) -> None:
        """A batch was not or may not have been written, so the transaction cannot be committed.

        With `may_come_late` a leader may still receive a batch later.
        """


class Batch(ABC):
    """A batch of one partition that waits for its acknowledgement, with callbacks for its producer.

    `deadline` is a time of the loop's clock. `data` is the sealed batch, or None before. `memory_bytes` counts against
    the buffer memory. `attempts` counts how often the batch was sent. Only a ready batch is sent. `number` grows with
    each batch of the sender.
    """

    __slots__ = ("attempts", "data", "deadline", "is_ready", "memory_bytes", "number", "size_bytes")

    def __init__(self, size_bytes: int, deadline: float, data: Buffer | None = None) -> None:
        self.size_bytes = size_bytes
        self.memory_bytes = size_bytes if data is None else len(data)
        self.deadline = deadline
        self.data = data
        self.is_ready = data is not None
        self.attempts = 0
        self.number = 0

    @property
    def header(self) -> BatchHeader:
        assert self.data is not None
        return parse_header(self.data)

    @abstractmethod
    def seal(self, identity: Identity, sequence: int) -> Generator[int, None, None]:
        """Sets `data`, in steps."""

    @abstractmethod
    def unseal(self) -> bool:
        """Makes the batch one that was never sent and can be sealed again; False if that is impossible."""

    @abstractmethod
    def part(self, size_bytes: int, data: Buffer, first: int, count: int) -> "Batch":
        """A batch with this `data`, for `count` of this batch's records from index `first` on."""

    @abstractmethod
    def acknowledged(self, base_offset: int, log_append_time_ms: int) -> None:
        """The replicas have the batch. The offset is -1 if the response has no offset."""

    @abstractmethod
    def failed(self, error: BaseException) -> None:
        """The batch will not be sent again."""


class SealedBatch(Batch):
    """A batch that the caller has sealed. Its failure ends the sender, and the waiters get the error."""

    __slots__ = ()

    def seal(self, identity: Identity, sequence: int) -> Generator[int, None, None]:
        raise AssertionError("a sealed batch was to be sealed")

    def unseal(self) -> bool:
        return False

    def part(self, size_bytes: int, data: Buffer, first: int, count: int) -> Batch:
        return SealedBatch(size_bytes, self.deadline, data)

    def acknowledged(self, base_offset: int, log_append_time_ms: int) -> None:
        pass

    def failed(self, error: BaseException) -> None:
        pass
