"""A process, or its machine, dies at each disk operation of a cleaning and its swaps; the next start loses nothing."""

import dataclasses
import errno
import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from klamm.protocol.error_codes import KafkaError
from klamm.protocol.record.records import ControlRecordType
from klamm.storage.log.log import AppendOrigin
from klamm.storage.verification.log_verification import verify_log
from support.cleaning import COMPACTED, clean_log, put, values_of
from support.logs import NOW_MS, DiskEnvironment, aborted_in, marker, open_log

PARTITION = "/data/t-0"
CONFIG = dataclasses.replace(COMPACTED, segment_bytes=450)
# A recovery point above the log's end: all of it was synced.
SYNCED = 2**40


def fill(log) -> None:
    """Segments with superseded records, an aborted transaction, and an active segment."""
    for round_ in range(3):
        for key in range(3):
            put(log, (b"k%d" % key, b"v%d" % round_), producer_id=4, producer_epoch=0, base_sequence=3 * round_ + key)
            if key == 1 and round_ == 1:
                put(log, (b"k0", b"aborted"), producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)
                aborted = marker(ControlRecordType.ABORT, 9)
                log.append_as_leader(aborted, 0, origin=AppendOrigin.COORDINATOR, now_ms=NOW_MS)
        log.roll()
    put(log, (b"k3", b"old"))
    put(log, (b"k3", b"older"), (b"k3", b"v3"))
    put(log, (b"k4", b"v4"))
    log.roll()
    put(log, (b"k5", b"active"))


async def the_log(environment):
    log = open_log(environment, CONFIG)
    fill(log)
    log.update_high_watermark(log.log_end_offset)
    await log.flush()
    return log


def restarted(environment) -> DiskEnvironment:
    return DiskEnvironment(environment.disk)


async def check(environment, committed_before) -> None:
    # A start that trusts what was synced reads the transaction indexes as they are.
    trusting = open_log(environment, CONFIG, recovery_point=SYNCED)
    assert aborted_in(trusting, 0, trusting.log_end_offset)
    log = open_log(environment, CONFIG, recovery_point=0)
    values = {offset: (key, value) for offset, key, value in await values_of(log)}
    aborted = {first for _, first in aborted_in(log, 0, log.log_end_offset)}
    for offset, (key, _) in committed_before.items():
        later = [o for o, (k, _) in committed_before.items() if k == key and o > offset]
        assert offset in values or later, (
            f"offset {offset} is lost: {environment.file_system.list_directory(PARTITION)}"
        )
    assert all(values[offset] == committed_before.get(offset, values[offset]) for offset in values)
    for offset in set(values) - set(committed_before):
        assert offset in aborted
    assert log.producer_state.entries[4].last_sequence == 8
    assert log.last_stable_offset == log.log_end_offset
    assert verify_log(environment.file_system, PARTITION, compacted_to=math.inf).findings == []
    names = environment.file_system.list_directory(PARTITION)
    assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]
    # The next cleaning finishes the work.
    await clean_log(log)
    left = await values_of(log)
    assert len({key for _, key, _ in left}) == len(left)


async def committed_values(log):
    aborted = {first for _, first in aborted_in(log, 0, log.log_end_offset)}
    return {offset: (key, value) for offset, key, value in await values_of(log) if offset not in aborted}


async def operations_of_a_cleaning() -> int:
    environment = DiskEnvironment()
    log = await the_log(environment)
    count = 0

    def counted(name, path):
        nonlocal count
        count += 1

    environment.disk.touched = counted
    await clean_log(log)
    return count


@contextmanager
def killed_after(environment, operations) -> Iterator[None]:
    """Every disk operation after so many fails."""
    left = operations

    def fail_later(name, path):
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.EIO, "killed here", path)

    touched, environment.disk.touched = environment.disk.touched, fail_later
    try:
        yield
    finally:
        environment.disk.touched = touched


async def die_in_a_cleaning(environment, after, lose_unsynced) -> dict:
    log = await the_log(environment)
    before = await committed_values(log)
    with killed_after(environment, after), pytest.raises((OSError, KafkaError)):
        await clean_log(log)
    environment.disk.crash(lose_unsynced=lose_unsynced)
    return before


async def test_a_process_that_dies_at_any_disk_operation_of_a_cleaning_loses_nothing():
    operations = await operations_of_a_cleaning()
    assert operations > 100
    for after in range(0, operations, 2):
        environment = DiskEnvironment()
        before = await die_in_a_cleaning(environment, after, lose_unsynced=False)
        await check(restarted(environment), before)


@pytest.mark.parametrize("seed", range(2))
async def test_a_machine_that_dies_at_any_disk_operation_of_a_cleaning_loses_nothing(seed):
    operations = await operations_of_a_cleaning()
    for after in range(2 * seed, operations, 5):
        environment = DiskEnvironment(seed=1000 * seed + after)
        before = await die_in_a_cleaning(environment, after, lose_unsynced=True)
        await check(restarted(environment), before)


async def operations_until_a_swap_of_all_files() -> int:
    """After so many operations of a cleaning a log, its indexes and its transaction index all end with `.swap`."""
    for after in range(await operations_of_a_cleaning()):
        environment = DiskEnvironment()
        await die_in_a_cleaning(environment, after, lose_unsynced=False)
        names = environment.file_system.list_directory(PARTITION)
        if f"{3:020d}.txnindex.swap" in names and f"{3:020d}.log.deleted" in names:
            return after
    raise AssertionError("no cleaning has that state")


async def test_a_start_that_dies_at_any_disk_operation_while_it_finishes_a_swap_loses_nothing():
    after = await operations_until_a_swap_of_all_files()
    start_after, is_over = 0, False
    while not is_over:
        environment = DiskEnvironment()
        before = await die_in_a_cleaning(environment, after, lose_unsynced=False)
        try:
            with killed_after(environment, start_after):
                open_log(restarted(environment), CONFIG, recovery_point=SYNCED)
            is_over = True
        except OSError:
            start_after += 1
        await check(restarted(environment), before)
    assert start_after > 50
