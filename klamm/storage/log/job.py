"""The job and the result of a cleaning. Plain values, because they pass between processes.

The steps of a cleaning:
1. `cleaning.cleaning_job` on the broker's loop collects the log's state in memory.
2. `cleaner.clean(job, file_system)` does the long work off the loop: it only reads the log's files, and writes files
   with the suffix `.cleaned`.
3. `cleaning.swap_cleaned(log, job, group)` on the loop replaces the segments of one group by the new segment. Each call
   takes a few milliseconds; other work may run between two calls. After the last call, `new_first_dirty_offset` is the
   first dirty offset for the next cleaning.

The caller keeps to these rules:
- A directory has one cleaning at a time, from the job until its last swap. A cancelled cleaning counts until its work
  has really ended. Two cleanings would write the same files.
- The groups are swapped in their order, so that no tombstone leaves the log before the records that it deletes.
- When `swap_cleaned` returns False, the log has changed in a way that makes the cleaning void. The later groups are
  not swapped, `cleaned_segment.remove_cleaned_files` (off the loop) removes their files, and the first dirty offset
  stays.
- During the cleaning, retention should delete no segment of the log. Otherwise the cleaning may be void.
- The new files need room for the cleaned log; the old files stay for file.delete.delay.ms longer.
"""

from dataclasses import dataclass
from typing import NamedTuple


class SourceSegment(NamedTuple):
    """A segment of the log to clean."""

    base_offset: int
    size_bytes: int


class LastRecord(NamedTuple):
    """The part of an active producer's batches that must stay: the batch that ends at `last_data_offset`, or, where
    that is -1, the producer's markers of this epoch."""

    producer_id: int
    last_data_offset: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class CleaningJob:
    """One cleaning of one log.

    `segments` are all segments below `first_uncleanable_offset`, which is a segment's base offset; the records from
    `first_dirty_offset` on are dirty. Tombstones and markers leave segments that were modified at or before
    `delete_horizon_ms`. `packed_aborted` are the transaction indexes of the log's segments, packed because they may be
    large. `map_bytes` is the memory for the offset map, of which `map_load_factor` may be filled. `digest_key` makes
    the digests of keys unpredictable for clients. `truncations` says which history of the log the job belongs to.
    """

    log_name: str
    directory: str
    segments: tuple[SourceSegment, ...]
    first_dirty_offset: int
    first_uncleanable_offset: int
    delete_horizon_ms: int
    last_records: tuple[LastRecord, ...]
    packed_aborted: tuple[bytes, ...]
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    map_bytes: int
    map_load_factor: float
    digest_key: bytes
    truncations: int


class CleanedGroup(NamedTuple):
    """A finished segment, whose files are synced and have the suffix `.cleaned`, and the segments that it replaces.

    The new segment has the base offset of the first replaced segment.
    """

    source_base_offsets: tuple[int, ...]
    size_bytes: int

    @property
    def base_offset(self) -> int:
        return self.source_base_offsets[0]


@dataclass(slots=True)
class CleaningStatistics:
    """What a cleaning has read and written. Records without a key are invalid in a compacted log, and are dropped.

    Batches that are dropped unread count as read; their invalid records do not.
    """

    map_bytes_read: int = 0
    map_records_read: int = 0
    bytes_read: int = 0
    records_read: int = 0
    invalid_records_read: int = 0
    bytes_written: int = 0
    records_written: int = 0
    # The part of the offset map's slots that were used.
    map_utilization: float = 0.0


@dataclass(frozen=True, slots=True)
class CleaningResult:
    """`groups` are in the order in which the caller must swap them."""

    groups: tuple[CleanedGroup, ...]
    new_first_dirty_offset: int
    statistics: CleaningStatistics


class CleaningProgress(NamedTuple):
    """One step of a cleaning: the bytes read and written, for a throttle, and whether the step filled the offset
    map."""

    size_bytes: int
    is_filling_map: bool
