"""Static members (KIP-345): an instance that comes again takes its own place, and its former self is fenced."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from klamm.coordinator.groups.group import GroupState, JoinResult
from klamm.protocol.error_codes import ErrorCode
from klamm.simulation.machine.loop import SimulatedLoop
from support.coordination import RANGE, ROUND_ROBIN, Coordination, after, settle

pytestmark = pytest.mark.loop("virtual")

NONE = ErrorCode.NONE
FENCED = ErrorCode.FENCED_INSTANCE_ID
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
REBALANCING = ErrorCode.REBALANCE_IN_PROGRESS


@asynccontextmanager
async def running(**config: object) -> AsyncIterator[Coordination]:
    coordination = await Coordination.elected(**config)
    yield coordination
    await coordination.stop()


async def test_an_instance_has_an_id_that_shows_it() -> None:
    async with running() as c:
        joined = await c.join(instance="host-7")
        assert joined.member_id.startswith("host-7-")
        assert joined.members == [(joined.member_id, "host-7", b"")]


@pytest.mark.parametrize("number", [0, 1])
async def test_in_a_stable_group_nobody_else_notices(number: int) -> None:
    """Also not when it is the leader, who does not learn that it is: it shall not assign anew."""
    async with running() as c:
        joined = await c.stable(2, instances=[0, 1])
        old, other = joined[number], joined[1 - number]
        new = await c.join(instance=f"s{number}")
        assert new == JoinResult(NONE, new.member_id, 1, "consumer", "range", joined[0].member_id, ())
        assert new.member_id != old.member_id
        assert c.group().state is GroupState.STABLE
        assert c.log.generations()[1] == (1, {new.member_id: b"%d" % number, other.member_id: b"%d" % (1 - number)})
        assert (await c.sync(new, instance=f"s{number}")).assignment == b"%d" % number
        assert c.heartbeat(other) is NONE
        assert c.group().leader_id == (new.member_id if number == 0 else other.member_id)


async def test_the_former_self_is_fenced() -> None:
    async with running() as c:
        _, old = await c.stable(2, instances=[1])
        new = await c.join(instance="s1")
        assert await c.join(old.member_id, "s1") == JoinResult(FENCED, old.member_id)
        assert (await c.sync(old, instance="s1")).error_code is FENCED
        assert c.heartbeat(old, "s1") is FENCED
        assert await c.commit(old, instance="s1") is FENCED
        assert await c.commit(old._replace(generation_id=-1), instance="s1") is FENCED
        assert c.leave(old.member_id, "s1") is FENCED
        # Without its name it is simply not known.
        assert c.heartbeat(old) is UNKNOWN
        assert (await c.sync(old)).error_code is UNKNOWN
        assert await c.commit(old) is UNKNOWN
        assert c.heartbeat(new, "s1") is NONE


async def test_nobody_commits_in_the_name_of_an_instance_of_an_empty_group() -> None:
    """Without members a client without a generation may commit, with any name."""
    async with running() as c:
        [old] = await c.stable(1, instances=[0])
        assert c.leave("", "s0") is NONE
        await settle()
        assert c.group().state is GroupState.EMPTY
        assert await c.commit(old._replace(generation_id=-1), instance="s0") is NONE


async def test_with_another_protocol_the_group_rebalances() -> None:
    async with running() as c:
        a, _ = await c.stable(2, instances=[1], protocols=[RANGE, ROUND_ROBIN])
        same = await c.join(instance="s1", protocols=[("range", b"new"), ("other", b"")])
        assert (same.generation_id, c.group().state) == (1, GroupState.STABLE)
        again = c.join(instance="s1", protocols=[RANGE, ROUND_ROBIN])
        assert (await again).generation_id == 1
        # Now the only protocol that both have is another one.
        again = c.join(instance="s1", protocols=[ROUND_ROBIN])
        await settle()
        assert c.group().state is GroupState.PREPARING_REBALANCE
        leader = await c.join(a.member_id, protocols=[RANGE, ROUND_ROBIN])
        assert leader.protocol_name == "roundrobin"
        assert (await again).generation_id == 2
        assert (await c.join(instance="s1", protocols=[("none", b"")])).error_code is (
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        )


async def test_while_the_assignment_is_awaited_the_group_rebalances() -> None:
    """The leader may have assigned something to the old id."""
    async with running() as c:
        a, b, old = await c.completing(3, instances=[2])
        syncs = [c.sync(b), c.sync(old, instance="s2")]
        await settle()
        again = c.join(instance="s2")
        assert [(await sync).error_code for sync in syncs] == [REBALANCING, FENCED]
        joins = [c.join(a.member_id), c.join(b.member_id)]
        assert [(await join).generation_id for join in [*joins, again]] == [2, 2, 2]


async def test_while_others_join_it_joins_with_them() -> None:
    async with running() as c:
        a, old = await c.stable(2, instances=[1])
        waiting = c.join(old.member_id, "s1", protocols=[("range", b"new")])
        await settle()
        again = c.join(instance="s1")
        assert await waiting == JoinResult(FENCED, old.member_id)
        await settle()
        assert not again.done()
        assert (await c.join(a.member_id)).generation_id == 2
        assert (await again).generation_id == 2


async def test_in_its_first_rebalance_it_waits_as_long_as_others() -> None:
    """Kafka 2.8.2 takes it out after its session timeout, although it cannot know its id."""
    async with running() as c:
        a, _ = await c.stable(2, session_s=1800, rebalance_s=200)
        waiting = c.join(instance="s", session_s=10)
        again_a = c.join(a.member_id, session_s=1800, rebalance_s=200)
        await after(1)
        again = c.join(instance="s", session_s=10)
        assert (await waiting).error_code is FENCED
        await after(150)
        assert not again.done()
        assert (await again_a).generation_id == 2
        assert (await again).generation_id == 2


async def test_what_cannot_be_stored_has_not_happened() -> None:
    async with running() as c:
        [leader, old] = await c.stable(2, instances=[1], protocols=[RANGE, ROUND_ROBIN], session_s=30)
        c.log.error = ErrorCode.NOT_ENOUGH_REPLICAS
        failed = await c.join(instance="s1", protocols=[RANGE], session_s=10, rebalance_s=100)
        assert failed == JoinResult(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, "", 1, "consumer", "range", leader.member_id, ()
        )
        member = c.group().members[old.member_id]
        assert (member.protocols, member.session_timeout_ms, member.rebalance_timeout_ms) == (
            [RANGE, ROUND_ROBIN],
            30_000,
            60_000,
        )
        assert c.heartbeat(old, "s1") is NONE
        assert c.coordinator.waiting_count == 2
        assert c.group().static_members == {"s1": old.member_id}
        # It has a whole session from then on, and can try again.
        await after(29)
        assert c.heartbeat(old, "s1") is NONE
        c.log.error = NONE
        assert (await c.join(instance="s1")).generation_id == 1


async def test_a_leader_whose_new_id_cannot_be_stored_leads_on() -> None:
    async with running() as c:
        [old] = await c.stable(1, instances=[0])
        c.log.error = ErrorCode.REQUEST_TIMED_OUT
        assert (await c.join(instance="s0")).error_code is REBALANCING
        assert c.group().leader_id == old.member_id
        c.log.error = NONE
        assert (await c.join(old.member_id, "s0")).leader_id == old.member_id


@pytest.mark.parametrize("error", [NONE, ErrorCode.REQUEST_TIMED_OUT])
async def test_when_it_comes_a_third_time_while_the_second_is_stored(error: ErrorCode) -> None:
    async with running() as c:
        await c.stable(1, instances=[0])
        c.log.delay_s, c.log.error = 2, error
        second = c.join(instance="s0")
        await after(1)
        c.log.error = NONE
        third = c.join(instance="s0")
        assert (await second).error_code is FENCED
        result = await third
        assert (result.error_code, list(c.group().members)) == (NONE, [result.member_id])
        await after(5)
        assert (await c.sync(result, instance="s0")).assignment == b"0"
        assert c.heartbeat(result, "s0") is NONE


@pytest.mark.parametrize("error", [NONE, ErrorCode.REQUEST_TIMED_OUT])
async def test_a_rebalance_that_begins_while_it_is_stored_takes_it_along(error: ErrorCode) -> None:
    async with running() as c:
        a, _ = await c.stable(2, instances=[1])
        c.log.delay_s, c.log.error = 2, error
        again = c.join(instance="s1")
        await after(1)
        leader = c.join(a.member_id)
        assert (await leader).generation_id == 2
        result = await again
        assert (result.error_code, result.generation_id) == (NONE, 2)
        await after(2)
        c.log.error = NONE
        sync = c.sync(result, instance="s1")
        await c.sync(await leader, {result.member_id: b"new"})
        assert (await sync).assignment == b"new"


@pytest.mark.parametrize("error", [NONE, ErrorCode.REQUEST_TIMED_OUT])
async def test_who_leaves_while_its_new_id_is_stored(error: ErrorCode) -> None:
    async with running() as c:
        await c.stable(1, instances=[0])
        c.log.delay_s, c.log.error = 2, error
        again = c.join(instance="s0")
        await after(1)
        assert c.leave("", "s0") is NONE
        assert (await again).error_code is UNKNOWN
        await after(5)
        assert (c.group().state, c.group().members) == (GroupState.EMPTY, {})
        assert c.coordinator.waiting_count == 0


async def test_the_coordinator_resigns_while_a_new_id_is_stored() -> None:
    async with running() as c:
        await c.stable(1, instances=[0])
        c.log.delay_s = 2
        again = c.join(instance="s0")
        await after(1)
        c.resign()
        assert (await again).error_code is ErrorCode.NOT_COORDINATOR
        await after(2)
        assert c.coordinator.waiting_count == 0


async def test_a_session_that_would_end_while_the_new_id_is_stored_begins_with_the_answer() -> None:
    async with running() as c:
        await c.stable(1, instances=[0], session_s=10)
        c.log.delay_s = 15
        result = await c.join(instance="s0", session_s=10)
        c.log.delay_s = 0
        await after(9)
        assert c.heartbeat(result, "s0") is NONE
        await after(11)
        assert c.heartbeat(result, "s0") is UNKNOWN


@pytest.mark.parametrize("asks", [True, False])
async def test_the_new_self_has_to_ask_for_its_assignment_if_the_former_has_not(asks: bool) -> None:
    async with running() as c:
        a, s = await c.completing(2, instances=[1], rebalance_s=20, session_s=100)
        assert (await c.sync(a, {s.member_id: b"x"})).error_code is NONE
        await after(10)
        new = await c.join(instance="s1", rebalance_s=20, session_s=100)
        assert new.generation_id == 1
        if asks:
            assert (await c.sync(new, instance="s1")).assignment == b"x"
        await after(11)
        assert (new.member_id in c.group().members) is asks
        assert c.heartbeat(a) is (NONE if asks else REBALANCING)


async def test_a_session_ends_also_for_static_members() -> None:
    async with running() as c:
        [old] = await c.stable(1, instances=[0], session_s=10)
        await after(5)
        new = await c.join(instance="s0", session_s=20)
        await after(19)
        assert new.member_id in c.group().members
        assert old.member_id not in c.group().members
        await after(2)
        assert c.group().state is GroupState.EMPTY
        assert c.group().static_members == {}
        assert (await c.join(new.member_id, "s0")).error_code is UNKNOWN
        assert (await c.join(instance="s0")).generation_id == 3


async def test_who_has_not_joined_in_time_stays_and_keeps_its_place() -> None:
    async with running() as c:
        a, s = await c.stable(2, instances=[1], rebalance_s=5, session_s=100)
        again = await c.join(a.member_id, rebalance_s=5, session_s=100)
        assert (again.generation_id, len(again.members)) == (2, 2)
        await c.sync(again, {s.member_id: b"mine"})
        new = await c.join(instance="s1", rebalance_s=5, session_s=100)
        assert new.generation_id == 2
        assert (await c.sync(new, instance="s1")).assignment == b"mine"


async def test_waiting_for_static_members_without_a_rebalance_timeout_takes_no_turns_of_the_loop() -> None:
    async with running() as c:
        a, _ = await c.stable(2, instances=[0], session_s=1800, rebalance_s=1)
        c.group().members[a.member_id].rebalance_timeout_ms = -1
        [_, dynamic] = c.group().members
        c.group().members[dynamic].rebalance_timeout_ms = -1
        assert c.leave(dynamic) is NONE
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        before = loop.steps
        await after(100)
        assert c.group().state is GroupState.PREPARING_REBALANCE
        assert loop.steps - before < 200
