"""A ZooKeeper server, a broker and clients, as they are, in a simulated world; the broker dies and comes back.

Every record that was acknowledged must be there afterwards, once and in order. The scenarios below are also run by
`klamm.simulation.machine.determinism` in processes of their own.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from klamm.protocol import messages
from klamm.protocol.messages import ApiKey
from klamm.simulation.cluster.cluster import LOG_DIRS, SimulatedBroker, SimulatedCluster
from klamm.simulation.machine.determinism import NotDeterministic, assert_same_trace
from klamm.simulation.machine.process import SimulationFailure
from klamm.simulation.machine.world import World
from klamm.simulation.workloads.verdict import converge, judge
from klamm.simulation.workloads.workload import Workload, create_topic
from klamm.storage.log.durability import Durability
from klamm.storage.segments.unsynced_files import UnsyncedFiles
from support.long_rows import long
from support.seeds import seeds

TOPIC = "events"
KEYS = {(TOPIC, partition): True for partition in range(3)}
BATCHES = 30


@asynccontextmanager
async def working_broker(world: World, **topic_configs: str) -> AsyncIterator[tuple[SimulatedCluster, SimulatedBroker]]:
    """A broker to which records are sent until all have been acknowledged; then all is read and compared."""
    configs = {key.replace("_", "."): value for key, value in topic_configs.items()}
    cluster = SimulatedCluster(world, brokers=1)
    await cluster.start()
    client, node = cluster.client(), world.node("client")
    await node.run(create_topic(client, TOPIC, partitions=len(KEYS), replication_factor=1, configs=configs))
    workload = Workload(world, cluster.client, KEYS)
    workload.start(BATCHES)
    yield cluster, cluster.brokers[0]
    await workload.until_produced()
    await converge(cluster)
    await judge(cluster, workload)
    await node.run(client.close())
    await cluster.close()


async def restart(world: World, broker: SimulatedBroker, *, machine: bool = False) -> None:
    broker.kill(machine=machine)
    await asyncio.sleep(world.random.uniform(0, 2))
    broker.start()
    await broker.until_up()


# -- scenarios ------------------------------------------------------------------------------------------------------


async def process_crash(world: World) -> None:
    """The broker's process dies while records are on their way."""
    async with working_broker(world) as (_, broker):
        for _ in range(3):
            await asyncio.sleep(world.random.uniform(0, 0.3))
            await restart(world, broker)


async def machine_crash(world: World) -> None:
    """The machines of the broker and of ZooKeeper die; the topic is flushed before it acknowledges."""
    async with working_broker(world, flush_messages="1") as (cluster, broker):
        for _ in range(3):
            await asyncio.sleep(world.random.uniform(0, 0.3))
            if world.random.random() < 0.5:
                cluster.zookeeper.kill(machine=True)
                await cluster.zookeeper.start()
            await restart(world, broker, machine=True)


async def crash_while_starting(world: World) -> None:
    """The broker dies again and again before it is up, with logs to recover."""
    async with working_broker(world) as (_, broker):
        await asyncio.sleep(0.3)
        for _ in range(10):
            await restart(world, broker)
            broker.kill()
            broker.start()
            await asyncio.sleep(world.random.uniform(0, 0.05))


async def zookeeper_crash(world: World) -> None:
    """ZooKeeper dies and comes back while the broker works on."""
    async with working_broker(world) as (cluster, _):
        for _ in range(3):
            await asyncio.sleep(world.random.uniform(0, 0.3))
            cluster.zookeeper.kill(machine=world.random.random() < 0.5)
            await asyncio.sleep(world.random.choice([0.1, 3, 20]))
            await cluster.zookeeper.start()


async def session_expiry(world: World) -> None:
    """The broker is cut off from ZooKeeper for longer than its session lives, and registers anew."""
    async with working_broker(world) as (cluster, _):
        await asyncio.sleep(world.random.uniform(0, 0.3))
        cluster.isolate(0, from_zookeeper=True)
        await asyncio.sleep(20)
        assert cluster.state.live_brokers() == []
        await cluster.heal()
        await cluster.until(lambda: cluster.state.live_brokers() == [0])
        client = cluster.client()
        await world.node("client").run(create_topic(client, "later", partitions=1, replication_factor=1))
        await world.node("client").run(client.close())


async def clean_stop(world: World) -> None:
    """The broker is stopped as an operator does, under load, and started again on its clean logs."""
    async with working_broker(world) as (_, broker):
        for _ in range(3):
            await asyncio.sleep(world.random.uniform(0, 0.3))
            await broker.stop()
            for directory in LOG_DIRS:
                assert broker.node.disk.find(f"{directory}/.kafka_cleanshutdown")
            broker.start()
            await broker.until_up()


async def anything(world: World) -> None:
    """All of it, several times: deaths of programs and machines, and links that break for a while."""
    async with working_broker(world, flush_messages="1") as (cluster, broker):
        for _ in range(6):
            await asyncio.sleep(world.random.uniform(0, 0.3))
            if world.random.random() < 0.5:
                world.network.cut(broker.node.name, world.random.choice(["zookeeper", "client"]))
                await asyncio.sleep(world.random.choice([0.01, 1, 10]))
            if world.random.random() < 0.5:
                cluster.zookeeper.kill(machine=world.random.random() < 0.5)
                await asyncio.sleep(world.random.choice([0, 0.1, 10]))
                await cluster.zookeeper.start()
            if world.random.random() < 0.7:
                broker.kill(machine=world.random.random() < 0.5)
                await asyncio.sleep(world.random.uniform(0, 2))
                broker.start()
            await cluster.heal()
            await broker.until_up()


async def planted_set(world: World) -> None:
    """A fault planted into production code: the files of a log are synced in the order of a set."""

    def pending(unsynced: UnsyncedFiles) -> dict[str, int]:
        return {path: unsynced._versions[path] for path in set(unsynced._versions)}

    UnsyncedFiles.pending = pending  # type: ignore[assignment]  # the planted fault
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


@pytest.mark.parametrize("seed", seeds(2, 5))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_acknowledged_records_are_there_once_and_in_order(
    scenario: Callable[[World], Coroutine[Any, Any, None]], seed: int
) -> None:
    world = World(seed)
    world.run(scenario(world))


def test_a_broker_that_does_not_flush_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Durability, "flush_now", lambda durability, now_ms: None)
    for seed in range(10):
        world = World(seed)
        try:
            world.run(machine_crash(world), time_limit_s=3600)
        except SimulationFailure:
            raise
        except AssertionError:
            return
    pytest.fail("ten crashes of the machine lost nothing that was not flushed")


@pytest.mark.parametrize(
    "scenario",
    ["machine_crash", *long("process_crash", "session_expiry")],
)
def test_two_processes_trace_the_same(scenario: str) -> None:
    trace = assert_same_trace(f"{__file__}:{scenario}", seed=1)
    happened = Counter(line.split()[2] for line in trace)
    assert min(happened[what] for what in ("frame", "znodes", "write", "sync")) > 10, happened


# tests/simulation/machine/test_determinism.py finds one in a scenario that costs less.
@pytest.mark.long
def test_a_planted_iteration_over_a_set_is_found() -> None:
    with pytest.raises(NotDeterministic, match="the traces part at line"):
        assert_same_trace(f"{__file__}:planted_set", seed=1)


def test_a_response_that_cannot_be_encoded_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker survives it, so nothing else would tell."""
    encode_response = messages.encode_response

    def encode(api_key: ApiKey, version: int, correlation_id: int, message: Any, codes: list[int]) -> Any:
        if api_key is ApiKey.PRODUCE:
            message.throttle_time_ms = 2**31
        return encode_response(api_key, version, correlation_id, message, codes)

    monkeypatch.setattr(messages, "encode_response", encode)
    world = World(1)
    with pytest.raises(SimulationFailure, match=r"ProduceResponse v9: throttle_time_ms: 2147483648 does not fit Int32"):
        world.run(process_crash(world), time_limit_s=600)
