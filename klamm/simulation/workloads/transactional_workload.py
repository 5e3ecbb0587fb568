"""Transactional clients of a simulated cluster: klamm's own producers, on machines of their own, which may die.

Writers write transactions into the input partitions. Copiers read them with read_committed and write them to the output
partitions, each in one transaction with the group's offset. Chance decides how a transaction ends: by a commit, by an
abort, by another process to which it was prepared, by the death of its client, by its timeout, or by the next instance
of the transactional id, which begins while the last one is at work. `TransactionLedger` says what must stay true.
"""

import asyncio
import math
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import cycle

from klamm.client.batches import Identity
from klamm.client.cluster import ClusterClient
from klamm.client.consumer import ConsumerRecord
from klamm.client.fan_out import coordinators, error_of, fan_out
from klamm.client.fetching import FetchFrom, fetch_request, readable_batches
from klamm.client.group_consumer import GroupConsumer
from klamm.client.offsets import offset_fetch_request
from klamm.client.options import ClientOptions, ConsumerOptions, GroupOptions, OffsetReset, ProducerOptions
from klamm.client.prepared_transactions import TransactionGone, end_prepared
from klamm.client.producer import ProducerRecord
from klamm.client.retries import RETRIABLE_ERRORS, RetryPolicy
from klamm.client.transaction_requests import PreparedTransaction
from klamm.client.transactional_producer import TransactionalProducer
from klamm.client.transactions import ProducerEnded, TransactionAborted
from klamm.net.client import ClientError, Connection, ConnectionOptions
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.records import decode_records
from klamm.protocol.vocabulary import (
    INVALID_PREFERRED_REPLICA_ID,
    NO_EPOCH,
    READ_COMMITTED,
    PartitionKey,
    TopicPartition,
)
from klamm.simulation.cluster.cluster import CLIENT_OPTIONS, SimulatedCluster
from klamm.simulation.judges.agreement import undecided
from klamm.simulation.judges.transaction_ledger import (
    Copied,
    LogHistory,
    Outcome,
    Read,
    Transaction,
    TransactionLedger,
    TransactionsHang,
    check_reads,
)
from klamm.simulation.judges.troubles import Troubles
from klamm.simulation.machine.process import ProcessDead
from klamm.simulation.machine.world import World
from klamm.simulation.workloads.verdict import replica_bytes
from klamm.simulation.workloads.workload import FETCH_MAX_BYTES, FETCHES_OF_A_FOLLOWER, PartitionClient, is_intact

GROUP = "copiers"
TRANSACTION_TIMEOUT_S = 10.0
ABORT_INTERVAL_S = 2.0
# For the markers, and for coordinators that load.
SETTLING_S = 15.0
# The brokers' configuration.
PROPERTIES = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": str(int(ABORT_INTERVAL_S * 1000)),
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.segment.bytes": "4096",
    "group.min.session.timeout.ms": "1000",
}
RETRY = RetryPolicy(deadline_ms=20_000)
OPTIONS = ProducerOptions(
    ClientOptions((), request_timeout_ms=5_000),
    CompressionType.NONE,
    delivery_timeout_ms=15_000,
    transaction_timeout_ms=int(TRANSACTION_TIMEOUT_S * 1000),
)
COMMITS, ABORTS = 0.65, 0.2
# How long an instance works until it is killed, or until the next one begins.
LIVES_S = (0.3, 2.0, 8.0)
# How long a transaction stays open before its end; the longest ones time out.
DELAYS_S = (0.0,) * 12 + (0.1, 0.1, 1.0, 1.0, TRANSACTION_TIMEOUT_S + 2 * ABORT_INTERVAL_S)
MOST_RECORDS = 4
# A copier's session is much shorter than its transactions may be open, so that another one takes its place meanwhile.
GROUP_OPTIONS = GroupOptions(
    GROUP, session_timeout_ms=3_000, heartbeat_interval_ms=500, max_poll_interval_ms=6_000, assignors=("roundrobin",)
)
# A copier that is away from its group for so long may lose its partitions.
LATE_S = GROUP_OPTIONS.max_poll_interval_ms / 1000 - 1
LIVES_OF_COPIERS_S = (3.0, 20.0, 60.0)
POLL_MS = 500
MOST_COPIES = 8
SHARE_OF_SEVERAL_POLLS = 0.1
SHARE_OF_IMPATIENCE, IMPATIENCE_S = 0.15, 0.02
# How long a copier works on the records of a transaction: for longer than its session, and than it may without a poll.
WORK_S = (0.0,) * 10 + (0.1, 1.0, 4.0, 8.5, 8.5)
STEPS_OF_WORK = 5
LOOK_INTERVAL_S = 0.5
SHARE_OF_STABLE_LOOKS = 0.2

# What faults of a cluster, a death of a client or a new instance may answer to a producer.
EXCUSED = RETRIABLE_ERRORS | {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
    # A coordinator that has been replaced without noticing refuses producers that it does not know, as in Kafka: a
    # refusal writes no record, which would tell it.
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    # The group has rebalanced without a copier that stood still, or another instance has taken over its id.
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.FENCED_INSTANCE_ID,
    # A broker that no controller has told of the topics yet tries to create one, with more replicas than it knows
    # brokers.
    ErrorCode.INVALID_REPLICATION_FACTOR,
}


class _InstanceEnds(Exception):
    """This instance of a producer does nothing more."""


class CommittedReader:
    """Reads one partition with read_committed. `position` is the next offset that it asks for. With a `rack` it reads
    from the follower that the leader names, as `workload.Consumer` does."""

    def __init__(
        self, new_client: Callable[[], ClusterClient], ledger: TransactionLedger, key: PartitionKey, rack: str = ""
    ) -> None:
        self.key = key
        self.rack = rack
        self.position = 0
        self.reads: list[Read] = []
        self.stop_at: int | None = None
        self._ledger = ledger
        self._client = PartitionClient(new_client, key)
        self._follower: int | None = None
        self._left_of_follower = 0

    async def run(self) -> None:
        """Reads up to `stop_at`."""
        while self.stop_at is None or self.position < self.stop_at:
            self.reads += await self.read()

    async def read(self) -> list[Read]:
        """The visible records of one fetch; may be none."""
        leader_epoch = self._client.leader_epoch if self.rack else NO_EPOCH
        wanted = {TopicPartition(*self.key): FetchFrom(self.position, leader_epoch, FETCH_MAX_BYTES)}
        request = fetch_request(
            wanted,
            max_bytes=FETCH_MAX_BYTES,
            max_wait_ms=500,
            isolation_level=READ_COMMITTED,
            rack_id=self.rack,
        )
        self._left_of_follower -= 1
        if self._left_of_follower <= 0:
            self._follower = None
        # A new reader may ask a former leader, which does not have the offset.
        expected = (ErrorCode.OFFSET_OUT_OF_RANGE,)
        (answer,) = await self._client.attempts(ApiKey.FETCH, [request], expected, self._follower)
        if answer is None or answer[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._follower = None
            await self._client.again()
            return []
        if answer[0].preferred_read_replica != INVALID_PREFERRED_REPLICA_ID:
            self._follower, self._left_of_follower = answer[0].preferred_read_replica, FETCHES_OF_A_FOLLOWER
            return []
        result, _ = answer
        self._ledger.stable_seen(self.key, result.high_watermark, result.last_stable_offset)
        if not is_intact(result.records):
            self._follower = None
            await self._client.again()
            return []
        records, reads = result.records or b"", []
        for position, header, is_readable in readable_batches(records, result.aborted_transactions):
            assert header.last_offset < result.last_stable_offset, (
                f"{self.key}: {header} was fetched, the last stable offset is {result.last_stable_offset}"
            )
            if is_readable:
                reads += [
                    Read(record.offset, record.value or b"", header.partition_leader_epoch)
                    for record in decode_records(records, position, header)
                    if record.offset >= self.position
                ]
            self.position = header.next_offset
        return reads


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
        _judged(self._world, "the ender", self.node.run(self._run()))

    async def _run(self) -> None:
        """Ends what it is given, some of it twice, until its process is killed."""
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
    """A transactional id and its instances, one after the other, in turn on two machines. Each instance works until it
    is fenced, until it is killed, or for ever."""

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
            # Otherwise the next instance fences this one.

    def begin_instance(self) -> "asyncio.Future[None]":
        """Begins the next instance; the last one but one is killed if it still works."""
        self.instance += 1
        node = self._nodes[self.instance % 2]
        if self.instance > len(self._nodes) and node.process.alive:
            node.crash()
        if not node.process.alive:
            node.restart()
        return _judged(self._world, self.transactional_id, node.run(self._live(self.instance)))

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
        """One transaction after the other."""

    async def _write(
        self,
        producer: TransactionalProducer,
        transaction: Transaction,
        values: Sequence[bytes | None],
        send_offsets: Callable[[], Awaitable[None]] | None = None,
    ) -> bool:
        """One transaction with these records: copies of the values, or new ones. Returns whether it is committed."""
        producer.begin()
        try:
            if await self._fill(producer, transaction, values, send_offsets):
                await asyncio.sleep(self._random.choice(DELAYS_S))
                return await self._end(producer, transaction)
            # It is not whole, and still this program asks to commit it.
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
        """Adds everything to a transaction; at times with too little patience. Returns whether it is whole."""
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
        """The program works, and does not poll. A standstill makes it take longer."""
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
    """Copies the visible records of the partitions that its group gives it, as klamm's users are told to. Its process
    stands still at times, and it loses answers. With `ends` set it stops when the group has copied up to there.

    At times it reads in several polls for one transaction, has no patience, and tries to commit what has failed.
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
                # The group had removed the member, which has learned it only when it joined again.
                await on_lost(owned)
            owned_s = polled_s  # It may have joined since.
            member_id, owned = consumer.member_id, partitions
            # The next process of a static member owns its partitions in the same generation.
            name = self._group.group_instance_id or consumer.member_id
            self._ledger.assigned(consumer.generation_id, name, partitions)

        async def on_lost(partitions: list[TopicPartition]) -> None:
            nonlocal member_id
            member_id = ""
            was_late = _now_s() - polled_s > LATE_S or max(late_s, troubles.stood_still_s) >= owned_s
            # By an earlier or later process that is the same static member.
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
        """Called when nothing that was read is uncommitted."""
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
        """One transaction. Returns whether it is committed."""
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


class TransactionalWorkload:
    """Writers of the `inputs`, a group of copiers from them into the `outputs`, and a reader for each partition."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        inputs: Sequence[PartitionKey],
        outputs: Sequence[PartitionKey],
        *,
        writers: int = 2,
        copiers: int = 2,
        pause_s: float = 0.1,
        has_faults: bool = True,
    ) -> None:
        world = cluster.world
        new_client = partial(cluster.client, RETRY)
        self.ledger = TransactionLedger(has_faults=has_faults)
        self.ender = Ender(world, new_client, self.ledger)
        self._random = random.Random(f"{world.seed}/looks")
        self._world = world
        self._cluster = cluster
        self._node = world.node("transactions")
        self._inputs, self._outputs = inputs, outputs
        self._writers = [
            Writer(world, new_client, self.ledger, f"writer-{number}", inputs, self.ender, pause_s)
            for number in range(writers)
        ]
        self._copiers = [
            Copier(
                *(world, partial(cluster.client, RETRY), self.ledger, f"copier-{number}", outputs, self.ender, pause_s),
                inputs,
                is_static=number % 2 == 1,
            )
            for number in range(copiers)
        ]
        self._clients: list[TransactionalClient] = [*self._writers, *self._copiers]
        self._readers = [
            CommittedReader(cluster.client, self.ledger, key, rack)
            for key, rack in zip((*inputs, *outputs), cycle(cluster.racks), strict=False)
        ]
        self._watching: list[asyncio.Future[None]] = []

    def start(self) -> None:
        self._watching = [
            _judged(self._world, f"the reader of {reader.key}", self._node.run(reader.run()))
            for reader in self._readers
        ]
        _judged(self._world, "the look at the offsets", self._node.run(self._look_at_offsets()))
        self.ender.start()
        for client in self._clients:
            client.start()

    async def stop(self) -> None:
        """Kills all producers, in whatever transactions they are."""
        for client in self._clients:
            await client.stop()
        self.ender.node.crash()

    async def check(self) -> str:
        """Lets the copiers copy the rest, waits until all transactions are decided, and checks what must stay true. The
        cluster is whole, and the clients have stopped. Returns the counts as text."""
        await self.until_decided()
        self.ender.node.restart()
        self.ender.start()
        visible = {key: self._history(key).visible for key in self._inputs}
        await self._finish({key: reads[-1].offset + 1 if reads else 0 for key, reads in visible.items()})
        self.ender.node.crash()
        await self.until_decided()
        histories = {reader.key: self._history(reader.key) for reader in self._readers}
        for reader in self._readers:
            reader.stop_at = histories[reader.key].end
        await asyncio.gather(*self._watching)
        self.ledger.check_atomicity(histories)
        for reader in self._readers:
            check_reads(reader.key, reader.reads, histories[reader.key])
            self.ledger.check_stable_offsets(reader.key, histories[reader.key])
        copies = [read for key in self._outputs for read in histories[key].visible]
        for key in self._inputs:
            offset = await self._node.run(self._committed_offset(key))
            self.ledger.check_copies(key, offset, histories[key].visible, copies)
            copied = sum(1 for read in histories[key].visible if read.offset < offset)
            assert copied == len(histories[key].visible), f"{key}: only {copied} records are copied"
        self._node.crash()
        outcomes = [each.outcome for each in self.ledger.transactions]
        return f"{outcomes.count(Outcome.COMMITTED)} of {len(outcomes)} transactions committed"

    async def _finish(self, ends: dict[PartitionKey, int]) -> None:
        """Begins instance after instance of one copier until the group has copied up to there."""
        copier = self._copiers[0]
        copier.ends = ends
        while True:
            with suppress(ProcessDead):
                await copier.begin_instance()
            await self.until_decided()
            offsets = [(await self._node.run(self._committed_offset(key)), end) for key, end in ends.items()]
            if all(offset >= end for offset, end in offsets):
                return

    def _coordinator_id(self) -> int:
        """The coordinator of the group; -1 while there is none."""
        try:
            return self._cluster.coordinator(GROUP)
        except KeyError:
            return -1

    async def _committed_offset(self, partition: PartitionKey) -> int:
        client = self._cluster.client()
        try:
            return await committed_offset(client, partition, require_stable=True)
        finally:
            await client.close()

    async def _look_at_offsets(self) -> None:
        """Looks at the group's offsets, mostly as a client does that does not wait for pending commits.

        The broker that ZooKeeper names as the group's coordinator has every acknowledged one. As in Kafka, a former
        coordinator that does not know its successor yet answers with older offsets.
        """
        client = self._cluster.client(RETRY)
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            for source in self._inputs:
                least, coordinator_id = self.ledger.acknowledged_offset(source), self._coordinator_id()
                is_stable = self._random.random() < SHARE_OF_STABLE_LOOKS
                with suppress(KafkaError, ClientError):
                    offset = await committed_offset(client, source, require_stable=is_stable)
                    is_newest = client.coordinators.get(GROUP) == coordinator_id == self._coordinator_id()
                    self.ledger.offset_seen(source, offset, least if is_stable and is_newest else -1)
                if is_stable:
                    client.coordinators.pop(GROUP, None)

    async def until_decided(self) -> None:
        """Waits until no transaction is open: all last stable offsets are at the high watermarks. The producers have
        stopped. TransactionsHang, with what is open, after the transactions' timeout and the time that their ends take.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + TRANSACTION_TIMEOUT_S + ABORT_INTERVAL_S + SETTLING_S
        while found := undecided(self._cluster):
            if loop.time() > deadline:
                raise TransactionsHang("transactions hang:\n  " + "\n  ".join(found))
            await asyncio.sleep(LOOK_INTERVAL_S)

    def _history(self, key: PartitionKey) -> LogHistory:
        return LogHistory(replica_bytes(self._cluster.brokers[self._cluster.leader(*key)], key))


async def committed_offset(client: ClusterClient, partition: PartitionKey, *, require_stable: bool) -> int:
    """The offset that the group has committed; -1 if none. Raises KafkaError and ClientError."""

    async def ask(connection: Connection, groups: Sequence[str]) -> dict[str, int | KafkaError]:
        wanted = [TopicPartition(*partition)]
        request = offset_fetch_request(GROUP, wanted, require_stable=require_stable)
        response = await connection.send(ApiKey.OFFSET_FETCH, lambda version: request)
        error = error_of(response.error_code)
        if error is not None:
            return {GROUP: error}
        found = response.topics[0].partitions[0]
        return {GROUP: error_of(found.error_code) or found.committed_offset}

    result = (await fan_out(client, [GROUP], coordinators(client), ask))[GROUP]
    if isinstance(result, KafkaError):
        raise result
    return result


def _judged(world: World, name: str, running: "asyncio.Future[None]") -> "asyncio.Future[None]":
    """Its error ends the run at once, unless its process is killed."""

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
