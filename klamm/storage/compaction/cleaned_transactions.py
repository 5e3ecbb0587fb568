"""The transactions of a log in the order of its batches: which batches are aborted, and which markers may leave the
log.

What must stay true:
- A marker stays until a walk finds no batch of its transaction: without the marker the transaction would look open.
- The index of the new segments names each aborted transaction whose marker stays.

Source: kafka.log.CleanedTransactionMetadata.
"""

from collections.abc import Iterable

from klamm.protocol.record.record_batch import BatchHeader
from klamm.protocol.record.records import ControlRecordType
from klamm.storage.segments.transaction_index import AbortedTransaction


class CleanedTransactions:
    """One walk through the log, from the first batch to the last."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        # In descending order, so that the next transaction is taken from the end.
        self._coming = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
        # The open aborted transaction of each producer, and the producers whose transaction has had a batch.
        self._aborted: dict[int, AbortedTransaction] = {}
        self._met: set[int] = set()
        # The producers with a batch of a transaction that is not aborted.
        self._committed: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether this batch of records belongs to an aborted transaction."""
        if not header.is_transactional:
            return False
        self._begin_up_to(header.last_offset)
        producer_id = header.producer_id
        if producer_id in self._aborted:
            self._met.add(producer_id)
            return True
        self._committed.add(producer_id)
        return False

    def end(self, header: BatchHeader, kind: int | None) -> tuple[bool, AbortedTransaction | None]:
        """For a control batch with a marker of this kind (None: the batch is empty). Returns (whether no record needs
        the marker, the aborted transaction for the index)."""
        self._begin_up_to(header.last_offset)
        producer_id = header.producer_id
        if kind is None:
            return True, None
        if kind == ControlRecordType.ABORT:
            transaction = self._aborted.pop(producer_id, None)
            if producer_id in self._met:
                self._met.remove(producer_id)
                return False, transaction
            return True, None
        if kind == ControlRecordType.COMMIT:
            was_met = producer_id in self._committed
            self._committed.discard(producer_id)
            return not was_met, None
        return False, None

    def _begin_up_to(self, offset: int) -> None:
        while self._coming and self._coming[-1].first_offset <= offset:
            transaction = self._coming.pop()
            self._aborted.setdefault(transaction.producer_id, transaction)
