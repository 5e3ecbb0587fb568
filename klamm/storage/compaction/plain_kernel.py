"""The cleaner's work on records in plain Python, and the protocol that both kernels implement.

A kernel has the offset map. It works on one batch at a time (`fill`, `keep`), or on a run of batches without special
cases (`fill_run`, `keep_run`). The plain kernel has no runs.

What must stay true: both kernels keep the same records of the same log.
"""

from typing import Protocol

from klamm.protocol.record.record_batch import BatchHeader
from klamm.storage.compaction.cleaned_segment import CleanedSegment
from klamm.storage.compaction.kept_records import Kept, PlacedRecord, keep_records, placed_records
from klamm.storage.compaction.last_offsets import LastOffsets
from klamm.storage.compaction.offset_map import MapSize, OffsetMap
from klamm.storage.log.job import CleaningJob, CleaningStatistics


class Kernel(Protocol):
    """Up to `latest_offset`, the map has the last offset of every key. The next batch lies between `next_offset`, which
    runs move, and `end_offset`.

    All methods raise KafkaError(CORRUPT_MESSAGE) where bytes are not the records that a header announces, except the
    runs: they stop before such a batch."""

    latest_offset: int
    next_offset: int
    end_offset: int

    @property
    def key_count(self) -> int:
        """The keys in the map."""

    def fill(self, body: bytes | memoryview, header: BatchHeader) -> bool:
        """Puts the keys of one batch's uncompressed records into the map, and moves `latest_offset`. False when the map
        is full before the batch's end."""

    def mark_last_offsets(self, marks: LastOffsets) -> None:
        """Marks the last offset of each key in the map."""

    def keep(self, body: bytes | memoryview, header: BatchHeader, *, retains_deletes: bool) -> Kept:
        """The records of one batch that stay."""

    def fill_run(self, window: memoryview, at: int) -> tuple[int, bool]:
        """Like `fill`, for as many batches as possible from the batch at `at` on. Returns (the position after them,
        whether there was room for all of their keys). Moves `latest_offset` to the end of each batch."""

    def keep_run(self, window: memoryview, at: int, cleaned: CleanedSegment, *, retains_deletes: bool) -> int:
        """Like `keep`, for as many batches as possible from the batch at `at` on. Adds their kept records to `cleaned`.
        Returns the position after them."""


class PlainKernel:
    """The kernel of the simulator, and of an installation without numba."""

    def __init__(self, job: CleaningJob, size: MapSize, statistics: CleaningStatistics) -> None:
        self.latest_offset = job.first_dirty_offset - 1
        self.next_offset = self.end_offset = 0
        self._first_dirty_offset = job.first_dirty_offset
        self._capacity = size.capacity
        self._map = OffsetMap(size, job.digest_key)
        self._statistics = statistics

    @property
    def key_count(self) -> int:
        return self._map.count

    def fill(self, body: bytes | memoryview, header: BatchHeader) -> bool:
        for record in placed_records(bytes(body), header):
            if record.key is not None and record.offset >= self._first_dirty_offset:
                if self._map.count >= self._capacity:
                    return False
                self._map.put(record.key, record.offset)
                self.latest_offset = record.offset
        return True

    def mark_last_offsets(self, marks: LastOffsets) -> None:
        for offset in self._map.offsets():
            marks.mark(offset)

    def keep(self, body: bytes | memoryview, header: BatchHeader, *, retains_deletes: bool) -> Kept:
        return keep_records(bytes(body), header, lambda record: self._is_kept(record, retains_deletes))

    def _is_kept(self, record: PlacedRecord, retains_deletes: bool) -> bool:
        if record.offset > self.latest_offset:
            return True
        if record.key is None:
            self._statistics.invalid_records_read += 1
            return False
        return record.offset >= self._map.get(record.key) and (record.has_value or retains_deletes)

    def fill_run(self, window: memoryview, at: int) -> tuple[int, bool]:
        return at, True

    def keep_run(self, window: memoryview, at: int, cleaned: CleanedSegment, *, retains_deletes: bool) -> int:
        return at
