"""The transactional clients of a simulated cluster: klamm's own producers, on machines of their own, which may die.

Writers write transactions into the input partitions. Copiers read them with read_committed and write them to the output
partitions; copies and the group's offsets are in one transaction. Chance decides how a transaction ends: by a commit,
by an abort, by another process for which it was prepared, by the death of its client, by its timeout, or by the next
instance of the transactional id, which begins while the previous instance is at work.

What must stay true: the ledger gets each transaction's outcome as far as its client knows it. An error is excused only
if a fault of the cluster or another instance explains it.
"""

import asyncio
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from klamm.client.cluster import ClusterClient
from klamm.client.consumer.consumer import ConsumerRecord
from klamm.client.consumer.group_consumer import GroupConsumer
from klamm.client.options import ClientOptions, ConsumerOptions, GroupOptions, OffsetReset, ProducerOptions
from klamm.client.producer.batches import Identity
from klamm.client.producer.prepared_transactions import TransactionGone, end_prepared
from klamm.client.producer.producer import ProducerRecord
from klamm.client.producer.transaction_requests import PreparedTransaction
from klamm.client.producer.transactional_producer import TransactionalProducer
from klamm.client.producer.transactions import ProducerEnded, TransactionAborted
from klamm.client.retries import RETRIABLE_ERRORS
from klamm.net.client import ClientError, ConnectionOptions
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.vocabulary import (
    READ_COMMITTED,
    PartitionKey,
    TopicPartition,
)
from klamm.simulation.cluster.cluster import CLIENT_OPTIONS
from klamm.simulation.judges.transaction_ledger import (
    Copied,
    Outcome,
    Transaction,
    TransactionLedger,
)
from klamm.simulation.judges.troubles import Troubles
from klamm.simulation.machine.process import ProcessDead
from klamm.simulation.machine.world import World

GROUP = "copiers"
TRANSACTION_TIMEOUT_S = 10.0
ABORT_INTERVAL_S = 2.0
OPTIONS = ProducerOptions(
    ClientOptions((), request_timeout_ms=5_000),
    CompressionType.NONE,
    delivery_timeout_ms=15_000,
    transaction_timeout_ms=int(TRANSACTION_TIMEOUT_S * 1000),
)
COMMITS, ABORTS = 0.65, 0.2
# How long an instance works until it is killed, or until the next one begins.
LIVES_S = (0.3, 2.0, 8.0)
# How long a transaction stays open before its client ends it. The longest ones time out.
DELAYS_S = (0.0,) * 12 + (0.1, 0.1, 1.0, 1.0, TRANSACTION_TIMEOUT_S + 2 * ABORT_INTERVAL_S)
MOST_RECORDS = 4
# A copier's session is much shorter than its transactions may be open, so that another copier takes its place while its
# transaction is open.
GROUP_OPTIONS = GroupOptions(
    GROUP, session_timeout_ms=3_000, heartbeat_interval_ms=500, max_poll_interval_ms=6_000, assignors=("roundrobin",)
)
# A copier that has not polled for this time may lose its partitions.
LATE_S = GROUP_OPTIONS.max_poll_interval_ms / 1000 - 1
LIVES_OF_COPIERS_S = (3.0, 20.0, 60.0)
POLL_MS = 500
MOST_COPIES = 8
SHARE_OF_SEVERAL_POLLS = 0.1
SHARE_OF_IMPATIENCE, IMPATIENCE_S = 0.15, 0.02
# How long a copier works on the records of a transaction. The longest times exceed its session, and the time that it
# may take without a poll.
WORK_S = (0.0,) * 10 + (0.1, 1.0, 4.0, 8.5, 8.5)
STEPS_OF_WORK = 5
# Errors that a producer may get because of faults of the cluster, the death of a client or a new instance.
EXCUSED = RETRIABLE_ERRORS | {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
    # As in Kafka, a coordinator that has not noticed its replacement refuses producers that it does not know. It would
    # notice when it writes a record, but a refusal writes none.
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    # The group has rebalanced without a copier that stood still, or another instance has taken over its id.
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.FENCED_INSTANCE_ID,
    # A broker without metadata of the existing topics tries to create a topic, with more replicas than the number of
    # brokers that it knows.
    ErrorCode.INVALID_REPLICATION_FACTOR,
}


class _InstanceEnds(Exception):
    """This instance of a producer ends."""


class Ender:
    """A process that ends the transactions that others have prepared."""

    def __init__(self, world: World, new_client: Callable[[], ClusterClient], ledger: TransactionLedger) -> None:
        self.node = world.node("ender")
        self._world = world
        self._random = world.random
        self._new_client = new_client
        self._ledger = ledger
        self._given: deque[tuple[PreparedTransaction, Transaction, bool]] = deque()
        self._is_wanted = asyncio.Event()

    def give(self, prepared: PreparedTransaction, transaction: Transaction, *, commit: bool) -> None:
        self._given.append((prepared, transaction, commit))
        self._is_wanted.set()

    def start(self) -> None:
        judged(self._world, "the ender", self.node.run(self._run()))

    async def _run(self) -> None:
        """Ends the given transactions, some of them twice, until its process is killed."""
        client = self._new_client()
        while True:
            self._is_wanted.clear()
            while self._given:
                prepared, transaction, commit = self._given.popleft()
                for _ in range(self._random.randint(1, 2)):
                    await self._end(client, prepared, transaction, commit=commit)
            await self._is_wanted.wait()

    async def _end(
        self, client: ClusterClient, prepared: PreparedTransaction, transaction: Transaction, *, commit: bool
    ) -> None:
        await asyncio.sleep(self._random.choice((0.0, 0.1, 1.0)))
        if commit and transaction.outcome is Outcome.OPEN:
            transaction.outcome = Outcome.ENDING
        try:
            await end_prepared(client, prepared, commit=commit)
        except TransactionGone:
            return
        except (KafkaError, ClientError) as error:
            _excuse(error)
            return
        if commit:
            self._ledger.committed(transaction)
        else:
            transaction.outcome = Outcome.ABORTED


class TransactionalClient(ABC):
    """A transactional id and its instances. The instances begin one after the other, in turn on two machines. Each
    instance works until it is fenced or killed."""

    def __init__(
        self,
        world: World,
        new_client: Callable[[], ClusterClient],
        ledger: TransactionLedger,
        transactional_id: str,
        outputs: Sequence[PartitionKey],
        ender: Ender,
        pause_s: float,
    ) -> None:
        self.transactional_id = transactional_id
        self.instance = 0
        self._world = world
        self._random = world.random
        self._new_client = new_client
        self._ledger = ledger
        self._outputs = outputs
        self._ender = ender
        self._pause_s = pause_s
        self._nodes = [world.node(f"{transactional_id}-{letter}") for letter in "ab"]
        self._is_stopping = False
        self._lives_s = LIVES_S

    def start(self) -> None:
        self._is_stopping = False
        self._supervision = asyncio.get_running_loop().create_task(self._supervise())

    async def stop(self) -> None:
        """Kills all instances, whatever they are doing."""
        self._is_stopping = True
        await self._supervision
        for node in self._nodes:
            if node.process.alive:
                node.crash()

    async def _supervise(self) -> None:
        while not self._is_stopping:
            running = self.begin_instance()
            await asyncio.wait([running], timeout=self._random.choice(self._lives_s) * self._random.random())
            if not running.done() and self._random.random() < 0.5:
                self._nodes[self.instance % 2].crash()
            # If it is not killed here, the next instance fences it.

    def begin_instance(self) -> "asyncio.Future[None]":
        """Begins the next instance. Kills the last instance but one if it still works."""
        self.instance += 1
        node = self._nodes[self.instance % 2]
        if self.instance > len(self._nodes) and node.process.alive:
            node.crash()
        if not node.process.alive:
            node.restart()
        return judged(self._world, self.transactional_id, node.run(self._live(self.instance)))

    async def _live(self, instance: int) -> None:
        client = self._new_client()
        environment = self._nodes[instance % 2].environment
        producer = TransactionalProducer(client, replace(OPTIONS, transactional_id=self.transactional_id), environment)
        try:
            identity = await producer.init()
            self._ledger.initialized(self.transactional_id, identity)
            await self._work(client, producer, identity)
        except _InstanceEnds:
            pass
        except (KafkaError, ClientError) as error:
            _excuse(error)
        finally:
            await producer.close()
            await client.close()

    @abstractmethod
    async def _work(self, client: ClusterClient, producer: TransactionalProducer, identity: Identity) -> None:
        """Writes one transaction after the other."""

    async def _write(
        self,
        producer: TransactionalProducer,
        transaction: Transaction,
        values: Sequence[bytes | None],
        send_offsets: Callable[[], Awaitable[None]] | None = None,
    ) -> bool:
        """Writes one transaction with these records: copies of the values, or new records. Returns whether it is
        committed."""
        producer.begin()
        try:
            if await self._fill(producer, transaction, values, send_offsets):
                await asyncio.sleep(self._random.choice(DELAYS_S))
                return await self._end(producer, transaction)
            # This program asks to commit the transaction although some of its records are missing.
            transaction.outcome = Outcome.ENDING
            await producer.commit()
            self._ledger.committed(transaction)
            return True
        except ProducerEnded:
            raise
        except TransactionAborted as error:
            _excuse(error)
            await producer.abort()
            transaction.outcome = Outcome.ABORTED
            return False

    async def _fill(
        self,
        producer: TransactionalProducer,
        transaction: Transaction,
        values: Sequence[bytes | None],
        send_offsets: Callable[[], Awaitable[None]] | None,
    ) -> bool:
        """Adds all records and offsets to a transaction, at times with too little patience. Returns whether all were
        added."""
        try:
            for value in values:
                topic, number = key = self._random.choice(self._outputs)
                record = ProducerRecord(topic, transaction.add(key, value), partition=number)
                async with self._impatience():
                    await producer.send(record)
            if send_offsets is not None:
                await self._process()
                async with self._impatience():
                    await send_offsets()
        except ProducerEnded:
            raise
        except (KafkaError, ClientError, TimeoutError) as error:
            _excuse(error)
            return False
        return True

    def _impatience(self) -> asyncio.Timeout:
        is_impatient = self._random.random() < SHARE_OF_IMPATIENCE
        return asyncio.timeout(self._random.uniform(0, IMPATIENCE_S) if is_impatient else None)

    async def _process(self) -> None:
        """Works on the records without a poll. A standstill of the process makes this take longer."""
        work_s = self._random.choice(WORK_S)
        for _ in range(STEPS_OF_WORK):
            await asyncio.sleep(work_s / STEPS_OF_WORK)

    async def _end(self, producer: TransactionalProducer, transaction: Transaction) -> bool:
        drawn = self._random.random()
        if drawn < COMMITS:
            transaction.outcome = Outcome.ENDING
            await producer.commit()
            self._ledger.committed(transaction)
            return True
        if drawn < COMMITS + ABORTS:
            await producer.abort()
            transaction.outcome = Outcome.ABORTED
            return False
        prepared = await producer.prepare()
        assert prepared is not None
        self._ender.give(prepared, transaction, commit=self._random.random() < 0.7)
        await asyncio.sleep(self._random.choice((0.0, 0.5, 3.0)))
        raise _InstanceEnds


class Writer(TransactionalClient):
    """Writes new records."""

    async def _work(self, client: ClusterClient, producer: TransactionalProducer, identity: Identity) -> None:
        while not self._is_stopping:
            transaction = self._ledger.begin(self.transactional_id, identity)
            await self._write(producer, transaction, [None] * self._random.randint(1, MOST_RECORDS))
            await asyncio.sleep(self._random.uniform(0, self._pause_s))


class Copier(TransactionalClient):
    """Copies the visible records of the partitions that its group assigns to it, in the way that klamm's documentation
    recommends. Its process stands still at times, and answers are lost. With `ends` set it stops when the group has
    copied all records up to these offsets.

    At times it reads in several polls for one transaction, has no patience, or tries to commit a failed transaction.
    """

    def __init__(
        self,
        world: World,
        new_client: Callable[[ConnectionOptions], ClusterClient],
        ledger: TransactionLedger,
        transactional_id: str,
        outputs: Sequence[PartitionKey],
        ender: Ender,
        pause_s: float,
        inputs: Sequence[PartitionKey],
        *,
        is_static: bool,
    ) -> None:
        super().__init__(world, self._troubled_client, ledger, transactional_id, outputs, ender, pause_s)
        self.ends: dict[PartitionKey, int] | None = None
        self.troubles = [Troubles(world, node, CLIENT_OPTIONS) for node in self._nodes]
        self._make_client = new_client
        self._inputs = inputs
        self._group = replace(GROUP_OPTIONS, group_instance_id=transactional_id if is_static else None)
        self._lives_s = LIVES_OF_COPIERS_S

    def _troubled_client(self) -> ClusterClient:
        return self._make_client(self.troubles[self.instance % 2].options)

    async def stop(self) -> None:
        await super().stop()
        for troubles in self.troubles:
            troubles.is_over = True

    async def _work(self, client: ClusterClient, producer: TransactionalProducer, identity: Identity) -> None:
        troubles = self.troubles[self.instance % 2]
        owned_s, late_s, polled_s = math.inf, -math.inf, _now_s()
        member_id, owned = "", list[TopicPartition]()

        async def on_assigned(partitions: list[TopicPartition]) -> None:
            nonlocal owned_s, member_id, owned
            if member_id and consumer.member_id != member_id:
                # The group had removed the member. The member learns this only when it joins again.
                await on_lost(owned)
            owned_s = polled_s  # It may have joined since the last poll.
            member_id, owned = consumer.member_id, partitions
            # The next process of a static member owns its partitions in the same generation.
            name = self._group.group_instance_id or consumer.member_id
            self._ledger.assigned(consumer.generation_id, name, partitions)

        async def on_lost(partitions: list[TopicPartition]) -> None:
            nonlocal member_id
            member_id = ""
            was_late = _now_s() - polled_s > LATE_S or max(late_s, troubles.stood_still_s) >= owned_s
            # Another process of the same static member may have fenced this one.
            is_fenced = self._group.group_instance_id is not None and self.instance > 1
            self._ledger.lost(consumer.member_id, partitions, was_late=was_late or is_fenced)

        consumer = GroupConsumer(
            client,
            self._group,
            list(dict.fromkeys(topic for topic, _ in self._inputs)),
            ConsumerOptions(READ_COMMITTED, OffsetReset.EARLIEST, max_poll_records=MOST_COPIES),
            on_assigned=on_assigned,
            on_lost=on_lost,
        )
        try:
            while not self._has_copied_all(consumer):
                if _now_s() - polled_s > LATE_S:
                    late_s = _now_s()
                records = await consumer.poll(POLL_MS)
                if records and self._random.random() < SHARE_OF_SEVERAL_POLLS:
                    records += await consumer.poll(POLL_MS)
                polled_s = _now_s()
                if records and not await self._copy(producer, identity, consumer, records):
                    consumer.seek_to_committed()
                await asyncio.sleep(self._random.uniform(0, self._pause_s))
        finally:
            await consumer.close()

    def _has_copied_all(self, consumer: GroupConsumer) -> bool:
        """Call it when all records that were read are committed."""
        positions = consumer.positions()
        return self.ends is not None and all(
            positions.get(TopicPartition(*key), -1) >= end for key, end in self.ends.items()
        )

    async def _copy(
        self,
        producer: TransactionalProducer,
        identity: Identity,
        consumer: GroupConsumer,
        records: Sequence[ConsumerRecord],
    ) -> bool:
        """Copies the records in one transaction. Returns whether it is committed."""
        firsts: dict[TopicPartition, int] = {}
        for record in records:
            firsts.setdefault(TopicPartition(record.topic, record.partition), record.offset)
        copied = [
            Copied(partition, firsts.get(partition, position), position)
            for partition, position in consumer.positions().items()
        ]
        transaction = self._ledger.begin(self.transactional_id, identity, copied)

        return await self._write(
            producer,
            transaction,
            [record.value for record in records],
            lambda: producer.send_offsets(consumer.positions(), consumer.membership),
        )


def judged(world: World, name: str, running: "asyncio.Future[None]") -> "asyncio.Future[None]":
    """Returns `running`. Its error ends the run at once, unless its process is killed."""

    def ended(running: "asyncio.Future[None]") -> None:
        error = running.exception()
        if error is not None and not isinstance(error, ProcessDead):
            world.loop.fail(f"{name} ended: {error!r}", error)

    running.add_done_callback(ended)
    return running


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _excuse(error: Exception) -> None:
    """AssertionError for an error that no fault of the cluster and no other instance excuses."""
    assert not isinstance(error, KafkaError) or error.code in EXCUSED, repr(error)
