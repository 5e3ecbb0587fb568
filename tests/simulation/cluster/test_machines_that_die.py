"""One machine dies and takes with it what its disk had not synced (no `flush.messages`); the other replicas have it.

Each record was acknowledged by all in-sync replicas of three. What must never happen, however soon the machine is back:
that its shorter log leads, or that its next records carry a leader epoch which others have seen with other records.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from klamm.protocol.vocabulary import NO_LEADER
from klamm.simulation.cluster.cluster import NEWEST_PROTOCOL, SimulatedCluster
from klamm.simulation.machine.world import World
from klamm.simulation.workloads.verdict import converge, judge
from klamm.simulation.workloads.workload import Workload, create_topic
from support.seeds import seeds

TOPIC = "events"
# As many as brokers: each leads one.
KEYS = {(TOPIC, 0): True, (TOPIC, 1): False, (TOPIC, 2): True}

Scenario = Callable[[World], Coroutine[Any, Any, None]]


@asynccontextmanager
async def working_cluster(
    world: World, protocol: str = NEWEST_PROTOCOL, properties: dict[str, str] | None = None
) -> AsyncIterator[tuple[SimulatedCluster, Workload]]:
    """Three brokers at work, min.insync.replicas 2; at the end the cluster must be whole and have every record."""
    cluster = SimulatedCluster(world, protocols=(protocol,), properties=properties)
    await cluster.start()
    client, node = cluster.client(), world.node("client")
    await node.run(create_topic(client, TOPIC, partitions=len(KEYS), replication_factor=3))
    workload = Workload(world, cluster.client, KEYS)
    workload.start()
    await workload.produced(100)
    await cluster.until(lambda: all(len(cluster.isr(*key)) == 3 for key in KEYS))
    yield cluster, workload
    await workload.produced(50)
    await workload.stop_producing()
    await converge(cluster)
    await judge(cluster, workload)
    await node.run(client.close())
    await cluster.close()


async def the_controllers_machine(world: World) -> None:
    """It also leads a partition, and is back within its session."""
    async with working_cluster(world) as (cluster, _):
        controller = cluster.brokers[cluster.controller_id()]
        assert controller.broker_id in [cluster.leader(*key) for key in KEYS]
        controller.kill(machine=True)
        await asyncio.sleep(world.random.uniform(0.2, 2))
        controller.start()


async def another_brokers_machine(world: World) -> None:
    """It leads a partition, and is back within its session; the controller goes on."""
    async with working_cluster(world) as (cluster, _):
        broker = cluster.brokers[(cluster.controller_id() + 1) % 3]
        broker.kill(machine=True)
        await asyncio.sleep(world.random.uniform(0.2, 2))
        broker.start()


async def the_controllers_machine_then_a_leader(world: World) -> None:
    """The machine that died follows again, with fewer records; now the leader's process dies, and is long away."""
    async with working_cluster(world) as (cluster, _):
        controller = cluster.brokers[cluster.controller_id()]
        controller.kill(machine=True)
        await asyncio.sleep(world.random.uniform(0.2, 2))
        controller.start()
        await cluster.until(lambda: cluster.controller_id() not in (controller.broker_id, -1))
        leader = world.random.choice([broker for broker in cluster.brokers.values() if broker is not controller])
        leader.kill()
        await asyncio.sleep(10)
        leader.start()


async def back_when_its_session_ends(world: World) -> None:
    """Nobody sees the controller go: the others stand still when its session ends, and it is back before they go on.
    It is elected, and finds itself registered, leading and in sync."""
    async with working_cluster(world) as (cluster, _):
        controller = cluster.brokers[cluster.controller_id()]
        others = [broker for broker in cluster.brokers.values() if broker is not controller]
        controller.kill(machine=True)
        await asyncio.sleep(world.random.uniform(2, 3.5))
        for broker in others:
            broker.node.stall()
        await cluster.until(lambda: controller.broker_id not in cluster.state.live_brokers())
        controller.start()
        await cluster.until(lambda: cluster.controller_id() == controller.broker_id)
        assert cluster.state.live_brokers() == sorted(cluster.brokers)
        for broker in others:
            broker.node.resume()


async def back_before_its_leader_writes_the_isr(world: World) -> None:
    """A leader that writes its ISR itself takes out the controller, which has died; its other follower is back, but has
    not copied what it lost when the leader dies too. The next controller must not take the follower for in sync."""
    lag = {"replica.lag.time.max.ms": "12000"}
    async with working_cluster(world, protocol="2.4", properties=lag) as (cluster, _):
        controller = cluster.brokers[cluster.controller_id()]
        leader, follower = [broker for broker in cluster.brokers.values() if broker is not controller]
        led = next(key for key in KEYS if cluster.leader(*key) == leader.broker_id)
        # Leaders look for followers that lag every 6 s. The controller is found at the third look.
        cluster.isolate(controller.broker_id, from_brokers=True)
        await asyncio.sleep(10.5)
        follower.kill(machine=True)
        cluster.isolate(follower.broker_id, from_brokers=True)
        follower.start()
        # The follower registers when its former session has ended, before the controller's session ends.
        await asyncio.sleep(3.5)
        controller.kill()
        await cluster.until(lambda: controller.broker_id not in cluster.isr(*led))
        assert cluster.controller_id() == controller.broker_id
        assert follower.broker_id in cluster.state.live_brokers()
        leader.kill()
        await cluster.until(lambda: cluster.leader(*led) != leader.broker_id)
        assert cluster.leader(*led) == NO_LEADER, "the follower lacks acknowledged records"
        await cluster.heal()


SCENARIOS = [
    the_controllers_machine,
    another_brokers_machine,
    the_controllers_machine_then_a_leader,
    back_when_its_session_ends,
    back_before_its_leader_writes_the_isr,
]


@pytest.mark.parametrize("seed", seeds(2, 5))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_acknowledged_record_is_lost(scenario: Scenario, seed: int) -> None:
    world = World(seed)
    world.run(scenario(world), time_limit_s=3600)


@pytest.mark.parametrize("seed", range(5))
def test_a_killed_controller_that_is_back_at_once_is_replaced_at_once(seed: int) -> None:
    """Nothing of its log is lost with the process: it takes over what its session left, and follows."""

    async def scenario(world: World) -> None:
        async with working_cluster(world) as (cluster, _):
            controller = cluster.brokers[cluster.controller_id()]
            led = [key for key in KEYS if cluster.leader(*key) == controller.broker_id]
            killed_at = world.loop.time()
            controller.kill()
            controller.start()
            await cluster.until(lambda: all(cluster.leader(*key) not in (controller.broker_id, -1) for key in led))
            await cluster.until(lambda: all(len(cluster.isr(*key)) == 3 for key in KEYS))
            # The session lasts for 6 s.
            assert world.loop.time() - killed_at < 1

    world = World(seed)
    world.run(scenario(world), time_limit_s=3600)
