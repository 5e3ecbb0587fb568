"""A cluster that does not become whole says who waits for whom: each kind of chain is planted, and named to its end."""

import asyncio
import re
from collections.abc import Callable

import pytest

from klamm.simulation.cluster.cluster import SimulatedCluster
from klamm.simulation.judges.waiting import chains
from klamm.simulation.machine.process import SimulationFailure
from klamm.simulation.machine.world import World
from klamm.simulation.workloads.verdict import converge
from klamm.simulation.workloads.workload import create_topic

TOPIC = "events"
# A follower is out of the ISR after 5 s, a session over after 6 s.
LONGER_THAN_A_SESSION_S = 12.0


def parts(cluster: SimulatedCluster) -> tuple[int, int]:
    """The leader and the follower of the topic's partition."""
    leader = cluster.leader(TOPIC, 0)
    return leader, next(one for one in cluster.isr(TOPIC, 0) if one != leader)


def pause_follower(cluster: SimulatedCluster) -> str:
    _, follower = parts(cluster)
    cluster.brokers[follower].node.stall()
    return f"events-0 has a short ISR -> waits for replica {follower} -> broker-{follower} is paused"


def kill_both(cluster: SimulatedCluster) -> str:
    leader, follower = parts(cluster)
    for broker_id in (follower, leader):
        cluster.brokers[broker_id].kill()
    return r"events-0 has no leader -> waits for broker (\d) of its ISR -> broker-\1 is down"


def cut_follower_from_leader(cluster: SimulatedCluster) -> str:
    leader, follower = parts(cluster)
    cluster.world.network.cut_one_way(f"broker-{leader}", f"broker-{follower}")
    # Without new records, only a follower that starts has something to fetch.
    cluster.brokers[follower].kill()
    cluster.brokers[follower].start()
    return (
        f"events-0 has a short ISR -> waits for replica {follower} -> .*"
        f" -> the link from broker-{leader} to broker-{follower} is cut"
    )


def cut_from_zookeeper(cluster: SimulatedCluster) -> str:
    _, follower = parts(cluster)
    cluster.world.network.cut_one_way(f"broker-{follower}", "zookeeper")
    return f"broker {follower} has no session -> the link from broker-{follower} to zookeeper is cut"


def pause_zookeeper(cluster: SimulatedCluster) -> str:
    """Brokers that start wait for it."""
    cluster.zookeeper.node.stall()
    broker = cluster.brokers[2]
    broker.kill()
    broker.start()
    return "broker 2 is starting -> zookeeper is paused"


def controller_waits_for_an_answer(cluster: SimulatedCluster) -> str:
    controller = cluster.controller_id()
    deaf, gone = (one for one in cluster.brokers if one != controller)
    cluster.world.network.cut_one_way(f"broker-{deaf}", f"broker-{controller}")
    cluster.brokers[gone].kill()
    return (
        rf"controller {controller} has waited for broker {deaf}'s answer to \w+ for [0-9.]+ s"
        rf".* -> the link from broker-{deaf} to broker-{controller} is cut"
    )


@pytest.mark.parametrize(
    "fault",
    [
        pause_follower,
        kill_both,
        cut_follower_from_leader,
        cut_from_zookeeper,
        pause_zookeeper,
        controller_waits_for_an_answer,
    ],
)
def test_a_chain_leads_from_what_is_missing_to_the_fault(fault: Callable[[SimulatedCluster], str]) -> None:
    async def scenario() -> tuple[str, SimulationFailure]:
        cluster = SimulatedCluster(world)
        await cluster.start()
        client, node = cluster.client(), world.node("client")
        await node.run(create_topic(client, TOPIC, partitions=1, replication_factor=2))
        await converge(cluster)
        await node.run(client.close())
        expected = fault(cluster)
        await asyncio.sleep(LONGER_THAN_A_SESSION_S)
        with pytest.raises(SimulationFailure) as caught:
            await converge(cluster, timeout_s=1.0)
        await cluster.close()
        return expected, caught.value

    world = World(1)
    expected, failure = world.run(scenario())
    assert re.search(expected, failure.__notes__[0]), failure.__notes__[0]


def test_a_cluster_that_is_whole_waits_for_nothing() -> None:
    async def scenario() -> list[str]:
        cluster = SimulatedCluster(world)
        await cluster.start()
        await converge(cluster)
        found = chains(cluster)
        await cluster.close()
        return found

    world = World(1)
    assert world.run(scenario()) == []
