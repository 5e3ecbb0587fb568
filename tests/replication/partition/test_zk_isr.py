"""Leaders that write ISRs by themselves: what they write, what they hear, and when the controller does."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.vocabulary import PartitionKey
from klamm.replication.partition.zk_isr import IsrStore, ZkIsrManager
from klamm.replication.ports import IsrChange, WrittenIsr
from klamm.znodes.topics import LeaderAndIsr
from klamm.zookeeper.keeper_exceptions import ConnectionLoss, SessionExpired
from support.replicas import settle

pytestmark = pytest.mark.loop("virtual")

ME = 1
REFUSED = ErrorCode.INVALID_UPDATE_VERSION


class Store(IsrStore):
    """ZooKeeper: states by partition; a `failure` is raised before or after the write."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.started = self.loop.time()
        self.versions: dict[PartitionKey, int] = {}
        self.written: list[dict[PartitionKey, LeaderAndIsr]] = []
        self.announced: list[tuple[float, list[PartitionKey]]] = []
        self.failures: list[Exception] = []
        self.failure_after: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.bounced: set[int] = set()
        self.faults: list[BaseException] = []
        self.manager = ZkIsrManager(lambda: self, ME, self.faults.append)

    async def without_bounced_members(
        self, states: Mapping[PartitionKey, LeaderAndIsr]
    ) -> dict[PartitionKey, LeaderAndIsr]:
        return {
            key: replace(state, isr=tuple(id_ for id_ in state.isr if id_ not in self.bounced))
            for key, state in states.items()
        }

    async def update_leader_and_isr(self, states: Mapping[PartitionKey, LeaderAndIsr]) -> dict[PartitionKey, int]:
        if self.gate is not None:
            await self.gate.wait()
        if self.failures:
            raise self.failures.pop()
        self.written.append(dict(states))
        new = {}
        for key, state in states.items():
            if self.versions.get(key, 0) == state.zk_version:
                new[key] = self.versions[key] = state.zk_version + 1
        if self.failure_after is not None:
            error, self.failure_after = self.failure_after, None
            raise error
        return new

    async def propagate_isr_changes(self, partitions: Sequence[PartitionKey]) -> None:
        if self.failures:
            raise self.failures.pop()
        self.announced.append((self.loop.time() - self.started, list(partitions)))


def change(results, partition=0, isr=(1, 2), version=0):
    return IsrChange(("t", partition), 7, isr, version, 3, lambda result: results.append((partition, result)))


def scenario(function):
    async def test():
        store = Store()
        await function(store, store.manager, [])
        await store.manager.stop()
        assert not store.faults

    test.__name__ = function.__name__
    return test


@scenario
async def test_the_state_is_written_as_the_leader_knows_it(store, manager, results):
    manager.submit(change(results, 0))
    manager.submit(change(results, 1, isr=(1,), version=4))
    store.versions["t", 1] = 4
    await settle()
    assert store.written == [{("t", 0): LeaderAndIsr(ME, 7, (1, 2), 3), ("t", 1): LeaderAndIsr(ME, 7, (1,), 3)}], (
        "one write, under the controller epoch of the LeaderAndIsr"
    )
    assert results == [(0, WrittenIsr(7, (1, 2), 1)), (1, WrittenIsr(7, (1,), 5))]


@scenario
async def test_a_follower_that_has_bounced_is_not_written_and_the_leader_hears_so(store, manager, results):
    store.bounced = {2}
    manager.submit(change(results, isr=(1, 2, 3)))
    await settle()
    assert store.written == [{("t", 0): LeaderAndIsr(ME, 7, (1, 3), 3)}]
    assert results == [(0, WrittenIsr(7, (1, 3), 1))]


@scenario
async def test_what_somebody_else_has_changed_is_refused_and_not_announced(store, manager, results):
    store.versions["t", 0] = 1
    manager.submit(change(results))
    await asyncio.sleep(100)
    assert results == [(0, REFUSED)]
    assert store.announced == []


@scenario
async def test_a_leader_may_propose_the_next_change_when_it_hears_of_the_last(store, manager, results):
    following = change(results, 0, isr=(1,), version=1)
    manager.submit(IsrChange(("t", 0), 7, (1, 2), 0, 3, lambda result: manager.submit(following)))
    await settle()
    await settle()
    assert results == [(0, WrittenIsr(7, (1,), 2))]


@pytest.mark.parametrize("error", [ConnectionLoss, SessionExpired])
async def test_a_change_is_written_when_zookeeper_is_back(error):
    @scenario
    async def run(store, manager, results):
        store.failures = [error("/x")] * 100
        manager.submit(change(results))
        await asyncio.sleep(3)
        assert results == [] and store.written == []
        store.failures = []
        await asyncio.sleep(1)
        assert results == [(0, WrittenIsr(7, (1, 2), 1))]

    await run()


@scenario
async def test_a_change_that_may_have_been_written_is_announced_although_it_is_void(store, manager, results):
    store.failure_after = SessionExpired("/x")
    manager.submit(change(results))
    await settle()
    manager.clear_pending(("t", 0))
    await asyncio.sleep(10)
    assert results == [] and len(store.written) == 1
    assert [partitions for _, partitions in store.announced] == [[("t", 0)]]


@scenario
async def test_an_answer_does_not_reach_a_later_change_of_the_partition(store, manager, results):
    store.gate = asyncio.Event()
    manager.submit(change(results, isr=(1,)))
    await settle()
    manager.clear_pending(("t", 0))
    manager.submit(change(results, isr=(1, 2, 3), version=9))
    store.gate.set()
    await settle()
    assert results == [(0, REFUSED)], "the later one, which nobody has written"
    assert [state.isr for states in store.written for state in states.values()] == [(1,), (1, 2, 3)]


@scenario
async def test_a_change_is_announced_when_no_other_has_followed_for_five_seconds(store, manager, results):
    for second in range(4):
        manager.submit(change(results, second))
        await asyncio.sleep(2)
    await asyncio.sleep(20)
    # The last change was after 6 s; looked is every 2.5 s.
    assert store.announced == [(pytest.approx(12.5), [("t", 0), ("t", 1), ("t", 2), ("t", 3)])]


@scenario
async def test_changes_without_end_are_announced_every_minute(store, manager, results):
    for number in range(100):
        manager.submit(change(results, number))
        await asyncio.sleep(1.3)
    times = [time for time, _ in store.announced]
    assert times == [pytest.approx(60, abs=2.5), pytest.approx(120, abs=5)]
    assert len(store.announced[0][1]) + len(store.announced[1][1]) == len(
        {key for _, keys in store.announced for key in keys}
    )


@scenario
async def test_an_announcement_that_fails_comes_later_with_what_has_been_changed_meanwhile(store, manager, results):
    manager.submit(change(results, 0))
    await asyncio.sleep(4)
    store.failures = [SessionExpired("/x")]
    await asyncio.sleep(2)
    assert store.failures == []
    manager.submit(change(results, 1))
    await asyncio.sleep(20)
    assert [sorted(partitions) for _, partitions in store.announced] == [[("t", 0), ("t", 1)]]


@scenario
async def test_nothing_is_written_or_announced_after_the_stop(store, manager, results):
    manager.submit(change(results))
    await settle()
    await manager.stop()
    manager.submit(change(results, 1))
    await asyncio.sleep(100)
    assert len(store.written) == 1
    assert store.announced == []
