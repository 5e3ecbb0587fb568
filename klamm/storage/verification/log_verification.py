"""Verifies a partition's directory without a broker, and predicts what opening it would do. Nothing is changed.

A *finding* is a fault that a sound log does not have. `verify_log` reads every batch of every segment, even where a
recovery would trust it, and compares the indexes, snapshots and checkpoints with the batches. `predict` runs the loader
itself on an overlay of the directory, so it cannot disagree with a broker's start.

What must stay true: after damage, reading continues at the next batch or segment that can be found.
"""

import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

from klamm.base.environment import FileSystem
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.record.record_batch import BatchHeader, check_crc
from klamm.protocol.record.records import decode_end_transaction_marker
from klamm.protocol.vocabulary import NO_EPOCH
from klamm.storage.log.leader_epoch_cache import LeaderEpochCache
from klamm.storage.log.log_loader import LoadedLog, segment_file
from klamm.storage.log.producer_state import ProducerState
from klamm.storage.segments import batch_scan
from klamm.storage.segments.checkpoints import LEADER_EPOCH_CHECKPOINT, parse_leader_epoch_checkpoint
from klamm.storage.segments.index_file import CorruptIndexError
from klamm.storage.segments.log_directory import PARTITION_METADATA_FILE, parse_partition_metadata
from klamm.storage.segments.offset_index import OffsetIndex
from klamm.storage.segments.search_index import Entry
from klamm.storage.segments.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    file_name,
)
from klamm.storage.segments.time_index import TimeIndex
from klamm.storage.segments.transaction_index import AbortedTransaction, TransactionIndex
from klamm.storage.segments.unsynced_files import UnsyncedFiles
from klamm.storage.verification.overlay import OverlayFileSystem

# The findings of one log that are reported one by one.
MAX_FINDINGS = 100
INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)


class Finding(NamedTuple):
    """A fault of a log. `position` is the byte and `offset` the record, if known."""

    file: str
    position: int | None
    offset: int | None
    what: str


@dataclass(slots=True)
class VerifiedLog:
    """The content of a partition's directory, and its findings."""

    segments: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    log_end_offset: int = 0
    findings: list[Finding] = field(default_factory=list)
    # The number of further findings.
    more_findings: int = 0

    def add(self, finding: Finding) -> None:
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(finding)
        else:
            self.more_findings += 1


class Cut(NamedTuple):
    """A segment that would be cut at `position` and lose `lost_bytes`."""

    file: str
    position: int
    lost_bytes: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """The effect of a broker's start. With `refusal`, it would refuse the log for that reason, and change nothing more.

    `recovers_from` is the base offset of the first segment that would be recovered, None without a recovery;
    `recovered_bytes` is the size of the segments from there on, which a recovery reads. `lost_records` counts the lost
    records whose batches still have a readable header.
    """

    recovers_from: int | None
    recovered_bytes: int
    log_start_offset: int
    log_end_offset: int
    cuts: tuple[Cut, ...]
    dropped: tuple[str, ...]
    lost_bytes: int
    lost_records: int
    rebuilt_indexes: tuple[str, ...]
    removed: tuple[str, ...]
    written: tuple[str, ...]
    refusal: str | None = None


# -- the log ----------------------------------------------------------------------------------------------------------


def verify_log(
    file_system: FileSystem,
    directory: str,
    *,
    compacted_to: float = 0,
    on_read: Callable[[int], object] = lambda size_bytes: None,
) -> VerifiedLog:
    """Reads all files of a partition's directory. Raises OSError. Compaction may have left gaps between segments up to
    the offset `compacted_to`. `on_read` gets the size of each segment."""
    return _Verification(file_system, directory, compacted_to).run(on_read)


class _Verification:
    def __init__(self, file_system: FileSystem, directory: str, compacted_to: float) -> None:
        self._file_system = file_system
        self._directory = directory
        self._compacted_to = compacted_to
        self._log = VerifiedLog()
        self._state = ProducerState()
        self._epochs: LeaderEpochCache | None = None

    def run(self, on_read: Callable[[int], object]) -> VerifiedLog:
        names = self._file_system.list_directory(self._directory)
        offsets = sorted(_offsets(names, LOG_SUFFIX))
        self._epochs = self._read_epochs(names)
        self._check_topic_id(names)
        if offsets:
            self._state = ProducerState(offsets[0])
        last_offset, last_epoch = -1, NO_EPOCH
        # After damage, the end of a segment is unknown.
        is_end_known = False
        for base_offset, end_offset in zip_longest(offsets, offsets[1:]):
            if base_offset <= last_offset:
                self._found(
                    file_name(base_offset, LOG_SUFFIX), 0, base_offset, f"the log before it ends at {last_offset}"
                )
            elif is_end_known and base_offset > max(last_offset + 1, self._compacted_to):
                what = f"offsets {last_offset + 1} to {base_offset - 1} are missing before this segment"
                self._found(file_name(base_offset, LOG_SUFFIX), 0, last_offset + 1, what)
            segment = _SegmentCheck(
                self._file_system, self._directory, base_offset, end_offset, self._log, self._state, self._epochs
            )
            last_offset, last_epoch = segment.run(max(last_offset, base_offset - 1), last_epoch)
            is_end_known = segment.is_sound
            on_read(segment.size_bytes)
        self._log.log_end_offset = last_offset + 1
        for name in names:
            match = segment_file(name)
            if match is not None and match["kind"] in INDEX_SUFFIXES and int(match["offset"]) not in offsets:
                self._found(name, None, None, "an index without its log")
        for offset in sorted(_offsets(names, SNAPSHOT_SUFFIX)):
            self._check_snapshot(offset)
        return self._log

    def _found(self, file: str, position: int | None, offset: int | None, what: str) -> None:
        self._log.add(Finding(file, position, offset, what))

    def _read(self, name: str) -> bytes:
        return self._file_system.read_file(f"{self._directory}/{name}")

    def _read_epochs(self, names: Sequence[str]) -> LeaderEpochCache | None:
        """The leader epochs; None without a readable checkpoint."""
        if LEADER_EPOCH_CHECKPOINT not in names:
            return None
        try:
            entries = parse_leader_epoch_checkpoint(self._read(LEADER_EPOCH_CHECKPOINT), LEADER_EPOCH_CHECKPOINT)
        except KafkaError as error:
            self._found(LEADER_EPOCH_CHECKPOINT, None, None, error.message)
            return None
        return LeaderEpochCache(entries, persist=lambda entries: None)

    def _check_topic_id(self, names: Sequence[str]) -> None:
        if PARTITION_METADATA_FILE in names:
            try:
                parse_partition_metadata(self._read(PARTITION_METADATA_FILE), PARTITION_METADATA_FILE)
            except KafkaError as error:
                self._found(PARTITION_METADATA_FILE, None, None, error.message)

    def _check_snapshot(self, offset: int) -> None:
        name = file_name(offset, SNAPSHOT_SUFFIX)
        try:
            ProducerState.from_snapshot(self._read(name), offset, name)
        except (KafkaError, struct.error) as error:
            self._found(name, None, None, str(error))


class _SegmentCheck:
    """One segment and its indexes. Reading a batch removes its index entries."""

    def __init__(
        self,
        file_system: FileSystem,
        directory: str,
        base_offset: int,
        end_offset: int | None,
        log: VerifiedLog,
        state: ProducerState,
        epochs: LeaderEpochCache | None,
    ) -> None:
        self._file_system = file_system
        self._directory = directory
        self._base_offset = base_offset
        # The base offset of the next segment.
        self._end_offset = end_offset
        self._log = log
        self._state = state
        self._epochs = epochs
        self._name = file_name(base_offset, LOG_SUFFIX)
        self.is_sound = True
        self._is_any_misplaced = False
        self._offsets_by_position: dict[int, int] = {}
        self._times: deque[Entry] = deque()
        self._aborted: list[AbortedTransaction] = []
        self.size_bytes = 0

    def run(self, last_offset: int, last_epoch: int) -> tuple[int, int]:
        """(last offset, leader epoch) at the segment's end."""
        self._read_indexes()
        file = self._file_system.open_to_read(self._path(LOG_SUFFIX))
        try:
            self.size_bytes = end = file.size()
            position = 0
            try:
                for at, header, batch in batch_scan.whole_batches(file, 0, end):
                    position = at + header.size_bytes
                    if self._is_good(at, header, batch, last_offset, last_epoch):
                        last_offset = header.last_offset
                        last_epoch = max(last_epoch, header.partition_leader_epoch)
            except KafkaError as error:
                what = f"{error.message}; the {end - position} bytes from here on cannot be read"
                self._found(position, last_offset + 1, what)
        finally:
            file.close()
        self._log.segments += 1
        self._log.size_bytes += end
        self._check_what_is_left(position)
        return last_offset, last_epoch

    def _path(self, suffix: str) -> str:
        return f"{self._directory}/{file_name(self._base_offset, suffix)}"

    def _found(self, position: int | None, offset: int | None, what: str) -> None:
        self.is_sound = False
        self._log.add(Finding(self._name, position, offset, what))

    def _misplaced(self, position: int, offset: int, what: str) -> None:
        """A wrong offset makes all later batches wrong, so only the first one is reported."""
        if self._is_any_misplaced:
            self._log.more_findings += 1
        else:
            self._is_any_misplaced = True
            self._found(position, offset, what)

    def _index_found(self, suffix: str, offset: int | None, what: str) -> None:
        self._log.add(Finding(file_name(self._base_offset, suffix), None, offset, what))

    def _is_good(
        self, position: int, header: BatchHeader, batch: memoryview, last_offset: int, last_epoch: int
    ) -> bool:
        self._log.batches += 1
        self._check_offset_entry(position, header)
        try:
            check_crc(batch, 0, header)
            marker = decode_end_transaction_marker(batch, 0, header) if header.is_control else None
        except KafkaError as error:
            self._found(position, header.base_offset, error.message)
            return False
        if self._end_offset is not None and header.last_offset >= self._end_offset:
            what = f"ends at offset {header.last_offset}, but the next segment begins at {self._end_offset}"
            self._misplaced(position, header.base_offset, what)
            return False
        if not last_offset < header.base_offset <= header.last_offset:
            what = f"offsets {header.base_offset} to {header.last_offset} do not follow {last_offset}"
            self._misplaced(position, header.base_offset, what)
            return False
        self._log.records += header.record_count
        self._check_time_entries(header)
        self._check_epoch(position, header, last_epoch)
        completed = self._state.update(header, marker)
        if completed is not None and completed.is_aborted:
            self._aborted.append(AbortedTransaction(completed[0], completed[1], completed[2], completed[4]))
        return True

    def _check_epoch(self, position: int, header: BatchHeader, last_epoch: int) -> None:
        epoch = header.partition_leader_epoch
        if NO_EPOCH < epoch < last_epoch:
            self._found(position, header.base_offset, f"leader epoch {epoch} follows leader epoch {last_epoch}")
        elif epoch > NO_EPOCH and self._epochs is not None:
            known = self._epochs.epoch_for(header.base_offset)
            if known != epoch:
                what = f"says leader epoch {known} for the batch of leader epoch {epoch}"
                self._log.add(Finding(LEADER_EPOCH_CHECKPOINT, None, header.base_offset, what))
                # Later batches of this segment would repeat the finding.
                self._epochs = None

    # -- indexes --------------------------------------------------------------------------------------------------

    def _read_indexes(self) -> None:
        """Reads the indexes. An active segment's last entries may not be written yet."""
        try:
            content, path = self._index(INDEX_SUFFIX)
            entries = OffsetIndex.entries_in_use(content, path, self._base_offset)
            self._offsets_by_position = {position: offset for offset, position in entries}
        except CorruptIndexError as error:
            self._index_found(INDEX_SUFFIX, None, str(error))
        try:
            content, path = self._index(TIME_INDEX_SUFFIX)
            self._times.extend(TimeIndex.entries_in_use(content, path, self._base_offset))
        except CorruptIndexError as error:
            self._index_found(TIME_INDEX_SUFFIX, None, str(error))

    def _index(self, suffix: str) -> tuple[bytes, str]:
        path = self._path(suffix)
        if not self._file_system.exists(path):
            raise CorruptIndexError("the index is missing")
        return self._file_system.read_file(path), file_name(self._base_offset, suffix)

    def _check_offset_entry(self, position: int, header: BatchHeader) -> None:
        offset = self._offsets_by_position.pop(position, None)
        # If an append had several batches, its entry has the offset of the last batch.
        if offset is not None and header.base_offset > offset:
            self._index_found(INDEX_SUFFIX, offset, f"is not at position {position}: offset {header.base_offset} is")

    def _check_time_entries(self, header: BatchHeader) -> None:
        """The entries of a batch have its largest timestamp and any of its offsets."""
        while self._times and self._times[0][1] <= header.last_offset:
            timestamp_ms, offset = self._times.popleft()
            if offset < header.base_offset:
                self._no_batch_of_time(offset)
            elif timestamp_ms != header.max_timestamp:
                what = f"says {timestamp_ms} for the batch whose largest timestamp is {header.max_timestamp}"
                self._index_found(TIME_INDEX_SUFFIX, offset, what)

    def _no_batch_of_time(self, offset: int) -> None:
        # The damaged batch may be the batch of this entry.
        if self.is_sound:
            self._index_found(TIME_INDEX_SUFFIX, offset, "no batch holds this offset")

    def _check_what_is_left(self, position: int) -> None:
        """Reports the remaining entries, which have no batch. `position` is where reading ended."""
        wrong = [at for at in self._offsets_by_position if at < position or at >= self.size_bytes]
        if wrong:
            offset = self._offsets_by_position[wrong[0]]
            self._index_found(INDEX_SUFFIX, offset, f"no batch begins at position {wrong[0]}")
        if self._times:
            self._no_batch_of_time(self._times[0][1])
        path = self._path(TRANSACTION_INDEX_SUFFIX)
        index = TransactionIndex(self._file_system, path, self._base_offset, UnsyncedFiles())
        try:
            index.load()
        except CorruptIndexError as error:
            self._index_found(TRANSACTION_INDEX_SUFFIX, None, str(error).removeprefix(f"{self._directory}/"))
            return
        # The first batches of an aborted transaction may have left a compacted log.
        known = {(entry.producer_id, entry.last_offset): entry.first_offset for entry in index.entries}
        missing = [
            each
            for each in self._aborted
            if known.get((each.producer_id, each.last_offset), each.last_offset) > each.first_offset
        ]
        if missing and self.is_sound:
            what = f"lacks the aborted transaction of producer {missing[0].producer_id}"
            self._index_found(TRANSACTION_INDEX_SUFFIX, missing[0].first_offset, what)


def _offsets(names: Sequence[str], suffix: str) -> list[int]:
    matches = (segment_file(name) for name in names)
    return [int(match["offset"]) for match in matches if match is not None and match["kind"] == suffix]


# -- what a start would do --------------------------------------------------------------------------------------------


def predict(file_system: FileSystem, directory: str, load: Callable[[FileSystem], LoadedLog]) -> Prediction:
    """The effect of `load`, a `load_log` of this directory. Raises OSError."""
    overlay = OverlayFileSystem(file_system)
    loaded: LoadedLog | None = None
    refusal = None
    try:
        loaded = load(overlay)
    except KafkaError as error:
        refusal = error.message
    return _prediction(file_system, overlay, directory, loaded, refusal)


def _prediction(
    below: FileSystem, overlay: OverlayFileSystem, directory: str, loaded: LoadedLog | None, refusal: str | None
) -> Prediction:
    cuts: list[Cut] = []
    dropped: list[str] = []
    rebuilt: list[str] = []
    removed: list[str] = []
    written: list[str] = []
    lost_bytes = lost_records = 0
    for path in overlay.changed():
        name = path.removeprefix(f"{directory}/")
        match = segment_file(name)
        kind = "" if match is None else match["kind"]
        was_there, is_there = below.exists(path), overlay.exists(path)
        if not is_there:
            (dropped if kind == LOG_SUFFIX else removed).append(name)
        elif kind in INDEX_SUFFIXES:
            rebuilt.append(name)
        elif kind == LOG_SUFFIX and was_there:
            cuts.append(Cut(name, overlay.size(path), below.size(path) - overlay.size(path)))
        else:
            written.append(name)
        if kind == LOG_SUFFIX and was_there:
            kept = overlay.size(path) if is_there else 0
            lost_bytes += below.size(path) - kept
            lost_records += _records_behind(below, path, kept)
    recovers_from = None if loaded is None else loaded.recovered_from
    return Prediction(
        recovers_from=recovers_from,
        recovered_bytes=0 if recovers_from is None else _bytes_from(below, directory, recovers_from),
        log_start_offset=-1 if loaded is None else loaded.log_start_offset,
        log_end_offset=-1 if loaded is None else loaded.log_end_offset,
        cuts=tuple(cuts),
        dropped=tuple(dropped),
        lost_bytes=lost_bytes,
        lost_records=lost_records,
        rebuilt_indexes=tuple(rebuilt),
        removed=tuple(removed),
        written=tuple(written),
        refusal=refusal,
    )


def _bytes_from(file_system: FileSystem, directory: str, base_offset: int) -> int:
    offsets = _offsets(file_system.list_directory(directory), LOG_SUFFIX)
    names = (file_name(offset, LOG_SUFFIX) for offset in offsets if offset >= base_offset)
    return sum(file_system.size(f"{directory}/{name}") for name in names)


def _records_behind(file_system: FileSystem, path: str, position: int) -> int:
    """The number of records behind a position, as far as headers can be read."""
    file = file_system.open_to_read(path)
    count = 0
    try:
        for _, header in batch_scan.headers(file.read, position, file.size()):
            count += max(header.record_count, 0)
    except KafkaError:
        pass
    finally:
        file.close()
    return count
