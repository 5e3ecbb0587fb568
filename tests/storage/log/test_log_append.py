"""Appending: what leaders check and assign, what followers accept, and what a failing disk does."""

import errno

import pytest

from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record import record_batch as rb
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.records import ControlRecordType, Record, build_batch, decode_records
from klamm.storage.log import follower_batches
from klamm.storage.log.log import AppendOrigin, Oddity
from klamm.storage.log.log_config import LogConfig
from support.logs import (
    DIRECTORY,
    NOW_MS,
    DiskEnvironment,
    aborted_in,
    append,
    append_all,
    batch,
    changed,
    marker,
    open_log,
    read_all,
    records_in,
)


def refused(function, *arguments, **named) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        function(*arguments, **named)
    return caught.value.code


@pytest.fixture
def environment():
    return DiskEnvironment()


@pytest.fixture
def log(environment):
    return open_log(environment)


async def test_a_leader_assigns_offsets_and_its_epoch(log):
    assert append(log, b"a", b"b", leader_epoch=3)[:5] == (0, 1, NOW_MS, -1, 0)
    info = append(log, b"c", leader_epoch=3, codec=CompressionType.ZSTD)
    assert (info.first_offset, info.last_offset, info.oddity) == (2, 2, None)
    assert log.log_end_offset == 3
    assert await read_all(log) == [(0, b"a"), (1, b"b"), (2, b"c")]
    fetched = await log.read(0, 1000, max_offset=3, minimum_one_batch=True)
    assert [h.partition_leader_epoch for _, h in rb.iterate_batches(fetched.data)] == [3, 3]
    assert all(rb.crc_matches(fetched.data, p, h) for p, h in rb.iterate_batches(fetched.data))


@pytest.mark.parametrize("sent", CompressionType)
@pytest.mark.parametrize(
    ("compression_type", "stored"),
    [
        ("producer", None),
        ("uncompressed", CompressionType.NONE),
        ("gzip", CompressionType.GZIP),
        ("snappy", CompressionType.SNAPPY),
        ("lz4", CompressionType.LZ4),
        ("zstd", CompressionType.ZSTD),
    ],
)
async def test_batches_are_stored_in_the_topics_compression(environment, sent, compression_type, stored):
    log = open_log(environment, LogConfig(compression_type=compression_type))
    values = [b"value %d" % number * 50 for number in range(20)]
    append(log, *values, codec=sent, producer_id=7, producer_epoch=1, base_sequence=0)
    fetched = await log.read(0, 100_000, max_offset=20, minimum_one_batch=True)
    ((position, header),) = rb.iterate_batches(fetched.data)
    assert header.codec == (sent if stored is None else stored)
    assert rb.crc_matches(fetched.data, position, header)
    assert (header.producer_id, header.base_sequence, header.record_count, header.is_log_append_time) == (
        7,
        0,
        20,
        False,
    )
    assert await read_all(log) == list(enumerate(values))


def test_a_batch_that_another_compression_makes_too_large_is_refused(environment):
    log = open_log(environment, LogConfig(compression_type="uncompressed", max_message_bytes=1000))
    assert refused(append, log, b"x" * 2000, codec=CompressionType.GZIP) == ErrorCode.MESSAGE_TOO_LARGE
    assert log.log_end_offset == 0


def test_records_that_cannot_be_decompressed_are_refused_where_they_must_be(environment):
    log = open_log(environment, LogConfig(compression_type="zstd"))
    broken = batch(b"a" * 100, codec=CompressionType.GZIP)
    broken[61:70] = b"no gzip.."
    broken = changed(broken, 53, ">i", -1)
    assert refused(log.append_as_leader, broken, 0, now_ms=NOW_MS) is ErrorCode.INVALID_RECORD
    assert log.log_end_offset == 0


async def test_a_request_may_be_a_part_of_a_larger_buffer(log):
    frame = bytearray(b"head") + batch(b"a") + b"tail"
    log.append_as_leader(memoryview(frame)[4:-4], 0, now_ms=NOW_MS)
    assert frame[:4] == b"head"
    assert frame[-4:] == b"tail"
    assert await read_all(log) == [(0, b"a")]


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (batch(b"a", base_offset=5), ErrorCode.INVALID_RECORD),
        (batch(b"a") + batch(b"b"), ErrorCode.INVALID_RECORD),
        (changed(batch(b"a", b"b"), 57, ">i", 1), ErrorCode.INVALID_RECORD),
        (changed(batch(b"a", b"b"), 23, ">i", 5), ErrorCode.INVALID_RECORD),
        (changed(changed(batch(b"a"), 23, ">i", -1), 57, ">i", 0), ErrorCode.INVALID_RECORD),
        (changed(changed(batch(b"a"), 23, ">i", 2**31 - 2), 57, ">i", 2**31 - 1), ErrorCode.INVALID_RECORD),
        (
            changed(
                changed(batch(b"a", codec=CompressionType.ZSTD), 23, ">i", 2**31 - 2),
                57,
                ">i",
                2**31 - 1,
            ),
            ErrorCode.INVALID_RECORD,
        ),
        (marker(ControlRecordType.COMMIT, 5), ErrorCode.INVALID_RECORD),
        (batch(b"a", producer_id=5, producer_epoch=0, base_sequence=-1), ErrorCode.INVALID_RECORD),
        (batch(b"a", producer_id=5, producer_epoch=-1, base_sequence=0), ErrorCode.INVALID_RECORD),
        (batch(b"a", is_transactional=True), ErrorCode.INVALID_RECORD),
        (changed(batch(b"a"), 21, ">h", 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (changed(batch(b"a"), 21, ">h", 8), ErrorCode.INVALID_TIMESTAMP),
        (batch(b"a")[:-1], ErrorCode.CORRUPT_MESSAGE),
        (batch(b"a")[:-1] + b"?", ErrorCode.CORRUPT_MESSAGE),
        (batch(b"x" * 2_000_000), ErrorCode.MESSAGE_TOO_LARGE),
        (bytearray(b""), ErrorCode.CORRUPT_MESSAGE),
        (bytearray(8) + b"\0\0\0\x41\0\0\0\0\x01" + bytearray(60), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (bytearray(80), ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_what_a_client_may_not_append(log, records, code):
    assert refused(log.append_as_leader, bytearray(records), 0, now_ms=NOW_MS) == code
    assert log.log_end_offset == 0
    assert append(log, b"next").first_offset == 0


def test_a_batch_larger_than_a_segment(environment):
    log = open_log(environment, LogConfig(segment_bytes=100))
    assert refused(append, log, b"x" * 100) == ErrorCode.RECORD_LIST_TOO_LARGE


def test_timestamps_may_not_be_too_far_from_the_clock(environment):
    log = open_log(environment, LogConfig(message_timestamp_difference_max_ms=1000))
    for off in (-1001, 1001):
        assert refused(append, log, b"a", timestamp_ms=NOW_MS + off) == ErrorCode.INVALID_TIMESTAMP
    mixed = build_batch([Record(None, b"a", NOW_MS), Record(None, b"b", NOW_MS + 2000)])
    assert refused(log.append_as_leader, mixed, 0, now_ms=NOW_MS) == ErrorCode.INVALID_TIMESTAMP
    append(log, b"a", timestamp_ms=NOW_MS - 1000)
    append(log, b"a", timestamp_ms=-1)
    assert log.log_end_offset == 2


async def test_log_append_time(environment):
    log = open_log(environment, LogConfig(message_timestamp_type="LogAppendTime"))
    info = append(log, b"a", b"b", timestamp_ms=5, now_ms=NOW_MS + 7)
    assert (info.max_timestamp, info.log_append_time_ms) == (NOW_MS + 7, NOW_MS + 7)
    fetched = await log.read(0, 1000, max_offset=2, minimum_one_batch=True)
    header = rb.parse_header(fetched.data)
    assert rb.crc_matches(fetched.data, 0, header)
    assert {r.timestamp_ms for r in decode_records(fetched.data, 0, header)} == {NOW_MS + 7}


def test_compacted_topics_need_keys(environment):
    log = open_log(environment, LogConfig(cleanup_policy=("compact",)))
    assert refused(append, log, b"a") == ErrorCode.INVALID_RECORD
    records = [Record(b"k", b"v", NOW_MS), Record(None, b"v", NOW_MS)]
    for codec in CompressionType:
        code = refused(log.append_as_leader, build_batch(records, codec=codec), 0, now_ms=NOW_MS)
        assert code == ErrorCode.INVALID_RECORD
        log.append_as_leader(build_batch(records[:1], codec=codec), 0, now_ms=NOW_MS)
    assert log.log_end_offset == 5


# Idempotence (the rules of ProducerState have their own tests)


def produce(log, sequence, *values, producer_id=7, epoch=0, **header):
    return append(log, *values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **header)


def test_duplicates_get_the_old_offsets_and_are_not_appended(log):
    first = produce(log, 0, b"a", b"b")
    second = produce(log, 2, b"c")
    assert (second.first_offset, second.oddity) == (2, None)
    again = produce(log, 0, b"a", b"b")
    assert (again.first_offset, again.last_offset, again.oddity) == (
        first.first_offset,
        first.last_offset,
        Oddity.DUPLICATE,
    )
    assert log.log_end_offset == 3
    assert refused(produce, log, 5, b"gap") == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(produce, log, 1, b"b") == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.log_end_offset == 3


def test_only_five_batches_are_remembered(log):
    for sequence in range(6):
        produce(log, sequence, b"x")
    assert produce(log, 1, b"x").oddity is Oddity.DUPLICATE
    assert refused(produce, log, 0, b"x") == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_that_could_not_be_written_is_not_a_duplicate_later(environment, log):
    produce(log, 0, b"a")
    environment.disk.fail("write", "*.log", errno.ENOSPC)
    assert refused(produce, log, 1, b"b") == ErrorCode.KAFKA_STORAGE_ERROR
    info = produce(log, 1, b"b")
    assert (info.first_offset, info.oddity) == (1, None)


# Transactions


def test_the_last_stable_offset_waits_for_the_marker_and_the_high_watermark(log):
    append(log, b"plain")
    produce(log, 0, b"t1", is_transactional=True)
    append(log, b"after")
    log.update_high_watermark(3)
    assert (log.high_watermark, log.last_stable_offset) == (3, 1)
    log.append_as_leader(marker(ControlRecordType.ABORT, 7), 0, origin=AppendOrigin.COORDINATOR, now_ms=NOW_MS)
    assert log.last_stable_offset == 1
    log.update_high_watermark(4)
    assert log.last_stable_offset == 4
    assert aborted_in(log, 0, 4) == [(7, 1)]
    assert aborted_in(log, 0, 1) == []
    assert aborted_in(log, 4, 10) == []


def test_a_marker_of_an_older_coordinator_is_fenced(log):
    produce(log, 0, b"t1", is_transactional=True)
    for coordinator_epoch, code in ((5, None), (4, ErrorCode.TRANSACTION_COORDINATOR_FENCED)):
        records = marker(ControlRecordType.COMMIT, 7, coordinator_epoch=coordinator_epoch)
        if code is None:
            log.append_as_leader(records, 0, origin=AppendOrigin.COORDINATOR, now_ms=NOW_MS)
        else:
            origin = AppendOrigin.COORDINATOR
            assert refused(log.append_as_leader, records, 0, origin=origin, now_ms=NOW_MS) == code


# Followers


async def test_a_follower_takes_batches_as_they_are(environment, log):
    sent = (
        batch(b"a", b"b", base_offset=0, partition_leader_epoch=1, producer_id=7, producer_epoch=0, base_sequence=3)
        + batch(
            b"c",
            base_offset=2,
            partition_leader_epoch=2,
            producer_id=8,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
        + marker(ControlRecordType.ABORT, 8, base_offset=3, partition_leader_epoch=2)
        + batch(b"gap", base_offset=9, partition_leader_epoch=2)
    )
    info = log.append_as_follower(bytes(sent) + bytes(batch(b"cut"))[:40])
    assert (info.first_offset, info.last_offset, info.size_bytes) == (0, 9, len(sent))
    assert log.log_end_offset == 10
    fetched = await log.read(0, 10_000, max_offset=10, minimum_one_batch=True)
    assert bytes(fetched.data) == bytes(sent)
    assert list(log.leader_epochs.entries) == [(1, 0), (2, 2)]
    assert aborted_in(log, 0, 10) == [(8, 2)]
    assert log.producer_state.entries[7].last_sequence == 4
    log.update_high_watermark(10)
    assert log.last_stable_offset == 10


def test_what_a_follower_refuses(log):
    log.append_as_follower(batch(b"a", base_offset=4))
    assert refused(log.append_as_follower, batch(b"a", base_offset=4)) == ErrorCode.OFFSET_OUT_OF_RANGE
    backwards = batch(b"a", base_offset=7) + batch(b"b", base_offset=6)
    assert refused(append_all, log, backwards) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.log_end_offset == 8
    corrupt = batch(b"a", base_offset=10)
    corrupt[-1] ^= 1
    assert refused(append_all, log, batch(b"a", base_offset=8) + corrupt) == ErrorCode.CORRUPT_MESSAGE
    assert log.log_end_offset == 9
    assert log.append_as_follower(b"").size_bytes == 0


async def test_one_append_of_a_follower_takes_some_of_many_batches(log, monkeypatch):
    monkeypatch.setattr(follower_batches, "BATCHES_PER_SLICE", 3)
    sent = b"".join(bytes(batch(b"x", base_offset=i)) for i in range(10))
    size_bytes = len(sent) // 10
    assert log.append_as_follower(sent + sent[:20]).size_bytes == 3 * size_bytes
    assert log.log_end_offset == 3
    monkeypatch.setattr(follower_batches, "BYTES_PER_SLICE", 2 * size_bytes)
    assert log.append_as_follower(sent[3 * size_bytes :]).size_bytes == 2 * size_bytes
    monkeypatch.setattr(follower_batches, "BYTES_PER_SLICE", 1)
    assert log.append_as_follower(sent[5 * size_bytes :]).size_bytes == size_bytes
    append_all(log, sent[6 * size_bytes :] + sent[:20])
    assert await read_all(log) == [(i, b"x") for i in range(10)]


def test_a_follower_that_found_no_room_still_knows_where_its_epochs_begin(environment, log):
    """Should it lead, those who come back with other records are told by its epochs where theirs differ."""
    log.append_as_follower(batch(b"a", base_offset=0, partition_leader_epoch=3))
    log.append_as_follower(batch(b"b", base_offset=1, partition_leader_epoch=5))
    rest = batch(b"c", base_offset=2, partition_leader_epoch=5) + batch(b"d", base_offset=3, partition_leader_epoch=7)
    environment.disk.fail("write", "*.log", errno.ENOSPC)
    assert refused(log.append_as_follower, rest) == ErrorCode.KAFKA_STORAGE_ERROR
    log.append_as_follower(rest)
    assert log.leader_epochs.entries == [(3, 0), (5, 1), (7, 3)]
    assert open_log(environment).leader_epochs.entries == [(3, 0), (5, 1), (7, 3)]


async def test_a_follower_splits_what_does_not_fit_into_one_segment(environment):
    log = open_log(environment, LogConfig(segment_bytes=200))
    sent = b"".join(bytes(batch(b"x" * 20, base_offset=i)) for i in range(10))
    append_all(log, sent)
    assert log.log_end_offset == 10
    assert len(log.segment_base_offsets) == 5
    assert await read_all(log) == [(i, b"x" * 20) for i in range(10)]
    # A batch that is larger than a segment has been accepted by the leader already.
    log.append_as_follower(batch(b"x" * 500, base_offset=10))
    assert log.segment_base_offsets[-1] == 10


async def test_offsets_too_far_apart_for_one_segment(log):
    log.append_as_follower(batch(b"a", base_offset=0))
    append_all(log, batch(b"b", base_offset=2**31) + batch(b"c", base_offset=2**33))
    assert log.segment_base_offsets == [0, 2**31, 2**33]
    assert await read_all(log) == [(0, b"a"), (2**31, b"b"), (2**33, b"c")]


# Rolling


def test_rolling_by_size_and_by_time(environment):
    log = open_log(environment, LogConfig(segment_bytes=300, segment_ms=1000))
    for _ in range(6):
        append(log, b"x" * 20, timestamp_ms=NOW_MS)
    assert log.segment_base_offsets == [0, 3]
    append(log, b"late", timestamp_ms=NOW_MS + 1001)
    assert log.segment_base_offsets == [0, 3, 6]
    names = environment.file_system.list_directory(f"{DIRECTORY}/t-0")
    assert f"{3:020d}.snapshot" in names
    for base in (0, 3, 6):
        assert {f"{base:020d}{kind}" for kind in (".log", ".index", ".timeindex")} <= set(names)


async def test_rolling_when_the_index_is_full(environment):
    log = open_log(environment, LogConfig(segment_index_bytes=24, index_interval_bytes=0))
    for i in range(8):
        append(log, b"x", timestamp_ms=NOW_MS + i)
    assert len(log.segment_base_offsets) > 2
    assert [offset for offset, _ in await read_all(log)] == list(range(8))


def test_rolling_without_timestamps_goes_by_the_clock(environment):
    log = open_log(environment, LogConfig(segment_ms=1000))
    append(log, b"a", timestamp_ms=-1)
    append(log, b"b", timestamp_ms=-1, now_ms=NOW_MS + 1000)
    assert log.segment_base_offsets == [0]
    append(log, b"c", timestamp_ms=-1, now_ms=NOW_MS + 1001)
    assert log.segment_base_offsets == [0, 2]


# Failing disks


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
async def test_a_full_disk_refuses_appends_until_there_is_room(environment, log, code):
    append(log, b"a")
    environment.disk.fail("write", "*.log", code, times=3)
    for _ in range(3):
        assert refused(append, log, b"b" * 100) == ErrorCode.KAFKA_STORAGE_ERROR
    assert await read_all(log) == [(0, b"a")]
    assert not log.failures
    append(log, b"c")
    assert await read_all(log) == [(0, b"a"), (1, b"c")]
    recovered = open_log(environment)
    assert await read_all(recovered) == [(0, b"a"), (1, b"c")]


async def test_a_disk_that_fills_up_and_is_emptied(environment):
    log = open_log(environment, LogConfig(segment_bytes=2000, index_interval_bytes=100))
    environment.disk.capacity_bytes = environment.disk.used_bytes() + 5_000
    accepted = []
    for i in range(200):
        if i == 120:
            environment.disk.capacity_bytes = None
        try:
            accepted.append((append(log, b"%d" % i, timestamp_ms=NOW_MS + i).first_offset, b"%d" % i))
        except KafkaError as error:
            assert error.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert 30 < len(accepted) < 200
    assert await read_all(log) == accepted
    assert not log.failures
    await log.close()
    assert await read_all(open_log(environment, is_clean=True)) == accepted
    assert await read_all(open_log(environment)) == accepted


@pytest.mark.parametrize("operation", ["write", "truncate", "open"])
async def test_any_other_error_takes_the_directory_offline(environment, operation):
    log = open_log(environment)
    append(log, b"a")
    environment.disk.fail(operation, "*", errno.EIO, times=100)
    failing = log.roll if operation != "write" else lambda: append(log, b"b")
    assert refused(failing) == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(log.failures) == 1
    assert refused(append, log, b"c") == ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(KafkaError):
        await log.read(0, 1000, max_offset=1, minimum_one_batch=True)
    assert len(log.failures) == 1


async def test_a_failed_sync_is_never_repeated(environment, log):
    append(log, b"a")
    environment.disk.fail("sync", "*.log", errno.ENOSPC)
    with pytest.raises(KafkaError):
        await log.flush()
    assert log.recovery_point == 0
    assert len(log.failures) == 1
    with pytest.raises(KafkaError):
        await log.flush()


async def test_flush_messages_syncs_before_the_append_returns(environment):
    log = open_log(environment, LogConfig(flush_messages=2))
    append(log, b"a")
    assert log.recovery_point == 0
    append(log, b"b")
    assert log.recovery_point == 2
    append(log, b"c")
    environment.disk.crash(lose_unsynced=True)
    assert (await read_all(open_log(environment)))[:2] == [(0, b"a"), (1, b"b")]


def test_a_record_that_could_not_be_synced_is_not_acknowledged(environment):
    log = open_log(environment, LogConfig(flush_messages=1))
    environment.disk.fail("sync", "*.log")
    assert refused(append, log, b"a") == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(log.failures) == 1


def test_a_follower_syncs_one_segment_at_a_time(environment):
    sent = [batch(bytes(100), base_offset=offset) for offset in range(6)]
    log = open_log(environment, LogConfig(flush_messages=1, segment_bytes=2 * len(sent[0])))
    ends = []
    while log.log_end_offset < len(sent):
        info = log.append_as_follower(b"".join(sent[log.log_end_offset :]))
        assert info.size_bytes == (info.last_offset + 1 - info.first_offset) * len(sent[0])
        assert log.recovery_point == log.log_end_offset == info.last_offset + 1
        ends.append(log.log_end_offset)
    assert ends[0] == 2


async def test_what_was_appended_without_room_for_its_index_is_durable_all_the_same(environment):
    """A follower acknowledges all that it has; so does a leader a batch that is sent again."""
    config = LogConfig(flush_messages=1, index_interval_bytes=1)
    log = open_log(environment, config)
    append(log, b"a")
    environment.disk.fail("write", "*.index", errno.ENOSPC, times=4)
    append(log, b"b")
    assert log.log_end_offset == 2
    assert log.recovery_point == 1  # until its index is complete, the segment is one to be recovered
    environment.disk.crash(lose_unsynced=True)
    environment.disk.mend()
    assert await read_all(open_log(environment, config, recovery_point=1)) == [(0, b"a"), (1, b"b")]


def test_records_in_helper_sees_every_record():
    assert records_in(batch(b"a", b"b", base_offset=4)) == [(4, b"a"), (5, b"b")]


def test_a_segment_is_closed_at_roll_bytes_but_a_batch_may_be_as_large_as_segment_bytes():
    environment = DiskEnvironment()
    log = open_log(environment, LogConfig(segment_bytes=10_000, roll_bytes=500))
    append(log, b"x" * 300)
    append(log, b"x" * 300)
    assert log.segment_base_offsets == [0, 1]
    append(log, b"x" * 5_000)
    append(log, b"y")
    assert log.segment_base_offsets == [0, 1, 2, 3]


def test_max_compaction_lag_ms_closes_a_segment_of_a_compacted_log_only():
    for policy, offsets in ((("compact",), [0, 1]), (("delete",), [0])):
        log = open_log(DiskEnvironment(), LogConfig(max_compaction_lag_ms=10, cleanup_policy=policy))
        for timestamp_ms in (NOW_MS, NOW_MS + 11):
            record = Record(b"key", b"value", timestamp_ms)
            log.append_as_leader(build_batch([record]), 0, now_ms=NOW_MS)
        assert log.segment_base_offsets == offsets
