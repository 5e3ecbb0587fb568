"""The files of a new segment while the cleaner writes them; their names end with `.cleaned`.

What must stay true: when `finish` returns, all files are on the disk, with their indexes, so that the broker only has
to rename them. If a cleaning dies, the next cleaning or the next start removes its files.

Source: kafka.log.Cleaner.cleanSegments, LogSegment.append.
"""

from collections.abc import Iterable
from typing import NamedTuple

from klamm.base.environment import Buffer, File, FileSystem
from klamm.protocol.record.record_batch import NO_TIMESTAMP
from klamm.storage.segments import transaction_index
from klamm.storage.segments.offset_index import OffsetIndex
from klamm.storage.segments.search_index import Entry
from klamm.storage.segments.segment import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    file_name,
)
from klamm.storage.segments.time_index import TimeIndex
from klamm.storage.segments.transaction_index import AbortedTransaction

_WRITTEN_AT_ONCE_BYTES = 512 * 1024


class IndexPoint(NamedTuple):
    """An entry of the offset index, and the largest timestamp up to that entry with the last offset of its batch."""

    last_offset: int
    position: int
    largest_timestamp_ms: int
    offset_of_largest: int


class CleanedSegment:
    """All methods that touch the disk raise OSError."""

    def __init__(
        self,
        file_system: FileSystem,
        directory: str,
        base_offset: int,
        *,
        index_interval_bytes: int,
        segment_index_bytes: int,
    ) -> None:
        self.base_offset = base_offset
        self.size_bytes = 0
        self.aborted_transactions: list[AbortedTransaction] = []
        self._file_system = file_system
        self._directory = directory
        self._index_interval_bytes = index_interval_bytes
        self._most_index_entries = segment_index_bytes // OffsetIndex.ENTRY.size
        self._most_time_index_entries = segment_index_bytes // TimeIndex.ENTRY.size - 1
        self._bytes_since_index_entry = 0
        self._index: list[tuple[int, int]] = []
        self._time_index: list[Entry] = []
        self._largest: Entry = (NO_TIMESTAMP, base_offset)
        self._unwritten: list[Buffer] = []
        self._unwritten_bytes = 0
        self._file: File = file_system.open(self._path(LOG_SUFFIX), create=True)
        self._file.truncate(0)

    def _path(self, kind: str) -> str:
        return f"{self._directory}/{file_name(self.base_offset, kind)}{CLEANED_SUFFIX}"

    def append(self, batch: Buffer, last_offset: int, max_timestamp_ms: int) -> None:
        """Adds a batch at the end. Its bytes must not change later."""
        if max_timestamp_ms > self._largest[0]:
            self._largest = (max_timestamp_ms, last_offset)
        if self._bytes_since_index_entry > self._index_interval_bytes:
            self._add_index_point(IndexPoint(last_offset, self.size_bytes, *self._largest))
            self._bytes_since_index_entry = 0
        self._bytes_since_index_entry += len(batch)
        self._add(batch)

    @property
    def index_state(self) -> tuple[int, int, int, int, int]:
        """A kernel needs these values to add batches as `append` does: index.interval.bytes, the bytes since the last
        index entry, the size of the segment, and its largest timestamp with the last offset of that batch."""
        return self._index_interval_bytes, self._bytes_since_index_entry, self.size_bytes, *self._largest

    def append_run(
        self, batches: memoryview, points: Iterable[IndexPoint], bytes_since_index_entry: int, largest: Entry
    ) -> None:
        """Adds batches with their index entries, and the new values of `index_state`. The bytes may change later."""
        for point in points:
            self._add_index_point(point)
        self._bytes_since_index_entry = bytes_since_index_entry
        self._largest = largest
        if len(batches) < _WRITTEN_AT_ONCE_BYTES:
            self._add(bytes(batches))
        else:
            self._write()
            self._file.write(self.size_bytes, batches)
            self.size_bytes += len(batches)

    def _add(self, data: Buffer) -> None:
        self.size_bytes += len(data)
        self._unwritten.append(data)
        self._unwritten_bytes += len(data)
        if self._unwritten_bytes >= _WRITTEN_AT_ONCE_BYTES:
            self._write()

    def _add_index_point(self, point: IndexPoint) -> None:
        if len(self._index) < self._most_index_entries:
            self._index.append((point.last_offset, point.position))
        if len(self._time_index) < self._most_time_index_entries:
            self._add_time_entry((point.largest_timestamp_ms, point.offset_of_largest))

    def _add_time_entry(self, entry: Entry) -> None:
        last_timestamp_ms = self._time_index[-1][0] if self._time_index else NO_TIMESTAMP
        if entry[0] > last_timestamp_ms:
            self._time_index.append(entry)

    def _write(self) -> None:
        if self._unwritten:
            self._file.write(self.size_bytes - self._unwritten_bytes, b"".join(self._unwritten))
            self._unwritten.clear()
            self._unwritten_bytes = 0

    def finish(self, modified_ms: int) -> None:
        """Writes the rest and the indexes, and syncs all of it. `modified_ms` becomes the log file's last modified
        time."""
        self._write()
        self._file.sync()
        self._file.close()
        self._add_time_entry(self._largest)
        self._write_index(INDEX_SUFFIX, OffsetIndex.pack_entries(self._index, self.base_offset))
        self._write_index(TIME_INDEX_SUFFIX, TimeIndex.pack_entries(self._time_index, self.base_offset))
        if self.aborted_transactions:
            self._write_index(TRANSACTION_INDEX_SUFFIX, transaction_index.pack_entries(self.aborted_transactions))
        self._file_system.set_modified_time_ms(self._path(LOG_SUFFIX), modified_ms)
        self._file_system.sync_directory(self._directory)

    def _write_index(self, kind: str, content: bytes) -> None:
        file = self._file_system.open(self._path(kind), create=True)
        try:
            file.truncate(0)
            file.write(0, content)
            file.sync()
        finally:
            file.close()

    def close(self) -> None:
        """Closes the log file. An unfinished segment stays unfinished."""
        self._file.close()


def remove_cleaned_files(file_system: FileSystem, directory: str) -> None:
    """Removes the files that a cleaning has left behind. Raises OSError."""
    for name in file_system.list_directory(directory):
        if name.endswith(CLEANED_SUFFIX):
            file_system.remove(f"{directory}/{name}")
