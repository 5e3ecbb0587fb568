"""klamm's transactional producer in a simulated cluster under faults: a transaction is read whole and once, or not."""

import asyncio
from collections import Counter

import pytest

from klamm.client.consumer.consumer import Consumer
from klamm.client.options import ClientOptions, ConsumerOptions, OffsetReset, ProducerOptions
from klamm.client.producer.prepared_transactions import TransactionGone, end_prepared
from klamm.client.producer.producer import ProducerRecord
from klamm.client.producer.transactional_producer import TransactionalProducer
from klamm.client.producer.transactions import ProducerEnded, ProducerFenced, State, TransactionAborted
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.vocabulary import READ_COMMITTED, TopicPartition
from klamm.simulation.cluster.cluster import SimulatedCluster
from klamm.simulation.machine.world import World
from klamm.simulation.runs.random_faults import RandomFaults
from klamm.simulation.workloads.administration import Administrator
from klamm.simulation.workloads.workload import create_topic

TOPIC = "events"
PARTITIONS = 3
# The administrator elects unclean leaders of this topic only.
UNCLEAN = "unclean"
COMMITTED = ConsumerOptions(READ_COMMITTED, OffsetReset.EARLIEST)
LAST = b"last"
# The administrator sets 1, 2 or 4 fetchers, which brokers with another number than 2 may refuse.
PROPERTIES = {"num.replica.fetchers": "2", "transaction.state.log.num.partitions": "3"}
# A transaction with several of the longest times out.
TRANSACTION_TIMEOUT_MS = 12_000
PAUSES_S = (0.0,) * 8 + (0.5, 0.5, 5.0)


class Transactions:
    """Writes transactions one after another, and knows which of them are committed."""

    def __init__(self, world: World, cluster: SimulatedCluster, environment) -> None:
        self._random = world.random
        self._client, self._other = cluster.client(), cluster.client()
        self._environment = environment
        self._producer: TransactionalProducer | None = None
        self.is_over = False
        self.committed: list[bytes] = []
        self.ends = Counter()

    async def run(self) -> None:
        """Until `is_over`; then it writes a record to each partition, behind which there are no others."""
        number = 0
        while not self.is_over:
            number += 1
            values = [b"%d/%d" % (number, other) for other in range(self._random.randrange(1, 9))]
            commit = self._random.random() < 0.7
            if await self._transact(values, commit=commit, prepare=self._random.random() < 0.3):
                self.committed += values
        while not await self._transact([LAST] * PARTITIONS, commit=True, prepare=False):
            pass

    async def _transact(self, values, *, commit: bool, prepare: bool) -> bool:
        """Whether the records are committed."""
        producer = await self._ready()
        producer.begin()
        try:
            for number, value in enumerate(values):
                await producer.send(ProducerRecord(TOPIC, value, partition=number % PARTITIONS))
                await asyncio.sleep(self._random.choice(PAUSES_S))
            if prepare:
                return await self._end_prepared(producer, commit)
            await (producer.commit() if commit else producer.abort())
        except ProducerFenced:
            self.ends["fenced"] += 1
            return False
        except TransactionAborted:
            self.ends["failed"] += 1
            try:
                await producer.abort()
            except ProducerEnded:
                self.ends["fenced by the abort"] += 1
            return False
        self.ends["committed" if commit else "aborted"] += 1
        return commit

    async def _end_prepared(self, producer: TransactionalProducer, commit: bool) -> bool:
        prepared = await producer.prepare()
        assert prepared is not None
        await producer.close()
        self._producer = None
        try:
            for _ in range(2):
                await end_prepared(self._other, prepared, commit=commit)
        except TransactionGone:
            self.ends["gone"] += 1
            return False
        self.ends["prepared and committed" if commit else "prepared and aborted"] += 1
        return commit

    async def _ready(self) -> TransactionalProducer:
        if self._producer is None or self._producer.state is State.FATAL_ERROR:
            options = ProducerOptions(
                ClientOptions((("unused", 1),)),
                CompressionType.NONE,
                batch_size_bytes=300,
                delivery_timeout_ms=self._random.choice((3_000, 600_000)),
                transactional_id="writer",
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            )
            self._producer = TransactionalProducer(self._client, options, self._environment)
            await self._producer.init()
        return self._producer


async def read(cluster: SimulatedCluster) -> list[bytes]:
    """The committed records up to the last ones."""
    consumer = Consumer(cluster.client(), COMMITTED)
    consumer.assign({TopicPartition(TOPIC, number): 0 for number in range(PARTITIONS)})
    values: list[bytes] = []
    while values.count(LAST) < PARTITIONS:
        values += [record.value or b"" for record in await consumer.poll(1_000)]
    await consumer.close()
    return [value for value in values if value != LAST]


async def transact_under_faults(world: World, ends: Counter, *, steps: int = 8) -> None:
    cluster = SimulatedCluster(world, properties=PROPERTIES)
    await cluster.start()
    node = world.node("client")
    for topic, configs in ((TOPIC, {}), (UNCLEAN, {"unclean.leader.election.enable": "true"})):
        await node.run(
            create_topic(cluster.client(), topic, partitions=PARTITIONS, replication_factor=3, configs=configs)
        )
    transactions = Transactions(world, cluster, node.environment)
    transacting = node.run(transactions.run())
    administrator = Administrator(cluster, UNCLEAN, min_insync_replicas=2)
    await RandomFaults(cluster, administrator, None, logs_flush=False).run(steps)
    await cluster.heal()
    transactions.is_over = True
    await transacting
    await administrator.finish()
    assert Counter(await node.run(read(cluster))) == Counter(transactions.committed)
    ends.update(transactions.ends)
    await node.run(administrator.close())
    await cluster.close()


@pytest.mark.parametrize("seed", range(3))
def test_each_transaction_is_read_whole_and_once_or_not_at_all(seed):
    world = World(seed)
    world.run(transact_under_faults(world, Counter()), time_limit_s=3_600)
