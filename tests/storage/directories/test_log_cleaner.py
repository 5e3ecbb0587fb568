"""The log cleaner beside a log manager: which logs it cleans, what it checkpoints, what stops it."""

import asyncio
import errno
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest

from klamm.base.environment import WorkerFailed
from klamm.base.metrics import Metrics
from klamm.protocol.record.records import Record, build_batch
from klamm.simulation.machine.disk import SimulatedFileSystem
from klamm.simulation.machine.process import Process
from klamm.storage.directories import log_cleaner
from klamm.storage.directories.log_cleaner import CleanerSettings, _Cleaner, clean_at_rate
from klamm.storage.directories.log_manager import LogManager, LogManagerSettings
from klamm.storage.log.job import CleaningProgress, CleaningResult, CleaningStatistics
from klamm.storage.log.log_config import LogConfig
from klamm.storage.segments.checkpoints import write_offset_checkpoint
from klamm.storage.segments.log_directory import MetaProperties
from support.logs import NOW_MS, DiskEnvironment
from support.metrics import values

pytestmark = pytest.mark.loop("virtual")

A, B = "/disks/a", "/disks/b"
COMPACT = LogConfig(
    segment_bytes=300, index_interval_bytes=50, cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.01
)
CHECKPOINT = "cleaner-offset-checkpoint"
# A record with a key of one byte and a value of up to four bytes: three of them fill a segment.
BACKOFF_S = 15


class Machine:
    def __init__(self) -> None:
        self.environment = DiskEnvironment()
        self.failed: list[str] = []

    def manager(self, *directories: str, config: LogConfig = COMPACT, **cleaner) -> LogManager:
        return LogManager(
            self.environment,
            directories or (A,),
            meta_properties=MetaProperties("cluster-1", 7),
            default_config=config,
            settings=LogManagerSettings(),
            cleaner_settings=CleanerSettings(**{"dedupe_buffer_bytes": 1 << 20, **cleaner}),
            on_directory_failure=lambda path, error: self.failed.append(path),
            on_failure=lambda error: (_ for _ in ()).throw(AssertionError(error)),
        )

    async def started(self, *directories: str, **options) -> LogManager:
        manager = self.manager(*directories, **options)
        await manager.load({})
        manager.start()
        return manager

    def kill(self) -> None:
        self.environment.disk.crash(lose_unsynced=False)
        self.environment.file_system = SimulatedFileSystem(self.environment.disk, Process("next", "host"))

    def checkpoint(self, directory: str = A) -> list[str]:
        path = f"{directory}/{CHECKPOINT}"
        if not self.environment.file_system.exists(path):
            return []
        return self.environment.file_system.read_file(path).decode().split("\n")[2:-1]


@pytest.fixture
def machine() -> Machine:
    return Machine()


def put(log, *pairs: str, epoch: int = 0) -> None:
    """Appends one batch for each "key=value"; "key=" is a tombstone. All are committed."""
    for pair in pairs:
        key, _, value = pair.partition("=")
        record = Record(key.encode(), value.encode() or None, NOW_MS)
        log.append_as_leader(build_batch([record]), epoch, now_ms=NOW_MS)
    log.update_high_watermark(log.log_end_offset)


def make(manager, topic: str = "t", partition: int = 0, config: LogConfig = COMPACT):
    return manager.get_or_create(topic, partition, None, config)


async def fill(log, keys: str = "abc", times: int = 4) -> None:
    """Values of each key again and again, until several segments are closed and on the disk."""
    for number in range(times):
        put(log, *(f"{key}={number}" for key in keys))
    await log.flush()


async def pairs(log) -> list[str]:
    found = []
    position = log.log_start_offset
    while position < log.log_end_offset:
        fetched = await log.read(position, 1_000_000, max_offset=log.log_end_offset, minimum_one_batch=True)
        from klamm.protocol.record.record_batch import iterate_batches
        from klamm.protocol.record.records import decode_records

        for at, header in iterate_batches(fetched.data):
            for record in decode_records(fetched.data, at, header):
                found.append(f"{record.offset}:{(record.key or b'').decode()}={(record.value or b'').decode()}")
        position = fetched.next_offset
    return found


async def a_round() -> None:
    await asyncio.sleep(BACKOFF_S + 1)


async def test_a_dirty_log_is_cleaned_and_its_first_dirty_offset_checkpointed(machine) -> None:
    manager = await machine.started()
    log = make(manager)
    await fill(log)
    assert machine.checkpoint() == []
    active = log.segments.base_offsets[-1]
    await a_round()
    found = await pairs(log)
    assert found[-3:] == ["9:a=3", "10:b=3", "11:c=3"]
    assert len(found) < 12
    # Of the records below the active segment, only the last of each key is left.
    closed = [text for text in found if int(text.partition(":")[0]) < active]
    assert len({text.partition(":")[2][0] for text in closed}) == len(closed)
    assert machine.checkpoint() == [f"t 0 {active}"]
    assert log.first_dirty_offset == active
    await manager.stop()


async def test_what_is_clean_is_not_cleaned_again_after_a_restart(machine) -> None:
    manager = await machine.started()
    await fill(make(manager))
    await a_round()
    first_dirty = manager.get("t", 0).first_dirty_offset
    for end in ("stop", "kill"):
        if end == "stop":
            await manager.stop()
        else:
            await manager.cleaner.stop()
            machine.kill()
        machine.environment.worked.clear()
        manager = await machine.started()
        assert manager.get("t", 0).first_dirty_offset == first_dirty
        await a_round()
        assert machine.environment.worked == []
    await manager.stop()


async def test_the_dirtiest_log_comes_first_and_logs_below_their_ratio_never(machine, caplog) -> None:
    caplog.set_level("INFO", logger=log_cleaner.__name__)
    manager = await machine.started()
    half = replace(COMPACT, min_cleanable_dirty_ratio=0.99)
    clean, dirty, never = make(manager, "clean"), make(manager, "dirty"), make(manager, "never", config=half)
    await fill(clean, times=12)
    await fill(never, times=12)
    clean.first_dirty_offset = clean.segments.base_offsets[-3]
    never.first_dirty_offset = never.segments.base_offsets[-3]
    await fill(dirty)
    plain = make(manager, "plain", config=LogConfig(segment_bytes=300))
    await fill(plain)
    await a_round()
    cleaned = [line for line in caplog.text.split("\n") if "cleaned log" in line]
    assert [line.split("cleaned log ")[1].split()[0] for line in cleaned] == ["dirty-0", "clean-0"]
    assert len(await pairs(plain)) == 12
    await manager.stop()


async def test_a_checkpoint_beyond_the_log_is_reset_with_a_warning_before_the_log_grows(machine, caplog) -> None:
    manager = await machine.started()
    log = make(manager)
    await fill(log)
    await manager.stop()
    machine.environment.file_system.replace_file(f"{A}/{CHECKPOINT}", b"0\n2\nt 0 1000\ngone 3 5\n")
    manager = machine.manager()
    await manager.load({})
    assert "which is larger than the log end offset 12. Resetting to the log start offset 0." in caplog.text
    assert manager.get("t", 0).first_dirty_offset == 0
    # The log of gone-3 is not here.
    assert machine.checkpoint() == ["t 0 0"]
    manager.start()
    await a_round()
    assert machine.checkpoint() == [f"t 0 {log.segments.base_offsets[-1]}"]
    await manager.stop()


async def test_a_truncation_lowers_the_checkpoint_to_the_start_of_the_segment_that_is_written_next(machine) -> None:
    manager = await machine.started()
    log = make(manager)
    await fill(log, times=8)
    await a_round()
    first_dirty = log.first_dirty_offset
    log.truncate_to(log.log_end_offset - 1)
    await asyncio.sleep(0.1)
    assert machine.checkpoint() == [f"t 0 {first_dirty}"]
    log.truncate_to(first_dirty - 2)
    assert log.first_dirty_offset == log.segments.base_offsets[-1] < first_dirty
    await asyncio.sleep(0.1)
    assert machine.checkpoint() == [f"t 0 {log.first_dirty_offset}"]
    await manager.stop()


async def test_a_deleted_log_leaves_the_checkpoint_and_a_moved_one_takes_its_entry_along(machine) -> None:
    manager = await machine.started(A, B)
    deleted, moved = make(manager, "deleted"), make(manager, "moved")
    source, target = moved.log_directory.path, deleted.log_directory.path
    assert source != target
    for log in (deleted, moved):
        await fill(log)
    await a_round()
    entry = f"moved 0 {moved.first_dirty_offset}"
    assert (machine.checkpoint(source), len(machine.checkpoint(target))) == ([entry], 1)
    manager.delete("deleted", 0)
    await asyncio.sleep(0.1)
    assert machine.checkpoint(target) == []

    future = manager.create_future(moved, target)
    while future.log_end_offset < moved.log_end_offset:
        end = moved.log_end_offset
        fetched = await moved.read(future.log_end_offset, 1_000, max_offset=end, minimum_one_batch=True)
        future.append_as_follower(fetched.data)
    await future.flush()
    manager.promote_future("moved", 0)
    await asyncio.sleep(1)
    assert (machine.checkpoint(source), machine.checkpoint(target)) == ([], [entry])
    await manager.stop()


async def test_a_log_that_is_being_moved_is_not_cleaned(machine) -> None:
    manager = await machine.started(A, B)
    log = make(manager)
    await fill(log)
    manager.create_future(log, B if log.log_directory.path == A else A)
    await a_round()
    assert len(await pairs(log)) == 12
    manager.delete_future("t", 0)
    await a_round()
    assert len(await pairs(log)) < 12
    await manager.stop()


class Held:
    """A cleaning that goes on until `release` is set."""

    def __init__(self, machine: Machine) -> None:
        self.begun, self.release = asyncio.Event(), asyncio.Event()
        self.cancelled = 0
        self.run = machine.environment.run_in_background
        machine.environment.run_in_background = self.run_in_background

    async def run_in_background(self, work, *arguments):
        result = await self.run(work, *arguments)
        self.begun.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return result


@pytest.mark.parametrize("change", ["truncate", "truncate fully", "delete", "move"])
async def test_a_change_of_the_log_aborts_its_cleaning(machine, change) -> None:
    manager = await machine.started(A, B)
    log = make(manager)
    await fill(log)
    held = Held(machine)
    await asyncio.wait_for(held.begun.wait(), 120)
    if change == "truncate":
        log.truncate_to(5)
    elif change == "truncate fully":
        log.truncate_fully_and_start_at(100)
    elif change == "delete":
        manager.delete("t", 0)
    else:
        manager.create_future(log, B if log.log_directory.path == A else A)
    await asyncio.sleep(0.1)
    assert (held.cancelled, log.first_dirty_offset) == (1, None)
    assert not manager.cleaner.is_cleaning(log)
    assert manager.cleaner.uncleanable == []
    if change == "truncate":
        assert len(await pairs(log)) == 5
    held.release.set()
    await manager.stop()


async def test_a_log_that_cannot_be_cleaned_is_marked_and_stops_no_other(machine, caplog) -> None:
    manager = await machine.started()
    bad, good = make(manager, "bad"), make(manager, "good")
    for log in (bad, good):
        await fill(log)
    file = machine.environment.file_system.open(f"{bad.directory}/{0:020d}.log")
    file.write(68, b"\xff")
    await a_round()
    ((key, directory, reason),) = manager.cleaner.uncleanable
    assert (key, directory) == (("bad", 0), A)
    assert reason
    assert "Marking its partition (bad-0) as uncleanable" in caplog.text
    assert machine.checkpoint() == [f"good 0 {good.first_dirty_offset}"]
    metrics = Metrics()
    manager.cleaner.register(metrics)
    read = {metric.name.name: values(metric) for metric in metrics}
    assert read["uncleanable-partitions-count"] == {A: 1}
    assert read["uncleanable-bytes"][A] > 0
    assert read["max-dirty-percent"][""] >= 0
    assert 0 < read["cleaner-recopy-percent"][""] < 100
    # A new partition of this name is another one.
    manager.delete("bad", 0)
    assert manager.cleaner.uncleanable == []
    await manager.stop()


class Killer:
    """Kills the processes that clean logs of `topics`: `tries` are the topics of all that have begun."""

    def __init__(self, machine) -> None:
        self.topics: set[str] = set()
        self.tries: list[str] = []
        self._run = machine.environment.run_in_background
        machine.environment.run_in_background = self._run_or_die

    async def _run_or_die(self, work, job, *arguments):
        topic = job.directory.rpartition("/")[2].rpartition("-")[0]
        self.tries.append(topic)
        if topic in self.topics:
            raise WorkerFailed("killed")
        return await self._run(work, job, *arguments)


async def test_a_process_that_dies_is_followed_by_another(machine) -> None:
    manager = await machine.started()
    log = make(manager)
    await fill(log)
    metrics = Metrics()
    manager.cleaner.register(metrics)
    dead = next(metric for metric in metrics if metric.name.name == "DeadThreadCount")
    killer = Killer(machine)
    killer.topics = {log.topic}
    # Each process dies, so it is not the log that kills them.
    for _ in range(log_cleaner.MAX_PROCESS_DEATHS + 2):
        await a_round()
        assert (dead.read(), manager.cleaner.uncleanable) == ({"": 1}, [])
    killer.topics.clear()
    await a_round()
    assert (len(await pairs(log)) < 12, dead.read(), manager.cleaner.uncleanable) == (True, {"": 0}, [])
    await manager.stop()


async def test_a_log_whose_process_dies_while_other_logs_are_cleaned_is_to_blame(machine) -> None:
    manager = await machine.started()
    bad, good = make(manager, "bad"), make(manager, "good")
    killer = Killer(machine)
    killer.topics = {"bad"}
    await fill(bad)
    for _ in range(log_cleaner.MAX_PROCESS_DEATHS):
        assert manager.cleaner.uncleanable == []
        await fill(good)
        before = good.first_dirty_offset or 0
        await a_round()
        # The log that is dirtier, and dies first, holds no other up.
        assert good.first_dirty_offset > before
    assert [partition.reason for partition in manager.cleaner.uncleanable] == [
        "the process that cleaned it died 3 times in a row, and other logs were cleaned in between"
    ]
    tries = killer.tries.count("bad")
    await a_round()
    await a_round()
    assert killer.tries.count("bad") == tries
    await manager.stop()


async def test_a_cleaner_whose_cleaning_was_just_aborted_stops_with_the_broker(machine) -> None:
    manager = await machine.started()
    log = make(manager)
    await fill(log)
    held = Held(machine)
    await asyncio.wait_for(held.begun.wait(), 120)
    log.truncate_to(5)
    await asyncio.wait_for(manager.stop(), 120)


async def test_memory_without_room_for_a_key_is_no_fault_of_the_program(machine) -> None:
    manager = await machine.started(dedupe_buffer_load_factor=1e-9)
    await fill(make(manager))
    await a_round()
    ((_, _, reason),) = manager.cleaner.uncleanable
    assert "has no room for a single key; log.cleaner.dedupe.buffer.size must be larger" in reason
    await manager.stop()


async def test_a_change_of_the_settings_starts_the_cleaners_anew(machine) -> None:
    manager = await machine.started(threads=0)
    log = make(manager)
    await fill(log)
    await a_round()
    assert machine.environment.worked == []
    held = Held(machine)
    manager.cleaner.reconfigure(CleanerSettings(dedupe_buffer_bytes=1 << 20))
    await asyncio.wait_for(held.begun.wait(), 120)
    assert manager.cleaner.is_cleaning(log)
    manager.cleaner.reconfigure(CleanerSettings(dedupe_buffer_bytes=1 << 20, max_bytes_per_second=1e9))
    held.release.set()
    await a_round()
    assert held.cancelled == 1
    assert len(await pairs(log)) < 12
    await manager.stop()


async def test_nothing_is_cleaned_while_the_cleaner_is_disabled(machine) -> None:
    manager = await machine.started(is_enabled=False)
    log = make(manager)
    await fill(log)
    await a_round()
    manager.cleaner.reconfigure(CleanerSettings(is_enabled=False, threads=4))
    await a_round()
    assert (len(await pairs(log)), machine.environment.worked) == (12, [])
    await manager.stop()


async def test_a_log_with_both_policies_is_compacted_and_loses_old_segments_but_not_while_it_is_cleaned(
    machine,
) -> None:
    both = replace(COMPACT, cleanup_policy=("compact", "delete"), retention_ms=3_600_000)
    manager = await machine.started(config=both)
    log = make(manager, config=both)
    await fill(log)
    held = Held(machine)
    await asyncio.wait_for(held.begun.wait(), 120)
    machine.environment.clock_ms += 3_600_001
    # Retention comes after 30 s, and again every five minutes.
    await asyncio.sleep(400)
    assert log.log_start_offset == 0
    held.release.set()
    await asyncio.sleep(1)
    assert log.log_start_offset == log.log_end_offset == 12
    await manager.stop()


async def test_retention_deletes_old_segments_of_a_compacted_log_without_the_cleaner_too(machine) -> None:
    both = replace(COMPACT, cleanup_policy=("compact", "delete"), retention_ms=3_600_000)
    manager = await machine.started(config=both, is_enabled=False)
    log = make(manager, config=both)
    await fill(log)
    machine.environment.clock_ms += 3_600_001
    await asyncio.sleep(60)
    assert log.log_start_offset == log.log_end_offset == 12
    await manager.stop()


def test_steps_take_as_long_as_the_rate_demands(monkeypatch) -> None:
    statistics = CleaningStatistics(map_bytes_read=1_000, bytes_read=500, bytes_written=200)
    result = CleaningResult((), 7, statistics)

    def three_steps(job, file_system, kernel_type):
        yield CleaningProgress(1_000, True)
        yield CleaningProgress(500, False)
        return result

    monkeypatch.setattr(log_cleaner, "clean", three_steps)
    nothing: Any = None
    steps = clean_at_rate(nothing, nothing, 2_000, False)
    assert [next(steps), next(steps), next(steps)] == [0.5, 0.25, 0.1]
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value is result
    assert next(clean_at_rate(nothing, nothing, float("inf"), False)) == 0


# Four records fill a segment; of each, the last one leaves, and two segments do not fit into one.
EACH_SEGMENT_ENDS_WITH_X = "abcxdefxghixjklx"
DELETE = replace(COMPACT, cleanup_policy=("delete",))


async def killed_with_gaps_between_segments(machine, manager) -> list[str]:
    log = make(manager)
    await fill(log, EACH_SEGMENT_ENDS_WITH_X, times=1)
    log.roll()
    await a_round()
    found = await pairs(log)
    assert log.segments.base_offsets[:3] == [0, 4, 8]
    assert [pair.split(":")[0] for pair in found[:4]] == ["0", "1", "2", "4"]
    await manager.cleaner.stop()
    machine.kill()
    return found


async def pairs_without_compaction(machine) -> list[str]:
    manager = await machine.started(config=DELETE)
    found = await pairs(make(manager, config=DELETE))
    await manager.stop()
    return found


async def test_after_a_kill_no_gap_of_a_log_that_is_no_longer_compacted_ends_it(machine) -> None:
    expected = await killed_with_gaps_between_segments(machine, await machine.started())
    assert await pairs_without_compaction(machine) == expected


async def test_a_kill_between_the_swap_and_the_checkpoint_loses_no_record_of_such_a_log(machine) -> None:
    manager = await machine.started()
    manager.cleaner._checkpoint = lambda log: asyncio.Event().wait()
    expected = await killed_with_gaps_between_segments(machine, manager)
    assert machine.checkpoint() == []
    assert await pairs_without_compaction(machine) == expected


async def test_without_recovery_points_the_first_dirty_offset_tells_that_a_log_was_compacted(machine) -> None:
    expected = await killed_with_gaps_between_segments(machine, await machine.started())
    machine.environment.file_system.replace_file(f"{A}/recovery-point-offset-checkpoint", b"torn")
    assert machine.checkpoint() == ["t 0 12"]
    assert await pairs_without_compaction(machine) == expected


async def test_a_log_for_which_the_disk_has_no_room_keeps_no_other_log_from_being_cleaned(machine) -> None:
    manager = await machine.started()
    large, small = make(manager, "large"), make(manager, "small")
    await fill(large, times=12)
    await fill(small, "abcdefgh")
    machine.environment.disk.fail("write", "*/large-0/*.cleaned", errno.ENOSPC, times=None)
    await a_round()
    assert (large.first_dirty_offset, machine.failed) == (None, [])
    assert small.first_dirty_offset == small.segments.base_offsets[-1]
    machine.environment.disk.mend()
    await a_round()
    assert large.first_dirty_offset == large.segments.base_offsets[-1]
    await manager.stop()


async def test_a_vanished_file_of_a_cleaning_does_not_take_the_log_directory_offline(machine) -> None:
    manager = await machine.started()
    log = make(manager)
    await fill(log)
    machine.environment.disk.fail("set_modified_time_ms", "*.cleaned", errno.ENOENT)
    await a_round()
    await a_round()
    assert (machine.failed, manager.cleaner.uncleanable) == ([], [])
    assert log.first_dirty_offset == log.segments.base_offsets[-1]
    await manager.stop()


async def test_a_checkpoint_whose_writer_is_cancelled_is_over_before_the_next_one_begins(machine) -> None:
    manager = await machine.started()
    run, under_way, most, release = machine.environment.run_blocking, 0, 0, asyncio.Event()

    async def slow(function, *arguments):
        nonlocal under_way, most
        if function is not write_offset_checkpoint:
            return await run(function, *arguments)
        under_way += 1
        most = max(most, under_way)
        await release.wait()
        under_way -= 1
        return await run(function, *arguments)

    machine.environment.run_blocking = slow
    first = asyncio.ensure_future(manager.checkpoint_recovery_points())
    await asyncio.sleep(0.1)
    first.cancel()
    second = asyncio.ensure_future(manager.checkpoint_recovery_points())
    await asyncio.sleep(0.1)
    release.set()
    assert await asyncio.gather(first, second, return_exceptions=True) == [ANY, None]
    assert (first.cancelled(), most) == (True, 1)
    await manager.stop()


async def test_timestamps_of_very_many_segments_are_read_in_slices(machine) -> None:
    config = replace(COMPACT, segment_bytes=100, min_compaction_lag_ms=1, max_compaction_lag_ms=1_000)
    manager = await machine.started(config=config)
    await fill(make(manager, config=config), times=3 * log_cleaner.LOGS_PER_SLICE)
    await manager.stop()
    manager = machine.manager(config=config)
    await manager.load({})
    machine.environment.clock_ms += 10_000
    system, opened, most = machine.environment.file_system, 0, 0
    opens = system.open

    def counted(path, **options):
        nonlocal opened, most
        opened += 1
        most = max(most, opened)
        return opens(path, **options)

    async def serve_others() -> None:
        nonlocal opened
        while True:
            opened = 0
            await asyncio.sleep(0)

    others = asyncio.ensure_future(serve_others())
    system.open = counted
    cleaner = manager.cleaner
    assert await cleaner._choose(_Cleaner(0)) is not None
    others.cancel()
    assert log_cleaner.LOGS_PER_SLICE <= most <= 3 * log_cleaner.LOGS_PER_SLICE
    await manager.stop()
