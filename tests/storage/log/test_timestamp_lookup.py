"""Lookups by timestamp where headers name a largest timestamp that no record has."""

import asyncio
import struct
from random import Random

import pytest

from klamm.base.environment import WorkerFailed
from klamm.base.slices import in_one_go
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record import record_batch as rb
from klamm.protocol.record.records import Record, build_batch
from klamm.storage.log.log_config import LogConfig
from klamm.storage.log.timestamp_lookup import MAX_LOOKS
from klamm.storage.segments.segment import LogSegment
from support.logs import DiskEnvironment, append, open_log
from support.one_broker import until

RECORDS = 500  # more than are looked at on the loop
LATE_MS = 10**15


class CountingEnvironment(DiskEnvironment):
    """Work in the worker waits for `may_work`, if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.may_work = None
        self.cancelled = 0
        self.dies = False

    async def run_in_worker(self, work, *arguments):
        self.worked.append(work)
        if self.dies:
            raise WorkerFailed("it has died")
        try:
            if self.may_work is not None:
                await self.may_work.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return in_one_go(work(*arguments))


@pytest.fixture
def environment():
    return CountingEnvironment()


def add_batch(log, first_ms: int, count: int = RECORDS, claimed_ms: int | None = None) -> int:
    """Appends records one ms apart; the offset of the first."""
    data = build_batch([Record(None, b"v", first_ms + number) for number in range(count)])
    if claimed_ms is not None:
        struct.pack_into(">q", data, 35, claimed_ms)
        struct.pack_into(">I", data, 17, rb._crc(data, 0, len(data)))
    return log.append_as_leader(data, 0, now_ms=0).first_offset


async def find(log, timestamp_ms: int):
    return await log.offset_for_timestamp(timestamp_ms)


async def test_a_false_header_is_looked_behind_once(environment):
    log = open_log(environment)
    for number in range(5):
        add_batch(log, 1000 * number, claimed_ms=LATE_MS)
    last = add_batch(log, 9000)
    assert await find(log, 9300) == (9300, last + 300, 0)
    assert len(environment.worked) == 6
    environment.worked.clear()
    assert await find(log, 9400) == (9400, last + 400, 0)
    assert len(environment.worked) == 1
    # A batch that has what is asked for now is looked into, whatever its header says.
    assert await find(log, 2400) == (2400, 2 * RECORDS + 400, 0)


async def test_small_batches_are_looked_into_on_the_loop(environment):
    log = open_log(environment)
    add_batch(log, 1000, count=3, claimed_ms=LATE_MS)
    assert await find(log, 1002) == (1002, 2, 0)
    assert await find(log, 1003) is None
    assert environment.worked == []


async def test_one_lookup_does_no_more_than_its_share(environment):
    log = open_log(environment)
    for number in range(MAX_LOOKS + 3):
        add_batch(log, number, claimed_ms=LATE_MS)
    last = add_batch(log, 10**6)
    # Too early rather than too late; the next one gets further.
    assert await find(log, 10**6) == (MAX_LOOKS, MAX_LOOKS * RECORDS, 0)
    assert len(environment.worked) == MAX_LOOKS
    assert await find(log, 10**6) == (10**6, last, 0)


async def test_a_truncation_forgets_what_was_found(environment):
    log = open_log(environment)
    add_batch(log, 1000, claimed_ms=LATE_MS)
    assert await find(log, 5000) is None
    log.truncate_to(0)
    add_batch(log, 5000, claimed_ms=LATE_MS)
    assert await find(log, 5000) == (5000, 0, 0)


async def test_a_search_under_way_remembers_nothing_of_what_a_truncation_cuts(environment):
    log = open_log(environment)
    add_batch(log, 1000, claimed_ms=LATE_MS)
    environment.may_work = asyncio.Event()
    searching = asyncio.create_task(log.offset_for_timestamp(5000))
    await until(lambda: environment.worked)
    log.truncate_to(0)
    add_batch(log, 5000, claimed_ms=LATE_MS)
    environment.may_work.set()
    await asyncio.wait([searching])
    assert await log.offset_for_timestamp(5000) == (5000, 0, 0)


async def test_many_who_ask_for_the_same_share_one_search_that_ends_with_the_last(environment):
    log = open_log(environment)
    add_batch(log, 1000)
    environment.may_work = asyncio.Event()
    asking = [asyncio.create_task(log.offset_for_timestamp(1301)) for _ in range(10)]
    await until(lambda: len(environment.worked) == 1)
    asking[0].cancel()
    environment.may_work.set()
    assert set(await asyncio.gather(*asking[1:])) == {(1301, 301, 0)}
    assert len(environment.worked) == 1

    environment.may_work.clear()
    asking = [asyncio.create_task(log.offset_for_timestamp(1402)) for _ in range(3)]
    await until(lambda: len(environment.worked) == 2)
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    await asyncio.sleep(0)
    assert environment.cancelled == 1
    # Nothing of it is left behind.
    environment.may_work.set()
    assert await log.offset_for_timestamp(1402) == (1402, 402, 0)


async def test_a_worker_that_dies_is_an_error_that_clients_retry(environment):
    log = open_log(environment)
    add_batch(log, 1000)
    environment.dies = True
    with pytest.raises(KafkaError) as caught:
        await find(log, 1301)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


async def test_records_that_nobody_can_read_are_found_where_their_batch_begins(environment):
    log = open_log(environment)
    append(log, b"a", timestamp_ms=1000)
    data = build_batch([Record(None, b"v", 2000)])
    data[61:65] = b"\xff" * 4
    struct.pack_into(">I", data, 17, rb._crc(data, 0, len(data)))
    log.append_as_leader(data, 0, now_ms=0)
    assert await find(log, 1500) == (2000, 1, 0)


async def test_lookups_look_once_at_each_segment(environment, monkeypatch):
    log = open_log(environment, LogConfig(roll_bytes=1))
    for number in range(100):
        append(log, b"v", timestamp_ms=number)
    looks = 0
    largest_timestamp = LogSegment.largest_timestamp

    def counted(segment):
        nonlocal looks
        looks += 1
        return largest_timestamp(segment)

    monkeypatch.setattr(LogSegment, "largest_timestamp", counted)
    for number in range(100):
        assert await find(log, LATE_MS + number) is None
        assert await find(log, number) == (number, number, 0)
        append(log, b"v", timestamp_ms=50)
    # Two looks at the first and the last segment, and two at the one that is found; 20,000 if it were each segment.
    assert looks < 2_000


@pytest.mark.parametrize("seed", range(20))
async def test_the_first_segment_that_is_late_enough_is_found_in_a_log_that_changes(environment, seed):
    random, now_ms = Random(seed), 1_000
    log = open_log(environment, LogConfig(segment_bytes=200, retention_ms=-1))
    records: list[tuple[int, int]] = []
    for _ in range(60):
        match random.choice(["append"] * 8 + ["truncate", "delete", "retain"]):
            case "append":
                for _ in range(random.randrange(1, 12)):
                    at_ms = random.choice([now_ms, random.randrange(1_000, 5_000)])
                    records.append((at_ms, append(log, b"v", timestamp_ms=at_ms).first_offset))
                    now_ms += random.randrange(30)
            case "truncate":
                end = random.randrange(log.log_start_offset, log.log_end_offset + 1)
                log.truncate_to(end)
                await log.flush()
                records = [record for record in records if record[1] < end]
            case "delete":
                log.update_high_watermark(log.log_end_offset)
                log.update_log_start_offset(min(log.log_end_offset, log.log_start_offset + random.randrange(20)))
            case "retain":
                log.delete_old_segments(now_ms)
        timestamps = [random.randrange(900, 5_100) for _ in range(5)]
        found = await asyncio.gather(*[find(log, timestamp_ms) for timestamp_ms in timestamps])
        left = [record for record in records if record[1] >= log.log_start_offset]
        for timestamp_ms, one in zip(timestamps, found, strict=True):
            expected = next((record for record in left if record[0] >= timestamp_ms), None)
            assert one == (expected if expected is None else (*expected, 0))
