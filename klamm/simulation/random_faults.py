"""One run of a cluster under faults drawn by chance: `python -m klamm.simulation` sweeps seeds of it.

Safety phase: brokers and ZooKeeper are killed, stopped, stalled and cut off, disks fail and fill up, topics come and
go, members of a group die and stall, while producers, consumers and the group work. Liveness phase: everything is
healed and must become whole again. Then the verdict.

What must stay true: only faults of DESIGN's fault model are injected. A machine loses unsynced writes only in runs
whose topics flush before they acknowledge.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from klamm.net.cluster import ClusterClient
from klamm.simulation.cluster import LOG_DIRS, NEWEST_PROTOCOL, SimulatedBroker, SimulatedCluster
from klamm.simulation.group_workload import GroupWorkload
from klamm.simulation.process import ProcessDead
from klamm.simulation.verdict import converge, judge
from klamm.simulation.workload import Workload, create_topic, delete_topic
from klamm.simulation.world import Node, World
from klamm.znodes.topics import TopicPartition

TOPIC = "events"
PARTITIONS = 3
GROUP = "workers"
PAUSES_S = (0.0, 0.1, 1.0, 4.0, 10.0)
# Shorter and longer than a session (6 s) and than what drops a follower out of the ISR (5 s).
OUTAGES_S = (0.0, 0.5, 3.0, 5.5, 8.0, 20.0)


class RandomFaults:
    """The safety phase of one run."""

    def __init__(
        self, cluster: SimulatedCluster, client: ClusterClient, group: GroupWorkload | None, *, machines_die: bool
    ) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.random = cluster.world.random
        self.machines_die = machines_die
        self._client = client
        self._topics = 0
        self._churn: list[asyncio.Future[None]] = []
        self._faults: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("kill-broker", self._kill_broker),
            ("kill-broker", self._kill_broker),
            ("kill-controller", self._kill_controller),
            ("bounce-broker", self._bounce_broker),
            ("stop-broker", self._stop_broker),
            ("stall-broker", self._stall_broker),
            ("stall-broker", self._stall_broker),
            ("stall-zookeeper", self._stall_zookeeper),
            ("kill-zookeeper", self._kill_zookeeper),
            ("cut-link", self._cut_link),
            ("cut-link", self._cut_link),
            ("isolate-broker", self._isolate_broker),
            ("fail-directory", self._fail_directory),
            ("fill-disk", self._fill_disk),
            ("change-topics", self._change_topics),
        ]
        if group is not None:
            self._members = group.members
            self._faults += [("kill-member", self._kill_member), ("stall-member", self._stall_member)]

    async def run(self, steps: int) -> None:
        """Injects so many faults, several at a time, and waits until each is over."""
        running: list[asyncio.Task[None]] = []
        for _ in range(steps):
            await asyncio.sleep(self.random.choice(PAUSES_S) * self.random.random())
            name, fault = self.random.choice(self._faults)
            self.world.trace.add("faults", name)
            running.append(asyncio.ensure_future(fault()))
        await asyncio.gather(*running)

    async def settle(self) -> None:
        """Waits until the last topic has been created or deleted."""
        await asyncio.gather(*self._churn)

    # -- choices ----------------------------------------------------------------------------------------------------

    def _broker(self) -> SimulatedBroker:
        return self.random.choice(list(self.cluster.brokers.values()))

    def _machine(self) -> bool:
        return self.machines_die and self.random.random() < 0.5

    async def _outage(self) -> None:
        await asyncio.sleep(self.random.choice(OUTAGES_S) * self.random.uniform(0.8, 1.2))

    # -- faults: each ends what it began, unless another fault has ended it before ----------------------------------

    async def _kill_broker(self) -> None:
        await self._kill(self._broker())

    async def _kill_controller(self) -> None:
        controller = self.cluster.brokers.get(self.cluster.controller_id())
        if controller is not None:
            await self._kill(controller)

    async def _kill(self, broker: SimulatedBroker) -> None:
        broker.kill(machine=self._machine())
        await self._outage()
        broker.start()

    async def _bounce_broker(self) -> None:
        broker = self._broker()
        broker.kill()
        broker.start()

    async def _stop_broker(self) -> None:
        broker = self._broker()
        await broker.stop()
        await self._outage()
        broker.start()

    async def _stall_broker(self) -> None:
        await self._stall(self._broker().node)

    async def _stall_zookeeper(self) -> None:
        await self._stall(self.cluster.zookeeper.node)

    async def _stall(self, node: Node) -> None:
        process = node.process
        if process.alive and not process.stalled:
            node.stall()
            await self._outage()
            if node.process is process and process.alive and process.stalled:
                node.resume()

    async def _kill_zookeeper(self) -> None:
        zookeeper = self.cluster.zookeeper
        if zookeeper.node.process.alive:
            zookeeper.kill(machine=self._machine())
            await self._outage()
            try:
                await zookeeper.start()
            except ProcessDead:
                return  # Killed again while it started: whoever did that starts it.

    async def _cut_link(self) -> None:
        names = [broker.node.name for broker in self.cluster.brokers.values()]
        one, other = self.random.sample([*names, self.cluster.zookeeper.node.name, "client"], 2)
        cut = self.random.choice((self.world.network.cut, self.world.network.cut_one_way))
        cut(one, other)
        await self._outage()
        self.world.network.heal(one, other)

    async def _isolate_broker(self) -> None:
        broker = self._broker()
        names = [each.node.name for each in self.cluster.brokers.values() if each is not broker]
        names.append(self.cluster.zookeeper.node.name)
        for name in names:
            self.world.network.cut(broker.node.name, name)
        await self._outage()
        for name in names:
            self.world.network.heal(broker.node.name, name)

    async def _fail_directory(self) -> None:
        broker = self._broker()
        broker.fail_directory(self.random.choice(LOG_DIRS))
        await self._outage()
        self._replace_disk(broker)

    async def _fill_disk(self) -> None:
        broker = self._broker()
        broker.fill_disk()
        await self._outage()
        self._replace_disk(broker)

    def _replace_disk(self, broker: SimulatedBroker) -> None:
        if broker.disk_is_faulty:
            was_wanted = broker.is_wanted
            broker.kill()
            broker.mend_disk()
            if was_wanted:
                broker.start()

    async def _kill_member(self) -> None:
        member = self.random.choice(self._members)
        if member.node.process.alive:
            member.kill()
            await self._outage()
            member.start()

    async def _stall_member(self) -> None:
        await self._stall(self.random.choice(self._members).node)

    async def _change_topics(self) -> None:
        self._topics += 1
        name, deleted = f"topic-{self._topics}", self.random.random() < 0.7
        self._churn.append(self.world.node("client").run(self._create_and_delete(name, deleted)))

    async def _create_and_delete(self, name: str, deleted: bool) -> None:
        await create_topic(self._client, name, partitions=2, replication_factor=self.cluster.replication_factor)
        if deleted:
            await asyncio.sleep(self.random.choice(PAUSES_S))
            await delete_topic(self._client, name)


async def random_faults(
    world: World, *, brokers: int = 3, steps: int = 15, protocols: Sequence[str] = (NEWEST_PROTOCOL,)
) -> str:
    """The scenario. `protocols` as of `SimulatedCluster`. Returns what was counted."""
    cluster = SimulatedCluster(world, brokers=brokers, protocols=protocols)
    await cluster.start()
    client = cluster.client()
    machines_die = world.random.random() < 0.5
    configs = {"flush.messages": "1"} if machines_die else {}
    node = world.node("client")
    await node.run(
        create_topic(
            client, TOPIC, partitions=PARTITIONS, replication_factor=cluster.replication_factor, configs=configs
        )
    )
    keys: list[TopicPartition] = [(TOPIC, partition) for partition in range(PARTITIONS)]
    workload = Workload(world, cluster.client, {key: key[1] != 1 for key in keys})
    workload.start()
    # The topic of committed offsets does not flush before it acknowledges.
    group = None if machines_die else GroupWorkload(world, cluster.client, GROUP, keys)
    if group is not None:
        group.start()
    faults = RandomFaults(cluster, client, group, machines_die=machines_die)
    await faults.run(steps)
    world.trace.add("faults", "heal")
    await cluster.heal()
    await workload.stop_producing()
    if group is not None:
        await group.until_stable()
        await group.ledger.until_commits(PARTITIONS)
        await group.stop()
    await faults.settle()
    await converge(cluster)
    counts = await judge(cluster, workload)
    await node.run(client.close())
    await cluster.close()
    return counts
