"""The kernel whose loops numba compiles, for the worker process. It keeps the same records as `plain_kernel`.

Importing this module imports numba; a broker's process never does.
"""

from collections import deque
from typing import Any

import numpy as np

from klamm.protocol.error_codes import KafkaError, corrupt_message
from klamm.protocol.record.record_batch import BatchHeader
from klamm.storage.compaction import kernel_loops as loops
from klamm.storage.compaction.cleaned_segment import CleanedSegment, IndexPoint
from klamm.storage.compaction.compiled_checksum import checksum_table
from klamm.storage.compaction.kept_records import Kept, placed_records
from klamm.storage.compaction.last_offsets import LastOffsets
from klamm.storage.compaction.offset_map import MapSize
from klamm.storage.log.job import CleaningJob, CleaningStatistics

_ENTRIES_AT_ONCE = 4096


class CompiledKernel:
    """A `Kernel`."""

    def __init__(self, job: CleaningJob, size: MapSize, statistics: CleaningStatistics) -> None:
        self._job = job
        self._statistics = statistics
        self._state = np.zeros(loops.FIELDS, np.int64)
        self._state[loops.FIRST_DIRTY] = job.first_dirty_offset
        self._state[loops.CAPACITY] = size.capacity
        self._state[loops.LATEST] = job.first_dirty_offset - 1
        self._table = np.zeros((size.slots, 3), np.uint64)
        self._secret = np.frombuffer(job.digest_key, np.uint64).copy()
        self._crc_table = checksum_table()
        self._out = np.empty(0, np.uint8)
        self._entries = np.empty((_ENTRIES_AT_ONCE, 4), np.int64)
        offsets = sorted(last.last_data_offset for last in job.last_records if last.last_data_offset >= 0)
        self._last_data_offsets = np.array(offsets, np.int64)

    @property
    def latest_offset(self) -> int:
        return int(self._state[loops.LATEST])

    @latest_offset.setter
    def latest_offset(self, offset: int) -> None:
        self._state[loops.LATEST] = offset

    @property
    def next_offset(self) -> int:
        return int(self._state[loops.NEXT])

    @next_offset.setter
    def next_offset(self, offset: int) -> None:
        self._state[loops.NEXT] = offset

    @property
    def end_offset(self) -> int:
        return int(self._state[loops.END])

    @end_offset.setter
    def end_offset(self, offset: int) -> None:
        self._state[loops.END] = offset

    @property
    def key_count(self) -> int:
        return int(self._state[loops.COUNT])

    def fill(self, body: bytes | memoryview, header: BatchHeader) -> bool:
        result = loops.fill_body(
            _array(body), header.record_count, header.base_offset, self._state, self._table, self._secret
        )
        if result == loops.BAD:
            raise _error_of(body, header)
        return bool(result != loops.FULL)

    def mark_last_offsets(self, marks: LastOffsets) -> None:
        loops.mark(self._table, marks.first_offset, marks.offsets_per_mark, np.frombuffer(marks.marks, np.uint8))

    def keep(self, body: bytes | memoryview, header: BatchHeader, *, retains_deletes: bool) -> Kept:
        self._state[loops.RETAINS_DELETES] = retains_deletes
        self._make_room(len(body))
        status, count, size_bytes, max_timestamp_ms, invalid = loops.keep_body(
            _array(body),
            header.record_count,
            header.base_offset,
            header.base_timestamp,
            self._state,
            self._table,
            self._secret,
            self._out,
        )
        if status == loops.BAD:
            raise _error_of(body, header)
        self._statistics.invalid_records_read += invalid
        if header.is_log_append_time:
            max_timestamp_ms = header.max_timestamp
        return Kept(count, self._out[:size_bytes].tobytes(), max_timestamp_ms)

    def fill_run(self, window: memoryview, at: int) -> tuple[int, bool]:
        if not _is_plain(window, at):
            return at, True
        state = self._state
        state[loops.POSITION], state[loops.RECORDS] = at, 0
        result = loops.fill_run(_array(window), state, self._table, self._secret, self._crc_table)
        self._statistics.map_records_read += int(state[loops.RECORDS])
        return int(state[loops.POSITION]), bool(result != loops.FULL)

    def keep_run(self, window: memoryview, at: int, cleaned: CleanedSegment, *, retains_deletes: bool) -> int:
        if not _is_plain(window, at):
            return at
        state = self._state
        self._make_room(len(window))
        state[loops.RETAINS_DELETES] = retains_deletes
        state[loops.POSITION] = at
        state[loops.RECORDS : loops.OUT + 1] = 0
        state[loops.INTERVAL : loops.ENTRIES + 1] = (*cleaned.index_state, 0)
        loops.keep_run(
            _array(window),
            state,
            self._table,
            self._secret,
            self._crc_table,
            self._out,
            self._entries,
            self._last_data_offsets,
        )
        size_bytes = int(state[loops.OUT])
        if size_bytes:
            points = [IndexPoint(*row) for row in self._entries[: state[loops.ENTRIES]].tolist()]
            largest = int(state[loops.LARGEST]), int(state[loops.LARGEST_OFFSET])
            cleaned.append_run(self._out[:size_bytes].data, points, int(state[loops.SINCE_ENTRY]), largest)
        statistics = self._statistics
        statistics.records_read += int(state[loops.RECORDS])
        statistics.records_written += int(state[loops.KEPT_RECORDS])
        statistics.invalid_records_read += int(state[loops.INVALID_RECORDS])
        return int(state[loops.POSITION])

    def _make_room(self, size_bytes: int) -> None:
        if len(self._out) < size_bytes:
            self._out = np.empty(size_bytes, np.uint8)


def _array(data: bytes | memoryview) -> Any:
    return np.frombuffer(data, np.uint8)


def _is_plain(window: memoryview, at: int) -> bool:
    """Whether a run may begin there. This check saves the call of a compiled function, which costs as much as many
    records."""
    attributes_at = at + loops.ATTRIBUTES_AT
    return attributes_at < len(window) and not window[attributes_at] & loops.NOT_PLAIN


def _error_of(body: bytes | memoryview, header: BatchHeader) -> KafkaError:
    """The plain code's error for records that the compiled code has refused."""
    try:
        deque(placed_records(bytes(body), header), maxlen=0)
    except KafkaError as error:
        return error
    return corrupt_message("the records cannot be read")
