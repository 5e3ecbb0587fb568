"""Partitions with logs in two directories at a start: which one stays, and what is changed on the disks."""

import errno
from collections.abc import Sequence
from uuid import UUID

import pytest

from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.records import Record, build_batch
from klamm.simulation.machine.disk import SimulatedFileSystem
from klamm.simulation.machine.process import Process
from klamm.storage.directories.directory_loader import LogHistory
from klamm.storage.directories.duplicate_logs import LiveTopic, last_common_offset, newest, possible_logs, supersedes
from klamm.storage.directories.log_manager import LogManager
from klamm.storage.log.log import Log
from klamm.storage.log.log_config import LogConfig
from klamm.storage.segments.log_directory import (
    MetaProperties,
    format_topic_id,
    parse_directory_name,
    stray_directory_name,
)
from support.logs import NOW_MS, DiskEnvironment, append, read_all

pytestmark = pytest.mark.loop("virtual")

A, B = "/disks/a", "/disks/b"
LIVE, FORMER, OLDER = (UUID(int=number) for number in (42, 41, 40))
CONFIG = LogConfig(segment_bytes=1000, file_delete_delay_ms=50)

HAS_ID, HAS_NONE, IS_GONE = LiveTopic(True, LIVE), LiveTopic(True, None), LiveTopic(False, None)


@pytest.mark.parametrize(
    ("found", "topic", "possible"),
    [
        ([FORMER, LIVE], HAS_ID, [1]),
        ([LIVE, FORMER], HAS_ID, [0]),
        ([FORMER, LIVE, FORMER], HAS_ID, [1]),
        ([FORMER, None], HAS_ID, [1]),
        ([LIVE, LIVE], HAS_ID, [0, 1]),
        ([LIVE, None], HAS_ID, [0, 1]),
        ([None, None], HAS_ID, [0, 1]),
        ([FORMER, LIVE, LIVE], HAS_ID, [1, 2]),
        ([FORMER, OLDER], HAS_ID, [0]),
        ([FORMER, FORMER], HAS_ID, [0, 1]),
        ([OLDER, FORMER, FORMER], HAS_ID, []),
        ([FORMER, LIVE], HAS_NONE, []),
        ([FORMER, FORMER], HAS_NONE, [0, 1]),
        ([FORMER, None], HAS_NONE, []),
        ([None, None], HAS_NONE, []),
        ([FORMER, OLDER], IS_GONE, [0]),
        ([FORMER, FORMER], IS_GONE, [0, 1]),
        ([FORMER, None], IS_GONE, []),
        ([None, None], IS_GONE, []),
    ],
)
def test_the_logs_that_may_be_the_partitions(found: list[UUID | None], topic: LiveTopic, possible: list[int]) -> None:
    assert possible_logs(found, topic) == possible


def history(end_offset: int, *epochs: tuple[int, int], start_offset: int = 0) -> LogHistory:
    return LogHistory(start_offset, end_offset, epochs)


@pytest.mark.parametrize(
    ("newer", "older", "does"),
    [
        # The replica copied all records again.
        (history(20, (0, 0), (3, 10)), history(15, (0, 0), (3, 10)), True),
        (history(15, (0, 0), (3, 10)), history(20, (0, 0), (3, 10)), False),
        (history(15, (0, 0), (3, 10)), history(15, (0, 0), (3, 10)), True),
        # A later leader went on without the older log's last records.
        (history(20, (0, 0), (3, 10), (5, 12)), history(15, (0, 0), (3, 10)), True),
        # The newer log began empty, although the older one had records.
        (history(20, (5, 0)), history(15, (0, 0), (3, 10)), False),
        (history(20, (0, 0), (5, 12)), history(15, (0, 0), (3, 10)), False),
        # The newer log began empty, in the last epoch of the older one.
        (history(20, (3, 0)), history(15, (0, 0), (3, 10)), False),
        (history(20, (3, 0), (5, 12)), history(15, (0, 0), (3, 10)), False),
        # One number of an epoch, and two leaders.
        (history(20, (0, 0), (3, 8)), history(15, (0, 0), (3, 10)), False),
        # Older records are deleted.
        (history(20, (3, 12), (5, 18), start_offset=12), history(15, (0, 0), (3, 10)), True),
        (history(20, (0, 0), (3, 10), (5, 18)), history(15, (3, 12), start_offset=12), True),
        (history(20, (5, 18), start_offset=18), history(15, (0, 0), (3, 10)), False),
        # Without records, and with an epoch that has none yet.
        (history(20, (0, 0)), history(0), True),
        (history(0), history(20, (0, 0)), False),
        # All records of the older one are deleted: its offsets are not used again.
        (history(120, (0, 0)), history(100, start_offset=100), True),
        (history(50, (0, 0)), history(100, start_offset=100), False),
        (history(100, (0, 0)), history(100, start_offset=100), False),
        (history(100, start_offset=100), history(100, start_offset=100), True),
        (history(20, (0, 0)), history(15, (0, 0), (3, 15)), True),
        # Records of formats without epochs.
        (history(20), history(15), False),
    ],
)
def test_a_log_that_supersedes_another_one(newer: LogHistory, older: LogHistory, does: bool) -> None:
    assert supersedes(newer, older) is does


def test_the_newest_log() -> None:
    old, moved_on = history(15, (0, 0)), history(12, (0, 0), (4, 10))
    assert newest([old, moved_on]) == 1
    assert newest([moved_on, old]) == 0
    assert newest([old, history(16, (0, 0)), moved_on]) == 2
    assert newest([old, old]) == 0
    assert newest([old, history(12, (4, 0))]) is None
    assert newest([old, None]) is None
    assert newest([old, history(15, (0, 12), start_offset=12)]) == 1
    assert newest([history(0), history(20)]) == 1


@pytest.mark.parametrize(
    ("newer", "older", "last"),
    [
        (history(20, (0, 0)), history(15, (0, 0)), 14),
        (history(20, (0, 0), (3, 18)), history(15, (0, 0)), 14),
        (history(20, (0, 0), (3, 12)), history(15, (0, 0)), 11),
        (history(14, (0, 0), (3, 12), (4, 13)), history(15, (0, 0), (3, 12)), 12),
        (history(20, (0, 0)), history(0), None),
    ],
)
def test_the_offset_at_which_two_logs_are_compared(newer: LogHistory, older: LogHistory, last: int | None) -> None:
    assert last_common_offset(newer, older) == last


class Disks:
    """Two disks, and what ZooKeeper says of the topics; `asked` are the topics of each question."""

    def __init__(self) -> None:
        self.environment = DiskEnvironment()
        self.failed: list[str] = []
        self.live: dict[str, UUID | None] = {"t": LIVE, "u": LIVE}
        self.asked: list[list[str]] = []

    def manager(self, *directories: str) -> LogManager:
        return LogManager(
            self.environment,
            directories or (A, B),
            meta_properties=MetaProperties("cluster-1", 7),
            default_config=CONFIG,
            on_directory_failure=lambda path, _error: self.failed.append(path),
            on_failure=_raise_it,
        )

    async def topic_ids(self, names: Sequence[str]) -> dict[str, UUID | None]:
        self.asked.append(list(names))
        return {name: self.live[name] for name in names if name in self.live}

    async def loaded(self, *directories: str) -> LogManager:
        manager = self.manager(*directories)
        await manager.load({}, self.topic_ids)
        return manager

    async def write(self, directory: str, topic_id: UUID | None, *values: bytes, topic: str = "t") -> None:
        """The broker has a log of the topic's partition 0 in this directory, while the other one is offline."""
        manager = await self.loaded(directory)
        log = manager.get_or_create(topic, 0, topic_id, CONFIG, is_new=True)
        for value in values:
            append(log, value)
        log.update_high_watermark(len(values))
        await manager.stop()

    def names(self, directory: str) -> list[str]:
        files = self.environment.file_system
        return [name for name in files.list_directory(directory) if files.is_directory(f"{directory}/{name}")]

    def kill_machine(self) -> None:
        self.kill(lose_unsynced=True)

    def kill(self, *, lose_unsynced: bool = False) -> None:
        self.environment.disk.crash(lose_unsynced=lose_unsynced)
        self.environment.file_system = SimulatedFileSystem(self.environment.disk, Process("next", "host"))


def _raise_it(*reasons: object) -> None:
    raise AssertionError(reasons)


@pytest.fixture
def disks() -> Disks:
    return Disks()


async def records(log: Log | None) -> list[bytes | None]:
    assert log is not None
    return [value for _, value in await read_all(log)]


async def test_the_log_of_a_former_topic_is_set_aside_with_all_its_records(disks: Disks) -> None:
    await disks.write(A, FORMER, b"former", b"topic")
    await disks.write(B, LIVE, b"new")
    manager = await disks.loaded()
    assert disks.asked == [["t"]]
    log = manager.get("t", 0)
    assert log is not None and log.directory == f"{B}/t-0"
    assert await records(log) == [b"new"]
    manager.start()
    await manager.stop()
    (name,) = disks.names(A)
    assert parse_directory_name(name) == ("t", 0, "-stray")
    files = disks.environment.file_system
    assert files.exists(f"{A}/.kafka_cleanshutdown")
    # An operator can have it back.
    files.rename(f"{A}/{name}", f"{A}/u-0")
    manager = await disks.loaded()
    assert await records(manager.get("u", 0)) == [b"former", b"topic"]
    await manager.stop()


async def test_later_starts_leave_it_where_it_is_and_do_not_ask_again(disks: Disks, caplog) -> None:
    await disks.write(A, FORMER, b"former")
    await disks.write(B, LIVE, b"new")
    await (await disks.loaded()).stop()
    before = disks.names(A)
    disks.asked.clear()
    manager = await disks.loaded()
    assert f"Ignoring {A}/{before[0]}, which an earlier start has set aside" in caplog.text
    await manager.stop()
    assert (disks.names(A), disks.asked) == (before, [])


async def test_it_leaves_the_checkpoints(disks: Disks) -> None:
    manager = await disks.loaded(A)
    log = manager.get_or_create("t", 0, FORMER, CONFIG, is_new=True)
    for number in range(100):
        append(log, b"%d" % number)
    log.update_high_watermark(100)
    log.update_log_start_offset(70)
    await manager.stop()
    await disks.write(B, LIVE, b"new")
    files = disks.environment.file_system
    names = ["recovery-point", "replication", "log-start"]
    assert all(b"t 0" in files.read_file(f"{A}/{name}-offset-checkpoint") for name in names)
    manager = await disks.loaded()
    # Before the rename: a log that comes here later would lose its records below this offset.
    assert b"t 0" not in files.read_file(f"{A}/log-start-offset-checkpoint")
    manager.start()
    await manager.stop()
    assert not any(b"t 0" in files.read_file(f"{A}/{name}-offset-checkpoint") for name in names)
    assert b"t 0 1" in files.read_file(f"{B}/recovery-point-offset-checkpoint")


async def test_a_dead_machine_does_not_bring_it_back(disks: Disks) -> None:
    await disks.write(A, FORMER, b"former")
    await disks.write(B, LIVE, b"new")
    await disks.loaded()
    disks.kill_machine()
    disks.asked.clear()
    manager = await disks.loaded()
    assert (disks.asked, await records(manager.get("t", 0))) == ([], [b"new"])
    await manager.stop()


async def test_without_a_log_of_the_topic_one_log_stays(disks: Disks) -> None:
    """LeaderAndIsr deletes it if this broker is not in the ISR; if it is, an operator must look at it."""
    await disks.write(A, FORMER, b"former")
    await disks.write(B, OLDER, b"older")
    manager = await disks.loaded()
    assert await records(manager.get("t", 0)) == [b"former"]
    with pytest.raises(KafkaError) as caught:
        manager.get_or_create("t", 0, LIVE, CONFIG)
    assert caught.value.code == ErrorCode.INCONSISTENT_TOPIC_ID
    await manager.stop()


async def test_a_topic_that_is_gone_refuses_no_start(disks: Disks) -> None:
    disks.live = {}
    await disks.write(A, FORMER, b"former")
    await disks.write(B, OLDER, b"older")
    manager = await disks.loaded()
    assert list(manager.logs) == [("t", 0)]
    await manager.stop()


async def write_epochs(disks: Disks, directory: str, *epochs: int) -> None:
    """The broker has a log of the topic with one record of each of these leader epochs."""
    manager = await disks.loaded(directory)
    log = manager.get_or_create("t", 0, LIVE, CONFIG, is_new=True)
    for epoch in epochs:
        append(log, b"%d" % epoch, leader_epoch=epoch)
    await manager.stop()


@pytest.mark.parametrize("is_clean", [True, False])
async def test_a_replica_that_left_and_came_back_has_its_newer_log(disks: Disks, is_clean: bool) -> None:
    await write_epochs(disks, A, 0, 2, 2)
    await write_epochs(disks, B, 0, 2, 5)
    if not is_clean:
        for directory in (A, B):
            disks.environment.file_system.remove(f"{directory}/.kafka_cleanshutdown")
    descriptors = disks.environment.open_files
    manager = await disks.loaded()
    assert await records(manager.get("t", 0)) == [b"0", b"2", b"5"]
    (name,) = disks.names(A)
    assert parse_directory_name(name) == ("t", 0, "-stray")
    await manager.stop()
    assert disks.environment.open_files == descriptors


async def test_of_two_logs_with_one_topic_id_that_lack_each_others_records_neither_is_chosen(disks: Disks) -> None:
    """An operator started the broker without the first directory, and with it again."""
    await write_epochs(disks, A, 0, 2, 2)
    await write_epochs(disks, B, 5, 5, 5, 5)
    content = {path: disks.environment.file_system.read_file(path) for path in disks.environment.disk.sizes()}
    with pytest.raises(KafkaError, match="t-0 has two directories"):
        await disks.loaded()
    assert {path: disks.environment.file_system.read_file(path) for path in content} == content


async def test_of_two_logs_of_one_epoch_with_different_records_neither_is_chosen(disks: Disks) -> None:
    """Kafka's controller lets a broker that restarts together with it lead in the same epoch, here without its log."""
    await disks.write(A, LIVE, b"one", b"two")
    await disks.write(B, LIVE, b"other", b"records", b"here")
    with pytest.raises(KafkaError, match="t-0 has two directories"):
        await disks.loaded()
    assert (disks.names(A), disks.names(B)) == (["t-0"], ["t-0"])


async def write_copy(disks: Disks, *batches: bytearray) -> None:
    """The broker has copied these batches of its leader's log to the second directory."""
    manager = await disks.loaded(B)
    log = manager.get_or_create("t", 0, LIVE, CONFIG, is_new=True)
    for records in batches:
        log.append_as_follower(records)
    await manager.stop()


def compacted(base_offset: int, *records: tuple[int, bytes]) -> bytearray:
    """A batch of the leader, from this offset on, of which these records are left."""
    left = [Record(None, value, NOW_MS, offset=offset) for offset, value in records]
    return build_batch(left, base_offset=base_offset, partition_leader_epoch=0)


async def loaded_compacted(disks: Disks) -> LogManager:
    manager = disks.manager()
    await manager.load({"t": LogConfig(cleanup_policy=("compact",))}, disks.topic_ids)
    return manager


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize(
    "left", [[], [compacted(2, (3, b"four"))], [compacted(1, (1, b"two"))]], ids=["nothing", "a part", "another batch"]
)
async def test_compaction_may_have_removed_what_the_other_log_has(
    disks: Disks, left: list[bytearray], is_clean: bool
) -> None:
    manager = await disks.loaded(A)
    log = manager.get_or_create("t", 0, LIVE, CONFIG, is_new=True)
    for values in ([b"one"], [b"two"], [b"three", b"four"]):
        append(log, *values)
    await manager.stop()
    await write_copy(disks, *left, compacted(4, (4, b"five")))
    if not is_clean:
        for directory in (A, B):
            disks.environment.file_system.remove(f"{directory}/.kafka_cleanshutdown")
            file = disks.environment.file_system.open(f"{directory}/t-0/{0:020}.log")
            file.write(file.size(), b"torn by a crash" * 10)
            file.close()
    manager = await loaded_compacted(disks)
    assert (await records(manager.get("t", 0)))[-1] == b"five"
    assert [parse_directory_name(name) for name in disks.names(A)] == [("t", 0, "-stray")]
    await manager.stop()


@pytest.mark.parametrize(
    "other",
    [
        [compacted(0, (0, b"other")), compacted(1, (1, b"records")), compacted(2, (2, b"here"))],
        [compacted(1, (1, b"other")), compacted(2, (2, b"records"))],
        [compacted(0, (0, b"other"), (1, b"records"), (2, b"here"))],
    ],
)
async def test_of_two_compacted_logs_of_one_epoch_with_different_records_neither_is_chosen(
    disks: Disks, other: list[bytearray]
) -> None:
    await disks.write(A, LIVE, b"one", b"two")
    await write_copy(disks, *other)
    with pytest.raises(KafkaError, match="t-0 has two directories"):
        await loaded_compacted(disks)
    assert (disks.names(A), disks.names(B)) == (["t-0"], ["t-0"])


async def test_a_log_whose_records_are_all_deleted_is_not_replaced_by_one_that_ends_before_it(disks: Disks) -> None:
    """New records would get offsets that consumers have behind them."""
    await write_epochs(disks, A, 0)
    manager = await disks.loaded(B)
    log = manager.get_or_create("t", 0, LIVE, CONFIG, is_new=True)
    for _ in range(3):
        append(log, b"0", leader_epoch=0)
    log.update_high_watermark(3)
    log.update_log_start_offset(3)
    await manager.stop()
    with pytest.raises(KafkaError, match="t-0 has two directories"):
        await disks.loaded()


class Killed(Exception):
    """The process has been killed."""


async def test_a_kill_before_a_log_is_set_aside_leaves_what_tells_that_it_is_older(disks: Disks) -> None:
    """Here its log start offset: all of its records are deleted."""
    for directory, start_offset in ((A, 3), (B, 2)):
        manager = await disks.loaded(directory)
        log = manager.get_or_create("t", 0, LIVE, CONFIG, is_new=True)
        for epoch in (0, 2, 2) if directory == A else (0, 2, 5, 5):
            append(log, b"%d" % epoch, leader_epoch=epoch)
        log.update_high_watermark(3)
        log.update_log_start_offset(start_offset)
        await manager.stop()
    touched = disks.environment.disk.touched

    def killed(operation: str, path: str) -> None:
        if (operation, path) == ("rename", f"{A}/t-0"):
            raise Killed
        touched(operation, path)

    disks.environment.disk.touched = killed
    with pytest.raises(Killed):
        await disks.loaded()
    disks.environment.disk.touched = touched
    manager = await disks.loaded()
    assert await records(manager.get("t", 0)) == [b"5", b"5"]
    await manager.stop()


async def test_a_kill_after_a_log_is_set_aside_leaves_no_start_offset_to_a_later_log(disks: Disks) -> None:
    manager = await disks.loaded(A)
    log = manager.get_or_create("t", 0, FORMER, CONFIG, is_new=True)
    for _ in range(3):
        append(log, b"former")
    log.update_high_watermark(3)
    log.update_log_start_offset(3)
    await manager.stop()
    files = disks.environment.file_system
    files.rename(f"{A}/t-0", f"{A}/{stray_directory_name('t', 0, FORMER)}")
    manager = await disks.loaded(A)
    append(manager.get_or_create("t", 0, LIVE, CONFIG, is_new=True), b"later")
    disks.kill()
    manager = await disks.loaded(A)
    assert await records(manager.get("t", 0)) == [b"later"]
    await manager.stop()


async def test_a_disk_that_fails_while_logs_are_compared_takes_its_directory_offline(disks: Disks) -> None:
    await write_epochs(disks, A, 0, 2)
    await write_epochs(disks, B, 0, 2, 5)
    disks.environment.disk.fail("read", f"{A}/t-0/*.log", errno.EIO, times=None)
    manager = await disks.loaded()
    assert manager.live_directories == [B]
    assert await records(manager.get("t", 0)) == [b"0", b"2", b"5"]
    await manager.stop()


async def test_a_damaged_log_is_not_chosen_between(disks: Disks) -> None:
    await write_epochs(disks, A, 0, 2)
    await write_epochs(disks, B, 0, 2, 5)
    files = disks.environment.file_system
    files.replace_file(f"{B}/t-0/{0:020}.log", bytes(files.size(f"{B}/t-0/{0:020}.log")))
    with pytest.raises(KafkaError, match="t-0 has two directories"):
        await disks.loaded()
    assert (disks.names(A), disks.names(B)) == (["t-0"], ["t-0"])


async def test_a_refused_start_sets_nothing_aside(disks: Disks) -> None:
    for directory, topic_id in ((A, FORMER), (B, LIVE)):
        await disks.write(directory, topic_id, b"x")
        await disks.write(directory, LIVE if directory == A else None, b"x", topic="u")
    files = disks.environment.file_system
    before = {directory: sorted(files.list_directory(directory)) for directory in (A, B)}
    with pytest.raises(KafkaError, match="u-0 has two directories") as caught:
        await disks.loaded()
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert f"high watermark 1; topic id {format_topic_id(LIVE)})" in caught.value.message
    assert "t-0" not in caught.value.message
    assert {directory: sorted(files.list_directory(directory)) for directory in (A, B)} == before
    assert ".kafka_cleanshutdown" in before[A]


@pytest.mark.parametrize("content", [None, b"", b"version: 0\ntopic_id: AAAA"])
async def test_a_log_whose_topic_id_is_torn_is_not_taken_for_a_former_topics(disks: Disks, content) -> None:
    await disks.write(A, FORMER, b"former")
    await disks.write(B, LIVE, b"new")
    files = disks.environment.file_system
    if content is None:
        files.remove(f"{B}/t-0/partition.metadata")
    else:
        files.replace_file(f"{B}/t-0/partition.metadata", content)
    files.remove(f"{B}/.kafka_cleanshutdown")  # The file is not torn by a clean stop.
    manager = await disks.loaded()
    assert await records(manager.get("t", 0)) == [b"new"]
    await manager.stop()


@pytest.mark.parametrize("operation", ["rename", "read"])
async def test_a_disk_that_fails_meanwhile_takes_its_directory_offline_and_no_other(disks: Disks, operation) -> None:
    await disks.write(A, FORMER, b"former")
    await disks.write(B, LIVE, b"new")
    disks.environment.disk.fail(operation, f"{A}/t-0*", errno.EIO, times=None)
    manager = await disks.loaded()
    assert manager.live_directories == [B]
    assert await records(manager.get("t", 0)) == [b"new"]
    await manager.stop()
    assert disks.failed == [A]
    disks.environment.disk.mend()
    assert disks.names(A) == ["t-0"]
    manager = await disks.loaded()
    assert await records(manager.get("t", 0)) == [b"new"]
    await manager.stop()


async def test_without_topic_ids_the_start_is_refused(disks: Disks) -> None:
    await disks.write(A, FORMER, b"former")
    await disks.write(B, LIVE, b"new")
    with pytest.raises(KafkaError, match="t-0 has two directories"):
        await disks.manager().load({})


def test_the_longest_names_are_cut() -> None:
    name = stray_directory_name("t" * 249, 99999, LIVE)
    assert len(name) == 255
    parsed = parse_directory_name(name)
    assert parsed is not None and parsed[1:] == (99999, "-stray")
