"""One run of a cluster under random faults: `python -m klamm.simulation` sweeps its seeds.

Safety phase: brokers and ZooKeeper are killed, stopped, stalled and cut off, disks fail and fill up, members of a group
die and stall, and operators change topics, configs and assignments, while producers, consumers and the group work.
Liveness phase: all faults end and the cluster must become whole again. Then the verdict. The seed also draws the number
of brokers, their protocol versions and the guarantees (`run_shape`).

What must stay true: only faults that klamm promises to survive are injected. Processes die in any number and order.
A machine that dies loses unsynced writes. Any number of machines may die only in runs whose logs flush before they
acknowledge. In other runs one machine dies at a time: it dies while every replica is in sync, and until it is out of
all ISRs at most one more process may die, so some other member of each ISR stays up. `docs/operations.md` says the same
to operators.
"""

import asyncio
import contextlib
import contextvars
import random
from collections.abc import Awaitable, Callable, Sequence

from klamm.broker.start.broker import Broker
from klamm.protocol.vocabulary import PartitionKey
from klamm.simulation.cluster.cluster import LOG_DIRS, SimulatedBroker, SimulatedCluster
from klamm.simulation.judges.invariants import Invariants
from klamm.simulation.machine.process import ProcessDead
from klamm.simulation.machine.small_slices import small_slices
from klamm.simulation.machine.world import Node, World
from klamm.simulation.runs.ground import OUTAGES_S, PART_S, PATIENCE_S, Ground
from klamm.simulation.runs.rot import Rot
from klamm.simulation.workloads.administration import Administrator
from klamm.simulation.workloads.clients import GROUP, TOPIC, UNCLEAN_TOPIC, Clients
from klamm.simulation.workloads.group_workload import GroupWorkload
from klamm.simulation.workloads.run_shape import LAGGING_SHARES, RunShape, draw_shape
from klamm.simulation.workloads.schedule import Schedule, Step, begin_step
from klamm.simulation.workloads.transactional_workload import PROPERTIES as TRANSACTION_PROPERTIES
from klamm.simulation.workloads.verdict import serving
from klamm.storage.segments.log_directory import FUTURE_SUFFIX
from klamm.znodes.controller_store import NO_CONTROLLER

# A run has this many faults and operator actions, of a random half of all kinds (see `run_shape`).
STEPS = (2, 4, 8, 16)
SHARE_OF_KINDS = 0.5
SHARE_OF_WORK = 0.4
PAUSES_S = (0.0, 0.1, 1.0, 4.0, 10.0)
RESETS = 40
LOST_ANSWERS = 30
SECONDS_UNTIL_RESET = 0.01
SESSION_OUTAGES_S = (3.0, 10.0, 20.0)
LOOKS_FOR_A_PROMOTION = 2_000
SECONDS_BETWEEN_LOOKS = 0.0005
# How wrong a broker's wall clock may be set, and how much it may gain or lose in a second: far more than a real clock.
CLOCK_ERROR_MS = 1_500
CLOCK_DRIFT = 0.005
# The share of runs that end with an election whose answer is lost. Earlier in a run, the next election would hide the
# effects.
SHARE_OF_LOST_ELECTIONS = 0.25
# How long a ZooKeeper ensemble has no leader.
ELECTIONS_S = (0.0, 0.2, 1.0, 3.0)

# The name of a fault or of operators' work, and the function that does it.
NamedAction = tuple[str, Callable[[], Awaitable[None]]]


class RandomFaults(Ground):
    """The safety phase of one run.

    Logs rot and wall clocks drift only if the clients of the run expect it.
    """

    def __init__(
        self,
        cluster: SimulatedCluster,
        administrator: Administrator,
        group: GroupWorkload | None,
        *,
        logs_flush: bool,
        clocks_drift: bool = False,
        logs_rot: bool = False,
    ) -> None:
        super().__init__(cluster, administrator)
        self.logs_flush = logs_flush
        self._members = group.members if group is not None else []
        self._rot = Rot(self, self._members)
        self._faults: list[NamedAction] = [
            ("kill-broker", self._kill_broker),
            ("kill-broker", self._kill_broker),
            ("kill-controller", self._kill_controller),
            ("kill-at-promotion", self._kill_at_promotion),
            ("bounce-broker", self._bounce_broker),
            ("stop-broker", self._stop_broker),
            ("stall-broker", self._stall_broker),
            ("stall-broker", self._stall_broker),
            ("stall-zookeeper", self._stall_zookeeper),
            ("kill-zookeeper", self._kill_zookeeper),
            ("cut-link", self._cut_link),
            ("cut-link", self._cut_link),
            ("break-connections", self._break_connections),
            ("break-connections", self._break_connections),
            ("lose-answers", self._lose_answers),
            ("isolate-broker", self._isolate_broker),
            ("fail-directory", self._fail_directory),
            ("fill-disk", self._fill_disk),
            ("exhaust-descriptors", self._exhaust_descriptors),
            ("roll-brokers", self._roll_brokers),
            ("delay-stop-replica", self._delay_stop_replica),
            ("delay-stop-replica", self._delay_stop_replica),
            ("elect-ensemble", self._elect_ensemble),
            ("cut-from-zookeeper", self._cut_from_zookeeper),
            ("cut-from-zookeeper", self._cut_from_zookeeper),
            ("cut-from-zookeeper", self._cut_from_zookeeper),
        ]
        # Only the end of a run has this fault.
        self._last = ("lose-election", self._lose_election)
        self._running: list[asyncio.Task[None]] = []
        self._alone = [self._kill_one_machine, self._rot.rot_replica, self._lose_election]
        if cluster.have_topic_ids and cluster.replication_factor > 1:
            self._faults.append(("recreate-topic", self._recreate_topic))
        if logs_rot and cluster.replication_factor > 1:
            self._faults.append(("rot-replica", self._rot.rot_replica))
        if not logs_flush and cluster.replication_factor > 1:
            self._faults += [("kill-one-machine", self._kill_one_machine)] * 2
        if clocks_drift:
            self._faults += [("set-clock", self._set_clock)] * 2
            for broker in cluster.brokers.values():
                self._set(broker)
        if self._members:
            self._faults += [("kill-member", self._kill_member), ("stall-member", self._stall_member)]

    def draw(self, count: int | None = None) -> tuple[Step, ...]:
        """Steps for `replay`, drawn from the seed of the world. Their number is drawn too, unless it is given."""
        chance = random.Random(f"{self.world.seed}/schedule")
        drawn_count = chance.choice(STEPS)
        count = drawn_count if count is None else count
        work, faults = _half(chance, self.administrator.work), _half(chance, self._faults)
        steps = []
        for number in range(count):
            pause_s = chance.choice(PAUSES_S) * chance.random()
            actions = work if chance.random() < SHARE_OF_WORK else faults
            steps.append(Step(round(pause_s, 3), chance.choice(actions)[0], number))
        if chance.random() < SHARE_OF_LOST_ELECTIONS:
            steps.append(Step(0.0, self._last[0], count))
        return tuple(steps)

    async def run(self, count: int) -> None:
        """Injects `count` faults and operator actions that the seed of the world draws, several at a time."""
        await self.replay(self.draw(count))

    async def replay(self, steps: Sequence[Step]) -> None:
        """Injects these faults and operator actions; waits until each fault is over. ValueError for an unknown one."""
        work, faults = dict(self.administrator.work), dict([*self._faults, self._last])
        for step in steps:
            if step.action not in {*work, *faults}:
                raise ValueError(f"this run knows no {step.action!r}; it knows {', '.join(sorted({*work, *faults}))}")
            await asyncio.sleep(step.pause_s)
            self.world.trace.add("faults", step.action)
            context = contextvars.copy_context()
            context.run(begin_step, self.world.seed, step)
            if step.action in work:
                context.run(self.administrator.begin, work[step.action])
            elif faults[step.action] in self._alone:
                await self._until_over()
                await _task(faults[step.action], context)
            else:
                self._running.append(_task(faults[step.action], context))
        await self._until_over()

    async def _until_over(self) -> None:
        await asyncio.gather(*self._running)

    # -- choices ----------------------------------------------------------------------------------------------------

    def _machine(self) -> bool:
        return self.logs_flush and self.random.random() < 0.5

    # -- faults: each fault undoes itself, unless another fault has undone it before ---------------------------------

    async def _kill_broker(self) -> None:
        await self._kill(self.broker(), machine=self._machine())

    async def _kill_controller(self) -> None:
        controller = self.cluster.brokers.get(self.cluster.controller_id())
        if controller is not None:
            await self._kill(controller, machine=self._machine())

    async def _kill(self, broker: SimulatedBroker, *, machine: bool) -> None:
        broker.kill(machine=machine)
        await self.outage()
        broker.start()

    async def _kill_at_promotion(self) -> None:
        """Moves replicas to other log directories, and kills a broker between the two renames that replace a log by its
        new copy."""
        self.administrator.begin(self.administrator.move_replicas)
        for _ in range(LOOKS_FOR_A_PROMOTION):
            for broker in self.cluster.brokers.values():
                if broker.broker is not None and _is_promoting(broker.broker):
                    await self._kill(broker, machine=self._machine())
                    return
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)

    async def _kill_one_machine(self) -> None:
        """Runs while no other fault is active; the next fault begins when the machine is out of all ISRs."""
        if not await self.is_whole():
            return
        is_controller = self.random.random() < 0.5
        broker = self.cluster.brokers[self.cluster.controller_id()] if is_controller else self.broker()
        self.world.trace.add("faults", "machine", broker.node.name)
        self._running.append(asyncio.ensure_future(self._kill(broker, machine=True)))
        if self.cluster.replication_factor > 2 and self.random.random() < 0.5:
            self._running.append(asyncio.ensure_future(self._kill_another(broker)))
        await self._until_out_of_all_isrs(broker)
        # ZooKeeper knows the new ISRs, but may forget them again until they are on its disk.
        await asyncio.sleep(0.1)

    async def _until_out_of_all_isrs(self, broker: SimulatedBroker) -> bool:
        """Whether a killed broker leaves each ISR once within `PATIENCE_S`."""
        left: set[PartitionKey] = set()

        def is_out_of_all_isrs() -> bool:
            # The last member never leaves an ISR.
            states = {
                key: state for key, state in self.cluster.state.partitions().items() if len(self.replicas(key)) > 1
            }
            left.update(key for key, state in states.items() if broker.broker_id not in state.isr)
            return left.issuperset(states)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self.cluster.until(is_out_of_all_isrs)
                return True
        return False

    async def _kill_another(self, broker: SimulatedBroker) -> None:
        other = self.random.choice([each for each in self.cluster.brokers.values() if each is not broker])
        await asyncio.sleep(self.random.uniform(0, 10))
        await self._kill(other, machine=False)

    async def _bounce_broker(self) -> None:
        broker = self.broker()
        broker.kill()
        broker.start()

    async def _stop_broker(self) -> None:
        broker = self.broker()
        await broker.stop()
        await self.outage()
        broker.start()

    async def _roll_brokers(self) -> None:
        """Stops and starts one broker after the other, as an upgrade does, without waiting for the ISRs."""
        for broker in self.cluster.brokers.values():
            await broker.stop()
            broker.start()
            await asyncio.sleep(self.random.uniform(0, 2))

    async def _set_clock(self) -> None:
        """Sets a broker's clock forward or back. The clock stays wrong."""
        self._set(self.broker())

    def _set(self, broker: SimulatedBroker) -> None:
        ahead_ms = self.random.uniform(-CLOCK_ERROR_MS, CLOCK_ERROR_MS)
        drift = self.random.uniform(-CLOCK_DRIFT, CLOCK_DRIFT)
        self.world.trace.add(broker.node.name, "clock", round(ahead_ms), f"{drift:.4f}")
        broker.node.clock.set_wrong(ahead_ms, drift)

    async def _elect_ensemble(self) -> None:
        """The ZooKeeper ensemble loses its leader and elects another. Transactions that no client has seen are lost.
        All connections end, and clients connect to other members; some connect to the member that lags."""
        zookeeper = self.cluster.zookeeper
        if not zookeeper.node.process.alive:
            return
        zookeeper.kill(machine=True)
        lagging = [broker for broker in self.cluster.brokers.values() if self.random.random() < LAGGING_SHARES[-1]]
        zookeeper.lag.clients = {broker.node.address for broker in lagging}
        self.world.trace.add("zookeeper", "elects", *[broker.node.name for broker in lagging])
        await self.outage(ELECTIONS_S)
        try:
            await zookeeper.start()
        except ProcessDead:
            return  # Another fault has killed ZooKeeper during its start, and will start it again.

    async def _stall_broker(self) -> None:
        await self._stall(self.broker().node)

    async def _stall_zookeeper(self) -> None:
        await self._stall(self.cluster.zookeeper.node)

    async def _stall(self, node: Node) -> None:
        process = node.process
        if process.alive and not process.stalled:
            node.stall()
            await self.outage()
            if node.process is process and process.alive and process.stalled:
                node.resume()

    async def _kill_zookeeper(self) -> None:
        zookeeper = self.cluster.zookeeper
        if zookeeper.node.process.alive:
            # All writes that ZooKeeper has acknowledged are on its disk.
            zookeeper.kill(machine=self.random.random() < 0.5)
            await self.outage()
            try:
                await zookeeper.start()
            except ProcessDead:
                return  # Another fault has killed ZooKeeper during its start, and will start it again.

    def _link(self) -> tuple[str, str]:
        names = [broker.node.name for broker in self.cluster.brokers.values()]
        one, other = self.random.sample([*names, self.cluster.zookeeper.node.name, "client"], 2)
        return one, other

    async def _break_connections(self) -> None:
        """Resets the connections between two machines repeatedly, in the middle of their exchanges.

        Often the machines are the controller and a broker, because requests between these are the hardest to repeat.
        """
        one, other = self._link()
        controller, broker = self.cluster.brokers.get(self.cluster.controller_id()), self.broker()
        if controller is not None and self.random.random() < 0.5:
            one, other = controller.node.name, broker.node.name
        for _ in range(RESETS):
            self.world.network.end_connections(one, other)
            await asyncio.sleep(self.random.uniform(0, 0.2))

    async def _lose_answers(self) -> None:
        """Resets the controller's connections to ZooKeeper right after transactions, so that their answers are lost.
        Also moves the controller in between, so that elections and failovers are interrupted too."""
        zookeeper = self.cluster.zookeeper
        await self._bounce_broker()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(OUTAGES_S)):
                for _ in range(LOST_ANSWERS):
                    await zookeeper.until_transaction()
                    controller = self.cluster.brokers.get(self.cluster.controller_id())
                    what = self.random.random()
                    if controller is not None and what < 0.4:
                        await self._lose_answer(controller)
                    elif what < 0.5:
                        self.administrator.begin(self.administrator.move_controller)

    async def _lose_election(self) -> None:
        """The controller moves, and the new controller does not get the answer to its election: it only finds its own
        id in /controller. Runs while no other fault is active. No other election follows."""
        cluster = self.cluster
        self.administrator.begin(self.administrator.move_controller)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PART_S):
                await cluster.until(lambda: cluster.controller_id() == NO_CONTROLLER)
                await cluster.until(lambda: cluster.controller_id() != NO_CONTROLLER)
                await self._lose_answer(cluster.brokers[cluster.controller_id()])

    async def _delay_stop_replica(self) -> None:
        """The controller cannot reach a broker to which it sends StopReplica, and is then paused. Its request may
        arrive after the next controller has reverted the reassignment."""
        cluster, network = self.cluster, self.world.network
        former = cluster.controller_id()
        keys = [key for key in cluster.state.partitions() if key[0] == TOPIC and former != cluster.leader(*key)]
        if former == NO_CONTROLLER or not keys:
            return
        key = self.random.choice(keys)
        replicas = self.replicas(key)
        stopped = [each for each in replicas if each not in (former, cluster.leader(*key))]
        free = [each for each in cluster.brokers if each not in replicas]
        if not stopped or not free:
            return
        chosen, instead = self.random.choice(stopped), self.random.choice(free)
        elsewhere = [instead if each == chosen else each for each in replicas]
        controller, replica = cluster.brokers[former].node, cluster.brokers[chosen].node
        await self._reassigned(key, elsewhere, lambda: chosen not in cluster.isr(*key))
        network.cut_one_way(controller.name, replica.name)
        await self.passed(lambda: sorted(self.replicas(key)) == sorted(elsewhere))
        await asyncio.sleep(1)
        process = controller.process
        if process.alive and not process.stalled:
            controller.stall()
        await self.passed(lambda: cluster.controller_id() not in (former, NO_CONTROLLER))
        await self._reassigned(key, replicas, lambda: chosen in cluster.isr(*key))
        network.heal(controller.name, replica.name)
        if controller.process is process and process.alive and process.stalled:
            controller.resume()

    async def _recreate_topic(self) -> None:
        """A broker dies. A topic is moved away from it, deleted, and created again with a replica on this broker, which
        still has the former log. Without topic ids a broker cannot tell the two topics apart."""
        administrator, state = self.administrator, self.cluster.state
        name = administrator.take_name()
        if name is None:
            return
        await self._done(lambda: administrator.create(name, self.cluster.replication_factor))
        await self._done(lambda: administrator.write(name))
        hosts = sorted(self._hosts(name))
        broker = self.cluster.brokers[self.random.choice(hosts)] if hosts else self.broker()
        broker.kill()
        await self.passed(lambda: broker.broker_id not in state.live_brokers())
        administrator.begin(lambda: administrator.leave(name, broker.broker_id))
        await self.passed(lambda: broker.broker_id not in self._hosts(name))
        await self._done(lambda: administrator.delete(name))
        broker.start()
        await self._done(lambda: administrator.create(name, len(self.cluster.brokers)))
        administrator.give_back(name)

    def _hosts(self, topic: str) -> set[int]:
        """The brokers of a topic; empty if the topic does not exist."""
        known = self.cluster.state.replicas(topic) if topic in self.cluster.state.topics() else {}
        return {broker_id for replicas in known.values() for broker_id in replicas}

    async def _done(self, work: Callable[[], Awaitable[None]]) -> None:
        """Begins operators' work. Returns when it is done, or after `PART_S`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PART_S):
                await asyncio.shield(self.administrator.begin(work))

    async def _reassigned(self, key: PartitionKey, replicas: Sequence[int], is_reached: Callable[[], bool]) -> None:
        """Starts a reassignment. Returns when `is_reached()`, or after `PART_S`."""
        self.administrator.begin(lambda: self.administrator.reassign(key, replicas))
        await self.passed(is_reached)

    async def _lose_answer(self, broker: SimulatedBroker) -> None:
        """Delays the answer of ZooKeeper, so that the reset arrives before it."""
        name, zookeeper = broker.node.name, self.cluster.zookeeper.node.name
        self.world.network.cut_one_way(zookeeper, name)
        self.world.network.end_connections(name, zookeeper)
        await asyncio.sleep(SECONDS_UNTIL_RESET)
        self.world.network.heal(name, zookeeper)

    async def _cut_link(self) -> None:
        one, other = self._link()
        cut = self.random.choice((self.world.network.cut, self.world.network.cut_one_way))
        cut(one, other)
        await self.outage()
        self.world.network.heal(one, other)

    async def _cut_from_zookeeper(self) -> None:
        """Cuts a broker off from ZooKeeper, mostly until its session is over; clients and followers still reach it."""
        broker, zookeeper = self.broker().node.name, self.cluster.zookeeper.node.name
        self.world.network.cut(broker, zookeeper)
        await self.outage(SESSION_OUTAGES_S)
        self.world.network.heal(broker, zookeeper)

    async def _isolate_broker(self) -> None:
        """Only clients still reach the broker. Often the broker is the coordinator of the group."""
        broker = self.broker()
        if self._members and self.random.random() < 0.5:
            with contextlib.suppress(KeyError):  # The group has no coordinator at present.
                broker = self.cluster.brokers[self.cluster.coordinator(GROUP)]
        names = [each.node.name for each in self.cluster.brokers.values() if each is not broker]
        names.append(self.cluster.zookeeper.node.name)
        for name in names:
            self.world.network.cut(broker.node.name, name)
        await self.outage()
        for name in names:
            self.world.network.heal(broker.node.name, name)

    async def _fail_directory(self) -> None:
        broker = self.broker()
        broker.fail_directory(self.random.choice(LOG_DIRS))
        await self.outage()
        self._replace_disk(broker)

    async def _fill_disk(self) -> None:
        broker = self.broker()
        broker.fill_disk()
        await self.outage()
        self._replace_disk(broker)

    async def _exhaust_descriptors(self) -> None:
        broker = self.broker()
        broker.exhaust_descriptors()
        await self.outage()
        broker.free_descriptors()

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
            await self.outage()
            member.start()

    async def _stall_member(self) -> None:
        await self._stall(self.random.choice(self._members).node)


def _half(chance: random.Random, actions: Sequence[NamedAction]) -> list[NamedAction]:
    """A random half of the actions, at least one."""
    kinds = list(dict.fromkeys(name for name, _ in actions))
    always = chance.choice(kinds)
    kept = {kind for kind in kinds if chance.random() < SHARE_OF_KINDS or kind == always}
    return [action for action in actions if action[0] in kept]


def _task(action: Callable[[], Awaitable[None]], context: contextvars.Context) -> asyncio.Task[None]:
    async def do() -> None:
        await action()

    return asyncio.get_running_loop().create_task(do(), context=context)


def _is_promoting(broker: Broker) -> bool:
    return any(log.directory.endswith(FUTURE_SUFFIX) for log in broker.parts.log_manager.logs.values())


async def random_faults(
    world: World,
    *,
    brokers: int | None = None,
    steps: int | None = None,
    protocols: Sequence[str] | None = None,
    schedule: Schedule | None = None,
    on_schedule: Callable[[Schedule], object] = lambda schedule: None,
) -> str:
    """The scenario. The seed draws `brokers`, `protocols` (see `SimulatedCluster`) and the number of `steps` unless
    they are given. With a `schedule`, which has the seed of the world, nothing is drawn.

    Calls `on_schedule` before the first fault. Returns the counts as text.
    """
    chance = random.Random(f"{world.seed}/shape")
    shape = schedule.shape if schedule is not None else draw_shape(chance, brokers=brokers, protocols=protocols)
    world.trace.add("faults", "shape", shape)

    async def inject(faults: RandomFaults) -> None:
        chosen = schedule or Schedule(world.seed, shape, faults.draw(steps))
        on_schedule(chosen)
        await faults.replay(chosen.steps)

    if not shape.small_slices:
        return await _run(world, shape, inject)
    world.loop.turns = random.Random(f"{world.seed}/turns")
    with small_slices():
        return await _run(world, shape, inject)


async def _run(world: World, shape: RunShape, inject: Callable[[RandomFaults], Awaitable[None]]) -> str:
    cluster = SimulatedCluster(
        world,
        brokers=shape.brokers,
        protocols=shape.protocols,
        lagging=shape.lagging,
        replication_factor=shape.replication_factor,
        min_insync_replicas=shape.min_insync_replicas,
        properties={
            "num.replica.fetchers": str(shape.replica_fetchers),
            "log.preallocate": str(shape.preallocates).lower(),
        }
        | TRANSACTION_PROPERTIES
        | ({"log.flush.interval.messages": "1"} if shape.logs_flush else {}),
        has_racks=shape.has_racks,
    )
    await cluster.start()
    invariants = Invariants(cluster)
    invariants.start()
    node = world.node("client")
    clients = Clients(cluster, shape)
    await clients.create_topics(node)
    clients.start()
    administrator = Administrator(cluster, UNCLEAN_TOPIC, shape.min_insync_replicas)
    await inject(
        RandomFaults(
            cluster,
            administrator,
            clients.group,
            logs_flush=shape.logs_flush,
            clocks_drift=shape.clocks_drift,
            logs_rot=True,
        )
    )
    world.trace.add("faults", "heal")
    await cluster.heal()
    async with serving(cluster):
        await clients.finish()
        await administrator.finish()
    counts = await clients.judge()
    await invariants.stop()
    await node.run(administrator.close())
    await cluster.close()
    return f"{shape.brokers} brokers, {counts}"
