"""The map of partitions: one byte for each partition and broker, for the page's heat map. Pure.

A byte is a `ReplicaState`. A row without a leader byte is a partition without a leader.

What must stay true:
- Rows are sorted by topic and partition, columns by broker id. A change of rows or columns makes a new `version`, and
  a page loads the whole map again. Within a version only cells change.
- A new version appears complete, in one step. A look never undoes a change that came after the look had begun.
- Cells of a version only change together with `sequence`, so that a page knows which changes its copy has. The totals
  match the cells.
- Memory is bounded by the number of partitions, whatever their numbers and broker ids are: files and znodes may contain
  any numbers. Omitted partitions and brokers are counted (`left_out`).
- Long work is a generator of steps, for klamm.base.slices.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from klamm.base.slices import Slices, Steps
from klamm.diagnosis.cluster_view import PartitionView
from klamm.diagnosis.partition_health import ReplicaState, is_short, is_unavailable, replica_state
from klamm.protocol.vocabulary import NO_EPOCH, NO_LEADER, TopicPartition

if TYPE_CHECKING:
    from klamm.client.admin.reassignments import PartitionReassignment
    from klamm.client.metadata import ClusterMetadata

# The counted properties of a row, as bits.
_EXISTS: Final = 1
_LEADERLESS: Final = 2
_UNDER_REPLICATED: Final = 4
_MOVING: Final = 8


# A slice takes some milliseconds.
ROWS_PER_SLICE: Final = 1_000
# Above this many different rows all rows are made anew, because unused ones are never dropped.
MOST_MADE: Final = 50_000
# Kafka numbers the partitions of a topic from 0 on. Metadata from the middle of a change may lack some partitions, but
# not this many.
MOST_GAPS: Final = 10_000
MOST_BROKERS: Final = 2_000
MOST_CELLS: Final = 128 * 1024 * 1024

UNKNOWN: Final = PartitionView(NO_LEADER, NO_EPOCH, (), ())

States = Mapping[str, Mapping[int, PartitionView]]
"""By topic and partition. Leader epochs are omitted: the map does not show them, and partitions share states."""


class Totals(NamedTuple):
    """Counts over all partitions; `offline` partitions have no live leader."""

    topics: int
    partitions: int
    offline: int
    under_replicated: int
    reassigning: int


class LeftOut(NamedTuple):
    """How many partitions and brokers the map omits because of their numbers."""

    partitions: int = 0
    brokers: int = 0


class Changes(NamedTuple):
    """The rows whose cells have changed since the last `take_changes`, and their cells."""

    version: int
    sequence: int
    rows: Sequence[int]
    cells: Sequence[bytes]
    totals: Totals

    def value(self) -> dict[str, Any]:
        """The changes as JSON: the cells of a row are a text with a digit for each broker."""
        return {
            "version": self.version,
            "sequence": self.sequence,
            "totals": self.totals._asdict(),
            "rows": self.rows,
            "cells": [cells.translate(_DIGITS).decode() for cells in self.cells],
        }


_DIGITS: Final = bytes((0x30 + code) if code in tuple(ReplicaState) else 0x3F for code in range(256))


class PartitionMap:
    """See the module. `live` are the live brokers."""

    def __init__(self) -> None:
        self.version = 0
        self.sequence = 0
        self.brokers: tuple[int, ...] = ()
        self.live: frozenset[int] = frozenset()
        self.left_out = LeftOut()
        self.cells = bytearray()
        self._first_rows: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._states: list[PartitionView] = []
        # Many partitions have the same replicas and leader, so they share states, and each state's cells are made once.
        self._made: dict[PartitionView, tuple[bytes, int]] = {}
        # The counted properties of each row, and how many rows have each bit.
        self._counted = bytearray()
        self._bits = dict.fromkeys((_EXISTS, _LEADERLESS, _UNDER_REPLICATED, _MOVING), 0)
        self._changed: dict[int, None] = {}
        self._newer: set[int] | None = None  # The rows that changed since the look in progress began.

    @property
    def row_count(self) -> int:
        return len(self._states)

    def head(self) -> dict[str, Any]:
        """What a page needs to read `cells`: [name, first row, rows] of each topic, the brokers of the columns, and how
        much is left out."""
        return {
            "version": self.version,
            "sequence": self.sequence,
            "brokers": self.brokers,
            "live": sorted(self.live),
            "rows": len(self._states),
            "left_out": self.left_out._asdict(),
            "totals": self.totals._asdict(),
            "topics": [[name, first, self._counts[name]] for name, first in self._first_rows.items()],
        }

    @property
    def totals(self) -> Totals:
        """Counts over the cells as they are now."""
        return Totals(len(self._counts), *self._bits.values())

    def snapshot(self) -> "PartitionMap":
        """This version, for another thread. Later changes may alter its cells, but nothing else."""
        return copy(self)

    def row(self, topic: str, partition: int) -> int | None:
        """The row of a partition; None for one that is not in the map."""
        first = self._first_rows.get(topic)
        if first is None or not 0 <= partition < self._counts[topic]:
            return None
        return first + partition

    def state(self, topic: str, partition: int) -> PartitionView:
        """The state of a partition; `UNKNOWN` for one that is not in the map."""
        row = self.row(topic, partition)
        return UNKNOWN if row is None else self._states[row]

    def leaderless(self, topic: str) -> int:
        """How many partitions of a topic have no live leader."""
        first = self._first_rows.get(topic, 0)
        counted = self._counted[first : first + self._counts.get(topic, 0)]
        return sum(bool(each & _LEADERLESS) for each in counted)

    def rows(self, first: int, count: int) -> Iterator[tuple[TopicPartition, PartitionView]]:
        """The partitions of these rows, as far as the map has them."""
        begins = list(self._first_rows.values())
        end = min(first + count, len(self._states))
        for topic, begin in islice(self._first_rows.items(), max(0, bisect_right(begins, first) - 1), None):
            if begin >= end:
                return
            for row in range(max(begin, first), min(begin + self._counts[topic], end)):
                yield TopicPartition(topic, row - begin), self._states[row]

    def topics(self) -> Iterator[tuple[str, dict[int, PartitionView]]]:
        """The partitions of each topic by number. In another thread, call it on a `snapshot`."""
        for topic, first in self._first_rows.items():
            states = self._states[first : first + self._counts[topic]]
            yield topic, {number: state for number, state in enumerate(states) if state is not UNKNOWN}

    def begin_look(self) -> None:
        """Call it before asking a broker for the states that `look` takes."""
        self._newer = set()

    def look(self, states: States, live: Iterable[int]) -> Steps[bool]:
        """Takes the states of all partitions. Returns whether rows or columns have changed."""
        live = frozenset(live)
        counts, hidden = yield from _counts(states)
        named: set[int] = set()
        taken = Slices(ROWS_PER_SLICE)
        for partitions in states.values():
            for each in partitions.values():
                named.update(each.replicas)
            if taken.spend(1 + len(partitions)):
                yield
        most = min(MOST_BROKERS, MOST_CELLS // max(sum(counts.values()), 1))
        shown = [*sorted(live), *sorted(named - live)]
        brokers, left_out = tuple(sorted(shown[:most])), LeftOut(hidden, len(shown[most:]))
        is_new = brokers != self.brokers or counts != self._counts or left_out != self.left_out
        filled = PartitionMap() if is_new else self
        if is_new:
            filled._begin(brokers, counts)
            filled.left_out = left_out
        if live != filled.live or len(filled._made) > MOST_MADE:
            filled.live = live
            filled._made = {}
        row = 0
        for topic, count in counts.items():
            partitions = states[topic]
            for number in range(count):
                if is_new or self._newer is None or row not in self._newer:
                    filled._put(row, partitions.get(number, UNKNOWN))
                row += 1
            if taken.spend(1 + count):
                yield
        self._newer = None
        if is_new:
            filled.version, filled.sequence = self.version + 1, self.sequence
            filled._changed = {}
            self.__dict__.update(filled.__dict__)
        return is_new

    def _begin(self, brokers: tuple[int, ...], counts: Mapping[str, int]) -> None:
        rows = sum(counts.values())
        self.brokers = brokers
        self.cells = bytearray(rows * len(brokers))
        self._counted = bytearray(rows)
        self._counts = dict(counts)
        self._states = [UNKNOWN] * rows
        first = 0
        for topic, count in counts.items():
            self._first_rows[topic] = first
            first += count

    def change(self, topic: str, partition: int, leader: int, isr: Sequence[int]) -> bool:
        """Takes a new leader and ISR of a partition. Returns False for a partition that is not in the map or now has
        other replicas; it then needs a `look`."""
        row = self.row(topic, partition)
        if row is None or not set(isr) <= set(self._states[row].replicas):
            return False
        self._put(row, self._states[row]._replace(leader=leader, isr=tuple(isr)))
        if self._newer is not None:
            self._newer.add(row)
        return True

    def relive(self, live: Iterable[int]) -> Steps[None]:
        """Takes the live brokers from another source than that of `look`. Not to be called during a look."""
        self.live = frozenset(live)
        self._made = {}
        taken = Slices(ROWS_PER_SLICE)
        for row, state in enumerate(self._states):
            self._put(row, state)
            if taken.spend(1):
                yield

    def _put(self, row: int, state: PartitionView) -> None:
        made = self._made.get(state)
        if made is None:
            made = self._made[state] = _cells(state, self.brokers, self.live), _counted(state, self.live)
        cells, counted = made
        if counted != (before := self._counted[row]):
            self._counted[row] = counted
            for bit in self._bits:
                self._bits[bit] += bool(counted & bit) - bool(before & bit)
        self._states[row] = state
        first = row * len(self.brokers)
        if self.cells[first : first + len(cells)] != cells:
            self.cells[first : first + len(cells)] = cells
            self._changed[row] = None

    def no_changes(self) -> Changes:
        """Tells a page which version and sequence its copy should have."""
        return Changes(self.version, self.sequence, (), (), self.totals)

    def take_changes(self) -> Changes | None:
        """The rows that have changed since the last call; None if no row has changed."""
        if not self._changed:
            return None
        self.sequence += 1
        rows, width = list(self._changed), len(self.brokers)
        self._changed.clear()
        cells = [bytes(self.cells[row * width : (row + 1) * width]) for row in rows]
        return Changes(self.version, self.sequence, rows, cells, self.totals)


def _counts(states: States) -> Steps[tuple[dict[str, int], int]]:
    """The number of rows of each topic, sorted, and how many partitions behind too wide gaps are left out."""
    counts: dict[str, int] = {}
    left_out, gaps = 0, MOST_GAPS
    taken = Slices(ROWS_PER_SLICE)
    for topic in sorted(states):
        partitions = states[topic]
        count = 1 + max(partitions, default=-1)
        gaps -= count - len(partitions)
        if gaps < 0:
            gaps += count - len(partitions)
            count = next(number for number in range(count) if number not in partitions)
            left_out += len(partitions) - count
        counts[topic] = count
        if taken.spend(1 + len(partitions)):
            yield
    return counts, left_out


def states_of(
    metadata: "ClusterMetadata", moving: "Mapping[TopicPartition, PartitionReassignment]"
) -> Steps[dict[str, dict[int, PartitionView]]]:
    """The states from the metadata, with the reassignments in progress."""
    made: dict[str, dict[int, PartitionView]] = {}
    taken = Slices(ROWS_PER_SLICE)
    for name, topic in metadata.topics.items():
        made[name] = {
            number: PartitionView(
                each.leader, NO_EPOCH, tuple(each.replicas), tuple(each.isr), offline=tuple(each.offline_replicas)
            )
            for number, each in topic.partitions.items()
        }
        if taken.spend(1 + len(topic.partitions)):
            yield
    for key, move in moving.items():
        if key.partition in made.get(key.topic, {}):
            made[key.topic][key.partition] = made[key.topic][key.partition]._replace(
                replicas=tuple(move.replicas),
                adding=tuple(move.adding_replicas),
                removing=tuple(move.removing_replicas),
            )
    return made


def _cells(state: PartitionView, brokers: Sequence[int], live: frozenset[int]) -> bytes:
    """One row. `brokers` are sorted."""
    cells = bytearray(len(brokers))
    for broker_id in state.replicas:
        column = bisect_left(brokers, broker_id)
        if column == len(brokers) or brokers[column] != broker_id:
            continue
        cells[column] = replica_state(state, broker_id, live)
    return bytes(cells)


def _counted(state: PartitionView, live: frozenset[int]) -> int:
    """The counted properties of a row."""
    if state is UNKNOWN:
        return 0
    return (
        _EXISTS
        | (_LEADERLESS if is_unavailable(state, live) else 0)
        | (_UNDER_REPLICATED if is_short(state, live) else 0)
        | (_MOVING if state.is_reassigning else 0)
    )
