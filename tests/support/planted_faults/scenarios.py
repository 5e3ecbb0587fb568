"""Scenarios for planted faults that chance hardly reaches: each needs several delays at once, in one order.

What must stay true: klamm without the planted fault passes each of them, with any seed.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from klamm.client.admin.elections import elect_leaders
from klamm.client.admin.reassignments import alter_partition_reassignments
from klamm.coordinator.groups.group_metadata_manager import partition_for
from klamm.protocol.record.record_batch import iterate_batches
from klamm.protocol.record.records import decode_records
from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME, ElectionType, PartitionKey, TopicPartition
from klamm.simulation.cluster.cluster import ZOOKEEPER_PORT, SimulatedBroker, SimulatedCluster
from klamm.simulation.machine.disk import SimulatedFileSystem
from klamm.simulation.machine.process import Process
from klamm.simulation.machine.world import World
from klamm.simulation.workloads.group_workload import GroupWorkload
from klamm.simulation.workloads.transactional_workload import PROPERTIES as TRANSACTION_PROPERTIES
from klamm.simulation.workloads.transactional_workload import TransactionalWorkload
from klamm.simulation.workloads.verdict import converge, judge, serving
from klamm.simulation.workloads.workload import Workload, create_topic, delete_topic
from klamm.znodes.cluster import CONTROLLER_PATH
from klamm.znodes.controller_store import NO_CONTROLLER
from klamm.zookeeper.client import ZooKeeperClient

TOPIC, PASSING_TOPIC, GROUP = "events", "passing", "workers"
ORDERS, COPIES = "orders", "copies"
# Of the writers and copiers.
COMMITS = 60
BROKERS, REPLICATION_FACTOR = 4, 3
REQUEST_TIMEOUT_MS = 10_000
# The version with which the key of a commit begins.
OFFSET_COMMIT_KEY = b"\0\1"


class _Scene:
    """A cluster of `BROKERS` brokers with records on their way, and what its operator does."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cluster = SimulatedCluster(world, brokers=BROKERS)
        self.client = self.cluster.client()
        self.workload = Workload(world, self.cluster.client, {(TOPIC, 0): True})
        self._node = world.node("client")

    async def create(self, topic: str, replication_factor: int = REPLICATION_FACTOR) -> None:
        await self._node.run(create_topic(self.client, topic, partitions=1, replication_factor=replication_factor))

    async def delete(self, topic: str) -> None:
        await self._node.run(delete_topic(self.client, topic))
        await self.cluster.until(lambda: topic not in self.cluster.state.topics())

    async def reassign(self, topic: str, replicas: Sequence[int]) -> None:
        wanted = {TopicPartition(topic, 0): replicas}
        await self._node.run(alter_partition_reassignments(self.client, wanted, timeout_ms=REQUEST_TIMEOUT_MS))

    async def move(self, topic: str, replicas: Sequence[int]) -> None:
        """Reassigns and returns when the reassignment is complete."""
        await self.reassign(topic, replicas)
        await self.until_moved(topic, replicas)

    async def lead(self, key: PartitionKey, replicas: Sequence[int]) -> None:
        """Makes the first of the replicas the leader, and returns when it is."""
        partition = TopicPartition(*key)
        request = alter_partition_reassignments(self.client, {partition: replicas}, timeout_ms=REQUEST_TIMEOUT_MS)
        await self._node.run(request)
        await self.cluster.until(lambda: self.cluster.state.replicas(key[0])[key[1]] == tuple(replicas))
        election = elect_leaders(self.client, ElectionType.PREFERRED, [partition], timeout_ms=REQUEST_TIMEOUT_MS)
        await self._node.run(election)
        await self.cluster.until(lambda: self.cluster.leader(*key) == replicas[0])

    async def until_moved(self, topic: str, replicas: Sequence[int]) -> None:
        state = self.cluster.state
        await self.cluster.until(
            lambda: sorted(self.cluster.isr(topic, 0)) == sorted(state.replicas(topic)[0]) == sorted(replicas)
        )


@asynccontextmanager
async def _scene(world: World) -> AsyncIterator[_Scene]:
    """At the end everything is healed and judged."""
    scene = _Scene(world)
    cluster, workload = scene.cluster, scene.workload
    await cluster.start()
    await scene.create(TOPIC)
    workload.start()
    await workload.produced(5)
    yield scene
    await cluster.heal()
    async with serving(cluster):
        await workload.stop_producing()
    await converge(cluster)
    await judge(cluster, workload)
    await world.node("client").run(scene.client.close())
    await cluster.close()


async def late_stop_replica(world: World) -> None:
    """A controller's StopReplica is on its way for so long that it arrives when the next controller has taken the
    reassignment back, and the replica is in sync again."""
    async with _scene(world) as scene:
        cluster = scene.cluster
        former = cluster.controller_id()
        others = [broker_id for broker_id in cluster.brokers if broker_id != former]
        await scene.move(TOPIC, others)
        stopped = next(broker_id for broker_id in others if broker_id != cluster.leader(TOPIC, 0))
        instead = [former, *(broker_id for broker_id in others if broker_id != stopped)]
        await scene.reassign(TOPIC, instead)
        await cluster.until(lambda: stopped not in cluster.isr(TOPIC, 0))
        # The next request to the replica is its StopReplica.
        world.network.cut_one_way(cluster.brokers[former].node.name, cluster.brokers[stopped].node.name)
        await scene.until_moved(TOPIC, instead)
        await asyncio.sleep(1)
        cluster.brokers[former].node.stall()
        await cluster.until(lambda: cluster.controller_id() not in (former, -1))
        await scene.move(TOPIC, others)


async def log_of_a_former_topic(world: World) -> None:
    """A topic is moved away from a broker that is down, deleted, and created anew with a replica on that broker."""
    async with _scene(world) as scene:
        cluster = scene.cluster
        await scene.create(PASSING_TOPIC)
        await asyncio.sleep(1)  # Until then all replicas have a log.
        replicas = cluster.isr(PASSING_TOPIC, 0)
        gone = next(broker_id for broker_id in replicas if broker_id != cluster.controller_id())
        cluster.brokers[gone].kill()
        await cluster.until(lambda: gone not in cluster.state.live_brokers())
        left = [broker_id for broker_id in cluster.brokers if broker_id != gone]
        await scene.move(PASSING_TOPIC, left)
        await scene.delete(PASSING_TOPIC)
        cluster.brokers[gone].start()
        await cluster.brokers[gone].until_up()
        await scene.create(PASSING_TOPIC, replication_factor=BROKERS)


async def lost_election(world: World) -> None:
    """The controller moves, and the answer to the election is lost: its broker only finds its own id in /controller."""
    async with _scene(world) as scene:
        cluster, network = scene.cluster, world.network
        zookeeper = cluster.zookeeper.node.name
        operator = ZooKeeperClient(world.node("client").environment, f"{zookeeper}:{ZOOKEEPER_PORT}")
        await operator.start()
        deletion = asyncio.ensure_future(operator.delete(CONTROLLER_PATH))
        await cluster.until(lambda: cluster.controller_id() == NO_CONTROLLER)
        await cluster.until(lambda: cluster.controller_id() != NO_CONTROLLER)
        elected = cluster.brokers[cluster.controller_id()].node.name
        network.cut_one_way(zookeeper, elected)
        network.end_connections(elected, zookeeper)
        await deletion
        await asyncio.sleep(0.1)
        await operator.close()


async def copy_of_a_rotten_log(world: World) -> None:
    """One bit of the leader's log changes, and a replica is added that copies this log; then an operator removes the
    rotten log, and its broker copies it from another replica."""
    async with _scene(world) as scene:
        cluster = scene.cluster
        await asyncio.sleep(1)  # Until then the consumer has read the first batch everywhere.
        replicas, rotten = cluster.isr(TOPIC, 0), cluster.brokers[cluster.leader(TOPIC, 0)]
        added = next(broker_id for broker_id in cluster.brokers if broker_id not in replicas)
        path = next(path for path in rotten.node.disk.sizes() if path.endswith(f"/{TOPIC}-0/{0:020}.log"))
        operator = SimulatedFileSystem(rotten.node.disk, Process("operator", rotten.node.name))
        _, header = next(iterate_batches(operator.read_file(path), allow_partial_end=True))
        rotten.node.disk.rot(path, header.size_bytes - 2, 0)
        wanted = [rotten.broker_id, next(each for each in replicas if each != rotten.broker_id), added]
        await scene.reassign(TOPIC, wanted)
        await asyncio.sleep(3)
        rotten.kill()
        await cluster.until(lambda: rotten.broker_id not in cluster.isr(TOPIC, 0))
        operator.remove_tree(path.rpartition("/")[0])
        rotten.start()
        await scene.until_moved(TOPIC, wanted)


async def load_of_a_rotten_log(world: World) -> None:
    """One bit of the newest commit changes in the log of a broker that then coordinates the group, until an operator
    removes the log."""
    async with _scene(world) as scene:
        cluster = scene.cluster
        group = GroupWorkload(
            world, cluster.client, GROUP, [(TOPIC, 0)], members=1, coordinator_id=lambda: cluster.coordinator(GROUP)
        )
        group.start()
        await group.ledger.until_commits(5)
        await group.stop()
        await asyncio.sleep(1)  # Until then all replicas have the commits.
        key = GROUP_METADATA_TOPIC_NAME, partition_for(GROUP, len(cluster.state.replicas(GROUP_METADATA_TOPIC_NAME)))
        replicas = cluster.isr(*key)
        rotten = cluster.brokers[next(each for each in replicas if each != cluster.leader(*key))]
        operator = SimulatedFileSystem(rotten.node.disk, Process("operator", rotten.node.name))
        path, position = _newest_commit(rotten, operator, key)
        rotten.node.disk.rot(path, position, 0)
        others = [each for each in replicas if each != rotten.broker_id]
        await scene.lead(key, [rotten.broker_id, *others])
        group.start()
        await asyncio.sleep(3)
        rotten.kill()
        await cluster.until(lambda: rotten.broker_id not in cluster.isr(*key))
        operator.remove_tree(path.rpartition("/")[0])
        rotten.start()
        await group.ledger.until_commits(5)
        await group.stop()
        await cluster.until(cluster.is_whole)
        await group.check_committed()


async def copiers_at_work(world: World) -> None:
    """Nothing is wrong with the cluster. Three copiers share two partitions; they die, stand still, work for too long,
    lose answers, and end or leave their transactions as chance has it."""
    cluster = SimulatedCluster(world, properties=TRANSACTION_PROPERTIES)
    await cluster.start()
    node, client = world.node("client"), cluster.client()
    inputs, outputs = [(ORDERS, 0), (ORDERS, 1)], [(COPIES, 0), (COPIES, 1)]
    for topic in (ORDERS, COPIES):
        await node.run(create_topic(client, topic, partitions=2, replication_factor=3))
    await node.run(client.close())
    transactions = TransactionalWorkload(cluster, inputs, outputs, writers=1, copiers=3, has_faults=False)
    transactions.start()
    await transactions.ledger.until_commits(COMMITS)
    await transactions.stop()
    await converge(cluster)
    await transactions.check()
    await cluster.close()


def _newest_commit(broker: SimulatedBroker, files: SimulatedFileSystem, key: PartitionKey) -> tuple[str, int]:
    """A segment, and the position of a byte of the group's id in the key of the last commit there."""
    for path in sorted(broker.node.disk.sizes(), reverse=True):
        if path.endswith(".log") and f"/{key[0]}-{key[1]}/" in path:
            content = files.read_file(path)
            for position, header in reversed(list(iterate_batches(content, allow_partial_end=True))):
                for record in decode_records(content, position, header):
                    if record.key is not None and record.key.startswith(OFFSET_COMMIT_KEY):
                        return path, content.index(record.key, position) + record.key.index(GROUP.encode())
    raise AssertionError(f"broker {broker.broker_id} has no commit in {key}")
