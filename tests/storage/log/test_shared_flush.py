"""Flushes of a log: one at a time, shared by all that wait; and how far rolls of segments may run ahead of them."""

import asyncio
from collections import Counter

import pytest

from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.storage.directories.log_manager import LogManager
from klamm.storage.log import log as log_module
from klamm.storage.log.log_config import LogConfig
from klamm.storage.log.shared_flush import SharedFlush
from klamm.storage.segments.log_directory import MetaProperties
from support.logs import DiskEnvironment, append, open_log, read_all

pytestmark = pytest.mark.loop("virtual")

EVERY_BATCH = LogConfig(roll_bytes=1)
ROLLS = 400


class SlowDisk(DiskEnvironment):
    """Blocking work takes a while. Counts syncs, by file."""

    def __init__(self):
        super().__init__()
        self.synced = Counter()
        touched = self.disk.touched

        def counted(operation, path):
            if operation in ("sync", "sync_directory"):
                self.synced[path] += 1
            touched(operation, path)

        self.disk.touched = counted

    async def run_blocking(self, function, *arguments):
        await asyncio.sleep(0.001)
        return await super().run_blocking(function, *arguments)


async def managed(environment):
    manager = LogManager(
        environment,
        ["/disks/a"],
        meta_properties=MetaProperties("cluster", 1),
        default_config=EVERY_BATCH,
        on_directory_failure=lambda path, error: pytest.fail(f"{path}: {error}"),
        on_failure=lambda error: pytest.fail(str(error)),
    )
    await manager.load({})
    return manager, manager.get_or_create("t", 0, None, EVERY_BATCH)


@pytest.mark.parametrize("pause_s", [0, 0.0004])
async def test_each_file_is_synced_once_however_fast_segments_roll(pause_s):
    """Before, each roll synced all files of all rolls that were not synced yet: 309,043 times for 1,603 files."""
    environment = SlowDisk()
    manager, log = await managed(environment)
    for _ in range(ROLLS):
        append(log, b"x")
        await asyncio.sleep(pause_s)
    await manager.stop()
    sealed = [path for path in environment.synced if path.endswith(("log", "index", "snapshot"))]
    assert len(sealed) >= 4 * (ROLLS - 1)
    # The active segment of a flush may grow afterwards, and a segment gets its last index entry when it is closed.
    assert sum(environment.synced[path] for path in sealed) < 1.25 * len(sealed)


async def test_a_flush_counts_only_for_those_that_waited_before_it_began():
    flushes = SharedFlush()
    order = []

    async def flush():
        order.append("begins")
        await asyncio.sleep(1)
        order.append("ends")

    async def wait(name, delay_s):
        await asyncio.sleep(delay_s)
        await flushes.join(flush)
        order.append(name)

    await asyncio.gather(wait("first", 0), wait("late", 0.5), wait("also late", 0.6))
    assert order == ["begins", "ends", "first", "begins", "ends", "late", "also late"]


async def test_a_flush_that_fails_is_tried_again_for_those_that_waited_for_the_next_one():
    flushes = SharedFlush()
    outcomes = [KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no"), None]

    async def flush():
        await asyncio.sleep(1)
        error = outcomes.pop(0)
        if error is not None:
            raise error

    results = await asyncio.gather(*(flushes.join(flush) for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [KafkaError, type(None), type(None)]
    assert not outcomes


async def test_rolls_that_outrun_the_flushes_make_the_next_append_wait_for_one(monkeypatch):
    monkeypatch.setattr(log_module, "MAX_UNFLUSHED_SEGMENTS", 5)
    environment = SlowDisk()
    manager, log = await managed(environment)
    most = 0
    for _ in range(50):
        if log.must_prepare:
            await log.prepare_append()
        append(log, b"x")
        most = max(most, log.log_end_offset - log.recovery_point)
    assert most == 7  # the active segment, five that wait, and the roll that makes the sixth
    await manager.stop()


async def test_an_append_does_not_wait_when_a_flush_of_rolled_segments_fails():
    environment = SlowDisk()
    log = open_log(environment, EVERY_BATCH, is_clean=True)
    while not log.must_prepare:
        append(log, b"x")
    environment.disk.fail("open", "*.log", 24, times=None)  # no descriptor
    await log.prepare_append()
    assert log.must_prepare
    environment.disk.mend()
    append(log, b"y")
    await log.prepare_append()
    assert not log.must_prepare


async def test_records_appended_while_a_flush_writes_index_entries_are_not_below_the_recovery_point(monkeypatch):
    monkeypatch.setattr(log_module, "SEGMENTS_PER_SLICE", 1)
    environment = SlowDisk()
    log = open_log(environment, EVERY_BATCH, is_clean=True)
    for _ in range(5):
        append(log, b"x")
    flush = asyncio.ensure_future(log.flush())
    for _ in range(3):
        await asyncio.sleep(0)
        append(log, b"y")
    await flush
    assert (log.recovery_point, log.log_end_offset) == (5, 8)
    environment.disk.crash(lose_unsynced=True)
    again = open_log(environment, EVERY_BATCH, recovery_point=5)
    assert [value for _, value in await read_all(again)][:5] == [b"x"] * 5
