"""Transactional clients of a simulated cluster: klamm's own producers, on machines of their own, which may die.

Writers write transactions into the input partitions. Copiers read them with read_committed and write them to the output
partitions, each in one transaction with the group's offset. Chance decides how a transaction ends: by a commit, by an
abort, by another process to which it was prepared, by the death of its client, by its timeout, or by the next instance
of the transactional id, which begins while the last one is at work. `TransactionLedger` says what must stay true.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import cycle

from klamm.client.cluster import RETRIABLE_ERRORS, ClusterClient, RetryPolicy
from klamm.client.fan_out import coordinators, error_of, fan_out
from klamm.client.fetching import FetchFrom, fetch_request, readable_batches
from klamm.client.offsets import offset_fetch_request
from klamm.client.options import ClientOptions, ProducerOptions
from klamm.client.producer import ProducerRecord
from klamm.client.sender import Identity
from klamm.client.transactional_producer import TransactionalProducer
from klamm.client.transactions import (
    PreparedTransaction,
    ProducerEnded,
    TransactionAborted,
    TransactionGone,
    end_prepared,
)
from klamm.net.client import ClientError, Connection
from klamm.protocol.compression import CompressionType
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.records import decode_records
from klamm.protocol.vocabulary import (
    INVALID_PREFERRED_REPLICA_ID,
    NO_EPOCH,
    READ_COMMITTED,
    PartitionKey,
    TopicPartition,
)
from klamm.simulation.agreement import undecided
from klamm.simulation.cluster import SimulatedCluster
from klamm.simulation.process import ProcessDead
from klamm.simulation.transaction_ledger import (
    Copied,
    LogHistory,
    Outcome,
    Read,
    Transaction,
    TransactionLedger,
    TransactionsHang,
    check_reads,
)
from klamm.simulation.verdict import replica_bytes
from klamm.simulation.workload import BACK_OFF_S, FETCH_MAX_BYTES, FETCHES_OF_A_FOLLOWER, PartitionClient, is_intact
from klamm.simulation.world import World

GROUP = "copiers"
TRANSACTION_TIMEOUT_S = 10.0
ABORT_INTERVAL_S = 2.0
# For the markers, and for coordinators that load.
SETTLING_S = 15.0
# Of the brokers.
PROPERTIES = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": str(int(ABORT_INTERVAL_S * 1000)),
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.segment.bytes": "4096",
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
LOOK_INTERVAL_S = 0.5

# What faults of a cluster, a death of a client or a new instance may answer to a producer.
EXCUSED = RETRIABLE_ERRORS | {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
    # A coordinator that has been replaced without noticing refuses producers that it does not know, as in Kafka: a
    # refusal writes no record, which would tell it.
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
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
        self._random = world.random
        self._new_client = new_client
        self._ledger = ledger
        self._given: deque[tuple[PreparedTransaction, Transaction, bool]] = deque()
        self._is_wanted = asyncio.Event()

    def give(self, prepared: PreparedTransaction, transaction: Transaction, *, commit: bool) -> None:
        self._given.append((prepared, transaction, commit))
        self._is_wanted.set()

    async def run(self) -> None:
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
            await asyncio.wait([running], timeout=self._random.choice(LIVES_S) * self._random.random())
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
        running = node.run(self._live(self.instance))
        running.add_done_callback(self._ended)
        return running

    def _ended(self, running: "asyncio.Future[None]") -> None:
        error = running.exception()
        if error is not None and not isinstance(error, ProcessDead):
            self._world.loop.fail(f"{self.transactional_id} ended: {error!r}", error)

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
        self, producer: TransactionalProducer, transaction: Transaction, values: Sequence[bytes | None]
    ) -> bool:
        """One transaction with these records: copies of the values, or new ones. Returns whether it is committed."""
        producer.begin()
        try:
            for value in values:
                topic, number = key = self._random.choice(self._outputs)
                await producer.send(ProducerRecord(topic, transaction.add(key, value), partition=number))
            if transaction.copied is not None:
                offsets = {TopicPartition(*transaction.copied.partition): transaction.copied.next_offset}
                await producer.send_offsets(offsets, GROUP)
            await asyncio.sleep(self._random.choice(DELAYS_S))
            return await self._end(producer, transaction)
        except ProducerEnded:
            raise
        except TransactionAborted as error:
            _excuse(error)
            await producer.abort()
            transaction.outcome = Outcome.ABORTED
            return False

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
    """Copies the visible records of `source`. With `end` set it stops there."""

    def __init__(
        self,
        world: World,
        new_client: Callable[[], ClusterClient],
        ledger: TransactionLedger,
        transactional_id: str,
        outputs: Sequence[PartitionKey],
        ender: Ender,
        pause_s: float,
        source: PartitionKey,
        coordinator_id: Callable[[], int],
    ) -> None:
        super().__init__(world, new_client, ledger, transactional_id, outputs, ender, pause_s)
        self.source = source
        self.end: int | None = None
        self._coordinator_id = coordinator_id

    async def _work(self, client: ClusterClient, producer: TransactionalProducer, identity: Identity) -> None:
        reader = CommittedReader(self._new_client, self._ledger, self.source)
        position = reader.position = max(0, await self._committed_offset(client))
        while self.end is None or position < self.end:
            reads = await reader.read()
            if not reads:
                await asyncio.sleep(BACK_OFF_S)
                continue
            copied = Copied(self.source, position, reader.position)
            transaction = self._ledger.begin(self.transactional_id, identity, copied)
            if await self._write(producer, transaction, [read.value for read in reads]):
                position = reader.position
            reader.position = position
            await asyncio.sleep(self._random.uniform(0, self._pause_s))

    async def _committed_offset(self, client: ClusterClient) -> int:
        """The group's offset, of the broker that ZooKeeper names as its coordinator: as in Kafka, a former coordinator
        that does not know its successor yet answers with older offsets."""
        while True:
            least, coordinator_id = self._ledger.acknowledged_offset(self.source), self._coordinator_id()
            offset = await committed_offset(client, self.source, require_stable=True)
            if client.coordinators.get(GROUP) == coordinator_id == self._coordinator_id():
                self._ledger.offset_seen(self.source, offset, least)
                return offset
            client.coordinators.pop(GROUP, None)
            await asyncio.sleep(BACK_OFF_S)


class TransactionalWorkload:
    """Writers of the `inputs`, a copier for each of them into the `outputs`, and a reader for each partition."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        inputs: Sequence[PartitionKey],
        outputs: Sequence[PartitionKey],
        *,
        writers: int = 2,
        pause_s: float = 0.1,
    ) -> None:
        world = cluster.world
        new_client = partial(cluster.client, RETRY)
        self.ledger = TransactionLedger()
        self.ender = Ender(world, new_client, self.ledger)
        self._cluster = cluster
        self._node = world.node("transactions")
        self._inputs, self._outputs = inputs, outputs
        self._writers = [
            Writer(world, new_client, self.ledger, f"writer-{number}", inputs, self.ender, pause_s)
            for number in range(writers)
        ]
        self._copiers = [
            Copier(
                *(world, new_client, self.ledger, f"copier-{number}", outputs, self.ender, pause_s, source),
                coordinator_id=self._coordinator_id,
            )
            for number, source in enumerate(inputs)
        ]
        self._clients: list[TransactionalClient] = [*self._writers, *self._copiers]
        self._readers = [
            CommittedReader(cluster.client, self.ledger, key, rack)
            for key, rack in zip((*inputs, *outputs), cycle(cluster.racks), strict=False)
        ]
        self._watching: list[asyncio.Future[None]] = []

    def start(self) -> None:
        self._watching = [self._node.run(reader.run()) for reader in self._readers]
        self._watch_offsets = self._node.run(self._look_at_offsets())
        self.ender.node.run(self.ender.run())
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
        self.ender.node.run(self.ender.run())
        for copier in self._copiers:
            history = self._history(copier.source)
            copier.end = history.visible[-1].offset + 1 if history.visible else 0
            await self._finish(copier)
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
        for copier in self._copiers:
            offset = await self._node.run(self._committed_offset(copier.source))
            self.ledger.check_copies(copier.source, offset, histories[copier.source].visible, copies)
            copied = sum(1 for read in histories[copier.source].visible if read.offset < offset)
            assert copied == len(histories[copier.source].visible), f"{copier.source}: only {copied} records are copied"
        self._node.crash()
        outcomes = [each.outcome for each in self.ledger.transactions]
        return f"{outcomes.count(Outcome.COMMITTED)} of {len(outcomes)} transactions committed"

    async def _finish(self, copier: Copier) -> None:
        """Begins instance after instance until one has copied the rest."""
        while True:
            with suppress(ProcessDead):
                await copier.begin_instance()
            await self.until_decided()
            offset = await self._node.run(self._committed_offset(copier.source))
            if copier.end is not None and offset >= copier.end:
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
        """Looks at the group's offsets as a client does that does not wait for pending commits."""
        client = self._cluster.client(RETRY)
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            for source in self._inputs:
                with suppress(KafkaError, ClientError):
                    self.ledger.offset_seen(source, await committed_offset(client, source, require_stable=False))

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


def _excuse(error: Exception) -> None:
    """AssertionError for an error that no fault of the cluster and no other instance excuses."""
    assert not isinstance(error, KafkaError) or error.code in EXCUSED, repr(error)
