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
        """An id that was never given out before. Raises KafkaError, with the code for the client, if there is none now.

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
    """The way to the leaders of the partitions that get markers."""

    def leader(self, partition: PartitionKey) -> int | None:
        """The broker that leads the partition, or NO_LEADER, as this broker's metadata says.

        None: the metadata does not have the partition; it was deleted, or this broker has not heard of it yet.
        """

    def deleted(self, partitions: Sequence[PartitionKey]) -> Awaitable[Collection[PartitionKey]]:
        """Those of the partitions that certainly do not exist, or are being deleted (ZooKeeper says so, after `sync`).

        Raises KafkaError or OSError when that cannot be found out now.
        """

    def write(
        self, broker_id: int, markers: Sequence[TransactionMarker]
    ) -> Awaitable[Sequence[Mapping[PartitionKey, ErrorCode]]]:
        """Sends the markers in one request; returns the result of each partition, for each marker in the same order.

        Raises KafkaError or OSError when the broker did not answer: it may have written the markers or not. At most one
        call for each broker is unanswered. A leader that has a marker twice has the same transactions as with one.
        """
