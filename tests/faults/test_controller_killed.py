"""The controller is killed with -9 in the middle of what it does, at each of its writes: its successor finishes.

Brokers are processes; between them and ZooKeeper stands a proxy that stops the controller at its n-th write, before it
is done or before its answer arrives, whereupon it is killed. By default some writes of each kind of work are tried;
`pytest tests/faults --every-step` tries all.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from klamm.base.system_environment import SystemEnvironment
from klamm.testing.async_cluster import AsyncCluster
from klamm.testing.cluster import Cluster
from klamm.znodes.requests import (
    PREFERRED_REPLICA_ELECTION_PATH,
    REASSIGN_PARTITIONS_PATH,
    delete_topic_path,
    encode_partitions,
    encode_reassignment,
)
from klamm.znodes.store import KafkaZooKeeper
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.server import ZooKeeperServer
from support.zookeeper.interposer import Interposer, Moment

BROKERS = 4
TOPIC = "kept"
PARTITIONS = 2
TIMEOUT_S = 120

Point = tuple[int, Moment]


class Stage:
    """A cluster behind an interposer, a topic whose records must stay, and who writes and counts them."""

    def __init__(self, cluster: AsyncCluster, interposer: Interposer, store: KafkaZooKeeper, new_client: Any) -> None:
        self.cluster = cluster
        self.interposer = interposer
        self.store = store
        self._new_client = new_client
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
        self._refused: list[str] = []
        self.written = 0

    async def killed_at(self, point: Point, work: "Work") -> bool:
        """Does the work, in which the controller is killed; whether it has come to that point at all."""
        cluster = self.cluster
        controller = await cluster.controller_id()
        assert controller is not None
        begin, is_finished = await work(self, controller)
        stop = self.interposer.stop_at(controller, *point)
        await begin()
        self._write(10)
        finishing = asyncio.ensure_future(self.until(is_finished))
        reaching = asyncio.ensure_future(stop.reached.wait())
        await asyncio.wait({finishing, reaching}, return_when=asyncio.FIRST_COMPLETED)
        reached = stop.reached.is_set()
        reaching.cancel()
        self.interposer.let_pass()
        if reached:
            await cluster.kill(controller)
            await self._end_session(controller)
            await self.until(lambda: self._has_another_controller(controller))
            await cluster.start(controller)
        await finishing
        self._write(10)
        await asyncio.to_thread(self._producer.flush, TIMEOUT_S)
        await self.until(self.is_whole)
        return reached

    async def _has_another_controller(self, former: int) -> bool:
        return await self.store.controller_id() not in (None, former)

    async def _end_session(self, broker_id: int) -> None:
        """ZooKeeper does so by itself some seconds later."""
        session = self.interposer.session_of(broker_id)
        thief = self._new_client((session.id, session.password))
        await thief.start(TIMEOUT_S * 1000)
        await thief.close()

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not await condition():  # noqa: ASYNC110  # it is in ZooKeeper, or on disks
                await asyncio.sleep(0.02)

    async def is_whole(self) -> bool:
        """Whether every replica is in sync."""
        topics = await self.store.topic_assignments(await self.store.topic_names())
        wanted = {
            (topic, number): sorted(replicas)
            for topic, assignment in topics.items()
            for number, replicas in assignment.partitions.items()
        }
        states = await self.store.partition_states(list(wanted))
        return all(sorted(getattr(states.get(key), "isr", ())) == replicas for key, replicas in wanted.items())

    async def exists(self, path: str) -> bool:
        return await self.store.client.exists(path) is not None

    async def replicas(self) -> dict[int, tuple[int, ...]]:
        """Those of the topic that is kept; none while something is being moved."""
        found = await self.store.topic_assignment(TOPIC)
        assert found is not None
        if found.adding_replicas or found.removing_replicas:
            return {}
        return {number: tuple(ids) for number, ids in found.partitions.items()}

    async def leaders(self) -> dict[int, int]:
        states = await self.store.partition_states([(TOPIC, number) for number in range(PARTITIONS)])
        return {number: getattr(state, "leader", -1) for (_, number), state in states.items()}

    # -- records ----------------------------------------------------------------------------------------------------

    def _write(self, records: int) -> None:
        for _ in range(records):
            for partition in range(PARTITIONS):
                self._producer.produce(TOPIC, str(self.written), partition=partition, on_delivery=self._delivered)
            self.written += 1
        self._producer.poll(0)

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._refused.append(str(error))

    def check_records(self) -> None:
        """Each record is there, once and in order."""
        assert self._producer.flush(TIMEOUT_S) == 0
        assert self._refused == []
        expected = [str(number).encode() for number in range(self.written)]
        for partition in range(PARTITIONS):
            assert list(self._read(partition)) == expected

    def _read(self, partition: int) -> Iterator[bytes]:
        settings = {"group.id": "check", "enable.auto.commit": False, "enable.partition.eof": True}
        consumer = Consumer({"bootstrap.servers": self.cluster.bootstrap, **settings})
        consumer.assign([TopicPartition(TOPIC, partition, 0)])
        while True:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            if message.error() is not None:
                break
            value = message.value()
            assert value is not None
            yield value
        consumer.close()


Begin = Callable[[], Awaitable[Any]]
IsFinished = Callable[[], Awaitable[bool]]
Work = Callable[[Stage, int], Awaitable[tuple[Begin, IsFinished]]]


async def reassignment(stage: Stage, _controller: int) -> tuple[Begin, IsFinished]:
    """Both partitions move to the other two brokers."""
    target = {
        number: tuple(broker_id for broker_id in range(BROKERS) if broker_id not in replicas)
        for number, replicas in (await stage.replicas()).items()
    }
    data = encode_reassignment({(TOPIC, number): replicas for number, replicas in target.items()})

    async def is_finished() -> bool:
        return await stage.replicas() == target and not await stage.exists(REASSIGN_PARTITIONS_PATH)

    return lambda: stage.store.client.create(REASSIGN_PARTITIONS_PATH, data), is_finished


_names = count()


async def deletion(stage: Stage, _controller: int) -> tuple[Begin, IsFinished]:
    """A topic of two partitions; its logs go, too."""
    topic = f"gone-{next(_names)}"
    await stage.cluster.create_topic(topic, 2, 3)
    directories = [broker.data_directory for broker in stage.cluster.brokers]
    assert sum(len(list(directory.glob(f"{topic}-[01]"))) for directory in directories) == 6

    async def is_finished() -> bool:
        if topic in await stage.store.topic_names() or await stage.exists(delete_topic_path(topic)):
            return False
        return not [path for directory in directories for path in directory.glob(f"{topic}-[01]")]

    return lambda: stage.store.mark_topic_for_deletion(topic), is_finished


async def election(stage: Stage, controller: int) -> tuple[Begin, IsFinished]:
    """Of partitions on two brokers that are not the controller, the preferred one is to lead."""
    one, other = [broker_id for broker_id in range(BROKERS) if broker_id != controller][:2]
    for replicas in ((one, other), (other, one)):
        await _move_to(stage, replicas)
        if set((await stage.leaders()).values()) != {replicas[0]}:
            break
    preferred = replicas[0]
    partitions = [(TOPIC, number) for number in range(PARTITIONS)]

    async def is_finished() -> bool:
        leaders = set((await stage.leaders()).values())
        return leaders == {preferred} and not await stage.exists(PREFERRED_REPLICA_ELECTION_PATH)

    assert set((await stage.leaders()).values()) != {preferred}
    data = encode_partitions(partitions)
    return lambda: stage.store.client.create(PREFERRED_REPLICA_ELECTION_PATH, data), is_finished


async def _move_to(stage: Stage, replicas: tuple[int, ...]) -> None:
    data = encode_reassignment({(TOPIC, number): replicas for number in range(PARTITIONS)})
    await stage.store.client.create(REASSIGN_PARTITIONS_PATH, data)

    async def is_there() -> bool:
        return set((await stage.replicas()).values()) == {replicas} and not await stage.exists(REASSIGN_PARTITIONS_PATH)

    await stage.until(is_there)
    await stage.until(stage.is_whole)


@asynccontextmanager
async def _stage(directory: Path) -> Any:
    environment = SystemEnvironment()
    server = ZooKeeperServer(environment, str(directory), min_session_timeout_ms=1_000)
    await server.start()

    def new_client(session: tuple[int, bytes] | None = None) -> ZooKeeperClient:
        return ZooKeeperClient(environment, f"127.0.0.1:{server.port}", session=session)

    client = new_client()
    await client.start(TIMEOUT_S * 1000)
    properties = {"log.segment.delete.delay.ms": "100"}
    async with (
        Interposer("127.0.0.1", server.port) as interposer,
        Cluster(BROKERS, zookeeper=interposer.address, properties=properties) as cluster,
    ):
        await cluster.create_topic(TOPIC, PARTITIONS, 2)
        yield Stage(cluster, interposer, KafkaZooKeeper(client), new_client)
    await client.close()
    await server.stop()
    environment.close()


def every_point() -> Iterator[Point]:
    for write in count(1):
        yield write, "before"
        yield write, "unanswered"


@pytest.mark.parametrize(
    ("work", "some"),
    [
        pytest.param(reassignment, [(1, "unanswered"), (3, "before"), (4, "unanswered"), (6, "before")], id="move"),
        pytest.param(deletion, [(1, "before"), (2, "unanswered"), (4, "before")], id="deletion"),
        pytest.param(election, [(1, "before"), (1, "unanswered"), (2, "before")], id="election"),
    ],
)
async def test_its_successor_finishes(
    work: Work, some: list[Point], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    every_step = request.config.getoption("--every-step")
    async with _stage(tmp_path) as stage:
        kills = 0
        for point in every_point() if every_step else some:
            reached = await stage.killed_at(point, work)
            kills += reached
            print(f"{work.__name__}, write {point[0]} {point[1]}: {'killed' if reached else 'there is none'}")
            if not reached and every_step:
                break
            assert reached
        await asyncio.to_thread(stage.check_records)
        print(f"{work.__name__}: {kills} controllers killed, {stage.written * PARTITIONS} records, none lost")
