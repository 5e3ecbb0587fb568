"""Partitions with logs in two directories at a start: which one stays, and what is changed on the disks."""

import errno
from uuid import UUID

import pytest

from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.simulation.disk import SimulatedFileSystem
from klamm.simulation.process import Process
from klamm.storage.duplicate_logs import LiveTopic, log_to_keep
from klamm.storage.log import Log
from klamm.storage.log_config import LogConfig
from klamm.storage.log_directory import (
    MetaProperties,
    format_topic_id,
    parse_directory_name,
    stray_directory_name,
)
from klamm.storage.log_manager import LogManager
from support.logs import DiskEnvironment, append, read_all

pytestmark = pytest.mark.loop("virtual")

A, B = "/disks/a", "/disks/b"
LIVE, FORMER, OLDER = (UUID(int=number) for number in (42, 41, 40))
CONFIG = LogConfig(segment_bytes=1000, file_delete_delay_ms=50)

HAS_ID, HAS_NONE, IS_GONE = LiveTopic(True, LIVE), LiveTopic(True, None), LiveTopic(False, None)


@pytest.mark.parametrize(
    ("found", "topic", "kept"),
    [
        ([FORMER, LIVE], HAS_ID, 1),
        ([LIVE, FORMER], HAS_ID, 0),
        ([FORMER, LIVE, FORMER], HAS_ID, 1),
        ([FORMER, None], HAS_ID, 1),
        ([LIVE, LIVE], HAS_ID, None),
        ([LIVE, None], HAS_ID, None),
        ([None, None], HAS_ID, None),
        ([FORMER, LIVE, LIVE], HAS_ID, None),
        ([FORMER, OLDER], HAS_ID, 0),
        ([FORMER, FORMER], HAS_ID, None),
        ([OLDER, FORMER, FORMER], HAS_ID, None),
        ([FORMER, LIVE], HAS_NONE, None),
        ([FORMER, FORMER], HAS_NONE, None),
        ([None, None], HAS_NONE, None),
        ([FORMER, OLDER], IS_GONE, 0),
        ([FORMER, FORMER], IS_GONE, None),
        ([FORMER, None], IS_GONE, None),
        ([None, None], IS_GONE, None),
    ],
)
def test_the_log_that_stays(found: list[UUID | None], topic: LiveTopic, kept: int | None) -> None:
    assert log_to_keep(found, topic) == kept


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

    async def topic_ids(self, names: list[str]) -> dict[str, UUID | None]:
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
        self.environment.disk.crash(lose_unsynced=True)
        self.environment.file_system = SimulatedFileSystem(self.environment.disk, Process("next", "host"))


def _raise_it(*reasons: object) -> None:
    raise AssertionError(reasons)


@pytest.fixture
def disks() -> Disks:
    return Disks()


async def records(log: Log | None) -> list[bytes]:
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


async def test_a_refused_start_sets_nothing_aside(disks: Disks) -> None:
    for directory, topic_id in ((A, FORMER), (B, LIVE)):
        await disks.write(directory, topic_id, b"x")
        await disks.write(directory, LIVE, b"x", topic="u")
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
