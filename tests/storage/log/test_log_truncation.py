"""Truncation, retention, the log start offset and flushing."""

import errno
from uuid import UUID

import pytest

from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.records import ControlRecordType
from klamm.storage.log import truncation
from klamm.storage.log.log import AppendOrigin, Oddity
from klamm.storage.log.log_config import LogConfig
from support.logs import DIRECTORY, NOW_MS, DiskEnvironment, aborted_in, append, marker, open_log, read_all

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=150)


class Killed(Exception):
    """The process ends here."""


@pytest.fixture
def environment():
    return DiskEnvironment()


@pytest.fixture
def log(environment):
    """100 batches of one record in several segments, three epochs."""
    log = open_log(environment, SMALL)
    for i in range(100):
        append(log, b"%d" % i, timestamp_ms=NOW_MS + i, leader_epoch=i // 40)
    log.update_high_watermark(100)
    return log


ALL = [(i, b"%d" % i) for i in range(100)]


@pytest.mark.parametrize("offset", [0, 1, 13, 50, 99])
async def test_truncating(environment, log, offset):
    assert log.truncate_to(offset)
    assert (log.log_end_offset, log.high_watermark) == (offset, offset)
    assert await read_all(log, max_bytes=300) == ALL[:offset]
    assert all(start < offset for _, start in log.leader_epochs.entries)
    assert log._host.truncated == 1
    assert append(log, b"next", leader_epoch=9).first_offset == offset
    assert await read_all(open_log(environment, SMALL)) == [*ALL[:offset], (offset, b"next")]


def test_truncating_behind_the_end_only_drops_an_epoch_without_records(log):
    log.leader_epochs.assign(7, 100)
    assert not log.truncate_to(100)
    assert not log.truncate_to(500)
    assert log.leader_epochs.latest_epoch == 2
    assert log.log_end_offset == 100


async def test_truncating_within_a_batch_removes_all_of_it(environment):
    log = open_log(environment, SMALL)
    append(log, b"a")
    append(log, b"b", b"c", b"d")
    log.truncate_to(3)
    assert log.log_end_offset == 1
    assert await read_all(log) == [(0, b"a")]


async def test_truncating_moves_the_recovery_point_back(log):
    await log.flush()
    assert log.recovery_point == 100
    log.truncate_to(30)
    assert log.recovery_point == 30


async def test_a_truncation_while_a_flush_is_under_way(environment, log):
    environment.before_blocking = lambda: log.truncate_to(30)
    await log.flush()
    assert log.recovery_point == 0
    assert not log.failures
    append(log, b"x")
    assert log.recovery_point == 30


async def test_an_append_after_a_sync_that_failed_does_not_sync_on_the_loop(environment, log, monkeypatch):
    log.truncate_to(30)
    environment.disk.fail("write", "*index", errno.ENOSPC, times=None)
    await log.prepare_append()
    environment.disk.mend()
    with monkeypatch.context() as patched, pytest.raises(KafkaError) as refused:
        patched.setattr(type(log), "_flush_now", lambda *_, **__: pytest.fail("it syncs on the loop"))
        append(log, b"refused")
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    await log.prepare_append()
    append(log, b"taken")
    assert log.recovery_point == 30
    assert (await read_all(log))[30:] == [(30, b"taken")]


async def test_appends_while_a_flush_is_under_way_are_not_promised(environment, log):
    environment.before_blocking = lambda: append(log, b"later")
    await log.flush()
    assert log.recovery_point == 100
    environment.disk.crash(lose_unsynced=True)
    assert (await read_all(open_log(environment, SMALL)))[:100] == ALL


def test_truncating_forgets_producers_and_transactions(environment):
    log = open_log(environment, SMALL)
    header = {"producer_id": 5, "producer_epoch": 0, "is_transactional": True}
    append(log, b"a", base_sequence=0, **header)
    append(log, b"b", base_sequence=1, **header)
    log.append_as_leader(marker(ControlRecordType.ABORT, 5), 0, origin=AppendOrigin.COORDINATOR, now_ms=NOW_MS)
    log.update_high_watermark(3)
    assert (log.last_stable_offset, aborted_in(log, 0, 3)) == (3, [(5, 0)])
    log.truncate_to(2)
    assert (log.last_stable_offset, aborted_in(log, 0, 3)) == (0, [])
    log.truncate_to(1)
    assert log.producer_state.entries[5].last_sequence == 0
    log.truncate_to(0)
    assert not log.producer_state.entries
    assert log.last_stable_offset == 0


async def test_starting_anew(environment, log):
    log.truncate_fully_and_start_at(500)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (500, 500, 500)
    assert not log.leader_epochs.entries
    assert append(log, b"x").first_offset == 500
    assert environment.file_system.list_directory(f"{DIRECTORY}/t-0")[0] == f"{500:020d}.index"
    again = open_log(environment, SMALL)
    assert await read_all(again) == [(500, b"x")]
    again.truncate_to(3)
    assert (again.log_start_offset, again.log_end_offset) == (3, 3)


# Retention


def retained(log, now_ms=NOW_MS, **config):
    log.config = LogConfig(segment_bytes=1000, index_interval_bytes=150, **config)
    return log.delete_old_segments(now_ms)


async def test_retention_by_time(log):
    bases = log.segment_base_offsets
    config = {"retention_ms": 1000}
    assert retained(log, NOW_MS + 1000, **config) == 0
    # A segment goes when its newest record is too old.
    last_of_second = NOW_MS + bases[2] - 1
    assert retained(log, last_of_second + 1000, **config) == 1
    assert retained(log, last_of_second + 1001, **config) == 1
    assert (log.log_start_offset, log.segment_base_offsets) == (bases[2], bases[2:])
    assert await read_all(log) == ALL[bases[2] :]
    assert retained(log, NOW_MS + 10_000, **config) == len(bases) - 2
    assert (log.log_start_offset, log.log_end_offset, log.segment_base_offsets) == (100, 100, [100])
    assert retained(log, NOW_MS + 20_000, **config) == 0
    assert append(log, b"x").first_offset == 100


def test_retention_by_size(log):
    first, second = list(log._segments)[:2]
    assert retained(log, retention_bytes=log.size_bytes - first.size_bytes + 1) == 0
    assert retained(log, retention_bytes=log.size_bytes - first.size_bytes) == 1
    assert log.log_start_offset == second.base_offset


def test_retention_stops_at_the_high_watermark(log):
    bases = log.segment_base_offsets
    log.update_high_watermark(bases[2] - 1)
    assert retained(log, NOW_MS + 10**6, retention_ms=1) == 1
    assert log.log_start_offset == bases[1]


def test_retention_of_records_without_timestamps_goes_by_the_file(environment):
    log = open_log(environment, SMALL)
    append(log, b"a", timestamp_ms=-1)
    log.update_high_watermark(1)
    assert retained(log, environment.clock_ms + 100, retention_ms=100) == 0
    assert retained(log, environment.clock_ms + 101, retention_ms=100) == 1


async def test_compacted_logs_lose_only_what_lies_before_the_log_start_offset(log):
    config = {"retention_ms": 1, "retention_bytes": 1, "cleanup_policy": ("compact",)}
    assert retained(log, NOW_MS + 10**6, **config) == 0
    bases = log.segment_base_offsets
    log.update_log_start_offset(bases[2] + 1)
    assert retained(log, **config) == 2
    assert log.segment_base_offsets == bases[2:]
    assert await read_all(log) == ALL[bases[2] + 1 :]


def test_what_retention_deletes_is_logged_with_the_reason_in_the_words_of_kafka(log, caplog):
    caplog.set_level("INFO", "klamm.storage.log.log")
    (first, second, third), size = list(log._segments)[:3], log.size_bytes
    names = [f"LogSegment(baseOffset={each.base_offset}, size={each.size_bytes})" for each in (first, second, third)]
    assert retained(log, NOW_MS + second.base_offset + 1000, retention_ms=1000) == 1
    assert retained(log, retention_bytes=size - first.size_bytes - second.size_bytes) == 1
    log.update_log_start_offset(log.segment_base_offsets[1])
    assert retained(log) == 1
    elsewhere = DiskEnvironment()
    untimed = open_log(elsewhere, SMALL)
    append(untimed, b"a", timestamp_ms=-1)
    untimed.update_high_watermark(1)
    assert retained(untimed, elsewhere.clock_ms + 101, retention_ms=100) == 1
    lines = [record.getMessage() for record in caplog.records]
    whose = f"[Log partition=t-0, dir={DIRECTORY}]"
    assert lines == [
        f"{whose} Deleting segment {names[0]} due to retention time 1000ms breach based on the"
        " largest record timestamp in the segment",
        f"{whose} Deleting segment {names[1]} due to retention size {size - first.size_bytes - second.size_bytes}"
        f" breach. Log size after deletion will be {size - first.size_bytes - second.size_bytes}.",
        f"{whose} Deleting segments due to log start offset {log.log_start_offset} breach: {names[2]}",
        f"{whose} Deleting segment LogSegment(baseOffset=0, size=69) due to"
        " retention time 100ms breach based on the last modified time of the segment",
    ]


def test_no_retention(log):
    assert retained(log, NOW_MS + 10**12, retention_ms=-1, retention_bytes=-1) == 0


def test_the_log_start_offset_only_moves_forward_and_not_beyond_the_high_watermark(log):
    log.update_high_watermark(60)
    assert log.update_log_start_offset(50)
    assert not log.update_log_start_offset(40)
    assert log.log_start_offset == 50
    assert list(log.leader_epochs.entries) == [(1, 50), (2, 80)]
    with pytest.raises(KafkaError) as caught:
        log.update_log_start_offset(61)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_the_high_watermark_stays_within_the_log(log):
    assert log.update_high_watermark(1000) == 100
    assert log.update_high_watermark(-5) == 0
    log.update_high_watermark(100)
    log.update_log_start_offset(50)
    assert log.update_high_watermark(10) == 50


# What survives the machine


async def test_everything_flushed_survives_the_death_of_the_machine(environment, log):
    for seed in range(20):
        fresh = DiskEnvironment(seed=seed)
        log = open_log(fresh, SMALL)
        for i in range(60):
            append(log, b"%d" % i, leader_epoch=i // 20, producer_id=4, producer_epoch=0, base_sequence=i)
        log.assign_topic_id(UUID(int=77))
        await log.flush()
        for i in range(60, 90):
            append(log, b"%d" % i, leader_epoch=3, producer_id=4, producer_epoch=0, base_sequence=i)
        fresh.disk.crash(lose_unsynced=True)
        again = open_log(fresh, SMALL, recovery_point=60)
        found = await read_all(again)
        assert found == [(i, b"%d" % i) for i in range(len(found))]
        assert len(found) >= 60
        assert again.topic_id == UUID(int=77)
        assert list(again.leader_epochs.entries)[:3] == [(0, 0), (1, 20), (2, 40)]
        assert again.producer_state.entries[4].last_sequence == len(found) - 1


async def test_closing_makes_everything_durable(environment, log):
    await log.close()
    environment.disk.crash(lose_unsynced=True)
    again = open_log(environment, SMALL, is_clean=True)
    assert await read_all(again) == ALL
    with pytest.raises(KafkaError, match="closed"):
        append(log, b"x")
    await log.close()


def test_a_roll_that_finds_no_room_changes_nothing(environment, log):
    names = environment.file_system.list_directory(f"{DIRECTORY}/t-0")
    environment.disk.fail("truncate", "*.timeindex", errno.ENOSPC)
    with pytest.raises(KafkaError):
        log.roll()
    assert environment.file_system.list_directory(f"{DIRECTORY}/t-0") == names
    assert not log.failures
    append(log, b"x")
    log.roll()
    assert log.segment_base_offsets[-1] == 101


def test_topic_ids(environment, log):
    log.assign_topic_id(UUID(int=5))
    log.assign_topic_id(UUID(int=5))
    with pytest.raises(KafkaError) as caught:
        log.assign_topic_id(UUID(int=6))
    assert caught.value.code == ErrorCode.INCONSISTENT_TOPIC_ID
    assert open_log(environment, SMALL).topic_id == UUID(int=5)


@pytest.mark.parametrize("target", [0, 37])
async def test_a_truncation_holds_although_its_epochs_cannot_be_written(target):
    environment = DiskEnvironment()
    log = open_log(environment, SMALL)
    for i in range(100):
        append(log, b"%d" % i, leader_epoch=i // 10)
    environment.disk.fail("write", "*/leader-epoch-checkpoint*", errno.ENOSPC)
    truncate = log.truncate_to if target else log.truncate_fully_and_start_at
    with pytest.raises(KafkaError, match="No space"):
        truncate(target)
    assert (log.log_end_offset, log.failures) == (target, [])
    assert append(log, b"new", leader_epoch=20).first_offset == target
    assert log.leader_epochs.entries[-1] == (20, target)
    expected = [(i, b"%d" % i) for i in range(target)] + [(target, b"new")]
    assert await read_all(log) == expected
    assert await read_all(open_log(environment, SMALL)) == expected


@pytest.mark.parametrize("files", range(1, 20, 3))
async def test_a_truncation_that_was_killed_halfway_leaves_no_hole(files):
    environment = DiskEnvironment()
    log = open_log(environment, SMALL)
    for i in range(100):
        append(log, b"%d" % i)
    await log.flush()
    assert len(log.segment_base_offsets) > 7
    rename = environment.file_system.rename
    renamed = []

    def rename_some(source, target):
        if len(renamed) == files:
            raise Killed
        renamed.append(source)
        rename(source, target)

    environment.file_system.rename = rename_some
    with pytest.raises(Killed):
        log.truncate_to(5)
    environment.file_system.rename = rename
    left = await read_all(open_log(environment, SMALL, recovery_point=100))
    assert left == ALL[: len(left)]


def test_truncating_keeps_the_producer_of_the_batch_that_the_log_start_offset_lies_in(environment):
    log = open_log(environment)
    append(log, b"a", b"b", b"c", producer_id=7, producer_epoch=0, base_sequence=0)
    append(log, b"d")
    log.update_high_watermark(4)
    log.update_log_start_offset(1)
    log.truncate_to(3)
    assert append(log, b"a", b"b", b"c", producer_id=7, producer_epoch=0, base_sequence=0).oddity is Oddity.DUPLICATE


# What takes long is found out before


def idempotent(environment, count, config=None):
    """A log of batches of one record each, of one producer, that all have the same timestamp."""
    log = open_log(environment, config or LogConfig())
    for i in range(count):
        append(log, b"%d" % i, producer_id=7, producer_epoch=0, base_sequence=i)
    return log


def test_the_snapshots_of_truncations_go_when_a_segment_is_rolled():
    """A follower that is truncated again and again, and never restarted, would keep one of each time."""
    log = idempotent(DiskEnvironment(), 100, LogConfig())
    for end in (90, 80, 70):
        log.truncate_to(end)
        for i in range(end, end + 30):
            append(log, b"%d" % i, producer_id=7, producer_epoch=0, base_sequence=i)
        log.roll()
    assert log._snapshots.offsets == [100]


async def state_of(log):
    """What a truncation has to get right."""
    active = log._segments.active
    entry = log.producer_state.entries.get(7)
    return (
        (log.log_start_offset, log.log_end_offset, log.high_watermark, log.recovery_point),
        (active.base_offset, active.size_bytes, active.max_timestamp, active.offset_index.entry_count),
        None if entry is None else (entry.last_sequence, entry.producer_epoch),
        log._snapshots.offsets,
        await read_all(log),
    )


@pytest.mark.parametrize("offset", [0, 1, 13, 50, 99, 100])
@pytest.mark.parametrize("config", [LogConfig(), SMALL])
async def test_a_prepared_truncation_does_what_one_at_once_does(offset, config):
    prepared, at_once = (idempotent(DiskEnvironment(), 100, config) for _ in range(2))
    for log in (prepared, at_once):
        await log.release_unused()
        await log.release_unused()
    found = await prepared.prepare_truncation(offset)
    assert (found is None) == (offset == 100)
    assert prepared.truncate_to(offset, found) == at_once.truncate_to(offset)
    assert await state_of(prepared) == await state_of(at_once)
    for log in (prepared, at_once):
        append(log, b"next", producer_id=7, producer_epoch=0, base_sequence=offset)
    assert await state_of(prepared) == await state_of(at_once)


async def test_a_prepared_truncation_reads_the_log_off_the_loop():
    environment = DiskEnvironment()
    log = idempotent(environment, 3000)
    log.truncate_to(2990, await log.prepare_truncation(2990))
    assert environment.bytes_read_on_the_loop == 0
    assert log.producer_state.entries[7].last_sequence == 2989


async def test_the_walk_before_a_truncation_is_cut_into_slices(monkeypatch):
    monkeypatch.setattr(truncation, "BATCHES_PER_SLICE", 7)
    environment = DiskEnvironment()
    log = idempotent(environment, 100)
    slices = 0

    def count():
        nonlocal slices
        slices += 1
        environment.before_blocking = count

    environment.before_blocking = count
    prepared = await log.prepare_truncation(90)
    # The batch that is cut, the timestamps, the producers.
    assert slices == 1 + 13 + 13
    assert prepared.producer_state.entries[7].last_sequence == 89
    assert prepared.largest_timestamp == (NOW_MS, 0)


def change_by_truncating(log):
    log.truncate_to(40)
    for i in range(40, 60):
        append(log, b"other", producer_id=7, producer_epoch=1, base_sequence=i - 40)


def change_by_appending(log):
    append(log, b"more", producer_id=7, producer_epoch=0, base_sequence=100)


def change_by_retention(log):
    log.update_high_watermark(100)
    retained(log, NOW_MS + 10**6, retention_ms=1)


@pytest.mark.parametrize("change", [change_by_truncating, change_by_appending, change_by_retention])
@pytest.mark.parametrize("step", range(4))
async def test_what_happens_during_the_walk_makes_it_void(change, step):
    walked, at_once = (idempotent(DiskEnvironment(), 100, SMALL) for _ in range(2))
    environment = walked._environment

    def hook(left):
        if left:
            environment.before_blocking = lambda: hook(left - 1)
        else:
            change(walked)

    environment.before_blocking = lambda: hook(step)
    prepared = await walked.prepare_truncation(55)
    assert environment.before_blocking is None
    change(at_once)
    for log in (walked, at_once):
        log.truncate_to(55, prepared if log is walked else None)
    assert await state_of(walked) == await state_of(at_once)
    assert not walked.failures


async def test_a_log_that_is_deleted_during_the_walk(environment, log):
    environment.before_blocking = log.abandon
    assert await log.prepare_truncation(50) is None or log._is_closed
    with pytest.raises(KafkaError, match="closed"):
        log.truncate_to(50)


async def test_a_disk_that_fails_during_the_walk_takes_its_directory_offline(environment):
    log = idempotent(environment, 100)
    environment.disk.fail("read", "*.log", errno.EIO)
    with pytest.raises(KafkaError) as caught:
        await log.prepare_truncation(50)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.failures


async def test_a_log_that_is_damaged_below_the_cut_is_not_cut(environment):
    log = idempotent(environment, 100)
    file = environment.file_system.open(f"{DIRECTORY}/t-0/{0:020d}.log")
    file.write(16, b"\x09")
    with pytest.raises(KafkaError, match="format"):
        await log.prepare_truncation(50)
    with pytest.raises(KafkaError, match="format"):
        log.truncate_to(50)
    assert log.log_end_offset == 100
