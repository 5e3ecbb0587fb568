"""Offsets that are committed in transactions: what a coordinator answers, and when they become visible."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from klamm.base.slices import in_one_go
from klamm.coordinator.groups.committed_offsets import OffsetAndMetadata
from klamm.coordinator.groups.group import GroupState
from klamm.coordinator.groups.group_metadata_manager import UNKNOWN_PARTITION
from klamm.coordinator.groups.group_records import GroupKey, OffsetKey
from klamm.coordinator.ports import TransactionalProducer
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.vocabulary import PartitionKey
from support.coordination import Coordination, G, after, settle

pytestmark = pytest.mark.loop("virtual")

NONE = ErrorCode.NONE
T0, T1, U0 = ("t", 0), ("t", 1), ("u", 0)
UNSTABLE = "unstable"


@asynccontextmanager
async def running(**config: object) -> AsyncIterator[Coordination]:
    coordination = await Coordination.elected(**config)
    yield coordination
    await coordination.stop()


async def commit(
    c: Coordination,
    producer_id: int,
    offsets: Mapping[PartitionKey, int],
    *,
    group_id: str = G,
    generation: int = -1,
    member_id: str = "",
    instance: str | None = None,
) -> ErrorCode:
    producer = TransactionalProducer(producer_id, 0)
    errors = await c.coordinator.commit_transactional_offsets(
        group_id,
        generation,
        member_id,
        instance,
        producer,
        {partition: c.an_offset(offset) for partition, offset in offsets.items()},
    )
    assert list(errors) == list(offsets)
    (error,) = set(errors.values())
    return error


def end(c: Coordination, producer_id: int, *, is_committed: bool = True) -> None:
    """Writes the marker, and reports it."""
    report(c, producer_id, c.log.end_transaction(producer_id, is_committed), is_committed=is_committed)


def report(c: Coordination, producer_id: int, marker_offset: int, *, is_committed: bool = True) -> None:
    in_one_go(c.coordinator.transaction_ended(0, producer_id, marker_offset, is_committed=is_committed))


def visible(c: Coordination, *partitions: PartitionKey, group_id: str = G) -> list[int | None]:
    """What a client reads, whether it waits for transactions or not."""
    error, found = c.coordinator.fetch_offsets(group_id, partitions, require_stable=False)
    assert error is NONE
    return [None if offset is None else offset.offset for _, offset in found.values()]


def stable(c: Coordination, *partitions: PartitionKey, group_id: str = G) -> list[int | str | None]:
    """What a client reads that waits for the end of transactions."""
    error, found = c.coordinator.fetch_offsets(group_id, partitions, require_stable=True)
    assert error is NONE
    return [
        UNSTABLE if code is ErrorCode.UNSTABLE_OFFSET_COMMIT else None if offset is None else offset.offset
        for code, offset in found.values()
    ]


async def reload(c: Coordination, epoch: int) -> None:
    """Another broker may have led meanwhile; this one does again."""
    c.resign(2 * epoch)
    await c.elect(2 * epoch + 1)


# -- until the marker --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("is_committed", [True, False])
async def test_an_offset_is_visible_from_the_commit_of_its_transaction_on(is_committed: bool, is_loaded: bool) -> None:
    async with running() as c:
        assert await c.commit(None, 1) is NONE
        assert await commit(c, 7, {T0: 5, T1: 6}) is NONE
        if is_loaded:
            await reload(c, 1)
        assert visible(c, T0, T1) == [1, None]
        assert stable(c, T0, T1, U0) == [UNSTABLE, UNSTABLE, None]
        # Only committed offsets are listed.
        assert c.coordinator.partitions_of_group(G) == [T0]
        end(c, 8, is_committed=True)  # of another producer
        assert visible(c, T0, T1) == [1, None]
        end(c, 7, is_committed=is_committed)
        expected = [5, 6] if is_committed else [1, None]
        assert visible(c, T0, T1) == stable(c, T0, T1) == expected
        await reload(c, 2)
        assert visible(c, T0, T1) == stable(c, T0, T1) == expected


@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("transaction_is_later", [True, False])
async def test_the_later_record_counts_whenever_the_transaction_ends(
    transaction_is_later: bool, is_loaded: bool
) -> None:
    async with running() as c:
        if not transaction_is_later:
            assert await commit(c, 7, {T0: 5}) is NONE
        assert await c.commit(None, 9) is NONE
        if transaction_is_later:
            assert await commit(c, 7, {T0: 5}) is NONE
        if is_loaded:
            await reload(c, 1)
        end(c, 7)
        assert visible(c, T0) == stable(c, T0) == [5 if transaction_is_later else 9]


async def test_each_producer_has_its_own_transaction() -> None:
    async with running() as c:
        assert await commit(c, 7, {T0: 1, T1: 1}) is NONE
        assert await commit(c, 8, {T0: 2, U0: 2}) is NONE
        end(c, 7)
        assert visible(c, T0, T1, U0) == [1, 1, None]
        assert stable(c, T0, T1, U0) == [UNSTABLE, 1, UNSTABLE]
        end(c, 8)
        assert stable(c, T0, T1, U0) == [2, 1, 2]


async def test_one_transaction_commits_to_several_groups() -> None:
    async with running() as c:
        for number, group_id in enumerate(("a", "b", "c")):
            assert await commit(c, 7, {T0: number}, group_id=group_id) is NONE
        assert await commit(c, 8, {T0: 9}, group_id="c") is NONE
        end(c, 7)
        assert [stable(c, T0, group_id=group_id) for group_id in ("a", "b", "c")] == [[0], [1], [UNSTABLE]]
        end(c, 8, is_committed=False)
        assert stable(c, T0, group_id="c") == [2]
        assert open_groups(c) == {}


async def test_the_last_of_a_transactions_commits_counts_and_one_after_its_marker_does_not() -> None:
    async with running() as c:
        assert await commit(c, 7, {T0: 5, T1: 5}) is NONE
        assert await commit(c, 7, {T0: 3}) is NONE
        marker = c.log.end_transaction(7, is_committed=True)
        # A request that was late on its way. Nothing ends it before the next marker.
        assert await commit(c, 7, {T0: 4}) is NONE
        report(c, 7, marker)
        assert visible(c, T0, T1) == [3, 5]
        assert stable(c, T0, T1) == [UNSTABLE, 5]
        await reload(c, 1)
        assert (visible(c, T0, T1), stable(c, T0, T1)) == ([3, 5], [UNSTABLE, 5])


async def test_a_marker_that_is_repeated_or_of_a_transaction_without_offsets_changes_nothing() -> None:
    async with running() as c:
        report(c, 7, c.log.end_transaction(7, is_committed=True))
        assert await commit(c, 7, {T0: 5}) is NONE
        first = c.log.end_transaction(7, is_committed=True)
        report(c, 7, first)
        assert await commit(c, 7, {T0: 6}) is NONE
        report(c, 7, first)
        assert (visible(c, T0), stable(c, T0)) == ([5], [UNSTABLE])


# -- who may commit ----------------------------------------------------------------------------------------------------


async def test_member_and_generation_count_if_they_are_given() -> None:
    async with running() as c:
        [a] = await c.stable(instances=[0])
        known = {"member_id": a.member_id, "instance": "s0", "generation": a.generation_id}
        unknown, fenced = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID
        expected: list[tuple[dict[str, object], ErrorCode]] = [
            (known, NONE),
            ({"member_id": a.member_id}, NONE),
            ({"generation": a.generation_id}, NONE),
            ({"instance": "of no member"}, NONE),
            ({**known, "generation": 0}, ErrorCode.ILLEGAL_GENERATION),
            ({**known, "generation": a.generation_id + 1}, ErrorCode.ILLEGAL_GENERATION),
            ({**known, "generation": 2**31 - 1}, ErrorCode.ILLEGAL_GENERATION),
            ({"generation": 5}, ErrorCode.ILLEGAL_GENERATION),
            ({**known, "member_id": "m"}, fenced),
            ({**known, "member_id": "m", "generation": 9}, fenced),
            ({"member_id": "m"}, unknown),
            ({"member_id": "m", "generation": 9}, unknown),
            ({"instance": "s0"}, fenced),
        ]
        for options, error in expected:
            assert await commit(c, 7, {T0: 5}, **options) is error, options  # type: ignore[arg-type]
        end(c, 7)
        # Unlike a plain commit, one in a transaction is taken while the members wait for their assignments.
        again = await c.join(a.member_id, "s0")
        assert c.group().state is GroupState.COMPLETING_REBALANCE
        assert await c.commit(again, 6, instance="s0") is ErrorCode.REBALANCE_IN_PROGRESS
        known["generation"] = again.generation_id
        assert await commit(c, 7, {T0: 7}, **known) is NONE  # type: ignore[arg-type]
        assert stable(c, T0) == [UNSTABLE]


@pytest.mark.parametrize(
    ("producer", "error"),
    [
        (TransactionalProducer(-1, 0), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (TransactionalProducer(-(2**63), -1), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (TransactionalProducer(7, -1), ErrorCode.INVALID_PRODUCER_EPOCH),
        (TransactionalProducer(7, -(2**15)), ErrorCode.INVALID_PRODUCER_EPOCH),
        (TransactionalProducer(2**63 - 1, 2**15 - 1), NONE),
    ],
)
async def test_a_commit_needs_a_producer(producer: TransactionalProducer, error: ErrorCode) -> None:
    async with running() as c:
        offsets = {T0: c.an_offset(5)}
        assert await c.coordinator.commit_transactional_offsets(G, -1, "", None, producer, offsets) == {T0: error}
        assert stable(c, T0) == [UNSTABLE if error is NONE else None]
        assert len(c.log.records()) == (1 if error is NONE else 0)


async def test_a_refused_commit_makes_no_group() -> None:
    async with running() as c:
        assert await commit(c, 7, {T0: 5}, member_id="m") is ErrorCode.UNKNOWN_MEMBER_ID
        assert await commit(c, 7, {T0: 5}, generation=3) is ErrorCode.ILLEGAL_GENERATION
        assert await commit(c, 7, {T0: 5}, group_id="") is ErrorCode.INVALID_GROUP_ID
        assert await commit(c, 7, {T0: 5}, group_id="g" * 32768) is ErrorCode.INVALID_GROUP_ID
        assert c.manager.groups() == []
        assert (c.log.records(), open_groups(c)) == ([], {})


async def test_only_the_coordinator_of_the_group_takes_commits() -> None:
    c = Coordination()
    assert await commit(c, 7, {T0: 5}) is ErrorCode.NOT_COORDINATOR
    c.log.readable.clear()
    await c.elect()
    assert await commit(c, 7, {T0: 5}) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    c.log.readable.set()
    await settle()
    assert await commit(c, 7, {T0: 5}) is NONE
    await c.stop()
    assert await commit(c, 7, {T0: 5}) is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_too_much_metadata_is_refused_for_its_partition_alone() -> None:
    async with running() as c:
        offsets = {T0: OffsetAndMetadata(1, -1, "x" * 4097, 0), T1: OffsetAndMetadata(1, -1, "x" * 4096, 0)}
        store = c.coordinator.commit_transactional_offsets
        errors = await store(G, -1, "", None, TransactionalProducer(7, 0), offsets)
        assert errors == {T0: ErrorCode.OFFSET_METADATA_TOO_LARGE, T1: NONE}
        assert stable(c, T0, T1) == [None, UNSTABLE]
        too_large = {T0: offsets[T0]}
        errors = await store("other", -1, "", None, TransactionalProducer(7, 0), too_large)
        assert errors == {T0: ErrorCode.OFFSET_METADATA_TOO_LARGE}
        assert c.manager.get("other") is None
        end(c, 7)
        assert stable(c, T0, T1) == [None, 1]


# -- the log -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("in_log", "in_answer"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
    ],
)
async def test_a_commit_that_is_not_stored_is_none(in_log: ErrorCode, in_answer: ErrorCode) -> None:
    async with running() as c:
        assert await commit(c, 7, {T0: 5}) is NONE
        c.log.error = in_log
        assert await commit(c, 7, {T0: 6, T1: 6}) is in_answer
        assert await commit(c, 8, {T1: 7}) is in_answer
        assert stable(c, T0, T1) == [UNSTABLE, None]
        assert open_groups(c) == {7: [G]}
        end(c, 7)
        assert stable(c, T0, T1) == [5, None]


@pytest.mark.parametrize("is_loaded", [False, True])
async def test_a_commit_that_has_timed_out_is_in_the_log_and_its_marker_decides(is_loaded: bool) -> None:
    async with running() as c:
        c.log.error = ErrorCode.REQUEST_TIMED_OUT
        assert await commit(c, 7, {T0: 5}) is ErrorCode.REQUEST_TIMED_OUT
        c.log.error = NONE
        if is_loaded:
            await reload(c, 1)
        assert stable(c, T0) == [UNSTABLE]
        # The client tries again.
        assert await commit(c, 7, {T0: 5}) is NONE
        end(c, 7)
        assert stable(c, T0) == [5]
        c.log.error = ErrorCode.REQUEST_TIMED_OUT
        assert await commit(c, 7, {T0: 6, T1: 6}) is ErrorCode.REQUEST_TIMED_OUT
        end(c, 7)
        assert stable(c, T0, T1) == [6, 6]


@pytest.mark.parametrize("is_committed", [True, False])
async def test_a_marker_may_be_reported_before_the_append_that_precedes_it(is_committed: bool) -> None:
    async with running() as c:
        c.log.delay_s = 2
        commits = [asyncio.ensure_future(commit(c, 7, {T0: offset, T1: offset})) for offset in (5, 6)]
        await settle()
        end(c, 7, is_committed=is_committed)
        late = asyncio.ensure_future(commit(c, 7, {T1: 7}))
        await after(1)
        assert (visible(c, T0), stable(c, T0)) == ([None], [UNSTABLE])
        assert await asyncio.gather(*commits, late) == [NONE, NONE, NONE]
        offset = 6 if is_committed else None
        assert (visible(c, T0, T1), stable(c, T0, T1)) == ([offset, offset], [offset, UNSTABLE])
        end(c, 7, is_committed=not is_committed)
        assert stable(c, T0, T1) == [offset, offset if is_committed else 7]
        assert open_groups(c) == {}


async def test_a_client_that_is_gone_changes_nothing() -> None:
    async with running() as c:
        c.log.delay_s = 2
        task = asyncio.ensure_future(commit(c, 7, {T0: 5}))
        await after(1)
        task.cancel()
        await after(2)
        assert stable(c, T0) == [UNSTABLE]
        end(c, 7)
        assert stable(c, T0) == [5]


# -- elections ---------------------------------------------------------------------------------------------------------


async def test_a_marker_that_is_reported_during_a_load_counts_after_it() -> None:
    async with running() as c:
        assert await commit(c, 7, {T0: 5}) is NONE
        assert await commit(c, 8, {T1: 6}) is NONE
        c.resign(1)
        c.log.readable.clear()
        c.log.reads_up_to = c.log.end_offset()
        await c.elect(2)
        end(c, 7)
        end(c, 8, is_committed=False)
        c.log.readable.set()
        await settle()
        assert stable(c, T0, T1) == [5, None]
        assert open_groups(c) == {}
        # A load that is given up takes the markers with it: the next one reads them.
        assert await commit(c, 7, {T0: 7}) is NONE
        c.resign(3)
        c.log.readable.clear()
        await c.elect(4)
        end(c, 7)
        c.resign(5)
        assert (c.manager._ended, c.manager._open_groups) == ({}, {})
        c.log.readable.set()
        c.log.reads_up_to = c.log.end_offset()
        await c.elect(6)
        assert stable(c, T0) == [7]


async def test_transactions_are_loaded_before_the_number_of_partitions_is_known() -> None:
    """A broker may be told to lead before it has learned of the topic."""
    async with running() as c:
        assert await commit(c, 7, {T0: 5}) is NONE
        c.resign(1)
        known = c.manager._partition_for
        c.manager._partition_for = lambda _: UNKNOWN_PARTITION
        await c.elect(2)
        c.manager._partition_for = known
        assert stable(c, T0) == [UNSTABLE]
        end(c, 7)
        assert (stable(c, T0), open_groups(c)) == ([5], {})


async def test_a_marker_that_is_reported_after_the_leadership_is_left_to_the_next_leader() -> None:
    async with running() as c:
        assert await commit(c, 7, {T0: 5}) is NONE
        marker = c.log.end_transaction(7, is_committed=True)
        c.resign(1)
        assert c.manager._open_groups == {}
        report(c, 7, marker)
        await c.elect(2)
        report(c, 7, marker)
        assert stable(c, T0) == [5]
        assert open_groups(c) == {}


async def test_an_append_that_ends_after_the_group_was_loaded_again_changes_nothing() -> None:
    async with running() as c:
        c.log.delay_s = 2
        task = asyncio.ensure_future(commit(c, 7, {T0: 5}))
        await after(1)
        await reload(c, 1)
        assert stable(c, T0) == [UNSTABLE]
        assert await task is NONE
        assert (stable(c, T0), open_groups(c)) == ([UNSTABLE], {7: [G]})
        end(c, 7)
        assert stable(c, T0) == [5]


# -- removing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_pending", [True, False], ids=["pending", "being appended"])
async def test_a_group_that_is_deleted_during_a_transaction_does_not_come_back(is_pending: bool) -> None:
    async with running() as c:
        assert await c.commit(None, 1) is NONE
        c.log.delay_s = 0 if is_pending else 2
        task = asyncio.ensure_future(commit(c, 7, {T0: 5, T1: 6}))
        await settle()
        assert c.coordinator.delete_groups([G]) == {G: NONE}
        assert c.manager.groups() == []
        assert c.log.tombstones() == [OffsetKey(G, T0), OffsetKey(G, T1)]
        assert open_groups(c) == {}
        # One of the same name is another group.
        assert await c.commit(None, 2, partition=U0) is NONE
        assert await task is NONE
        assert stable(c, T0, T1, U0) == [None, None, 2]
        end(c, 7)
        assert stable(c, T0, T1, U0) == [None, None, 2]
        await reload(c, 1)
        assert stable(c, T0, T1, U0) == [None, None, 2]


async def test_offsets_that_are_deleted_during_a_transaction_do_not_come_back() -> None:
    async with running() as c:
        assert await commit(c, 7, {T0: 5, T1: 6, U0: 7}) is NONE
        assert await commit(c, 8, {T0: 8}) is NONE
        assert in_one_go(c.coordinator.delete_offsets(G, [T0])) == (NONE, {T0: NONE})
        in_one_go(c.coordinator.partitions_deleted([T1]))
        assert c.log.tombstones() == [OffsetKey(G, T0), OffsetKey(G, T1)]
        assert stable(c, T0, T1, U0) == [None, None, UNSTABLE]
        # The topic is created anew, and its offsets are committed in the same transaction.
        assert await commit(c, 7, {T1: 1}) is NONE
        end(c, 7)
        end(c, 8)
        assert stable(c, T0, T1, U0) == [None, 1, 7]
        await reload(c, 1)
        assert stable(c, T0, T1, U0) == [None, 1, 7]


async def test_the_last_pending_offset_keeps_its_group() -> None:
    async with running() as c:
        assert await commit(c, 7, {T0: 5}) is NONE
        assert in_one_go(c.coordinator.describe_group(G))[1].state == "Empty"
        in_one_go(c.coordinator.partitions_deleted([U0]))
        assert c.manager.get(G) is not None
        assert in_one_go(c.coordinator.delete_offsets(G, [T0])) == (NONE, {T0: NONE})
        assert (c.manager.get(G), open_groups(c)) == (None, {})


async def test_offsets_do_not_expire_during_a_transaction() -> None:
    async with running(offsets_retention_minutes=1, offsets_retention_check_interval_ms=1000) as c:
        assert await c.commit(None, 1) is NONE
        assert await c.commit(None, 1, partition=U0) is NONE
        assert await commit(c, 7, {T0: 5, T1: 6}) is NONE
        await after(120)
        assert (visible(c, T0, T1, U0), stable(c, T0, T1)) == ([1, None, None], [UNSTABLE, UNSTABLE])
        end(c, 7, is_committed=False)
        await after(2)
        assert c.manager.groups() == []
        assert c.log.tombstones() == [OffsetKey(G, U0), OffsetKey(G, T0)]
        assert await commit(c, 7, {T0: 5}) is NONE
        end(c, 7, is_committed=False)
        await after(2)
        # Nothing of it counts, so nothing needs a tombstone.
        assert c.manager.groups() == []
        assert len(c.log.tombstones()) == 2


async def test_a_group_with_members_is_deleted_with_its_record() -> None:
    async with running() as c:
        [a] = await c.stable()
        assert await commit(c, 7, {T0: 5}, member_id=a.member_id, generation=a.generation_id) is NONE
        assert c.leave(a.member_id) is NONE
        await settle()
        assert c.coordinator.delete_groups([G]) == {G: NONE}
        assert c.log.tombstones() == [OffsetKey(G, T0), GroupKey(G)]


# -- many --------------------------------------------------------------------------------------------------------------


async def test_a_transaction_in_very_many_groups_ends_in_steps() -> None:
    async with running() as c:
        for number in range(600):
            assert await commit(c, 7, {T0: number}, group_id=f"g{number}") is NONE
        steps = c.coordinator.transaction_ended(0, 7, c.log.end_transaction(7, True), is_committed=True)
        next(steps)
        # What has not become visible yet is still pending. A new transaction of the producer may begin in between.
        answers = [stable(c, T0, group_id=f"g{number}") for number in range(600)]
        open_count = answers.count([UNSTABLE])
        assert 0 < open_count < 600
        assert answers == [[number] if number < 600 - open_count else [UNSTABLE] for number in range(600)]
        assert await commit(c, 7, {T0: 999}, group_id="g0") is NONE
        in_one_go(steps)
        assert [stable(c, T0, group_id=f"g{number}") for number in range(1, 600)] == [[n] for n in range(1, 600)]
        assert (visible(c, T0, group_id="g0"), stable(c, T0, group_id="g0")) == ([0], [UNSTABLE])
        assert open_groups(c) == {7: ["g0"]}


def open_groups(c: Coordination) -> dict[int, list[str]]:
    """By producer id: the groups that its marker would be looked for in."""
    return {producer_id: list(groups) for producer_id, groups in c.manager._open_groups.get(0, {}).items()}
