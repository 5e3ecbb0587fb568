"""Random histories of a group: whatever its members and transactions do, and whatever the log and the elections do.

What must hold: everybody is answered, once; no slot has two owners in one generation; a generation never goes back
while the group is loaded, nor what is committed, ever; no offset of a transaction is seen that has not committed, and
who waits for transactions sees nothing before they have ended; and when no member sends a request, and all transactions
have ended, nothing is left waiting.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from klamm.base.slices import in_one_go
from klamm.coordinator.groups import group_coordinator
from klamm.coordinator.groups.group import MEMBER_OVERHEAD_BYTES, Group, GroupState, JoinResult
from klamm.coordinator.groups.group_records import offset_commit_key, read_offset_value
from klamm.coordinator.ports import TransactionalProducer
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.record.record_batch import NO_PRODUCER_ID
from klamm.simulation.machine.small_slices import small_slices
from support.coordination import Coordination, G, GroupLog, after, in_virtual_time, settle

NONE = ErrorCode.NONE
UNSTABLE = "unstable"
SLOTS = range(6)
FAULTS = [NONE, NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS]

clients = st.integers(0, 4)
protocols = st.sampled_from([[("range", b""), ("rr", b"")], [("rr", b"")], [("range", b"1"), ("rr", b"1")]])
PLACES = [("t", 0), ("t", 1)]
producers = st.integers(1, 3)
places = st.lists(st.sampled_from(PLACES), min_size=1, max_size=2, unique=True)
steps = st.one_of(
    st.tuples(st.just("join"), clients, protocols),
    st.tuples(st.just("join"), clients, protocols),
    st.tuples(st.just("sync"), clients, st.integers(0, 5)),
    st.tuples(st.just("sync"), clients, st.integers(0, 5)),
    st.tuples(st.just("everybody"), st.just(0), st.integers(0, 5)),
    st.tuples(st.just("rounds"), st.just(0), st.integers(0, 5)),
    st.tuples(st.just("heartbeat"), clients, st.none()),
    st.tuples(st.just("commit"), clients, st.none()),
    st.tuples(st.just("transact"), clients, st.tuples(producers, st.booleans(), places)),
    st.tuples(st.just("transact"), clients, st.tuples(producers, st.booleans(), places)),
    st.tuples(st.just("end_transaction"), st.just(0), st.tuples(producers, st.booleans())),
    st.tuples(st.just("report"), st.just(0), producers),
    st.tuples(st.just("report"), st.just(0), producers),
    st.tuples(st.just("delete_offsets"), st.just(0), places),
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


class Written:
    """What the log says of a partition's offset. A place is the offset of a record in the log; -1: none."""

    def __init__(self, log: GroupLog, partition: tuple[str, int]) -> None:
        key = offset_commit_key(G, partition)
        self._offsets: dict[int, int] = {}
        self.deleted = -1
        self.may_be_visible: list[int] = []
        # By place: the marker that has committed it.
        self.committed: dict[int, int] = {}
        self.open: list[int] = []
        batches = log.batches.get(0, [])
        for number, batch in enumerate(batches):
            ends = [one for one in batches[number:] if one.producer_id == batch.producer_id and not one.records]
            for place, record_key, value in batch.records:
                if record_key != key:
                    continue
                if value is None:
                    self.deleted = place
                    continue
                self._offsets[place] = read_offset_value(value).offset
                if batch.producer_id == NO_PRODUCER_ID:
                    self.may_be_visible.append(place)
                elif not ends:
                    self.open.append(place)
                elif ends[0].is_committed:
                    self.may_be_visible.append(place)
                    self.committed[place] = ends[0].base_offset

    def place_of(self, offset: int | str | None) -> int:
        return next((place for place, one in self._offsets.items() if one == offset), -1)

    @property
    def newest(self) -> int | None:
        place = max(self.may_be_visible, default=-1)
        return self._offsets[place] if place > self.deleted else None


class History:
    """A group, what its clients ask, and what they have been told so far."""

    def __init__(self, coordination: Coordination, session_s: float, rebalance_s: float) -> None:
        self.c = coordination
        self.session_s, self.rebalance_s = session_s, rebalance_s
        self.clients = [Client(number) for number in range(5)]
        self.asked: list[asyncio.Task[Any]] = []
        # By (generation, slot): who has been told that it owns it. An instance is one, whatever its member id is.
        self.owners: dict[tuple[int, int], str] = {}
        # Each commit is of another offset.
        self.next_offset = 1
        # Offsets whose commits are acknowledged.
        self.committed: set[int] = set()
        # Offsets whose commits in transactions are not answered yet.
        self.appending: set[int] = set()
        # Markers in the log that the coordinator has not been told of: (producer id, offset, whether it commits).
        self.unreported: list[tuple[int, int, bool]] = []
        self.known: Group | None = None
        self.generation = 0
        self.epoch = 0

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
        offset = self._new_offset()

        async def commit() -> None:
            if await self.c.commit(client.joined, offset, instance=client.instance) is NONE:
                self.committed.add(offset)

        self.asked.append(self.c.spawn(commit()))

    def transact(self, client: Client, what: tuple[int, bool, list[tuple[str, int]]]) -> None:
        """A producer commits in its transaction, as a member or as a client before KIP-447."""
        producer_id, is_member, partitions = what
        offsets = {partition: self.c.an_offset(self._new_offset()) for partition in partitions}
        generation, member_id, instance = -1, "", None
        if is_member and client.joined is not None:
            generation, member_id, instance = client.joined.generation_id, client.joined.member_id, client.instance
        store = self.c.coordinator.commit_transactional_offsets
        producer = TransactionalProducer(producer_id, 0)

        appending = {offset.offset for offset in offsets.values()}
        self.appending |= appending

        async def commit() -> None:
            errors = await store(G, generation, member_id, instance, producer, offsets)
            assert len(set(errors.values())) == 1
            self.appending -= appending

        self.asked.append(self.c.spawn(commit()))

    def end_transaction(self, _: Client, how: tuple[int, bool]) -> None:
        """The marker is in the log. The transaction coordinator repeats one until its report is answered."""
        producer_id, is_committed = how
        for unreported_id, _offset, outcome in self.unreported:
            if unreported_id == producer_id:
                is_committed = outcome
        offset = self.c.log.end_transaction(producer_id, is_committed)
        self.unreported.append((producer_id, offset, is_committed))

    def report(self, client: Client, producer_id: int) -> None:
        for marker in self.unreported:
            if marker[0] == producer_id:
                self.unreported.remove(marker)
                _, offset, is_committed = marker
                in_one_go(self.c.coordinator.transaction_ended(0, producer_id, offset, is_committed=is_committed))
                return

    def delete_offsets(self, _: Client, partitions: list[tuple[str, int]]) -> None:
        """The topic of these partitions is gone."""
        group = self.c.manager.get(G) if self.c.manager.check(G) is None else None
        in_one_go(self.c.coordinator.partitions_deleted(partitions))
        if group is not None and group.state is GroupState.DEAD:
            # It had no members and no other offsets: the next group of this name begins with generation 1, as in Kafka.
            self.owners.clear()

    def _new_offset(self) -> int:
        offset, self.next_offset = self.next_offset, self.next_offset + 1
        return offset

    def leave(self, client: Client, by_name: bool) -> None:
        in_one_go(self.c.coordinator.leave_group(G, [("" if by_name else client.member_id, client.instance)]))

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
        for partition in PLACES:
            self._check_offset(partition, Written(self.c.log, partition))

    def _check_offset(self, partition: tuple[str, int], written: "Written") -> None:
        visible, stable = self._fetch(partition, require_stable=False), self._fetch(partition, require_stable=True)
        assert stable in (visible, UNSTABLE)
        place = written.place_of(visible)
        if visible is not None:
            assert place in written.may_be_visible
            assert place > written.deleted
        unreported = [offset for _, offset, _ in self.unreported]
        appending = [written.place_of(offset) for offset in self.appending]
        reported = [
            place for place, marker in written.committed.items() if marker not in unreported and place not in appending
        ]
        acknowledged = [written.place_of(offset) for offset in self.committed]
        assert place >= max((one for one in (*reported, *acknowledged) if one > written.deleted), default=-1)
        if any(one > written.deleted for one in written.open):
            assert stable == UNSTABLE

    def _fetch(self, partition: tuple[str, int], *, require_stable: bool) -> int | str | None:
        error, found = self.c.coordinator.fetch_offsets(G, [partition], require_stable=require_stable)
        assert error is NONE
        code, offset = found[partition]
        if code is ErrorCode.UNSTABLE_OFFSET_COMMIT:
            return UNSTABLE
        assert code is NONE
        return None if offset is None else offset.offset

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
        assert group.size_bytes == sum(
            (
                *(member.size_bytes for member in members.values()),
                *(len(member_id) + MEMBER_OVERHEAD_BYTES for member_id in group.pending_members),
            )
        )
        assert self.c.coordinator.rebalances._size_bytes == group.size_bytes
        if group.state is GroupState.STABLE:
            assert members
            assert not any(member.is_awaiting_sync for member in members.values())

    async def end(self) -> None:
        """The log works, and no member sends another request."""
        self.c.log.error, self.c.log.delay_s = NONE, 0
        await after(16)
        for producer_id in (1, 2, 3):
            self.end_transaction(self.clients[0], (producer_id, True))
        while self.unreported:
            self.report(self.clients[0], self.unreported[0][0])
        await self.elect(self.clients[0], None)
        await after(1000)
        self.check()
        for partition in PLACES:
            assert self._fetch(partition, require_stable=True) == self._fetch(partition, require_stable=False)
        self.resign(self.clients[0], None)
        await self.elect(self.clients[0], None)
        await after(1000)
        self.check()
        newest = [Written(self.c.log, partition).newest for partition in PLACES]
        assert [self._fetch(partition, require_stable=True) for partition in PLACES] == newest
        assert self.c.manager._open_groups.get(0, {}) == {}
        assert all(task.done() for task in self.asked)
        assert self.c.coordinator.waiting_count == 0
        group = self.c.manager.get(G)
        assert group is None or group.state is GroupState.EMPTY


def answer_once(answer: "asyncio.Future[Any]", result: Any) -> None:
    assert not answer.done() or answer.cancelled()
    if not answer.done():
        answer.set_result(result)


given_histories = given(
    history=st.lists(steps, min_size=10, max_size=30),
    timeouts_s=st.sampled_from([(10, 60), (30, 5)]),
    max_size=st.sampled_from([3, 5]),
)
PROTOCOLS = [("range", b""), ("rr", b"")]
# A group without members and offsets ends with the deletion of any topic, and begins again with generation 1.
ENDS_WITH_A_TOPIC: list[tuple[str, int, Any]] = [
    *[("join", 0, PROTOCOLS)] * 4,
    ("everybody", 0, 0),
    ("wait", 0, 61),
    ("join", 0, PROTOCOLS),
    ("delete_offsets", 0, [("t", 0)]),
    ("rounds", 0, 0),
]
TURNS = (0, 1, 3, 0, 2, 20)


async def play(history: list[tuple[str, int, Any]], timeouts_s: tuple[float, float], max_size: int) -> None:
    """Between two steps of a history pass `TURNS` turns of the loop; after the most, nothing is under way."""
    c = await Coordination.elected(group_initial_rebalance_delay_ms=3000, group_max_size=max_size)
    group = History(c, *timeouts_s)
    await group.rounds(group.clients[0], 0)
    for number, (name, client, argument) in enumerate(history):
        outcome = getattr(group, name)(group.clients[client], argument)
        if outcome is not None:
            await outcome
        turns = TURNS[number % len(TURNS)]
        for _ in range(turns):
            await asyncio.sleep(0)
        if turns == max(TURNS):
            group.check()
    await group.end()
    await c.stop()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given_histories
def test_whatever_happens_while_members_are_told(
    history: list[tuple[str, int, Any]],
    timeouts_s: tuple[float, float],
    max_size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each member of a group is a slice of its own."""
    monkeypatch.setattr(group_coordinator, "_resolve", answer_once)
    with small_slices():
        in_virtual_time(play(history, timeouts_s, max_size))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given_histories
@example(history=ENDS_WITH_A_TOPIC, timeouts_s=(10, 60), max_size=3)
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
