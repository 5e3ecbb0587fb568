"""Many logs are made durable with one sync of their file system: when the broker stops, and after it was killed."""

import asyncio
import errno

import pytest

from klamm.simulation.machine.disk import SimulatedFile, SimulatedFileSystem
from klamm.simulation.machine.process import Process
from klamm.storage.directories.log_manager import LogManager
from klamm.storage.directories.shared_sync import LOGS_PER_SHARED_SYNC
from klamm.storage.log.log_config import LogConfig
from klamm.storage.segments.log_directory import MetaProperties
from support.logs import DiskEnvironment, append, read_all

pytestmark = pytest.mark.loop("virtual")

DIRECTORY = "/data"
LOGS = LOGS_PER_SHARED_SYNC + 2
CONFIG = LogConfig(index_interval_bytes=0)


class Fixture:
    def __init__(self, monkeypatch):
        self.environment = DiskEnvironment()
        self.disk = self.environment.disk
        self.failed = []
        self.synced_files = []
        sync = SimulatedFile.sync

        def counted(file):
            self.synced_files.append(file.path)
            sync(file)

        monkeypatch.setattr(SimulatedFile, "sync", counted)

    async def load(self):
        manager = LogManager(
            self.environment,
            [DIRECTORY],
            meta_properties=MetaProperties("cluster", 1),
            default_config=CONFIG,
            on_directory_failure=lambda path, error: self.failed.append(path),
            on_failure=self.failed.append,
        )
        await manager.load({})
        return manager

    async def filled(self):
        manager = await self.load()
        for number in range(LOGS):
            log = manager.get_or_create("t", number, None, CONFIG)
            for value in (b"a", b"b", b"c"):
                append(log, value)
        return manager

    def crash(self, *, lose_unsynced):
        self.disk.crash(lose_unsynced=lose_unsynced)
        self.environment.file_system = SimulatedFileSystem(self.disk, Process("next", "host"))

    def is_clean(self):
        return self.environment.file_system.exists(f"{DIRECTORY}/.kafka_cleanshutdown")

    async def assert_complete(self):
        manager = await self.load()
        for number in range(LOGS):
            assert [value for _, value in await read_all(manager.get("t", number))] == [b"a", b"b", b"c"]


@pytest.fixture
def fixture(monkeypatch):
    return Fixture(monkeypatch)


async def test_a_stop_syncs_many_logs_at_once(fixture):
    """Before, a stop waited for the device for each of the seven files and directories of a log."""
    manager = await fixture.filled()
    fixture.synced_files.clear()
    await manager.stop()
    assert [path for path in fixture.synced_files if "/t-" in path] == []
    assert fixture.is_clean()
    fixture.crash(lose_unsynced=True)
    await fixture.assert_complete()


async def test_the_writes_of_a_killed_process_are_synced_at_once(fixture):
    await fixture.filled()
    fixture.crash(lose_unsynced=False)
    manager = await fixture.load()
    fixture.synced_files.clear()
    await manager._flush_recovered()
    assert [path for path in fixture.synced_files if "/t-" in path] == []
    assert all(not log.durability.has_unflushed for log in manager.logs.values())
    fixture.crash(lose_unsynced=True)
    await fixture.assert_complete()


async def test_where_the_system_cannot_sync_all_files_each_is_synced(fixture, monkeypatch):
    monkeypatch.setattr(SimulatedFileSystem, "sync_file_system", lambda *_: False)
    manager = await fixture.filled()
    await manager.stop()
    assert {path for path in fixture.synced_files if path.endswith(".log")} == {
        f"{DIRECTORY}/t-{number}/00000000000000000000.log" for number in range(LOGS)
    }
    assert fixture.is_clean()
    fixture.crash(lose_unsynced=True)
    await fixture.assert_complete()


async def test_what_is_written_during_the_sync_is_synced_later(fixture, monkeypatch):
    manager = await fixture.filled()
    log = manager.get("t", 3)
    sync = SimulatedFileSystem.sync_file_system

    def and_then_append(*arguments):
        done = sync(*arguments)
        append(log, b"late")
        return done

    monkeypatch.setattr(SimulatedFileSystem, "sync_file_system", and_then_append)
    await manager.stop()
    assert f"{log.directory}/00000000000000000000.log" in fixture.synced_files
    fixture.crash(lose_unsynced=True)
    again = await fixture.load()
    assert [value for _, value in await read_all(again.get("t", 3))] == [b"a", b"b", b"c", b"late"]


async def test_a_failed_sync_takes_the_directory_offline_and_leaves_no_clean_mark(fixture):
    manager = await fixture.filled()
    fixture.disk.fail("sync", f"{DIRECTORY}/t-5/*.log", errno.EIO)
    await manager.stop()
    await asyncio.sleep(0)
    assert fixture.failed == [DIRECTORY]
    assert not fixture.is_clean()
    assert manager.live_directories == []


async def test_a_checkpoint_that_fails_during_a_stop_leaves_no_clean_mark(fixture):
    """Before, the stop marked the directory as clean although it had just gone offline."""
    manager = await fixture.filled()
    fixture.disk.fail("sync", f"{DIRECTORY}/replication-offset-checkpoint.tmp", errno.EIO)
    await manager.stop()
    await asyncio.sleep(0)
    assert fixture.failed == [DIRECTORY]
    assert not fixture.is_clean()


async def test_a_stop_that_is_short_of_descriptors_syncs_each_log(fixture, monkeypatch):
    def short(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(SimulatedFileSystem, "sync_file_system", short)
    manager = await fixture.filled()
    await manager.stop()
    assert fixture.is_clean()
    fixture.crash(lose_unsynced=True)
    await fixture.assert_complete()
