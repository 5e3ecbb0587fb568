"""One segment of a log: the file of batches and its three indexes.

What must stay true:
- The log file holds whole batches only, in the order of their offsets, all at or above the base offset and within
  2^31 of it. `size_bytes` is the end of the last whole batch; a failed write may leave bytes behind it.
- The offset index gets an entry before an append if more than index.interval.bytes were appended since the last entry.
- A preallocated log file has zeros behind `size_bytes` until `trim`. Only the active segment is preallocated.
- The log file is opened at its first use and stays open while there are few open files (`open_files.py`). A handle that
  a read off the loop may be using (`pin`) is closed only after its `unpin`.
- An unused segment is small: its indexes are in memory only from their first use on, until `release`.

Source: kafka.log.LogSegment.
"""

import errno
from collections.abc import Callable, Iterator

from klamm.base.environment import Buffer, File, FileSystem
from klamm.base.slices import Steps
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.record_batch import HEADER_SIZE_BYTES, NO_TIMESTAMP, BatchHeader, parse_header
from klamm.storage.segments import batch_scan
from klamm.storage.segments.disk_errors import PASSING
from klamm.storage.segments.index_file import CorruptIndexError, IndexFile
from klamm.storage.segments.offset_index import OffsetIndex
from klamm.storage.segments.open_files import OpenFiles
from klamm.storage.segments.search_index import Entry
from klamm.storage.segments.time_index import TimeIndex
from klamm.storage.segments.transaction_index import TransactionIndex
from klamm.storage.segments.unsynced_files import UnsyncedFiles

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"

_MAX_RELATIVE_OFFSET = 2**31 - 1
# Reading indexes with about this many entries takes a millisecond.
ENTRIES_AT_ONCE = 5_000


def file_name(offset: int, suffix: str) -> str:
    return f"{offset:020d}{suffix}"


class LogSegment:
    """All methods that touch the disk raise OSError."""

    # A broker may have a hundred thousand segments, so a segment keeps few objects of its own.
    __slots__ = (
        "_bytes_since_index_entry",
        "_close_when_unpinned",
        "_directory",
        "_file",
        "_file_system",
        "_first_timestamp",
        "_index_interval_bytes",
        "_max_timestamp",
        "_offset_index",
        "_offset_of_max_timestamp",
        "_path",
        "_pins",
        "_suffix",
        "_time_index",
        "_transaction_index",
        "_unsynced",
        "base_offset",
        "created_ms",
        "is_gone",
        "is_preallocated",
        "open_log_files",
        "roll_jitter_ms",
        "size_bytes",
        "was_used",
    )

    def __init__(
        self,
        file_system: FileSystem,
        directory: str,
        base_offset: int,
        unsynced: UnsyncedFiles,
        *,
        index_interval_bytes: int,
        roll_jitter_ms: int = 0,
        created_ms: int = 0,
        suffix: str = "",
    ) -> None:
        self.base_offset = base_offset
        self.size_bytes = 0
        self.roll_jitter_ms = roll_jitter_ms
        self.created_ms = created_ms
        self._file_system = file_system
        self._directory = directory
        self._suffix = suffix
        self._path: str | None = None
        self._unsynced = unsynced
        self._index_interval_bytes = index_interval_bytes
        self._bytes_since_index_entry = 0
        self._max_timestamp: int | None = None
        self._offset_of_max_timestamp = base_offset
        self._first_timestamp: int | None = None
        self._file: File | None = None
        self._pins = 0
        self._close_when_unpinned = False
        # Counts this segment's open file. None while the log is being loaded: the loader closes the files that it
        # opens.
        self.open_log_files: OpenFiles | None = None
        self.was_used = False
        self.is_gone = False
        self.is_preallocated = False
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._transaction_index: TransactionIndex | None = None

    @property
    def path(self) -> str:
        """The path of the log file."""
        if self._path is None:
            self._path = self._path_of(LOG_SUFFIX)
        return self._path

    @property
    def offset_index(self) -> OffsetIndex:
        if self._offset_index is None:
            path = self._path_of(INDEX_SUFFIX)
            self._offset_index = OffsetIndex(self._file_system, path, self.base_offset, self._unsynced)
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        if self._time_index is None:
            path = self._path_of(TIME_INDEX_SUFFIX)
            self._time_index = TimeIndex(self._file_system, path, self.base_offset, self._unsynced)
        return self._time_index

    @property
    def transaction_index(self) -> TransactionIndex:
        if self._transaction_index is None:
            path = self._path_of(TRANSACTION_INDEX_SUFFIX)
            self._transaction_index = TransactionIndex(self._file_system, path, self.base_offset, self._unsynced)
        return self._transaction_index

    def packed_aborted(self) -> bytes:
        """See `TransactionIndex.packed`."""
        return b"" if self._transaction_index is None else self._transaction_index.packed

    def find_aborted(self, start_offset: int, end_offset: int, found: list[tuple[int, int]]) -> Steps[bool]:
        """See `TransactionIndex.find`."""
        if self._transaction_index is None:
            return False
        return (yield from self._transaction_index.find(start_offset, end_offset, found))

    def _path_of(self, kind: str) -> str:
        return f"{self._directory}/{file_name(self.base_offset, kind)}{self._suffix}"

    def _index_files(self) -> Iterator[IndexFile]:
        """The files of the indexes that are in memory."""
        for index in (self._offset_index, self._time_index, self._transaction_index):
            if index is not None:
                yield index.file

    def swapped_in(self) -> None:
        """The files of this new segment have lost their suffix."""
        self._suffix = ""
        self._paths_changed()

    def directory_renamed(self, directory: str) -> None:
        """The directory of the files has another name. Open files stay open."""
        self._directory = directory
        self._paths_changed()

    def _paths_changed(self) -> None:
        self._path = None
        if self._offset_index is not None:
            self._offset_index.file.path = self._path_of(INDEX_SUFFIX)
        if self._time_index is not None:
            self._time_index.file.path = self._path_of(TIME_INDEX_SUFFIX)
        if self._transaction_index is not None:
            self._transaction_index.file.path = self._path_of(TRANSACTION_INDEX_SUFFIX)

    # -- life -----------------------------------------------------------------------------------------------------

    def create_files(self) -> None:
        """Creates the files of an empty segment. Replaces files of the same names."""
        try:
            for path in self._paths()[:3]:
                file = self._file_system.open(path, create=True)
                file.truncate(0)
                file.close()
                self._unsynced.mark(path)
        except OSError:
            for path in self._paths():
                self._unsynced.forget(path)
                if self._file_system.exists(path):
                    self._file_system.remove(path)
            raise
        self._unsynced.mark(self._directory)
        self.offset_index.start_empty()
        self.time_index.start_empty()
        self._max_timestamp = NO_TIMESTAMP

    def open_existing(self) -> None:
        """Attaches to a segment on disk. The loader reads the transaction index; the other indexes are read later."""
        self.size_bytes = self._file_system.size(self.path)

    def file(self) -> File:
        """The log file, opened if necessary."""
        self.was_used = True
        if self._file is None:
            if self.is_gone:
                raise FileNotFoundError(errno.ENOENT, "segment is closed", self.path)
            self._file = self._file_system.open(self.path)
            if self.open_log_files is not None:
                self.open_log_files.opened(self)
        return self._file

    def open_files(self) -> None:
        """Opens all files that `cut` changes, until the cut."""
        self.load_indexes()
        try:
            self.file()
            self.offset_index.file.keep_open()
            self.time_index.file.keep_open()
            if self.transaction_index.file.exists():
                self.transaction_index.file.keep_open()
        except OSError:
            self._close_index_files()
            raise

    def pin(self) -> File:
        """The log file, which stays open until `unpin`."""
        file = self.file()
        self._pins += 1
        return file

    def unpin(self) -> None:
        self._pins -= 1
        if self._pins == 0 and self._close_when_unpinned:
            self._close_file()

    def close(self) -> None:
        """Writes the last time index entry and closes all files, for good."""
        self.trim()
        self.write_all()
        self.is_gone = True
        self.close_handles()

    def _write_largest_timestamp(self) -> None:
        """Adds the largest timestamp to the time index, which otherwise lacks appends since its last entry."""
        if self._max_timestamp is not None and self._time_index is not None and self._time_index.is_loaded:
            self._time_index.maybe_append(self._max_timestamp, self._offset_of_max_timestamp)

    def write_all(self) -> None:
        """Like `write_pending`, with the last entry of the time index."""
        self._write_largest_timestamp()
        self.write_pending()

    def write_pending(self) -> None:
        """Writes the index entries that are only in memory."""
        for file in self._index_files():
            file.write_pending()

    def close_handles(self) -> None:
        """Closes all files without writing."""
        self._close_index_files()
        if self._pins:
            self._close_when_unpinned = True
        else:
            self._close_file()

    def _close_index_files(self) -> None:
        for file in self._index_files():
            file.close()

    def release(self) -> None:
        """Frees memory and handles until the next use."""
        try:
            self.write_all()
            self._offset_index = self._time_index = self._path = None
            if self._transaction_index is not None and self._transaction_index.is_empty:
                self._transaction_index = None
        except OSError as error:
            # Entries for which the disk has no space stay in memory.
            if error.errno not in PASSING:
                raise
        self.close_if_idle()

    def close_if_idle(self) -> bool:
        """Closes the log file until its next use. Returns False, and leaves it open, while a read is using it."""
        if self._pins:
            return False
        self._close_file()
        return True

    def mark_deleted(self) -> list[str]:
        """Renames the files to .deleted, closes them and returns the new paths. Pending reads continue."""
        renamed = []
        for path in self._paths():
            self._unsynced.forget(path)
            if self._file_system.exists(path):
                self._file_system.rename(path, path + DELETED_SUFFIX)
                renamed.append(path + DELETED_SUFFIX)
        # Synced, because files that a machine crash brings back after a truncation would contradict newer records.
        self._unsynced.mark(self._directory)
        self.is_gone = True
        self.close_handles()
        return renamed

    def _paths(self) -> list[str]:
        return [self._path_of(kind) for kind in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)]

    def _close_file(self) -> None:
        self._close_when_unpinned = False
        if self._file is not None:
            self._file.close()
            self._file = None
            if self.open_log_files is not None:
                self.open_log_files.closed(self)

    # -- appending ------------------------------------------------------------------------------------------------

    def holds_offset(self, offset: int) -> bool:
        """Whether `offset` can be stored relative to the base offset."""
        return 0 <= offset - self.base_offset <= _MAX_RELATIVE_OFFSET

    def append(
        self,
        records: Buffer,
        last_offset: int,
        max_timestamp_ms: int,
        offset_of_max_timestamp: int,
        *,
        is_written: bool = False,
    ) -> None:
        """Writes whole batches at the end. If the disk has no space, the segment is unchanged.

        `is_written`: all bytes except the first batch's header are already written (`written_ahead.py`).
        """
        position = self.size_bytes
        self.load_indexes()
        max_timestamp = self.max_timestamp
        file = self.file()
        try:
            file.write(position, records[:HEADER_SIZE_BYTES] if is_written else records)
        except OSError:
            file.truncate(position)
            raise
        self._unsynced.mark(self.path)
        self.size_bytes = position + len(records)
        if position == 0:
            self._first_timestamp = max_timestamp_ms
        if max_timestamp_ms > max_timestamp:
            self._max_timestamp = max_timestamp_ms
            self._offset_of_max_timestamp = offset_of_max_timestamp
        if self._bytes_since_index_entry > self._index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(self.max_timestamp, self._offset_of_max_timestamp)
            self._bytes_since_index_entry = 0
        self._bytes_since_index_entry += len(records)

    @property
    def is_slow_to_load(self) -> bool:
        """Whether the indexes are not in memory and may be too large to be read on the loop."""
        if self._offset_index is not None and self._offset_index.is_loaded and self.time_index.is_loaded:
            return False
        return self.size_bytes // max(self._index_interval_bytes, HEADER_SIZE_BYTES) > ENTRIES_AT_ONCE

    def load_indexes(self) -> None:
        """Reads the offset and time index if necessary. Rebuilds them if they are missing or corrupt."""
        if not self.offset_index.is_loaded or not self.time_index.is_loaded:
            try:
                self.offset_index.load()
                self.time_index.load()
            except (CorruptIndexError, FileNotFoundError):
                self.rebuild_indexes()

    def should_roll(
        self,
        appended_bytes: int,
        last_offset: int,
        max_timestamp_ms: int,
        now_ms: int,
        *,
        segment_bytes: int,
        segment_ms: int,
        segment_index_bytes: int,
    ) -> bool:
        """Whether this append needs a new segment (log.roll.ms, segment.bytes, full index, offset range)."""
        if self.size_bytes > segment_bytes - appended_bytes or not self.holds_offset(last_offset):
            return True
        if self.size_bytes == 0:
            return False
        first = self.first_timestamp
        waited_ms = max_timestamp_ms - first if first >= 0 else now_ms - self.created_ms
        if waited_ms > segment_ms - self.roll_jitter_ms:
            return True
        self.load_indexes()
        return (
            self.offset_index.entry_count >= segment_index_bytes // 8
            or self.time_index.entry_count >= segment_index_bytes // 12 - 1
        )

    def trim(self) -> None:
        """Frees the preallocated space behind the last batch."""
        if self.is_preallocated:
            self.file().truncate(self.size_bytes)
            self._unsynced.mark(self.path)
            self.is_preallocated = False

    def become_inactive(self) -> None:
        """The next segment has begun: the time index gets its last entry."""
        self.load_indexes()
        self.time_index.maybe_append(self.max_timestamp, self._offset_of_max_timestamp)

    # -- reading --------------------------------------------------------------------------------------------------

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of a record, in ms; -1 if no record has a timestamp."""
        if self._max_timestamp is None:
            self._read_max_timestamp()
        assert self._max_timestamp is not None
        return self._max_timestamp

    @property
    def first_timestamp(self) -> int:
        """The first batch's largest timestamp, in ms; -1 if there is no batch or it has no timestamp."""
        if self._first_timestamp is None and self.size_bytes:
            window = self.file().read(0, HEADER_SIZE_BYTES)
            self._first_timestamp = parse_header(window, available_bytes=self.size_bytes).max_timestamp
        return NO_TIMESTAMP if self._first_timestamp is None else self._first_timestamp

    def __str__(self) -> str:
        return f"LogSegment(baseOffset={self.base_offset}, size={self.size_bytes})"

    def largest_timestamp(self) -> int:
        """The time that retention uses, in ms: the largest timestamp, or else the file's last modified time."""
        return self.max_timestamp if self.max_timestamp >= 0 else self._file_system.modified_time_ms(self.path)

    def _read_max_timestamp(self) -> None:
        if self.time_index.is_loaded:
            self._max_timestamp, self._offset_of_max_timestamp = self.time_index.last_entry()
            return
        try:
            self._max_timestamp, self._offset_of_max_timestamp = self.time_index.last_entry_on_disk()
        except (CorruptIndexError, FileNotFoundError):
            self.rebuild_indexes()

    def next_offset(self) -> int:
        """The offset after the last batch, found by a scan from the last index entry.

        Raises CorruptIndexError, KafkaError(CORRUPT_MESSAGE) when the log file is damaged there.
        """
        indexed_offset, position = self.offset_index.last_entry_on_disk()
        if position >= self.size_bytes:
            if self.size_bytes == 0 and position == 0:
                return self.base_offset
            raise CorruptIndexError(f"{self.offset_index.file.path} points behind the end of its log")
        last = None
        for _, header in batch_scan.headers(self.file().read, position, self.size_bytes):
            if last is None and position > 0 and header.base_offset > indexed_offset:
                raise CorruptIndexError(f"{self.offset_index.file.path} does not fit its log at position {position}")
            last = header
        return self.base_offset if last is None else last.next_offset

    # -- cutting and rebuilding -----------------------------------------------------------------------------------

    def cut(self, position: int, offset: int, largest_timestamp: Entry) -> None:
        """Removes everything from the batch at `position` on, so that the segment ends at `offset`.

        `largest_timestamp` is the largest timestamp of the remaining batches, with its offset in the time index.
        """
        self.load_indexes()
        self.offset_index.truncate_to(offset, position)
        self.time_index.truncate_to(offset)
        self.transaction_index.truncate_to(offset)
        self.file().truncate(position)
        self._close_index_files()
        self._unsynced.mark(self.path)
        self.size_bytes = position
        self._bytes_since_index_entry = 0
        if position == 0:
            self._first_timestamp = None
        self._max_timestamp, self._offset_of_max_timestamp = largest_timestamp

    def rebuild_indexes(self) -> None:
        """Rebuilds the offset and time index from the batches. Raises KafkaError(CORRUPT_MESSAGE)."""
        self._start_indexes_anew()
        last_offset = self.base_offset - 1
        for position, header in batch_scan.headers(self.file().read, 0, self.size_bytes):
            if not self._follows(last_offset, header):
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, _not_following(last_offset, header))
            self._index_batch(position, header)
            last_offset = header.last_offset
        self.time_index.maybe_append(self.max_timestamp, self._offset_of_max_timestamp)

    def recover(self, each: Callable[[int, BatchHeader, memoryview], None]) -> str | None:
        """Verifies every batch, rebuilds the indexes and cuts the file at the first bad byte.

        `each` is called with the position, header and bytes of each good batch, and fills the transaction index, which
        is emptied first. Returns the damage at the cut, None if every batch was good.

        At a sound message of format v0 or v1, which Kafka can read, raises KafkaError UNSUPPORTED_FOR_MESSAGE_FORMAT
        and cuts nothing.
        """
        self._start_indexes_anew()
        self.transaction_index.reset()
        end, damage = 0, None
        last_offset = self.base_offset - 1
        try:
            for position, header, batch in batch_scan.verified_batches(self.file(), 0, self.size_bytes):
                if not self._follows(last_offset, header):
                    damage = _not_following(last_offset, header)
                    break
                each(position, header, batch)
                self._index_batch(position, header)
                last_offset = header.last_offset
                end = position + header.size_bytes
        except KafkaError as error:
            if batch_scan.is_old_message(self.file(), end, self.size_bytes):
                raise
            damage = error.message
        if end < self.size_bytes:
            self.file().truncate(end)
            self._unsynced.mark(self.path)
            self.size_bytes = end
        self.time_index.maybe_append(self.max_timestamp, self._offset_of_max_timestamp)
        return damage

    def _follows(self, last_offset: int, header: BatchHeader) -> bool:
        return last_offset < header.base_offset <= header.last_offset and self.holds_offset(header.last_offset)

    def _start_indexes_anew(self) -> None:
        self.offset_index.reset()
        self.time_index.reset()
        self._max_timestamp = NO_TIMESTAMP
        self._offset_of_max_timestamp = self.base_offset
        self._first_timestamp = None
        self._bytes_since_index_entry = 0

    def _index_batch(self, position: int, header: BatchHeader) -> None:
        if header.max_timestamp > self.max_timestamp:
            self._max_timestamp = header.max_timestamp
            self._offset_of_max_timestamp = header.last_offset
        if self._bytes_since_index_entry > self._index_interval_bytes:
            self.offset_index.append(header.last_offset, position)
            self.time_index.maybe_append(self.max_timestamp, self._offset_of_max_timestamp)
            self._bytes_since_index_entry = 0
        self._bytes_since_index_entry += header.size_bytes


def _not_following(last_offset: int, header: BatchHeader) -> str:
    return f"offsets {header.base_offset} to {header.last_offset} do not follow {last_offset}"
