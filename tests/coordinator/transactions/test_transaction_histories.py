"""Random histories of transactions: two brokers that may coordinate them, producers that share a transactional id, a
log that is slow, refuses, or loses its end with its leader, and leaders of partitions that do not answer.

What must hold: a transaction's records are all visible or none of them; an acknowledged commit is committed, and an
acknowledged abort aborted; an epoch is given to one producer, and a producer that was fenced does not succeed; what a
coordinator knows is what the log says; the log's states follow each other; every request is answered; and when the
faults end, no transaction stays open.
"""

import asyncio
from collections.abc import AsyncGenerator, Collection, Coroutine, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.coordinator.ports import Appended, KeyAndValue, LogBatch, TransactionalProducer
from klamm.coordinator.transactions.ports import TransactionMarker
from klamm.coordinator.transactions.records import read_transaction_key, read_transaction_value
from klamm.coordinator.transactions.transaction import TransactionMetadata
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import NO_LEADER, PartitionKey
from support.coordination import after, in_virtual_time, settle
from support.transactions import Ids, Leaders, StateLog, Transactions

pytestmark = pytest.mark.loop("virtual")

NONE = ErrorCode.NONE
PARTITIONS: list[PartitionKey] = [("t", 0), ("t", 1), ("u", 0)]
TIMEOUT_MS = 8_000
COMMIT, ABORT = True, False

FATAL = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_TXN_STATE)
LEGAL_STATES = {
    "Empty": {"Empty", "Ongoing"},
    "Ongoing": {"Ongoing", "PrepareCommit", "PrepareAbort"},
    "PrepareCommit": {"CompleteCommit"},
    "PrepareAbort": {"CompleteAbort"},
    "CompleteCommit": {"Empty", "Ongoing"},
    "CompleteAbort": {"Empty", "Ongoing"},
}


class ClusterLog:
    """A partition of `__transaction_state` with one leader. What is after `committed` may be lost with the leader."""

    def __init__(self) -> None:
        self.records: list[KeyAndValue] = []
        self.committed = 0
        self.leader = 0
        self.term = 0
        self.mode = "works"
        self.delay_s = 0.0

    def elect(self, leader: int, lost: int) -> None:
        self.leader = leader
        self.term += 1
        del self.records[max(self.committed, len(self.records) - lost) :]


class Replica(StateLog):
    """The log as one of the brokers sees it."""

    def __init__(self, cluster: ClusterLog, number: int) -> None:
        super().__init__()
        self.cluster = cluster
        self.number = number

    async def append(
        self, partition: int, records: Sequence[KeyAndValue], producer: TransactionalProducer | None = None
    ) -> Appended:
        log = self.cluster
        if log.leader != self.number:
            # Another broker leads, and this one has not heard of it: no replica fetches from it.
            await asyncio.sleep(log.delay_s)
            return Appended(ErrorCode.REQUEST_TIMED_OUT, 0)
        if log.mode == "refuses":
            return Appended(ErrorCode.NOT_ENOUGH_REPLICAS)
        mode, term, offset = log.mode, log.term, len(log.records)
        log.records += records
        await asyncio.sleep(log.delay_s)
        if log.term != term:
            return Appended(ErrorCode.NOT_LEADER_OR_FOLLOWER, offset)
        if mode == "times out":
            return Appended(ErrorCode.REQUEST_TIMED_OUT, offset)
        log.committed = max(log.committed, offset + len(records))
        return Appended(NONE, offset)

    async def wait_committed(self, partition: int) -> None:
        log = self.cluster
        end, term = len(log.records), log.term
        await asyncio.sleep(log.delay_s)
        if log.term != term:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another broker leads")
        if log.leader != self.number or (log.mode != "works" and log.committed < end):
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the followers do not fetch")
        log.committed = max(log.committed, end)

    async def read(self, partition: int) -> AsyncGenerator[LogBatch, None]:
        for offset, (key, value) in enumerate(list(self.cluster.records)):
            await asyncio.sleep(0)
            yield LogBatch(offset, [(offset, key, value)])

    def is_leader(self, partition: int) -> bool:
        return self.cluster.leader == self.number

    def last(self, transactional_id: str) -> TransactionMetadata | None:
        states = [value for key, value in self.cluster.records if read_transaction_key(key) == transactional_id]
        return None if not states or states[-1] is None else read_transaction_value(states[-1])


class Data:
    """A partition that the producers write to. Its leader accepts what Kafka's accepts."""

    def __init__(self) -> None:
        # (producer id, a record's transaction, or the outcome for a marker)
        self.entries: list[tuple[int, int | None, bool | None]] = []
        self.epochs: dict[int, int] = {}
        self.coordinator_epochs: dict[int, int] = {}

    def produce(self, producer: tuple[int, int], transaction: int) -> bool:
        producer_id, epoch = producer
        if epoch < self.epochs.get(producer_id, epoch):
            return False
        self.epochs[producer_id] = epoch
        self.entries.append((producer_id, transaction, None))
        return True

    def mark(self, marker: TransactionMarker) -> ErrorCode:
        if marker.producer_epoch < self.epochs.get(marker.producer_id, 0):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if marker.coordinator_epoch < self.coordinator_epochs.get(marker.producer_id, 0):
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        self.epochs[marker.producer_id] = marker.producer_epoch
        self.coordinator_epochs[marker.producer_id] = marker.coordinator_epoch
        self.entries.append((marker.producer_id, None, marker.committed))
        return NONE

    def outcomes(self) -> list[tuple[int, bool | None]]:
        """The transaction and the outcome of each record; None: it is open."""
        found = []
        for position, (producer_id, transaction, _) in enumerate(self.entries):
            if transaction is not None:
                ends = [end for who, _, end in self.entries[position:] if who == producer_id and end is not None]
                found.append((transaction, ends[0] if ends else None))
        return found


class DataLeaders(Leaders):
    """The leaders of the partitions, on broker 1 and broker 2."""

    def __init__(self, data: Mapping[PartitionKey, Data]) -> None:
        super().__init__()
        self.data = data
        self.mode = "works"

    def leader(self, partition: PartitionKey) -> int | None:
        if self.mode == "leaderless":
            return NO_LEADER
        if self.mode == "unknown":
            return None
        return 1 + PARTITIONS.index(partition) % 2

    async def deleted(self, partitions: Sequence[PartitionKey]) -> Collection[PartitionKey]:
        return []

    async def write(
        self, broker_id: int, markers: Sequence[TransactionMarker]
    ) -> Sequence[Mapping[PartitionKey, ErrorCode]]:
        mode = self.mode
        if mode == "dead":
            raise ConnectionRefusedError
        # A request that was sent arrives, whatever becomes of its sender.
        arrives = asyncio.get_running_loop().create_task(self._arrive(markers))
        results = await asyncio.shield(arrives)
        if mode == "mute":
            raise ConnectionResetError
        return results

    async def _arrive(self, markers: Sequence[TransactionMarker]) -> list[dict[PartitionKey, ErrorCode]]:
        refuses = self.mode == "refuses"
        await asyncio.sleep(self.delay_s)
        return [
            {
                one: ErrorCode.NOT_ENOUGH_REPLICAS if refuses and one[1] else self.data[one].mark(marker)
                for one in marker.partitions
            }
            for marker in markers
        ]


class Producer:
    """A client that uses a transactional id: what it knows of itself."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.asked: asyncio.Task[Any] | None = None
        self.forget()

    def forget(self) -> None:
        """It begins anew, or has failed for good."""
        self.producer: tuple[int, int] | None = None
        self.transaction: int | None = None
        self.added: dict[PartitionKey, None] = {}
        self.is_ending = False

    @property
    def is_busy(self) -> bool:
        return self.asked is not None and not self.asked.done()


class History:
    """Brokers, partitions and producers, and what the producers have been told so far."""

    def __init__(self) -> None:
        self.log = ClusterLog()
        self.data = {partition: Data() for partition in PARTITIONS}
        ids = Ids()
        self.leaders = [DataLeaders(self.data), DataLeaders(self.data)]
        self.replicas = [Replica(self.log, number) for number in range(2)]
        self.brokers = [Transactions(*each) for each in zip(self.replicas, self.leaders, strict=True)]
        for broker in self.brokers:
            broker.coordinator._producer_ids = ids  # those of the cluster
        self.epoch = 0
        self.producers = [Producer("shared"), Producer("shared"), Producer("shared"), Producer("own")]
        self.asked: list[asyncio.Task[Any]] = []
        self.transactions = 0
        # By producer id and epoch: whose it is. By transactional id: those that were given, in this order.
        self.owners: dict[tuple[int, int], Producer] = {}
        self.given: dict[str, list[tuple[int, int]]] = {}
        # By transaction: the outcome that its producer was told.
        self.told: dict[int, bool] = {}

    # -- what may happen ----------------------------------------------------------------------------------------------

    async def init(self, producer: Producer, broker: Transactions, is_named: bool = False) -> None:
        named = producer.producer if is_named else None
        producer.forget()
        result = await broker.init(producer.transactional_id, TIMEOUT_MS, named)
        if result.error_code is NONE:
            given = result.producer_id, result.producer_epoch
            assert self.owners.setdefault(given, producer) is producer
            order = self.given.setdefault(producer.transactional_id, [])
            if given not in order:
                order.append(given)
            producer.producer = given
        elif result.error_code not in FATAL:
            producer.producer = named

    async def add(self, producer: Producer, broker: Transactions, partitions: Collection[PartitionKey]) -> None:
        if producer.producer is None or producer.is_ending:
            return
        is_fenced = self._is_fenced(producer)
        error = await broker.add(producer.producer, *partitions, transactional_id=producer.transactional_id)
        if error is NONE:
            assert not is_fenced
            if producer.transaction is None:
                self.transactions += 1
                producer.transaction = self.transactions
            producer.added.update(dict.fromkeys(partitions))
        elif error in FATAL:
            producer.forget()

    async def produce(self, producer: Producer, _: Transactions, partitions: Collection[PartitionKey]) -> None:
        for partition in partitions:
            if (
                producer.producer is not None
                and producer.transaction is not None
                and partition in producer.added
                and not producer.is_ending
                and not self.data[partition].produce(producer.producer, producer.transaction)
            ):
                producer.forget()

    async def end(self, producer: Producer, broker: Transactions, committed: bool) -> None:
        if producer.producer is None or producer.transaction is None:
            return
        is_fenced = self._is_fenced(producer)
        producer.is_ending = True
        error = await broker.end(producer.producer, committed, transactional_id=producer.transactional_id)
        if error is NONE:
            assert not is_fenced
            self.told[producer.transaction] = committed
            producer.transaction, producer.added, producer.is_ending = None, {}, False
        elif error in FATAL:
            producer.forget()

    async def transaction(self, producer: Producer, broker: Transactions, committed: bool) -> None:
        """All that a transaction needs, as far as it comes."""
        if producer.producer is None:
            await self.init(producer, broker)
        for _ in range(3):
            await self.add(producer, broker, PARTITIONS)
        await self.produce(producer, broker, PARTITIONS)
        for _ in range(3):
            if producer.transaction is not None:
                await self.end(producer, broker, committed)
                await after(0.3)

    def _is_fenced(self, producer: Producer) -> bool:
        return self.given[producer.transactional_id][-1] != producer.producer

    def request(self, name: str, number: int, astray: int, argument: Any) -> None:
        """A producer that is not waiting for an answer asks the leader, or the broker that it takes for the leader."""
        producer = self.producers[number]
        if not producer.is_busy:
            broker = self.brokers[1 - self.log.leader if astray else self.log.leader]
            producer.asked = self.spawn(getattr(self, name)(producer, broker, argument))
            self.asked.append(producer.asked)

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        return asyncio.get_running_loop().create_task(work)

    def vanish(self, number: int, _: int, __: None) -> None:
        """The producer dies while it waits."""
        producer = self.producers[number]
        if producer.asked is not None:
            producer.asked.cancel()
        producer.forget()

    async def wait(self, _: int, __: int, seconds: float) -> None:
        await after(seconds)

    def fault(self, _: int, __: int, fault: tuple[str, float]) -> None:
        self.log.mode, self.log.delay_s = fault

    def data_fault(self, _: int, at: int, fault: tuple[str, float]) -> None:
        self.leaders[at].mode, self.leaders[at].delay_s = fault

    def elect(self, _: int, at: int, lost: int) -> None:
        """The other broker does not hear of it. The new leader has followed before, or it would not be in the ISR."""
        self.brokers[at].resign(self.epoch)
        self.log.elect(at, lost)
        self.epoch += 2
        self.brokers[at].coordinator.on_election(0, self.epoch)

    def hear(self, _: int, __: int, ___: None) -> None:
        """The broker that does not lead hears of it."""
        self.brokers[1 - self.log.leader].resign(self.epoch)

    # -- what must hold -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        for task in self.asked:
            if task.done() and not task.cancelled():
                task.result()
        broker = self.brokers[self.log.leader]
        for owned in broker.coordinator.states.owned():
            for transactional_id in ("shared", "own"):
                if transactional_id not in owned.writes:
                    known = owned.transactions.get(transactional_id)
                    in_log = self.replicas[self.log.leader].last(transactional_id)
                    assert (None if known is None else known._replace(last_producer=None)) == in_log
        for broker in self.brokers:
            assert broker.failures == []

    def check_log(self) -> None:
        before: dict[str, TransactionMetadata] = {}
        for key, value in self.log.records:
            transactional_id = read_transaction_key(key)
            assert value is not None
            metadata = read_transaction_value(value)
            last = before.get(transactional_id)
            if last is not None and metadata != last:
                assert str(metadata.state) in LEGAL_STATES[str(last.state)]
                assert metadata.producer >= last.producer
            before[transactional_id] = metadata

    async def end_of_faults(self) -> None:
        self.log.mode, self.log.delay_s = "works", 0
        for leaders in self.leaders:
            leaders.mode, leaders.delay_s = "works", 0
        self.hear(0, 0, None)
        await after(200)
        self.check()
        self.check_log()
        assert all(task.done() for task in self.asked)
        outcomes: dict[int, set[bool | None]] = {}
        for data in self.data.values():
            for transaction, outcome in data.outcomes():
                outcomes.setdefault(transaction, set()).add(outcome)
        for transaction, found in outcomes.items():
            assert len(found) == 1
            assert None not in found
            assert found <= {self.told.get(transaction, COMMIT), self.told.get(transaction, ABORT)}
        for transactional_id in ("shared", "own"):
            states = {str(broker.state(transactional_id)) for broker in self.brokers} - {""}
            assert states <= {"Empty", "CompleteCommit", "CompleteAbort"}
        for broker in self.brokers:
            await broker.stop()


producers = st.integers(0, 3)
brokers = st.integers(0, 1)
some = st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=3, unique=True)
astray = st.sampled_from([False, False, False, True])
requests = st.one_of(
    st.tuples(st.just("transaction"), producers, astray, st.booleans()),
    st.tuples(st.just("transaction"), producers, astray, st.just(COMMIT)),
    st.tuples(st.just("init"), producers, astray, st.booleans()),
    st.tuples(st.just("add"), producers, astray, some),
    st.tuples(st.just("produce"), producers, astray, some),
    st.tuples(st.just("end"), producers, astray, st.booleans()),
    st.tuples(st.just("end"), producers, astray, st.just(COMMIT)),
)
log_faults = st.sampled_from(["works", "works", "times out", "refuses"])
data_faults = st.sampled_from(["works", "works", "dead", "mute", "refuses", "leaderless", "unknown"])
events = st.one_of(
    st.tuples(st.just("vanish"), producers, brokers, st.none()),
    st.tuples(st.just("wait"), producers, brokers, st.sampled_from([0.1, 1.0, 3.0, 20.0])),
    st.tuples(st.just("wait"), producers, brokers, st.sampled_from([0.1, 0.5, 1.0])),
    st.tuples(st.just("fault"), producers, brokers, st.tuples(log_faults, st.sampled_from([0, 0, 0.7, 5]))),
    st.tuples(st.just("data_fault"), producers, brokers, st.tuples(data_faults, st.sampled_from([0, 0, 0.7, 5]))),
    st.tuples(st.just("elect"), producers, brokers, st.sampled_from([0, 0, 1, 3])),
    st.tuples(st.just("hear"), producers, brokers, st.none()),
)
steps = st.one_of(requests, requests, events)
REQUESTS = ("transaction", "init", "add", "produce", "end")


@settings(max_examples=80, deadline=None)
@given(history=st.lists(steps, min_size=15, max_size=50))
def test_whatever_happens(history: list[tuple[str, int, int, Any]]) -> None:
    async def scenario() -> None:
        world = History()
        world.elect(0, 0, 0)
        await settle()
        for name, number, at, argument in history:
            if name in REQUESTS:
                world.request(name, number, at, argument)
            else:
                outcome = getattr(world, name)(number, at, argument)
                if outcome is not None:
                    await outcome
            await settle()
            world.check()
        await world.end_of_faults()

    in_virtual_time(scenario())


# -- histories that chance takes long to find -------------------------------------------------------------------------


async def test_a_coordinator_that_was_replaced_does_not_confirm_the_next_transaction() -> None:
    world = History()
    world.elect(0, 0, 0)
    await settle()
    first, second = world.brokers
    one = world.producers[0]
    await world.transaction(one, first, COMMIT)
    world.elect(0, 1, 0)
    await settle()
    # The same producer, in the same epoch, at the next coordinator.
    await world.add(one, second, PARTITIONS)
    await world.produce(one, second, PARTITIONS)
    await world.end(one, first, COMMIT)
    await world.end_of_faults()
    assert world.told == {1: COMMIT}


async def test_a_coordinator_that_was_replaced_does_not_take_partitions_for_added() -> None:
    world = History()
    world.elect(0, 0, 0)
    await settle()
    first, second = world.brokers
    one = world.producers[0]
    await world.init(one, first)
    await world.add(one, first, PARTITIONS)
    world.elect(0, 1, 0)
    await settle()
    await world.produce(one, second, PARTITIONS)
    await world.end(one, second, COMMIT)
    await settle()
    await world.add(one, second, PARTITIONS[:1])
    await world.add(one, first, PARTITIONS[1:])
    await world.produce(one, first, PARTITIONS)
    await world.end(one, second, COMMIT)
    await world.end_of_faults()
    assert world.told == {1: COMMIT, 2: COMMIT}


async def test_a_commit_at_the_end_of_a_log_that_is_lost_has_no_markers() -> None:
    world = History()
    world.elect(0, 0, 0)
    await settle()
    first = world.brokers[0]
    one = world.producers[0]
    await world.init(one, first)
    await world.add(one, first, PARTITIONS)
    await world.produce(one, first, PARTITIONS)
    world.log.mode = "times out"
    await world.end(one, first, COMMIT)
    # One follower has the record, and is elected; one partition is slow. The next leader has not got the record.
    for leaders in world.leaders:
        leaders.mode = "refuses"
    world.elect(0, 1, 0)
    await after(2)
    world.log.mode = "works"
    world.elect(0, 0, 1)
    await after(60)
    await world.end_of_faults()
    assert {outcome for data in world.data.values() for _, outcome in data.outcomes()} == {ABORT}
