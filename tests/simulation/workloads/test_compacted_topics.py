"""A compacted topic under faults: values and tombstones, and what its checker finds."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from klamm.client.admin.log_dirs import TopicPartitionReplica, alter_replica_log_dirs
from klamm.client.admin.reassignments import alter_partition_reassignments
from klamm.protocol.vocabulary import TopicPartition
from klamm.simulation.cluster.cluster import LOG_DIRS, SimulatedCluster
from klamm.simulation.machine.determinism import assert_same_trace
from klamm.simulation.machine.world import World
from klamm.simulation.workloads.compacting import TOPIC_CONFIGS, Compacting, newest
from klamm.simulation.workloads.verdict import converge, replica_bytes
from klamm.simulation.workloads.workload import create_topic, records_of
from klamm.storage.compaction.kept_records import PlacedRecord
from klamm.storage.compaction.plain_kernel import PlainKernel

TOPIC = "table"
KEY = (TOPIC, 0)


@asynccontextmanager
async def compacted_cluster(
    world: World, replication_factor: int = 3, properties: dict[str, str] | None = None, **configs: str
) -> AsyncIterator[tuple[SimulatedCluster, Compacting]]:
    """Three brokers, and a compacted topic that is produced and read; at the end every replica is judged."""
    cluster = SimulatedCluster(world, properties=properties)
    await cluster.start()
    client = cluster.client()
    configs = {**TOPIC_CONFIGS, **{name.replace("_", "."): value for name, value in configs.items()}}
    factor = replication_factor
    await world.node("client").run(
        create_topic(client, TOPIC, partitions=1, replication_factor=factor, configs=configs)
    )
    compacting = Compacting(world, cluster, KEY)
    compacting.start(pause_s=0.05)
    yield cluster, compacting
    await cluster.heal()
    await compacting.stop()
    await converge(cluster)
    compacting.check_replicas()
    await world.node("client").run(client.close())
    await cluster.close()


def record_count(cluster: SimulatedCluster, broker_id: int) -> int:
    """How many records a replica has."""
    return sum(1 for _ in records_of(replica_bytes(cluster.brokers[broker_id], KEY)))


async def kills_and_restarts(world: World) -> None:
    """One broker after the other is killed and started again, while the others compact."""
    async with compacted_cluster(world) as (cluster, compacting):
        for broker in cluster.brokers.values():
            await asyncio.sleep(5)
            broker.kill()
            await asyncio.sleep(2)
            broker.start()
            await cluster.until(cluster.is_whole)
        await asyncio.sleep(5)
        assert compacting.reads > 3
        written = sum(len(each.values) for each in compacting.producer.acknowledged)
        for broker_id in cluster.brokers:
            assert record_count(cluster, broker_id) < written / 3, broker_id


async def tombstones_leave(world: World) -> None:
    """Tombstones leave the log when they are older than delete.retention.ms, and nothing returns."""
    async with compacted_cluster(world, delete_retention_ms="2000") as (cluster, compacting):
        left = set(cluster.brokers)
        while left:
            await asyncio.sleep(1)
            dead = [key for key, (_, is_tombstone) in compacting.acknowledged().items() if is_tombstone]
            for broker_id in sorted(left):
                there = newest(records_of(replica_bytes(cluster.brokers[broker_id], KEY)))
                if sum(key not in there for key in dead) > 5:
                    left.remove(broker_id)


async def moves(world: World) -> None:
    """The replicas move to other brokers and to other log directories, while all of them are compacted."""
    # A cleaning takes longer than a move needs to begin.
    slow = {"log.cleaner.io.max.bytes.per.second": "20000"}
    async with compacted_cluster(world, replication_factor=2, properties=slow) as (cluster, compacting):
        client = cluster.client()

        async def move(replicas: list[int]) -> None:
            wanted = {TopicPartition(*KEY): replicas}
            assert await alter_partition_reassignments(client, wanted) == {TopicPartition(*KEY): None}

        for replicas in ([0, 1], [1, 2], [2, 0], [0, 1]):
            await world.node("client").run(move(replicas))
            await cluster.until(partial(is_on, cluster, replicas))
            # The new follower began at the start of a log that its leader had compacted.
            before = len(compacting.producer.acknowledged)
            for broker_id in replicas:
                there = directory_of(cluster, broker_id)
                (other,) = set(LOG_DIRS) - {there}
                moved = {TopicPartitionReplica(*KEY, broker_id): other}
                result = await world.node("client").run(alter_replica_log_dirs(client, moved))
                assert set(result.values()) == {None}
                while directory_of(cluster, broker_id) != other:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            assert len(compacting.producer.acknowledged) > before
            await asyncio.sleep(3)
            written = sum(len(each.values) for each in compacting.producer.acknowledged)
            for broker_id in replicas:
                assert record_count(cluster, broker_id) < written / 2, broker_id
        await world.node("client").run(client.close())


def is_on(cluster: SimulatedCluster, replicas: list[int]) -> bool:
    """Whether the partition has these replicas, all in sync, and no others."""
    state = cluster.state
    return state.replicas(TOPIC)[0] == tuple(replicas) and set(cluster.isr(*KEY)) == set(replicas)


def directory_of(cluster: SimulatedCluster, broker_id: int) -> str:
    """The log directory of a replica."""
    broker = cluster.brokers[broker_id].broker
    assert broker is not None
    log = broker.parts.log_manager.get(*KEY)
    assert log is not None
    return str(log.log_directory.path)


@pytest.mark.parametrize("scenario", [kills_and_restarts, tombstones_leave, moves])
def test_nothing_is_lost_and_nothing_returns(scenario: Callable[[World], Any]) -> None:
    world = World(9)
    world.run(scenario(world))


async def a_while(world: World) -> None:
    async with compacted_cluster(world):
        await asyncio.sleep(10)


# So is a mixed run with a compacted topic: tests/simulation/runs/test_random_runs.py.
@pytest.mark.long
def test_compaction_is_deterministic() -> None:
    assert_same_trace(f"{__file__}:a_while", 11)


@pytest.mark.parametrize(
    ("is_kept", "finding"),
    [
        (lambda record, kept: kept and record.offset % 5 != 0, r"is gone; record \d+ was acknowledged, with a value"),
        (lambda record, kept: record.has_value, r"was acknowledged as its tombstone"),
    ],
    ids=["the newest value is lost", "a tombstone leaves before the value"],
)
def test_the_checker_finds(
    monkeypatch: pytest.MonkeyPatch, is_kept: Callable[[PlacedRecord, bool], bool], finding: str
) -> None:
    real = PlainKernel._is_kept

    def planted(kernel: PlainKernel, record: PlacedRecord, retains_deletes: bool) -> bool:
        return is_kept(record, real(kernel, record, retains_deletes))

    monkeypatch.setattr(PlainKernel, "_is_kept", planted)
    world = World(3)
    with pytest.raises(AssertionError, match=finding):
        world.run(a_while(world))
