"""What a start does with the future logs that a killed process has left, as a table and on the disk."""

import asyncio
import errno
import random
from dataclasses import replace
from uuid import UUID

import pytest

from klamm.simulation.machine.disk import SimulatedFileSystem
from klamm.simulation.machine.process import Process
from klamm.storage.directories import directory_checkpoints, future_logs
from klamm.storage.directories.future_logs import Fate, PreferredDirectories, fates
from klamm.storage.directories.log_manager import LogManager
from klamm.storage.log.log_config import LogConfig
from klamm.storage.segments.checkpoints import write_offset_checkpoint
from klamm.storage.segments.log_directory import (
    MetaProperties,
    delete_directory_name,
    future_directory_name,
    parse_directory_name,
    unique_id,
)
from support.logs import DiskEnvironment, append, read_all

pytestmark = pytest.mark.loop("virtual")

A, B, C = "/disks/a", "/disks/b", "/disks/c"
ONE, TWO = UUID(int=1), UUID(int=2)
CONFIG = LogConfig(file_delete_delay_ms=50)
KEEP, PROMOTE, DROP = Fate.KEEP, Fate.PROMOTE, Fate.DROP


@pytest.mark.parametrize(
    ("found", "current", "all_online", "expected"),
    [
        # A copy that was interrupted continues.
        ([B], A, True, [KEEP]),
        ([B], A, False, [KEEP]),
        # The disk of the current log was replaced by an empty one, or is away.
        ([B], None, True, [PROMOTE]),
        ([B], None, False, [KEEP]),
        # Of two copies one is enough; a copy beside its log is none.
        ([B, C], A, True, [KEEP, DROP]),
        ([A], A, True, [DROP]),
        ([A, B], A, True, [DROP, KEEP]),
    ],
)
def test_the_fate_of_future_logs(found, current, all_online, expected):
    assert fates(found, current, all_online=all_online) == expected


def test_the_oldest_wish_for_a_directory_is_forgotten_first(monkeypatch):
    monkeypatch.setattr(future_logs, "MAX_PREFERRED", 2)
    preferred = PreferredDirectories()
    for partition, path in ((0, A), (1, A), (0, B), (2, C)):
        preferred.prefer(("t", partition), path)
    assert preferred.all == {("t", 0): B, ("t", 2): C}


class Fixture:
    """A log manager over three directories on one disk; t-0 has five records in A."""

    def __init__(self, seed=0):
        self.environment = DiskEnvironment(seed=seed)
        self.disk = self.environment.disk
        self.failures = []
        self.begin_process()

    @property
    def files(self):
        return self.environment.file_system

    async def start(self):
        self.manager = LogManager(
            self.environment,
            (A, B, C),
            meta_properties=MetaProperties("cluster", 1),
            default_config=CONFIG,
            on_directory_failure=lambda path, error: None,
            on_failure=self.failures.append,
        )
        await self.manager.load({})
        return self.manager

    async def begin(self):
        manager = await self.start()
        log = manager.get_or_create("t", 0, UUID(int=42), CONFIG, is_new=True)
        for number in range(5):
            append(log, b"%d" % number, leader_epoch=2)
        log.update_high_watermark(5)
        await log.flush()
        return log

    async def copy(self, count=5):
        """A future log in B with so many records."""
        log = self.manager.get("t", 0)
        assert log is not None
        future = self.manager.create_future(log, B)
        fetched = await log.read(0, 10_000, max_offset=count, minimum_one_batch=False)
        future.append_as_follower(fetched.data)
        await future.flush()
        return future

    def kill(self, *, machine=False):
        """The process dies, or the machine; what the process has still to do fails."""
        self.process.kill()
        self.failures.clear()
        self.disk.crash(lose_unsynced=machine)
        self.begin_process()

    def begin_process(self):
        self.process = Process("broker", "host")
        self.environment.file_system = SimulatedFileSystem(self.disk, self.process)

    async def until_renamed(self):
        for _ in range(100):
            if self.files.exists(f"{B}/t-0"):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(self.kinds())

    def kinds(self):
        """(directory, kind) of all that there is of t-0."""
        return [
            (path[-1], {"delete": "deleted", "future": "future"}.get(name.rpartition("-")[2], "current"))
            for path in (A, B, C)
            for name in self.files.list_directory(path)
            if name.startswith("t-0")
        ]


@pytest.fixture
def fixture():
    return Fixture()


async def test_a_future_log_continues_after_a_start(fixture):
    await fixture.begin()
    await fixture.copy(3)
    fixture.kill()
    manager = await fixture.start()
    assert fixture.kinds() == [("a", "current"), ("b", "future")]
    assert (manager.get("t", 0).log_end_offset, manager.future_logs["t", 0].log_end_offset) == (5, 3)
    await manager.stop()
    manager = await fixture.start()
    assert (manager.get("t", 0).log_end_offset, manager.future_logs["t", 0].log_end_offset) == (5, 3)
    assert fixture.files.read_file(f"{B}/recovery-point-offset-checkpoint") == b"0\n1\nt 0 3\n"
    await manager.stop()


async def test_a_log_whose_disk_was_replaced_continues_from_its_copy(fixture):
    await fixture.begin()
    await fixture.copy(3)
    fixture.kill()
    fixture.files.remove_tree(A)
    manager = await fixture.start()
    assert fixture.kinds() == [("b", "current")]
    assert await read_all(manager.get("t", 0)) == [(0, b"0"), (1, b"1"), (2, b"2")]
    assert manager.get("t", 0).topic_id == UUID(int=42)
    await manager.stop()


async def test_a_copy_waits_for_the_disk_of_its_log(fixture):
    await fixture.begin()
    await fixture.copy(3)
    fixture.kill()
    fixture.disk.fail("open", f"{A}/.lock", errno.EIO)
    manager = await fixture.start()
    assert manager.live_directories == [B, C]
    assert manager.get("t", 0) is None
    assert list(manager.future_logs) == [("t", 0)]
    fixture.kill()
    manager = await fixture.start()
    assert (manager.get("t", 0).log_end_offset, manager.future_logs["t", 0].log_end_offset) == (5, 3)
    await manager.stop()


async def test_a_promoted_log_is_current_although_the_former_disk_is_away(fixture):
    await fixture.begin()
    await fixture.copy()
    fixture.manager.promote_future("t", 0)
    fixture.kill()
    assert fixture.kinds() == [("a", "deleted"), ("b", "future")]
    fixture.disk.fail("open", f"{C}/.lock", errno.EIO)
    manager = await fixture.start()
    assert len(await read_all(manager.get("t", 0))) == 5
    assert fixture.files.is_directory(f"{B}/t-0")
    await manager.stop()


@pytest.mark.parametrize(
    ("unique", "kinds"),
    [
        (ONE, [("a", "deleted"), ("b", "current"), ("c", "deleted")]),
        (TWO, [("a", "deleted"), ("b", "future"), ("c", "deleted")]),
    ],
    ids=["its own", "of another log"],
)
async def test_only_garbage_of_its_log_shows_that_a_copy_is_complete(fixture, unique, kinds):
    """Another copy is of no use. The directory of the current log may be one that is offline."""
    await fixture.begin()
    await fixture.copy()
    fixture.kill()
    [name] = [name for name in fixture.files.list_directory(B) if name.endswith("-future")]
    fixture.files.rename(f"{B}/{name}", f"{B}/{future_directory_name('t', 0, ONE)}")
    fixture.files.rename(f"{A}/t-0", f"{A}/{delete_directory_name('t', 0, unique)}")
    fixture.files.make_directories(f"{C}/{future_directory_name('t', 0, UUID(int=3))}")
    if unique == TWO:
        fixture.disk.fail("open", f"{A}/meta.properties", errno.EIO)
    manager = await fixture.start()
    assert fixture.kinds() == kinds
    await manager.stop()


async def test_a_promoted_log_is_no_copy_of_an_older_log_whose_directory_is_back(fixture):
    """Which was there before the replica left the broker and came back."""
    await fixture.begin()
    await fixture.copy(3)
    future = fixture.manager.future_logs["t", 0]
    older = {
        name: fixture.files.read_file(f"{future.directory}/{name}")
        for name in fixture.files.list_directory(future.directory)
    }
    log = fixture.manager.get("t", 0)
    fetched = await log.read(3, 10_000, max_offset=5, minimum_one_batch=False)
    future.append_as_follower(fetched.data)
    await future.flush()
    fixture.manager.promote_future("t", 0)
    fixture.kill()
    assert fixture.kinds() == [("a", "deleted"), ("b", "future")]
    fixture.files.make_directories(f"{C}/t-0")
    for name, content in older.items():
        fixture.files.replace_file(f"{C}/t-0/{name}", content)
    manager = await fixture.start()
    assert [value for _, value in await read_all(manager.get("t", 0))] == [b"0", b"1", b"2", b"3", b"4"]
    assert not manager.future_logs
    await manager.stop()


async def test_garbage_stays_while_it_may_tell_of_a_promotion(fixture):
    await fixture.begin()
    await fixture.copy()
    fixture.manager.promote_future("t", 0)
    fixture.kill()
    fixture.disk.fail("open", f"{B}/.lock", errno.EIO)
    manager = await fixture.start()
    assert manager.get("t", 0) is None
    await manager.stop()
    fixture.kill()
    manager = await fixture.start()
    assert len(await read_all(manager.get("t", 0))) == 5
    await manager.stop()


async def test_a_record_that_is_synced_in_its_new_place_survives_the_death_of_the_machine():
    """Otherwise the former log would be the current one again."""
    for seed in range(20):
        fixture = Fixture(seed)
        log = await fixture.begin()
        await fixture.copy()
        for directory in (A, B):
            fixture.files.sync_directory(directory)
        log.config = replace(CONFIG, flush_messages=1)
        fixture.manager.future_logs["t", 0].config = log.config
        log = fixture.manager.promote_future("t", 0)
        append(log, b"5", leader_epoch=2)
        fixture.kill(machine=True)
        manager = await fixture.start()
        assert len(await read_all(manager.get("t", 0))) == 6, seed
        await manager.stop()


@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.ENOMEM])
async def test_a_rename_for_which_there_is_no_room_is_repeated(fixture, error_number):
    await fixture.begin()
    await fixture.copy()
    fixture.disk.fail("rename", f"{B}/*-future", error_number, times=3)
    log = fixture.manager.promote_future("t", 0)
    append(log, b"5", leader_epoch=2)
    await fixture.until_renamed()
    append(log, b"6", leader_epoch=2)
    assert [value for _, value in await read_all(log)] == [b"%d" % number for number in range(7)]
    await fixture.manager.stop()
    assert fixture.kinds() == [("a", "deleted"), ("b", "current")]
    manager = await fixture.start()
    assert len(await read_all(manager.get("t", 0))) == 7
    await manager.stop()


async def test_many_promotions_rewrite_the_checkpoints_a_few_times(fixture, monkeypatch):
    """Otherwise the checkpoint that a deletion of records waits for comes after those of all promotions."""
    manager = await fixture.start()
    logs = [manager.get_or_create("t", number, UUID(int=42), CONFIG, is_new=True) for number in range(30)]
    written = []
    write = write_offset_checkpoint
    monkeypatch.setattr(
        directory_checkpoints,
        "write_offset_checkpoint",
        lambda file_system, path, offsets: (written.append(path), write(file_system, path, offsets)),
    )
    for log in logs:
        manager.create_future(log, B if log.log_directory.path == A else A)
        manager.promote_future("t", log.partition)
    await asyncio.sleep(5)
    assert {log.directory for log in manager.logs.values()} == {
        f"{B if log.log_directory.path == A else A}/t-{log.partition}" for log in logs
    }
    assert len(written) <= 30
    await manager.stop()


@pytest.mark.parametrize("seed", range(6))
async def test_a_machine_that_dies_after_a_promotion_in_a_shortage_has_one_log(fixture, seed):
    fixture.disk.random = random.Random(seed)
    await fixture.begin()
    await fixture.copy()
    fixture.disk.fail("sync_directory", A, errno.EMFILE)
    run_blocking, is_renamed = fixture.environment.run_blocking, asyncio.Event()

    async def until_the_new_name_is_durable(function, *arguments):
        await run_blocking(function, *arguments)
        if function == fixture.files.sync_directory and arguments == (B,):
            is_renamed.set()
            raise OSError(errno.EIO, "the process is dead")

    fixture.environment.run_blocking = until_the_new_name_is_durable
    fixture.manager.promote_future("t", 0)
    await is_renamed.wait()
    fixture.environment.run_blocking = run_blocking
    fixture.process.kill()
    fixture.disk.crash(lose_unsynced=True)
    fixture.begin_process()
    manager = await fixture.start()
    assert len(await read_all(manager.get("t", 0))) == 5
    await manager.stop()


async def test_a_former_disk_that_fails_does_not_stop_the_promotion(fixture):
    await fixture.begin()
    await fixture.copy()
    fixture.disk.fail("sync_directory", A, errno.EIO)
    log = fixture.manager.promote_future("t", 0)
    await fixture.until_renamed()
    assert fixture.manager.live_directories == [B, C]
    append(log, b"5", leader_epoch=2)
    assert len(await read_all(log)) == 6
    await fixture.manager.stop()
    assert fixture.failures == []


async def test_a_deletion_leaves_neither_log(fixture):
    await fixture.begin()
    await fixture.copy(2)
    # A process that dies between the two renames leaves the current log, so that the deletion is repeated.
    renamed = []
    rename = fixture.files.rename
    fixture.files.rename = lambda source, target: (renamed.append(source), rename(source, target))
    assert fixture.manager.delete("t", 0)
    assert [path.rpartition("-")[2] for path in renamed if "t-0" in path] == ["future", "0"]
    assert fixture.kinds() == [("a", "deleted"), ("b", "deleted")]
    await fixture.manager.stop()


def test_names_of_future_logs():
    chance = random.Random(1)
    for _ in range(20):
        unique = UUID(int=chance.getrandbits(128))
        name = future_directory_name("a.b-1", 7, unique)
        assert parse_directory_name(name) == ("a.b-1", 7, "-future")
        assert unique_id(name) == unique
    assert unique_id("t-0") is None
