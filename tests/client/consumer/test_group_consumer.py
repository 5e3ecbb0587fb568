"""Consumers of a group in a simulated cluster: members, brokers and the coordinator die, and every record is read."""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from klamm.client.cluster import ClusterClient
from klamm.client.consumer.consumer import ConsumerRecord
from klamm.client.consumer.group_consumer import CommitFailed, GroupConsumer
from klamm.client.consumer.group_member import GroupMember, Membership
from klamm.client.consumer.offsets import OffsetAndMetadata, list_consumer_group_offsets
from klamm.client.options import ClientOptions, ConsumerOptions, GroupOptions, OffsetReset, ProducerOptions
from klamm.client.producer.producer import Producer, ProducerRecord, RecordMetadata
from klamm.client.producer.transactional_producer import TransactionalProducer
from klamm.client.producer.transactions import TransactionAborted
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.vocabulary import READ_COMMITTED, TopicPartition
from klamm.simulation.cluster.cluster import SimulatedCluster
from klamm.simulation.machine.determinism import assert_same_trace
from klamm.simulation.machine.process import ProcessDead
from klamm.simulation.machine.world import World
from klamm.simulation.runs.random_faults import RandomFaults
from klamm.simulation.workloads.administration import Administrator
from klamm.simulation.workloads.workload import create_topic

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

    def _note_written(self, done: RecordMetadata | None, _: object) -> None:
        assert done is not None
        self.written[done.partition].append(done.offset)

    async def produce(self, client: ClusterClient, rounds: int) -> None:
        node = self.world.node("client")
        options = ProducerOptions(
            ClientOptions((("unused", 1),)), CompressionType.LZ4, batch_size_bytes=300, delivery_timeout_ms=600_000
        )
        producer = Producer(client, options, node.environment)
        for number in range(rounds):
            for partition in range(PARTITIONS):
                record = ProducerRecord(TOPIC, b"%d" % number, partition=partition)
                await producer.send(record, self._note_written)
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


# -- one member or two -----------------------------------------------------------------------------------------------


class Stage:
    """A cluster with records 0, 1, 2, ... in each partition of the topic, and what its members' machines need."""

    def __init__(self, world: World, cluster: SimulatedCluster) -> None:
        self.world, self.cluster = world, cluster
        self.client = cluster.client()
        self.environment = world.node("client").environment
        self.lost: list[TopicPartition] = []
        self.revoked: list[TopicPartition] = []

    async def on_lost(self, partitions: list[TopicPartition]) -> None:
        self.lost += partitions

    async def on_revoked(self, partitions: list[TopicPartition]) -> None:
        self.revoked += partitions

    def consumer(self, instance: str | None = None, **options: Any) -> GroupConsumer:
        settings = ConsumerOptions(READ_COMMITTED, OffsetReset.EARLIEST, max_poll_records=2)
        return GroupConsumer(
            *(self.client, replace(group_options(instance), **options), [TOPIC], settings),
            on_lost=self.on_lost,
            on_revoked=self.on_revoked,
        )

    async def producer(self, transactional_id: str, timeout_ms: int = 60_000) -> TransactionalProducer:
        """A producer in a transaction."""
        options = ProducerOptions(
            ClientOptions((("unused", 1),)),
            CompressionType.NONE,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
        )
        producer = TransactionalProducer(self.client, options, self.environment)
        await producer.init()
        producer.begin()
        return producer

    async def produce(self, count: int) -> None:
        options = ProducerOptions(ClientOptions((("unused", 1),)), CompressionType.NONE)
        producer = Producer(self.client, options, self.environment)
        for number in range(count):
            for partition in range(PARTITIONS):
                await producer.send(ProducerRecord(TOPIC, b"%d" % number, partition=partition))
        await producer.flush()
        await producer.close()

    async def committed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        found = (await list_consumer_group_offsets(self.client, ["village"]))["village"]
        assert not isinstance(found, KafkaError), found
        return found


async def owns(consumer: GroupConsumer, count: int = PARTITIONS) -> list[ConsumerRecord]:
    """Polls until the member owns so many partitions, and knows where to read them. Returns the records."""
    records: list[ConsumerRecord] = []
    while len(consumer.assignment) != count or len(consumer.positions()) != count:
        records += await consumer.poll(100)
    return records


async def until_read(consumer: GroupConsumer) -> list[ConsumerRecord]:
    records: list[ConsumerRecord] = []
    while not records:
        records = await consumer.poll(100)
    return records


def play(scenario: Callable[[Stage], Coroutine[Any, Any, None]], *, records: int = 4, seed: int = 1) -> None:
    async def on_stage(world: World) -> None:
        cluster = SimulatedCluster(world, properties={"transaction.state.log.num.partitions": "3"})
        await cluster.start()
        stage = Stage(world, cluster)
        node = world.node("client")
        await node.run(create_topic(stage.client, TOPIC, partitions=PARTITIONS, replication_factor=3))
        await node.run(stage.produce(records))
        await node.run(scenario(stage))
        await node.run(stage.client.close())
        await cluster.close()

    world = World(seed)
    world.run(on_stage(world), time_limit_s=600)


ALL = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]


def test_a_member_that_does_not_poll_loses_its_partitions_and_keeps_its_membership() -> None:
    """What it commits is refused, with and without a transaction, until it polls; then it joins again."""

    async def scenario(stage: Stage) -> None:
        consumer = stage.consumer()
        await owns(consumer)
        await until_read(consumer)
        before = consumer.membership
        producer = await stage.producer("tx")
        await asyncio.sleep(20)
        assert consumer.membership == before
        assert (before.member_id, before.generation_id) == (consumer.member_id, consumer.generation_id)
        with pytest.raises(CommitFailed, match="nothing was committed, since the group has rebalanced"):
            await consumer.commit({TopicPartition(TOPIC, 0): 1})
        with pytest.raises(TransactionAborted, match="UNKNOWN_MEMBER_ID"):
            await producer.send_offsets(consumer.positions(), consumer.membership)
        with pytest.raises(TransactionAborted):
            await producer.commit()
        await producer.abort()
        assert await stage.committed() == {}
        while consumer.membership.generation_id == before.generation_id:
            await consumer.poll(100)
        assert (sorted(stage.lost), stage.revoked) == (ALL, [])
        await consumer.close()

    play(scenario)


def test_a_member_that_has_not_joined_yet_commits_no_offsets_with_a_transaction() -> None:
    """The coordinator would take it for a client that assigns partitions to itself, which names the group alone."""

    async def scenario(stage: Stage) -> None:
        consumer, producer = stage.consumer(), await stage.producer("tx")
        await producer.send_offsets(consumer.positions(), consumer.membership)
        with pytest.raises(TransactionAborted, match="the consumer is not a member of the group yet"):
            await producer.send_offsets({ALL[0]: 1}, consumer.membership)
        await producer.abort()
        producer.begin()
        await producer.send_offsets({ALL[0]: 1}, "village")
        await producer.commit()
        await asyncio.sleep(1)  # Until then the marker is written.
        assert {each: found.offset for each, found in (await stage.committed()).items()} == {ALL[0]: 1}
        await consumer.close()

    play(scenario)


@pytest.mark.parametrize("is_over", [True, False], ids=["in the next assignment", "between two assignments"])
def test_a_transaction_does_not_commit_what_was_read_before_a_rebalance(is_over: bool) -> None:
    """Its records are read again, by whomever. The membership after the rebalance is valid, and the positions of then
    may be none."""

    async def scenario(stage: Stage) -> None:
        first, producer = stage.consumer(), await stage.producer("tx")
        await owns(first)
        await until_read(first)
        second = stage.consumer()
        while first.assignment:
            await second.poll(1)
            await first.poll(1)
        if is_over:
            while not (first.positions() and second.positions()):
                await second.poll(10)
                await first.poll(1, 1)
        else:
            assert first.positions() == {}
        with pytest.raises(TransactionAborted, match="rebalanced since the consumer handed out records of this trans"):
            await producer.send_offsets(first.positions(), first.membership)
        await producer.abort()
        first.seek_to_committed()
        producer.begin()
        joining = asyncio.ensure_future(owns(second, 2))
        (record, *_) = await until_read(first)
        await joining
        assert record.offset == 0
        await producer.send_offsets(first.positions(), first.membership)
        await producer.commit()
        await asyncio.gather(first.close(), second.close())

    play(scenario)


def test_offsets_of_an_earlier_membership_are_refused_by_the_coordinator() -> None:
    async def scenario(stage: Stage) -> None:
        first, producer = stage.consumer(), await stage.producer("tx")
        await owns(first)
        positions, membership = first.positions(), first.membership
        second = stage.consumer()
        await asyncio.gather(owns(first, 2), owns(second, 2))
        with pytest.raises(TransactionAborted, match="ILLEGAL_GENERATION"):
            await producer.send_offsets(positions, membership)
        await producer.abort()
        await asyncio.gather(first.close(), second.close())

    play(scenario)


def test_partitions_are_read_again_from_the_committed_offsets() -> None:
    """Where there is none, from where the member has begun, also when new members begin at the end."""

    async def scenario(stage: Stage) -> None:
        options = ConsumerOptions(READ_COMMITTED, OffsetReset.LATEST)
        consumer = GroupConsumer(stage.client, group_options(), [TOPIC], options)
        await owns(consumer)
        await stage.produce(2)
        read: list[list[int]] = []
        for commits in (False, True, False, False):
            offsets: list[int] = []
            while len(offsets) < PARTITIONS * 2:
                offsets += [record.offset for record in await consumer.poll(100)]
            read.append(sorted(set(offsets)))
            if commits:
                await consumer.commit()
                await stage.produce(2)
            consumer.seek_to_committed()
            assert consumer.positions() == {}
        assert read == [[4, 5], [4, 5], [6, 7], [6, 7]]
        assert sorted(consumer.assignment) == ALL
        await consumer.close()

    play(scenario)


def test_an_open_transaction_makes_only_its_own_partition_wait_and_costs_no_member_its_partitions() -> None:
    """The transaction of an application that has died is open for ten sessions."""

    async def scenario(stage: Stage) -> None:
        dead = await stage.producer("dead", timeout_ms=60_000)
        await dead.send_offsets({ALL[0]: 1}, "village")
        began_s = asyncio.get_running_loop().time()
        members = [stage.consumer(), stage.consumer()]
        read: dict[TopicPartition, int] = {}

        async def poll(consumer: GroupConsumer) -> None:
            while len(read) < PARTITIONS:
                for record in await consumer.poll(200):
                    read.setdefault(TopicPartition(record.topic, record.partition), record.offset)
                    if len(read) == PARTITIONS - 1:
                        assert asyncio.get_running_loop().time() < began_s + 10
                        assert ALL[0] not in read

        await asyncio.gather(*map(poll, members))
        assert read == dict.fromkeys(ALL, 0)
        assert asyncio.get_running_loop().time() >= began_s + 60
        assert (stage.lost, sorted(each.generation_id for each in members)) == ([], [1, 1])
        await asyncio.gather(*(each.close() for each in members))

    play(scenario)


def test_a_member_that_is_busy_during_a_rebalance_stays_in_the_group() -> None:
    """For longer than its session, and less long than max.poll.interval.ms."""

    async def scenario(stage: Stage) -> None:
        first, second = stage.consumer(), stage.consumer(max_poll_interval_ms=30_000)
        await owns(first)
        before = first.member_id
        joining = asyncio.ensure_future(owns(second, 2))
        await asyncio.sleep(9)
        await first.commit()
        await owns(first, 2)
        await joining
        assert (first.member_id, stage.lost, sorted(stage.revoked)) == (before, [], ALL)
        await asyncio.gather(first.close(), second.close())

    play(scenario)


def test_a_process_that_stood_still_hands_out_no_record_of_partitions_that_it_has_lost() -> None:
    """It has fetched some, and asks the coordinator before it goes on. After a shorter standstill it need not."""

    read = 0
    has_joined = asyncio.Event()

    async def sleeper(stage: Stage) -> None:
        nonlocal read
        consumer = stage.consumer()
        await owns(consumer)
        has_joined.set()
        while not stage.lost:
            records = await consumer.poll(100)
            read += 0 if stage.lost else len(records)
            await asyncio.sleep(1)
        await consumer.close()
        await stage.client.close()

    async def on_stage(world: World) -> None:
        cluster = SimulatedCluster(world)
        await cluster.start()
        stage = Stage(world, cluster)
        node, other = world.node("client"), world.node("other")
        await node.run(create_topic(stage.client, TOPIC, partitions=PARTITIONS, replication_factor=3))
        await node.run(stage.produce(200))
        sleeping = Stage(world, cluster)
        running = other.run(sleeper(sleeping))
        await has_joined.wait()
        for pause_s in (3, 8):
            other.stall()
            await asyncio.sleep(pause_s)
            before = read
            other.resume()
            await asyncio.sleep(3)
            assert (read > before, sleeping.lost == []) == (pause_s == 3,) * 2
        await running
        await node.run(stage.client.close())
        await cluster.close()

    world = World(1)
    world.run(on_stage(world), time_limit_s=600)


async def a_fenced_member(stage: Stage) -> None:
    """Another process has taken over its group instance id: the first one gets an error, and never joins again."""
    first, producer = stage.consumer("olga"), await stage.producer("tx")
    await owns(first)
    second = stage.consumer("olga")
    await owns(second)
    for _ in range(2):
        with pytest.raises(KafkaError, match=r"FENCED_INSTANCE_ID \(82\): another member has taken over .* id olga"):
            while True:
                await first.poll(1_000)
    with pytest.raises(TransactionAborted, match="FENCED_INSTANCE_ID"):
        await producer.send_offsets(first.positions(), first.membership)
    await producer.abort()
    await asyncio.gather(first.close(), second.close())
    assert (sorted(stage.lost), sorted(stage.revoked)) == (ALL, ALL)


def test_a_fenced_member_is_told() -> None:
    play(a_fenced_member)


async def an_unknown_assignor() -> None:
    with pytest.raises(ValueError, match=r"partition\.assignment\.strategy: allowed are range, roundrobin, not"):
        GroupMember(ClusterClient([("unused", 1)]), group_options(assignor="sticky"))


async def test_an_unknown_assignor_is_refused() -> None:
    await an_unknown_assignor()


# -- calls that overlap, closing, and topics --------------------------------------------------------------------------


def test_a_fenced_member_that_learns_it_from_a_commit_reads_nothing_more() -> None:
    async def scenario(stage: Stage) -> None:
        first = stage.consumer("olga")
        await owns(first)
        second = stage.consumer("olga")
        await owns(second)
        for call in (first.commit, lambda: first.poll(1)):
            with pytest.raises(KafkaError, match="another member has taken over"):
                await call()
        await asyncio.gather(first.close(), second.close())

    play(scenario)


def test_a_commit_in_a_membership_that_is_over_does_not_end_the_join_of_the_next() -> None:
    """A program that commits what it read before, again and again, gets partitions all the same."""

    async def scenario(stage: Stage) -> None:
        first, second = stage.consumer(), stage.consumer()
        await owns(first)
        before = first.generation_id
        joining = asyncio.ensure_future(owns(second, 2))
        while first.assignment:
            await first.poll(1)
        while first.generation_id == before:
            with suppress(CommitFailed):
                await first.commit({ALL[0]: 1})
            await first.poll(1)
        await joining
        assert (first.generation_id, second.generation_id) == (2, 2)
        await asyncio.gather(first.close(), second.close())

    play(scenario)


def test_a_poll_that_overlaps_another_or_close_is_an_error() -> None:
    """Also while the member joins. The member that closes has not lost its partitions."""

    async def scenario(stage: Stage) -> None:
        for joined in (False, True):
            consumer = stage.consumer()
            if joined:
                await owns(consumer)
                while await consumer.poll(1_000):
                    pass
            polling = asyncio.ensure_future(consumer.poll(60_000))
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="poll: another call has not returned"):
                await consumer.poll(1)
            await consumer.close()
            for call in (polling, consumer.poll(1)):
                with pytest.raises(RuntimeError, match="the consumer is closed"):
                    await call
        assert (stage.lost, sorted(stage.revoked)) == ([], ALL)

    play(scenario)


def test_a_member_that_closes_while_it_joins_leaves_the_group_at_once() -> None:
    """Its JoinGroup waits for the other member, and holds up what comes behind it on its connection."""

    async def scenario(stage: Stage) -> None:
        stays, leaves = stage.consumer(), stage.consumer()
        await owns(stays)
        await leaves.poll(500)
        assert not leaves.assignment
        began_s = asyncio.get_running_loop().time()
        await leaves.close()
        while stays.generation_id < 2:
            await stays.poll(100)
        assert sorted(stays.assignment) == ALL
        assert asyncio.get_running_loop().time() < began_s + 3
        await stays.close()

    play(scenario)


@pytest.mark.parametrize("way", ["raises", "hangs"])
def test_a_member_whose_on_revoked_fails_leaves_the_group(way: str) -> None:
    async def fails(partitions: list[TopicPartition]) -> None:
        if way == "hangs":
            await asyncio.sleep(1_000)
        raise ValueError("the application's fault")

    async def scenario(stage: Stage) -> None:
        consumer, next_owner = (
            GroupConsumer(stage.client, group_options(), [TOPIC], OPTIONS, on_revoked=fails) for _ in range(2)
        )
        await owns(consumer)
        closing = consumer.close()
        if way == "raises":
            with pytest.raises(ValueError, match="the application's fault"):
                await closing
        else:
            await closing
        began_s = asyncio.get_running_loop().time()
        await owns(next_owner)
        assert asyncio.get_running_loop().time() < began_s + 3
        with suppress(ValueError):
            await next_owner.close()

    play(scenario)


def test_a_topic_that_is_created_later_is_read_soon_and_other_subscriptions_cause_no_rebalance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("klamm.client.consumer.group_consumer.METADATA_MAX_AGE_S", 20.0)

    async def scenario(stage: Stage) -> None:
        first = GroupConsumer(stage.client, group_options(), [TOPIC, "later"], OPTIONS)
        await owns(first)
        await create_topic(stage.client, "later", partitions=1, replication_factor=3)
        began_s = asyncio.get_running_loop().time()
        await owns(first, PARTITIONS + 1)
        assert asyncio.get_running_loop().time() < began_s + 5
        second = GroupConsumer(stage.client, group_options(), [TOPIC], OPTIONS)
        await asyncio.gather(owns(first, 3), owns(second, 2))
        before = first.generation_id
        began_s = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < began_s + 25:
            await asyncio.gather(first.poll(3_000), second.poll(3_000))
        assert (first.generation_id, second.generation_id) == (before, before)
        await asyncio.gather(first.close(), second.close())

    play(scenario)


def test_a_commit_carries_the_leader_epoch_and_the_next_owner_checks_it() -> None:
    """The log is another one than the one that was read, and the position is in its range."""

    async def scenario(stage: Stage) -> None:
        consumer = stage.consumer()
        await owns(consumer)
        read = {TopicPartition(each.topic, each.partition) for each in await until_read(consumer)}
        await consumer.commit()
        committed = await stage.committed()
        assert {each for each, found in committed.items() if found.leader_epoch == 0} == read
        await consumer.commit({each: OffsetAndMetadata(3, leader_epoch=7) for each in ALL})
        await consumer.close()
        next_owner = stage.consumer()
        offsets: dict[int, int] = {}
        while len(offsets) < PARTITIONS:
            for record in await next_owner.poll(100):
                offsets.setdefault(record.partition, record.offset)
        assert offsets == dict.fromkeys(range(PARTITIONS), 0)
        await next_owner.close()

    play(scenario)


class Refused:
    """A member whose first commit is answered late, and only after the next was asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.held = asyncio.Event()

    async def commit(self, offsets: dict[TopicPartition, int], read_as: Membership) -> None:
        (offset,) = offsets.values()
        if not self.asked:
            self.asked.append(offset)
            await self.held.wait()
        self.asked.append(offset)


async def in_turn(stage: Stage) -> None:
    consumer = stage.consumer()
    coordinator = Refused()
    consumer._member.commit = coordinator.commit  # type: ignore[assignment]
    commits = [asyncio.ensure_future(consumer.commit({ALL[0]: offset})) for offset in (5, 10)]
    await asyncio.sleep(1)
    coordinator.held.set()
    await asyncio.gather(*commits)
    assert coordinator.asked == [5, 5, 10]
    await consumer.close()


def test_a_commit_that_is_repeated_does_not_overwrite_a_later_one() -> None:
    play(in_turn)
