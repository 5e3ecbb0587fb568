"""Reads a recording: the state of the cluster at each of its moments, its entries, and the story of a partition.

A moment is the state just after an entry, and is named by the entry's number. The state is computed from the last
keyframe or the last requested moment, whichever is nearer.

What must stay true:
- Memory is bounded by a few blocks and the states of a few moments, whatever the length of the file.
- A file is not trusted: each error is a RecordingError that names the file.
"""

import threading  # noqa: TID251  # a page's requests read one file, each in a thread
from bisect import bisect_left, bisect_right
from collections import Counter, OrderedDict
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from klamm.base import json_bytes
from klamm.recording.blocks import MAX_ENTRIES_BYTES, Block, RecordingError, read_heads, read_lines
from klamm.recording.entries import EntryError, Json, znode_of
from klamm.recording.state import State
from klamm.znodes.brokers import BROKER_IDS_PATH, broker_path
from klamm.znodes.cluster import CONTROLLER_EPOCH_PATH, CONTROLLER_PATH
from klamm.znodes.fields import ZnodeError
from klamm.znodes.requests import delete_topic_path
from klamm.znodes.topics import TopicAssignment, partition_state_path, topic_path

# How many blocks stay decoded, how many bytes they may take, and how many moments' states are kept.
KEPT_BLOCKS = 8
KEPT_BYTES = 2 * MAX_ENTRIES_BYTES
KEPT_STATES = 4
EXACT_ENTRIES = 40_000
# A partition's story has at most this many entries: the newest ones.
STORY_ENTRIES = 2_000


class NumberedEntry(NamedTuple):
    """An entry, its number and its time in milliseconds since 1970."""

    number: int
    at_ms: int
    entry: Json


class Bar(NamedTuple):
    """A section of the timeline from `from_ms` to `to_ms`: its first entry, and the number of its entries by mark."""

    from_ms: int
    to_ms: int
    first: int
    entries: int
    marks: dict[str, int]


class Recording:
    """A recording's file. `name` appears in messages. The methods are thread-safe, and raise RecordingError."""

    def __init__(self, path: str | Path) -> None:
        self.name = str(path)
        self._lock = threading.RLock()
        # By the number of the block or entry, the most recently used last.
        self._kept: OrderedDict[int, list[NumberedEntry]] = OrderedDict()
        self._states: OrderedDict[int, State] = OrderedDict()
        try:
            self._file = open(path, "rb")  # noqa: SIM115  # closed by `close`
        except OSError as error:
            raise RecordingError(f"{self.name} cannot be read: {error.strerror}") from None
        try:
            self._blocks, self.trouble = read_heads(self._file, self.name)
            about = self.entry(0).entry
        except BaseException:
            self._file.close()
            raise
        self.about = str(about.get("text", ""))
        self.source = str(about.get("source", ""))

    trouble: str | None
    """A sentence about the missing end of the file; None for a whole file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file. Idempotent."""
        self._file.close()

    # -- times and numbers ------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """The number of entries."""
        last = self._blocks[-1]
        return last.first + last.count

    @property
    def first_ms(self) -> int:
        return self._blocks[0].first_ms

    @property
    def last_ms(self) -> int:
        return self._blocks[-1].last_ms

    def number_at(self, at_ms: int) -> int:
        """The last entry at or before this time, or the first entry if all entries are later."""
        at = bisect_right(self._blocks, at_ms, key=lambda block: block.first_ms) - 1
        if at < 0:
            return 0
        block = self._blocks[at]
        if block.last_ms <= at_ms:
            return block.first + block.count - 1
        return block.first + max(0, bisect_right(self._entries(at), at_ms, key=lambda entry: entry.at_ms) - 1)

    def timeline(self, bars: int) -> list[Bar]:
        """The whole recording in about this many sections of equal time, without empty ones.

        In a recording of more than EXACT_ENTRIES entries, all entries of a block count in the section in which the
        block begins.
        """
        width_ms = max(1, -(-(self.last_ms - self.first_ms + 1) // bars))
        made: dict[int, Bar] = {}

        def put(at_ms: int, first: int, count: int, marks: dict[str, int]) -> None:
            at = (at_ms - self.first_ms) // width_ms
            bar = made.get(at)
            from_ms = self.first_ms + at * width_ms
            if bar is None:
                made[at] = Bar(from_ms, from_ms + width_ms - 1, first, count, marks)
            else:
                made[at] = bar._replace(entries=bar.entries + count, marks=dict(Counter(bar.marks) + Counter(marks)))

        for at, block in enumerate(self._blocks):
            if self.count > EXACT_ENTRIES:
                put(block.first_ms, block.first, block.count, block.marks)
                continue
            for entry in self._entries(at):
                mark = entry.entry.get("mark")
                put(entry.at_ms, entry.number, 1, {mark: 1} if isinstance(mark, str) else {})
        return [made[at] for at in sorted(made)]

    # -- entries ----------------------------------------------------------------------------------------------------

    def entry(self, number: int) -> NumberedEntry:
        """One entry. Raises IndexError for a number without an entry."""
        if not 0 <= number < self.count:
            raise IndexError(f"{self.name} has entries 0 to {self.count - 1}, not {number}")
        at = self._block_of(number)
        return self._entries(at)[number - self._blocks[at].first]

    def entries(self, first: int, limit: int) -> list[NumberedEntry]:
        """Up to `limit` entries, from `first` on."""
        return [self.entry(number) for number in range(max(0, first), min(self.count, first + limit))]

    def next_marked(self, number: int, *, back: bool = False) -> int | None:
        """The nearest entry with a mark after this entry, or before it with `back`; None if there is none such."""
        blocks: Sequence[int] = (
            range(self._block_of(number), -1, -1) if back else range(self._block_of(number), len(self._blocks))
        )
        for at in blocks:
            if not self._blocks[at].marks:
                continue
            found = [one.number for one in self._entries(at) if "mark" in one.entry]
            place = bisect_left(found, number) - 1 if back else bisect_right(found, number)
            if 0 <= place < len(found):
                return found[place]
        return None

    def story(
        self, topic: str, partition: int, *, last: int | None = None, brokers: Iterable[int] = ()
    ) -> list[NumberedEntry]:
        """The newest STORY_ENTRIES entries about a partition up to the entry `last`, oldest first.

        With `brokers` it includes controller elections and the registrations of these brokers.
        """
        last = self.count - 1 if last is None else last
        paths = {topic_path(topic), delete_topic_path(topic), partition_state_path(topic, partition)}
        needles = [json_bytes.encode(topic)[1:-1]]
        if brokers := list(brokers):
            paths |= {CONTROLLER_PATH, CONTROLLER_EPOCH_PATH, *map(broker_path, brokers)}
            needles += [CONTROLLER_PATH.encode(), BROKER_IDS_PATH.encode()]
        found: list[NumberedEntry] = []
        for at in range(self._block_of(last), -1, -1):
            block = self._blocks[at]
            lines = self._lines(at)[block.has_keyframe :]
            for place in range(min(len(lines) - 1, last - block.first), -1, -1):
                if any(needle in lines[place] for needle in needles):
                    entry = _entry(self.name, block, place, lines[place])
                    if _is_about(entry.entry, topic, partition, paths):
                        found.append(entry)
                        if len(found) == STORY_ENTRIES:
                            return _without_others(found[::-1], topic, partition)
        return _without_others(found[::-1], topic, partition)

    # -- states -----------------------------------------------------------------------------------------------------

    def moment(self, number: int) -> State:
        """The state of the cluster just after this entry. The caller may not change it."""
        with self._lock:
            kept = self._states.get(number)
            if kept is not None:
                self._states.move_to_end(number)
                return kept
            state = self._fold(min(max(number, 0), self.count - 1))
            self._states[number] = state
            if len(self._states) > KEPT_STATES:
                self._states.popitem(last=False)
            return state

    def _fold(self, number: int) -> State:
        last = self._block_of(number)
        keyframe = next((at for at in range(last, -1, -1) if self._blocks[at].has_keyframe), None)
        begin = -1 if keyframe is None else self._blocks[keyframe].first - 1
        known = max((each for each in self._states if begin <= each <= number), default=None)
        if known is not None:
            state, begin = self._states[known].copy(), known
        elif keyframe is not None:
            state = _keyframe(self.name, self._lines(keyframe)[0])
        else:
            state = State()
        for at in range(self._block_of(max(begin + 1, 0)), last + 1):
            for entry in self._entries(at):
                if begin < entry.number <= number:
                    _apply(state, entry)
        return state

    # -- blocks -----------------------------------------------------------------------------------------------------

    def _block_of(self, number: int) -> int:
        return bisect_right(self._blocks, min(number, self.count - 1), key=lambda block: block.first) - 1

    def _lines(self, at: int) -> list[bytes]:
        with self._lock:
            return read_lines(self._file, self.name, self._blocks[at])

    def _entries(self, at: int) -> list[NumberedEntry]:
        with self._lock:
            kept = self._kept.get(at)
            if kept is None:
                block = self._blocks[at]
                lines = self._lines(at)[block.has_keyframe :]
                kept = [_entry(self.name, block, place, line) for place, line in enumerate(lines)]
                self._kept[at] = kept
                while len(self._kept) > KEPT_BLOCKS or self._kept_bytes() > KEPT_BYTES:
                    self._kept.popitem(last=False)
            return kept

    def _kept_bytes(self) -> int:
        """An upper bound of the size of the kept entries. Keyframes are not kept."""
        return sum(min(self._blocks[at].raw_bytes, MAX_ENTRIES_BYTES) for at in self._kept)


def _entry(name: str, block: Block, place: int, line: bytes) -> NumberedEntry:
    """The entry in a line. Its time must be within those of the block's head."""
    number = block.first + place
    try:
        found = json_bytes.decode(line)
    except json_bytes.JsonError as error:
        raise RecordingError(f"{name} is damaged: entry {number} is no JSON: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("kind"), str):
        raise RecordingError(f"{name} is damaged: entry {number} has no kind")
    at_ms = found.get("at_ms")
    if type(at_ms) is not int or not block.first_ms <= at_ms <= block.last_ms:
        raise RecordingError(f"{name} is damaged: the time of entry {number} is {str(at_ms)[:40]}")
    return NumberedEntry(number, at_ms, found)


def _apply(state: State, entry: NumberedEntry) -> None:
    # Such an entry did not change the writer's state either.
    with suppress(EntryError):
        state.apply(entry.entry, entry.at_ms)


def _keyframe(name: str, line: bytes) -> State:
    try:
        found = json_bytes.decode(line)
        return State.from_json(found.get("state") if isinstance(found, dict) else None)
    except (json_bytes.JsonError, EntryError) as error:
        raise RecordingError(f"{name} is damaged: {error}") from None


def _is_about(entry: Json, topic: str, partition: int, paths: Container[str]) -> bool:
    path = entry.get("path")
    if isinstance(path, str):
        return path in paths
    return entry.get("topic") == topic and entry.get("partition", partition) == partition


def _without_others(entries: list[NumberedEntry], topic: str, partition: int) -> list[NumberedEntry]:
    """The entries without versions of the topic's assignment that only change other partitions."""
    kept, known = [], None
    for entry in entries:
        if entry.entry.get("path") == topic_path(topic):
            now = _assigned(entry.entry, topic, partition)
            if now is not None and now == known:
                continue
            known = now
        kept.append(entry)
    return kept


def _assigned(entry: Json, topic: str, partition: int) -> tuple[Sequence[int], ...] | None:
    """A partition's replicas, adding replicas and removing replicas in a version of its topic's znode."""
    try:
        data = znode_of(entry).data
        if data is None:
            return None
        found = TopicAssignment.decode(topic, data)
    except (EntryError, ZnodeError):
        return None
    return tuple(
        tuple(each.get(partition, ())) for each in (found.partitions, found.adding_replicas, found.removing_replicas)
    )
