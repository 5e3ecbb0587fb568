"""Cleans one log: keeps the last record of each key, drops the others, and writes the kept records into new segments.

Two passes. The first reads the dirty records and puts the last offset of each key into the offset map. The second reads
every segment, from the log's first on, and writes the records that stay. A record stays if
- it is above the last offset in the map, or
- it has a key, no later record in the map has the same key, and it has a value or its segment is too young to lose
  tombstones.

A compressed batch in which no key has its last offset is dropped without a second decompression.

When the map is full, the first pass ends within a segment, and the rest of the log stays dirty; each cleaning makes
progress, because the map has room for a key.

These stay, too:
- The last batch of each active producer, perhaps without its records: it has the producer's sequence number.
- A marker, as long as a batch of its transaction was in the log before this cleaning, or its segment is too young.
Batches of aborted transactions leave the log.

What must stay true:
- The work reads the log's files and writes only `.cleaned` files, so that it can be abandoned at any moment.
- Damaged bytes decide nothing: each batch's checksum is verified when the batch is read. The checksum does not cover
  the base offset, so each batch must also follow the one before it and lie within its segment. A damaged log is not
  cleaned.
- A control batch stays or leaves as a whole. (Kafka 2.8.2 drops a marker if its key is also the key of a later record.)

The age of a segment is its file's last modified time, as in Kafka 2.8.2. The delete horizon within a batch's header
(KIP-534) came with Kafka 3.1; batches that have it are kept as they are.

Source: kafka.log.Cleaner.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from functools import cache

from klamm.base.environment import FileSystem
from klamm.protocol.error_codes import corrupt_message
from klamm.protocol.record.compression import CompressionType, decompress, decompress_into
from klamm.protocol.record.record_batch import HEADER_SIZE_BYTES, BatchHeader
from klamm.protocol.record.records import decode_end_transaction_marker
from klamm.storage.compaction.batch_reader import BatchReader, ReadBatch
from klamm.storage.compaction.cleaned_segment import CleanedSegment, remove_cleaned_files
from klamm.storage.compaction.cleaned_transactions import CleanedTransactions
from klamm.storage.compaction.grouping import IndexedSegment, group_segments
from klamm.storage.compaction.kept_records import batch_of, empty_batch
from klamm.storage.compaction.last_offsets import LastOffsets
from klamm.storage.compaction.offset_map import MapSize
from klamm.storage.compaction.plain_kernel import Kernel, PlainKernel
from klamm.storage.log.job import (
    CleanedGroup,
    CleaningJob,
    CleaningProgress,
    CleaningResult,
    CleaningStatistics,
    SourceSegment,
)
from klamm.storage.segments.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, file_name
from klamm.storage.segments.transaction_index import unpack_entries

_STEP_BYTES = 1024 * 1024
# The plain kernel cleans a smaller log in less time than numba takes to load, and without numba's hundred megabytes.
COMPILED_FROM_BYTES = 4 * 1024 * 1024
_BODY_ROOM_BYTES = 256 * 1024
_UNKNOWN_MARKER = -1

CleaningSteps = Generator[CleaningProgress, None, CleaningResult]
KernelType = Callable[[CleaningJob, MapSize, CleaningStatistics], Kernel]


def clean(job: CleaningJob, file_system: FileSystem, kernel_type: KernelType = PlainKernel) -> CleaningSteps:
    """Does the work of `job` in steps of about a megabyte.

    Raises OSError; KafkaError where the log is damaged or has messages of an old format, so that it cannot be cleaned;
    ValueError when the offset map has no room for a key. Without a result, the work removes the files that it has
    written.
    """
    remove_cleaned_files(file_system, job.directory)
    try:
        return (yield from _Cleaning(job, file_system, kernel_type).run())
    except BaseException:
        with suppress(OSError):
            remove_cleaned_files(file_system, job.directory)
        raise


def kernel_for(job: CleaningJob) -> KernelType:
    """The kernel that finishes this job sooner in a new process."""
    size_bytes = sum(segment.size_bytes for segment in job.segments)
    return fastest_kernel() if size_bytes >= COMPILED_FROM_BYTES else PlainKernel


@cache
def fastest_kernel() -> KernelType:
    """The compiled kernel, where numba works. Imports numba, so it is called in a worker process only."""
    try:
        from klamm.storage.compaction.compiled_kernel import CompiledKernel
    except Exception:
        return PlainKernel
    return CompiledKernel


class _Cleaning:
    def __init__(self, job: CleaningJob, file_system: FileSystem, kernel_type: KernelType) -> None:
        self._job = job
        self._file_system = file_system
        self._statistics = CleaningStatistics()
        self._size = MapSize(job.map_bytes, job.map_load_factor, job.first_uncleanable_offset - job.first_dirty_offset)
        self._kernel = kernel_type(job, self._size, self._statistics)
        following = [segment.base_offset for segment in job.segments[1:]]
        self._ends = dict(zip(job.segments, [*following, job.first_uncleanable_offset], strict=True))
        self._aborted = [
            each
            for packed in job.packed_aborted
            for each in unpack_entries(packed)
            if each.first_offset < job.first_uncleanable_offset
        ]
        self._last_records = {last.producer_id: last for last in job.last_records}
        self._unreported_bytes = 0
        self._last_offsets: LastOffsets  # known after the first pass
        # Uncompressed records, one batch after another.
        self._body_room = memoryview(bytearray(_BODY_ROOM_BYTES))

    def run(self) -> CleaningSteps:
        yield from self._fill_map()
        self._last_offsets = LastOffsets(self._job.first_dirty_offset, self._kernel.latest_offset + 1)
        self._kernel.mark_last_offsets(self._last_offsets)
        self._statistics.map_utilization = self._kernel.key_count / self._size.most_slots
        end_offset = self._kernel.latest_offset + 1
        segments = [segment for segment in self._job.segments if segment.base_offset < end_offset]
        transactions = CleanedTransactions(self._aborted)
        groups = []
        for sources in self._group(segments):
            groups.append((yield from self._clean_group(sources, transactions)))
        return CleaningResult(tuple(groups), end_offset, self._statistics)

    def _progress(self, size_bytes: int, *, is_filling_map: bool) -> Iterator[CleaningProgress]:
        self._unreported_bytes += size_bytes
        if self._unreported_bytes >= _STEP_BYTES:
            yield CleaningProgress(self._unreported_bytes, is_filling_map)
            self._unreported_bytes = 0

    # -- the offset map -------------------------------------------------------------------------------------------

    def _fill_map(self) -> Generator[CleaningProgress, None, None]:
        job = self._job
        # Leaves out transactions that end before the dirty records: this pass would not find their markers.
        transactions = CleanedTransactions(each for each in self._aborted if each.last_offset >= job.first_dirty_offset)
        for segment in job.segments:
            end_offset = self._ends[segment]
            if end_offset > job.first_dirty_offset:
                if not (yield from self._fill_from(segment, transactions)):
                    return
                # There may be a gap after the last batch.
                self._kernel.latest_offset = end_offset - 1

    def _fill_from(
        self, segment: SourceSegment, transactions: CleanedTransactions
    ) -> Generator[CleaningProgress, None, bool]:
        """Returns False if the map has no room for all keys of the segment."""
        has_room = True
        self._kernel.next_offset, self._kernel.end_offset = segment.base_offset, self._ends[segment]
        with self._open(segment) as reader:
            while has_room and (window := reader.window()):
                at = 0
                while has_room:
                    at, has_room = self._kernel.fill_run(window, at)
                    batch = self._next_batch(reader, window, at) if has_room else None
                    if batch is None:
                        break
                    at += batch.header.size_bytes
                    has_room = self._fill(batch, transactions)
                reader.advance(at)
                self._statistics.map_bytes_read += at
                yield from self._progress(at, is_filling_map=True)
        return has_room

    def _fill(self, batch: ReadBatch, transactions: CleanedTransactions) -> bool:
        """Returns False if the map has no room for all keys of the batch."""
        header = batch.header
        if header.last_offset < self._job.first_dirty_offset:
            return True
        self._statistics.map_records_read += header.record_count
        has_room = True
        if header.is_control:
            transactions.end(header, _marker_kind(batch))
        elif not transactions.is_aborted(header) and header.record_count > 0:
            has_room = self._kernel.fill(self._body(batch), header)
        if has_room:
            self._kernel.latest_offset = header.last_offset
        return has_room

    # -- the new segments -----------------------------------------------------------------------------------------

    def _group(self, segments: Sequence[SourceSegment]) -> list[list[SourceSegment]]:
        job = self._job
        indexed = [
            IndexedSegment(
                segment, self._index_size(segment, INDEX_SUFFIX), self._index_size(segment, TIME_INDEX_SUFFIX)
            )
            for segment in segments
        ]
        return group_segments(indexed, self._ends[segments[-1]], job.segment_bytes, job.segment_index_bytes)

    def _index_size(self, segment: SourceSegment, kind: str) -> int:
        path = self._path(segment, kind)
        return self._file_system.size(path) if self._file_system.exists(path) else 0

    def _clean_group(
        self, sources: Sequence[SourceSegment], transactions: CleanedTransactions
    ) -> Generator[CleaningProgress, None, CleanedGroup]:
        job = self._job
        # The broker may have died during the last sync. Then the cleaning of the restarted broker owns these names.
        yield CleaningProgress(0, False)
        cleaned = CleanedSegment(
            self._file_system,
            job.directory,
            sources[0].base_offset,
            index_interval_bytes=job.index_interval_bytes,
            segment_index_bytes=job.segment_index_bytes,
        )
        try:
            for segment in sources:
                modified_ms = self._file_system.modified_time_ms(self._path(segment, LOG_SUFFIX))
                yield from self._clean_segment(segment, cleaned, transactions, modified_ms > job.delete_horizon_ms)
            cleaned.finish(modified_ms)
        finally:
            cleaned.close()
        return CleanedGroup(tuple(segment.base_offset for segment in sources), cleaned.size_bytes)

    def _clean_segment(
        self,
        segment: SourceSegment,
        cleaned: CleanedSegment,
        transactions: CleanedTransactions,
        retains_deletes: bool,
    ) -> Iterator[CleaningProgress]:
        statistics = self._statistics
        self._kernel.next_offset, self._kernel.end_offset = segment.base_offset, self._ends[segment]
        with self._open(segment) as reader:
            while window := reader.window():
                at, old_size_bytes = 0, cleaned.size_bytes
                while True:
                    run_at, at = at, self._kernel.keep_run(window, at, cleaned, retains_deletes=retains_deletes)
                    if at > run_at:
                        continue
                    batch = self._next_batch(reader, window, at)
                    if batch is None:
                        break
                    at += batch.header.size_bytes
                    written = self._cleaned_batch(batch, transactions, cleaned, retains_deletes)
                    if written is not None:
                        data, max_timestamp_ms = written
                        cleaned.append(data, batch.header.last_offset, max_timestamp_ms)
                reader.advance(at)
                new_bytes = cleaned.size_bytes - old_size_bytes
                statistics.bytes_read += at
                statistics.bytes_written += new_bytes
                yield from self._progress(at + new_bytes, is_filling_map=False)

    def _cleaned_batch(
        self,
        batch: ReadBatch,
        transactions: CleanedTransactions,
        cleaned: CleanedSegment,
        retains_deletes: bool,
    ) -> tuple[bytearray | bytes, int] | None:
        """(the batch with its remaining records, its largest timestamp), or None if the batch leaves the log."""
        header, statistics = batch.header, self._statistics
        if header.is_control:
            is_needless, aborted = transactions.end(header, _marker_kind(batch))
            if aborted is not None:
                cleaned.aborted_transactions.append(aborted)
            stays_whole = not is_needless or (retains_deletes and header.record_count > 0)
        else:
            stays_whole = False
        if stays_whole:
            statistics.records_read += header.record_count
            statistics.records_written += header.record_count
            return bytes(batch.data), header.max_timestamp
        if not header.is_control:
            statistics.records_read += header.record_count
            if not transactions.is_aborted(header) and header.record_count > 0 and not self._is_superseded(header):
                kept = self._kernel.keep(self._body(batch), header, retains_deletes=retains_deletes)
                statistics.records_written += kept.record_count
                if kept.record_count == header.record_count:
                    return bytes(batch.data), header.max_timestamp
                if kept.record_count > 0:
                    return batch_of(header, kept), kept.max_timestamp_ms
        if self._is_last_of_producer(header):
            return empty_batch(header), header.max_timestamp
        return None

    def _is_superseded(self, header: BatchHeader) -> bool:
        """Whether the first pass has shown that no record of a compressed batch stays."""
        return (
            header.codec != CompressionType.NONE
            and header.base_offset >= self._job.first_dirty_offset
            and header.last_offset <= self._kernel.latest_offset
            and not self._last_offsets.has_any(header.base_offset, header.last_offset)
        )

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self._last_records.get(header.producer_id)
        if last is None:
            return False
        if last.last_data_offset >= 0:
            return header.last_offset == last.last_data_offset
        return header.is_control and header.producer_epoch == last.producer_epoch

    # -- reading --------------------------------------------------------------------------------------------------

    def _path(self, segment: SourceSegment, kind: str) -> str:
        return f"{self._job.directory}/{file_name(segment.base_offset, kind)}"

    def _open(self, segment: SourceSegment) -> BatchReader:
        return BatchReader(self._file_system, self._path(segment, LOG_SUFFIX), segment.size_bytes)

    def _next_batch(self, reader: BatchReader, window: memoryview, at: int) -> ReadBatch | None:
        """Like `BatchReader.batch`. Raises KafkaError where the offsets are out of order."""
        batch = reader.batch(window, at)
        if batch is not None:
            header, kernel = batch.header, self._kernel
            if not kernel.next_offset <= header.base_offset <= header.last_offset < kernel.end_offset:
                raise corrupt_message(
                    f"a batch with the offsets {header.base_offset} to {header.last_offset} stands where offsets"
                    f" {kernel.next_offset} to {kernel.end_offset - 1} belong"
                )
            kernel.next_offset = header.next_offset
        return batch

    def _body(self, batch: ReadBatch) -> memoryview:
        """The uncompressed records, valid until the next call."""
        codec, data = batch.header.codec, batch.data[HEADER_SIZE_BYTES:]
        if codec == CompressionType.NONE:
            return data
        size_bytes = decompress_into(codec, data, self._body_room)
        return memoryview(decompress(codec, data)) if size_bytes is None else self._body_room[:size_bytes]


def _marker_kind(batch: ReadBatch) -> int | None:
    """The kind of the marker in a control batch, None for an empty batch. Raises KafkaError(CORRUPT_MESSAGE)."""
    if batch.header.record_count == 0:
        return None
    marker = decode_end_transaction_marker(batch.data, 0, batch.header)
    return _UNKNOWN_MARKER if marker is None else int(marker.type)
