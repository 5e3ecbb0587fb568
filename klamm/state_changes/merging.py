"""Merges state-change.log files by time, in blocks: sorting their runs of lines takes a fraction of a heap's time.

Of each file the entries of a block are in memory. In each round, the entries before the *horizon* are final: the
horizon is the least time up to which every file has been read. They are sorted together, which for the sorted runs of
the files is a merge.

What must stay true:
- Entries are in the order of their times. Entries of the same time are in the order of the files, and those of one file
  as the file has them.
- Threads of a broker write almost in the order of time: within `DISORDER_MS`, an entry is put where its time belongs.
  An entry that is further back (the clock was set back) stays behind the entry that stands before it in its file.
- `Wanted.start` and `Wanted.end` are compared with an entry's own time, also where it is put elsewhere.
- Memory is bounded by `MEMORY_BYTES`, except when more than that was written within `DISORDER_MS`. What is behind an
  absurd time, as after a clock was set back by years, is not held.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import compress, islice, pairwise
from operator import le
from typing import NamedTuple

from klamm.base.environment import FileSystem
from klamm.state_changes.entries import (
    BEGINNING,
    BEGINNING_OF_LINE,
    EARLIEST,
    END_OF_TIME,
    TIME_SIZE,
    Selector,
    earlier,
)
from klamm.state_changes.files import StateChangeFile

DISORDER_MS = 1_000
MEMORY_BYTES = 256 * 1024 * 1024
# Lines cost twice their size as objects.
_MEMORY_FACTOR = 3
_MIN_BLOCK_BYTES = 16 * 1024
_MAX_BLOCK_BYTES = 512 * 1024
_MONTH_SIZE = len("yyyy-MM-")
# How many blocks of a file are held until its time comes, when its clock was set back.
_HELD_BLOCKS = 128


class Wanted(NamedTuple):
    """The entries to be merged: those from `start` to `end`, both inclusive, that `selects` chooses, if given. Each
    entry that it chooses contains `needle`, which is faster to find."""

    selects: Selector | None = None
    needle: bytes = b""
    start: bytes = EARLIEST
    end: bytes = END_OF_TIME


class Run(NamedTuple):
    """Entries in their order, and the number of the file that each is from."""

    entries: list[bytes]
    files: list[int]


def block_bytes(files: int) -> int:
    """How much to read of each of so many files at once."""
    return max(_MIN_BLOCK_BYTES, min(_MAX_BLOCK_BYTES, MEMORY_BYTES // _MEMORY_FACTOR // max(files, 1)))


def merge(
    file_system: FileSystem,
    paths: Sequence[str],
    wanted: Wanted,
    warn: Callable[[str], object],
    note: Callable[[str], object] = lambda text: None,
) -> Iterator[Run]:
    """The wanted entries of all files, in runs.

    Raises OSError. `warn` gets one line about each part of a file that cannot be read, `note` one line about each file
    whose clock was set back.
    """
    size_bytes = block_bytes(len(paths))
    sources = []
    for number, path in enumerate(paths):
        file = StateChangeFile(file_system, path, warn, block_bytes=size_bytes)
        sources.append(_Source(file, number, wanted, note, _HELD_BLOCKS * size_bytes))
    # Most files of a long time end before others begin: only those that have been reached are looked at in each round.
    waiting = deque(sorted(sources, key=lambda source: source.complete_to))
    active: list[_Source] = []
    while active or waiting:
        horizon = min(source.complete_to for source in [*active, *islice(waiting, 1)])
        if taken := [source for source in active if source.has_before(horizon)]:
            yield _merged(taken, horizon)
        while waiting and waiting[0].complete_to == horizon:
            active.append(waiting.popleft())
        active.sort(key=lambda source: source.number)
        for source in active:
            if source.complete_to == horizon < END_OF_TIME:
                source.read()
        active = [source for source in active if source.complete_to < END_OF_TIME or source.has_before(END_OF_TIME)]


def entries_of(file: StateChangeFile, wanted: Wanted) -> Iterator[bytes]:
    """The wanted entries of one file, as the file has them."""
    while block := file.read():
        times, entries = _selected(block, file.time_at, wanted)
        yield from (entry for time, entry in zip(times, entries, strict=True) if wanted.start <= time <= wanted.end)


class _Source:
    """The entries of one file that have been read and not yet merged, in their order.

    All entries of the file before `complete_to` have been read.
    """

    def __init__(
        self, file: StateChangeFile, number: int, wanted: Wanted, note: Callable[[str], object], held_bytes: int
    ) -> None:
        self.number = number
        first = file.next_time()
        self.complete_to = END_OF_TIME if first is None else earlier(first, DISORDER_MS)
        self._file = file
        self._wanted = wanted
        self._note = note
        self._held_bytes = held_bytes
        self._times: list[bytes] = []
        self._entries: list[bytes] = []
        # The latest time in the file so far, and the number of entries that are too far behind it.
        self._latest = EARLIEST
        self._late = 0

    def has_before(self, horizon: bytes) -> bool:
        return bool(self._times) and self._times[0] < horizon

    def take(self, horizon: bytes) -> tuple[list[bytes], list[bytes]]:
        """(times, entries) of the entries before the horizon, which are merged now."""
        end = bisect_left(self._times, horizon)
        taken = self._times[:end], self._entries[:end]
        del self._times[:end], self._entries[:end]
        return taken

    def read(self) -> None:
        """Reads the next block."""
        block = self._file.read()
        next_time = self._file.next_time()
        if block:
            self._add(*_selected(block, self._file.time_at, self._wanted))
        if next_time is None:
            self.complete_to = END_OF_TIME
            if self._late:
                self._note(
                    f"{self._file.path}: {self._late} entries go back in time by more than {DISORDER_MS} ms; they stand"
                    " behind the entry before them"
                )
            return
        self._latest = max(self._latest, next_time)
        self.complete_to = max(self.complete_to, earlier(self._latest, DISORDER_MS))
        if self._late and sum(map(len, self._entries)) > self._held_bytes:
            # Just behind the latest time, so that what is held can be merged.
            self._latest = self.complete_to = self._latest + b"\0"

    def _add(self, times: list[bytes], entries: list[bytes]) -> None:
        if not times:
            return
        wanted = self._wanted
        if _is_sorted(times) and times[0] >= self._latest:
            self._latest = times[-1]
            first, end = bisect_left(times, wanted.start), bisect_right(times, wanted.end)
            self._times += times[first:end]
            self._entries += entries[first:end]
            return
        is_wanted = [wanted.start <= time <= wanted.end for time in times]
        self._times += compress(self._placed(times), is_wanted)
        self._entries += compress(entries, is_wanted)
        order = sorted(range(len(self._times)), key=self._times.__getitem__)
        self._times = [self._times[at] for at in order]
        self._entries = [self._entries[at] for at in order]

    def _placed(self, times: list[bytes]) -> list[bytes]:
        """The times that put the entries where they belong, when some are behind the latest."""
        placed, bound_of, bound = [], b"", b""
        for time in times:
            if time >= self._latest:
                self._latest = time
                placed.append(time)
                continue
            if bound_of != self._latest:
                bound_of, bound = self._latest, earlier(self._latest, DISORDER_MS)
            is_late = time < bound
            self._late += is_late
            placed.append(self._latest if is_late else time)
        return placed


def _merged(sources: Sequence[_Source], horizon: bytes) -> Run:
    """Takes the entries before the horizon."""
    times, entries = sources[0].take(horizon)
    files = [sources[0].number] * len(entries)
    if len(sources) == 1:
        return Run(entries, files)
    for source in sources[1:]:
        more_times, more_entries = source.take(horizon)
        times += more_times
        entries += more_entries
        files += [source.number] * len(more_entries)
    # Stable, so entries of the same time keep the order of their files.
    order = sorted(range(len(times)), key=times.__getitem__)
    return Run(list(map(entries.__getitem__, order)), list(map(files.__getitem__, order)))


def _selected(block: bytes, time_at: int, wanted: Wanted) -> tuple[list[bytes], list[bytes]]:
    """(times, entries) of the entries in a block of whole entries that the selector chooses."""
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n").removesuffix(b"\r")
    entries = _split(block, time_at) if wanted.selects is None else _choose(block, time_at, wanted, wanted.selects)
    end = time_at + TIME_SIZE
    return [entry[time_at:end] for entry in entries], entries


def _split(block: bytes, time_at: int) -> list[bytes]:
    # Where every line begins with the block's month, every line is an entry.
    entries = block.split(b"\n")
    if not entries[-1]:
        entries.pop()
    if block.count(b"\n" + block[: time_at + _MONTH_SIZE]) + 1 == len(entries):
        return entries
    at = [0, *(match.start() + 1 for match in BEGINNING_OF_LINE.finditer(block)), len(block)]
    return [block[begin:end].rstrip(b"\r\n") for begin, end in pairwise(at)]


def _choose(block: bytes, time_at: int, wanted: Wanted, selects: Selector) -> list[bytes]:
    chosen, end = [], 0
    while (found := block.find(wanted.needle, end)) >= 0:
        begin = _beginning_before(block, found)
        end = _end_behind(block, found)
        time = block[begin + time_at : begin + time_at + TIME_SIZE]
        if wanted.start <= time <= wanted.end and selects(block, begin, end):
            chosen.append(block[begin:end].rstrip(b"\r\n"))
    return chosen


def _beginning_before(block: bytes, position: int) -> int:
    """The beginning of the entry at `position`."""
    line = block.rfind(b"\n", 0, position) + 1
    while line > 0 and not BEGINNING.match(block, line):
        line = block.rfind(b"\n", 0, line - 1) + 1
    return line


def _end_behind(block: bytes, position: int) -> int:
    """The end of the entry at `position`, line break included."""
    while (line := block.find(b"\n", position) + 1) > 0:
        if line >= len(block) or BEGINNING.match(block, line):
            return line
        position = line
    return len(block)


def _is_sorted(times: Sequence[bytes]) -> bool:
    return all(map(le, times, islice(times, 1, None)))
