"""Opens a partition's directory: finishes operations that a crash interrupted, and recovers torn files.

What must stay true:
- After a clean shutdown nothing is verified; only missing files are rebuilt.
- After a crash every segment from the recovery point on is verified; the log is cut at the first bad byte and
  everything after it is dropped. Records below the recovery point were synced before the recovery point moved.
- A gap between two segments ends the log, unless compaction may have left the gap.
- Indexes, producer state and leader epochs of the verified part are rebuilt from the batches.
- In the part that need not be verified, producers and open transactions are rebuilt only from batches with the right
  checksum. Otherwise the log is not opened.
- A crash at any moment of loading leaves a directory that loads to the same log.

Source: kafka.log.Log (loadSegments, recoverLog), ProducerStateManager.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from uuid import UUID

from klamm.base.environment import File, FileSystem
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.record_batch import BatchHeader, crc_matches
from klamm.protocol.record.records import decode_end_transaction_marker
from klamm.storage.log.leader_epoch_cache import EpochEntry, LeaderEpochCache
from klamm.storage.log.log_config import LogConfig
from klamm.storage.log.producer_snapshots import ProducerSnapshots
from klamm.storage.log.producer_state import ProducerState
from klamm.storage.segments import batch_scan
from klamm.storage.segments.batch_scan import whole_batches
from klamm.storage.segments.checkpoints import (
    LEADER_EPOCH_CHECKPOINT,
    format_leader_epoch_checkpoint,
    parse_leader_epoch_checkpoint,
)
from klamm.storage.segments.index_file import CorruptIndexError
from klamm.storage.segments.log_directory import PARTITION_METADATA_FILE, parse_partition_metadata
from klamm.storage.segments.log_segments import LogSegments
from klamm.storage.segments.segment import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    LogSegment,
    file_name,
)
from klamm.storage.segments.unsynced_files import HALF_WRITTEN_SUFFIX, UnsyncedFiles, replace_unsynced

_LOGGER = logging.getLogger(__name__)
_TEMPORARY_SUFFIXES = (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, HALF_WRITTEN_SUFFIX)
_MAX_BASE_OFFSET = 2**63 - 2
# Small, because a replay may run on the loop.
_REPLAY_WINDOW_BYTES = 64 * 1024
_SEGMENT_FILE = re.compile(r"(?P<offset>[0-9]{20})(?P<kind>\.log|\.index|\.timeindex|\.txnindex|\.snapshot)")


@dataclass(slots=True)
class LoadedLog:
    """The state of a log that has been opened."""

    directory: str
    unsynced: UnsyncedFiles
    segments: LogSegments
    snapshots: ProducerSnapshots
    producer_state: ProducerState
    leader_epochs: list[EpochEntry]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    topic_id: UUID | None
    is_clean: bool
    # The base offset of the first recovered segment; None when no segment was recovered.
    recovered_from: int | None


def load_log(
    file_system: FileSystem,
    directory: str,
    config: LogConfig,
    *,
    log_start_offset: int,
    recovery_point: int,
    is_clean: bool,
    now_ms: int,
    first_dirty_offset: int = 0,
    high_watermark: int | None = None,
) -> LoadedLog:
    """Opens the log in `directory`, which must exist. An empty directory gives an empty log at `log_start_offset`.

    `first_dirty_offset` is the checkpointed offset up to which the log was compacted, `high_watermark` the checkpointed
    high watermark.

    Raises OSError; KafkaError(KAFKA_STORAGE_ERROR) when partition.metadata is malformed after a clean shutdown, or when
    a part of the log below the recovery point is damaged: a cut there would lose acknowledged records.
    """
    loader = _Loader(file_system, directory, config, now_ms, first_dirty_offset, high_watermark)
    try:
        return loader.load(log_start_offset, recovery_point, is_clean)
    except KafkaError as error:
        if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
            raise
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{directory} is damaged: {error.message}") from error


class _Loader:
    def __init__(
        self,
        file_system: FileSystem,
        directory: str,
        config: LogConfig,
        now_ms: int,
        first_dirty_offset: int,
        high_watermark: int | None,
    ) -> None:
        self._file_system = file_system
        self._directory = directory
        self._config = config
        self._now_ms = now_ms
        self._first_dirty_offset = first_dirty_offset
        self._high_watermark = high_watermark
        self._unsynced = UnsyncedFiles()
        self._segments = LogSegments()
        self._recovered_from: int | None = None

    def load(self, log_start_offset: int, recovery_point: int, is_clean: bool) -> LoadedLog:
        self._names = self._list()
        if any(name.endswith(_TEMPORARY_SUFFIXES) for name in self._names):
            self._remove_temporary_files()
            self._names = self._list()
        self._open_segments()
        self._snapshots = self._find_snapshots()
        # As in Kafka, a log without snapshots counts as a log from before there were producers, and is not read for
        # them.
        self._is_without_snapshots = is_clean and not self._snapshots.offsets
        known_epochs = self._read_leader_epochs()
        # Written once, at the end: after a crash, a half-built version would look valid.
        self._epochs = LeaderEpochCache(known_epochs or [], persist=lambda entries: None)
        if len(self._segments):
            log_start_offset = max(log_start_offset, self._segments.first.base_offset)
        if not is_clean:
            self._mark_unsynced(recovery_point)
        end, state = self._load_batches(recovery_point, is_clean)
        if end < log_start_offset:
            end, state = self._start_anew(log_start_offset, end)
        if known_epochs is None:
            self._rebuild_leader_epochs()
        self._epochs.truncate_from_end(end)
        self._epochs.truncate_from_start(log_start_offset)
        if list(self._epochs.entries) != (known_epochs or []):
            self._write_leader_epochs(self._epochs.entries)
        self._snapshots.delete_after(end)
        self._snapshots.take_if_room(state)
        self._snapshots.delete_distrusted()
        self._snapshots.keep_only(self._segments.base_offsets)
        for segment in self._segments:
            segment.release()
        return LoadedLog(
            directory=self._directory,
            unsynced=self._unsynced,
            segments=self._segments,
            snapshots=self._snapshots,
            producer_state=state,
            leader_epochs=list(self._epochs.entries),
            log_start_offset=log_start_offset,
            log_end_offset=end,
            recovery_point=end if is_clean else max(log_start_offset, min(recovery_point, end)),
            topic_id=self._read_topic_id(is_clean),
            is_clean=is_clean,
            recovered_from=self._recovered_from,
        )

    # -- files ----------------------------------------------------------------------------------------------------

    def _list(self) -> list[str]:
        return self._file_system.list_directory(self._directory)

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _remove_if_exists(self, name: str) -> None:
        if self._file_system.exists(self._path(name)):
            self._file_system.remove(self._path(name))

    def _rename_if_exists(self, source: str, target: str) -> None:
        if self._file_system.exists(self._path(source)):
            self._file_system.rename(self._path(source), self._path(target))

    def _remove_temporary_files(self) -> None:
        """Removes .deleted, .cleaned and .tmp files. Completes interrupted swaps (`swap.py`)."""
        names = self._list()
        for name in names:
            if name.endswith((DELETED_SUFFIX, HALF_WRITTEN_SUFFIX)):
                self._remove_if_exists(name)
        cleaned = [name for name in names if name.endswith(CLEANED_SUFFIX)]
        swaps = [name for name in names if name.endswith(SWAP_SUFFIX)]
        if cleaned:
            # The .swap files go first: without the .cleaned files their swap would count as ready.
            first = min(map(_offset_of, cleaned))
            for name in swaps:
                if _offset_of(name) >= first:
                    self._remove_if_exists(name)
            for name in cleaned:
                self._remove_if_exists(name)
            swaps = [name for name in swaps if _offset_of(name) < first]
        for name in swaps:
            if name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
                self._finish_swap(_offset_of(name))
        for name in swaps:
            if name.endswith(TRANSACTION_INDEX_SUFFIX + SWAP_SUFFIX):
                self._rename_if_exists(name, name.removesuffix(SWAP_SUFFIX))
        for name in swaps:
            self._remove_if_exists(name)

    def _finish_swap(self, base_offset: int) -> None:
        """Replaces the segments that a cleaned segment was made from. May be repeated after a crash."""
        swap = self._new_segment(base_offset, suffix=SWAP_SUFFIX)
        swap.open_existing()
        next_offset = base_offset
        for _, header in batch_scan.headers(swap.file().read, 0, swap.size_bytes):
            next_offset = header.next_offset
        swap.close_handles()
        for name in self._list():
            match = segment_file(name)
            if match is None or match["kind"] == SNAPSHOT_SUFFIX:
                continue
            old = int(match["offset"])
            if base_offset < old < next_offset or (old == base_offset and match["kind"] != LOG_SUFFIX):
                self._remove_if_exists(name)
        # The log file first: while it ends with .swap, the loader removes the segment's other files.
        for kind in (LOG_SUFFIX, TRANSACTION_INDEX_SUFFIX):
            self._rename_if_exists(file_name(base_offset, kind + SWAP_SUFFIX), file_name(base_offset, kind))
        self._file_system.sync_directory(self._directory)

    def _new_segment(self, base_offset: int, suffix: str = "") -> LogSegment:
        return LogSegment(
            self._file_system,
            self._directory,
            base_offset,
            self._unsynced,
            index_interval_bytes=self._config.index_interval_bytes,
            created_ms=self._now_ms,
            suffix=suffix,
        )

    def _open_segments(self) -> None:
        names = self._name_set = set(self._names)
        for name in list(self._names):
            match = segment_file(name)
            if match is None or match["kind"] == SNAPSHOT_SUFFIX:
                continue
            base_offset = int(match["offset"])
            if match["kind"] != LOG_SUFFIX:
                if file_name(base_offset, LOG_SUFFIX) not in names:
                    _LOGGER.warning("Removing index %s, which has no log", self._path(name))
                    self._remove_if_exists(name)
                    self._names.remove(name)
                continue
            segment = self._new_segment(base_offset)
            segment.open_existing()
            self._segments.add(segment)

    def _find_snapshots(self) -> ProducerSnapshots:
        matches = [segment_file(name) for name in self._names]
        offsets = [int(match["offset"]) for match in matches if match and match["kind"] == SNAPSHOT_SUFFIX]
        return ProducerSnapshots(self._file_system, self._directory, self._unsynced, offsets)

    def _mark_unsynced(self, recovery_point: int) -> None:
        """A killed process's writes may be only in the kernel's memory, so the next flush must sync them."""
        suspect = self._segments.starting_with(recovery_point) if len(self._segments) else []
        first = suspect[0].base_offset if suspect else 0
        for name in self._names:
            match = segment_file(name)
            if match is None or int(match["offset"]) >= first:
                self._unsynced.mark(self._path(name))
        self._unsynced.mark(self._directory)
        self._unsynced.mark(self._directory.rpartition("/")[0])

    def _read_topic_id(self, is_clean: bool) -> UUID | None:
        if PARTITION_METADATA_FILE not in self._names:
            return None
        path = self._path(PARTITION_METADATA_FILE)
        content = self._file_system.read_file(path)
        try:
            topic_id = parse_partition_metadata(content, path)
        except KafkaError as error:
            if is_clean:
                raise
            _LOGGER.warning("Removing a torn file: %s", error.message)
            topic_id = None
        if topic_id is None:
            # The file is not synced when it is written, so a machine crash may tear it. It is removed, because the id
            # may not be assigned again before a clean shutdown, after which a torn file is an error.
            self._remove_if_exists(PARTITION_METADATA_FILE)
            self._unsynced.forget(path)
            self._unsynced.mark(self._directory)
        return topic_id

    # -- batches --------------------------------------------------------------------------------------------------

    def _load_batches(self, recovery_point: int, is_clean: bool) -> tuple[int, ProducerState]:
        """Returns (log end offset, producer state there)."""
        if not len(self._segments):
            return -1, ProducerState()
        if not is_clean:
            return self._recover(recovery_point)
        damaged = self._first_damaged()
        if damaged is None:
            active = self._segments.active
            try:
                end = active.next_offset()
                return end, self._load_producer_state(end)
            except (CorruptIndexError, KafkaError) as error:
                if isinstance(error, KafkaError) and error.code is ErrorCode.KAFKA_STORAGE_ERROR:
                    raise  # The log is whole. A cut is allowed only for a write torn by a crash.
                _LOGGER.warning("Recovering %s although it was shut down cleanly: %s", active.path, error)
                damaged = active
        return self._recover(damaged.base_offset)

    def _first_damaged(self) -> LogSegment | None:
        """The first segment that contradicts a clean shutdown, if any. Rebuilds missing indexes."""
        for segment in self._segments:
            try:
                self._load_transaction_index(segment)
            except CorruptIndexError as error:
                _LOGGER.warning("Recovering from %s on: %s", segment.path, error)
                return segment
            try:
                segment.offset_index.last_entry_on_disk()
                segment.time_index.last_entry_on_disk()
            except (CorruptIndexError, FileNotFoundError) as index_error:
                _LOGGER.warning("Rebuilding the indexes of %s: %s", segment.path, index_error)
                try:
                    segment.rebuild_indexes()
                except KafkaError as error:
                    _LOGGER.warning("Recovering from %s on: %s", segment.path, error.message)
                    return segment
        return None

    def _load_transaction_index(self, segment: LogSegment) -> None:
        """Loads the transaction index, if the segment has one. Raises CorruptIndexError."""
        if file_name(segment.base_offset, TRANSACTION_INDEX_SUFFIX) in self._name_set:
            segment.transaction_index.load()

    def _load_producer_state(self, end: int) -> ProducerState:
        """Used after a clean shutdown."""
        state = self._load_snapshot(end)
        if state.end_offset < end:
            self._replay(self._segments.starting_with(state.end_offset), state)
            state.end_offset = end
        return state

    def _load_snapshot(self, at_most: int) -> ProducerState:
        """The state from which to replay up to `at_most`. Without a good snapshot, an empty state at the log's first
        batch. If a clean log has no snapshot at all, nothing is replayed, and its producers count as expired.

        A transaction that was finished above the high watermark is not stable yet. Only a replay of its batches shows
        that.
        """
        state = self._snapshots.load_latest(at_most)
        first = self._segments.first.base_offset
        if state is None and self._is_without_snapshots:
            return ProducerState(at_most, has_expired=at_most > first)
        if state is None:
            return ProducerState(first)
        if self._high_watermark is None:
            return state
        # The checkpoint may be older than a deletion of segments. The snapshot has the state before the first segment.
        high_watermark = max(self._high_watermark, first)
        if not state.has_markers or not self._has_marker(high_watermark, state.end_offset):
            return state
        return self._snapshots.load_latest(high_watermark) or ProducerState(first)

    def _has_marker(self, start_offset: int, end_offset: int) -> bool:
        """Whether a transaction ends in [start_offset, end_offset)."""
        for segment in self._segments.starting_with(start_offset) if start_offset < end_offset else ():
            segment.load_indexes()
            position = segment.offset_index.lookup(start_offset)
            for _, header, batch in whole_batches(segment.file(), position, segment.size_bytes, _REPLAY_WINDOW_BYTES):
                if header.base_offset >= end_offset:
                    return False
                # A damaged batch may have been a marker. The replay reports the damage.
                if header.base_offset >= start_offset and (header.is_control or not crc_matches(batch, 0, header)):
                    return True
        return False

    def _recover(self, recovery_point: int) -> tuple[int, ProducerState]:
        """Verifies the segments from the recovery point on. Returns (log end offset, producer state there)."""
        suspect = self._segments.starting_with(recovery_point)
        start = self._recovered_from = suspect[0].base_offset
        trusted = [segment for segment in self._segments if segment.base_offset < start]
        for segment in trusted:
            try:
                self._load_transaction_index(segment)
            except CorruptIndexError as error:
                _LOGGER.warning("Recovering from %s on: %s", segment.path, error)
                return self._recover(segment.base_offset)
        self._snapshots.distrust_after(start)
        state = self._load_snapshot(start)
        first_replayed = self._segments.starting_with(state.end_offset)[0].base_offset
        self._replay([segment for segment in trusted if segment.base_offset >= first_replayed], state)
        self._epochs.truncate_from_end(start)
        end = self._end_of(trusted[-1]) if trusted else start
        for number, segment in enumerate(suspect):
            # If the segment begins below the end, a machine crash undid its deletion by a truncation, but not the newer
            # records. If it begins above the end, compaction has dropped records, or the crash lost the end of the
            # segment before it.
            is_hole = segment.base_offset > end and number > 0
            if segment.base_offset < end or (is_hole and not self._is_compacted_at(segment.base_offset)):
                _LOGGER.warning("Dropping %s: the log before it ends at offset %d", segment.path, end)
                self._drop(suspect[number:])
                break
            state.end_offset = segment.base_offset
            self._snapshots.take_if_room(state)
            damage = self._recover_segment(segment, state)
            end = state.end_offset
            if damage is not None:
                _LOGGER.warning("Cut %s at offset %d: %s", segment.path, end, damage)
                self._drop(suspect[number + 1 :])
                break
        return end, state

    def _is_compacted_at(self, base_offset: int) -> bool:
        """Whether compaction may have dropped the records before this segment, now or when the topic was compacted.

        Segments below the first dirty offset are cleaned, and were synced. A follower may have copied a compacted log
        without cleaning it, and a cleaner may have died before its checkpoint: then offsets are missing elsewhere, too.
        """
        return self._config.is_compacted or base_offset <= self._first_dirty_offset or self._lacks_offsets

    @cached_property
    def _lacks_offsets(self) -> bool:
        """Whether a segment has a batch with fewer records than offsets, or a gap between two batches."""
        for segment in self._segments:
            next_offset = segment.base_offset
            try:
                for _, header in batch_scan.headers(segment.file().read, 0, segment.size_bytes):
                    if header.base_offset > next_offset or header.record_count <= header.last_offset_delta:
                        return True
                    next_offset = header.next_offset
            except KafkaError:
                continue  # Only the part before the damage counts.
        return False

    def _end_of(self, segment: LogSegment) -> int:
        """The end offset of a segment that need not be verified."""
        try:
            return segment.next_offset()
        except (CorruptIndexError, FileNotFoundError):
            segment.rebuild_indexes()
            return segment.next_offset()

    def _recover_segment(self, segment: LogSegment, state: ProducerState) -> str | None:
        def each(_position: int, header: BatchHeader, batch: memoryview) -> None:
            if header.partition_leader_epoch > self._epochs.latest_epoch:
                self._epochs.assign(header.partition_leader_epoch, header.base_offset)
            marker = decode_end_transaction_marker(batch, 0, header) if header.is_control else None
            completed = state.update(header, marker)
            if completed is not None:
                segment.transaction_index.note([completed])

        damage = segment.recover(each)
        segment.release()
        return damage

    def _replay(self, segments: Sequence[LogSegment], state: ProducerState) -> None:
        """Brings the producer state to the end of `segments`."""
        for segment in segments:
            segment.load_indexes()
            start = segment.offset_index.lookup(state.end_offset)
            replay_batches(segment.file(), start, segment.size_bytes, state)

    def _drop(self, segments: Sequence[LogSegment]) -> None:
        for segment in segments:
            self._segments.remove(segment)
            for path in segment.mark_deleted():
                self._file_system.remove(path)

    def _start_anew(self, log_start_offset: int, end: int) -> tuple[int, ProducerState]:
        """Starts an empty log: there are no segments, or all of them end before the log start offset."""
        if len(self._segments):
            _LOGGER.warning(
                "Dropping the segments of %s: they end at offset %d, before the log start offset %d",
                self._directory,
                end,
                log_start_offset,
            )
            self._drop(list(self._segments))
            self._epochs.clear()
        self._snapshots.delete_after(-1)
        segment = self._new_segment(log_start_offset)
        segment.create_files()
        self._segments.add(segment)
        return log_start_offset, ProducerState(log_start_offset)

    # -- leader epochs --------------------------------------------------------------------------------------------

    def _read_leader_epochs(self) -> list[EpochEntry] | None:
        """The checkpoint's entries. None when they must be rebuilt from the batches."""
        path = self._path(LEADER_EPOCH_CHECKPOINT)
        if LEADER_EPOCH_CHECKPOINT not in self._names or not (content := self._file_system.read_file(path)):
            return None
        try:
            return parse_leader_epoch_checkpoint(content, path)
        except KafkaError as error:
            _LOGGER.warning("Rebuilding the leader epochs from the log: %s", error.message)
            return None

    def _rebuild_leader_epochs(self) -> None:
        self._epochs.clear()
        for segment in self._segments:
            for _, header in batch_scan.headers(segment.file().read, 0, segment.size_bytes):
                if header.partition_leader_epoch > self._epochs.latest_epoch:
                    self._epochs.assign(header.partition_leader_epoch, header.base_offset)

    def _write_leader_epochs(self, entries: Sequence[EpochEntry]) -> None:
        path = self._path(LEADER_EPOCH_CHECKPOINT)
        replace_unsynced(self._file_system, path, format_leader_epoch_checkpoint(entries), self._unsynced)


def replay_batches(file: File, position: int, end: int, state: ProducerState, *, max_batches: int | None = None) -> int:
    """Applies the batches in [position, end) that `state` does not have yet. Returns the position where it stopped.

    Raises OSError; KafkaError: CORRUPT_MESSAGE where bytes are not a batch, KAFKA_STORAGE_ERROR for a batch with a
    wrong checksum, because its producer is unknown and it may end a transaction.
    """
    for found, header, batch in islice(whole_batches(file, position, end, _REPLAY_WINDOW_BYTES), max_batches):
        position = found + header.size_bytes
        if header.base_offset < state.end_offset:
            continue
        if not crc_matches(batch, 0, header):
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{file.path} is damaged: at offset {header.base_offset} the bytes do not fit their checksum; if"
                " another replica has the records, remove the partition's directory while the broker is stopped",
            )
        state.update(header, decode_end_transaction_marker(batch, 0, header) if header.is_control else None)
    return position


def segment_file(name: str) -> "re.Match[str] | None":
    """None for the name of any other file, including a name with an offset that no record can have."""
    match = _SEGMENT_FILE.fullmatch(name)
    return match if match is not None and int(match["offset"]) <= _MAX_BASE_OFFSET else None


def _offset_of(name: str) -> int:
    """The offset in the name of a .cleaned or .swap file; a name without an offset gets one above all others."""
    offset = name.partition(".")[0]
    return int(offset) if offset.isdecimal() else _MAX_BASE_OFFSET
