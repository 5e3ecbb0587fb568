"""Prepares a truncation: finds the position of the cut, and the log's state at its new end.

A cut is a few renames and one ftruncate. But the producer state at the new end comes from a replay of the log since the
last producer snapshot, and the largest timestamp may be far before the cut. A walk through a full segment of small
batches takes seconds, longer than a ZooKeeper session timeout. So the walk comes first, off the loop and in slices, and
the cut follows in one step.

What must stay true:
- The walk changes nothing in the log, so a deletion, a shutdown or a kill during the walk leaves the log as it was.
- The result depends only on bytes below the cut, which only another truncation changes. `Truncation.generation` shows
  whether there was one in between.
- The work off the loop gets only paths and positions, opens its own handles, and changes only its own objects. So it
  may continue after its caller has ended.
"""

import errno
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple

from klamm.base.environment import Environment, FileSystem
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.record.record_batch import BatchHeader
from klamm.storage.log.log_loader import replay_batches
from klamm.storage.log.log_view import LogView
from klamm.storage.log.producer_snapshots import ProducerSnapshots
from klamm.storage.log.producer_state import ProducerState
from klamm.storage.segments import batch_scan
from klamm.storage.segments.index_file import CorruptIndexError
from klamm.storage.segments.log_segments import LogSegments
from klamm.storage.segments.search_index import Entry
from klamm.storage.segments.segment import LogSegment

# After this many batches the worker thread is free for other work, and the caller may abandon the walk.
BATCHES_PER_SLICE = 20_000


class Truncation(NamedTuple):
    """A cut of `segment` at `position`, after which the log ends at `end_offset`."""

    offset: int
    generation: int
    log_end_offset: int  # before the cut
    segment: LogSegment
    position: int
    end_offset: int
    largest_timestamp: Entry  # of the segment, below the cut, and its offset
    producer_state: ProducerState


# Yields work that may run off the loop, and is sent the work's result.
TruncationSteps = Generator[Callable[[], Any], Any, Truncation]


async def prepare(environment: Environment, log: LogView, offset: int) -> Truncation | None:
    """Finds off the loop how to cut a log at `offset`. None if the log does not have this offset, or has changed.

    Raises KafkaError, also when the log is damaged below `offset`.
    """
    log.check_usable()
    if not log.segments.first.base_offset <= offset < log.log_end_offset:
        return None
    generation = log.generation
    try:
        return await _take_off_loop(environment, _find(environment.file_system, log, offset))
    except FileNotFoundError:
        # Retention has deleted the segment that was being read, or the whole log is gone.
        return None
    except (OSError, KafkaError) as error:
        if generation != log.generation:
            return None
        if isinstance(error, OSError):
            raise log.storage_error(error, "preparing to truncate") from error
        raise


async def _take_off_loop(environment: Environment, steps: TruncationSteps) -> Truncation:
    """Does the work of all steps off the loop."""
    try:
        work = next(steps)
        while True:
            try:
                result = await environment.run_long(work)
            except (OSError, KafkaError, CorruptIndexError) as error:
                work = steps.throw(error)
            else:
                work = steps.send(result)
    except StopIteration as end:
        truncation: Truncation = end.value
        return truncation


def take_at_once(file_system: FileSystem, log: LogView, offset: int, prepared: Truncation | None = None) -> Truncation:
    """`prepared`, if it is for this offset and the log has not changed since. Otherwise does the work of all steps on
    the loop, without a pause. Raises the errors of `_find`."""
    if (
        prepared is not None
        and prepared.offset == offset
        and prepared.generation == log.generation
        and prepared.log_end_offset == log.log_end_offset
        and not prepared.segment.is_gone
    ):
        return prepared
    steps = _find(file_system, log, offset)
    try:
        work = next(steps)
        while True:
            try:
                result = work()
            except (OSError, KafkaError, CorruptIndexError) as error:
                work = steps.throw(error)
            else:
                work = steps.send(result)
    except StopIteration as end:
        truncation: Truncation = end.value
        return truncation


def _find(file_system: FileSystem, log: LogView, offset: int) -> TruncationSteps:
    """Finds how to cut a log at `offset`, which is within the log. Skips the producer state if there are no producers.

    Raises OSError; KafkaError (CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR) when the log is damaged below the cut.
    """
    generation, log_end_offset, high_watermark = log.generation, log.log_end_offset, log.high_watermark
    segments, has_producers = log.segments, log.producer_state.has_had_producers
    segment = segments.floor(offset)
    assert segment is not None
    yield from _load_indexes(segment)
    start, size_bytes = segment.offset_index.lookup(offset), segment.size_bytes
    is_index_right, found = yield partial(_find_batch, file_system, segment.path, start, size_bytes, offset)
    if not is_index_right:
        segment.rebuild_indexes()
    position, end_offset = size_bytes, offset
    if found is not None:
        position, end_offset = found[0], min(offset, found[1].base_offset)
    largest = yield from _find_largest_timestamp(file_system, segment, position, end_offset)
    state = ProducerState(end_offset)
    if has_producers:
        state = yield from _find_producer_state(
            file_system, segments, log.snapshots, segment, position, end_offset, high_watermark
        )
    return Truncation(offset, generation, log_end_offset, segment, position, end_offset, largest, state)


def _load_indexes(segment: LogSegment) -> Generator[Callable[[], Any], Any, None]:
    for index in (segment.offset_index, segment.time_index):
        if not index.is_loaded:
            try:
                entries = yield index.read_entries
            except (CorruptIndexError, FileNotFoundError):
                break
            # An append may have loaded the index meanwhile, and added to it.
            if not index.is_loaded:
                index.adopt(entries)
    if segment.is_gone:
        raise FileNotFoundError(errno.ENOENT, "segment is deleted", segment.path)
    segment.load_indexes()


def _find_batch(
    file_system: FileSystem, path: str, start: int, end: int, offset: int
) -> tuple[bool, tuple[int, BatchHeader] | None]:
    """(whether the index's `start` is the start of a batch, the first batch that holds `offset` or a later one)."""
    file = file_system.open(path)
    try:
        try:
            return True, batch_scan.find_batch(file.read, start, end, offset)
        except KafkaError:
            return False, batch_scan.find_batch(file.read, 0, end, offset)
    finally:
        file.close()


def _find_largest_timestamp(
    file_system: FileSystem, segment: LogSegment, end: int, end_offset: int
) -> Generator[Callable[[], Any], Any, Entry]:
    largest = segment.time_index.last_entry_below(end_offset)
    position = segment.offset_index.lookup(largest[1])
    while position < end:
        position, found = yield partial(_largest_timestamp, file_system, segment.path, position, end)
        largest = max(largest, found, key=lambda entry: entry[0])
    return largest


def _largest_timestamp(file_system: FileSystem, path: str, position: int, end: int) -> tuple[int, Entry]:
    """(the position where this slice ends, the largest timestamp found)."""
    file = file_system.open(path)
    try:
        return batch_scan.largest_timestamp(file.read, position, end, max_batches=BATCHES_PER_SLICE)
    finally:
        file.close()


def _find_producer_state(
    file_system: FileSystem,
    segments: LogSegments,
    snapshots: ProducerSnapshots,
    cut_segment: LogSegment,
    cut_position: int,
    end_offset: int,
    high_watermark: int,
) -> Generator[Callable[[], Any], Any, ProducerState]:
    state = yield from _load_snapshot(snapshots, end_offset)
    if state is not None and state.end_offset > high_watermark and state.has_markers:
        # Only a replay shows which transactions were finished above the high watermark, and are not stable yet.
        state = yield from _load_snapshot(snapshots, high_watermark)
    if state is None:
        state = ProducerState(segments.first.base_offset)
    for segment in segments.starting_with(state.end_offset):
        if state.end_offset >= end_offset:
            break
        yield from _load_indexes(segment)
        position = segment.offset_index.lookup(state.end_offset)
        end = cut_position if segment is cut_segment else segment.size_bytes
        while position < end:
            position = yield partial(_replay, file_system, segment.path, position, end, state)
        if segment is cut_segment:
            break
    state.end_offset = end_offset
    return state


def _load_snapshot(
    snapshots: ProducerSnapshots, at_most: int
) -> Generator[Callable[[], Any], Any, ProducerState | None]:
    """Like `ProducerSnapshots.load_latest`, but reads off the loop."""
    for offset in snapshots.latest_first(at_most):
        try:
            state: ProducerState = yield partial(snapshots.read, offset)
        except KafkaError as error:
            snapshots.drop_unreadable(offset, error)
        else:
            return state
    return None


def _replay(file_system: FileSystem, path: str, position: int, end: int, state: ProducerState) -> int:
    file = file_system.open(path)
    try:
        return replay_batches(file, position, end, state, max_batches=BATCHES_PER_SLICE)
    finally:
        file.close()
