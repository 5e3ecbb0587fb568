"""Helpers of the tests of compaction: logs with keys, and their cleaning from the job to the last swap."""

from collections.abc import Generator
from typing import Any, NamedTuple

from klamm.base.slices import in_one_go
from klamm.protocol.record.record_batch import BatchHeader, iterate_batches
from klamm.protocol.record.records import Record, build_batch, decode_records
from klamm.storage.compaction.cleaner import clean
from klamm.storage.log.job import CleaningJob, CleaningProgress, CleaningResult
from klamm.storage.log.log import Log
from klamm.storage.log.log_config import LogConfig
from support.logs import NOW_MS

DELETE_RETENTION_MS = 1000
COMPACTED = LogConfig(segment_bytes=1000, index_interval_bytes=150, cleanup_policy=("compact",))
# Room for a thousand keys.
MAP_BYTES = 24 * 1112


class Stored(NamedTuple):
    """A record as it stands in the log."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int


def keyed_batch(*records: tuple[bytes | None, bytes | None], timestamp_ms: int = NOW_MS, **header: Any) -> bytearray:
    """A batch of (key, value) pairs."""
    return build_batch([Record(key, value, timestamp_ms) for key, value in records], **header)


def put(
    log: Log,
    *records: tuple[bytes | None, bytes | None],
    timestamp_ms: int = NOW_MS,
    now_ms: int = NOW_MS,
    **header: Any,
) -> int:
    """Appends one batch of (key, value) pairs, which is committed at once. Returns its first offset."""
    appended = log.append_as_leader(keyed_batch(*records, timestamp_ms=timestamp_ms, **header), 0, now_ms=now_ms)
    log.update_high_watermark(log.log_end_offset)
    return appended.first_offset


async def batches_of(log: Log) -> list[tuple[BatchHeader, bytes]]:
    """All batches from the log start offset to the end, read as a consumer reads."""
    position, found = log.log_start_offset, []
    while position < log.log_end_offset:
        fetched = await log.read(position, 1_000_000, max_offset=log.log_end_offset, minimum_one_batch=True)
        if not fetched.data:
            break
        data = bytes(fetched.data)
        found += [(header, data[at : at + header.size_bytes]) for at, header in iterate_batches(data)]
        assert fetched.next_offset > position
        position = fetched.next_offset
    return found


async def records_of(log: Log, *, control: bool = False) -> list[Stored]:
    """All records, or all control records."""
    return [
        Stored(record.offset, record.key, record.value, record.timestamp_ms)
        for header, batch in await batches_of(log)
        for record in decode_records(batch, 0, header)
        if header.is_control == control
    ]


async def values_of(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of all records."""
    return [stored[:3] for stored in await records_of(log)]


async def clean_if_dirty(log: Log, first_dirty_offset: int = 0, **options: Any) -> CleaningResult | None:
    """One cleaning, from the job to the last swap; None if nothing was dirty."""
    started = await start_if_dirty(log, first_dirty_offset, **options)
    if started is None:
        return None
    job, steps = started
    result = in_one_go(steps)
    for group in result.groups:
        assert log.swap_cleaned(job, group)
    return result


async def clean_log(log: Log, first_dirty_offset: int = 0, **options: Any) -> CleaningResult:
    """One cleaning of a dirty log."""
    result = await clean_if_dirty(log, first_dirty_offset, **options)
    assert result is not None, "nothing is dirty"
    return result


async def start_cleaning(
    log: Log, first_dirty_offset: int = 0, **options: Any
) -> tuple[CleaningJob, Generator[CleaningProgress, None, CleaningResult]]:
    started = await start_if_dirty(log, first_dirty_offset, **options)
    assert started is not None, "nothing is dirty"
    return started


async def start_if_dirty(
    log: Log,
    first_dirty_offset: int = 0,
    *,
    first_uncleanable_offset: int = 2**62,
    delete_retention_ms: int = DELETE_RETENTION_MS,
    map_bytes: int = MAP_BYTES,
    map_load_factor: float = 0.9,
) -> tuple[CleaningJob, Generator[CleaningProgress, None, CleaningResult]] | None:
    """(job, its steps), after a flush."""
    await log.flush()
    job = log.cleaning_job(
        first_dirty_offset,
        first_uncleanable_offset,
        delete_retention_ms=delete_retention_ms,
        map_bytes=map_bytes,
        map_load_factor=map_load_factor,
    )
    if job is None:
        return None
    return job, clean(job, log._file_system)
