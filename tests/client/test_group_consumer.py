"""Consumers of a group in a simulated cluster: members, brokers and the coordinator die, and every record is read."""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Coroutine
from typing import Any

import pytest

from klamm.client.cluster import ClusterClient
from klamm.client.group_consumer import GroupConsumer
from klamm.client.group_member import GroupMember
from klamm.client.options import ClientOptions, ConsumerOptions, GroupOptions, OffsetReset, ProducerOptions
from klamm.client.producer import Producer, ProducerRecord
from klamm.protocol.compression import CompressionType
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.vocabulary import TopicPartition
from klamm.simulation.administration import Administrator
from klamm.simulation.cluster import SimulatedCluster
from klamm.simulation.determinism import assert_same_trace
from klamm.simulation.process import ProcessDead
from klamm.simulation.random_faults import RandomFaults
from klamm.simulation.workload import create_topic
from klamm.simulation.world import World

TOPIC = "letters"
PARTITIONS = 4
UNCLEAN = "unclean"
OPTIONS = ConsumerOptions(auto_offset_reset=OffsetReset.EARLIEST, max_poll_records=5)


def group_options(instance: str | None = None, assignor: str = "range") -> GroupOptions:
    return GroupOptions(
        "village",
        group_instance_id=instance,
        session_timeout_ms=6_000,
        heartbeat_interval_ms=500,
        max_poll_interval_ms=10_000,
        assignors=(assignor,),
    )


class Village:
    """The members' machines, what they have processed, and whose the partitions were."""

    def __init__(self, world: World, cluster: SimulatedCluster, assignor: str) -> None:
        self.world, self.cluster, self.assignor = world, cluster, assignor
        self.written: dict[int, list[int]] = defaultdict(list)
        # By partition: the offsets that were processed, in that order, by whomever.
        self.processed: dict[int, list[int]] = defaultdict(list)
        self.committed: dict[int, int] = defaultdict(int)
        self.owners: dict[tuple[int, TopicPartition], str] = {}
        self.generations: set[int] = set()
        self.is_over = False
        self.finished: set[str] = set()

    async def produce(self, client: ClusterClient, rounds: int) -> None:
        node = self.world.node("client")
        options = ProducerOptions(
            ClientOptions((("unused", 1),)), CompressionType.LZ4, batch_size_bytes=300, delivery_timeout_ms=600_000
        )
        producer = Producer(client, options, node.environment)
        for number in range(rounds):
            for partition in range(PARTITIONS):
                record = ProducerRecord(TOPIC, b"%d" % number, partition=partition)
                await producer.send(record, lambda done, _: self.written[done.partition].append(done.offset))
            await asyncio.sleep(self.world.random.choice((0.0, 0.5, 1.0)))
        await producer.flush()
        self.is_over = True

    async def member(self, name: str, instance: str | None) -> None:
        """Reads until the last record is committed by somebody. When it is fenced, it begins anew, as its supervisor
        would let it: a coordinator that dies before it could store the generation in which this member took over
        from the one before leaves a coordinator that takes the one before for the member, as in Kafka."""
        while True:
            try:
                return await self.read(name, instance)
            except KafkaError as error:
                if instance is None or error.code != ErrorCode.FENCED_INSTANCE_ID:
                    raise

    async def read(self, name: str, instance: str | None) -> None:
        client = self.cluster.client()
        consumer: GroupConsumer

        async def on_assigned(partitions: list[TopicPartition]) -> None:
            self.generations.add(consumer.generation_id)
            for partition in partitions:
                owner = self.owners.setdefault((consumer.generation_id, partition), name)
                assert owner == name, f"{owner} and {name} own {partition} in generation {consumer.generation_id}"

        async def on_revoked(partitions: list[TopicPartition]) -> None:
            await commit()

        async def commit() -> None:
            positions = consumer.positions()
            for partition, position in positions.items():
                seen = self.processed[partition.partition]
                assert set(range(position)) <= set(seen), f"{partition} is committed at {position}, not all was read"
            try:
                await consumer.commit()
            except KafkaError:
                return
            for (_, number), position in positions.items():
                self.committed[number] = max(self.committed[number], position)

        options = group_options(instance, self.assignor)
        consumer = GroupConsumer(client, options, [TOPIC], OPTIONS, on_revoked=on_revoked, on_assigned=on_assigned)
        while not self.is_done():
            records = await consumer.poll(300)
            for record in records:
                self.processed[record.partition].append(record.offset)
            if records:
                await commit()
        await consumer.close()
        await client.close()
        self.finished.add(name)

    def is_done(self) -> bool:
        return self.is_over and all(
            self.committed[partition] > offsets[-1] for partition, offsets in self.written.items()
        )

    def start(self, name: str, instance: str | None) -> "asyncio.Future[None]":
        node = self.world.node(name)
        if not node.process.alive:
            node.restart()
        running = node.run(self.member(name, instance))
        running.add_done_callback(self._ended)
        return running

    def _ended(self, running: "asyncio.Future[None]") -> None:
        error = running.exception()
        if error is not None and not isinstance(error, ProcessDead):
            self.world.loop.fail(f"a member ended: {error!r}", error)


async def village(world: World, assignor: str, rounds: int, steps: int, kills: int) -> Village:
    cluster = SimulatedCluster(world)
    await cluster.start()
    client = cluster.client()
    node = world.node("client")
    for topic in (TOPIC, UNCLEAN):
        await node.run(create_topic(client, topic, partitions=PARTITIONS, replication_factor=3))
    group = Village(world, cluster, assignor)
    names = {"frieda": None, "olga": "olga", "amalia": None}
    members = {name: group.start(name, instance) for name, instance in names.items()}
    producing = node.run(group.produce(client, rounds))
    administrator = Administrator(cluster, UNCLEAN, min_insync_replicas=2)

    async def kill_members() -> None:
        for name in itertools.islice(itertools.cycle(names), kills):
            await asyncio.sleep(world.random.uniform(1, 15))
            if not members[name].done():
                world.node(name).crash()
                await asyncio.sleep(world.random.uniform(0, 10))
                members[name] = group.start(name, names[name])

    works: list[Coroutine[Any, Any, None]] = [kill_members()]
    if steps:
        works.append(RandomFaults(cluster, administrator, None, logs_flush=False).run(steps))
    await asyncio.gather(*works)
    await cluster.heal()
    await producing
    await asyncio.gather(*members.values())
    await administrator.finish()
    for partition, offsets in group.written.items():
        assert set(group.processed[partition]) == set(offsets)
    await node.run(client.close())
    await node.run(administrator.close())
    await cluster.close()
    return group


async def under_faults(world: World) -> None:
    await village(world, world.random.choice(("range", "roundrobin")), rounds=60, steps=8, kills=4)


@pytest.mark.parametrize("seed", range(3))
def test_every_record_is_read_and_nothing_is_committed_before_that(seed: int) -> None:
    world = World(seed)
    world.run(under_faults(world), time_limit_s=3_600)


async def without_faults(world: World) -> None:
    group = await village(world, "roundrobin", rounds=30, steps=0, kills=0)
    assert all(offsets == group.written[partition] for partition, offsets in group.processed.items()), "read twice"
    assert group.finished == {"frieda", "olga", "amalia"}


def test_without_faults_each_record_is_read_once() -> None:
    world = World(5)
    world.run(without_faults(world), time_limit_s=3_600)


async def short_story(world: World) -> None:
    await village(world, "range", rounds=10, steps=2, kills=1)


def test_a_run_with_producer_and_members_repeats_exactly() -> None:
    assert len(assert_same_trace(f"{__file__}:short_story", seed=2)) > 1_000


# -- one member ------------------------------------------------------------------------------------------------------


async def a_member_that_does_not_poll(world: World) -> None:
    """It loses its partitions after max.poll.interval.ms, its commit is refused, and it joins again when it polls."""
    cluster = SimulatedCluster(world)
    await cluster.start()
    client = cluster.client()
    node = world.node("client")
    await node.run(create_topic(client, TOPIC, partitions=PARTITIONS, replication_factor=3))
    lost: list[TopicPartition] = []

    async def scenario() -> None:
        async def on_lost(partitions: list[TopicPartition]) -> None:
            lost.extend(partitions)

        consumer = GroupConsumer(client, group_options(), [TOPIC], OPTIONS, on_lost=on_lost)
        while not consumer.assignment:
            await consumer.poll(100)
        await asyncio.sleep(20)
        first, generation = consumer.member_id, consumer.generation_id
        with pytest.raises(KafkaError, match="nothing was committed, since the group has rebalanced"):
            await consumer.commit({TopicPartition(TOPIC, 0): 1})
        assert (first, generation) == ("", -1)
        while len(consumer.assignment) < PARTITIONS or consumer.generation_id < 0:
            await consumer.poll(100)
        assert sorted(lost) == [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        await consumer.close()

    await node.run(scenario())
    await node.run(client.close())
    await cluster.close()


def test_a_member_that_does_not_poll_loses_its_partitions() -> None:
    world = World(1)
    world.run(a_member_that_does_not_poll(world), time_limit_s=600)


async def a_fenced_member(world: World) -> None:
    """Another process has taken over its group instance id: the first one gets an error, and never joins again."""
    cluster = SimulatedCluster(world)
    await cluster.start()
    client = cluster.client()
    node = world.node("client")
    await node.run(create_topic(client, TOPIC, partitions=PARTITIONS, replication_factor=3))

    async def scenario() -> None:
        first = GroupConsumer(client, group_options("olga"), [TOPIC], OPTIONS)
        while not first.assignment:
            await first.poll(100)
        second = GroupConsumer(client, group_options("olga"), [TOPIC], OPTIONS)
        while not second.assignment:
            await second.poll(100)
        with pytest.raises(KafkaError, match=r"FENCED_INSTANCE_ID \(82\): another member has taken over .* id olga"):
            while True:
                await first.poll(1_000)
        await asyncio.gather(first.close(), second.close())

    await node.run(scenario())
    await node.run(client.close())
    await cluster.close()


def test_a_fenced_member_is_told() -> None:
    world = World(1)
    world.run(a_fenced_member(world), time_limit_s=600)


async def an_unknown_assignor() -> None:
    with pytest.raises(ValueError, match=r"partition\.assignment\.strategy: allowed are range, roundrobin, not"):
        GroupMember(ClusterClient([("unused", 1)]), group_options(assignor="sticky"))


async def test_an_unknown_assignor_is_refused() -> None:
    await an_unknown_assignor()
