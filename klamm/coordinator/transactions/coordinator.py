"""The transaction coordinator: the requests of transactional producers and of admin clients about transactions
(KIP-98, 360, 664, 994).

`transaction` decides what a request does to a transactional id, `TransactionStateManager` keeps and writes the ids, and
`TransactionMarkerManager` has transaction markers written to the partitions. This module carries out the requests,
aborts overdue transactions and removes unused ids.

What must stay true:
- Every request is answered once. Its change happens whether the client still waits or not.
- A commit is acknowledged when PrepareCommit is on all in-sync replicas. From then on the transaction is committed,
  whatever fails: this coordinator or the next one writes the markers.
- A transaction that its producer does not end is aborted after its timeout, and its producer is fenced.
- Timeouts and expirations are found by examining all ids periodically, so no timer is lost when an id moves to another
  coordinator.

Differences from Kafka: AddPartitionsToTxn and AddOffsetsToTxn wait up to 100 ms for the markers of the producer's last
transaction before they answer CONCURRENT_TRANSACTIONS, as Kafka's brokers do from 4.0 on. A client that commits one
transaction after the other would otherwise nearly always come before the markers are written, and back off for 20 ms.
`transaction`, `state_manager` and `marker_manager` name further differences.

Source: kafka.coordinator.transaction.TransactionCoordinator; the errors and their order are the same.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import NamedTuple

from klamm.base.environment import Environment
from klamm.base.slices import Slices, Steps, each
from klamm.base.tasks import OnFailure, start_task
from klamm.coordinator.ports import CoordinatorLog
from klamm.coordinator.transactions.marker_manager import TransactionMarkerManager
from klamm.coordinator.transactions.ports import MarkerSender, ProducerIds, TransactionConfig
from klamm.coordinator.transactions.state_manager import OwnedPartition, TransactionStateManager
from klamm.coordinator.transactions.states import STATE_NAMES
from klamm.coordinator.transactions.transaction import (
    NO_PARTITIONS,
    Decision,
    Needs,
    Partitions,
    ProducerIdAndEpoch,
    TransactionMetadata,
    add_partitions,
    end,
    fence,
    init_producer,
    producer_error,
)
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.record_batch import NO_PRODUCER_ID, NO_TIMESTAMP
from klamm.protocol.vocabulary import NO_EPOCH, PartitionKey

# How long the first request of a transaction waits for the end of the producer's last transaction.
END_WAIT_MS = 100
# How many transactional ids a step examines. A step takes some milliseconds if it writes all of them.
TRANSACTIONS_PER_SLICE = 250

_log = logging.getLogger(__name__)


class InitProducerIdResult(NamedTuple):
    """The answer to InitProducerId."""

    error_code: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class TransactionDescription(NamedTuple):
    """The answer to DescribeTransactions for one id. `partitions` are the partitions without a marker yet."""

    error_code: ErrorCode
    state: str = ""
    timeout_ms: int = 0
    start_timestamp_ms: int = NO_TIMESTAMP
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH
    partitions: Partitions = NO_PARTITIONS


class ListedTransaction(NamedTuple):
    """A transactional id as ListTransactions shows it."""

    transactional_id: str
    producer_id: int
    state: str


class TransactionListing(NamedTuple):
    """The answer to ListTransactions."""

    error_code: ErrorCode
    unknown_states: list[str]
    transactions: list[ListedTransaction]


class TransactionCoordinator:
    """Coordinates the transactional ids of the partitions that it was elected for, between `start` and `stop`.

    Create it while the loop runs. `partition_for` gives an id's partition of `__transaction_state`, or a negative
    number while that is unknown. `on_failure` gets programming errors in work that no request waits for.
    """

    def __init__(
        self,
        config: TransactionConfig,
        log: CoordinatorLog,
        partition_for: Callable[[str], int],
        producer_ids: ProducerIds,
        markers: MarkerSender,
        environment: Environment,
        on_failure: OnFailure,
    ) -> None:
        self._config = config
        self._producer_ids = producer_ids
        self._now_ms = environment.now_ms
        self._on_failure = on_failure
        self.markers = TransactionMarkerManager(markers, self._write_completion, environment, on_failure)
        self.states = TransactionStateManager(log, partition_for, self.markers.begin, on_failure)
        self._periodic: list[asyncio.Task[None]] = []
        self._is_active = False

    def start(self) -> None:
        """Starts aborting overdue transactions and removing unused ids."""
        abort_ms = self._config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        remove_ms = self._config.transaction_remove_expired_transaction_cleanup_interval_ms
        self._periodic = [
            start_task(self._every(abort_ms, self._abort_if_overdue), self._on_failure),
            start_task(self._every(remove_ms, self._remove_if_expired), self._on_failure),
        ]
        self._is_active = True

    async def stop(self) -> None:
        """Answers waiting requests with NOT_COORDINATOR. Idempotent."""
        self._is_active = False
        for task in self._periodic:
            task.cancel()
        await asyncio.gather(*self._periodic, return_exceptions=True)
        await self.states.stop()
        await self.markers.stop()

    # -- partitions of __transaction_state ----------------------------------------------------------------------------

    def on_election(self, partition: int, coordinator_epoch: int) -> None:
        """This broker leads the partition now, with its transactional ids."""
        if self._is_active:
            self.states.become_leader(partition, coordinator_epoch)

    def on_resignation(self, partition: int, coordinator_epoch: int | None) -> None:
        """This broker no longer leads the partition. None means any epoch."""
        if self._is_active:
            self.states.resign(partition, coordinator_epoch)

    # -- producers ----------------------------------------------------------------------------------------------------

    async def init_producer_id(
        self, transactional_id: str | None, timeout_ms: int, expected: ProducerIdAndEpoch | None = None
    ) -> InitProducerIdResult:
        """Gives a producer its first or its next epoch. `expected` is the producer's current id and epoch (KIP-360). A
        producer without a transactional id gets a new producer id.

        An open transaction is aborted, and the answer is CONCURRENT_TRANSACTIONS, so that the client retries.
        """
        try:
            if transactional_id is None:
                return InitProducerIdResult(ErrorCode.NONE, await self._producer_ids.next(), 0)
            return await self._init_producer_id(transactional_id, timeout_ms, expected)
        except KafkaError as error:
            return InitProducerIdResult(error.code)

    async def _init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None
    ) -> InitProducerIdResult:
        if transactional_id == "":
            return InitProducerIdResult(ErrorCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= self._config.transaction_max_timeout_ms:
            return InitProducerIdResult(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        new_producer_id: int | None = None
        while True:
            owned = self._find(transactional_id)
            if isinstance(owned, ErrorCode):
                return InitProducerIdResult(owned)
            if transactional_id in owned.writes:
                return InitProducerIdResult(ErrorCode.CONCURRENT_TRANSACTIONS)
            known = owned.transactions.get(transactional_id)
            decision = init_producer(known, expected, timeout_ms, self._now_ms(), new_producer_id)
            if decision is not Needs.PRODUCER_ID:
                break
            # The state may have changed while the producer id was requested.
            new_producer_id = await self._producer_ids.next()
        error = await self._carry_out(owned, transactional_id, decision)
        if error is not ErrorCode.NONE:
            return InitProducerIdResult(error)
        assert isinstance(decision, TransactionMetadata)
        if decision.state.is_prepared:
            return InitProducerIdResult(ErrorCode.CONCURRENT_TRANSACTIONS)
        _log.info("transactional id %s has producer id %d and epoch %d", transactional_id, *decision.producer)
        return InitProducerIdResult(ErrorCode.NONE, *decision.producer)

    def add_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Collection[PartitionKey]
    ) -> "asyncio.Future[ErrorCode]":
        """Done when the log has the partitions in the producer's transaction. The first partitions begin it."""
        producer = ProducerIdAndEpoch(producer_id, producer_epoch)
        ending = self._last_end(transactional_id, producer)
        if ending is not None:
            return asyncio.ensure_future(self._add_after(ending, transactional_id, producer, partitions))
        return self._add(transactional_id, producer, partitions)

    def _add(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partitions: Collection[PartitionKey]
    ) -> "asyncio.Future[ErrorCode]":
        return self._change(transactional_id, producer, lambda known: add_partitions(known, partitions, self._now_ms()))

    def _last_end(self, transactional_id: str, producer: ProducerIdAndEpoch) -> OwnedPartition | None:
        """The partition of `__transaction_state` in which the producer's last transaction still waits for markers."""
        owned = self._find(transactional_id)
        if isinstance(owned, ErrorCode):
            return None
        known = owned.transactions.get(transactional_id)
        is_ending = known is not None and known.state.is_prepared and producer_error(known, producer) is None
        return owned if is_ending else None

    async def _add_after(
        self,
        ending: OwnedPartition,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[PartitionKey],
    ) -> ErrorCode:
        """Gives the markers of the producer's last transaction time to be written."""
        with suppress(TimeoutError):
            async with asyncio.timeout(END_WAIT_MS / 1000):
                await ending.wait_ended(transactional_id)
        return await self._add(transactional_id, producer, partitions)

    def end_transaction(
        self, transactional_id: str, producer_id: int, producer_epoch: int, *, committed: bool
    ) -> "asyncio.Future[ErrorCode]":
        """Done when the log has the outcome. The markers follow."""
        producer = ProducerIdAndEpoch(producer_id, producer_epoch)
        return self._change(transactional_id, producer, lambda known: end(known, committed, self._now_ms()))

    def _change(
        self, transactional_id: str, producer: ProducerIdAndEpoch, decide: Callable[[TransactionMetadata], Decision]
    ) -> "asyncio.Future[ErrorCode]":
        """Done at once if there is nothing to wait for: a task would double the cost of the request."""
        if not transactional_id:
            return _done(ErrorCode.INVALID_REQUEST)
        owned = self._find(transactional_id)
        if isinstance(owned, ErrorCode):
            return _done(owned)
        known = owned.transactions.get(transactional_id)
        error = producer_error(known, producer)
        if error is not None:
            return _done(error)
        if transactional_id in owned.writes:
            return _done(ErrorCode.CONCURRENT_TRANSACTIONS)
        assert known is not None
        return self._carry_out(owned, transactional_id, decide(known))

    def _carry_out(
        self, owned: OwnedPartition, transactional_id: str, decision: Decision
    ) -> "asyncio.Future[ErrorCode]":
        if isinstance(decision, ErrorCode):
            return _done(decision)
        return self.states.write(owned, transactional_id, decision)

    def _find(self, transactional_id: str) -> OwnedPartition | ErrorCode:
        return self.states.find(transactional_id) if self._is_active else ErrorCode.COORDINATOR_NOT_AVAILABLE

    def _write_completion(self, owned: OwnedPartition, transactional_id: str, metadata: TransactionMetadata) -> None:
        self.states.write(owned, transactional_id, metadata, must_succeed=True)

    # -- admin clients ------------------------------------------------------------------------------------------------

    def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        if not self._is_active:
            return TransactionDescription(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not transactional_id:
            return TransactionDescription(ErrorCode.INVALID_REQUEST)
        owned = self._find(transactional_id)
        if isinstance(owned, ErrorCode):
            return TransactionDescription(owned)
        known = owned.transactions.get(transactional_id)
        if known is None:
            return TransactionDescription(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return TransactionDescription(
            ErrorCode.NONE,
            str(known.state),
            known.timeout_ms,
            known.start_timestamp_ms,
            *known.producer,
            dict(owned.open_partitions(transactional_id)),
        )

    def list_transactions(
        self, states: Collection[str] = (), producer_ids: Collection[int] = (), duration_ms: int = -1
    ) -> Steps[TransactionListing]:
        """The transactional ids in one of the states and of one of the producers, in steps. An empty filter accepts
        all. Only transactions that began more than `duration_ms` ago are listed, unless it is negative.
        """
        if not self._is_active:
            return TransactionListing(ErrorCode.COORDINATOR_NOT_AVAILABLE, [], [])
        if self.states.is_loading:
            return TransactionListing(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [], [])
        known_names = frozenset(STATE_NAMES.values())
        listing = TransactionListing(ErrorCode.NONE, [name for name in states if name not in known_names], [])
        wanted_ids = frozenset(producer_ids)
        latest_start_ms = self._now_ms() - duration_ms
        slices = Slices(TRANSACTIONS_PER_SLICE)
        for owned in self.states.owned():
            for transactional_id, known in list(owned.transactions.items()):
                name = str(known.state)
                if (
                    (not states or name in states)
                    and (not wanted_ids or known.producer.producer_id in wanted_ids)
                    and (duration_ms < 0 or known.start_timestamp_ms < latest_start_ms)
                ):
                    producer_id = known.producer.producer_id
                    listing.transactions.append(ListedTransaction(transactional_id, producer_id, name))
                if slices.spend():
                    yield
        return listing

    # -- time ---------------------------------------------------------------------------------------------------------

    async def _every(
        self, interval_ms: int, examine: Callable[[OwnedPartition, str, TransactionMetadata], None]
    ) -> None:
        """Examines all transactional ids once in each interval, for ever."""
        while True:
            await asyncio.sleep(interval_ms / 1000)
            for owned in self.states.owned():
                async for transactional_id in each(owned.transactions, TRANSACTIONS_PER_SLICE):
                    known = owned.transactions.get(transactional_id)
                    if known is not None and not owned.is_over and transactional_id not in owned.writes:
                        examine(owned, transactional_id, known)

    def _abort_if_overdue(self, owned: OwnedPartition, transactional_id: str, known: TransactionMetadata) -> None:
        now_ms = self._now_ms()
        if known.has_timed_out(now_ms):
            _log.info(
                "transaction of %s with producer id %d is aborted: it is open for more than %d ms",
                *(transactional_id, known.producer.producer_id, known.timeout_ms),
            )
            self.states.write(owned, transactional_id, fence(known, now_ms))

    def _remove_if_expired(self, owned: OwnedPartition, transactional_id: str, known: TransactionMetadata) -> None:
        if known.has_expired(self._now_ms(), self._config.transactional_id_expiration_ms):
            self.states.write(owned, transactional_id, None)


def _done(error_code: ErrorCode) -> "asyncio.Future[ErrorCode]":
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    done.set_result(error_code)
    return done
