"""A large batch that is written in pieces before its append: nothing of it counts before, and nothing of it stays."""

import asyncio
import errno
import random

import pytest

from klamm.protocol.error_codes import KafkaError
from klamm.storage.log import written_ahead
from klamm.storage.log.log import AppendOrigin, Log
from klamm.storage.log.log_config import LogConfig
from support.logs import DIRECTORY, DiskEnvironment, append, batch, open_log, read_all

PIECE_BYTES = 100
PATH = f"{DIRECTORY}/t-0/{0:020}.log"


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written_ahead, "PIECE_BYTES", PIECE_BYTES)


@pytest.fixture
def environment() -> DiskEnvironment:
    return DiskEnvironment()


def large(fill: bytes = b"x", count: int = 1000) -> bytearray:
    return batch(fill * count)


async def append_ahead(log: Log, records: bytearray) -> None:
    async with log.writing_ahead(records, AppendOrigin.CLIENT):
        log.append_as_leader(records, 0, now_ms=log._environment.now_ms())


async def begun(log: Log, records: bytearray) -> asyncio.Task[None]:
    """An append some of whose pieces are written."""
    task = asyncio.create_task(append_ahead(log, records))
    for _ in range(4):
        await asyncio.sleep(0)
    assert log.must_prepare
    return task


def log_file(environment: DiskEnvironment) -> bytes:
    return bytes(environment.file_system.read_file(PATH))


async def values(log: Log) -> list[bytes | None]:
    return [value for _, value in await read_all(log)]


async def test_its_bytes_are_those_of_an_append_in_one_step(environment: DiskEnvironment) -> None:
    log, other = open_log(environment), DiskEnvironment()
    append(log, b"first")
    task = await begun(log, large())
    assert len(log_file(environment)) > log.size_bytes  # in part
    assert await values(log) == [b"first"]
    await task
    plain = open_log(other)
    append(plain, b"first")
    plain.append_as_leader(large(), 0, now_ms=other.now_ms())
    assert log_file(environment) == log_file(other)
    assert not log.must_prepare and await values(log) == [b"first", b"x" * 1000]


async def test_an_append_meanwhile_comes_first_and_nothing_else_stays(environment: DiskEnvironment) -> None:
    log = open_log(environment)
    task = await begun(log, large())
    append(log, b"between")
    assert len(log_file(environment)) == log.size_bytes
    await task
    assert await values(log) == [b"between", b"x" * 1000]
    assert len(log_file(environment)) == log.size_bytes


async def test_two_large_batches_come_one_after_another(environment: DiskEnvironment) -> None:
    log = open_log(environment)
    first, second = await begun(log, large(b"1")), await begun(log, large(b"2"))
    await asyncio.gather(first, second)
    assert await values(log) == [b"1" * 1000, b"2" * 1000]


@pytest.mark.parametrize("end", ["cancel", "roll", "truncate", "refuse", "close"])
async def test_nothing_of_a_batch_that_is_not_appended_stays(environment: DiskEnvironment, end: str) -> None:
    log = open_log(environment)
    append(log, b"first")
    size_bytes = log.size_bytes
    records = large()
    if end == "refuse":
        records[-1] ^= 1  # Its checksum is wrong, which the append finds.
    task = await begun(log, records)
    if end == "cancel":
        task.cancel()
    elif end == "roll":
        log.roll()
    elif end == "truncate":
        log.truncate_to(0)
    elif end == "close":
        await log.close()
    if end in ("roll", "truncate"):
        left = [] if end == "truncate" else [b"first"]
        assert len(log_file(environment)) == (size_bytes if left else 0)
        await task
        assert await values(log) == [*left, b"x" * 1000]
        return
    with pytest.raises((KafkaError, asyncio.CancelledError)):
        await task
    assert len(log_file(environment)) == size_bytes
    if end != "close":
        assert not log.must_prepare or log.durability.is_truncation_unsynced
        await asyncio.wait_for(log.prepare_append(), 120)
        append(log, b"next")
        assert await values(log) == [b"first", b"next"]


async def test_a_batch_that_is_too_large_for_the_topic_is_not_written(environment: DiskEnvironment) -> None:
    log = open_log(environment, LogConfig(max_message_bytes=500))
    async with log.writing_ahead(large(), AppendOrigin.CLIENT):
        assert (log_file(environment) == b"" and not log.must_prepare) or log.durability.is_truncation_unsynced


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EMFILE])
async def test_shortages_leave_the_log_as_it_was(environment: DiskEnvironment, error: int) -> None:
    log = open_log(environment)
    append(log, b"first")
    await log.flush()
    task = await begun(log, large())
    environment.disk.fail("write" if error == errno.ENOSPC else "open", PATH, error, times=None)
    if error == errno.ENOSPC:
        with pytest.raises(KafkaError):
            await task
    else:
        # What it needs is open.
        log.roll()
        await task
    environment.disk.mend()
    assert not log.failures
    append(log, b"next")
    assert (await values(log))[-1] == b"next"


@pytest.mark.parametrize("lose_unsynced", [False, True])
@pytest.mark.parametrize("seed", range(12))
async def test_a_death_at_any_piece_leaves_what_was_there_before(seed: int, lose_unsynced: bool) -> None:
    """Also when a death leaves some pages of a batch, which contains others, and none of those before."""
    environment = DiskEnvironment(seed=seed)
    log = open_log(environment)
    append(log, b"first")
    await log.flush()
    inner = bytes(batch(b"forged", base_offset=1)) * 12
    task = asyncio.create_task(append_ahead(log, batch(inner)))
    for _ in range(random.Random(seed).randrange(16)):
        await asyncio.sleep(0)
    is_appended = task.done()
    environment.disk.crash(lose_unsynced=lose_unsynced)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    again = open_log(DiskEnvironment(environment.disk), recovery_point=log.recovery_point)
    found = await values(again)
    assert found[:1] == [b"first"] and found[1:] in ([], [inner])
    if is_appended and not lose_unsynced:
        assert found[1:] == [inner]
