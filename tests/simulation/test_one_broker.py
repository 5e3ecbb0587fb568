"""A ZooKeeper server, a broker and clients, as they are, in a simulated world; the broker dies and comes back.

Every record that was acknowledged must be there afterwards, once and in order. The scenarios below are also run by
`klamm.simulation.determinism` in processes of their own.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from klamm.broker.broker import Broker, BrokerStartError
from klamm.config.broker import BrokerConfig
from klamm.net.cluster import ClusterClient, RetryPolicy
from klamm.protocol.errors import ErrorCode
from klamm.protocol.fetch import FetchPartition, FetchRequest
from klamm.protocol.messages import ApiKey, request_class
from klamm.protocol.produce import ProduceRequest
from klamm.protocol.record_batch import Record, build_batch, decode_records, iterate_batches
from klamm.simulation.determinism import NotDeterministic, assert_same_trace
from klamm.simulation.process import ProcessDead, SimulationFailure
from klamm.simulation.world import World
from klamm.storage.log import Log
from klamm.storage.unsynced_files import UnsyncedFiles
from klamm.zookeeper.server import ZooKeeperServer

TOPIC = "events"
PARTITIONS = 3
BATCHES = 30
RETRY = RetryPolicy(deadline_ms=120_000)


class OneBroker:
    """The machines of the world and what runs on them."""

    def __init__(self, world: World, **properties: str) -> None:
        self.world = world
        self.properties = properties
        self.zookeeper_node = world.node("zookeeper")
        self.broker_node = world.node("broker")
        self.client_node = world.node("client")

    async def start(self) -> None:
        await self.start_zookeeper()
        await self.start_broker()

    async def start_zookeeper(self) -> None:
        node = self.zookeeper_node
        server = ZooKeeperServer(
            node.environment,
            "/zookeeper",
            node.address,
            2181,
            on_transaction=lambda zxid, transaction: self.world.trace.add("zookeeper", "znodes", zxid, transaction),
        )
        await node.run(server.start())

    async def crash_broker(self, *, machine: bool = False) -> None:
        self.broker_node.crash(machine=machine)
        await asyncio.sleep(self.world.random.uniform(0, 2))
        self.broker_node.restart()

    async def start_broker(self) -> None:
        """As a supervisor does: a broker whose id still belongs to the session of its former life is tried again."""
        while True:
            try:
                return await self._start_broker()
            except BrokerStartError:
                self.broker_node.crash()
                await asyncio.sleep(1)
                self.broker_node.restart()

    async def _start_broker(self) -> None:
        properties = {
            "broker.id": "0",
            "listeners": "PLAINTEXT://:9092",
            "log.dirs": "/data",
            "zookeeper.connect": "zookeeper:2181",
            "zookeeper.session.timeout.ms": "6000",
            **{key.replace("_", "."): value for key, value in self.properties.items()},
        }
        broker = self.broker = Broker(BrokerConfig.from_properties(properties), self.broker_node.environment)
        await self.broker_node.run(broker.start())
        self.broker_node.run(_run(broker))


async def _run(broker: Broker) -> None:
    """A broker that gives up fails the run: nothing in these scenarios entitles it to."""
    raise await broker.failure


class Producer:
    """An idempotent producer of one partition: it repeats a batch, with its sequence, until it is acknowledged."""

    def __init__(self, world: World, cluster: ClusterClient, partition: int) -> None:
        self.world = world
        self.cluster = cluster
        self.partition = partition
        self.values: list[bytes] = []

    async def produce(self, batches: int) -> None:
        init = request_class(ApiKey.INIT_PRODUCER_ID)
        response = await self.cluster.send_to_any(
            ApiKey.INIT_PRODUCER_ID,
            lambda version: init(version=version, transactional_id=None, transaction_timeout_ms=60_000),
            errors_of=lambda response: [response.error_code],
        )
        assert response.error_code == 0, response
        for number in range(batches):
            values = [b"%d/%d/%d" % (self.partition, number, record) for record in range(1 + number % 4)]
            batch = build_batch(
                [Record(None, value, 1_609_459_200_000 + number) for value in values],
                producer_id=response.producer_id,
                producer_epoch=response.producer_epoch,
                base_sequence=len(self.values),
            )
            base_offset = await self._send(bytes(batch))
            assert base_offset == len(self.values), (base_offset, len(self.values))
            self.values += values
            await asyncio.sleep(self.world.random.uniform(0, 0.05))

    async def _send(self, batch: bytes) -> int:
        response = await self.cluster.send_to_leader(
            TOPIC,
            self.partition,
            ApiKey.PRODUCE,
            lambda version: ProduceRequest(None, -1, 10_000, [(TOPIC, [(self.partition, batch)])]),
            errors_of=lambda response: [response.topics[0][1][0].error_code],
        )
        (result,) = response.topics[0][1]
        assert result.error_code == 0, result
        return int(result.base_offset)


async def create_topic(cluster: ClusterClient, name: str, **configs: str) -> None:
    create = request_class(ApiKey.CREATE_TOPICS)
    topic = create.CreatableTopic(
        name=name,
        num_partitions=PARTITIONS,
        replication_factor=1,
        assignments=[],
        configs=[
            create.CreatableTopic.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )
    response = await cluster.send_to_controller(
        ApiKey.CREATE_TOPICS,
        lambda version: create(version=version, topics=[topic], timeout_ms=10_000, validate_only=False),
        errors_of=lambda response: [response.topics[0].error_code],
    )
    # It exists already when the answer to an earlier attempt was lost.
    assert response.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS), response


async def consume(cluster: ClusterClient, partition: int, count: int) -> list[bytes]:
    values: list[bytes] = []
    while len(values) < count:
        want = FetchPartition(partition, -1, len(values), -1, -1, 1 << 20)
        response = await cluster.send_to_leader(
            TOPIC,
            partition,
            ApiKey.FETCH,
            lambda version, want=want: FetchRequest(max_wait_ms=500, min_bytes=1, topics=[(TOPIC, [want])]),
            errors_of=lambda response: [response.topics[0][1][0].error_code],
        )
        (result,) = response.topics[0][1]
        assert result.error_code == 0, result
        for record in records_of(result.records):
            if record.offset >= len(values):
                assert record.offset == len(values)
                values.append(record.value)
    assert len(values) == count
    return values


def records_of(data: Any) -> Iterator[Record]:
    for position, header in iterate_batches(data, allow_partial_end=True):
        yield from decode_records(data, position, header)


async def work(world: World, **topic_configs: str) -> None:
    """What the client does: it creates a topic, produces through whatever happens, and reads everything back."""
    cluster = ClusterClient([("broker", 9092)], retry=RETRY)
    await create_topic(cluster, TOPIC, **topic_configs)
    producers = [Producer(world, cluster, partition) for partition in range(PARTITIONS)]
    await asyncio.gather(*[producer.produce(BATCHES) for producer in producers])
    read = await asyncio.gather(*[consume(cluster, producer.partition, len(producer.values)) for producer in producers])
    assert read == [producer.values for producer in producers]
    await cluster.close()


# -- scenarios ------------------------------------------------------------------------------------------------------


async def process_crash(world: World) -> None:
    """The broker's process dies while records are on their way."""
    parts = OneBroker(world)
    await parts.start()
    working = parts.client_node.run(work(world))
    for _ in range(3):
        await asyncio.sleep(world.random.uniform(0, 0.3))
        await parts.crash_broker()
        await parts.start_broker()
    await working


async def machine_crash(world: World) -> None:
    """The machines of the broker and of ZooKeeper die; the topic is flushed before it acknowledges."""
    parts = OneBroker(world)
    await parts.start()
    working = parts.client_node.run(work(world, flush_messages="1"))
    for _ in range(3):
        await asyncio.sleep(world.random.uniform(0, 0.3))
        if world.random.random() < 0.5:
            parts.zookeeper_node.crash(machine=True)
            parts.zookeeper_node.restart()
            await parts.start_zookeeper()
        await parts.crash_broker(machine=True)
        await parts.start_broker()
    await working


async def crash_while_starting(world: World) -> None:
    """The broker dies again and again before it is up, with logs to recover."""
    parts = OneBroker(world)
    await parts.start()
    working = parts.client_node.run(work(world))
    await asyncio.sleep(0.3)
    for _ in range(10):
        await parts.crash_broker()
        await asyncio.sleep(6)
        starting = asyncio.ensure_future(parts.start_broker())
        await asyncio.sleep(world.random.uniform(0, 0.05))
        if not starting.done():
            parts.broker_node.crash()
            with pytest.raises(ProcessDead):
                await starting
            parts.broker_node.restart()
            await parts.start_broker()
    await working


async def zookeeper_crash(world: World) -> None:
    """ZooKeeper dies and comes back while the broker works on."""
    parts = OneBroker(world)
    await parts.start()
    working = parts.client_node.run(work(world))
    for _ in range(3):
        await asyncio.sleep(world.random.uniform(0, 0.3))
        parts.zookeeper_node.crash(machine=world.random.random() < 0.5)
        await asyncio.sleep(world.random.choice([0.1, 3, 20]))
        parts.zookeeper_node.restart()
        await parts.start_zookeeper()
    await working


async def session_expiry(world: World) -> None:
    """The broker is cut off from ZooKeeper for longer than its session lives, and registers anew."""
    parts = OneBroker(world)
    await parts.start()
    working = parts.client_node.run(work(world))
    await asyncio.sleep(world.random.uniform(0, 0.3))
    world.network.cut("broker", "zookeeper")
    await asyncio.sleep(20)
    world.network.heal("broker", "zookeeper")
    await working
    await parts.client_node.run(create_later())


async def create_later() -> None:
    cluster = ClusterClient([("broker", 9092)], retry=RETRY)
    await create_topic(cluster, "later")
    await cluster.close()


async def clean_stop(world: World) -> None:
    """The broker is stopped as an operator does, under load, and started again on its clean logs."""
    parts = OneBroker(world)
    await parts.start()
    working = parts.client_node.run(work(world))
    for _ in range(3):
        await asyncio.sleep(world.random.uniform(0, 0.3))
        await parts.broker_node.run(parts.broker.stop())
        assert parts.broker_node.environment.file_system.exists("/data/.kafka_cleanshutdown")
        await parts.crash_broker()
        await parts.start_broker()
    await working


async def anything(world: World) -> None:
    """All of it, several times: deaths of programs and machines, and links that break for a while."""
    parts = OneBroker(world)
    await parts.start()
    working = parts.client_node.run(work(world, flush_messages="1"))
    links = [("broker", "zookeeper"), ("broker", "client")]
    for _ in range(6):
        await asyncio.sleep(world.random.uniform(0, 0.3))
        link = world.random.choice(links)
        if broken := world.random.random() < 0.5:
            world.network.cut(*link)
            await asyncio.sleep(world.random.choice([0.01, 1, 10]))
        if world.random.random() < 0.5:
            parts.zookeeper_node.crash(machine=world.random.random() < 0.5)
            await asyncio.sleep(world.random.choice([0, 0.1, 10]))
            parts.zookeeper_node.restart()
            await parts.start_zookeeper()
        if crashed := world.random.random() < 0.7:
            await parts.crash_broker(machine=world.random.random() < 0.5)
        if broken:
            world.network.heal(*link)
        if crashed:
            await parts.start_broker()
    await working


async def planted_set(world: World) -> None:
    """A fault planted into production code: the files of a log are synced in the order of a set."""

    def pending(unsynced: UnsyncedFiles) -> dict[str, int]:
        return {path: unsynced._versions[path] for path in set(unsynced._versions)}

    UnsyncedFiles.pending = pending  # type: ignore[method-assign]
    await machine_crash(world)


# -- tests ----------------------------------------------------------------------------------------------------------

SCENARIOS = [
    process_crash,
    machine_crash,
    crash_while_starting,
    clean_stop,
    zookeeper_crash,
    session_expiry,
    anything,
]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_acknowledged_records_are_there_once_and_in_order(
    scenario: Callable[[World], Coroutine[Any, Any, None]], seed: int
) -> None:
    world = World(seed)
    world.run(scenario(world))


def test_a_broker_that_does_not_flush_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Log, "_flush_now", lambda log, now_ms: None)
    world = World(0)
    with pytest.raises(AssertionError) as failure:
        world.run(machine_crash(world))
    assert not isinstance(failure.value, SimulationFailure)


@pytest.mark.parametrize("scenario", ["process_crash", "machine_crash", "session_expiry"])
def test_two_processes_trace_the_same(scenario: str) -> None:
    trace = assert_same_trace(f"{__file__}:{scenario}", seed=1)
    happened = Counter(line.split()[2] for line in trace)
    assert min(happened[what] for what in ("frame", "znodes", "write", "sync")) > 10, happened


def test_a_planted_iteration_over_a_set_is_found() -> None:
    with pytest.raises(NotDeterministic, match="the traces part at line"):
        assert_same_trace(f"{__file__}:planted_set", seed=1)
