"""A log directory works again, and has a log of a partition whose replica has a log in the other directory by now.

While the directory was offline the topic was deleted and created again, or the replica left the broker and came back.
The broker must start, with the newer log.
"""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from klamm.simulation.cluster.cluster import LOG_DIRS, SimulatedBroker, SimulatedCluster
from klamm.simulation.machine.world import World
from klamm.simulation.workloads.administration import Administrator
from klamm.simulation.workloads.verdict import converge, judge
from klamm.simulation.workloads.workload import Workload, create_topic, delete_topic

KEY = ("passing", 0)


class Scene:
    """A cluster with one topic, of which each broker has a replica."""

    def __init__(self, world: World) -> None:
        self.cluster = SimulatedCluster(world)
        self.administrator = Administrator(self.cluster, KEY[0], 1)
        self.client = self.cluster.client()
        self.world = world
        self.run = world.node("client").run
        self.broker = self.cluster.brokers[world.random.choice(list(self.cluster.brokers))]

    async def begin(self) -> None:
        await self.cluster.start()
        await self.create_topic()
        await self.cluster.until(lambda: len(self.cluster.isr(*KEY)) == len(self.cluster.brokers))

    async def create_topic(self) -> None:
        await self.run(create_topic(self.client, KEY[0], partitions=1, replication_factor=len(self.cluster.brokers)))

    def work(self) -> Workload:
        workload = Workload(self.world, self.cluster.client, {KEY: True})
        workload.start()
        return workload

    async def lose_directory(self) -> str:
        """A broker dies, the directory of its log works no more, and the replica leaves it. Returns the directory."""
        broker_id = self.broker.broker_id
        (lost,) = directories(self.broker)
        self.broker.kill()
        self.broker.fail_directory(lost.rpartition("/")[0])
        await self.cluster.until(lambda: broker_id not in self.cluster.state.live_brokers())
        await self.run(self.administrator.leave(KEY[0], broker_id))
        await self.cluster.until(lambda: broker_id not in self.cluster.state.replicas(KEY[0])[0])
        return lost

    async def start_broker(self) -> None:
        self.broker.start()
        await self.broker.until_up()

    async def in_sync(self) -> None:
        await self.cluster.until(lambda: self.broker.broker_id in self.cluster.isr(*KEY))

    async def mend_directory(self, lost: str) -> None:
        """The broker finds two logs, keeps the one of the other directory, and gets in sync with it."""
        (other,) = {f"{path}/{KEY[0]}-{KEY[1]}" for path in LOG_DIRS} - {lost}
        assert directories(self.broker) == sorted([lost, other])
        self.broker.kill()
        await self.cluster.until(lambda: self.broker.broker_id not in self.cluster.isr(*KEY))
        self.broker.mend_disk()
        await self.start_broker()
        await self.in_sync()
        (aside,) = set(directories(self.broker)) - {other}
        assert aside.startswith(f"{lost}.")
        assert aside.endswith("-stray")

    async def end(self, workload: Workload) -> None:
        await workload.produced(20)
        await workload.stop_producing()
        await converge(self.cluster)
        await judge(self.cluster, workload)
        await self.run(self.administrator.close())
        await self.run(self.client.close())
        await self.cluster.close()


def directories(broker: SimulatedBroker) -> list[str]:
    """The directories in which the broker's disk has the partition's log, or a log that was set aside."""
    found = {path.rpartition("/")[0] for path in broker.node.disk.sizes() if path.endswith(".log")}
    return sorted(path for path in found if path.split("/")[-1].partition(".")[0] == f"{KEY[0]}-{KEY[1]}")


async def a_topic_of_that_name_is_created(world: World) -> None:
    scene = Scene(world)
    await scene.begin()
    await scene.run(scene.administrator.write(KEY[0]))
    lost = await scene.lose_directory()
    await scene.run(delete_topic(scene.client, KEY[0]))
    await scene.cluster.until(lambda: KEY[0] not in scene.cluster.state.topics())
    await scene.start_broker()
    await scene.create_topic()
    workload = scene.work()
    await workload.produced(20)
    await scene.in_sync()
    await scene.mend_directory(lost)
    await scene.end(workload)


async def the_replica_comes_back(world: World) -> None:
    scene = Scene(world)
    await scene.begin()
    workload = scene.work()
    await workload.produced(20)
    lost = await scene.lose_directory()
    await scene.start_broker()
    await workload.produced(20)
    await scene.run(scene.administrator.reassign(KEY, list(scene.cluster.brokers)))
    await scene.in_sync()
    await workload.produced(20)
    await scene.mend_directory(lost)
    await scene.end(workload)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scenario", [a_topic_of_that_name_is_created, the_replica_comes_back])
def test_a_broker_starts_with_an_older_log_in_another_directory(
    scenario: Callable[[World], Coroutine[Any, Any, None]], seed: int
) -> None:
    world = World(seed)
    world.run(scenario(world), time_limit_s=600)
