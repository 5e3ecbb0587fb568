"""A long life in the simulator: a day of virtual time in minutes, with the sizes of every container of a broker.

In every virtual hour two brokers are restarted, one is killed, the controller too if broker 0 is not the controller;
a group works for a minute and goes; a topic comes and goes with its group; a configuration changes. Broker 0 and
ZooKeeper live through all of it.
"""

import asyncio
import gc
import logging
import sys
from collections import deque
from collections.abc import Sequence

from klamm.client.admin.configs import ConfigResource, incremental_alter_configs
from klamm.client.consumer.offsets import OffsetAndMetadata, alter_consumer_group_offsets
from klamm.controller.state_change_log import StateChangeLog
from klamm.protocol.vocabulary import AlterConfigOp, ConfigResourceType, OpType, PartitionKey, TopicPartition
from klamm.simulation.cluster.cluster import SimulatedBroker, SimulatedCluster
from klamm.simulation.cluster.ensemble import EnsembleServer
from klamm.simulation.machine.disk import Disk
from klamm.simulation.machine.world import World
from klamm.simulation.workloads.compacting import TOPIC_CONFIGS, Compacting
from klamm.simulation.workloads.group_workload import GroupWorkload
from klamm.simulation.workloads.verdict import converge, judge
from klamm.simulation.workloads.workload import Producer, Workload, create_topic, delete_topic
from support.soak.figures import MB, Bound, Growth, Look, growths
from support.soak.sizes import sizes

HOUR_S = 3600.0
WARM_UP_HOURS = 3
"""Producer ids, sessions and remembered positions reach their bounds within a few hours."""
SURVIVOR = 0
KEPT, DELETED, COMPACTED = "kept", "deleted", "compacted"
KEYS: dict[PartitionKey, bool] = {(KEPT, 0): True, (KEPT, 1): False}
PAUSE_S = 60.0
WORK_S = 60.0
TRACED_LINES = 1_000
# Fewer wake-ups without work than by default, so that a virtual day has fewer steps.
PROPERTIES = {
    "log.segment.bytes": str(1 << 20),
    "replica.fetch.wait.max.ms": "10000",
    "replica.lag.time.max.ms": "30000",
    "zookeeper.session.timeout.ms": "20000",
    "leader.imbalance.check.interval.seconds": "300",
    "log.retention.check.interval.ms": "300000",
    "offsets.retention.minutes": "60",
    "log.roll.ms": "1800000",
    "log.segment.delete.delay.ms": "1000",
    "offsets.topic.segment.bytes": "4096",
    "log.cleaner.min.cleanable.ratio": "0.1",
    "log.cleaner.backoff.ms": "60000",
    "replica.high.watermark.checkpoint.interval.ms": "60000",
}
DELETED_CONFIGS = {
    "retention.ms": "3600000",
    "segment.ms": "900000",
    # The workload's records have timestamps that do not follow the clock.
    "message.timestamp.type": "LogAppendTime",
}
# Longer than an outage, so that no follower misses a tombstone while it is down.
COMPACTED_CONFIGS = {**TOPIC_CONFIGS, "delete.retention.ms": "600000"}
# What follows the records that are kept and the elections.
FOLLOW_THE_LOG = (
    "LeaderEpochCache._entries",
    "LogSegments._segments",
    "LogSegments._base_offsets",
    "LogSegment()",
    "IndexFile()",
    "ProducerSnapshots._offsets",
    "OffsetIndex()",
    "TimeIndex()",
    "TransactionIndex()",
)

# Containers that fill up: each API its newest requests and the error codes of responses that are not counted yet (see
# `klamm.broker.requests.request_metrics`), each histogram its newest 1,028 values, each rate two numbers for each of
# its 11 newest windows, each log the ends of its newest 64 reads, and each index of an active segment the entries since
# the last flush.
RINGS = {
    "CountedApi.error_codes": 40 * 10_000,
    "ApiStatistics._at_once": 40 * 1_028 * 3,
    "CountedApi.measurements[]": 100 * 256 * 3,
    "ApiStatistics._waited": 40 * (1_028 + 256) * 10,
    "Histogram._newest": 100 * 1028,
    "SampledRate._windows": 20 * 11,
    "SampledRate._windows[]": 20 * 11 * 2,
    "LogReader._remembered": 20 * 64,
    "LogReader._remembered[]": 20 * 64 * 2,
    "IndexFile._pending": 20_000,
}


def virtual_soak(hours: float, seed: int) -> tuple[list[Look], list[Growth], list[str]]:
    """Runs so many virtual hours; AssertionError when the run itself fails."""
    logging.getLogger().addHandler(logging.NullHandler())
    world = World(seed)
    # The whole trace of a day does not fit into memory, and nobody compares it.
    world.trace.lines = deque(maxlen=TRACED_LINES)  # type: ignore[assignment]
    life = Life(world)
    counts = world.run(life.run(hours), time_limit_s=hours * HOUR_S * 2 + HOUR_S)
    found = growths(life.looks, bounds(life.looks, hours), WARM_UP_HOURS * HOUR_S if hours > WARM_UP_HOURS + 1 else 0)
    shown = [each for each in found if each.is_too_much or each.figure in SHOWN]
    return life.looks, shown, [f"seed {seed}: {counts}, {world.loop.steps} steps"]


SHOWN = ("disk files", "disk MB", "ZooKeeper files", "ZooKeeper MB", "znodes", "tasks", "elements")


def bounds(looks: Sequence[Look], hours: float) -> list[Bound]:
    """Every container may hold a fifth more, and a few elements more, than at the beginning."""
    names = dict.fromkeys(name for look in looks for name in look.figures)
    made = [
        Bound("disk files", factor=1.2, slack=10 * hours),
        Bound("disk MB", factor=1.2, slack=0.2 * hours),
        Bound("ZooKeeper files", most=8),
        Bound("ZooKeeper MB", most=200),
        Bound("elements", factor=1.2, slack=400 * hours),
    ]
    for name in names:
        follows_the_log = name.removesuffix("[]") in FOLLOW_THE_LOG
        made.append(Bound(name, 1.2, 20 * hours if follows_the_log else 20, most=RINGS.get(name, 0)))
    return made


class Life:
    """One run."""

    def __init__(self, world: World) -> None:
        self.looks: list[Look] = []
        self._world = world

    async def run(self, hours: float) -> str:
        world = self._world
        cluster = self._cluster = SimulatedCluster(world, properties=PROPERTIES)
        await cluster.start()
        node, client = world.node("client"), cluster.client()
        await node.run(create_topic(client, KEPT, partitions=2, replication_factor=3))
        await node.run(create_topic(client, DELETED, partitions=1, replication_factor=3, configs=dict(DELETED_CONFIGS)))
        await node.run(
            create_topic(client, COMPACTED, partitions=1, replication_factor=3, configs=dict(COMPACTED_CONFIGS))
        )
        workload = Workload(world, cluster.client, KEYS)
        # Consumers that poll twice a second would be most of the run; the logs are compared at the end.
        workload.consumers.clear()
        workload.start(pause_s=PAUSE_S)
        # Its records are not compared, because they are deleted.
        deleted = Producer(cluster.client, (DELETED, 0), world.random, asyncio.Event(), idempotent=True)
        compacting = Compacting(world, cluster, (COMPACTED, 0))
        # Always the same keys, so that the log's size is bounded.
        compacting.producer.records_between_new_keys = sys.maxsize
        others = [node.run(producer.run(pause_s=PAUSE_S)) for producer in (deleted, compacting.producer)]
        number = 0
        while world.loop.time() < hours * HOUR_S:
            began_s = world.loop.time()
            await self._hour(number)
            number += 1
            await asyncio.sleep(max(0.0, began_s + HOUR_S - 120 - world.loop.time()))
            await self._look()
            await asyncio.sleep(max(0.0, began_s + HOUR_S - world.loop.time()))
        deleted.stop.set()
        compacting.producer.stop.set()
        await asyncio.gather(*others)
        await workload.stop_producing()
        whole = await converge(cluster)
        counts = await judge(cluster, workload, whole, trimmed=[DELETED])
        compacting.check_replicas()
        await node.run(client.close())
        await cluster.close()
        return f"{number} hours, {counts}"

    async def _hour(self, number: int) -> None:
        cluster = self._cluster
        group = GroupWorkload(
            self._world,
            cluster.client,
            f"workers-{number % 2}",
            list(KEYS),
            coordinator_id=lambda: cluster.coordinator(f"workers-{number % 2}"),
        )
        group.start()
        await self._world.node("client").run(self._come_and_go(number))
        others = [broker for broker in cluster.brokers.values() if broker.broker_id != SURVIVOR]
        await asyncio.sleep(WORK_S)
        await group.stop()
        for broker in others:
            await broker.stop()
            await self._back(broker)
        killed = others[number % len(others)]
        killed.kill()
        await cluster.until(lambda: killed.broker_id not in cluster.state.live_brokers())
        await self._back(killed)
        controller = cluster.brokers[cluster.controller_id()]
        if controller.broker_id != SURVIVOR:
            controller.kill()
            await cluster.until(lambda: cluster.controller_id() not in (controller.broker_id, -1))
            await self._back(controller)

    async def _back(self, broker: SimulatedBroker) -> None:
        broker.start()
        await broker.until_up()
        await self._cluster.until(self._cluster.is_whole)

    async def _come_and_go(self, number: int) -> None:
        client, name = self._cluster.client(), f"passing-{number}"
        await create_topic(client, name, partitions=3, replication_factor=3)
        await alter_consumer_group_offsets(client, name, {TopicPartition(name, 0): OffsetAndMetadata(0)})
        resource = ConfigResource(ConfigResourceType.TOPIC, KEPT)
        change = {resource: [AlterConfigOp("retention.ms", str(10**9 + number), OpType.SET)]}
        await incremental_alter_configs(client, change)
        await delete_topic(client, name)
        await client.close()

    async def _look(self) -> None:
        broker = self._cluster.brokers[SURVIVOR].broker
        assert broker is not None
        process = self._cluster.brokers[SURVIVOR].node.process
        gc.collect()
        for log in [each for each in gc.get_objects() if isinstance(each, StateChangeLog)]:
            # It keeps the newest records, up to a number that a day does not reach.
            log._records.clear()
        [server] = [each for each in gc.get_objects() if isinstance(each, EnsembleServer)]
        tasks = list(process.tasks())
        found = sizes(broker, server, *tasks)
        figures = {
            **{name: float(value) for name, value in found.items()},
            **_on_disk("disk", self._cluster.brokers[SURVIVOR].node.disk),
            **_on_disk("ZooKeeper", self._cluster.zookeeper.node.disk),
            "znodes": float(len(server.tree)),
            "tasks": float(len(tasks)),
            "elements": float(sum(found.values())),
        }
        self.looks.append(Look(self._world.loop.time(), True, figures))


def _on_disk(name: str, disk: Disk) -> dict[str, float]:
    files = disk.sizes()
    return {f"{name} files": float(len(files)), f"{name} MB": sum(files.values()) / MB}
