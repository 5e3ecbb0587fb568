"""Committed offsets, and what is asked and removed of groups by those who look after them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from klamm.base.slices import in_one_go
from klamm.coordinator.groups.committed_offsets import OffsetAndMetadata
from klamm.coordinator.groups.group import GroupState
from klamm.coordinator.groups.group_records import GroupKey, OffsetKey
from klamm.protocol.error_codes import ErrorCode
from support.coordination import Coordination, G, after, settle

pytestmark = pytest.mark.loop("virtual")

NONE = ErrorCode.NONE
T0, T1, U0 = ("t", 0), ("t", 1), ("u", 0)
SUBSCRIBED_TO_T = ("range", b"\0\0\0\0\0\1\0\1t")


@asynccontextmanager
async def running(**config: object) -> AsyncIterator[Coordination]:
    coordination = await Coordination.elected(**config)
    yield coordination
    await coordination.stop()


def committed(c: Coordination, *partitions: tuple[str, int]) -> list[int | None]:
    error, found = c.coordinator.fetch_offsets(G, partitions, require_stable=False)
    assert error is NONE
    return [None if offset is None else offset.offset for _, offset in found.values()]


# -- commits -----------------------------------------------------------------------------------------------------------


async def test_who_is_no_member_may_commit_without_a_generation_while_nobody_is() -> None:
    async with running() as c:
        assert await c.commit(None, 7) is NONE
        assert committed(c, T0, T1) == [7, None]
        assert c.group().state is GroupState.EMPTY
        # A client with a generation must know a group.
        assert await c.coordinator.commit_offsets("other", 0, "", None, {T0: c.an_offset(1)}) == {
            T0: ErrorCode.ILLEGAL_GENERATION
        }
        assert c.manager.get("other") is None
        assert await c.coordinator.commit_offsets(G, 0, "", None, {T0: c.an_offset(1)}) == {
            T0: ErrorCode.UNKNOWN_MEMBER_ID
        }
        assert await c.coordinator.commit_offsets("", -1, "", None, {T0: c.an_offset(3)}) == {T0: NONE}
        assert c.coordinator.fetch_offsets("", [T0], require_stable=False)[1][T0] == (NONE, c.an_offset(3))


async def test_commits_in_each_state() -> None:
    async with running() as c:
        [a] = await c.completing()
        assert await c.commit(a) is ErrorCode.REBALANCE_IN_PROGRESS
        assert await c.commit(None) is ErrorCode.UNKNOWN_MEMBER_ID
        await c.sync(a)
        assert await c.commit(a, 1) is NONE  # Stable
        new = c.join()
        await settle()
        assert c.group().state is GroupState.PREPARING_REBALANCE
        assert await c.commit(a, 2) is NONE
        assert await c.commit(None) is ErrorCode.UNKNOWN_MEMBER_ID
        assert await c.commit(a._replace(generation_id=-1)) is ErrorCode.ILLEGAL_GENERATION
        assert await c.commit(a._replace(generation_id=0)) is ErrorCode.ILLEGAL_GENERATION
        assert await c.commit(a._replace(member_id="nobody")) is ErrorCode.UNKNOWN_MEMBER_ID
        assert committed(c, T0) == [2]
        again = await c.join(a.member_id)
        assert await c.commit(a) is ErrorCode.ILLEGAL_GENERATION
        for member in (again, await new):
            assert c.leave(member.member_id) is NONE
        await settle()
        assert await c.commit(None, 3) is NONE  # Empty
        assert committed(c, T0) == [3]


async def test_a_commit_that_is_not_stored_is_none() -> None:
    async with running() as c:
        assert await c.commit(None, 1) is NONE
        c.log.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await c.commit(None, 2) is ErrorCode.NOT_COORDINATOR
        assert committed(c, T0) == [1]


async def test_commits_race_with_a_rebalance() -> None:
    async with running() as c:
        [a] = await c.stable()
        c.log.delay_s = 2

        async def commit() -> None:
            assert await c.commit(a, 5) is NONE

        commits = c.spawn(commit())
        await after(1)
        assert (await c.join(a.member_id)).generation_id == 2
        await commits
        assert committed(c, T0) == [5]


async def test_a_member_that_restarts_resumes_where_it_had_committed() -> None:
    async with running() as c:
        [a] = await c.stable()
        assert await c.commit(a, 42) is NONE
        assert c.leave(a.member_id) is NONE
        await settle()
        c.resign()
        await c.elect(epoch=1)
        await c.stable()
        assert committed(c, T0) == [42]


async def test_what_is_about_to_be_committed_is_not_stable() -> None:
    async with running() as c:
        assert await c.commit(None, 1) is NONE
        c.log.delay_s = 2

        async def commit() -> None:
            assert await c.commit(None, 2) is NONE

        task = c.spawn(commit())
        await settle()
        fetch = c.coordinator.fetch_offsets
        unstable = (ErrorCode.UNSTABLE_OFFSET_COMMIT, None)
        assert fetch(G, [T0, T1], require_stable=True) == (NONE, {T0: unstable, T1: (NONE, None)})
        assert fetch(G, None, require_stable=True) == (NONE, {T0: unstable})
        assert fetch(G, None, require_stable=False) == (NONE, {T0: (NONE, c.an_offset(1))})
        await task
        assert fetch(G, None, require_stable=True) == (NONE, {T0: (NONE, c.an_offset(2))})


async def test_offsets_of_groups_that_do_not_exist() -> None:
    async with running() as c:
        assert c.coordinator.fetch_offsets(G, [T0], require_stable=True) == (NONE, {T0: (NONE, None)})
        assert c.coordinator.fetch_offsets(G, None, require_stable=True) == (NONE, {})
        assert c.manager.get(G) is None


# -- removing ----------------------------------------------------------------------------------------------------------


async def test_only_empty_groups_can_be_deleted() -> None:
    async with running() as c:
        delete = c.coordinator.delete_groups
        non_empty = {G: ErrorCode.NON_EMPTY_GROUP}
        assert delete([G]) == {G: ErrorCode.GROUP_ID_NOT_FOUND}
        [a] = await c.completing()
        assert delete([G]) == non_empty
        await c.sync(a)
        assert delete([G]) == non_empty
        assert await c.commit(a) is NONE
        c.join()
        await settle()
        assert delete([G]) == non_empty
        for member_id in list(c.group().members):
            assert c.leave(member_id) is NONE
        await settle()
        pending = await c.join(two_steps=True)
        assert await c.coordinator.commit_offsets("", -1, "", None, {T0: c.an_offset(1)}) == {T0: NONE}
        assert delete([G, "other", "", G]) == {G: NONE, "other": ErrorCode.GROUP_ID_NOT_FOUND, "": NONE}
        assert c.coordinator.waiting_count == 0  # of the id that was given out, too
        assert (await c.join(pending.member_id)).error_code is ErrorCode.UNKNOWN_MEMBER_ID
        assert c.log.tombstones() == [OffsetKey(G, T0), GroupKey(G), OffsetKey("", T0)]
        assert c.manager.groups() == []
        c.resign()
        await c.elect(epoch=1)
        assert c.manager.groups() == []
        assert (await c.join()).generation_id == 1


async def test_a_group_that_is_deleted_while_it_commits_does_not_come_back() -> None:
    async with running() as c:
        c.log.delay_s = 2

        async def commit() -> None:
            assert await c.commit(None, 2) is NONE

        task = c.spawn(commit())
        await after(1)
        assert c.coordinator.delete_groups([G]) == {G: NONE}
        await task
        assert c.manager.groups() == []
        c.resign()
        await c.elect(epoch=1)
        assert c.manager.groups() == []


async def test_a_group_that_another_broker_leads_already_is_not_deleted() -> None:
    async with running() as c:
        assert await c.commit(None) is NONE
        c.log.led.clear()
        assert c.coordinator.delete_groups([G]) == {G: ErrorCode.NOT_COORDINATOR}
        assert in_one_go(c.coordinator.delete_offsets(G, [T0])) == (ErrorCode.NOT_COORDINATOR, {})
        assert committed(c, T0) == [1]


async def test_offsets_can_be_deleted_where_nobody_subscribes() -> None:
    async with running() as c:
        delete = lambda *arguments: in_one_go(c.coordinator.delete_offsets(*arguments))  # noqa: E731
        assert delete(G, [T0]) == (ErrorCode.GROUP_ID_NOT_FOUND, {})
        [a] = await c.stable(protocols=[SUBSCRIBED_TO_T])
        for partition in (T0, U0):
            assert await c.commit(a, partition=partition) is NONE
        refused = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        assert delete(G, [T0, U0, T1]) == (NONE, {T0: refused, U0: NONE, T1: refused})
        assert committed(c, T0, U0) == [1, None]
        assert c.log.tombstones() == [OffsetKey(G, U0)]
        assert c.leave(a.member_id) is NONE
        await settle()
        assert delete(G, [T0, T1]) == (NONE, {T0: NONE, T1: NONE})
        # Nothing is left of the group.
        assert delete(G, [T0]) == (ErrorCode.GROUP_ID_NOT_FOUND, {})


async def test_offsets_of_other_groups_than_consumers_can_be_deleted_only_when_they_are_empty() -> None:
    async with running() as c:
        [a] = await c.stable(protocol_type="connect")
        assert await c.commit(a) is NONE
        assert in_one_go(c.coordinator.delete_offsets(G, [T0])) == (ErrorCode.NON_EMPTY_GROUP, {})
        assert c.leave(a.member_id) is NONE
        await settle()
        assert in_one_go(c.coordinator.delete_offsets(G, [T0])) == (NONE, {T0: NONE})


async def test_offsets_go_with_their_topics() -> None:
    async with running() as c:
        [a] = await c.stable()
        assert await c.commit(a, partition=T0) is NONE
        assert await c.commit(a, partition=U0) is NONE
        for group_id in ("e", "f"):
            await c.coordinator.commit_offsets(group_id, -1, "", None, {T1: c.an_offset(1)})
        in_one_go(c.coordinator.partitions_deleted([]))
        assert c.log.tombstones() == []
        in_one_go(c.coordinator.partitions_deleted([T0, T1, *[("t", number) for number in range(2, 50)]]))
        assert committed(c, T0, U0) == [None, 1]
        # An Empty group without offsets is no group.
        assert [group.group_id for group in c.manager.groups()] == [G]
        assert c.log.tombstones() == [OffsetKey(G, T0), OffsetKey("e", T1), OffsetKey("f", T1)]


# -- looking -----------------------------------------------------------------------------------------------------------


async def test_offsets_of_topics_that_are_deleted_during_a_load_are_gone_after_it() -> None:
    async with running() as c:
        [a] = await c.stable()
        assert await c.commit(a, partition=T0) is NONE
        assert await c.commit(a, partition=U0) is NONE
        c.resign(1)
        c.log.readable.clear()
        await c.elect(2)
        in_one_go(c.coordinator.partitions_deleted([T0]))
        c.log.readable.set()
        await settle()
        assert committed(c, T0, U0) == [None, 1]
        assert c.log.tombstones() == [OffsetKey(G, T0)]
        # What was deleted then says nothing of what is loaded later.
        assert await c.commit(a, partition=T0) is NONE
        c.resign(3)
        await c.elect(4)
        assert committed(c, T0, U0) == [1, 1]


async def test_a_load_that_ends_early_takes_with_it_what_was_deleted_meanwhile() -> None:
    async with running() as c:
        [a] = await c.stable()
        assert await c.commit(a, partition=T0) is NONE
        c.resign(1)
        c.log.readable.clear()
        await c.elect(2)
        in_one_go(c.coordinator.partitions_deleted([T0]))
        # Another coordinator hears of it, too; then the topic comes anew, and so do commits.
        c.resign(3)
        c.log.readable.set()
        await c.elect(4)
        assert committed(c, T0) == [1]


async def test_groups_are_listed_by_state() -> None:
    async with running() as c:

        def listed(states: list[str]) -> tuple[ErrorCode, list[tuple[str, str | None, str]]]:
            error, groups = c.coordinator.list_groups(states)
            return error, [(group.group_id, group.protocol_type, group.state) for group in groups]

        assert listed([]) == (NONE, [])
        await c.stable()
        await c.coordinator.commit_offsets("empty", -1, "", None, {T0: c.an_offset(1)})
        stable, empty = (G, "consumer", "Stable"), ("empty", None, "Empty")
        assert listed([]) == (NONE, [stable, empty])
        assert listed(["Empty"]) == (NONE, [empty])
        assert listed(["Dead", "Stable", "empty"]) == (NONE, [stable])
        c.log.readable.clear()
        c.coordinator.on_election(1, 0)
        await settle()
        assert listed(["Stable"]) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [stable])
        c.log.readable.set()
        await settle()
        await c.coordinator.stop()
        assert listed([]) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, [])


async def test_groups_are_described() -> None:
    async with running() as c:

        def describe(group_id: str) -> tuple[ErrorCode, Any]:
            return in_one_go(c.coordinator.describe_group(group_id))

        assert describe(G) == (NONE, ("Dead", "", "", ()))
        [a] = await c.completing(instances=[0], protocols=[("range", b"topics")])
        nothing = (a.member_id, "s0", "c", "/127.0.0.1", b"", b"")
        assert describe(G) == (NONE, ("CompletingRebalance", "consumer", "", [nothing]))
        await c.sync(a, {a.member_id: b"all"}, instance="s0")
        everything = (a.member_id, "s0", "c", "/127.0.0.1", b"topics", b"all")
        assert describe(G) == (NONE, ("Stable", "consumer", "range", [everything]))
        assert c.leave(a.member_id) is NONE
        await settle()
        assert describe(G) == (NONE, ("Empty", "consumer", "", []))


async def test_too_much_metadata_is_refused_for_its_partition_alone() -> None:
    async with running() as c:
        offsets = {T0: OffsetAndMetadata(1, -1, "x" * 4097, 0), T1: OffsetAndMetadata(1, -1, "x" * 4096, 0)}
        assert await c.coordinator.commit_offsets(G, -1, "", None, offsets) == {
            T0: ErrorCode.OFFSET_METADATA_TOO_LARGE,
            T1: NONE,
        }
        assert committed(c, T0, T1) == [None, 1]
