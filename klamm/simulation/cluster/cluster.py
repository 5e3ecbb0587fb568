"""A simulated klamm cluster: one ZooKeeper server, brokers with supervisors, and machines for clients.

    cluster = SimulatedCluster(world, brokers=3)
    await cluster.start()
    cluster.brokers[1].kill()
    ...
    cluster.brokers[1].start()
    await cluster.close()

Machines are called `zookeeper`, `broker-0` and so on. The scenario names the machines of clients.

What must stay true:
- A broker that ends by itself fails the run, unless its disk is at fault (`disk_is_faulty`). A broker that cannot
  start, because ZooKeeper is unavailable or its id is still taken, is started again, as a supervisor does.
- Every transaction of ZooKeeper is in the trace and has been checked (`StateChecker`).
"""

import asyncio
import errno
import random
from collections.abc import Callable, Collection, Sequence

from klamm.broker.start.broker import Broker, BrokerStartError
from klamm.client.cluster import ClusterClient
from klamm.client.retries import RetryPolicy
from klamm.config.broker import BrokerConfig
from klamm.config.versions import ApiVersion
from klamm.coordinator.groups.group_metadata_manager import partition_for
from klamm.net.client import Address, ConnectionOptions
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME, PartitionKey
from klamm.replication.partition.partition import Partition
from klamm.simulation.cluster.ensemble import EnsembleServer, Lag
from klamm.simulation.cluster.witnessed_broker import WitnessedBroker
from klamm.simulation.machine.process import ProcessDead, SimulationFailure
from klamm.simulation.machine.world import Node, World
from klamm.simulation.witnesses.rules import Rules
from klamm.simulation.witnesses.state_checker import StateChecker
from klamm.zookeeper.keeper_exceptions import ZooKeeperError

LOG_DIRS = ("/disk-a", "/disk-b")
BROKER_PORT = 9092
ZOOKEEPER_PORT = 2181
NEWEST_PROTOCOL = "2.8"
RESTART_DELAY_S = 1.0
PATIENT = RetryPolicy(deadline_ms=600_000)
CLIENT_OPTIONS = ConnectionOptions(connect_timeout_ms=2_000, request_timeout_ms=15_000)

# Shorter than Kafka's defaults, so that less virtual time passes until something happens.
PROPERTIES = {
    "log.dirs": ",".join(LOG_DIRS),
    "listeners": f"PLAINTEXT://:{BROKER_PORT}",
    "zookeeper.connect": f"zookeeper:{ZOOKEEPER_PORT}",
    "zookeeper.session.timeout.ms": "6000",
    "replica.lag.time.max.ms": "5000",
    "leader.imbalance.check.interval.seconds": "10",
    "file.delete.delay.ms": "1000",
    "log.segment.bytes": "4096",
    "log.cleaner.backoff.ms": "1000",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "offsets.topic.segment.bytes": "4096",
    "offsets.topic.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "500",
}
RACK_AWARE = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}


class SimulatedZooKeeper:
    """The ZooKeeper machine and its server. `lag` names the brokers that a lagging member serves."""

    def __init__(self, world: World, checker: StateChecker) -> None:
        self.node = world.node("zookeeper")
        self._world = world
        self._checker = checker
        self.lag = Lag(random.Random(f"{world.seed}/lag"))
        self._transaction = asyncio.Event()

    async def start(self) -> None:
        """Starts the server; after `kill`, in a new process."""
        node = self.node
        if not node.process.alive:
            node.restart()
        server = EnsembleServer(
            node.environment,
            "/zookeeper",
            node.address,
            ZOOKEEPER_PORT,
            self.lag,
            on_transaction=lambda zxid, transaction: self._on_transaction(server, zxid, transaction),
        )
        await node.run(server.start())
        self._checker.recovered(server.tree)
        if self._world.recorder is not None:
            self._world.recorder.recovered(server.tree)
        node.run(server.wait_closed())

    def kill(self, *, machine: bool = False) -> None:
        self.node.crash(machine=machine)

    async def until_transaction(self) -> None:
        """Returns after the next transaction."""
        self._transaction.clear()
        await self._transaction.wait()

    def _on_transaction(self, server: EnsembleServer, zxid: int, transaction: str) -> None:
        self._world.trace.add("zookeeper", "znodes", zxid, transaction)
        try:
            self._checker.changed(server.tree, transaction, server.writer)
        except SimulationFailure as error:
            self._world.loop.fail(str(error))
            raise
        if self._world.recorder is not None:
            self._world.recorder.changed(server.tree, transaction)
        self._transaction.set()


class SimulatedBroker:
    """One broker and its supervisor. `broker` is None while it is not up."""

    def __init__(self, world: World, broker_id: int, config: BrokerConfig, rules: Rules) -> None:
        self.broker_id = broker_id
        self.node: Node = world.node(f"broker-{broker_id}")
        self.broker: WitnessedBroker | None = None
        self._rules = rules
        self.disk_is_faulty = False
        self.is_short_of_descriptors = False
        # A bit of a log has changed, and no operator has removed that log yet.
        self.has_rotten_log = False
        self._world = world
        self._config = config
        self._wanted = asyncio.Event()
        self._changed = asyncio.Event()
        self._supervision = asyncio.get_running_loop().create_task(self._supervise())
        self._supervision.add_done_callback(self._supervision_ended)

    @property
    def is_wanted(self) -> bool:
        """Whether the supervisor keeps the broker running."""
        return self._wanted.is_set()

    def start(self) -> None:
        """Makes the supervisor keep the broker running from now on."""
        self._wanted.set()

    async def until_up(self) -> None:
        """Returns when the broker serves clients."""
        while self.broker is None:
            self._changed.clear()
            await self._changed.wait()

    def kill(self, *, machine: bool = False) -> None:
        """kill -9, or with `machine` a power failure. The broker stays down until `start`."""
        self._wanted.clear()
        self._exit(machine=machine)

    async def stop(self) -> None:
        """Stops the broker as an operator does. It stays down until `start`. It may be killed during the stop."""
        broker, process = self.broker, self.node.process
        self.broker = None
        self._wanted.clear()
        if broker is not None:
            try:
                await self.node.run(broker.stop())
            except ProcessDead:
                return
        if self.node.process is process:
            self._exit()

    async def close(self) -> None:
        """Ends the supervisor."""
        self._supervision.cancel()
        await asyncio.gather(self._supervision, return_exceptions=True)

    def fail_directory(self, directory: str = LOG_DIRS[0], error_number: int = errno.EIO) -> None:
        """Makes writes and syncs in one log directory fail until `mend_disk`."""
        self.disk_is_faulty = True
        for operation in ("write", "sync"):
            self.node.disk.fail(operation, f"{directory}/*", error_number, times=None)

    def fill_disk(self) -> None:
        """Makes the disk full until `mend_disk`."""
        self.disk_is_faulty = True
        self.node.disk.capacity_bytes = self.node.disk.used_bytes()

    def exhaust_descriptors(self) -> None:
        """Keeps the broker from opening files below its log directories until `free_descriptors`. The broker needs no
        restart afterwards."""
        self.is_short_of_descriptors = True
        for directory in LOG_DIRS:
            self.node.disk.exhaust_descriptors(directory)

    def free_descriptors(self) -> None:
        self.is_short_of_descriptors = False
        self.node.disk.free_descriptors()

    def mend_disk(self) -> None:
        """Ends the disk's faults. A failed directory stays offline in the running broker until its restart."""
        self.disk_is_faulty = False
        self.node.disk.mend()

    async def _supervise(self) -> None:
        while True:
            await self._wanted.wait()
            if not self.node.process.alive:
                self.node.restart()
            try:
                await self._live()
            except ProcessDead:
                continue
            except (BrokerStartError, ZooKeeperError) as error:
                self._world.trace.add(self.node.name, "start-failed", type(error).__name__)
            except (OSError, KafkaError):
                # Without descriptors, or with a damaged log, a broker may fail to start. A running broker continues.
                may_not_start = self.is_short_of_descriptors or self.has_rotten_log
                if not (self.disk_is_faulty or (may_not_start and self.broker is None)):
                    raise
                self._world.trace.add(self.node.name, "disk-failed")
            if self.node.process.alive:
                self._exit()
            await asyncio.sleep(RESTART_DELAY_S)

    async def _live(self) -> None:
        """Runs the broker; raises the error that ends it."""
        broker = WitnessedBroker(self._config, self.node, self._rules, self._faulty)
        if self._world.recorder is not None:
            self._world.recorder.starts(self.broker_id, broker)
        self._rules.state.begins(self.broker_id)
        await self.node.run(broker.start())
        self.broker = broker
        self._changed.set()
        reason = await self.node.run(_failure_of(broker))
        if isinstance(reason, OSError | KafkaError):
            raise reason
        raise AssertionError(f"broker {self.broker_id} gave up") from reason

    def _faulty(self, fault: BaseException) -> None:
        self._world.loop.fail(str(fault), fault)

    def _exit(self, *, machine: bool = False) -> None:
        self.broker = None
        if self.node.process.alive:
            self.node.crash(machine=machine)

    def _supervision_ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._world.loop.fail(f"broker {self.broker_id} ended: {error!r}", error)


async def _failure_of(broker: Broker) -> BaseException:
    return await broker.failure


class SimulatedCluster:
    """See the module. `properties` change or complete `PROPERTIES` on every broker. `protocols` are the brokers'
    inter.broker.protocol.versions: the brokers take them in turn.

    The brokers in `lagging` are served by a member of the ZooKeeper ensemble that lags behind.
    `replication_factor` is the default of topics: three, or the number of brokers if that is less.
    `min_insync_replicas` is one less by default, but at least 1. With `has_racks` each broker is in one of the `racks`
    and sends consumers of another rack to the follower there. `have_topic_ids`: whether every broker knows the ids of
    topics.
    """

    def __init__(
        self,
        world: World,
        *,
        brokers: int = 3,
        properties: dict[str, str] | None = None,
        protocols: Sequence[str] = (NEWEST_PROTOCOL,),
        lagging: Collection[int] = (),
        replication_factor: int | None = None,
        min_insync_replicas: int | None = None,
        has_racks: bool = False,
    ) -> None:
        self.world = world
        self.racks = [f"rack-{broker_id}" for broker_id in range(brokers)] if has_racks else [""]
        self.state = StateChecker()
        self.zookeeper = SimulatedZooKeeper(world, self.state)
        self.replication_factor = replication_factor or min(3, brokers)
        min_insync_replicas = min_insync_replicas or max(1, self.replication_factor - 1)
        self.brokers: dict[int, SimulatedBroker] = {}
        rules = Rules(self.state, self.hosted_partition, lambda violation: world.loop.fail(str(violation), violation))
        for broker_id in range(brokers):
            config = BrokerConfig.from_properties(
                PROPERTIES
                | {
                    "broker.id": str(broker_id),
                    "inter.broker.protocol.version": protocols[broker_id % len(protocols)],
                    "default.replication.factor": str(self.replication_factor),
                    "min.insync.replicas": str(min_insync_replicas),
                }
                | (RACK_AWARE | {"broker.rack": self.racks[broker_id]} if has_racks else {})
                | (properties or {})
            )
            self.brokers[broker_id] = SimulatedBroker(world, broker_id, config, rules)
        self.have_topic_ids = all(ApiVersion.parse(version) >= ApiVersion.V2_8_IV1 for version in protocols)
        self.zookeeper.lag.clients.update(self.brokers[broker_id].node.address for broker_id in lagging)

    async def start(self) -> None:
        """Returns when all brokers are up."""
        await self.zookeeper.start()
        for broker in self.brokers.values():
            broker.start()
        await asyncio.gather(*[broker.until_up() for broker in self.brokers.values()])

    async def close(self) -> None:
        """Ends the supervisors; all other tasks end with the world."""
        for broker in self.brokers.values():
            await broker.close()

    def client(self, retry: RetryPolicy = PATIENT, options: ConnectionOptions = CLIENT_OPTIONS) -> ClusterClient:
        """A client (patient by default) with its own order of brokers. Its connections belong to the process that uses
        it."""
        bootstrap: list[Address] = [(broker.node.name, BROKER_PORT) for broker in self.brokers.values()]
        self.world.random.shuffle(bootstrap)
        return ClusterClient(bootstrap, options, retry)

    def controller_id(self) -> int:
        """The controller's id in ZooKeeper; -1 when there is no controller."""
        return self.state.controller_id()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for a condition that depends on znodes."""
        while not condition():
            await self.zookeeper.until_transaction()

    def is_whole(self) -> bool:
        """Whether all brokers are up, there is a controller, and every replica of every partition is in sync."""
        states = self.state.partitions()
        return (
            all(broker.broker is not None for broker in self.brokers.values())
            and self.state.live_brokers() == list(self.brokers)
            and self.controller_id() != -1
            and all(
                (topic, partition) in states and set(states[topic, partition].isr) == set(replicas)
                for topic in self.state.topics()
                for partition, replicas in self.state.replicas(topic).items()
            )
        )

    def hosted_partition(self, broker_id: int, key: PartitionKey) -> Partition | None:
        """A broker's hosted partition; None if the broker does not host it or is down."""
        broker = self.brokers[broker_id].broker
        return None if broker is None else broker.parts.replica_manager.hosted_partition(key)

    def leader(self, topic: str, partition: int) -> int:
        """The partition's leader in ZooKeeper; -1 when it has no leader."""
        return self.state.partition(topic, partition).leader

    def coordinator(self, group_id: str) -> int:
        """The leader of the group's partition in ZooKeeper; -1 when it has no leader. KeyError while the topic
        __consumer_offsets does not exist."""
        return self.leader(
            GROUP_METADATA_TOPIC_NAME, partition_for(group_id, len(self.state.replicas(GROUP_METADATA_TOPIC_NAME)))
        )

    def isr(self, topic: str, partition: int) -> tuple[int, ...]:
        """The partition's in-sync replicas in ZooKeeper."""
        return self.state.partition(topic, partition).isr

    def isolate(self, broker_id: int, *, from_zookeeper: bool = False, from_brokers: bool = False) -> None:
        """Cuts the links of a broker."""
        name = self.brokers[broker_id].node.name
        if from_zookeeper:
            self.world.network.cut(name, self.zookeeper.node.name)
        if from_brokers:
            for other in self.brokers.values():
                if other.broker_id != broker_id:
                    self.world.network.cut(name, other.node.name)

    async def heal(self) -> None:
        """Ends all faults of disks and links, and starts or resumes all programs that are down or stalled."""
        self.world.network.heal_all()
        zookeeper = self.zookeeper.node
        if not zookeeper.process.alive:
            await self.zookeeper.start()
        elif zookeeper.process.stalled:
            zookeeper.resume()
        for broker in self.brokers.values():
            if broker.node.process.alive and broker.node.process.stalled:
                broker.node.resume()
            if broker.disk_is_faulty:
                broker.mend_disk()
                broker.kill()
            broker.start()
