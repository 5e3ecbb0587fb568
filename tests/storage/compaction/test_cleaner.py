"""What a cleaning keeps of a log, and what it drops."""

import dataclasses
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.base.slices import in_one_go
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.compression import CompressionType, decompress_into
from klamm.protocol.record.records import ControlRecordType, Record, build_batch
from klamm.storage.compaction import cleaner, last_offsets
from klamm.storage.compaction.cleaner import clean
from klamm.storage.compaction.compiled_kernel import CompiledKernel
from klamm.storage.compaction.offset_map import MapSize
from klamm.storage.compaction.plain_kernel import PlainKernel
from klamm.storage.log.cleaning import swap_cleaned, uncleanable_from
from klamm.storage.log.log import AppendOrigin
from klamm.storage.verification.log_verification import verify_log
from support.cleaning import (
    COMPACTED,
    DELETE_RETENTION_MS,
    batches_of,
    clean_if_dirty,
    clean_log,
    keyed_batch,
    put,
    records_of,
    start_cleaning,
    values_of,
)
from support.logs import NOW_MS, DiskEnvironment, aborted_in, marker, open_log, records_in

PARTITION = "/data/t-0"


@pytest.fixture
def environment():
    return DiskEnvironment()


@pytest.fixture
def log(environment):
    return open_log(environment, COMPACTED)


def end_transaction(log, kind, producer_id):
    log.append_as_leader(marker(kind, producer_id), 0, origin=AppendOrigin.COORDINATOR, now_ms=NOW_MS)
    log.update_high_watermark(log.log_end_offset)


def findings(environment):
    return verify_log(environment.file_system, PARTITION, compacted_to=math.inf).findings


async def test_the_last_value_of_each_key_stays_with_its_offset_and_timestamp(environment, log):
    put(log, (b"a", b"1"), (b"b", b"2"), timestamp_ms=NOW_MS + 1)
    put(log, (b"a", b"3"), (b"c", b"4"), timestamp_ms=NOW_MS + 2)
    log.roll()
    put(log, (b"b", b"5"))
    result = await clean_log(log)
    # The record of the active segment is not in the map: it does not replace the older one yet.
    assert [tuple(stored) for stored in await records_of(log)] == [
        (1, b"b", b"2", NOW_MS + 1),
        (2, b"a", b"3", NOW_MS + 2),
        (3, b"c", b"4", NOW_MS + 2),
        (4, b"b", b"5", NOW_MS),
    ]
    assert result.new_first_dirty_offset == 4
    assert findings(environment) == []


async def test_a_batch_that_loses_records_keeps_its_offsets_producer_and_sequence(log):
    put(log, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"), producer_id=5, producer_epoch=2, base_sequence=0)
    put(log, (b"b", b"4"), (b"a", b"5"), producer_id=5, producer_epoch=2, base_sequence=3)
    log.roll()
    await clean_log(log)
    ((header, _),) = await batches_of(log)
    assert (header.base_offset, header.last_offset, header.record_count) == (3, 4, 2)
    put(log, (b"x", b"6"), (b"b", b"7"), (b"x", b"8"), producer_id=5, producer_epoch=2, base_sequence=5)
    log.roll()
    await clean_log(log, 5)
    first, second = [header for header, _ in await batches_of(log)]
    assert (first.base_offset, first.last_offset, first.base_sequence, first.record_count) == (3, 4, 3, 1)
    assert (second.base_offset, second.last_offset, second.base_sequence, second.record_count) == (5, 7, 5, 2)
    assert (second.producer_id, second.producer_epoch) == (5, 2)


@pytest.mark.parametrize("codec", list(CompressionType))
async def test_every_compression_is_kept(log, codec):
    for i in range(4):
        put(log, *[(b"key-%d" % ((i + j) % 6), b"value-%d-%d" % (i, j)) for j in range(4)], codec=codec)
    log.roll()
    await clean_log(log)
    last = {(offset // 4 + offset % 4) % 6: offset for offset in range(16)}
    assert await values_of(log) == [
        (offset, b"key-%d" % key, b"value-%d-%d" % divmod(offset, 4))
        for key, offset in sorted(last.items(), key=lambda item: item[1])
    ]
    assert {header.codec for header, _ in await batches_of(log)} == {codec}


async def test_a_compressed_batch_without_any_last_record_is_decompressed_once(log, monkeypatch):
    for i in range(10):
        put(log, (b"a", b"%d" % i), (b"b", b"%d" % i), codec=CompressionType.ZSTD)
    log.roll()
    decompressed = []

    def counting(codec, data, out):
        decompressed.append(codec)
        return decompress_into(codec, data, out)

    monkeypatch.setattr(cleaner, "decompress_into", counting)
    result = await clean_log(log)
    assert await values_of(log) == [(18, b"a", b"9"), (19, b"b", b"9")]
    assert (result.statistics.records_read, result.statistics.records_written) == (20, 2)
    # Each in the first pass, and the last one in the second.
    assert len(decompressed) == 11


@given(st.integers(0, 2**62), st.lists(st.integers(0, 300), min_size=1), st.sampled_from([1, 2, 7, 150, 301, 1000]))
def test_no_range_of_offsets_lacks_its_marks(first_offset, marked, most_marks):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(last_offsets, "_MOST_MARKS", most_marks)
        marks = last_offsets.LastOffsets(first_offset, first_offset + 301)
    assert len(marks.marks) <= most_marks
    for offset in marked:
        marks.mark(first_offset + offset)
    for low in range(0, 301, 7):
        for high in range(low, min(301, low + 20)):
            if any(low <= offset <= high for offset in marked):
                assert marks.has_any(first_offset + low, first_offset + high)
    if most_marks >= 301:
        assert [marks.has_any(first_offset + each, first_offset + each) for each in range(301)] == [
            each in marked for each in range(301)
        ]


async def test_a_batch_that_loses_nothing_is_kept_byte_for_byte(log):
    put(log, (b"a", b"1"), (b"b", b"2"), codec=CompressionType.GZIP)
    put(log, (b"c", b"3"), (b"c", b"4"), codec=CompressionType.GZIP)
    before = await batches_of(log)
    log.roll()
    await clean_log(log)
    after = await batches_of(log)
    assert after[0] == before[0]
    assert after[1] != before[1]


async def test_the_last_batch_of_a_producer_stays_although_it_is_empty(environment, log):
    put(log, (b"a", b"1"), (b"b", b"2"), producer_id=7, producer_epoch=1, base_sequence=0)
    put(log, (b"a", b"3"), (b"b", b"4"))
    log.roll()
    await clean_log(log)
    (empty, _), (full, _) = await batches_of(log)
    assert (empty.base_offset, empty.last_offset, empty.record_count, empty.last_sequence) == (0, 1, 0, 1)
    assert (empty.producer_id, empty.producer_epoch, empty.size_bytes) == (7, 1, 61)
    assert full.record_count == 2
    await log.close()
    reopened = open_log(environment, COMPACTED)
    with pytest.raises(KafkaError, match="sent sequence 5, expected is 2"):
        put(reopened, (b"c", b"5"), producer_id=7, producer_epoch=1, base_sequence=5)
    put(reopened, (b"c", b"5"), producer_id=7, producer_epoch=1, base_sequence=2)
    assert findings(environment) == []


async def test_a_record_without_a_key_leaves_the_log(log):
    log.config = dataclasses.replace(COMPACTED, cleanup_policy=("delete",))
    put(log, (None, b"1"), (b"b", b"2"))
    log.config = COMPACTED
    log.roll()
    result = await clean_log(log)
    assert await values_of(log) == [(1, b"b", b"2")]
    assert result.statistics.invalid_records_read == 1


async def test_a_tombstone_stays_for_delete_retention_ms(environment, log):
    put(log, (b"a", b"1"), (b"b", b"2"))
    put(log, (b"a", None))
    log.roll()
    # The first cleaning: nothing is clean yet, and a tombstone never goes.
    result = await clean_log(log)
    assert await values_of(log) == [(1, b"b", b"2"), (2, b"a", None)]
    environment.clock_ms += DELETE_RETENTION_MS - 1
    put(log, (b"c", b"3"))
    log.roll()
    result = await clean_log(log, result.new_first_dirty_offset)
    # The last clean segment was modified at the time of the tombstone.
    assert (2, b"a", None) in await values_of(log)
    environment.clock_ms += 1
    put(log, (b"d", b"4"))
    log.roll()
    # Now it was modified one millisecond too early.
    result = await clean_log(log, result.new_first_dirty_offset)
    assert (2, b"a", None) in await values_of(log)


async def test_a_tombstone_goes_when_a_clean_segment_is_younger_by_delete_retention_ms(environment, log):
    log.config = dataclasses.replace(COMPACTED, segment_bytes=200)
    put(log, (b"a", b"1" * 50), (b"b", b"2" * 50))
    put(log, (b"a", None))
    environment.clock_ms += DELETE_RETENTION_MS
    put(log, (b"c", b"3" * 100))
    put(log, (b"d", b"4" * 100))
    result = await clean_log(log)
    assert result.new_first_dirty_offset == 4
    assert (2, b"a", None) in await values_of(log)
    put(log, (b"e", b"5" * 100))
    await clean_log(log, result.new_first_dirty_offset)
    assert [key for _, key, _ in await values_of(log)] == [b"b", b"c", b"d", b"e"]


async def test_aborted_records_leave_the_log_and_count_for_nothing(environment, log):
    put(log, (b"a", b"1"))
    put(log, (b"a", b"aborted"), producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    put(log, (b"b", b"committed"), producer_id=2, producer_epoch=0, base_sequence=0, is_transactional=True)
    end_transaction(log, ControlRecordType.ABORT, 1)
    end_transaction(log, ControlRecordType.COMMIT, 2)
    put(log, (b"x", b"2"), producer_id=1, producer_epoch=0, base_sequence=1)
    log.roll()
    await clean_log(log)
    assert await values_of(log) == [(0, b"a", b"1"), (2, b"b", b"committed"), (5, b"x", b"2")]
    # Both markers stay: this cleaning has met their batches.
    assert [stored.offset for stored in await records_of(log, control=True)] == [3, 4]
    assert aborted_in(log, 0, 5) == [(1, 1)]
    assert findings(environment) == []
    await log.close()
    reopened = open_log(environment, COMPACTED, is_clean=True)
    assert aborted_in(reopened, 0, 5) == [(1, 1)]
    assert reopened.last_stable_offset == reopened.log_end_offset


async def test_markers_leave_when_no_batch_needs_them_and_their_time_is_over(environment, log):
    put(log, (b"a", b"aborted"), producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    put(log, (b"b", b"old"), producer_id=2, producer_epoch=0, base_sequence=0, is_transactional=True)
    end_transaction(log, ControlRecordType.ABORT, 1)
    end_transaction(log, ControlRecordType.COMMIT, 2)
    put(log, (b"b", b"new"))
    await log.remove_expired_producers(2**62, 0)
    first_dirty = 0
    seen = []
    for i in range(4):
        environment.clock_ms += DELETE_RETENTION_MS + 1
        log.roll()
        put(log, (b"%d" % i, b"x" * 900))
        log.roll()
        first_dirty = (await clean_log(log, first_dirty)).new_first_dirty_offset
        seen.append([stored.offset for stored in await records_of(log, control=True)])
    assert seen[0] == [2, 3]
    assert seen[-1] == []
    assert aborted_in(log, 0, 100) == []
    assert findings(environment) == []


async def test_a_marker_stays_although_a_later_record_has_its_key(log):
    put(log, (b"a", b"1"), producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    end_transaction(log, ControlRecordType.COMMIT, 1)
    ((_, key, _, _),) = await records_of(log, control=True)
    put(log, (key, b"2"))
    log.roll()
    await clean_log(log)
    assert [stored.offset for stored in await records_of(log, control=True)] == [1]


async def test_open_transactions_and_uncommitted_records_are_not_cleaned(log):
    put(log, (b"a", b"1"), (b"a", b"2"))
    log.roll()
    put(log, (b"a", b"3"), producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    log.roll()
    put(log, (b"a", b"4"))
    log.roll()
    result = await clean_log(log)
    assert result.new_first_dirty_offset == 2
    assert await values_of(log) == [(1, b"a", b"2"), (2, b"a", b"3"), (3, b"a", b"4")]


async def test_records_above_the_high_watermark_are_not_cleaned(log):
    put(log, (b"a", b"1"), (b"a", b"2"))
    log.roll()
    log.append_as_leader(keyed_batch((b"a", b"3")), 0, now_ms=NOW_MS)
    log.roll()
    await clean_log(log)
    assert await values_of(log) == [(1, b"a", b"2"), (2, b"a", b"3")]


async def test_records_that_a_machine_crash_may_lose_are_not_cleaned(log):
    put(log, (b"a", b"1"))
    log.roll()
    await log.flush()
    put(log, (b"a", b"2"))
    log.roll()
    assert uncleanable_from(log) == 1


async def test_a_full_map_ends_the_cleaning_within_a_segment_and_the_next_one_goes_on(environment, log):
    for i in range(10):
        put(log, (b"%d" % i, b"old"), (b"%d" % (i + 1), b"mid"))
    log.roll()
    first_dirty, rounds = 0, []
    while (result := await clean_if_dirty(log, first_dirty, map_bytes=24 * 4)) is not None:
        assert result.new_first_dirty_offset > first_dirty
        first_dirty = result.new_first_dirty_offset
        rounds.append(first_dirty)
    assert rounds[0] == 4  # three keys: 0, 1, 2
    assert rounds[-1] == 20
    # The last record of each key.
    assert await values_of(log) == [
        (0, b"0", b"old"), *[(2 * i, b"%d" % i, b"old") for i in range(1, 10)], (19, b"10", b"mid")
    ]  # fmt: skip
    assert findings(environment) == []


def test_a_map_without_room_for_a_key_is_refused():
    with pytest.raises(ValueError, match=r"no room for a single key; log\.cleaner\.dedupe\.buffer\.size must be"):
        MapSize(24, 0.9, 100)


async def test_a_record_that_is_larger_than_all_buffers_is_cleaned(environment):
    log = open_log(environment, dataclasses.replace(COMPACTED, segment_bytes=10_000_000, max_message_bytes=9_000_000))
    large = b"x" * 3_000_000
    put(log, (b"a", large), (b"b", b"1"))
    put(log, (b"a", b"2"), (b"c", large))
    log.roll()
    await clean_log(log)
    assert await values_of(log) == [(1, b"b", b"1"), (2, b"a", b"2"), (3, b"c", large)]


async def test_small_segments_become_one_within_the_limits(environment):
    log = open_log(environment, COMPACTED)
    for i in range(30):
        put(log, (b"key", b"x" * 100), (b"%d" % i, b"y" * 100))
        log.roll()
    assert len(log.segments.base_offsets) == 31
    result = await clean_log(log)
    # 283 bytes each; three fit into segment.bytes.
    assert log.segments.base_offsets == [*range(0, 60, 6), 60]
    assert {len(group.source_base_offsets) for group in result.groups} == {3}
    assert len(await values_of(log)) == 31
    again = await clean_if_dirty(log, result.new_first_dirty_offset)
    assert again is None
    assert findings(environment) == []


async def test_a_segment_that_loses_all_its_records_is_passed_over_by_readers(environment, log):
    put(log, (b"a", b"1"))
    log.roll()
    put(log, (b"b", b"x" * 900))
    log.roll()
    put(log, (b"a", b"2"))
    put(log, (b"b", b"3"))
    log.roll()
    log.config = dataclasses.replace(COMPACTED, segment_bytes=500)
    await clean_log(log)
    assert log.segments.base_offsets == [0, 1, 2, 4]
    fetched = await log.read(0, 10_000, max_offset=log.log_end_offset, minimum_one_batch=True)
    assert fetched.next_offset > 2
    assert await values_of(log) == [(2, b"a", b"2"), (3, b"b", b"3")]
    await log.close()
    assert await values_of(open_log(environment, COMPACTED)) == [(2, b"a", b"2"), (3, b"b", b"3")]


async def test_a_damaged_batch_ends_the_cleaning_and_changes_nothing(environment, log):
    put(log, (b"a", b"1"))
    at = log.size_bytes
    put(log, (b"a", b"2"))
    log.roll()
    file = environment.file_system.open(f"{PARTITION}/{0:020d}.log")
    damaged = file.read(at + 65, 1)
    file.write(at + 65, bytes([damaged[0] ^ 1]))
    _, steps = await start_cleaning(log)
    with pytest.raises(KafkaError, match="checksum does not match") as raised:
        in_one_go(steps)
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE
    assert not [name for name in environment.file_system.list_directory(PARTITION) if "cleaned" in name]


@pytest.mark.parametrize("kernel_type", [PlainKernel, CompiledKernel])
@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.GZIP])
@pytest.mark.parametrize("first_dirty_offset", [0, 3], ids=["dirty", "clean"])
@pytest.mark.parametrize(
    ("number", "base_offset", "finding"),
    [
        (1, 0, "a batch with the offsets 0 to 0 stands where offsets 1 to 2 belong"),
        (1, 2, "a batch with the offsets 2 to 2 stands where offsets 3 to 2 belong"),
        (2, 3, "a batch with the offsets 3 to 3 stands where offsets 2 to 2 belong"),
        (2, 2**62, f"a batch with the offsets {2**62} to {2**62} stands where offsets 2 to 2 belong"),
        (0, -1, "a batch with the offsets -1 to -1 stands where offsets 0 to 2 belong"),
    ],
)
async def test_a_batch_with_the_offset_of_another_one_ends_the_cleaning(
    environment, log, number, base_offset, finding, first_dirty_offset, codec, kernel_type
):
    """The checksum does not cover the base offset."""
    starts = []
    for value in (b"1", b"2", b"3"):
        starts.append(log.size_bytes)
        put(log, (b"a", value), codec=codec)
    log.roll()
    put(log, (b"a", b"4"))
    log.roll()
    environment.file_system.open(f"{PARTITION}/{0:020d}.log").write(
        starts[number], base_offset.to_bytes(8, "big", signed=True)
    )
    job, _ = await start_cleaning(log, first_dirty_offset)
    with pytest.raises(KafkaError) as raised:
        in_one_go(clean(job, environment.file_system, kernel_type))
    assert (raised.value.code, raised.value.message) == (ErrorCode.CORRUPT_MESSAGE, finding)


async def test_the_time_of_the_last_segment_of_a_group_stays(environment, log):
    put(log, (b"a", b"1"))
    log.roll()
    environment.clock_ms += 500
    put(log, (b"a", b"2"))
    log.roll()
    environment.clock_ms += 500
    await clean_log(log)
    assert environment.file_system.modified_time_ms(f"{PARTITION}/{0:020d}.log") == NOW_MS + 500


async def test_a_lookup_by_timestamp_works_in_a_cleaned_log(log):
    for i in range(40):
        put(log, (b"%d" % (i % 7), b"x" * 60), timestamp_ms=NOW_MS + i)
    log.roll()
    await clean_log(log)
    assert (await log.offset_for_timestamp(NOW_MS + 3))[:2] == (NOW_MS + 33, 33)
    assert (await log.offset_for_timestamp(NOW_MS + 36))[:2] == (NOW_MS + 36, 36)
    assert await log.offset_for_timestamp(NOW_MS + 40) is None


async def test_a_fetch_that_began_before_the_swap_skips_nothing(environment, log):
    for i in range(12):
        put(log, (b"%d" % i, b"x" * 100))
        put(log, (b"%d" % (i + 1), b"y" * 100))
        log.roll()
    job, steps = await start_cleaning(log)
    result = in_one_go(steps)
    log._reader.invalidate()
    for segment in log._segments:
        segment.release()

    def swap():
        for group in result.groups:
            assert swap_cleaned(log, job, group)

    environment.before_blocking = swap
    fetched = await log.read(1, 10_000, max_offset=log.log_end_offset, minimum_one_batch=True)
    assert environment.before_blocking is None
    assert [offset for offset, _ in records_in(fetched.data)] == [2]
    assert fetched.next_offset == log.segments.base_offsets[1] == 4
    assert [offset for offset, _, _ in await values_of(log)] == [*range(0, 24, 2), 23]


async def test_a_new_segment_that_another_process_has_changed_does_not_get_into_the_log(environment, log):
    for i in range(12):
        put(log, (b"k", b"%d" % i))
    log.roll()
    before = await values_of(log)
    job, steps = await start_cleaning(log)
    result = in_one_go(steps)
    file = environment.file_system.open(f"{log.directory}/{0:020d}.log.cleaned")
    file.truncate(0)
    file.close()
    assert [swap_cleaned(log, job, group) for group in result.groups] == [False]
    assert await values_of(log) == before


async def test_a_truncation_makes_a_cleaning_void(environment, log):
    put(log, (b"a", b"1"))
    log.roll()
    put(log, (b"a", b"2"))
    log.roll()
    job, steps = await start_cleaning(log)
    result = in_one_go(steps)
    log.truncate_to(1)
    assert not swap_cleaned(log, job, result.groups[0])
    assert await values_of(log) == [(0, b"a", b"1")]
    await log.close()
    assert await values_of(open_log(environment, COMPACTED)) == [(0, b"a", b"1")]


async def test_a_cleaned_segment_that_a_truncation_makes_the_active_one_is_not_older_than_its_cleaning(environment):
    log = open_log(environment, dataclasses.replace(COMPACTED, segment_ms=1000))
    for key in (b"a", b"b"):
        put(log, (key, b"1"), timestamp_ms=-1)
    log.roll()
    await clean_log(log)
    log.truncate_to(1)
    put(log, (b"c", b"2"), timestamp_ms=-1, now_ms=NOW_MS + 1000)
    assert log.segments.base_offsets == [0]
    put(log, (b"d", b"3"), timestamp_ms=-1, now_ms=NOW_MS + 1001)
    assert log.segments.base_offsets == [0, 2]


async def test_a_deleted_segment_makes_the_swap_of_its_group_void(log):
    for i in range(6):
        put(log, (b"%d" % i, b"x" * 300))
        log.roll()
    job, steps = await start_cleaning(log)
    result = in_one_go(steps)
    assert [group.source_base_offsets for group in result.groups] == [(0, 1), (2, 3), (4, 5)]
    log.update_log_start_offset(3)
    log.delete_old_segments(NOW_MS)
    assert log.segments.base_offsets == [3, 4, 5, 6]
    assert swap_cleaned(log, job, result.groups[0])  # nothing is left to be swapped
    assert not swap_cleaned(log, job, result.groups[1])
    assert await values_of(log) == [(3, b"3", b"x" * 300), (4, b"4", b"x" * 300), (5, b"5", b"x" * 300)]


@pytest.mark.parametrize("how", ["cleaned", "deleted"])
async def test_no_file_is_removed_on_the_loop_when_segments_leave_the_log(environment, log, monkeypatch, how):
    for i in range(6):
        put(log, (b"%d" % i, b"x" * 100))
        log.roll()
    result = in_one_go((started := await start_cleaning(log))[1])
    snapshots = {name for name in environment.file_system.list_directory(log.directory) if name.endswith(".snapshot")}
    removed, later = [], []
    monkeypatch.setattr(environment.file_system, "remove", removed.append)
    monkeypatch.setattr(log._host, "delete_later", lambda _, paths: later.extend(paths))
    if how == "cleaned":
        assert all(swap_cleaned(log, started[0], group) for group in result.groups)
    else:
        log.update_log_start_offset(6)
        log.delete_old_segments(NOW_MS)
    gone = snapshots.difference(environment.file_system.list_directory(log.directory))
    assert gone
    assert {f"{log.directory}/{name}.deleted" for name in gone} <= set(later)
    assert not removed


async def test_what_is_appended_during_a_cleaning_stays(log):
    put(log, (b"a", b"1"))
    put(log, (b"a", b"2"))
    log.roll()
    job, steps = await start_cleaning(log)
    put(log, (b"a", b"3"))
    log.roll()
    put(log, (b"a", b"4"))
    result = in_one_go(steps)
    assert swap_cleaned(log, job, result.groups[0])
    assert await values_of(log) == [(1, b"a", b"2"), (2, b"a", b"3"), (3, b"a", b"4")]


def test_headers_and_offsets_within_a_batch_are_kept():
    from klamm.protocol.record.record_batch import parse_header
    from klamm.protocol.record.records import decode_records
    from klamm.storage.compaction.kept_records import batch_of, keep_records

    headers = (("h", b"v"), ("n", None))
    batch = build_batch([Record(b"%d" % i, b"v", NOW_MS + 1000 - i, headers) for i in range(5)], base_offset=70)
    header = parse_header(batch)
    kept = keep_records(bytes(batch[61:]), header, lambda record: record.offset in (72, 74))
    smaller = batch_of(header, kept)
    new_header = parse_header(smaller)
    assert (new_header.base_offset, new_header.last_offset, new_header.max_timestamp) == (70, 74, NOW_MS + 998)
    assert list(decode_records(smaller, 0, new_header)) == [
        Record(b"2", b"v", NOW_MS + 998, headers, 72),
        Record(b"4", b"v", NOW_MS + 996, headers, 74),
    ]


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.ZSTD])
async def test_both_kernels_write_the_same_files_of_a_log_that_is_larger_than_their_buffers(environment, codec):
    """One batch is larger than the room for uncompressed records, the log larger than what is written at once."""
    log = open_log(environment, dataclasses.replace(COMPACTED, segment_bytes=8_000_000))
    value = random.Random(1).randbytes(90_000)
    for number in range(30):
        put(log, (b"%d" % number, value), (b"replaced", value[:100]), codec=codec)
    pairs = [*((b"%d" % number, value) for number in range(4)), (b"replaced", b"last")]
    log.append_as_follower(keyed_batch(*pairs, codec=codec, base_offset=log.log_end_offset))
    log.update_high_watermark(log.log_end_offset)
    log.roll()
    files = []
    for kernel_type in (PlainKernel, CompiledKernel):
        job, _ = await start_cleaning(log)
        in_one_go(clean(job, environment.file_system, kernel_type))
        names = [name for name in environment.file_system.list_directory(PARTITION) if name.endswith(".cleaned")]
        files.append({name: environment.file_system.read_file(f"{PARTITION}/{name}") for name in names})
    assert files[0] == files[1]
    assert sum(map(len, files[0].values())) > 2_400_000
