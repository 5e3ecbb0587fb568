"""Reading: bounds, limits, cold pages, and what happens to the log while a read waits for the disk."""

import asyncio
import contextlib

import pytest

from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.record.record_batch import iterate_batches
from klamm.protocol.record.records import ControlRecordType, Record, build_batch
from klamm.simulation.machine import disk
from klamm.storage.log.log import AppendOrigin
from klamm.storage.log.log_config import LogConfig
from klamm.storage.log.log_reader import LogReader
from support.logs import NOW_MS, DiskEnvironment, aborted_in, append, batch, marker, open_log, read_all, records_in

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=150)
FOREVER = 2**62


@pytest.fixture
def environment():
    return DiskEnvironment()


@pytest.fixture
def log(environment):
    """100 batches of two records in about twenty segments."""
    log = open_log(environment, SMALL)
    for i in range(100):
        append(log, b"%d" % (2 * i), b"%d" % (2 * i + 1), timestamp_ms=NOW_MS + i, leader_epoch=i // 40)
    log.update_high_watermark(200)
    assert len(log.segment_base_offsets) > 5
    return log


ALL = [(i, b"%d" % i) for i in range(200)]


async def read(log, offset, max_bytes=1_000_000, max_offset=FOREVER, minimum_one_batch=True):
    return await log.read(offset, max_bytes, max_offset=max_offset, minimum_one_batch=minimum_one_batch)


@pytest.mark.parametrize("max_bytes", [1, 70, 100, 333, 1_000_000])
async def test_a_consumer_gets_everything_whatever_it_asks_for(log, max_bytes):
    assert await read_all(log, max_bytes=max_bytes) == ALL


async def test_a_read_may_begin_anywhere(log):
    for offset in range(200):
        fetched = records_in((await read(log, offset, 300)).data)
        assert fetched[0][0] == offset - offset % 2
        assert fetched == ALL[fetched[0][0] :][: len(fetched)]


async def test_the_upper_bound_is_never_passed(log):
    for bound in range(201):
        found = await read_all(log, max_offset=bound)
        assert found == ALL[: bound - bound % 2]
    for offset in (0, 10, 11, 198, 200):
        assert (await read(log, offset, max_offset=offset)).data == b""
        assert (await read(log, offset, max_offset=0)).data == b""


async def test_limits_are_kept_but_for_the_first_batch(log):
    size = len((await read(log, 0, 1)).data)
    assert len(records_in((await read(log, 0, 1)).data)) == 2
    assert (await read(log, 0, 1, minimum_one_batch=False)).data == b""
    assert (await read(log, 0, 0, minimum_one_batch=False)).data == b""
    assert (await read(log, 0, size - 1, minimum_one_batch=False)).data == b""
    for times in (1, 2, 3):
        for extra in (0, 1, size - 1):
            assert len((await read(log, 0, times * size + extra, minimum_one_batch=False)).data) == times * size


async def test_out_of_range(log):
    for offset in (-1, 201):
        with pytest.raises(KafkaError) as caught:
            await read(log, offset)
        assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (await read(log, 200)).data == b""
    log.update_log_start_offset(7)
    with pytest.raises(KafkaError):
        await read(log, 6)
    assert records_in((await read(log, 7, 1)).data) == ALL[6:8]


async def test_reads_that_go_on_need_no_search(log, monkeypatch):
    searches = []
    find = LogReader._find
    monkeypatch.setattr(LogReader, "_find", lambda *arguments: searches.append(arguments) or find(*arguments))
    position = (await read(log, 3, 300)).next_offset
    assert len(searches) == 1
    while position < 200:
        position = (await read(log, position, 300)).next_offset
    assert len(searches) == 1


async def test_readable_bytes(log):
    assert log.readable_bytes(200, FOREVER) == 0
    assert log.readable_bytes(10, 10) == 0
    assert log.readable_bytes(199, FOREVER) >= 1
    assert log.readable_bytes(0, FOREVER) > 1_000_000
    last = log.segment_base_offsets[-1]
    assert log.is_on_active_segment(last)
    assert not log.is_on_active_segment(last - 1)
    fetched = await read(log, last, 1)
    append(log, b"more")
    exact = sum([len((await read(log, offset, 1)).data) for offset in (*range(fetched.next_offset, 200, 2), 200)])
    assert log.readable_bytes(fetched.next_offset, FOREVER) == exact


@pytest.mark.parametrize("seed", range(20))
async def test_a_truncation_while_a_read_waits_makes_it_start_again(seed):
    environment = DiskEnvironment(seed=seed)
    log = open_log(environment, SMALL)
    for i in range(100):
        append(log, b"%d" % (2 * i), b"%d" % (2 * i + 1))

    def truncate():
        log.truncate_to(100)
        for _ in range(25):
            append(log, b"new", b"other size")

    for offset in range(90, 150):
        environment.before_blocking = truncate
        fetched = records_in((await read(log, offset, 400)).data)
        waited = environment.before_blocking is None
        assert fetched[0][0] == offset - offset % 2
        for at, value in fetched:
            is_new = waited and at >= 100
            assert value == ((b"other size" if at % 2 else b"new") if is_new else b"%d" % at)
        if waited:
            return
    pytest.fail("no read has waited")


async def test_deleting_old_segments_while_a_read_waits_leaves_it_alone(environment, log):
    log.config = LogConfig(segment_bytes=1000, index_interval_bytes=150, retention_bytes=0)
    environment.before_blocking = lambda: log.delete_old_segments(NOW_MS)
    waited = False
    for offset in range(0, 190):
        try:
            fetched = await read(log, offset, 400)
        except KafkaError as error:
            assert error.code == ErrorCode.OFFSET_OUT_OF_RANGE
            waited = True
            break
        waited = environment.before_blocking is None
        assert records_in(fetched.data)[0][0] == offset - offset % 2
        if waited:
            break
    assert waited
    assert log.log_start_offset == 200
    assert not log.failures


@pytest.mark.parametrize("seed", range(30))
async def test_a_segment_that_is_deleted_while_it_is_searched_is_out_of_range(seed):
    environment = DiskEnvironment(seed=seed)
    log = open_log(environment, SMALL)
    for i in range(100):
        append(log, b"%d" % (2 * i), b"%d" % (2 * i + 1))
    log.update_high_watermark(200)
    await log.release_unused()
    await log.release_unused()
    log.config = LogConfig(segment_bytes=1000, index_interval_bytes=150, retention_bytes=0)
    environment.before_blocking = lambda: log.delete_old_segments(NOW_MS)
    try:
        assert records_in((await read(log, 33, 400)).data)[0][0] == 32
    except KafkaError as error:
        assert error.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.log_start_offset == 200
    assert not log.failures
    assert f"{0:020d}.index" not in environment.file_system.list_directory(log.directory)


@pytest.mark.parametrize("seed", range(20))
async def test_what_a_read_saw_before_a_truncation_is_not_remembered(seed):
    environment = DiskEnvironment(seed=seed)
    log = open_log(environment)
    for i in range(10):
        append(log, b"%d" % i)

    def truncate():
        log.truncate_to(2)
        for _ in range(2, 20):
            append(log, b"new " * 9)

    environment.before_blocking = truncate
    while environment.before_blocking is not None:
        for offset in range(2, 10):
            await read(log, offset, max_offset=7)
    for offset in range(2, 20):
        assert records_in((await read(log, offset)).data)[0] == (offset, b"new " * 9)


@pytest.mark.parametrize("seed", range(20))
async def test_an_orderly_close_while_a_read_waits(seed):
    environment = DiskEnvironment(seed=seed)
    log = open_log(environment, SMALL)
    for i in range(20):
        append(log, b"%d" % i)
    await log.release_unused()
    await log.release_unused()

    async def slowly(function, *arguments):
        await asyncio.sleep(0)
        return function(*arguments)

    environment.run_blocking = slowly
    reading = asyncio.create_task(log.read(3, 400, max_offset=20, minimum_one_batch=True))
    await asyncio.sleep(0)
    await log.close()
    with contextlib.suppress(KafkaError):
        await reading
    assert not log.failures


async def test_closing_while_a_read_waits(environment, log):
    environment.before_blocking = log.abandon
    for offset in range(200):
        try:
            await read(log, offset, 400)
        except KafkaError as error:
            assert error.code == ErrorCode.KAFKA_STORAGE_ERROR
            break
    else:
        pytest.fail("no read has waited")
    assert not log.failures


def test_offsets_by_timestamp(log):
    def lookup(timestamp_ms):
        return asyncio.run(log.offset_for_timestamp(timestamp_ms))

    for i in range(100):
        assert lookup(NOW_MS + i) == (NOW_MS + i, 2 * i, i // 40)
    assert lookup(0) == (NOW_MS, 0, 0)
    assert lookup(NOW_MS + 100) is None
    log.update_log_start_offset(11)
    assert lookup(0) == (NOW_MS + 5, 11, 0)


async def test_the_largest_timestamp_of_an_idle_log_survives_a_clean_stop(environment):
    log = open_log(environment, LogConfig(retention_ms=1000))
    for i in range(3):
        append(log, b"%d" % i, timestamp_ms=NOW_MS + i * 1000)
    await log.release_unused()
    await log.release_unused()
    await log.close()
    again = open_log(environment, LogConfig(retention_ms=1000), is_clean=True)
    assert await again.offset_for_timestamp(NOW_MS + 2000) == (NOW_MS + 2000, 2, 0)
    # By the file's time alone it would have expired.
    assert again.delete_old_segments(NOW_MS + 2500) == 0


@pytest.mark.parametrize("codec", list(CompressionType))
async def test_timestamps_within_a_batch(environment, codec):
    log = open_log(environment)
    records = [Record(None, b"%d" % i, NOW_MS + delta) for i, delta in enumerate((0, 50, 20, 90))]
    log.append_as_leader(build_batch(records, codec=codec), 4, now_ms=NOW_MS)
    for timestamp, expected in ((0, (0, 0)), (1, (50, 1)), (51, (90, 3)), (90, (90, 3))):
        found = await log.offset_for_timestamp(NOW_MS + timestamp)
        assert found == (NOW_MS + expected[0], expected[1], 4)
    assert await log.offset_for_timestamp(NOW_MS + 91) is None


async def test_records_that_nobody_can_read_do_not_break_lookups(environment):
    log = open_log(environment)
    garbage = batch(b"xxxxxxxx")
    garbage[61:] = b"\xff" * (len(garbage) - 61)
    from support.logs import changed

    log.append_as_leader(changed(garbage, 57, ">i", 1), 0, now_ms=NOW_MS)
    append(log, b"good", timestamp_ms=NOW_MS + 1)
    assert await log.offset_for_timestamp(NOW_MS) == (NOW_MS, 0, 0)
    assert await log.offset_for_timestamp(NOW_MS + 1) == (NOW_MS + 1, 1, 0)


async def test_aborted_transactions_across_segments(environment):
    log = open_log(environment, LogConfig(segment_bytes=200))
    expected = []
    for i in range(20):
        header = {"producer_id": i, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
        first = append(log, b"%d" % i, **header).first_offset
        kind = ControlRecordType.ABORT if i % 3 == 0 else ControlRecordType.COMMIT
        log.append_as_leader(marker(kind, i), 0, origin=AppendOrigin.COORDINATOR, now_ms=NOW_MS)
        if i % 3 == 0:
            expected.append((i, first))
    assert aborted_in(log, 0, 40) == expected
    assert aborted_in(log, 14, 27) == [(9, 18), (12, 24)]
    await log.close()
    for is_clean in (True, False):
        again = open_log(environment, LogConfig(segment_bytes=200), is_clean=is_clean)
        assert aborted_in(again, 0, 40) == expected


async def test_idle_segments_give_back_their_memory_and_are_read_again(log):
    for _ in range(2):
        await log.release_unused()
    assert all(segment._file is None and not segment.offset_index.is_loaded for segment in log._segments)
    assert await read_all(log, max_bytes=300) == ALL
    append(log, b"more")
    assert (await read_all(log))[-1] == (200, b"more")


@pytest.mark.parametrize(
    "damage", ["zeroed batch", "zeroed rest", "cut within a batch", "cut between batches", "emptied"]
)
@pytest.mark.parametrize("number", [0, 3, -1], ids=["first", "a middle", "active"])
async def test_damage_beneath_an_open_segment_is_an_error_of_its_records_only(environment, log, caplog, damage, number):
    """As Kafka answers. The disk is sound, so that its other logs must not suffer."""
    base = log.segment_base_offsets[number]
    file = environment.file_system.open(f"/data/t-0/{base:020d}.log")
    size = file.size()
    position, header = list(iterate_batches(file.read(0, size)))[1]
    if damage == "zeroed batch":
        file.write(position, bytes(header.size_bytes))
    elif damage == "zeroed rest":
        file.write(position, bytes(size - position))
    else:
        file.truncate({"cut within a batch": position + 30, "cut between batches": position, "emptied": 0}[damage])
    refused_offsets = []
    for offset in range(200):
        for bound in (FOREVER, offset + 2):
            try:
                data = (await read(log, offset, 1, bound)).data
                # A sound batch before the damaged one, or the damaged one: its reader sees that it is no batch.
                assert data
                if not any(data):
                    refused_offsets.append(offset)
                else:
                    assert records_in(data)[0] == (offset - offset % 2, b"%d" % (offset - offset % 2))
            except KafkaError as error:
                assert error.code is ErrorCode.CORRUPT_MESSAGE
                refused_offsets.append(offset)
    assert header.base_offset in refused_offsets
    end = min((each for each in log.segment_base_offsets if each > base), default=200)
    assert all(base <= offset < end for offset in refused_offsets)
    assert f"Records of {log.name} cannot be read: " in caplog.text
    assert append(log, b"more").first_offset == 200


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "cut", "descending", "nonsense"])
async def test_damaged_indexes_are_no_obstacle(environment, log, suffix, damage):
    await log.close()
    for base in log.segment_base_offsets:
        path = f"/data/t-0/{base:020d}{suffix}"
        file = environment.file_system.open(path)
        size = file.size()
        if damage == "missing":
            environment.file_system.remove(path)
        elif damage == "cut" and size:
            file.truncate(size - 3)
        elif damage == "descending" and size:
            file.write(0, bytes(file.read(0, size))[::-1])
        elif damage == "nonsense" and size:
            file.write(0, bytes(range(1, size + 1)))
    log = open_log(environment, SMALL, is_clean=True)
    assert log.log_end_offset == 200
    assert await read_all(log, max_bytes=300) == ALL
    for offset in range(0, 200, 7):
        assert records_in((await read(log, offset, 1)).data)[0][0] == offset - offset % 2
        assert (await log.offset_for_timestamp(NOW_MS + offset // 2))[1] == offset - offset % 2


@pytest.mark.parametrize("cold_chance", [0.0, 1.0])
async def test_an_index_that_points_between_batches_is_no_obstacle(environment, log, cold_chance, monkeypatch):
    await log.close()
    file = environment.file_system.open(f"/data/t-0/{0:020d}.index")
    file.write(4, (150).to_bytes(4))
    log = open_log(environment, SMALL, is_clean=True)
    monkeypatch.setattr(disk, "COLD_CHANCE", cold_chance)
    first_end = log.segment_base_offsets[1]
    for offset in range(first_end):
        assert records_in((await read(log, offset, 1)).data)[0][0] == offset - offset % 2
