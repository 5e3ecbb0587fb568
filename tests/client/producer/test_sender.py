"""The producer in a simulated cluster under faults, and against a broker that answers as a test says.

What is in the log must be what was appended: everything, once, in its order.
"""

import asyncio
from collections import defaultdict

import pytest

from klamm.client.cluster import ClusterClient
from klamm.client.options import ClientOptions, ProducerOptions
from klamm.client.producer.batches import PartitionBatch
from klamm.client.producer.sender import MAX_IN_FLIGHT, Sender
from klamm.client.retries import RetryPolicy
from klamm.net.client import ConnectionOptions
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.records import Record, build_batch
from klamm.simulation.cluster.cluster import SimulatedCluster
from klamm.simulation.machine.world import World
from klamm.simulation.runs.random_faults import RandomFaults
from klamm.simulation.workloads.administration import Administrator
from klamm.simulation.workloads.workload import FIRST_TIMESTAMP_MS, Consumer, create_topic
from support.partition_leader import Leader
from support.scripted_broker import ScriptedBroker
from support.seeds import seeds

TOPIC = "events"
PARTITIONS = 3
OPTIONS = ProducerOptions(
    ClientOptions((("unused", 1),)), CompressionType.NONE, delivery_timeout_ms=600_000, buffer_memory_bytes=5_000
)


class Batches:
    """Makes batches for the partitions of a topic, and remembers what is in them."""

    def __init__(self, producer_id: int, producer_epoch: int) -> None:
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.values: dict[int, list[bytes]] = defaultdict(list)

    def make(self, partition: int, count: int, *, codec: CompressionType = CompressionType.NONE) -> PartitionBatch:
        sequence = len(self.values[partition])
        values = [b"%d/%d" % (partition, sequence + number) for number in range(count)]
        self.values[partition] += values
        data = build_batch(
            [Record(None, value, FIRST_TIMESTAMP_MS) for value in values],
            codec=codec,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=sequence,
        )
        return PartitionBatch(TOPIC, partition, bytes(data), len(data))


# -- in a cluster ----------------------------------------------------------------------------------------------------


async def produce_under_faults(world: World, *, rounds: int = 60, steps: int = 8) -> None:
    cluster = SimulatedCluster(world)
    await cluster.start()
    client = cluster.client()
    node = world.node("client")
    await node.run(create_topic(client, TOPIC, partitions=PARTITIONS, replication_factor=3))

    async def produce() -> Batches:
        producer = Sender(client, OPTIONS)
        batches = Batches(*await producer.init_producer_id())
        for number in range(rounds):
            await producer.append([batches.make(partition, 1 + number % 4) for partition in range(PARTITIONS)])
            await producer.append([batches.make(world.random.randrange(PARTITIONS), 2) for _ in range(8)])
            await asyncio.sleep(world.random.choice((0.0, 0.0, 1.0, 2.0)))
        await producer.flush()
        return batches

    producing = node.run(produce())
    administrator = Administrator(cluster, "unclean", min_insync_replicas=2)
    await RandomFaults(cluster, administrator, None, logs_flush=False).run(steps)
    await cluster.heal()
    batches = await producing
    await administrator.finish()
    for partition, values in batches.values.items():
        consumer = Consumer(cluster.client, (TOPIC, partition))
        consumer.stop_at = len(values)
        await node.run(consumer.run())
        assert [value for _, value, _ in consumer.records] == values
    await node.run(administrator.close())
    await cluster.close()


@pytest.mark.parametrize("seed", seeds(2, 6))
def test_nothing_is_lost_repeated_or_moved_under_faults(seed):
    world = World(seed)
    world.run(produce_under_faults(world), time_limit_s=3_600)


# -- against answers -------------------------------------------------------------------------------------------------


def against(leader, scenario, *, options=OPTIONS, request_timeout_ms=30_000):
    """Runs `scenario(producer, batches)` against the leader."""

    async def main():
        async with ScriptedBroker(leader.answer) as broker:
            leader.node_address = ("127.0.0.1", broker.port)
            connection = ConnectionOptions(request_timeout_ms=request_timeout_ms)
            client = ClusterClient([leader.node_address], connection, RetryPolicy(500, 1, 5))
            try:
                producer = Sender(client, options)
                return await scenario(producer, Batches(*await producer.init_producer_id()))
            finally:
                await client.close()

    return asyncio.run(main())


async def twenty(producer, batches):
    await producer.append([batches.make(0, 3) for _ in range(20)])
    await producer.flush()
    return batches.values[0]


@pytest.mark.parametrize("skipped", range(8))
@pytest.mark.parametrize("error", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND])
def test_a_passing_error_is_passed(skipped, error):
    leader = Leader(*[ErrorCode.NONE] * skipped, error, error)
    assert against(leader, twenty) == leader.values


def test_a_topic_that_the_metadata_has_lost():
    """Others share the client: a refresh of all topics while one is deleted makes it forget that topic."""
    leader = Leader()

    async def scenario(producer, batches):
        await producer.append([batches.make(0, 1)])
        await producer.flush()
        producer._client.metadata.topics.clear()
        return await twenty(producer, batches)

    assert against(leader, scenario) == leader.values


@pytest.mark.parametrize("skipped", range(4))
def test_an_answer_that_never_comes(skipped):
    leader = Leader(*[ErrorCode.NONE] * skipped, None)
    assert against(leader, twenty, request_timeout_ms=200) == leader.values


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_RECORD,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
@pytest.mark.parametrize("skipped", [0, 1, 7])
def test_an_error_for_good_ends_the_producer(error, skipped):
    leader = Leader(*[ErrorCode.NONE] * skipped, error)

    async def scenario(producer, batches):
        name = rf"{error.name} \({error.value}\)"
        with pytest.raises(KafkaError, match=rf"{name}: events-0: a batch of 3 records in \d+ bytes") as refused:
            await twenty(producer, batches)
        with pytest.raises(KafkaError) as again:
            await producer.append([batches.make(0, 1)])
        assert again.value is refused.value
        return refused.value.code

    assert against(leader, scenario) is error
    assert len(leader.values) == 3 * skipped


def test_a_batch_that_is_never_acknowledged_is_an_error_in_time():
    leader = Leader(*[ErrorCode.NOT_ENOUGH_REPLICAS] * 1_000_000)
    options = ProducerOptions(OPTIONS.client, CompressionType.NONE, delivery_timeout_ms=300)
    with pytest.raises(KafkaError, match=r"events-0: a batch was not acknowledged within .* NOT_ENOUGH_REPLICAS"):
        against(leader, twenty, options=options)


def test_the_first_batch_is_alone_and_the_others_are_not():
    """A broker that does not know the producer would take the second for its first."""
    leader = Leader(None)

    async def scenario(producer, batches):
        await producer.append([batches.make(0, 1) for _ in range(20)])
        await leader.asked(1)
        await asyncio.sleep(0.05)
        alone = leader.answered
        leader.errors = [ErrorCode.NONE, *[None] * 100]
        await leader.asked(2 + MAX_IN_FLIGHT)
        await asyncio.sleep(0.05)
        together = leader.answered - 2
        leader.errors = []
        await producer.flush()
        return alone, together, batches.values[0]

    assert against(leader, scenario, request_timeout_ms=500) == (1, MAX_IN_FLIGHT, leader.values)


@pytest.mark.parametrize("codec", CompressionType)
def test_a_batch_that_is_too_large_is_halved_until_it_is_not(codec):
    leader = Leader()
    leader.max_batch_bytes = 500

    async def scenario(producer, batches):
        before = await producer.append([batches.make(0, 1, codec=codec), batches.make(0, 1_000, codec=codec)])
        await producer.flush()
        after = await producer.append([batches.make(0, 1, codec=codec)])
        await producer.flush()
        return before, after, batches.values[0]

    before, after, values = against(leader, scenario)
    assert (before, values) == ({}, leader.values)
    assert 100 < after[TOPIC] < 10_000


def test_a_record_that_is_too_large_is_an_error():
    leader = Leader()
    leader.max_batch_bytes = 10
    with pytest.raises(
        KafkaError, match=r"MESSAGE_TOO_LARGE \(10\): events-0: a batch of 1 records .* max.message.bytes"
    ):
        against(leader, twenty)


def test_memory_is_bounded():
    leader = Leader(*[None] * 100)
    options = ProducerOptions(OPTIONS.client, CompressionType.NONE, buffer_memory_bytes=1_000)

    async def scenario(producer, batches):
        many = [batches.make(0, 1) for _ in range(100)]
        appending = asyncio.create_task(producer.append(many))
        await leader.asked(1)
        await asyncio.sleep(0.05)
        waits = not appending.done()
        leader.errors = []
        await appending
        await producer.flush()
        return waits, batches.values[0]

    assert against(leader, scenario, options=options, request_timeout_ms=200) == (True, leader.values)


def test_closing_ends_who_waits():
    leader = Leader(*[None] * 100)

    async def scenario(producer, batches):
        await producer.append([batches.make(0, 1)])
        flushing = asyncio.create_task(producer.flush())
        await asyncio.sleep(0)
        await producer.close()
        with pytest.raises(KafkaError, match="the producer is closed"):
            await flushing

    against(leader, scenario)
