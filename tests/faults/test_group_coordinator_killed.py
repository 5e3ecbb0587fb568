"""kill -9 for the coordinator of a group, while its members join, synchronize and commit; with and without the
controller. Brokers are processes; the members are those of the simulation, on real sockets: every answer is checked.

No committed offset may go back, and no partition may have two owners in one generation.
"""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from klamm.client.cluster import ClusterClient
from klamm.coordinator.groups.group_metadata_manager import partition_for
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME
from klamm.simulation.workloads.group_workload import GroupMember, GroupWorkload
from klamm.testing.async_cluster import AsyncCluster
from klamm.testing.cluster import Cluster
from support.committed_offsets import check_no_commit_goes_back, logged_commits

TIMEOUT_S = 240
OFFSETS_PARTITIONS = 5
GROUP = "workers"
COORDINATED_BY = partition_for(GROUP, OFFSETS_PARTITIONS)
PARTITIONS = [("t", number) for number in range(6)]
MOMENTS = [ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.OFFSET_COMMIT]


class Machine:
    """Where a member lives, for the simulation's members: this process."""

    process = SimpleNamespace(alive=True, stalled=False)
    run = staticmethod(asyncio.ensure_future)


class Trap:
    """kill -9 for a process, a moment after a member has asked for something."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._awaited: ApiKey | None = None
        self._pids: list[int] = []
        self.sprung = asyncio.Event()

    def set(self, api_key: ApiKey, pids: list[int]) -> None:
        self._awaited, self._pids = api_key, pids
        self.sprung.clear()

    def asked(self, api_key: ApiKey) -> None:
        if api_key is self._awaited:
            self._awaited = None
            asyncio.get_running_loop().call_later(self._chance.choice([0, 0.001, 0.003, 0.01]), self._spring)

    def _spring(self) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
        self.sprung.set()


class Stage:
    """A cluster, a group at work, and what has gone wrong."""

    def __init__(self, cluster: AsyncCluster, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = cluster
        self.chance = random.Random(seed)
        self.trap = Trap(self.chance)
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        addresses = [(broker.host, broker.port) for broker in cluster.brokers]
        world: Any = SimpleNamespace(
            random=self.chance, node=lambda _name: Machine(), loop=SimpleNamespace(fail=self._fail)
        )
        self.group = GroupWorkload(world, lambda: ClusterClient(addresses), GROUP, PARTITIONS, members=4)
        ask = GroupMember._ask

        async def watched(member: GroupMember, api_key: ApiKey, make_request: Any) -> Any:
            self.trap.asked(api_key)
            return await ask(member, api_key, make_request)

        monkeypatch.setattr(GroupMember, "_ask", watched)

    def _fail(self, reason: str, error: BaseException) -> None:
        if not self._failed.done():
            self._failed.set_exception(AssertionError(f"{reason}: {error!r}"))

    async def unless_failed(self, wanted: Any) -> None:
        """Waits; a member that was told what cannot be is heard at once."""
        waiting = asyncio.ensure_future(wanted)
        await asyncio.wait({waiting, self._failed}, return_when=asyncio.FIRST_COMPLETED)
        if self._failed.done():
            waiting.cancel()
            self._failed.result()
        await waiting

    async def works(self) -> None:
        await self.unless_failed(self.group.until_stable())
        await self.unless_failed(self.group.ledger.until_commits(20))

    async def kill_when(self, api_key: ApiKey, *, with_controller: bool) -> None:
        """The coordinator dies when a member has sent such a request; then the group goes on, and the dead come back.

        Returns when all replicas are in sync.
        """
        cluster = self.cluster
        former = await cluster.leader(GROUP_METADATA_TOPIC_NAME, COORDINATED_BY)
        assert former is not None
        dead = {former}
        if with_controller and (controller := await cluster.controller_id()) is not None:
            dead.add(controller)
        brokers = {broker.id: broker for broker in cluster.brokers}
        member = self.chance.choice(self.group.members)
        if api_key is not ApiKey.OFFSET_COMMIT:
            await self.unless_failed(member.stop())
        self.trap.set(api_key, [pid for broker in dead if (pid := brokers[broker].pid) is not None])
        if api_key is not ApiKey.OFFSET_COMMIT:
            member.start()
        await self.unless_failed(self.trap.sprung.wait())
        for broker in dead:
            await cluster.kill(broker)
        await self.unless_failed(cluster.until(lambda: self._has_another(former)))
        await self.works()
        for broker in dead:
            await cluster.start(broker)
        await self.unless_failed(cluster.until(self._is_whole))

    async def _has_another(self, former: int) -> bool:
        return await self.cluster.leader(GROUP_METADATA_TOPIC_NAME, COORDINATED_BY) not in (former, None)

    async def _is_whole(self) -> bool:
        return not await self.cluster.under_replicated()


@asynccontextmanager
async def stage(seed: int, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    properties = {"offsets.topic.num.partitions": OFFSETS_PARTITIONS}
    async with asyncio.timeout(TIMEOUT_S), Cluster(brokers=3, properties=properties) as cluster:
        await cluster.create_topic("t", len(PARTITIONS))
        prepared = Stage(cluster, seed, monkeypatch)
        prepared.group.start()
        await prepared.works()
        await cluster.until(prepared._is_whole)
        yield prepared
        await prepared.works()
        await prepared.group.stop()
        acknowledged = prepared.group.ledger.acknowledged
        logged = await asyncio.to_thread(logged_commits, cluster.bootstrap, GROUP, OFFSETS_PARTITIONS)
        check_no_commit_goes_back(logged)
        assert {partition: offsets[-1] for partition, offsets in logged.items()} == acknowledged
        # A consumer that knows only the group's id begins where the last one has ended.
        found = await asyncio.to_thread(committed, cluster.bootstrap)
        assert found == acknowledged


def committed(bootstrap: str) -> dict[tuple[str, int], int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    try:
        found = consumer.committed([TopicPartition(*partition) for partition in PARTITIONS], timeout=120)
        return {(one.topic, one.partition): one.offset for one in found}
    finally:
        consumer.close()


@pytest.mark.parametrize(
    ("with_controller", "moments"),
    [
        pytest.param(False, MOMENTS, id="coordinator", marks=pytest.mark.long),
        pytest.param(True, MOMENTS, id="coordinator and controller", marks=pytest.mark.long),
        pytest.param(True, [ApiKey.SYNC_GROUP], id="both, once"),
    ],
)
async def test_the_coordinator_is_killed(
    with_controller: bool, moments: list[ApiKey], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage(seed=int(with_controller), monkeypatch=monkeypatch) as prepared:
        for moment in moments:
            await prepared.kill_when(moment, with_controller=with_controller)
