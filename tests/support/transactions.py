"""What the transaction coordinator's tests share: a coordinator in virtual time, its log and the partitions of the
transactions in memory."""

import asyncio
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from klamm.coordinator.ports import KeyAndValue
from klamm.coordinator.transactions.coordinator import InitProducerIdResult, TransactionCoordinator
from klamm.coordinator.transactions.ports import MarkerSender, ProducerIds, TransactionMarker
from klamm.coordinator.transactions.records import read_transaction_key, read_transaction_value
from klamm.coordinator.transactions.transaction import ProducerIdAndEpoch, TransactionMetadata
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import NO_LEADER, PartitionKey
from support.coordination import Machine, settle
from support.coordinator_logs import MemoryCoordinatorLog

T = "txn"
P0: PartitionKey = ("t", 0)
P1: PartitionKey = ("t", 1)
MINUTE_MS = 60_000


class Config(NamedTuple):
    """What transactions need of the configuration."""

    transactional_id_expiration_ms: int = 7 * 24 * 3_600_000
    transaction_max_timeout_ms: int = 15 * MINUTE_MS
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000


class StateLog(MemoryCoordinatorLog):
    """The partitions of `__transaction_state`."""

    taken = (
        ErrorCode.NONE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )

    def append_unacknowledged(self, partition: int, records: Sequence[KeyAndValue]) -> None:
        raise AssertionError("a transaction's records are always waited for")

    def history(self, transactional_id: str = T, partition: int = 0) -> list[TransactionMetadata | None]:
        """Each state of the id that was written, oldest first; None for a tombstone."""
        return [
            None if value is None else read_transaction_value(value)
            for key, value in self.records(partition)
            if read_transaction_key(key) == transactional_id
        ]

    def states(self, transactional_id: str = T) -> list[str]:
        return ["-" if one is None else str(one.state) for one in self.history(transactional_id)]


class Leaders(MarkerSender):
    """The leaders of the transactions' partitions. Broker 1 leads all partitions that no test moves.

    A request takes `delay_s`, or the broker's own. `errors` is what partitions answer, until it is taken out; there is
    no result for `silent` ones; `dead` brokers do not answer, and NO_LEADER among them stands for ZooKeeper.
    """

    def __init__(self) -> None:
        self.led: dict[PartitionKey, int | None] = {}
        self.errors: dict[PartitionKey, ErrorCode] = {}
        self.dead: set[int] = set()
        self.gone: set[PartitionKey] = set()
        self.silent: set[PartitionKey] = set()
        self.delay_s = 0.0
        self.delays_s: dict[int, float] = {}
        self.requests: list[tuple[int, Sequence[TransactionMarker]]] = []
        # What stands in each partition: (producer id, epoch, committed, coordinator epoch).
        self.markers: dict[PartitionKey, list[tuple[int, int, bool, int]]] = {}
        self.asked: list[Sequence[PartitionKey]] = []
        self._busy: set[int] = set()

    def leader(self, partition: PartitionKey) -> int | None:
        return self.led.get(partition, 1)

    async def deleted(self, partitions: Sequence[PartitionKey]) -> Collection[PartitionKey]:
        self.asked.append(partitions)
        if NO_LEADER in self.dead:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "ZooKeeper does not answer")
        return [partition for partition in partitions if partition in self.gone]

    async def write(
        self, broker_id: int, markers: Sequence[TransactionMarker]
    ) -> Sequence[Mapping[PartitionKey, ErrorCode]]:
        assert broker_id not in self._busy
        self._busy.add(broker_id)
        self.requests.append((broker_id, markers))
        try:
            delay_s = self.delays_s.get(broker_id, self.delay_s)
            if delay_s:
                await asyncio.sleep(delay_s)
            if broker_id in self.dead:
                raise ConnectionRefusedError(f"broker {broker_id} is dead")
            return [
                {one: self._write(one, marker) for one in marker.partitions if one not in self.silent}
                for marker in markers
            ]
        finally:
            self._busy.discard(broker_id)

    def _write(self, partition: PartitionKey, marker: TransactionMarker) -> ErrorCode:
        error = self.errors.get(partition, ErrorCode.NONE)
        if error is ErrorCode.NONE:
            written = marker.producer_id, marker.producer_epoch, marker.committed, marker.coordinator_epoch
            self.markers.setdefault(partition, []).append(written)
        return error


class Ids(ProducerIds):
    """Producer ids from 1,000; or the error in `failure`. Each takes `delay_s`."""

    def __init__(self) -> None:
        self.given = 1_000
        self.delay_s = 0.0
        self.failure: KafkaError | None = None

    async def next(self) -> int:
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self.failure is not None:
            raise self.failure
        self.given += 1
        return self.given - 1


class Transactions:
    """A coordinator that is started, and how producers talk to it."""

    def __init__(self, log: StateLog | None = None, leaders: Leaders | None = None, **config: Any) -> None:
        self.failures: list[BaseException] = []
        self.log = StateLog() if log is None else log
        self.leaders = Leaders() if leaders is None else leaders
        self.ids = Ids()
        self.machine = Machine()
        self.partition_of: dict[str, int] = {}
        self.coordinator = TransactionCoordinator(
            Config(**config),
            self.log,
            lambda transactional_id: self.partition_of.get(transactional_id, 0),
            self.ids,
            self.leaders,
            self.machine,
            self.failures.append,
        )
        self.coordinator.start()

    @classmethod
    async def elected(cls, log: StateLog | None = None, **config: Any) -> "Transactions":
        """One that leads partition 0 in epoch 5."""
        transactions = cls(log, **config)
        await transactions.elect()
        return transactions

    async def elect(self, epoch: int = 5) -> None:
        self.coordinator.on_election(0, epoch)
        await settle()

    def resign(self, epoch: int | None = None) -> None:
        self.coordinator.on_resignation(0, epoch)

    async def init(
        self, transactional_id: str = T, timeout_ms: int = MINUTE_MS, expected: tuple[int, int] | None = None
    ) -> InitProducerIdResult:
        named = None if expected is None else ProducerIdAndEpoch(*expected)
        return await self.coordinator.init_producer_id(transactional_id, timeout_ms, named)

    async def add(self, producer: tuple[int, int], *partitions: PartitionKey, transactional_id: str = T) -> ErrorCode:
        return await self.coordinator.add_partitions(transactional_id, *producer, partitions)

    async def end(self, producer: tuple[int, int], committed: bool = True, *, transactional_id: str = T) -> ErrorCode:
        return await self.coordinator.end_transaction(transactional_id, *producer, committed=committed)

    async def producer(self, transactional_id: str = T, timeout_ms: int = MINUTE_MS) -> tuple[int, int]:
        """A producer that has begun."""
        result = await self.init(transactional_id, timeout_ms)
        assert result.error_code is ErrorCode.NONE
        return result.producer_id, result.producer_epoch

    async def ongoing(
        self, *partitions: PartitionKey, transactional_id: str = T, timeout_ms: int = MINUTE_MS
    ) -> tuple[int, int]:
        """A producer with an open transaction."""
        producer = await self.producer(transactional_id, timeout_ms)
        added = await self.add(producer, *(partitions or (P0,)), transactional_id=transactional_id)
        assert added is ErrorCode.NONE
        return producer

    def state(self, transactional_id: str = T) -> str:
        return self.coordinator.describe_transaction(transactional_id).state

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        return asyncio.get_running_loop().create_task(work)

    async def stop(self) -> None:
        await self.coordinator.stop()
        await settle()
        assert self.failures == []
