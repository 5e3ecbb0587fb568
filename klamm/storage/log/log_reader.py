"""Reads from one log: finds the position of an offset and reads bytes from there.

What must stay true:
- A read never returns records at or above the reader's bound, or a part of a batch.
- Between two awaits the log may have grown, rolled or dropped old segments. This is harmless, because a read uses the
  log as it was when the read began. After a truncation (`invalidate`) the result of a pending read is void.
- A read that continues where an earlier read ended needs neither an index search nor a scan: the ends of the last reads
  are remembered. A high watermark is usually such an end, because followers read, too.

Reads first try bytes that are in memory; only a cold page needs work off the loop.
"""

import asyncio
import logging
from functools import partial
from typing import NamedTuple

from klamm.base.environment import Environment, File
from klamm.base.slices import Slices, Steps, each, in_slices
from klamm.protocol.error_codes import ErrorCode, KafkaError, corrupt_message
from klamm.protocol.record.record_batch import HEADER_SIZE_BYTES, BatchHeader, parse_header
from klamm.storage.log.log_view import LogView
from klamm.storage.log.timestamp_lookup import Found, TimestampLookup
from klamm.storage.segments import batch_scan
from klamm.storage.segments.index_file import CorruptIndexError
from klamm.storage.segments.segment import LogSegment

_LOGGER = logging.getLogger(__name__)
_MAX_REMEMBERED = 64
# Slices, because the largest timestamp of a segment that was not used lately is on the disk.
SEGMENTS_PER_SLICE = 500
# With the usual index.interval.bytes, one slice is enough: 4 KB hold 67 batches at most.
HEADERS_PER_SLICE = 500
# This many aborted transactions, or segments searched for them, make a slice.
ABORTED_PER_SLICE = 5_000
# Reported when a long poll need not wait: more than any min_bytes.
_PLENTY_BYTES = 2**31 - 1


class FetchedRecords(NamedTuple):
    """Whole batches, beginning with the batch that holds the requested offset."""

    data: bytes | bytearray | memoryview
    next_offset: int


class _Bounds(NamedTuple):
    """The log end offset and the generation when a read began."""

    generation: int
    log_end_offset: int
    active: LogSegment
    active_size_bytes: int


class LogReader:
    """Methods that touch the disk raise KafkaError: KAFKA_STORAGE_ERROR; CORRUPT_MESSAGE where the log is damaged."""

    __slots__ = ("_damage_told", "_environment", "_log", "_lookup", "_remembered", "_segments", "generation")

    def __init__(self, environment: Environment, log: LogView) -> None:
        self._environment = environment
        self._segments = log.segments
        self._log = log
        self._remembered: dict[int, tuple[LogSegment, int]] = {}
        self._lookup: TimestampLookup | None = None
        self._damage_told: str | None = None
        self.generation = 0

    def invalidate(self) -> None:
        """The log has been truncated: remembered positions and pending reads are void."""
        self._remembered.clear()
        if self._lookup is not None:
            self._lookup.forget()
        self.generation += 1

    def forget_segments(self) -> None:
        """Segments have left the log. Pending reads of them may finish."""
        self._remembered.clear()
        if self._lookup is not None:
            self._lookup.forget_segments()

    # -- fetching -------------------------------------------------------------------------------------------------

    async def read(self, offset: int, max_bytes: int, max_offset: int, *, minimum_one_batch: bool) -> FetchedRecords:
        """Whole batches from the batch that holds `offset` on, at most `max_bytes`, all below `max_offset`.

        With `minimum_one_batch` the first batch is returned whatever its size. Raises KafkaError(OFFSET_OUT_OF_RANGE).
        """
        log = self._log
        while True:
            log.check_usable()
            if not log.log_start_offset <= offset <= log.log_end_offset:
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"offset {offset} of {log.name} is not within [{log.log_start_offset}, {log.log_end_offset}]",
                )
            if offset >= max_offset:
                return FetchedRecords(b"", offset)
            generation = self.generation
            try:
                fetched = await self._read(offset, max_bytes, max_offset, minimum_one_batch=minimum_one_batch)
            except OSError as error:
                # A segment that was deleted meanwhile cannot be opened: the offset is now out of range.
                if generation == self.generation and offset >= log.log_start_offset:
                    raise log.storage_error(error, "reading") from error
                continue
            except KafkaError as error:
                if generation == self.generation:
                    self._tell_damage(error)
                    raise
                continue
            if generation == self.generation:
                return fetched

    def _tell_damage(self, error: KafkaError) -> None:
        """Logs damage once, because clients and followers read the same place again and again."""
        if error.message != self._damage_told:
            self._damage_told = error.message
            _LOGGER.error("Records of %s cannot be read: %s", self._log.name, error.message)

    async def _read(self, offset: int, max_bytes: int, max_offset: int, *, minimum_one_batch: bool) -> FetchedRecords:
        """Reads from one segment. Raises OSError."""
        active = self._segments.active
        bounds = _Bounds(self.generation, self._log.log_end_offset, active, active.size_bytes)
        start = self._known_position(offset) or await self._locate(offset)
        if start is None or start[0].base_offset > active.base_offset:
            # Compaction may have left no record up to the log's end.
            return FetchedRecords(b"", max(offset, min(max_offset, bounds.log_end_offset)))
        segment, position = start
        file = segment.pin()
        try:
            end, end_offset = await self._readable_end(segment, max_offset, bounds)
            if minimum_one_batch:
                max_bytes = max(max_bytes, HEADER_SIZE_BYTES)
            size_bytes = min(end - position, max_bytes)
            if size_bytes <= 0:
                return FetchedRecords(b"", offset)
            data = await self._read_at(file, position, size_bytes)
            if size_bytes == end - position:
                self._remember(bounds, end_offset, segment, end)
                return FetchedRecords(data, end_offset)
            kept_bytes, end_offset = await self._whole_batches(segment, position, data)
            if kept_bytes == 0:
                if not minimum_one_batch:
                    return FetchedRecords(b"", offset)
                header = parse_header(data, available_bytes=end - position)
                kept_bytes, end_offset = header.size_bytes, header.next_offset
                data = await self._read_at(file, position, kept_bytes)
        finally:
            segment.unpin()
        self._remember(bounds, end_offset, segment, position + kept_bytes)
        return FetchedRecords(data if kept_bytes == len(data) else memoryview(data)[:kept_bytes], end_offset)

    async def _readable_end(self, segment: LogSegment, max_offset: int, bounds: _Bounds) -> tuple[int, int]:
        """(position, offset) where the segment ends for a reader that must stay below `max_offset`."""
        following = None if segment is bounds.active else self._segments.following(segment)
        if following is None:
            end, end_offset = bounds.active_size_bytes, bounds.log_end_offset
        else:
            end, end_offset = segment.size_bytes, following.base_offset
        if max_offset >= end_offset:
            return end, end_offset
        known = self._remembered.get(max_offset)
        if known is not None and known[0] is segment:
            return known[1], max_offset
        found = await self._find(segment, max_offset, end)
        if found is None:
            return end, max_offset
        position, header = found
        end_offset = min(max_offset, header.base_offset)
        self._remember(bounds, end_offset, segment, position)
        return position, end_offset

    async def _read_at(self, file: File, position: int, size_bytes: int) -> bytearray:
        data = file.read_cached(position, size_bytes)
        if data is None:
            data = await self._environment.run_blocking(file.read, position, size_bytes)
        if len(data) != size_bytes:
            found = f"{len(data)} of {size_bytes} bytes at position {position} are left"
            raise corrupt_message(f"{file.path}: {found}")
        return data

    async def _whole_batches(self, segment: LogSegment, position: int, data: bytearray) -> tuple[int, int]:
        """(size in bytes, next offset) of the whole batches at the start of `data`; (0, -1) if the first is not whole.

        The index gives a batch's start near the end, so that only the last few headers are read.
        """
        await self._load_offset_index(segment)
        boundary = segment.offset_index.boundary_before(position + len(data) - HEADER_SIZE_BYTES) - position
        available_bytes = segment.size_bytes - position
        if boundary > 0:
            try:
                return await in_slices(_whole_batches_from(data, boundary, available_bytes))
            except KafkaError as error:
                _LOGGER.warning("Reading %s without its index: %s", segment.path, error.message)
        return await in_slices(_whole_batches_from(data, 0, available_bytes))

    def _known_position(self, offset: int) -> tuple[LogSegment, int] | None:
        known = self._remembered.get(offset)
        if known is None:
            return None
        segment, position = known
        if position >= segment.size_bytes:
            following = self._segments.following(segment)
            if following is not None:
                # `_locate` skips an empty segment, which a cleaning may leave.
                return (following, 0) if following.base_offset == offset and following.size_bytes else None
        return known

    def _remember(self, bounds: _Bounds, offset: int, segment: LogSegment, position: int) -> None:
        if segment.is_gone or bounds.generation != self.generation:
            return
        if offset not in self._remembered and len(self._remembered) >= _MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[offset] = (segment, position)

    # -- locating -------------------------------------------------------------------------------------------------

    async def _locate(self, offset: int) -> tuple[LogSegment, int] | None:
        """The position of the batch that holds `offset`, or of the next batch; None at the log's end."""
        segment = self._segments.floor(offset)
        while segment is not None:
            if segment.base_offset >= offset and segment.size_bytes:
                return segment, 0
            found = await self._find(segment, offset, segment.size_bytes)
            if found is not None:
                return segment, found[0]
            segment = self._segments.following(segment)
        return None

    async def _find(self, segment: LogSegment, offset: int, end: int) -> tuple[int, BatchHeader] | None:
        """The first batch of the segment, before position `end`, that holds `offset` or a later one."""
        file = segment.pin()
        try:
            await self._load_offset_index(segment)
            start = segment.offset_index.lookup(offset)
            try:
                return await self._find_from(file, start, end, offset)
            except KafkaError as error:
                if start == 0:
                    raise
                _LOGGER.warning("Searching %s without its index: %s", segment.path, error.message)
                return await self._find_from(file, 0, end, offset)
        finally:
            segment.unpin()

    async def _find_from(self, file: File, start: int, end: int, offset: int) -> tuple[int, BatchHeader] | None:
        """Searches in slices: a whole segment of small batches may lie between two index entries
        (index.interval.bytes)."""
        position, is_indexed = start, start > 0
        while True:
            scan = partial(batch_scan.next_batch, is_indexed=is_indexed)
            limits = position, end, offset, HEADERS_PER_SLICE
            try:
                position, header = scan(batch_scan.read_if_cached(file), *limits)
            except batch_scan.NotCachedError:
                position, header = await self._environment.run_blocking(scan, file.read, *limits)
            if header is not None:
                return position, header
            if position >= end:
                return None
            is_indexed = False
            await asyncio.sleep(0)

    async def _load_offset_index(self, segment: LogSegment) -> None:
        index = segment.offset_index
        if index.is_loaded:
            return
        generation = self.generation
        try:
            entries = await self._environment.run_blocking(index.read_entries)
        except (CorruptIndexError, FileNotFoundError):
            # Without an index a segment is searched from its start. A deleted segment's index is not rebuilt.
            if generation == self.generation and not index.is_loaded and not segment.is_gone:
                segment.load_indexes()
                if self._lookup is not None:
                    self._lookup.forget_segments()
            return
        # An append may have loaded the index meanwhile, and added to it.
        if generation == self.generation and not index.is_loaded:
            index.adopt(entries)

    async def load_large_indexes(self, segment: LogSegment) -> None:
        """Reads large indexes off the loop. If an index cannot be read, its next use rebuilds it or raises the
        error."""
        if not segment.is_slow_to_load:
            return
        generation = self.generation
        try:
            for index in (segment.offset_index, segment.time_index):
                if not index.is_loaded:
                    entries = await self._environment.run_blocking(index.read_entries)
                    # An append may have loaded the index meanwhile, and added entries.
                    if generation == self.generation and not index.is_loaded:
                        index.adopt(entries)
        except (CorruptIndexError, OSError):
            pass

    # -- timestamps -----------------------------------------------------------------------------------------------

    async def offset_for_timestamp(self, timestamp_ms: int) -> Found | None:
        """(timestamp, offset, leader epoch) of the first record at or after `timestamp_ms`; None without such a
        record."""
        log = self._log
        if self._lookup is None:
            self._lookup = TimestampLookup(self._environment)
        lookup = self._lookup
        while True:
            log.check_usable()
            generation, start_offset = self.generation, log.log_start_offset
            find = partial(self._find_timestamp, lookup, timestamp_ms, start_offset)
            try:
                found = await lookup.share((generation, timestamp_ms, start_offset, log.log_end_offset), find)
            except OSError as error:
                if generation == self.generation:
                    raise log.storage_error(error, "reading") from error
                continue
            except KafkaError:
                if generation == self.generation:
                    raise
                continue
            if generation == self.generation:
                return found

    async def _find_timestamp(self, lookup: TimestampLookup, timestamp_ms: int, start_offset: int) -> Found | None:
        looked_at = Slices(SEGMENTS_PER_SLICE, asyncio.get_running_loop().time)
        async for segment in each(await lookup.late_enough(self._segments, timestamp_ms, start_offset), looked_at):
            if segment.is_gone or (largest := segment.largest_timestamp()) < timestamp_ms:
                continue
            file, end = segment.pin(), segment.size_bytes
            try:
                await self.load_large_indexes(segment)
                if segment.is_gone:
                    continue  # A deleted segment's indexes are not rebuilt.
                segment.load_indexes()
                if segment.largest_timestamp() != largest:
                    lookup.forget_segments()  # The segment's indexes were rebuilt.
                floor = max(segment.time_index.lookup(timestamp_ms), start_offset)
                start = segment.offset_index.lookup(floor)
                found = await lookup.find_in(file, start, end, timestamp_ms, start_offset)
            finally:
                segment.unpin()
            if found is not None:
                return found
        return None

    # -- transactions ---------------------------------------------------------------------------------------------

    def aborted_transactions(
        self, fetch_offset: int, upper_offset: int, most: int | None = None
    ) -> Steps[list[tuple[int, int]] | None]:
        """(producer id, first offset) of the aborted transactions with records in [fetch_offset, upper_offset), in
        steps; None if there are more than `most`. If the log is truncated meanwhile, some may be missing."""
        found: list[tuple[int, int]] = []
        slices = Slices(ABORTED_PER_SLICE)
        for segment in self._segments.starting_with(fetch_offset):
            steps = segment.find_aborted(fetch_offset, upper_offset, found)
            while True:
                count = len(found)
                try:
                    next(steps)
                except StopIteration as end:
                    are_all = end.value
                    break
                if most is not None and len(found) > most:
                    return None
                if slices.spend(1 + len(found) - count):
                    yield
            if are_all:
                break
            if slices.spend():
                yield
        return None if most is not None and len(found) > most else found

    # -- estimating -----------------------------------------------------------------------------------------------

    def readable_bytes(self, offset: int, max_offset: int) -> int:
        """Estimates how many bytes a fetch from `offset` to `max_offset` can get: at least 1 if there is a record, and
        very many on an older segment. Never waits for the disk."""
        max_offset = min(max_offset, self._log.log_end_offset)
        if offset >= max_offset:
            return 0
        active = self._segments.active
        if offset < active.base_offset:
            return _PLENTY_BYTES
        start = self._estimated_position(active, offset)
        if max_offset >= self._log.log_end_offset:
            end = active.size_bytes
        else:
            end = self._estimated_position(active, max_offset)
        return max(1, end - start)

    def _estimated_position(self, segment: LogSegment, offset: int) -> int:
        known = self._remembered.get(offset)
        if known is not None and known[0] is segment:
            return known[1]
        return segment.offset_index.lookup(offset) if segment.offset_index.is_loaded else 0


def _whole_batches_from(data: bytearray, at: int, available_bytes: int) -> Steps[tuple[int, int]]:
    """(end of the last whole batch, next offset), from the batch at `at` on. Even that batch may be incomplete."""
    next_offset = -1
    looked_at = Slices(HEADERS_PER_SLICE)
    while at + HEADER_SIZE_BYTES <= len(data):
        header = parse_header(data, at, available_bytes=available_bytes - at)
        if at + header.size_bytes > len(data):
            return at, header.base_offset
        at += header.size_bytes
        next_offset = header.next_offset
        if looked_at.spend():
            yield
    return at, next_offset
