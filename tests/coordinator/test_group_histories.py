"""Random histories of a group: whatever its members do, and whatever the log and the elections do to them.

What must hold: everybody is answered, once; no slot has two owners in one generation; a generation never goes back
while the group is loaded, nor what is committed, ever; and when no member sends a request, nothing is left waiting.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from klamm.coordinator import group_coordinator
from klamm.coordinator.group import Group, GroupState, JoinResult
from klamm.protocol.errors import ErrorCode
from support.coordination import Coordination, G, after, in_virtual_time, settle

NONE = ErrorCode.NONE
SLOTS = range(6)
FAULTS = [NONE, NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS]

clients = st.integers(0, 4)
protocols = st.sampled_from([[("range", b""), ("rr", b"")], [("rr", b"")], [("range", b"1"), ("rr", b"1")]])
steps = st.one_of(
    st.tuples(st.just("join"), clients, protocols),
    st.tuples(st.just("join"), clients, protocols),
    st.tuples(st.just("sync"), clients, st.integers(0, 5)),
    st.tuples(st.just("sync"), clients, st.integers(0, 5)),
    st.tuples(st.just("everybody"), st.just(0), st.integers(0, 5)),
    st.tuples(st.just("rounds"), st.just(0), st.integers(0, 5)),
    st.tuples(st.just("heartbeat"), clients, st.none()),
    st.tuples(st.just("commit"), clients, st.none()),
    st.tuples(st.just("leave"), clients, st.booleans()),
    st.tuples(st.just("vanish"), clients, st.none()),
    st.tuples(st.just("restart"), clients, st.none()),
    st.tuples(st.just("wait"), st.just(0), st.sampled_from([1, 3, 5, 11, 61])),
    st.tuples(st.just("log"), st.just(0), st.tuples(st.sampled_from(FAULTS), st.sampled_from([0, 0, 2, 15]))),
    st.tuples(st.just("resign"), st.just(0), st.none()),
    st.tuples(st.just("elect"), st.just(0), st.none()),
    st.tuples(st.just("delete"), st.just(0), st.none()),
)


class Client:
    """One that may be a member: what it knows of itself. Odd numbers are static."""

    def __init__(self, number: int) -> None:
        self.instance = f"s{number}" if number % 2 else None
        self.member_id = ""
        self.joined: JoinResult | None = None
        self.asked: asyncio.Task[Any] | None = None

    def forget(self) -> None:
        self.member_id, self.joined = "", None


class History:
    """A group, what its clients ask, and what they have been told so far."""

    def __init__(self, coordination: Coordination, session_s: float, rebalance_s: float) -> None:
        self.c = coordination
        self.session_s, self.rebalance_s = session_s, rebalance_s
        self.clients = [Client(number) for number in range(5)]
        self.asked: list[asyncio.Task[Any]] = []
        # By (generation, slot): who has been told that it owns it. An instance is one, whatever its member id is.
        self.owners: dict[tuple[int, int], str] = {}
        self.committed = 0
        self.next_offset = 1
        self.known: Group | None = None
        self.generation = 0
        self.epoch = 0
        self.deletions = 0

    # -- what may happen ----------------------------------------------------------------------------------------------

    def join(self, client: Client, protocols: list[tuple[str, bytes]]) -> None:
        async def join() -> None:
            result = await self.c.join(
                client.member_id,
                client.instance,
                two_steps=client.instance is None,
                protocols=protocols,
                session_s=self.session_s,
                rebalance_s=self.rebalance_s,
            )
            if result.error_code is NONE:
                client.member_id, client.joined = result.member_id, result
            elif result.error_code is ErrorCode.MEMBER_ID_REQUIRED:
                client.member_id = result.member_id
            elif result.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                client.forget()

        self._ask(client, join())

    def sync(self, client: Client, first_slot: int) -> None:
        joined = client.joined
        if joined is None:
            return
        assignments: Mapping[str, bytes] = {}
        if joined.members:
            # The leader's mind is not the same each time.
            ids = [member.member_id for member in joined.members]
            slots: dict[str, list[int]] = {member_id: [] for member_id in ids}
            for slot in SLOTS:
                slots[ids[(slot + first_slot) % len(ids)]].append(slot)
            assignments = {member_id: bytes(owned) for member_id, owned in slots.items()}

        async def sync(joined: JoinResult) -> None:
            result = await self.c.sync(joined, assignments, instance=client.instance)
            if result.error_code is NONE:
                name = client.instance or joined.member_id
                for slot in result.assignment:
                    assert self.owners.setdefault((joined.generation_id, slot), name) == name
            else:
                assert result.assignment == b""

        self._ask(client, sync(joined))

    async def rounds(self, _: Client, first_slot: int) -> None:
        """All get as far as they can, in the time that they have."""
        for _round in range(4):
            self.everybody(self.clients[0], first_slot)
            await after(4)
            for client in self.clients:
                self.heartbeat(client, None)

    def everybody(self, _: Client, first_slot: int) -> None:
        """Those who know a generation ask for its assignment, the others join."""
        for client in self.clients:
            if client.asked is None or client.asked.done():
                if client.joined is None:
                    self.join(client, [("rr", b"")])
                else:
                    self.sync(client, first_slot)

    def heartbeat(self, client: Client, _: None) -> None:
        if client.joined is not None:
            error = self.c.heartbeat(client.joined, client.instance)
            if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                client.forget()
            elif error in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION):
                client.joined = None

    def commit(self, client: Client, _: None) -> None:
        offset, self.next_offset = self.next_offset, self.next_offset + 1
        deletions = self.deletions

        async def commit() -> None:
            error = await self.c.commit(client.joined, offset, instance=client.instance)
            if error is NONE and deletions == self.deletions:
                self.committed = max(self.committed, offset)

        self.asked.append(self.c.spawn(commit()))

    def leave(self, client: Client, by_name: bool) -> None:
        self.c.coordinator.leave_group(G, [("" if by_name else client.member_id, client.instance)])

    def vanish(self, client: Client, _: None) -> None:
        """Its connection breaks; it knows its id and comes again."""
        if client.asked is not None:
            client.asked.cancel()

    def restart(self, client: Client, _: None) -> None:
        self.vanish(client, None)
        client.forget()

    async def wait(self, _: Client, seconds: float) -> None:
        await after(seconds)

    def log(self, _: Client, fault: tuple[ErrorCode, float]) -> None:
        self.c.log.error, self.c.log.delay_s = fault

    def resign(self, _: Client, __: None) -> None:
        self.epoch += 1
        self.c.resign(self.epoch)

    async def elect(self, _: Client, __: None) -> None:
        self.epoch += 1
        await self.c.elect(self.epoch)

    def delete(self, _: Client, __: None) -> None:
        if self.c.coordinator.delete_groups([G]) == {G: NONE}:
            self.deletions += 1
            self.committed = 0
            self.owners.clear()

    def _ask(self, client: Client, request: Any) -> None:
        client.asked = self.c.spawn(request)
        self.asked.append(client.asked)

    # -- what must hold -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        for task in self.asked:
            if task.done() and not task.cancelled():
                task.result()
        if self.c.manager.check(G) is not None:
            self.known = None
            return
        group = self.c.manager.get(G)
        if group is not None:
            assert group is not self.known or group.generation_id >= self.generation
            self.generation = group.generation_id
            self._check_members(group)
        self.known = group
        _, offsets = self.c.coordinator.fetch_offsets(G, [("t", 0)], require_stable=False)
        offset = offsets["t", 0][1]
        assert (0 if offset is None else offset.offset) >= self.committed

    def _check_members(self, group: Group) -> None:
        members = group.members
        assert group.leader_id in members if members else group.leader_id is None
        assert all(member.member_id == member_id for member_id, member in members.items())
        assert set(group.pending_sync_members) <= set(members)
        assert not set(group.pending_members) & set(members)
        assert group.static_members == {
            member.group_instance_id: member_id for member_id, member in members.items() if member.is_static
        }
        assert group.awaiting_join_count == sum(member.is_awaiting_join for member in members.values())
        assert (group.state in (GroupState.EMPTY, GroupState.DEAD)) <= (not members)
        if group.state is GroupState.STABLE:
            assert members
            assert not any(member.is_awaiting_sync for member in members.values())

    async def end(self) -> None:
        """The log works, and no member sends another request."""
        self.c.log.error, self.c.log.delay_s = NONE, 0
        await after(16)
        await self.elect(self.clients[0], None)
        await after(1000)
        self.check()
        assert all(task.done() for task in self.asked)
        assert self.c.coordinator.waiting_count == 0
        group = self.c.manager.get(G)
        assert group is None or group.state is GroupState.EMPTY


def answer_once(answer: "asyncio.Future[Any]", result: Any) -> None:
    assert not answer.done() or answer.cancelled()
    if not answer.done():
        answer.set_result(result)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    history=st.lists(steps, min_size=10, max_size=30),
    timeouts_s=st.sampled_from([(10, 60), (30, 5)]),
    max_size=st.sampled_from([3, 5]),
)
def test_whatever_happens(
    history: list[tuple[str, int, Any]],
    timeouts_s: tuple[float, float],
    max_size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_coordinator, "_resolve", answer_once)

    async def scenario() -> None:
        c = await Coordination.elected(group_initial_rebalance_delay_ms=3000, group_max_size=max_size)
        group = History(c, *timeouts_s)
        await group.rounds(group.clients[0], 0)
        for name, number, argument in history:
            outcome = getattr(group, name)(group.clients[number], argument)
            if outcome is not None:
                await outcome
            await settle()
            group.check()
        await group.end()
        await c.stop()

    in_virtual_time(scenario())
