"""A consumer group on a simulated cluster, and one kind of trouble per scenario.

`klamm.simulation.workloads.group_workload` checks every answer that a member gets: one owner per partition and
generation, no committed offset goes back. At the end everything is healed, and the group must work again.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from klamm.coordinator.groups.committed_offsets import CommittedOffsets
from klamm.coordinator.groups.group import Group, GroupState, Member, SyncResult
from klamm.coordinator.groups.group_metadata_manager import partition_for
from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME
from klamm.simulation.cluster.cluster import SimulatedCluster
from klamm.simulation.machine.determinism import assert_same_trace
from klamm.simulation.machine.process import SimulationFailure
from klamm.simulation.machine.world import World
from klamm.simulation.workloads.group_workload import SESSION_TIMEOUT_MS, GroupMember, GroupWorkload
from klamm.simulation.workloads.verdict import converge
from klamm.simulation.workloads.workload import create_topic
from support.seeds import seeds

TOPIC = "events"
OFFSETS_PARTITIONS = 3
GROUP = "workers"
PARTITIONS = [(TOPIC, number) for number in range(4)]


@asynccontextmanager
async def working_group(world: World, members: int = 3) -> AsyncIterator[tuple[SimulatedCluster, GroupWorkload]]:
    """A cluster with a group at work; at the end it is healed, and the group must get somewhere."""
    cluster = SimulatedCluster(world)
    await cluster.start()
    client = cluster.client()
    await world.node("client").run(create_topic(client, TOPIC, partitions=len(PARTITIONS), replication_factor=3))
    group = GroupWorkload(
        world, cluster.client, GROUP, PARTITIONS, members, coordinator_id=lambda: cluster.coordinator(GROUP)
    )
    group.start()
    await group.until_stable()
    await group.ledger.until_commits(10)
    yield cluster, group
    await cluster.heal()
    await group.until_stable()
    await group.ledger.until_commits(20)
    await group.stop()
    await converge(cluster)
    await group.check_committed()
    await world.node("client").run(client.close())
    await cluster.close()


def coordinator(cluster: SimulatedCluster) -> int:
    return cluster.leader(GROUP_METADATA_TOPIC_NAME, partition_for(GROUP, OFFSETS_PARTITIONS))


async def elsewhere(cluster: SimulatedCluster, old: int) -> None:
    await cluster.until(lambda: coordinator(cluster) not in (old, -1))


# -- scenarios --------------------------------------------------------------------------------------------------------


async def coordinator_dies_during_commits(world: World) -> None:
    async with working_group(world) as (cluster, group):
        for _ in range(3):
            old = coordinator(cluster)
            cluster.brokers[old].kill()
            await elsewhere(cluster, old)
            await group.ledger.until_commits(10)
            cluster.brokers[old].start()
            await cluster.brokers[old].until_up()


async def coordinator_dies_during_a_rebalance(world: World) -> None:
    """At any moment of it: while members join, while they wait for their assignment, while it is written."""
    async with working_group(world, members=4) as (cluster, group):
        for member in group.members[:3]:
            member.kill()
            member.start()
            await asyncio.sleep(world.random.choice((0.0, 0.01, 0.05, 0.5)) * world.random.random())
            old = coordinator(cluster)
            cluster.brokers[old].kill()
            await elsewhere(cluster, old)
            await group.until_stable()
            await group.ledger.until_commits(10)
            cluster.brokers[old].start()
            await cluster.brokers[old].until_up()


async def controller_and_coordinator_die(world: World) -> None:
    async with working_group(world) as (cluster, group):
        dead = {cluster.controller_id(), coordinator(cluster)}
        for broker_id in dead:
            cluster.brokers[broker_id].kill()
        await asyncio.sleep(1)
        cluster.brokers[dead.pop()].start()
        await group.ledger.until_commits(10)


async def coordinator_stops(world: World) -> None:
    """An orderly stop moves the groups without anybody's session ending."""
    async with working_group(world) as (cluster, group):
        old = coordinator(cluster)
        await cluster.brokers[old].stop()
        assert coordinator(cluster) != old
        await group.ledger.until_commits(10)


async def coordinator_without_followers(world: World) -> None:
    """It may acknowledge nothing, and what it has written may be gone when it comes back."""
    async with working_group(world) as (cluster, group):
        old = coordinator(cluster)
        cluster.isolate(old, from_zookeeper=True, from_brokers=True)
        await elsewhere(cluster, old)
        await group.ledger.until_commits(10)


async def coordinator_is_stalled(world: World) -> None:
    """It wakes up and still takes itself for the coordinator."""
    async with working_group(world) as (cluster, group):
        old = coordinator(cluster)
        cluster.brokers[old].node.stall()
        await elsewhere(cluster, old)
        await group.ledger.until_commits(10)
        cluster.brokers[old].node.resume()
        await group.ledger.until_commits(10)


async def members_die(world: World) -> None:
    """Their partitions go to the others when the session has ended; the static one that returns keeps its own."""
    async with working_group(world, members=4) as (_, group):
        for index in (0, 1, 2):
            group.members[index].kill()
            await asyncio.sleep(world.random.choice((0.1, 2.0, SESSION_TIMEOUT_MS / 1000 + 1)))
            group.members[index].start()
            await group.ledger.until_commits(5)


async def members_are_paused_past_their_session(world: World) -> None:
    async with working_group(world) as (_, group):
        for member in group.members:
            generation = group.ledger.latest_generation
            member.node.stall()
            await group.ledger.until_generation(generation + 1)
            await group.ledger.until_commits(5)
            member.node.resume()
            await group.until_stable()


async def members_come_and_go(world: World) -> None:
    """Commits race with rebalances."""
    async with working_group(world, members=5) as (_, group):
        for _ in range(6):
            member = world.random.choice(group.members)
            await member.stop()
            await asyncio.sleep(world.random.random())
            member.start()
            await asyncio.sleep(world.random.random())


async def all_members_restart(world: World) -> None:
    """They know nothing but the group's id, and go on where it was."""
    async with working_group(world) as (cluster, group):
        await group.stop()
        before = dict(group.ledger.acknowledged)
        assert min(before.values()) > 0
        old = coordinator(cluster)
        cluster.brokers[old].kill()
        await elsewhere(cluster, old)
        group.start()
        await group.until_stable()
        await group.ledger.until_commits(10)
        assert all(group.ledger.acknowledged[partition] >= offset for partition, offset in before.items())


SCENARIOS: list[Callable[[World], Coroutine[Any, Any, None]]] = [
    coordinator_dies_during_commits,
    coordinator_dies_during_a_rebalance,
    controller_and_coordinator_die,
    coordinator_stops,
    coordinator_without_followers,
    coordinator_is_stalled,
    members_die,
    members_are_paused_past_their_session,
    members_come_and_go,
    all_members_restart,
]


@pytest.mark.parametrize("seed", seeds(1, 3))
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_scenario(scenario: Callable[[World], Coroutine[Any, Any, None]], seed: int) -> None:
    _run(scenario, seed)


def _run(scenario: Callable[[World], Coroutine[Any, Any, None]], seed: int) -> None:
    world = World(seed)
    world.run(scenario(world), time_limit_s=3600)


def test_same_seed_same_trace() -> None:
    assert_same_trace(f"{__file__}:coordinator_dies_during_a_rebalance", seed=1)


# -- the checks find what they are for --------------------------------------------------------------------------------


def test_a_coordinator_that_forgets_offsets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: what is loaded lacks the newest commits."""
    load = CommittedOffsets.load

    def forgetful(self: CommittedOffsets, partition: Any, record_offset: int, offset: Any) -> None:
        load(self, partition, record_offset, offset._replace(offset=max(0, offset.offset - 5)))

    monkeypatch.setattr(CommittedOffsets, "load", forgetful)
    with pytest.raises(SimulationFailure, match="had been acknowledged"):
        _run(coordinator_dies_during_commits, 1)


def test_two_owners_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: the leader gives everything to every member."""
    everything = bytes(range(len(PARTITIONS)))
    monkeypatch.setattr(GroupMember, "_assign", lambda _, member_ids: dict.fromkeys(member_ids, everything))
    with pytest.raises(SimulationFailure, match=r"generation 1: workers-\d and workers-\d own"):
        _run(members_come_and_go, 1)


def test_an_assignment_that_the_leader_has_not_given_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: every member gets everything from the coordinator."""
    answer_sync = Group.answer_sync

    def generous(self: Group, member: Member, result: SyncResult) -> bool:
        return answer_sync(self, member, result._replace(assignment=bytes(range(len(PARTITIONS)))))

    monkeypatch.setattr(Group, "answer_sync", generous)
    with pytest.raises(SimulationFailure, match="the leader has given it"):
        _run(members_come_and_go, 1)


def test_offsets_that_go_with_the_last_member_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: nobody joins again who could miss them."""
    transition_to = Group.transition_to

    def hasty(self: Group, state: GroupState, now_ms: int) -> None:
        transition_to(self, state, now_ms)
        if state is GroupState.EMPTY:
            self.offsets.remove(self.offsets.partitions)

    monkeypatch.setattr(Group, "transition_to", hasty)
    with pytest.raises(AssertionError, match=r"is at -1; \d+ had been acknowledged"):
        _run(members_die, 1)
