"""What the coordinator answers, in each state of a group and of itself: joins, syncs, heartbeats, leaves."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from klamm.base.slices import in_one_go
from klamm.coordinator.groups import rebalance
from klamm.coordinator.groups.group import GroupState, JoinedMember, JoinResult
from klamm.coordinator.ports import Appended, KeyAndValue, TransactionalProducer
from klamm.protocol.error_codes import ErrorCode
from support.coordination import RANGE, ROUND_ROBIN, Coordination, G, after, settle

pytestmark = pytest.mark.loop("virtual")

NONE = ErrorCode.NONE
UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
FENCED = ErrorCode.FENCED_INSTANCE_ID
ILLEGAL = ErrorCode.ILLEGAL_GENERATION
REBALANCING = ErrorCode.REBALANCE_IN_PROGRESS
INCONSISTENT = ErrorCode.INCONSISTENT_GROUP_PROTOCOL

Scenario = Callable[[Coordination], Coroutine[Any, Any, None]]


@asynccontextmanager
async def running(**config: object) -> AsyncIterator[Any]:
    """With an elected coordinator that afterwards has no waiting member."""
    coordination = await Coordination.elected(**config)
    yield coordination
    await coordination.stop()


# -- the coordinator itself --------------------------------------------------------------------------------------------

NOT_ANSWERED_FOR = [
    ("empty id", ErrorCode.INVALID_GROUP_ID),
    ("long id", ErrorCode.INVALID_GROUP_ID),
    ("stopped", ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ("loading", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ("not elected", ErrorCode.NOT_COORDINATOR),
]


@pytest.mark.parametrize(("case", "error"), NOT_ANSWERED_FOR)
async def test_groups_that_it_does_not_answer_for(case: str, error: ErrorCode) -> None:
    c = Coordination()
    group_id = {"empty id": "", "long id": "g" * 32768}.get(case, G)
    if case == "loading":
        c.log.readable.clear()
        await c.elect()
    elif case in ("empty id", "long id"):
        await c.elect()
    elif case == "stopped":
        await c.elect()
        await c.coordinator.stop()
    coordinator = c.coordinator

    join = await c.join("m", group_id=group_id)
    assert join == JoinResult(error, "m")
    sync = await coordinator.sync_group(group_id, 1, "m", None, None, None, {})
    is_loading = error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert sync.error_code is (REBALANCING if is_loading else error)
    assert coordinator.heartbeat(group_id, 1, "m", None) is (NONE if is_loading else error)
    assert in_one_go(coordinator.leave_group(group_id, [("m", None)])) == (error, [])
    assert in_one_go(coordinator.delete_offsets(group_id, [("t", 0)])) == (error, {})

    # Offsets may be kept under an empty id, and such a group can be seen and deleted.
    if case != "empty id":
        assert await coordinator.commit_offsets(group_id, 1, "m", None, {("t", 0): c.an_offset(1)}) == {("t", 0): error}
        assert coordinator.fetch_offsets(group_id, [("t", 0)], require_stable=False) == (error, {})
        assert in_one_go(coordinator.describe_group(group_id)) == (error, ("", "", "", ()))
        assert coordinator.delete_groups([group_id]) == {group_id: error}
    c.log.readable.set()
    await c.stop()


async def test_groups_that_do_not_exist() -> None:
    async with running() as c:
        coordinator = c.coordinator
        assert await c.join("m") == JoinResult(UNKNOWN, "m")
        assert (await coordinator.sync_group(G, 1, "m", None, None, None, {})).error_code is UNKNOWN
        assert coordinator.heartbeat(G, 1, "m", None) is UNKNOWN
        assert in_one_go(coordinator.leave_group(G, [("m", None), ("", "i")])) == (
            NONE,
            [("m", None, UNKNOWN), ("", "i", UNKNOWN)],
        )
        assert c.manager.get(G) is None


async def test_groups_that_are_dead() -> None:
    """Nobody meets one today, since a Dead group is forgotten at once; the answers are Kafka's."""
    async with running() as c:
        [m] = await c.stable()
        group = c.group()
        group.transition_to(GroupState.DEAD, 0)
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await c.join() == JoinResult(error, "")
        assert await c.join(m.member_id) == JoinResult(error, m.member_id)
        assert (await c.sync(m)).error_code is error
        assert c.heartbeat(m) is error
        assert in_one_go(c.coordinator.leave_group(G, [(m.member_id, None)])) == (error, [])
        assert await c.commit(m) is error
        assert await c.commit(None) is error
        assert c.coordinator.fetch_offsets(G, [("t", 0)], require_stable=True) == (NONE, {("t", 0): (NONE, None)})
        assert c.coordinator.fetch_offsets(G, None, require_stable=True) == (NONE, {})
        assert c.coordinator.delete_groups([G]) == {G: ErrorCode.GROUP_ID_NOT_FOUND}
        assert in_one_go(c.coordinator.delete_offsets(G, [("t", 0)])) == (ErrorCode.GROUP_ID_NOT_FOUND, {})
        assert in_one_go(c.coordinator.describe_group(G))[1].state == "Dead"
        c.coordinator.rebalances.bury(group)


# -- joining -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("session_s", "error"),
    [
        (5.999, ErrorCode.INVALID_SESSION_TIMEOUT),
        (6, NONE),
        (1800, NONE),
        (1800.001, ErrorCode.INVALID_SESSION_TIMEOUT),
    ],
)
async def test_sessions_have_bounds(session_s: float, error: ErrorCode) -> None:
    async with running() as c:
        assert (await c.join(session_s=session_s)).error_code is error


@pytest.mark.parametrize(
    "options",
    [{"client_id": "c" * 32731}, {"instance": "i" * 32731}, {"protocols": [("p" * 32731, b"")]}],
)
async def test_texts_that_no_record_has_room_for_are_refused(options: dict[str, Any]) -> None:
    async with running() as c:
        assert (await c.join(**options)).error_code is ErrorCode.INVALID_REQUEST


async def test_the_longest_texts_can_be_stored() -> None:
    async with running() as c:
        await c.stable(client_id="c" * 32730, protocols=[("p" * 32730, b"")])
        assert len(c.log.generations()) == 1


async def test_a_member_alone() -> None:
    async with running() as c:
        [m] = await c.completing(protocols=[("range", b"topics")])
        assert m.member_id.startswith("c-")
        assert len(m.member_id) == len("c-") + 36
        assert m == JoinResult(
            NONE, m.member_id, 1, "consumer", "range", m.member_id, [JoinedMember(m.member_id, None, b"topics")]
        )
        synced = await c.sync(m, {m.member_id: b"all", "nobody": b"x"})
        assert synced == (NONE, "consumer", "range", b"all")
        assert c.group().state is GroupState.STABLE
        assert c.log.generations() == [(1, {m.member_id: b"all"})]


async def test_joining_in_two_steps() -> None:
    async with running() as c:
        first = await c.join(two_steps=True)
        assert first == JoinResult(ErrorCode.MEMBER_ID_REQUIRED, first.member_id)
        assert first.member_id.startswith("c-")
        assert c.group().state is GroupState.EMPTY
        second = await c.join(first.member_id, two_steps=True)
        assert (second.error_code, second.member_id, second.generation_id) == (NONE, first.member_id, 1)


async def test_an_id_that_nobody_joins_with_is_forgotten() -> None:
    async with running() as c:
        first = await c.join(two_steps=True, session_s=10)
        await after(9.9)
        assert list(c.group().pending_members) == [first.member_id]
        await after(0.2)
        assert not c.group().pending_members
        assert (await c.join(first.member_id)).error_code is UNKNOWN


async def test_a_rebalance_waits_for_ids_that_were_given_out() -> None:
    async with running() as c:
        [m] = await c.stable()
        pending = await c.join(two_steps=True)
        again = c.join(m.member_id)
        await after(9)
        assert not again.done()
        assert c.heartbeat(m) is REBALANCING
        other = c.join(pending.member_id)
        assert (await again).generation_id == 2
        sync = c.sync(await other)
        await c.sync(await again)
        await sync
        # And if nobody comes with it, only until its session is over.
        await c.join(two_steps=True)
        joins = [c.join(m.member_id), c.join(pending.member_id)]
        await after(9.9)
        assert not joins[0].done()
        await after(0.2)
        assert [(await join).generation_id for join in joins] == [3, 3]


async def test_an_id_that_leaves_is_waited_for_no_longer() -> None:
    async with running() as c:
        [m] = await c.stable()
        pending = await c.join(two_steps=True)
        again = c.join(m.member_id)
        await settle()
        assert c.leave(pending.member_id) is NONE
        assert (await again).generation_id == 2


async def test_a_group_of_a_pending_id_stays_when_a_topic_is_deleted() -> None:
    async with running() as c:
        pending = await c.join(two_steps=True)
        in_one_go(c.coordinator.partitions_deleted([("t", 0)]))
        assert (await c.join(pending.member_id)).error_code is NONE


async def test_a_pending_id_belongs_to_no_instance() -> None:
    async with running() as c:
        pending = await c.join(two_steps=True)
        assert (await c.join(pending.member_id, "i")).error_code is UNKNOWN
        assert c.leave(pending.member_id, "i") is NONE


async def test_the_first_rebalance_waits_for_others() -> None:
    async with running(group_initial_rebalance_delay_ms=3000) as c:
        first = c.join()
        await after(2.9)
        assert not first.done()
        second = c.join()
        await after(0.2)
        assert not first.done()  # somebody has come: it waits once more
        await after(2.8)
        assert not first.done()
        await after(0.2)
        assert first.done()
        assert len((await first).members) == 2
        assert (await second).leader_id == (await first).member_id


async def test_the_first_rebalance_without_others_begins_after_one_delay() -> None:
    async with running(group_initial_rebalance_delay_ms=3000) as c:
        first = c.join()
        await after(2.999)
        assert not first.done()
        await after(0.002)
        assert first.done()


async def test_the_first_rebalance_does_not_wait_for_ever() -> None:
    """Though somebody comes every second, it is over after the first member's rebalance timeout."""
    async with running(group_initial_rebalance_delay_ms=3000) as c:
        joins = [c.join(rebalance_s=10)]
        for _ in range(9):
            await after(1)
            joins.append(c.join(rebalance_s=100))
        await after(0.9)
        assert not any(join.done() for join in joins)
        await after(0.2)
        assert [(await join).generation_id for join in joins] == [1] * 10


async def test_the_wait_for_the_first_members_ends_when_they_have_gone() -> None:
    async with running(group_initial_rebalance_delay_ms=3000) as c:
        first = c.join(group_id=G)
        await settle()
        [member_id] = c.group().members
        assert c.leave(member_id) is NONE
        assert (await first).error_code is UNKNOWN
        assert c.group().state is GroupState.PREPARING_REBALANCE
        await after(3.1)
        assert (c.group().state, c.group().generation_id) == (GroupState.EMPTY, 1)
        assert c.log.generations() == [(1, {})]


async def test_a_member_that_asks_again_while_it_waits() -> None:
    async with running() as c:
        a, b = await c.stable(2)
        first = c.join(a.member_id)
        await settle()
        second = c.join(a.member_id)
        assert await first == JoinResult(REBALANCING, a.member_id)
        assert not second.done()
        third = c.join(b.member_id)
        assert (await second).generation_id == (await third).generation_id == 2


async def test_whose_client_has_gone_is_waited_for_as_if_it_had_not() -> None:
    async with running() as c:
        a, b = await c.stable(2)
        again = c.join(a.member_id)
        await settle()
        again.cancel()
        await settle()
        assert c.group().awaiting_join_count == 1
        other = await c.join(b.member_id)
        assert (other.generation_id, other.leader_id) == (2, a.member_id)
        sync = c.sync(other)
        await settle()
        sync.cancel()
        await settle()
        c.sync(a, generation=2)
        await settle()
        assert c.group().state is GroupState.STABLE


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"protocol_type": ""}, INCONSISTENT),
        ({"protocols": []}, INCONSISTENT),
        ({"protocol_type": "connect"}, NONE),
    ],
)
async def test_the_first_member_may_have_any_protocol_but_none(options: dict[str, Any], error: ErrorCode) -> None:
    async with running() as c:
        assert (await c.join(**options)).error_code is error


async def test_others_need_a_protocol_that_all_have() -> None:
    async with running() as c:
        a, b = await c.stable(2, protocols=[RANGE, ROUND_ROBIN])
        for member_id in ("", a.member_id):
            assert await c.join(member_id, protocols=[("sticky", b"")]) == JoinResult(INCONSISTENT, member_id)
            assert await c.join(member_id, protocol_type="connect") == JoinResult(INCONSISTENT, member_id)
        joins = [c.join(a.member_id, protocols=[RANGE, ROUND_ROBIN]), c.join(b.member_id, protocols=[ROUND_ROBIN])]
        assert [(await join).protocol_name for join in joins] == ["roundrobin"] * 2
        assert (await c.join(protocols=[RANGE])).error_code is INCONSISTENT


async def test_who_is_no_member_cannot_join_again() -> None:
    async with running() as c:
        [a] = await c.stable()
        assert await c.join("nobody") == JoinResult(UNKNOWN, "nobody")
        assert await c.join(a.member_id, "instance") == JoinResult(UNKNOWN, a.member_id)
        assert c.leave(a.member_id) is NONE
        await settle()
        assert c.group().state is GroupState.EMPTY
        assert await c.join(a.member_id) == JoinResult(UNKNOWN, a.member_id)


async def test_joining_again_in_a_stable_group() -> None:
    async with running() as c:
        a, b = await c.stable(2, protocols=[RANGE])
        # A follower with nothing new hears what it knows.
        assert await c.join(b.member_id) == JoinResult(NONE, b.member_id, 1, "consumer", "range", a.member_id, ())
        assert c.group().state is GroupState.STABLE
        # With something new, it begins a rebalance.
        again = c.join(b.member_id, protocols=[("range", b"new")])
        await settle()
        assert c.group().state is GroupState.PREPARING_REBALANCE
        leader = await c.join(a.member_id)
        assert leader.members == [(a.member_id, None, b""), (b.member_id, None, b"new")]
        assert (await again).generation_id == 2


async def test_the_leader_of_a_stable_group_begins_a_rebalance_with_a_join() -> None:
    async with running() as c:
        a, b = await c.stable(2)
        again = c.join(a.member_id)
        await settle()
        assert c.heartbeat(b) is REBALANCING
        assert (await c.join(b.member_id)).generation_id == 2
        assert (await again).generation_id == 2


async def test_joining_again_while_the_assignment_is_awaited() -> None:
    async with running() as c:
        a, b = await c.completing(2)
        # Whose answer was lost gets it again, the leader with its members.
        assert await c.join(a.member_id) == a
        assert await c.join(b.member_id) == b
        waiting = c.sync(b)
        again = c.join(b.member_id, protocols=[("range", b"new")])
        assert (await waiting).error_code is REBALANCING
        assert (await c.join(a.member_id)).generation_id == 2
        assert (await again).generation_id == 2


async def test_a_new_member_makes_all_others_join_again() -> None:
    async with running() as c:
        [a] = await c.stable()
        new = c.join()
        await settle()
        assert c.heartbeat(a) is REBALANCING
        assert (await c.sync(a)).error_code is REBALANCING
        again = await c.join(a.member_id)
        assert again.leader_id == a.member_id
        assert [member.member_id for member in again.members] == [a.member_id, (await new).member_id]


async def test_who_does_not_join_in_time_is_out() -> None:
    async with running() as c:
        a, b = await c.stable(2, rebalance_s=5, session_s=100)
        again = c.join(a.member_id, rebalance_s=5, session_s=100)
        await after(4.9)
        assert not again.done()
        await after(0.2)
        assert (await again).generation_id == 2
        assert list(c.group().members) == [a.member_id]
        assert c.heartbeat(b) is UNKNOWN


async def test_the_leader_that_does_not_join_in_time_leads_no_longer() -> None:
    async with running() as c:
        _, b = await c.stable(2, rebalance_s=5, session_s=100)
        again = await c.join(b.member_id, protocols=[("range", b"new")], rebalance_s=5)
        assert again.leader_id == b.member_id
        assert [member.member_id for member in again.members] == [b.member_id]


async def test_when_only_static_members_are_missing_they_stay_until_their_sessions_end() -> None:
    async with running() as c:
        [s, d] = await c.stable(2, instances=[0], rebalance_s=5, session_s=30)
        assert c.leave(d.member_id) is NONE
        await after(29)
        assert c.group().state is GroupState.PREPARING_REBALANCE
        assert list(c.group().members) == [s.member_id]
        await after(2)
        assert c.group().state is GroupState.EMPTY


@pytest.mark.parametrize("rebalance_s", [0, -1])
async def test_who_gives_others_no_time_to_rebalance_gets_none(rebalance_s: int) -> None:
    async with running() as c:
        joins = [c.join(instance="s", rebalance_s=rebalance_s), c.join(rebalance_s=rebalance_s)]
        assert [(await join).error_code for join in joins] == [NONE, NONE]
        await settle()
        assert c.group().state is GroupState.EMPTY


@pytest.mark.parametrize("has_room", [True, False])
async def test_a_group_has_a_largest_size(has_room: bool) -> None:
    async with running(group_max_size=3 if has_room else 2) as c:
        a, b = await c.completing(2)
        for state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            if state is GroupState.STABLE:
                c.sync(b)
                await c.sync(a)
            assert c.group().state is state
            assert (await c.join(b.member_id)).error_code is NONE
            if not has_room:
                assert await c.join() == JoinResult(ErrorCode.GROUP_MAX_SIZE_REACHED, "")
        c.join()
        await settle()
        assert c.group().state is (GroupState.PREPARING_REBALANCE if has_room else GroupState.STABLE)


async def test_while_members_join_those_count_who_have() -> None:
    async with running(group_max_size=2) as c:
        a, b = await c.stable(2)
        c.config.replace(c.with_config(group_max_size=1))
        new = c.join(a.member_id)
        await settle()
        # There is no room for the last member to join again; the others need not wait for it.
        assert await c.join(b.member_id) == JoinResult(ErrorCode.GROUP_MAX_SIZE_REACHED, "")
        assert (await new).generation_id == 2
        assert list(c.group().members) == [a.member_id]


async def test_an_id_that_finds_no_room_is_not_waited_for() -> None:
    async with running(group_max_size=2) as c:
        a, b = await c.stable(2)
        assert c.leave(b.member_id) is NONE
        pending = [await c.join(two_steps=True) for _ in range(2)]
        again = c.join(a.member_id)
        await settle()
        joined = c.join(pending[0].member_id)
        await settle()
        assert (await c.join(pending[1].member_id)).error_code is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert (await again).generation_id == (await joined).generation_id == 2


async def test_the_more_memory_members_take_the_less_a_group_may_have(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rebalance, "ALL_GROUPS_BYTES", 800_000)
    monkeypatch.setattr(rebalance, "MIN_GROUP_BYTES", 20_000)

    async with running() as c:

        def join(group_id: str, size_bytes: int, member_id: str = "", **options: Any) -> "asyncio.Task[JoinResult]":
            return c.join(member_id, group_id=group_id, protocols=[("range", bytes(size_bytes))], **options)

        refused = JoinResult(ErrorCode.GROUP_MAX_SIZE_REACHED, "")
        assert await join("a", 100_000) == refused
        assert "group a: refused a member with 101007 bytes of metadata" in caplog.text
        assert c.manager.get("a") is None
        members = {name: (await join(name, 75_000)).member_id for name in "abc"}
        assert await join("d", 75_000) == refused
        assert await join("a", 5_000) == refused
        # What a group has it keeps, and a small one is never refused; ids that were given out count as well.
        assert (await join("a", 75_000, members["a"])).error_code is NONE
        assert await join("b", 80_000, members["b"]) == refused
        assert c.group("b").state is GroupState.EMPTY
        answers = [await join("d", 0, two_steps=True) for _ in range(100)]
        assert answers[0].error_code is ErrorCode.MEMBER_ID_REQUIRED
        assert answers[-1].error_code is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert (await join("e", 0)).error_code is NONE
    assert c.coordinator.rebalances._size_bytes == 0


async def test_when_no_memory_is_left_for_members_many_groups_get_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebalance, "ALL_GROUPS_BYTES", 100_000)
    monkeypatch.setattr(rebalance, "MIN_GROUP_BYTES", 20_000)

    async with running() as c:

        def join(group_id: str, size_bytes: int) -> "asyncio.Task[JoinResult]":
            return c.join(group_id=group_id, protocols=[("range", bytes(size_bytes))])

        answers = [(await join(f"large-{number}", 15_000)).error_code for number in range(50)]
        assert answers == [NONE] * 7 + [ErrorCode.GROUP_MAX_SIZE_REACHED] * 43
        assert (await join("small", 500)).error_code is NONE


async def test_a_member_names_no_more_protocols_than_clients_have() -> None:
    async with running() as c:
        for count, error in ((100, NONE), (101, ErrorCode.INVALID_REQUEST)):
            protocols = [(f"protocol-{number}", b"") for number in range(count)]
            assert (await c.join(group_id=f"group-{count}", protocols=protocols)).error_code is error


# -- syncing -----------------------------------------------------------------------------------------------------------


async def test_who_may_sync() -> None:
    async with running() as c:
        a, b = await c.completing(2, instances=[1])
        for options, error in [
            ({"member_id": "nobody"}, UNKNOWN),
            ({"generation": 0}, ILLEGAL),
            ({"generation": 2}, ILLEGAL),
            ({"protocol_type": "connect"}, INCONSISTENT),
            ({"protocol": "roundrobin"}, INCONSISTENT),
            ({"instance": "s1"}, FENCED),
        ]:
            assert (await c.sync(a, **options)).error_code is error  # type: ignore[arg-type]  # by name
        waiting = c.sync(b, instance="s1", protocol_type="consumer", protocol="range")
        await settle()
        assert not waiting.done()
        assert (await c.sync(a, {b.member_id: b"x"})).assignment == b""
        assert (await waiting).assignment == b"x"
        # In a Stable group it can be asked for again.
        assert (await c.sync(b)).assignment == b"x"


async def test_the_assignment_is_given_out_when_it_is_stored() -> None:
    async with running() as c:
        a, b = await c.completing(2)
        c.log.delay_s = 3
        syncs = [c.sync(a, {b.member_id: b"x"}), c.sync(b)]
        await after(2.9)
        assert not any(sync.done() for sync in syncs)
        assert c.group().state is GroupState.COMPLETING_REBALANCE
        await after(0.2)
        assert [(await sync).assignment for sync in syncs] == [b"", b"x"]


@pytest.mark.parametrize(
    ("of_log", "of_group"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, REBALANCING),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
async def test_when_the_assignment_cannot_be_stored_all_join_again(of_log: ErrorCode, of_group: ErrorCode) -> None:
    async with running() as c:
        a, b = await c.completing(2)
        c.log.error = of_log
        syncs = [c.sync(b), c.sync(a, {b.member_id: b"x"})]
        assert [(await sync).error_code for sync in syncs] == [of_group] * 2
        assert c.group().state is GroupState.PREPARING_REBALANCE
        c.log.error = NONE
        joins = [c.join(a.member_id), c.join(b.member_id)]
        assert [(await join).generation_id for join in joins] == [2, 2]


async def test_only_the_leaders_first_word_counts() -> None:
    """Otherwise the log might say something else than what was given out."""
    async with running() as c:
        [a] = await c.completing()
        c.log.delay_s = 1
        first = c.sync(a, {a.member_id: b"first"})
        await settle()
        second = c.sync(a, {a.member_id: b"second"})
        assert (await first).error_code is REBALANCING
        assert (await second).assignment == b"first"
        assert c.log.generations() == [(1, {a.member_id: b"first"})]


@pytest.mark.parametrize("error", [NONE, ErrorCode.REQUEST_TIMED_OUT])
async def test_an_assignment_that_comes_too_late_is_nobodys(error: ErrorCode) -> None:
    async with running() as c:
        [a] = await c.completing()
        c.log.delay_s = 5
        c.log.error = error
        sync = c.sync(a, {a.member_id: b"old"})
        await settle()
        new = c.join()
        assert (await sync).error_code is REBALANCING
        again = await c.join(a.member_id)
        c.log.delay_s, c.log.error = 8, NONE
        sync = c.sync(again, {a.member_id: b"new"})
        await after(6)
        assert c.group().state is GroupState.COMPLETING_REBALANCE
        assert (await sync).assignment == b"new"
        assert (await c.sync(await new)).assignment == b""


@pytest.mark.parametrize("leader_syncs", [True, False])
async def test_who_does_not_ask_for_its_assignment_in_time_is_out(leader_syncs: bool) -> None:
    async with running() as c:
        joined = await c.completing(2, rebalance_s=5, session_s=100)
        good, bad = joined if leader_syncs else reversed(joined)
        sync = c.sync(good)
        await after(4.9)
        assert sync.done() is leader_syncs
        assert bad.member_id in c.group().members
        await after(0.2)
        assert list(c.group().members) == [good.member_id]
        assert (await sync).error_code is (NONE if leader_syncs else REBALANCING)
        again = await c.join(good.member_id)
        assert (again.generation_id, again.leader_id) == (2, good.member_id)


async def test_when_nobody_asks_for_its_assignment_the_group_is_empty() -> None:
    async with running() as c:
        await c.completing(2, rebalance_s=5, session_s=100)
        await after(5.1)
        assert (c.group().state, c.group().generation_id) == (GroupState.EMPTY, 2)
        assert c.log.generations() == [(2, {})]


# -- heartbeats --------------------------------------------------------------------------------------------------------


async def test_who_may_send_heartbeats() -> None:
    async with running() as c:
        a, s = await c.completing(2, instances=[1])
        assert c.heartbeat(a) is NONE  # CompletingRebalance
        waiting = c.sync(s)
        await c.sync(a)
        await waiting
        assert c.heartbeat(a) is NONE  # Stable
        assert c.heartbeat(s, "s1") is NONE
        assert c.heartbeat(a._replace(member_id="nobody")) is UNKNOWN
        assert c.heartbeat(a._replace(generation_id=0)) is ILLEGAL
        assert c.heartbeat(a, "s1") is FENCED
        again = c.join(a.member_id)
        await settle()
        assert c.heartbeat(s) is REBALANCING  # PreparingRebalance
        await c.join(s.member_id)
        await again
        for m in (a, s):
            assert c.leave(m.member_id) is NONE
        assert c.group().state is GroupState.EMPTY
        assert c.heartbeat(a._replace(generation_id=c.group().generation_id)) is UNKNOWN


async def test_who_is_silent_for_too_long_is_out() -> None:
    async with running() as c:
        a, b = await c.stable(2, session_s=10)
        for _ in range(3):
            await after(9)
            assert c.heartbeat(a) is NONE
            if b.member_id in c.group().members and _ < 2:
                assert c.heartbeat(b) is NONE
        await after(0.9)
        assert c.group().state is GroupState.STABLE
        await after(0.2)
        assert c.group().state is GroupState.PREPARING_REBALANCE
        assert c.heartbeat(b) is UNKNOWN
        assert (await c.join(a.member_id)).generation_id == 2


async def test_a_commit_and_a_sync_are_signs_of_life() -> None:
    async with running() as c:
        [a] = await c.stable(session_s=10)
        await after(9)
        assert await c.commit(a) is NONE
        await after(9)
        assert (await c.sync(a)).error_code is NONE
        await after(9)
        assert c.heartbeat(a) is NONE


async def test_who_waits_for_others_does_not_expire() -> None:
    async with running() as c:
        a, b = await c.stable(2, session_s=10, rebalance_s=60)
        again = c.join(a.member_id, session_s=10)
        for _ in range(5):
            await after(9)
            assert c.heartbeat(b) is REBALANCING
        other = await c.join(b.member_id, session_s=10)
        assert (await again).generation_id == 2
        # From then on its time counts again, and so does the other's while it waits for the leader's sync.
        sync = c.sync(other)
        await after(9)
        assert c.heartbeat(a._replace(generation_id=2)) is NONE
        await after(9)
        assert (await c.sync(await again)).error_code is NONE
        assert (await sync).error_code is NONE
        await after(9.9)
        assert c.group().state is GroupState.STABLE
        await after(0.2)
        assert c.group().state is GroupState.EMPTY


async def test_who_has_waited_for_others_has_a_whole_session_then_and_no_more() -> None:
    async with running() as c:
        a, b = await c.stable(2, session_s=10, rebalance_s=60)
        again = c.join(a.member_id, session_s=10)
        await after(9)
        assert c.heartbeat(b) is REBALANCING
        await after(9)
        sync = c.sync(await c.join(b.member_id, session_s=10))
        assert (await again).generation_id == 2
        await after(9.9)
        assert not sync.done()
        await after(0.2)
        assert sync.done()
        assert (await sync).error_code is REBALANCING
        assert list(c.group().members) == [b.member_id]


async def test_a_new_member_waits_for_five_minutes() -> None:
    """Nobody would notice that its client has gone, and it cannot send heartbeats since it knows no id."""
    async with running() as c:
        a, _ = await c.stable(2, session_s=1800, rebalance_s=600)
        again = c.join(a.member_id, session_s=1800, rebalance_s=600)
        new = c.join(session_s=10, rebalance_s=600)
        await after(299.9)
        assert not new.done()
        assert len(c.group().members) == 3
        await after(0.2)
        assert await new == JoinResult(UNKNOWN, "")
        assert len(c.group().members) == 2
        assert not again.done()
        await after(300)
        assert (await again).generation_id == 2


# -- leaving -----------------------------------------------------------------------------------------------------------


async def test_several_leave_at_once() -> None:
    async with running() as c:
        a, b, d = await c.stable(3, instances=[1])
        pending = await c.join(two_steps=True)
        answers = in_one_go(
            c.coordinator.leave_group(
                G,
                [
                    ("nobody", None),
                    ("nobody", "s1"),
                    (a.member_id, None),
                    ("", "s1"),
                    ("", "s1"),
                    ("", "s7"),
                    ("", None),
                    (pending.member_id, None),
                ],
            )
        )
        assert answers == (
            NONE,
            [
                ("nobody", None, UNKNOWN),
                ("nobody", "s1", FENCED),
                (a.member_id, None, NONE),
                ("", "s1", NONE),
                ("", "s1", UNKNOWN),
                ("", "s7", UNKNOWN),
                ("", None, UNKNOWN),
                (pending.member_id, None, NONE),
            ],
        )
        assert list(c.group().members) == [d.member_id]
        assert (await c.join(d.member_id)).leader_id == d.member_id
        assert b.member_id not in c.group().members


async def test_who_is_taken_out_while_it_waits_is_told_so() -> None:
    async with running() as c:
        a, b = await c.completing(2, instances=[1])
        sync = c.sync(b, instance="s1")
        await settle()
        assert c.leave("", "s1") is NONE
        assert (await sync).error_code is UNKNOWN
        new = c.join()
        await settle()
        [_, new_id] = c.group().members
        assert c.leave(new_id) is NONE
        assert (await new).error_code is UNKNOWN
        assert (await c.join(a.member_id)).generation_id == 2


async def test_the_last_to_leave_leaves_an_empty_group() -> None:
    async with running() as c:
        [a] = await c.stable()
        assert c.leave(a.member_id) is NONE
        await settle()
        assert (c.group().state, c.group().generation_id) == (GroupState.EMPTY, 2)
        assert c.log.generations() == [(1, {a.member_id: b"0"}), (2, {})]
        assert c.coordinator.waiting_count == 0


async def test_that_a_group_is_empty_need_not_be_stored() -> None:
    async with running() as c:
        [a] = await c.stable()
        c.log.error = ErrorCode.NOT_ENOUGH_REPLICAS
        assert c.leave(a.member_id) is NONE
        await settle()
        assert c.group().state is GroupState.EMPTY
        c.log.error = NONE
        assert (await c.join()).generation_id == 3


async def test_who_is_gone_when_its_group_would_be_stored_changes_nothing() -> None:
    """Between the decision and the write others may come: what is written is never of another generation."""
    async with running() as c:
        [a] = await c.stable()
        new = c.join()
        assert c.leave(a.member_id) is NONE
        assert (await new).generation_id == 3
        assert [generation for generation, _ in c.log.generations()] == [1]


# -- elections ---------------------------------------------------------------------------------------------------------


async def test_who_waits_when_the_coordinator_resigns_is_told_so() -> None:
    async with running() as c:
        a, b = await c.completing(2)
        syncs = [c.sync(b)]
        await settle()
        c.resign()
        assert [(await sync).error_code for sync in syncs] == [ErrorCode.NOT_COORDINATOR]
        assert c.heartbeat(a) is ErrorCode.NOT_COORDINATOR
        assert c.coordinator.waiting_count == 0


@pytest.mark.parametrize("delay_ms", [0, 3000])
async def test_joins_that_wait_when_the_coordinator_resigns(delay_ms: int) -> None:
    async with running(group_initial_rebalance_delay_ms=delay_ms) as c:
        new = c.join()
        await settle()
        if delay_ms == 0:
            await c.sync(await new)
            new = c.join()
            await settle()
        c.resign()
        result = await new
        assert result.error_code is ErrorCode.NOT_COORDINATOR
        assert result.member_id != ""
        assert c.coordinator.waiting_count == 0


async def test_a_resignation_while_the_assignment_is_stored() -> None:
    async with running() as c:
        [a] = await c.completing()
        c.log.delay_s = 1
        sync = c.sync(a, {a.member_id: b"x"})
        await settle()
        c.resign()
        assert (await sync).error_code is ErrorCode.NOT_COORDINATOR
        c.log.delay_s = 0
        await c.elect()
        await after(2)
        # The log has it all the same, and its successor knows it.
        assert (await c.sync(a)).assignment == b"x"


async def test_a_group_goes_on_with_another_coordinator() -> None:
    async with running() as c:
        a, b = await c.stable(2, session_s=10)
        await after(9)
        c.resign()
        c.log.readable.clear()
        await c.elect(epoch=1)
        assert c.heartbeat(a) is NONE
        assert (await c.sync(a)).error_code is REBALANCING
        c.log.readable.set()
        await settle()
        assert c.group().state is GroupState.STABLE
        await after(9)
        assert c.heartbeat(a) is NONE
        assert (await c.sync(b)).assignment == b"1"
        assert await c.join(b.member_id) == b
        await after(10.1)
        assert c.group().state is GroupState.EMPTY


async def test_a_group_that_is_loaded_with_too_many_members_rebalances() -> None:
    async with running() as c:
        a, b = await c.stable(2)
        c.resign()
        c.config.replace(c.with_config(group_max_size=1))
        await c.elect()
        assert c.heartbeat(a) is REBALANCING
        again = c.join(b.member_id)
        await settle()
        assert (await c.join(a.member_id)).error_code is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert (await again).leader_id == b.member_id


async def test_stopping_sends_everybody_to_another_coordinator() -> None:
    c = await Coordination.elected()
    [a] = await c.completing()
    new = c.join()
    c.log.delay_s = 100
    await settle()
    await c.stop()
    assert (await new).error_code is ErrorCode.NOT_COORDINATOR
    assert c.heartbeat(a) is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_program_fault_while_storing_is_heard_of() -> None:
    c = await Coordination.elected()
    [a] = await c.completing()
    fault = RuntimeError("a fault")

    async def fail(
        partition: int, records: Sequence[KeyAndValue], producer: TransactionalProducer | None = None
    ) -> Appended:
        raise fault

    c.log.append = fail
    sync = c.sync(a)
    await settle()
    assert fault in c.failures
    c.resign()
    assert (await sync).error_code is ErrorCode.NOT_COORDINATOR
    await c.coordinator.stop()


async def test_a_thousand_members_join_at_once() -> None:
    async with running(group_initial_rebalance_delay_ms=3000) as c:
        joined = await asyncio.gather(*(c.join(rebalance_s=300) for _ in range(1000)))
        assert {result.generation_id for result in joined} == {1}
        assert len({result.member_id for result in joined}) == 1000
        assert len(joined[0].members) == 1000
        assert all(not result.members for result in joined[1:])
        syncs = [c.sync(result) for result in joined]
        assert {result.error_code for result in await asyncio.gather(*syncs)} == {NONE}
