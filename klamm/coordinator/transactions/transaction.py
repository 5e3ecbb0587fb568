"""The state of a transactional id, and what each request does to it (Kafka's `TransactionMetadata`). Pure.

Each decision is a function of the known metadata, the request and the time. It returns the metadata that must be
written to `__transaction_state` before it counts, or the error code that answers the request at once.

| request                | Empty             | Ongoing               | Prepare*   | CompleteCommit  | CompleteAbort   |
|------------------------|-------------------|-----------------------|------------|-----------------|-----------------|
| InitProducerId         | the next epoch    | abort, the next epoch | CONCURRENT | the next epoch  | the next epoch  |
| AddPartitions, Offsets | Ongoing           | Ongoing               | CONCURRENT | Ongoing         | Ongoing         |
| EndTxn, commit         | INVALID_TXN_STATE | PrepareCommit         | CONCURRENT | the same again  | INVALID         |
| EndTxn, abort          | INVALID_TXN_STATE | PrepareAbort          | CONCURRENT | INVALID         | the same again  |

What must stay true:
- A producer epoch is given to one producer only. The next epoch fences the producer with the previous epoch.
- Epochs end at 32,766, so that the last one can still be fenced. The producer then gets a new producer id (KIP-360).
- A producer that names its id and epoch (KIP-360) gets the next epoch only if no other producer got one meanwhile. If
  it asks again because the answer was lost, it gets the same epoch again.
- A fenced producer changes nothing.
- No request succeeds without writing a record, not even a repeated one. A coordinator that was replaced unnoticed knows
  an old state, and only learns that it was replaced by writing a record.

Differences from Kafka: a repeated request is written again instead of answered from memory; a fenced producer that asks
for a new epoch does not abort the transaction of its successor; a producer that asks for a new epoch while its own
transaction is open is not fenced by its own abort; a wrong epoch gets PRODUCER_FENCED even when the epochs are
exhausted, where Kafka fails.

Source: kafka.coordinator.transaction.TransactionMetadata, TransactionCoordinator.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from klamm.coordinator.transactions.states import TransactionState
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.record.record_batch import NO_TIMESTAMP
from klamm.protocol.vocabulary import PartitionKey

LAST_EPOCH = 2**15 - 1
# The last epoch that a producer may get: LAST_EPOCH is left to fence it.
LAST_USABLE_EPOCH = LAST_EPOCH - 1

# An ordered set that is never modified.
Partitions = Mapping[PartitionKey, None]
NO_PARTITIONS: Partitions = {}


class ProducerIdAndEpoch(NamedTuple):
    """Identifies a producer to partition leaders."""

    producer_id: int
    epoch: int


class TransactionMetadata(NamedTuple):
    """One state of a transactional id.

    `last_producer` is the producer's former id and epoch, if the producer named them when it asked for its current
    epoch; only then may it ask again. It is not in the log. `start_timestamp_ms` is the beginning of the last
    transaction.
    """

    producer: ProducerIdAndEpoch
    timeout_ms: int
    state: TransactionState
    partitions: Partitions
    last_update_timestamp_ms: int
    start_timestamp_ms: int = NO_TIMESTAMP
    last_producer: ProducerIdAndEpoch | None = None

    def has_timed_out(self, now_ms: int) -> bool:
        return self.state is TransactionState.ONGOING and self.start_timestamp_ms + self.timeout_ms < now_ms

    def has_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Whether the id was unused for so long that it may be removed."""
        return self.state.is_over and self.last_update_timestamp_ms <= now_ms - expiration_ms


class Needs(Enum):
    """The input that a decision lacks."""

    PRODUCER_ID = "a new producer id"


Decision = TransactionMetadata | ErrorCode


# -- InitProducerId ---------------------------------------------------------------------------------------------------


def init_producer(
    known: TransactionMetadata | None,
    expected: ProducerIdAndEpoch | None,
    timeout_ms: int,
    now_ms: int,
    new_producer_id: int | None,
) -> Decision | Needs:
    """Gives a producer its first or its next epoch. `expected` is the id and epoch that the request names, if any.

    `new_producer_id` is used only if the answer without it is `Needs.PRODUCER_ID`. Ongoing becomes PrepareAbort; the
    client then gets CONCURRENT_TRANSACTIONS and asks again.
    """
    if known is None:
        return _first_epoch(new_producer_id, None, timeout_ms, now_ms)
    if known.state.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    is_current = expected in (None, known.producer)
    if known.state is TransactionState.ONGOING:
        return fence(known, now_ms, expected) if is_current else ErrorCode.PRODUCER_FENCED
    is_repeated = not is_current and expected == known.last_producer
    if not is_current and not is_repeated:
        return ErrorCode.PRODUCER_FENCED
    if is_repeated and known.producer.epoch <= LAST_USABLE_EPOCH:
        return _initialized(known.producer, expected, timeout_ms, now_ms)
    if known.producer.epoch >= LAST_USABLE_EPOCH:
        return _first_epoch(new_producer_id, expected, timeout_ms, now_ms)
    next_epoch = known.producer._replace(epoch=known.producer.epoch + 1)
    return _initialized(next_epoch, expected, timeout_ms, now_ms)


def _first_epoch(
    producer_id: int | None, last_producer: ProducerIdAndEpoch | None, timeout_ms: int, now_ms: int
) -> TransactionMetadata | Needs:
    if producer_id is None:
        return Needs.PRODUCER_ID
    return _initialized(ProducerIdAndEpoch(producer_id, 0), last_producer, timeout_ms, now_ms)


def _initialized(
    producer: ProducerIdAndEpoch, last_producer: ProducerIdAndEpoch | None, timeout_ms: int, now_ms: int
) -> TransactionMetadata:
    return TransactionMetadata(
        producer, timeout_ms, TransactionState.EMPTY, NO_PARTITIONS, now_ms, last_producer=last_producer
    )


def fence(known: TransactionMetadata, now_ms: int, asked_by: ProducerIdAndEpoch | None = None) -> TransactionMetadata:
    """Aborts an open transaction in the next epoch, which fences its producer.

    `asked_by` is the producer if it asked for the next epoch itself; it then gets that epoch.
    """
    epoch = min(known.producer.epoch + 1, LAST_EPOCH)
    return known._replace(
        producer=known.producer._replace(epoch=epoch),
        state=TransactionState.PREPARE_ABORT,
        last_update_timestamp_ms=now_ms,
        last_producer=asked_by,
    )


# -- AddPartitions, EndTxn --------------------------------------------------------------------------------------------


def producer_error(known: TransactionMetadata | None, producer: ProducerIdAndEpoch) -> ErrorCode | None:
    """Why a request of this producer is refused in any state, or None."""
    if known is None or known.producer.producer_id != producer.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    return None if known.producer == producer else ErrorCode.PRODUCER_FENCED


def add_partitions(known: TransactionMetadata, partitions: Iterable[PartitionKey], now_ms: int) -> Decision:
    """Adds partitions that the producer is about to write to. The first partitions begin the transaction."""
    if known.state.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    added = dict.fromkeys(partitions)
    if known.state is TransactionState.ONGOING:
        return known._replace(partitions={**known.partitions, **added}, last_update_timestamp_ms=now_ms)
    return known._replace(
        state=TransactionState.ONGOING,
        partitions=added,
        start_timestamp_ms=now_ms,
        last_update_timestamp_ms=now_ms,
    )


def end(known: TransactionMetadata, committed: bool, now_ms: int) -> Decision:
    """Commits or aborts the producer's transaction."""
    if known.state.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if known.state is TransactionState.ONGOING:
        state = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
        return known._replace(state=state, last_update_timestamp_ms=now_ms)
    wanted = TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT
    return known if known.state is wanted else ErrorCode.INVALID_TXN_STATE


def complete(known: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """Completes a prepared transaction when all its partitions have their markers."""
    is_commit = known.state is TransactionState.PREPARE_COMMIT
    return known._replace(
        state=TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT,
        partitions=NO_PARTITIONS,
        last_update_timestamp_ms=now_ms,
    )
