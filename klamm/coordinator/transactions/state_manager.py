"""The transactional ids that this broker coordinates, and their records in `__transaction_state` (Kafka's
`TransactionStateManager`).

A transactional id belongs to one partition of the topic; the leader of that partition coordinates it. A partition is

| is       | since            | `find` says                                                                           |
|----------|------------------|---------------------------------------------------------------------------------------|
| unknown  | `resign`         | NOT_COORDINATOR                                                                       |
| loading  | `become_leader`  | COORDINATOR_LOAD_IN_PROGRESS: its transactional ids are being read from the log       |
| owned    | all is loaded    | the `OwnedPartition`                                                                  |

What must stay true:
- Answers about a transactional id reflect the whole log: a partition that could not be read to its end is never owned.
  It is read again while this broker leads it, and becomes unknown when the leadership ends.
- A change counts here when it is in the log on all in-sync replicas, not earlier, and whether its client still waits or
  not. The same holds for loaded states: the end of the log may not be on all in-sync replicas yet when this broker is
  elected.
- One change of an id is written at a time. Other requests for the id get CONCURRENT_TRANSACTIONS meanwhile.
- A record with an unknown outcome (it may be in the log of the next leader) is written again until the outcome is
  known. Meanwhile the change is pending, and its client is told to retry. So no request is ever answered from a state
  that the next coordinator may not have.
- A waiting client is answered once, also when the leadership changes.

Differences from Kafka:
- A record with an unknown outcome does not count as refused. In Kafka a commit that timed out can be followed by an
  abort, or by more records, while the next coordinator finds the commit in the log.
- A loaded partition is not owned before the end of its log is on all in-sync replicas. Kafka writes markers for a
  commit that the next leader may lack; that leader may then abort the transaction in the other partitions.
- A fenced producer's epoch changes with the record that fences it, not before, so a failed record leaves no
  intermediate state behind.
- A load that a read error cut short never counts as complete, and an id with a broken record is refused. A resignation
  ends the load of any epoch, and an outdated resignation ends nothing.
- An id whose first record was refused is removed at once, and needs no expiration.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import Final

from klamm.base.slices import each
from klamm.base.tasks import OnFailure, start_task
from klamm.coordinator.election_epochs import ElectionEpochs
from klamm.coordinator.ports import Appended, CoordinatorLog
from klamm.coordinator.transactions.loader import LoadedTransactions, load_transactions
from klamm.coordinator.transactions.records import transaction_key, transaction_value
from klamm.coordinator.transactions.states import VALID_PREVIOUS_STATES
from klamm.coordinator.transactions.transaction import NO_PARTITIONS, Partitions, TransactionMetadata
from klamm.protocol.error_codes import ErrorCode, KafkaError, error_name
from klamm.protocol.vocabulary import TRANSACTION_STATE_TOPIC_NAME, UNKNOWN_OFFSET, PartitionKey

LOAD_RETRY_BACKOFF_MS = 500
MAX_LOAD_RETRY_BACKOFF_MS = 30_000
# The backoff between attempts to write a record whose outcome is unknown, or that must be written.
WRITE_RETRY_BACKOFF_MS = 100
MAX_WRITE_RETRY_BACKOFF_MS = 5_000
# How many transactional ids a step loads.
TRANSACTIONS_PER_SLICE = 500

_log = logging.getLogger(__name__)

# The errors that clients get for a failed append; all other errors are passed on unchanged.
CLIENT_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


class Write:
    """A change of a transactional id that is being written to the log. `metadata` is None if the id is removed."""

    __slots__ = ("answer", "attempts", "metadata", "must_succeed", "timer")

    def __init__(
        self, metadata: TransactionMetadata | None, must_succeed: bool, answer: "asyncio.Future[ErrorCode]"
    ) -> None:
        self.metadata: Final = metadata
        self.answer: Final = answer
        # Retry even when refused: the outcome of an earlier attempt is unknown, or the change must happen.
        self.must_succeed = must_succeed
        self.attempts = 0
        self.timer: asyncio.TimerHandle | None = None

    def tell(self, error_code: ErrorCode) -> None:
        """Answers the client, if it has no answer yet."""
        if not self.answer.done():
            self.answer.set_result(error_code)


class OwnedPartition:
    """A partition of the topic that this broker coordinates, until `is_over`."""

    def __init__(self, number: int, coordinator_epoch: int, loaded: LoadedTransactions) -> None:
        self.number: Final = number
        self.coordinator_epoch = coordinator_epoch
        self.transactions: Final = loaded.transactions
        self.unreadable: Final = loaded.unreadable
        self.is_over = False
        # By transactional id: the change that is being written, and the partitions that still need a marker.
        self.writes: Final[dict[str, Write]] = {}
        self.unmarked: Final[dict[str, dict[PartitionKey, None]]] = {}
        # By transactional id, if requests wait for the end of its transaction: set when the transaction has ended.
        self._ended: Final[dict[str, asyncio.Event]] = {}

    async def wait_ended(self, transactional_id: str) -> None:
        """Waits until the id's transaction is complete in the log, or until `is_over`."""
        while not self.is_over and (known := self.transactions.get(transactional_id)) and known.state.is_prepared:
            await self._ended.setdefault(transactional_id, asyncio.Event()).wait()

    def tell_ended(self, transactional_id: str) -> None:
        """Wakes the requests that wait for the end of the id's transaction."""
        ended = self._ended.pop(transactional_id, None)
        if ended is not None:
            ended.set()

    def tell_over(self) -> None:
        """This broker no longer coordinates the partition: wakes all requests."""
        self.is_over = True
        for transactional_id in list(self._ended):
            self.tell_ended(transactional_id)

    def open_partitions(self, transactional_id: str) -> Partitions:
        """The partitions of the transaction that have no marker yet."""
        unmarked = self.unmarked.get(transactional_id)
        if unmarked is not None:
            return unmarked
        metadata = self.transactions.get(transactional_id)
        return NO_PARTITIONS if metadata is None else metadata.partitions


# Called when a transactional id becomes prepared, so that its partitions get their markers.
OnPrepared = Callable[[OwnedPartition, str, TransactionMetadata], None]


class TransactionStateManager:
    """Create it while the loop runs. `partition_for` gives an id's partition; no broker owns a partition that the topic
    does not have. `on_prepared` is called when a transaction's outcome is in the log, also after loading."""

    def __init__(
        self,
        log: CoordinatorLog,
        partition_for: Callable[[str], int],
        on_prepared: OnPrepared,
        on_failure: OnFailure,
    ) -> None:
        self._log = log
        self._partition_for = partition_for
        self._on_prepared = on_prepared
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._epochs = ElectionEpochs(TRANSACTION_STATE_TOPIC_NAME)
        self._loading: dict[int, asyncio.Task[None]] = {}
        self._one_at_a_time = asyncio.Lock()
        self._owned: dict[int, OwnedPartition] = {}

    # -- transactional ids --------------------------------------------------------------------------------------------

    def find(self, transactional_id: str) -> OwnedPartition | ErrorCode:
        """The partition of the id, or why this broker cannot answer for it now.

        UNKNOWN_SERVER_ERROR: the newest record of the id is broken.
        """
        number = self._partition_for(transactional_id)
        if number in self._loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        owned = self._owned.get(number)
        if owned is None:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.UNKNOWN_SERVER_ERROR if transactional_id in owned.unreadable else owned

    @property
    def is_loading(self) -> bool:
        return bool(self._loading)

    def owned(self) -> list[OwnedPartition]:
        """All owned partitions, in the order of loading."""
        return list(self._owned.values())

    # -- writing ------------------------------------------------------------------------------------------------------

    def write(
        self,
        owned: OwnedPartition,
        transactional_id: str,
        metadata: TransactionMetadata | None,
        *,
        must_succeed: bool = False,
    ) -> "asyncio.Future[ErrorCode]":
        """Writes the next state of the id, or its current state again, or removes the id (None). The result is for the
        client.

        No change of the id may be pending. With `must_succeed` a refused record is written again until it is in the log
        or this broker no longer coordinates the id. The write continues when the caller stops waiting.
        """
        assert not owned.is_over, f"{_name(owned.number)} is not owned"
        assert transactional_id not in owned.writes, f"a change of {transactional_id} is pending"
        known = owned.transactions.get(transactional_id)
        if known is not None and metadata not in (None, known):
            allowed = VALID_PREVIOUS_STATES[metadata.state]
            assert known.state in allowed, f"{transactional_id} cannot change from {known.state} to {metadata.state}"
        write = Write(metadata, must_succeed, self._loop.create_future())
        owned.writes[transactional_id] = write
        self._append(owned, transactional_id, write)
        return write.answer

    def _append(self, owned: OwnedPartition, transactional_id: str, write: Write) -> None:
        write.attempts += 1
        value = None if write.metadata is None else transaction_value(write.metadata)

        def ended(future: "asyncio.Future[Appended]") -> None:
            if future.cancelled():
                write.answer.cancel()
            elif (error := future.exception()) is not None:
                write.answer.cancel()
                self._on_failure(error)
            elif not owned.is_over:
                self._appended(owned, transactional_id, write, future.result())

        appending = self._log.append(owned.number, [(transaction_key(transactional_id), value)])
        future = asyncio.ensure_future(appending)
        # asyncio would call a callback one turn of the loop later.
        if future.done():
            ended(future)
        else:
            future.add_done_callback(ended)

    def _appended(self, owned: OwnedPartition, transactional_id: str, write: Write, appended: Appended) -> None:
        error_code = appended.error_code
        if error_code is ErrorCode.NONE:
            self._written(owned, transactional_id, write)
            return
        if appended.base_offset != UNKNOWN_OFFSET:
            # The log has taken the record, and the next leader may have it.
            write.must_succeed = True
        if write.must_succeed:
            backoff_ms = min(WRITE_RETRY_BACKOFF_MS * 2 ** min(write.attempts - 1, 10), MAX_WRITE_RETRY_BACKOFF_MS)
            write.timer = self._loop.call_later(backoff_ms / 1000, self._append, owned, transactional_id, write)
        else:
            del owned.writes[transactional_id]
        if write.attempts == 1:
            _log.warning(
                "transactional id %s could not be written to %s%s: %s",
                transactional_id,
                _name(owned.number),
                "; retrying" if write.must_succeed else "",
                error_name(error_code),
            )
        write.tell(CLIENT_ERRORS.get(error_code, error_code))

    def _written(self, owned: OwnedPartition, transactional_id: str, write: Write) -> None:
        del owned.writes[transactional_id]
        if write.metadata is None:
            del owned.transactions[transactional_id]
        else:
            owned.transactions[transactional_id] = write.metadata
        # The client does not wait for the markers.
        write.tell(ErrorCode.NONE)
        if write.metadata is not None:
            if write.metadata.state.is_prepared:
                self._on_prepared(owned, transactional_id, write.metadata)
            else:
                owned.tell_ended(transactional_id)

    # -- elections ----------------------------------------------------------------------------------------------------

    def become_leader(self, partition: int, coordinator_epoch: int) -> None:
        """This broker leads the partition: its transactional ids are loaded.

        Older epochs are ignored. The next markers of an owned or loading partition have the newer epoch: without a
        `resign` in between, no other broker has written to the log.
        """
        if not self._epochs.elected(partition, coordinator_epoch):
            return
        owned = self._owned.get(partition)
        if owned is not None:
            owned.coordinator_epoch = coordinator_epoch
        elif partition not in self._loading:
            self._loading[partition] = start_task(self._load(partition), self._on_failure)

    def resign(self, partition: int, coordinator_epoch: int | None) -> None:
        """This broker no longer leads the partition: its transactional ids are dropped at once.

        Older epochs are ignored. None means that the replica was removed; its known epoch is forgotten.
        """
        if not self._epochs.resigned(partition, coordinator_epoch):
            return
        load = self._loading.pop(partition, None)
        if load is not None:
            load.cancel()
        owned = self._owned.pop(partition, None)
        if owned is not None:
            self._unload(owned)

    def _unload(self, owned: OwnedPartition) -> None:
        owned.tell_over()
        for write in owned.writes.values():
            if write.timer is not None:
                write.timer.cancel()
            write.tell(ErrorCode.NOT_COORDINATOR)
        _log.info("unloaded %d transactional ids of %s", len(owned.transactions), _name(owned.number))

    async def _load(self, partition: int) -> None:
        began_s = self._loop.time()
        loaded = await self._read(partition)
        del self._loading[partition]
        if loaded is None:
            return
        owned = self._owned[partition] = OwnedPartition(partition, self._epochs[partition], loaded)
        took_ms = (self._loop.time() - began_s) * 1000
        _log.info("loaded %d transactional ids of %s in %d ms", len(loaded.transactions), _name(partition), took_ms)
        async for transactional_id, metadata in each(loaded.transactions.items(), TRANSACTIONS_PER_SLICE):
            if owned.is_over:
                return
            # A prepared transaction does not change before its markers are written, so the loaded state is current.
            if metadata.state.is_prepared:
                self._on_prepared(owned, transactional_id, metadata)

    async def _read(self, partition: int) -> LoadedTransactions | None:
        """The partition's transactional ids; None if reading failed and the partition has another leader now."""
        belongs_here = partial(self._belongs_to, partition)
        loaded: LoadedTransactions | None = None
        backoff_ms = LOAD_RETRY_BACKOFF_MS
        while True:
            try:
                if loaded is None:
                    async with self._one_at_a_time, aclosing(self._log.read(partition)) as batches:
                        loaded = await load_transactions(partition, batches, belongs_here)
                await self._log.wait_committed(partition)
                return loaded
            except (KafkaError, OSError) as error:
                if not self._log.is_leader(partition):
                    _log.warning("%s could not be loaded, and has another leader now: %s", _name(partition), error)
                    return None
                _log.error("%s could not be loaded; retrying in %d ms: %s", _name(partition), backoff_ms, error)
            await asyncio.sleep(backoff_ms / 1000)
            backoff_ms = min(2 * backoff_ms, MAX_LOAD_RETRY_BACKOFF_MS)

    def _belongs_to(self, partition: int, transactional_id: str) -> bool:
        """False if another partition holds the id's current state, because the topic had fewer partitions earlier."""
        now_in = self._partition_for(transactional_id)
        if now_in == partition or now_in < 0:
            return True
        _log.warning(
            "%s holds transactional id %s, which belongs to partition %d now",
            *(_name(partition), transactional_id, now_in),
        )
        return False

    async def stop(self) -> None:
        """Ends loading, and answers all waiting clients. Idempotent."""
        loading = list(self._loading.values())
        for task in loading:
            task.cancel()
        self._loading.clear()
        for partition in list(self._owned):
            self._unload(self._owned.pop(partition))
        await asyncio.gather(*loading, return_exceptions=True)


def _name(partition: int) -> str:
    return f"{TRANSACTION_STATE_TOPIC_NAME}-{partition}"
