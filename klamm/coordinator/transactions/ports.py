"""The interfaces that the transaction coordinator needs from the rest of the broker, besides `CoordinatorLog`."""

from collections.abc import Awaitable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.vocabulary import PartitionKey


class TransactionConfig(Protocol):
    """The broker configs that transactions need."""

    @property
    def transactional_id_expiration_ms(self) -> int: ...

    @property
    def transaction_max_timeout_ms(self) -> int: ...

    @property
    def transaction_abort_timed_out_transaction_cleanup_interval_ms(self) -> int: ...

    @property
    def transaction_remove_expired_transaction_cleanup_interval_ms(self) -> int: ...


class ProducerIds(Protocol):
    """Producer ids for the whole cluster."""

    def next(self) -> Awaitable[int]:
        """An id that was never given out before. Raises KafkaError with the code for the client if no id is available.

        Clients retry after COORDINATOR_LOAD_IN_PROGRESS.
        """


class TransactionMarker(NamedTuple):
    """The end of a transaction for partitions that one broker leads (an entry of WriteTxnMarkers)."""

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    partitions: Sequence[PartitionKey]


class MarkerSender(Protocol):
    """Sends transaction markers to the leaders of partitions."""

    def leader(self, partition: PartitionKey) -> int | None:
        """The partition's leader, or NO_LEADER, according to this broker's metadata.

        None means that the metadata lacks the partition: it was deleted, or this broker has not heard of it yet.
        """

    def deleted(self, partitions: Sequence[PartitionKey]) -> Awaitable[Collection[PartitionKey]]:
        """Returns the partitions that do not exist or are being deleted, according to ZooKeeper after a `sync`.

        Raises KafkaError or OSError when ZooKeeper cannot be read now.
        """

    def write(
        self, broker_id: int, markers: Sequence[TransactionMarker]
    ) -> Awaitable[Sequence[Mapping[PartitionKey, ErrorCode]]]:
        """Sends the markers in one request. Returns, for each marker in the same order, the result of each partition.

        Raises KafkaError or OSError when the broker did not answer; the broker may have written the markers. At most
        one call for each broker is unanswered. Writing a marker twice has the same effect as writing it once.
        """
