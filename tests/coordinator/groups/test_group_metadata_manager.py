"""The groups of a broker: elections, loading, commits and their order, tombstones, expiration."""

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager

import pytest

from klamm.base.slices import in_one_go
from klamm.coordinator.groups.committed_offsets import OffsetAndMetadata
from klamm.coordinator.groups.group import Group, GroupState, Member
from klamm.coordinator.groups.group_metadata_manager import GroupMetadataManager, java_hash, partition_for
from klamm.coordinator.groups.group_records import (
    group_metadata_key,
    group_metadata_value,
    offset_commit_key,
    offset_commit_value,
    read_group_value,
)
from klamm.protocol.error_codes import ErrorCode, KafkaError
from support.coordinator_logs import MemoryCoordinatorLog, OffsetsSettings

T0, T1 = ("t", 0), ("t", 1)
DAY_MS = 86_400_000
NOW_MS = 100 * DAY_MS
NONE = ErrorCode.NONE


def at(offset: int, metadata: str = "", commit_ms: int = NOW_MS) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, 3, metadata, commit_ms)


async def until(is_so: Callable[[], object]) -> None:
    """The manager tells nobody: so each turn of the loop is looked at."""
    while not is_so():  # noqa: ASYNC110
        await asyncio.sleep(0)


async def store(manager, group, offsets):
    return await manager.store_offsets(group, in_one_go(manager.prepare_offsets(group.group_id, offsets)))


def noted(group: Group, groups: list[str]) -> Generator[None, None, None]:
    groups.append(group.group_id)
    yield from ()


class Broker:
    """A manager on a log in memory, and what it says. The first number in a group's id is its partition."""

    def __init__(self, log: MemoryCoordinatorLog, settings: OffsetsSettings) -> None:
        self.log = log
        self.now_ms = NOW_MS
        self.loaded: list[str] = []
        self.unloaded: list[str] = []
        self.failures: list[BaseException] = []
        self.manager = GroupMetadataManager(
            settings, log, lambda group_id: int(group_id[-1]), lambda: self.now_ms, self.failures.append
        )

    def elect(self, partition: int = 0, epoch: int = 1) -> None:
        self.manager.become_leader(partition, epoch, lambda group: noted(group, self.loaded))

    def resign(self, partition: int = 0, epoch: int | None = 2) -> None:
        self.manager.resign(partition, epoch, lambda group: noted(group, self.unloaded))

    async def elected(self, partition: int = 0, epoch: int = 1) -> None:
        self.elect(partition, epoch)
        await self.idle()

    async def idle(self) -> None:
        await until(lambda: not self.manager.is_loading)

    async def commit(self, group_id: str, offset: int, partition: tuple[str, int] = T0) -> ErrorCode:
        group = self.manager.get_or_create(group_id)
        return (await store(self.manager, group, {partition: at(offset)}))[partition]

    def group(self, group_id: str) -> Group:
        group = self.manager.get(group_id)
        assert group is not None
        return group

    def offset(self, group_id: str, partition: tuple[str, int] = T0) -> int | None:
        group = self.manager.get(group_id)
        found = group.offsets.get(partition) if group is not None else None
        return None if found is None else found.offset


@asynccontextmanager
async def running(
    log: MemoryCoordinatorLog | None = None,
    settings: OffsetsSettings = OffsetsSettings(),  # noqa: B008  # it cannot be changed
) -> AsyncIterator[Broker]:
    broker = Broker(log or MemoryCoordinatorLog(), settings)
    # Also what goes wrong in a callback is a failure.
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broker.failures.append(context["exception"]))
    try:
        yield broker
    finally:
        await broker.manager.stop()
    assert broker.failures == []


def filled_log(*group_ids: str) -> MemoryCoordinatorLog:
    """Each group has committed offset 10 of t-0."""
    log = MemoryCoordinatorLog()
    for group_id in group_ids:
        key = offset_commit_key(group_id, T0)
        log.append_unacknowledged(int(group_id[-1]), [(key, offset_commit_value(at(10)))])
    return log


# -- which partition --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("consumer-group", -1738392088),
        ("polygenelubricants", -(2**31)),
        ("grüße", 98768023),
        ("\U0001f600", 1772899),
    ],
)
def test_java_hash(text, expected):
    assert java_hash(text) == expected


@pytest.mark.parametrize(
    ("group_id", "expected"),
    [("a", 47), ("consumer-group", 38), ("grüße", 23), ("\U0001f600", 49), ("my-group", 12), ("polygenelubricants", 0)],
)
def test_partition_for(group_id, expected):
    assert partition_for(group_id, 50) == expected


# -- elections --------------------------------------------------------------------------------------------------------


async def test_nothing_is_coordinated_before_an_election():
    async with running() as broker:
        assert broker.manager.check("g0") is ErrorCode.NOT_COORDINATOR
        assert broker.manager.get("g0") is None
        with pytest.raises(KeyError):
            broker.manager.get_or_create("g0")


async def test_groups_are_known_when_all_is_loaded():
    async with running(filled_log("a0", "b0", "c1")) as broker:
        broker.log.readable.clear()
        broker.elect()
        await asyncio.sleep(0)
        assert broker.manager.check("a0") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert broker.manager.check("c1") is ErrorCode.NOT_COORDINATOR
        assert broker.manager.is_loading
        broker.log.readable.set()
        await broker.idle()
        assert broker.manager.check("a0") is None
        assert sorted(broker.loaded) == ["a0", "b0"]
        assert (broker.offset("a0"), broker.offset("b0"), broker.offset("c1")) == (10, 10, None)
        assert [group.group_id for group in broker.manager.groups()] == broker.loaded


async def test_partitions_load_in_the_order_of_the_elections():
    # The first one takes longest.
    async with running(filled_log("a0", "b1", *["c2"] * 20)) as broker:
        for partition in (2, 0, 1):
            broker.elect(partition)
        await broker.idle()
        assert broker.loaded == ["c2", "a0", "b1"]


async def test_a_resignation_takes_the_groups_at_once():
    async with running(filled_log("a0", "b0", "c1")) as broker:
        await broker.elected(0)
        await broker.elected(1)
        broker.resign(0)
        assert broker.unloaded == broker.loaded[:2]
        assert broker.manager.check("a0") is ErrorCode.NOT_COORDINATOR
        assert broker.manager.get("a0") is None
        assert broker.offset("c1") == 10


async def test_a_resignation_cancels_the_load():
    async with running(filled_log("a0")) as broker:
        broker.log.readable.clear()
        broker.elect(epoch=1)
        await asyncio.sleep(0)
        broker.resign(epoch=2)
        assert broker.manager.check("a0") is ErrorCode.NOT_COORDINATOR
        broker.log.readable.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert (broker.loaded, broker.unloaded) == ([], [])
        assert broker.manager.check("a0") is ErrorCode.NOT_COORDINATOR
        # The next election reads all again, also what was written meanwhile.
        broker.log.append_unacknowledged(0, [(offset_commit_key("a0", T0), offset_commit_value(at(11)))])
        await broker.elected(epoch=3)
        assert (broker.loaded, broker.offset("a0")) == (["a0"], 11)


async def test_a_resignation_while_groups_are_told_of_takes_back_those_that_were():
    async with running(filled_log(*(f"g{number}-0" for number in range(250)))) as broker:
        broker.elect()
        await until(lambda: broker.loaded)
        assert 0 < len(broker.loaded) < 250
        assert broker.manager.check("x0") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        broker.resign()
        assert broker.unloaded == broker.loaded
        told = len(broker.loaded)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(broker.loaded) == told
        assert broker.manager.groups() == []


async def test_older_epochs_are_ignored():
    async with running(filled_log("a0")) as broker:
        await broker.elected(epoch=5)
        broker.resign(epoch=4)
        assert broker.manager.check("a0") is None
        broker.resign(epoch=6)
        broker.elect(epoch=5)
        assert broker.manager.check("a0") is ErrorCode.NOT_COORDINATOR
        await broker.elected(epoch=7)
        assert broker.manager.check("a0") is None
        assert broker.unloaded == ["a0"]


async def test_the_same_epoch_may_end_what_it_began():
    async with running(filled_log("a0")) as broker:
        await broker.elected(epoch=5)
        broker.resign(epoch=5)
        assert broker.unloaded == ["a0"]


async def test_a_newer_epoch_without_a_resignation_keeps_groups_and_load():
    async with running(filled_log("a0")) as broker:
        broker.log.readable.clear()
        broker.elect(epoch=1)
        await asyncio.sleep(0)
        broker.elect(epoch=2)
        broker.log.readable.set()
        await broker.idle()
        group = broker.group("a0")
        for _ in range(20):
            await asyncio.sleep(0)
        assert broker.loaded == ["a0"]
        broker.elect(epoch=3)
        assert broker.manager.check("a0") is None
        assert broker.group("a0") is group
        assert broker.log.reads == 1
        broker.resign(epoch=2)
        assert broker.manager.check("a0") is None


async def test_a_partition_that_was_deleted_begins_with_epochs_of_its_own():
    async with running(filled_log("a0")) as broker:
        await broker.elected(epoch=5)
        broker.resign(epoch=None)
        assert broker.manager.check("a0") is ErrorCode.NOT_COORDINATOR
        await broker.elected(epoch=0)
        assert broker.manager.check("a0") is None


# -- errors while loading ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [KafkaError(ErrorCode.CORRUPT_MESSAGE, "a bad batch"), OSError(errno.EIO, "a bad disk")]
)
async def test_a_log_that_cannot_be_read_to_its_end_is_read_again(error, caplog, monkeypatch):
    caplog.set_level(logging.ERROR)
    monkeypatch.setattr("klamm.coordinator.groups.group_metadata_manager.LOAD_RETRY_BACKOFF_MS", 1)
    async with running(filled_log("a0")) as broker:
        broker.log.read_errors = [error, error]
        broker.elect()
        seen = set()
        while broker.manager.is_loading:
            # Never are there some of the groups.
            seen.add((broker.manager.check("a0"), broker.offset("a0")))
            await asyncio.sleep(0)
        assert seen == {(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None)}
        assert (broker.log.reads, broker.loaded, broker.offset("a0")) == (3, ["a0"], 10)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "__consumer_offsets-0 could not be loaded; retrying in 1 ms",
        "__consumer_offsets-0 could not be loaded; retrying in 2 ms",
    ]


async def test_a_load_that_fails_with_another_leader_is_over():
    async with running(filled_log("a0")) as broker:
        broker.log.led.clear()
        await broker.elected()
        assert broker.manager.check("a0") is ErrorCode.NOT_COORDINATOR
        assert broker.loaded == []
        broker.log.led.add(0)
        await broker.elected(epoch=2)
        assert broker.offset("a0") == 10


async def test_a_partition_that_waits_to_be_read_again_does_not_hold_up_others():
    async with running(filled_log("a0", "b1")) as broker:
        broker.log.read_errors = [KafkaError(ErrorCode.CORRUPT_MESSAGE, "a bad batch")]
        broker.elect(0)
        broker.elect(1)
        await until(lambda: broker.manager.check("b1") is None)
        assert broker.manager.check("a0") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        broker.resign(0)
        assert not broker.manager.is_loading


async def test_a_fault_of_the_program_is_heard():
    broker = Broker(filled_log("a0"), OffsetsSettings())

    def fail(group: Group) -> Generator[None, None, None]:
        raise ZeroDivisionError

    broker.manager.become_leader(0, 1, fail)
    await until(lambda: broker.failures)
    assert isinstance(broker.failures[0], ZeroDivisionError)
    assert broker.manager.check("a0") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await broker.manager.stop()


async def test_what_was_written_while_the_topic_had_fewer_partitions_is_left_alone(caplog):
    async with running(filled_log("a0", "a1")) as broker:
        broker.log.append_unacknowledged(0, [(offset_commit_key("a1", T0), offset_commit_value(at(99)))])
        for partition in (1, 0):
            await broker.elected(partition)
        assert broker.loaded == ["a1", "a0"]
        assert broker.offset("a1") == 10
        assert "__consumer_offsets-0 holds group a1, which belongs to partition 1 now" in caplog.text


# -- commits ----------------------------------------------------------------------------------------------------------


async def test_a_commit_is_in_the_log_before_it_is_known():
    async with running() as broker:
        await broker.elected()
        broker.log.held = []
        waiting = asyncio.ensure_future(broker.commit("a0", 5))
        await asyncio.sleep(0)
        assert broker.log.records() == [(offset_commit_key("a0", T0), offset_commit_value(at(5)))]
        group = broker.group("a0")
        assert (broker.offset("a0"), group.offsets.is_pending(T0)) == (None, True)
        broker.log.release()
        assert await waiting is NONE
        assert (broker.offset("a0"), group.offsets.is_pending(T0)) == (5, False)


@pytest.mark.parametrize("order", [(0, 0, 0), (2, 1, 0), (1, 1, 0)])
async def test_the_later_record_counts_whatever_ends_first(order):
    async with running() as broker:
        await broker.elected()
        broker.log.held = []
        commits = []
        for offset in (1, 2, 3):
            commits.append(asyncio.ensure_future(broker.commit("a0", offset)))
            await asyncio.sleep(0)
        known = []
        for index in order:
            broker.log.release(index)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            known.append(broker.offset("a0") or 0)
        assert known == sorted(known)
        assert broker.offset("a0") == 3
        assert await asyncio.gather(*commits) == [NONE] * 3
        assert not broker.group("a0").offsets.is_pending(T0)


async def test_a_commit_whose_client_goes_away_still_counts():
    async with running() as broker:
        await broker.elected()
        broker.log.held = []
        waiting = asyncio.ensure_future(broker.commit("a0", 5))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()
        broker.log.release()
        await asyncio.sleep(0)
        assert (broker.offset("a0"), broker.group("a0").offsets.is_pending(T0)) == (5, False)


@pytest.mark.parametrize(
    ("appended", "answered"),
    [
        ("UNKNOWN_TOPIC_OR_PARTITION", "COORDINATOR_NOT_AVAILABLE"),
        ("NOT_ENOUGH_REPLICAS", "COORDINATOR_NOT_AVAILABLE"),
        ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", "COORDINATOR_NOT_AVAILABLE"),
        ("NOT_LEADER_OR_FOLLOWER", "NOT_COORDINATOR"),
        ("KAFKA_STORAGE_ERROR", "NOT_COORDINATOR"),
        ("MESSAGE_TOO_LARGE", "INVALID_COMMIT_OFFSET_SIZE"),
        ("RECORD_LIST_TOO_LARGE", "INVALID_COMMIT_OFFSET_SIZE"),
        ("INVALID_FETCH_SIZE", "INVALID_COMMIT_OFFSET_SIZE"),
        ("REQUEST_TIMED_OUT", "REQUEST_TIMED_OUT"),
        ("CORRUPT_MESSAGE", "CORRUPT_MESSAGE"),
    ],
)
async def test_a_commit_that_fails_changes_nothing(appended, answered):
    async with running(filled_log("a0")) as broker:
        await broker.elected()
        broker.log.error = ErrorCode[appended]
        assert await broker.commit("a0", 11) is ErrorCode[answered]
        group = broker.group("a0")
        assert (broker.offset("a0"), group.offsets.is_pending(T0)) == (10, False)


async def test_a_commit_that_timed_out_is_known_when_the_log_is_read_again():
    """It may stand in the log; a commit that was acknowledged after it stands behind it."""
    async with running(filled_log("a0")) as broker:
        await broker.elected()
        broker.log.held = []
        waiting = asyncio.ensure_future(broker.commit("a0", 20))
        await asyncio.sleep(0)
        broker.log.release(error_code=ErrorCode.REQUEST_TIMED_OUT)
        assert await waiting is ErrorCode.REQUEST_TIMED_OUT
        assert broker.offset("a0") == 10
        broker.resign(epoch=2)
        await broker.elected(epoch=3)
        assert broker.offset("a0") == 20
        broker.log.held = None
        assert await broker.commit("a0", 15) is NONE
        broker.resign(epoch=4)
        await broker.elected(epoch=5)
        assert broker.offset("a0") == 15


async def test_metadata_that_is_too_large_fails_only_its_partition():
    async with running(settings=OffsetsSettings(offset_metadata_max_bytes=3)) as broker:
        await broker.elected()
        group = broker.manager.get_or_create("a0")
        t2 = ("t", 2)
        # Three UTF-16 units fit, four do not: a character beyond the basic plane is two.
        offsets = {T0: at(1, "abcd"), T1: at(2, "öö\u20ac"), t2: at(3, "\U0001f600\U0001f600")}
        assert await store(broker.manager, group, offsets) == {
            T0: ErrorCode.OFFSET_METADATA_TOO_LARGE,
            T1: NONE,
            t2: ErrorCode.OFFSET_METADATA_TOO_LARGE,
        }
        assert group.offsets.committed == {T1: offsets[T1]}
        assert not any(map(group.offsets.is_pending, offsets))
        too_large = {T0: at(1, "abcd")}
        assert await store(broker.manager, group, too_large) == {T0: ErrorCode.OFFSET_METADATA_TOO_LARGE}
        assert len(broker.log.records()) == 1


async def test_metadata_that_no_record_has_room_for_is_too_large_whatever_is_configured():
    async with running(settings=OffsetsSettings(offset_metadata_max_bytes=100_000)) as broker:
        await broker.elected()
        offsets = {T0: at(1, "x" * 32_767), T1: at(2, "\u20ac" * 11_000)}
        group = broker.manager.get_or_create("a0")
        codes = await store(broker.manager, group, offsets)
        assert codes == {T0: NONE, T1: ErrorCode.OFFSET_METADATA_TOO_LARGE}


async def test_the_offsets_of_a_commit_are_one_append_in_their_order():
    async with running() as broker:
        await broker.elected()
        group = broker.manager.get_or_create("a0")
        await store(broker.manager, group, {T1: at(2), T0: at(1)})
        (batch,) = broker.log.batches[0]
        assert [key for _, key, _ in batch.records] == [offset_commit_key("a0", T1), offset_commit_key("a0", T0)]
        broker.resign()
        await broker.elected(epoch=3)
        assert (broker.offset("a0", T0), broker.offset("a0", T1)) == (1, 2)


async def test_a_commit_that_ends_after_its_group_has_gone_touches_nothing():
    async with running(filled_log("a0")) as broker:
        await broker.elected()
        broker.log.held = []
        waiting = asyncio.ensure_future(broker.commit("a0", 20))
        await asyncio.sleep(0)
        broker.resign()
        await broker.elected(epoch=3)
        broker.log.release()
        assert await waiting is NONE
        # It was read, since it had been appended.
        assert broker.offset("a0") == 20


# -- groups -----------------------------------------------------------------------------------------------------------


def stable_group(broker: Broker, group_id: str = "a0", generation_id: int = 4) -> Group:
    group = broker.manager.get_or_create(group_id)
    group.generation_id = generation_id
    group.add(Member("m", None, "c", "/h", 1, 1, "consumer", [("range", b"")]))
    group.protocol_name = "range"
    return group


async def test_a_group_is_stored_as_it_is():
    async with running() as broker:
        await broker.elected()
        group = stable_group(broker)
        assert await broker.manager.store_group(group, {"m": b"t-0"}) is NONE
        ((key, value),) = broker.log.records()
        assert key == group_metadata_key("a0") and value is not None
        assert read_group_value("a0", value).members["m"].assignment == b"t-0"
        broker.resign()
        await broker.elected(epoch=3)
        assert (broker.group("a0").state, broker.group("a0").generation_id) == ("Stable", 4)


@pytest.mark.parametrize(
    ("appended", "answered"),
    [
        ("UNKNOWN_TOPIC_OR_PARTITION", "COORDINATOR_NOT_AVAILABLE"),
        ("NOT_ENOUGH_REPLICAS", "COORDINATOR_NOT_AVAILABLE"),
        ("NOT_ENOUGH_REPLICAS_AFTER_APPEND", "COORDINATOR_NOT_AVAILABLE"),
        ("NOT_LEADER_OR_FOLLOWER", "NOT_COORDINATOR"),
        ("KAFKA_STORAGE_ERROR", "NOT_COORDINATOR"),
        ("REQUEST_TIMED_OUT", "REBALANCE_IN_PROGRESS"),
        ("MESSAGE_TOO_LARGE", "UNKNOWN_SERVER_ERROR"),
        ("RECORD_LIST_TOO_LARGE", "UNKNOWN_SERVER_ERROR"),
        ("INVALID_FETCH_SIZE", "UNKNOWN_SERVER_ERROR"),
        ("CORRUPT_MESSAGE", "CORRUPT_MESSAGE"),
    ],
)
async def test_what_members_hear_of_a_group_that_could_not_be_stored(appended, answered, caplog):
    async with running() as broker:
        await broker.elected()
        broker.log.error = ErrorCode[appended]
        assert await broker.manager.store_group(stable_group(broker), {"m": b""}) is ErrorCode[answered]
    assert f"generation 4 of group a0 could not be stored: {appended}" in caplog.text


# -- removing ---------------------------------------------------------------------------------------------------------


async def test_removed_offsets_and_empty_groups_leave_tombstones():
    async with running(filled_log("a0")) as broker:
        log = broker.log
        log.append_unacknowledged(0, [(group_metadata_key("a0"), group_value("a0", 3))])
        await broker.elected()
        written = len(log.records())
        group = broker.group("a0")
        assert broker.manager.cleanup([group], lambda group: group.offsets.partitions) == 1
        assert log.records()[written:] == [(offset_commit_key("a0", T0), None), (group_metadata_key("a0"), None)]
        assert group.state is GroupState.DEAD
        assert broker.manager.get("a0") is None
        broker.resign()
        await broker.elected(epoch=3)
        assert broker.manager.get("a0") is None


def group_value(group_id: str, generation_id: int, *members: Member, state_ms: int | None = NOW_MS) -> bytes:
    group = in_one_go(
        Group.load_steps(
            group_id, generation_id, "consumer", "range" if members else None, None, state_ms, list(members)
        )
    )
    return group_metadata_value(group, {member.member_id: b"" for member in members})


async def test_a_group_that_only_committed_has_no_record_to_remove():
    async with running(filled_log("a0")) as broker:
        await broker.elected()
        assert broker.manager.cleanup(broker.manager.groups(), lambda group: [T0, T1]) == 1
        assert broker.log.records()[1:] == [(offset_commit_key("a0", T0), None)]
        assert broker.manager.get("a0") is None


async def test_a_group_with_other_offsets_stays():
    async with running(filled_log("a0")) as broker:
        await broker.elected()
        await broker.commit("a0", 1, T1)
        group = broker.group("a0")
        assert broker.manager.cleanup([group], lambda group: [T0]) == 1
        assert broker.group("a0") is group
        assert group.offsets.committed == {T1: at(1)}
        assert broker.manager.cleanup([group], lambda group: []) == 0
        assert len(broker.log.records()) == 3


async def test_a_group_with_a_commit_under_way_stays():
    async with running() as broker:
        await broker.elected()
        broker.log.held = []
        waiting = asyncio.ensure_future(broker.commit("a0", 1))
        await asyncio.sleep(0)
        assert broker.manager.cleanup(broker.manager.groups(), lambda group: []) == 0
        broker.log.release()
        assert await waiting is NONE
        assert broker.offset("a0") == 1


async def test_only_the_leader_removes():
    async with running(filled_log("a0")) as broker:
        await broker.elected()
        group = broker.group("a0")
        broker.log.led.clear()
        assert broker.manager.cleanup([group], lambda group: [T0]) == 0
        assert broker.offset("a0") == 10
        broker.log.led.add(0)
        broker.resign()
        assert broker.manager.cleanup([group], lambda group: [T0]) == 0
        assert len(broker.log.records()) == 1


# -- expiration -------------------------------------------------------------------------------------------------------

RETENTION_MS = 7 * DAY_MS


async def test_offsets_expire_by_the_clock():
    async with running(filled_log("a0"), OffsetsSettings(offsets_retention_check_interval_ms=1)) as broker:
        await broker.elected()
        broker.manager.start()
        broker.now_ms = NOW_MS + RETENTION_MS - 1
        await asyncio.sleep(0.01)
        assert broker.offset("a0") == 10
        broker.now_ms += 1
        await until(lambda: broker.manager.get("a0") is None)
        assert broker.log.records()[1:] == [(offset_commit_key("a0", T0), None)]


async def test_a_look_at_many_groups_leaves_the_loop_to_others():
    async with running(
        filled_log(*(f"g{number}-0" for number in range(2000))), OffsetsSettings(offsets_retention_check_interval_ms=1)
    ) as broker:
        await broker.elected()
        broker.manager.start()
        broker.now_ms = NOW_MS + RETENTION_MS
        counts = set()
        while broker.manager.groups():
            counts.add(len(broker.manager.groups()))
            await asyncio.sleep(0)
        assert len(counts) > 2


SUBSCRIBED_TO_T = b"\x00\x00\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff"


def expiring(kind: str) -> tuple[MemoryCoordinatorLog, tuple[str, int]]:
    """A group that has committed long ago, and the partition it has committed."""
    log = MemoryCoordinatorLog()
    partition = ("u", 0) if kind == "not subscribed" else T0
    old = at(1, commit_ms=NOW_MS - RETENTION_MS)
    if kind == "expires by itself":
        old = old._replace(commit_timestamp_ms=NOW_MS, expire_timestamp_ms=NOW_MS - 1)
    log.append_unacknowledged(0, [(offset_commit_key("a0", partition), offset_commit_value(old))])
    members = [Member("m", None, "c", "/h", 1, 1, "consumer", [("range", SUBSCRIBED_TO_T)])]
    states = {
        "subscribed": group_value("a0", 1, *members),
        "not subscribed": group_value("a0", 1, *members),
        "empty lately": group_value("a0", 1, state_ms=NOW_MS - RETENTION_MS + 1),
        "empty long": group_value("a0", 1, state_ms=NOW_MS - RETENTION_MS),
        "empty, since when is not known": group_value("a0", 1, state_ms=None),
    }
    if kind in states:
        log.append_unacknowledged(0, [(group_metadata_key("a0"), states[kind])])
    return log, partition


@pytest.mark.parametrize(
    ("kind", "is_gone"),
    [
        ("subscribed", False),
        ("not subscribed", True),
        ("empty lately", False),
        ("empty long", True),
        ("empty, since when is not known", True),
        ("commits only", True),
        ("expires by itself", True),
    ],
)
async def test_what_expires(kind, is_gone):
    log, partition = expiring(kind)
    # A second group, looked at later: when it has gone, the first one has been looked at.
    log.append_unacknowledged(0, [(offset_commit_key("z0", T0), offset_commit_value(at(1, commit_ms=0)))])
    async with running(log, OffsetsSettings(offsets_retention_check_interval_ms=1)) as broker:
        await broker.elected()
        broker.manager.start()
        await until(lambda: broker.manager.get("z0") is None)
        assert (broker.offset("a0", partition) is None) == is_gone
