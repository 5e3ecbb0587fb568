"""The log's part of a cleaning: its end offset, its job, and the swap of its segments into the log (`job.py`).

What must stay true: a cleaned segment replaces exactly the segments that it was made from. If the log was truncated,
moved or shortened since, the cleaning is void and the log stays as it is.

Source: kafka.log.LogCleaner (Cleaner.cleanSegments), kafka.log.Log (replaceSegments).
"""

from klamm.base.environment import Environment
from klamm.storage.log.job import CleanedGroup, CleaningJob, LastRecord, SourceSegment
from klamm.storage.log.log import Log
from klamm.storage.segments.segment import CLEANED_SUFFIX


def uncleanable_from(log: Log) -> int:
    """The base offset of the first segment that no cleaning may touch.

    The segments below it are inactive. Their records are committed and their transactions decided: otherwise a
    truncation could remove the newer value of a key whose older value is gone. They are also on the disk: otherwise a
    machine crash could lose the newer value.
    """
    limit = min(log.segments.active.base_offset, log.last_stable_offset, log.recovery_point)
    segment = log.segments.floor(limit)
    return log.log_start_offset if segment is None else segment.base_offset


def cleaning_job(
    environment: Environment,
    log: Log,
    first_dirty_offset: int,
    first_uncleanable_offset: int,
    *,
    delete_retention_ms: int,
    map_bytes: int,
    map_load_factor: float,
) -> CleaningJob | None:
    """The job of cleaning up to `first_uncleanable_offset`, or up to `uncleanable_from` if that is less. None if no
    record is dirty there.

    Tombstones and markers leave segments that were modified `delete_retention_ms` before the last clean segment.
    Raises KafkaError(KAFKA_STORAGE_ERROR).
    """
    log.check_usable()
    last = log.segments.floor(min(first_uncleanable_offset, uncleanable_from(log)))
    if last is None or last.base_offset <= first_dirty_offset:
        return None
    end_offset = last.base_offset
    segments = [segment for segment in log.segments if segment.base_offset < end_offset]
    clean = [segment for segment in segments if segment.base_offset < first_dirty_offset]
    delete_horizon_ms = 0
    if clean:
        try:
            delete_horizon_ms = environment.file_system.modified_time_ms(clean[-1].path) - delete_retention_ms
        except OSError as error:
            raise log.storage_error(error, "preparing to clean") from error
    producers = log.producer_state.entries
    return CleaningJob(
        log_name=log.name,
        directory=log.directory,
        segments=tuple(SourceSegment(segment.base_offset, segment.size_bytes) for segment in segments),
        first_dirty_offset=first_dirty_offset,
        first_uncleanable_offset=end_offset,
        delete_horizon_ms=delete_horizon_ms,
        last_records=tuple(
            LastRecord(producer_id, entry.batches[-1].last_offset if entry.batches else -1, entry.producer_epoch)
            for producer_id, entry in producers.items()
        ),
        packed_aborted=tuple(filter(None, (segment.packed_aborted() for segment in log.segments))),
        segment_bytes=log.config.segment_bytes,
        segment_index_bytes=log.config.segment_index_bytes,
        index_interval_bytes=log.config.index_interval_bytes,
        map_bytes=map_bytes,
        map_load_factor=map_load_factor,
        digest_key=environment.random.randbytes(16),
        truncations=log.truncations,
    )


def swap_cleaned(log: Log, job: CleaningJob, group: CleanedGroup) -> bool:
    """Replaces the segments that a cleaned segment was made from. Their files are deleted later.

    Returns False, and changes nothing, when the job is void: the log was truncated or moved since the job began, some
    of these segments are gone, or the new segment is not as the cleaning has written it. Raises
    KafkaError(KAFKA_STORAGE_ERROR).
    """
    log.check_usable()
    if job.directory != log.directory or job.truncations != log.truncations:
        return False
    sizes = dict(job.segments)
    old = [
        segment
        for segment in log.segments.starting_with(group.base_offset)
        if segment.base_offset in group.source_base_offsets and segment.size_bytes == sizes[segment.base_offset]
    ]
    cleaned = log.new_segment(group.base_offset, suffix=CLEANED_SUFFIX)
    try:
        cleaned.open_existing()
        cleaned.transaction_index.load()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise log.storage_error(error, "swapping a cleaned segment into") from error
    try:
        if not old and group.source_base_offsets[-1] < log.segments.first.base_offset:
            # Retention has deleted them all. The new files must not stay: see `swap.py`.
            log.discard(cleaned)
            return True
        if len(old) != len(group.source_base_offsets) or log.segments.active in old:
            return False
        if cleaned.size_bytes != group.size_bytes:
            return False
        log.replace_segments(cleaned, old)
    except OSError as error:
        # A half-done swap cannot be undone; the next start finishes it.
        raise log.log_directory.fail(error, f"swapping a cleaned segment into {log.name}") from error
    return True
