"""One run of a cluster under faults drawn by chance: `python -m klamm.simulation` sweeps seeds of it.

Safety phase: brokers and ZooKeeper are killed, stopped, stalled and cut off, disks fail and fill up, topics come and
go, members of a group die and stall, while producers, consumers and the group work. Liveness phase: everything is
healed and must become whole again. Then the verdict.

What must stay true: only faults that klamm promises to survive are injected. Processes die in any number and order.
Machines, which lose unsynced writes, do so only in runs whose topics flush before they acknowledge; in the others one
machine dies at a time. It dies while every replica is in sync, and until it is out of all ISRs one more process may
die, no second one: some other member of each ISR stays up. `docs/operations.md` says the same to operators.
"""

import asyncio
import contextlib
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
# How long a machine's death waits until the cluster is whole, and until the machine is out of all ISRs.
PATIENCE_S = 60


class RandomFaults:
    """The safety phase of one run."""

    def __init__(
        self, cluster: SimulatedCluster, client: ClusterClient, group: GroupWorkload | None, *, topics_flush: bool
    ) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.random = cluster.world.random
        self.topics_flush = topics_flush
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
        self._running: list[asyncio.Task[None]] = []
        if not topics_flush and cluster.replication_factor > 1:
            self._faults += [("kill-one-machine", self._kill_one_machine)] * 2
        if group is not None:
            self._members = group.members
            self._faults += [("kill-member", self._kill_member), ("stall-member", self._stall_member)]

    async def run(self, steps: int) -> None:
        """Injects so many faults, several at a time, and waits until each is over."""
        for _ in range(steps):
            await asyncio.sleep(self.random.choice(PAUSES_S) * self.random.random())
            name, fault = self.random.choice(self._faults)
            self.world.trace.add("faults", name)
            if fault == self._kill_one_machine:
                await self._until_over()
                await fault()
            else:
                self._running.append(asyncio.ensure_future(fault()))
        await self._until_over()

    async def _until_over(self) -> None:
        await asyncio.gather(*self._running)

    async def settle(self) -> None:
        """Waits until the last topic has been created or deleted."""
        await asyncio.gather(*self._churn)

    # -- choices ----------------------------------------------------------------------------------------------------

    def _broker(self) -> SimulatedBroker:
        return self.random.choice(list(self.cluster.brokers.values()))

    def _machine(self) -> bool:
        return self.topics_flush and self.random.random() < 0.5

    async def _outage(self) -> None:
        await asyncio.sleep(self.random.choice(OUTAGES_S) * self.random.uniform(0.8, 1.2))

    # -- faults: each ends what it began, unless another fault has ended it before ----------------------------------

    async def _kill_broker(self) -> None:
        await self._kill(self._broker(), machine=self._machine())

    async def _kill_controller(self) -> None:
        controller = self.cluster.brokers.get(self.cluster.controller_id())
        if controller is not None:
            await self._kill(controller, machine=self._machine())

    async def _kill(self, broker: SimulatedBroker, *, machine: bool) -> None:
        broker.kill(machine=machine)
        await self._outage()
        broker.start()

    async def _kill_one_machine(self) -> None:
        """No other fault is under way, and the next one begins when the machine is out of all ISRs."""
        if not await self._is_whole():
            return
        is_controller = self.random.random() < 0.5
        broker = self.cluster.brokers[self.cluster.controller_id()] if is_controller else self._broker()
        self.world.trace.add("faults", "machine", broker.node.name)
        self._running.append(asyncio.ensure_future(self._kill(broker, machine=True)))
        if self.cluster.replication_factor > 2 and self.random.random() < 0.5:
            self._running.append(asyncio.ensure_future(self._kill_another(broker)))
        left: set[TopicPartition] = set()

        def is_out_of_all_isrs() -> bool:
            states = self.cluster.state.partitions()
            left.update(key for key, state in states.items() if broker.broker_id not in state.isr)
            return left.issuperset(states)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self.cluster.until(is_out_of_all_isrs)

    async def _kill_another(self, broker: SimulatedBroker) -> None:
        other = self.random.choice([each for each in self.cluster.brokers.values() if each is not broker])
        await asyncio.sleep(self.random.uniform(0, 10))
        await self._kill(other, machine=False)

    async def _is_whole(self) -> bool:
        """Whether the cluster becomes whole in time, and is still so when the controller has heard of all that was."""
        was_whole = False
        for _ in range(PATIENCE_S):
            is_whole = self.cluster.is_whole()
            if is_whole and was_whole:
                return True
            was_whole = is_whole
            await asyncio.sleep(1)
        return False

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
            # Whatever it has acknowledged is on its disk.
            zookeeper.kill(machine=self.random.random() < 0.5)
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
    topics_flush = world.random.random() < 0.5
    configs = {"flush.messages": "1"} if topics_flush else {}
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
    group = None if topics_flush else GroupWorkload(world, cluster.client, GROUP, keys)
    if group is not None:
        group.start()
    faults = RandomFaults(cluster, client, group, topics_flush=topics_flush)
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
