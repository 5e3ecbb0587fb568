"""Loads the transactional ids of a partition of `__transaction_state` from its log.

Most records of a log that is not compacted yet are outdated. So only the newest record of each id is kept, and the
remaining records are decoded at the end.

What must stay true:
- No id is returned before all of the log has been read.
- A broken record affects no other id. An id whose newest record is broken is returned as unreadable. Its older record
  would be the wrong state. With no state at all, a client whose transaction may be half committed would get a new
  producer id.
- A record with a key of an unknown kind, which a newer Kafka may have written, is skipped, with one warning for
  the partition.

Source: kafka.coordinator.transaction.TransactionStateManager (`loadTransactionMetadata`).
"""

import logging
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from klamm.base.slices import Slices, Steps, in_slices
from klamm.coordinator.ports import LogBatch
from klamm.coordinator.transactions.records import UnknownKeyVersion, read_transaction_key, read_transaction_value
from klamm.coordinator.transactions.transaction import TransactionMetadata
from klamm.protocol.vocabulary import TRANSACTION_STATE_TOPIC_NAME

# How many records a step decodes, in a few milliseconds.
RECORDS_PER_SLICE = 500

_log = logging.getLogger(__name__)


class LoadedTransactions(NamedTuple):
    """The transactional ids of a partition. `unreadable` are the ids whose newest record is broken."""

    transactions: dict[str, TransactionMetadata]
    unreadable: set[str]


# By key: the offset and the value of its newest record. A key whose newest record is a tombstone has no entry.
LatestRecords = dict[bytes, tuple[int, bytes]]


async def load_transactions(
    partition: int, batches: AsyncIterator[LogBatch], belongs_here: Callable[[str], bool]
) -> LoadedTransactions:
    """The transactional ids for which `belongs_here` is true. Raises the errors of `batches`."""
    latest: LatestRecords = {}
    async for batch in batches:
        for offset, key, value in batch.records:
            if value is None:
                latest.pop(key or b"", None)
            else:
                latest[key or b""] = offset, value
    return await in_slices(decode(partition, latest, belongs_here))


def decode(partition: int, latest: LatestRecords, belongs_here: Callable[[str], bool]) -> Steps[LoadedTransactions]:
    """Decodes the records in steps. Empties `latest`."""
    loaded = LoadedTransactions({}, set())
    name = f"{TRANSACTION_STATE_TOPIC_NAME}-{partition}"
    unknown_keys = 0
    slices = Slices(RECORDS_PER_SLICE)
    while latest:
        if slices.spend():
            yield
        # Records are freed as they are decoded: freeing a million at once would hold the loop.
        key, (offset, value) = latest.popitem()
        try:
            transactional_id = read_transaction_key(key)
        except UnknownKeyVersion:
            unknown_keys += 1
            continue
        except ValueError as error:
            _log.error("%s has a record with a broken key at offset %d; skipped: %s", name, offset, error)
            continue
        if not belongs_here(transactional_id):
            continue
        try:
            loaded.transactions[transactional_id] = read_transaction_value(value)
        except ValueError as error:
            loaded.unreadable.add(transactional_id)
            _log.error(
                "%s has a broken record at offset %d; transactional id %s cannot be used: %s",
                *(name, offset, transactional_id, error),
            )
    if unknown_keys:
        _log.warning("%s has %d records with keys of an unknown version; skipped", name, unknown_keys)
    return loaded
