"""Finds the first record at or after a timestamp: the part of a log's reads that inspects batches.

A batch is a candidate if its header has a timestamp that is late enough. Only an inspection shows whether the batch has
such a record, because the producer may have written any largest timestamp into the header.

What must stay true:
- Headers are read in slices on the loop while they are in memory; large batches are inspected in the worker.
- A batch whose header has a later timestamp than its records is remembered, so that the next lookup skips it.
- One lookup inspects at most `MAX_LOOKS` such batches. Then it returns the first record of the next candidate. That
  record may be too early, so a consumer that starts there misses nothing.
- Lookups for the same timestamp share one search, which is cancelled when no lookup waits for it.
- The largest timestamp of a closed segment is read once, not for each lookup: a log may have many segments.
"""

import asyncio
from array import array
from bisect import bisect_left
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import Any, NamedTuple

from klamm.base.environment import Environment, File, WorkerFailed
from klamm.base.slices import Slices, each
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.primitives import Buffer
from klamm.protocol.record.compression import decompress
from klamm.protocol.record.fast_walk import advance_fast
from klamm.protocol.record.record_batch import (
    HEADER_SIZE_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    max_decompressed_bytes,
    parse_header,
)
from klamm.protocol.record.record_walk import RecordWalk, Wanted
from klamm.storage.log.batch_inspection import AT_ONCE_BYTES, AT_ONCE_STEPS, STEPS_PER_SLICE
from klamm.storage.segments import batch_scan
from klamm.storage.segments.log_segments import LogSegments
from klamm.storage.segments.segment import LogSegment

HEADERS_PER_SLICE = 200
# The largest timestamps of this many segments are read in one slice.
SEGMENTS_PER_SLICE = 500
MAX_LOOKS = 16
MAX_REMEMBERED = 1_000

# (timestamp, offset, leader epoch)
Found = tuple[int, int, int]


class BatchLookup(NamedTuple):
    """The result for a batch: (timestamp, offset) of the first late enough record, or else the largest timestamp."""

    match: tuple[int, int] | None
    max_timestamp_ms: int


class TimestampLookup:
    """The state that one log's lookups share."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        # Base offset of a batch -> its largest timestamp.
        self._true_maximums: dict[int, int] = {}
        self._searches: dict[tuple[int, ...], _Search] = {}
        # For each closed segment from `_maxima_from` on, the largest timestamp up to the segment's end. They ascend.
        self._maxima: array[int] = array("q")
        self._maxima_from = -1
        self._growing = asyncio.Lock()

    def forget(self) -> None:
        """The log has been truncated: other batches may be at the remembered offsets."""
        # A new dict, because a pending search still writes results for the old batches into the old dict.
        self._true_maximums = {}

    def forget_segments(self) -> None:
        """Segments have left the log, or the largest timestamp of a closed segment has changed."""
        self._maxima_from = -1

    async def late_enough(self, segments: LogSegments, timestamp_ms: int, start_offset: int) -> list[LogSegment]:
        """The segment of `start_offset`, and the later segments from the first one on that reaches `timestamp_ms`.
        Raises OSError, and KafkaError if a segment is damaged."""
        async with self._growing:
            # The maxima leave out the first segment, whose largest timestamp may be before `start_offset`.
            first, *rest = segments.starting_with(start_offset)
            closed = rest[:-1]
            if not closed:
                return [first, *rest]
            if self._maxima_from != closed[0].base_offset:
                self._maxima, self._maxima_from = array("q"), closed[0].base_offset
            maxima = self._maxima
            looked_at = Slices(SEGMENTS_PER_SLICE, asyncio.get_running_loop().time)
            async for segment in each(closed[len(maxima) :], looked_at):
                before = maxima[-1] if maxima else NO_TIMESTAMP
                # A segment that was deleted meanwhile is not read, and the next lookup begins anew.
                maxima.append(before if segment.is_gone else max(before, segment.largest_timestamp()))
            return [first, *rest[bisect_left(maxima, timestamp_ms, 0, len(closed)) :]]

    async def share(
        self, key: tuple[int, ...], search: Callable[[], Coroutine[Any, Any, Found | None]]
    ) -> Found | None:
        """The result of `search`, or of a pending search with the same key."""
        shared = self._searches.get(key)
        if shared is None:
            shared = self._searches[key] = _Search(asyncio.get_running_loop().create_task(search()))
        shared.waiting += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.waiting -= 1
            if shared.waiting == 0:
                shared.task.cancel()
                self._searches.pop(key, None)

    async def find_in(self, file: File, position: int, end: int, timestamp_ms: int, start_offset: int) -> Found | None:
        """Searches the batches in [position, end). Raises OSError, and KafkaError if a batch is damaged."""
        looks_left, true_maximums = MAX_LOOKS, self._true_maximums
        while True:
            position, header = await self._next_candidate(
                file, position, end, timestamp_ms, start_offset, true_maximums
            )
            if header is None:
                return None
            if looks_left == 0:
                return _first_of(header, start_offset)
            batch = await self._read(file, position, header.size_bytes)
            try:
                look = await self._look(batch, header, timestamp_ms, start_offset)
            except WorkerFailed as error:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from None
            except KafkaError:
                # The producer wrote unreadable records. They must not make a lookup fail.
                return _first_of(header, start_offset)
            if look.match is not None:
                return *look.match, header.partition_leader_epoch
            looks_left -= 1
            if header.base_offset >= start_offset and len(true_maximums) < MAX_REMEMBERED:
                true_maximums[header.base_offset] = look.max_timestamp_ms
            position += header.size_bytes

    async def _next_candidate(
        self,
        file: File,
        position: int,
        end: int,
        timestamp_ms: int,
        start_offset: int,
        true_maximums: Mapping[int, int],
    ) -> tuple[int, BatchHeader | None]:
        while position < end:
            scan = batch_scan.next_candidate, position, end, timestamp_ms, start_offset, HEADERS_PER_SLICE
            try:
                position, header = scan[0](batch_scan.read_if_cached(file), *scan[1:])
                await asyncio.sleep(0)
            except batch_scan.NotCachedError:
                position, header = await self._environment.run_blocking(scan[0], file.read, *scan[1:])
            if header is not None:
                if true_maximums.get(header.base_offset, timestamp_ms) >= timestamp_ms:
                    return position, header
                position += header.size_bytes
        return end, None

    async def _read(self, file: File, position: int, size_bytes: int) -> Buffer:
        data = file.read_cached(position, size_bytes)
        if data is None:
            data = await self._environment.run_blocking(file.read, position, size_bytes)
        if len(data) != size_bytes:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the batch at position {position} is cut")
        return data

    async def _look(self, batch: Buffer, header: BatchHeader, timestamp_ms: int, start_offset: int) -> BatchLookup:
        wanted = Wanted(from_timestamp_ms=timestamp_ms, from_offset=start_offset)
        try:
            walk = _begin(batch, header, wanted, AT_ONCE_BYTES)
        except KafkaError as error:
            if error.code is not ErrorCode.MESSAGE_TOO_LARGE:
                raise
        else:
            if walk.advance(AT_ONCE_STEPS):
                return BatchLookup(walk.match, walk.max_timestamp_ms)
        return await self._environment.run_in_worker(look_into, bytes(batch), wanted)


class _Search:
    """A pending search, and how many lookups wait for it."""

    def __init__(self, task: "asyncio.Task[Found | None]") -> None:
        self.task = task
        self.waiting = 0


def look_into(batch: bytes, wanted: Wanted) -> Generator[int, None, BatchLookup]:
    """Inspects a batch in steps. Raises KafkaError when the batch cannot be read."""
    header = parse_header(batch)
    max_bytes = max_decompressed_bytes(header)
    yield max_bytes
    walk = _begin(batch, header, wanted, max_bytes)
    yield 0
    while not advance_fast(walk, STEPS_PER_SLICE):
        yield 0
    return BatchLookup(walk.match, walk.max_timestamp_ms)


def _begin(batch: Buffer, header: BatchHeader, wanted: Wanted, max_bytes: int) -> RecordWalk:
    body = decompress(header.codec, memoryview(batch)[HEADER_SIZE_BYTES : header.size_bytes], max_bytes)
    return RecordWalk(memoryview(body), header, wanted)


def _first_of(header: BatchHeader, start_offset: int) -> Found:
    return header.base_timestamp, max(header.base_offset, start_offset), header.partition_leader_epoch
