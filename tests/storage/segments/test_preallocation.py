"""`preallocate`: a new segment's file has the size of a whole segment, and is trimmed when the next one begins."""

import asyncio
import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from klamm.base.system_environment import SystemFileSystem
from klamm.storage.log.log_config import LogConfig
from support.logs import DIRECTORY, DiskEnvironment, append, open_log, read_all

SEGMENT_BYTES = 1000
CONFIG = LogConfig(segment_bytes=SEGMENT_BYTES, preallocate=True)


def file_bytes(environment: DiskEnvironment, base_offset: int) -> int:
    return environment.file_system.size(f"{DIRECTORY}/t-0/{base_offset:020d}.log")


async def started(environment: DiskEnvironment, **options):
    log = open_log(environment, CONFIG, **options)
    await log.preallocate()
    return log


async def test_a_segment_is_preallocated_and_trimmed_when_the_next_begins() -> None:
    environment = DiskEnvironment()
    log = await started(environment)
    assert file_bytes(environment, 0) == SEGMENT_BYTES
    append(log, b"a" * 400)
    append(log, b"b" * 300)
    assert (file_bytes(environment, 0), log.size_bytes) == (SEGMENT_BYTES, log.size_bytes)
    trimmed = log.size_bytes
    assert trimmed < SEGMENT_BYTES
    append(log, b"c" * 400)
    assert file_bytes(environment, 0) == trimmed
    await log.preallocate()
    assert file_bytes(environment, 2) == SEGMENT_BYTES
    assert [offset for offset, _ in await read_all(log)] == [0, 1, 2]
    await log.close()
    assert file_bytes(environment, 0) + file_bytes(environment, 2) == log.size_bytes
    # As in Kafka, a segment that is there is not preallocated again.
    assert open_log(environment, CONFIG, is_clean=True, recovery_point=3).log_end_offset == 3


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("machine", [False, True])
async def test_after_an_unclean_stop_the_zeros_behind_the_records_are_cut(flushed: bool, machine: bool) -> None:
    environment = DiskEnvironment()
    log = await started(environment)
    append(log, b"a")
    append(log, b"b")
    await log.flush()
    if not flushed:
        append(log, b"c")
    environment.disk.crash(lose_unsynced=machine)
    log = open_log(environment, CONFIG, recovery_point=log.recovery_point)
    assert log.log_end_offset in ((2, 3) if not flushed and machine else (2,) if flushed else (3,))
    assert file_bytes(environment, 0) == log.size_bytes < SEGMENT_BYTES
    append(log, b"d")
    assert [value for _, value in await read_all(log)][:2] == [b"a", b"b"]


async def test_a_sync_on_the_loop_counts_before_the_segment_is_preallocated() -> None:
    """The recovery point does not move until then."""
    environment = DiskEnvironment()
    log = open_log(environment, replace(CONFIG, flush_messages=1), is_clean=True)
    seen = []

    def meanwhile() -> None:
        append(log, b"a")
        seen.append((log.recovery_point, log.durability.syncs_on_loop))

    environment.before_blocking = meanwhile
    await log.preallocate()
    assert seen == [(0, 1)]


async def test_a_segment_that_is_full_before_it_is_preallocated_is_trimmed_afterwards() -> None:
    environment = DiskEnvironment()
    log = open_log(environment, CONFIG)

    def fill() -> None:
        append(log, b"a" * 800)
        append(log, b"b" * 800)
        assert file_bytes(environment, 1) > 0

    environment.before_blocking = fill
    await log.preallocate()
    first = log.size_bytes - file_bytes(environment, 1)
    assert file_bytes(environment, 0) == first < SEGMENT_BYTES
    assert [offset for offset, _ in await read_all(log)] == [0, 1]


async def test_the_recovery_point_stays_before_a_segment_that_is_being_preallocated() -> None:
    environment = DiskEnvironment()
    log = open_log(environment, CONFIG)
    append(log, b"a" * 800)
    append(log, b"b" * 100)
    assert log.segments.base_offsets == [0, 1]
    recovery_points = []

    def fill() -> None:
        append(log, b"c" * 800)
        log.durability.flush_now(0)
        recovery_points.append(log.recovery_point)

    environment.before_blocking = fill
    await log.preallocate()
    assert recovery_points == [1]
    await log.flush()
    assert log.recovery_point == 3


async def test_a_flush_waits_for_the_end_of_a_preallocation() -> None:
    environment = DiskEnvironment()
    log = open_log(environment, CONFIG)
    flushes = []

    def begin_to_flush() -> None:
        append(log, b"a")
        flushes.append(asyncio.ensure_future(log.flush()))

    environment.before_blocking = begin_to_flush
    await log.preallocate()
    await flushes[0]
    assert log.recovery_point == 1


async def test_a_disk_without_room_for_a_whole_segment_takes_records_all_the_same(caplog) -> None:
    environment = DiskEnvironment()
    log = open_log(environment, CONFIG)
    disk = environment.disk
    disk.capacity_bytes = disk.used_bytes() + 500
    await log.preallocate()
    assert file_bytes(environment, 0) == 0
    append(log, b"a" * 100)
    assert file_bytes(environment, 0) == log.size_bytes
    assert log.log_directory.is_online
    assert "is not preallocated" in caplog.text


async def test_a_truncation_of_a_preallocated_segment() -> None:
    environment = DiskEnvironment()
    log = await started(environment)
    append(log, b"a")
    append(log, b"b")
    log.truncate_to(1)
    append(log, b"c")
    assert [value for _, value in await read_all(log)] == [b"a", b"c"]
    await log.close()
    assert file_bytes(environment, 0) == log.size_bytes


def test_a_real_file_gets_its_blocks_and_keeps_its_content(tmp_path: Path) -> None:
    files = SystemFileSystem()
    path = str(tmp_path / "file")
    file = files.open(path, create=True)
    file.write(0, b"content")
    try:
        file.allocate(1 << 20)
    except OSError as error:
        # A file system that cannot allocate says so, and the file is as it was.
        assert error.errno == errno.EOPNOTSUPP
        assert file.size() == 7
    else:
        assert (file.size(), os.stat(path).st_blocks * 512 >= 1 << 20) == (1 << 20, True)
        file.allocate(1000)
        assert file.size() == 1 << 20
    assert file.read(0, 7) == b"content"
    file.close()
