"""The moves that a goal forces: they empty brokers, change the replication factor, and spread shared racks. Pure.

The largest partitions go first, each to the allowed broker that has the least of its share of bytes, replicas and load;
small partitions then even out the differences. So the brokers end as balanced as they can be without a further move.
Among brokers that are about equally low, the one with the fewest replicas of the topic is taken, because partitions of
one topic are often busy at the same time.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Final

from klamm.cli.reassign.planning.goals import Goal, Racks
from klamm.cli.reassign.planning.layout import UNKNOWN_RACK, Layout
from klamm.cli.reassign.planning.model import Unmovable
from klamm.protocol.vocabulary import NO_LEADER

# How many brokers of a rack are compared, and which difference of their scores is ignored.
_CHOICES: Final = 4
_EQUAL: Final = 0.02


class Lowest:
    """The target brokers of each rack; the broker that has the least of its share comes first."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._scores = {broker: self._score(broker) for broker in layout.targets}
        self._heaps: dict[str, list[tuple[float, int]]] = {}
        for broker, score in self._scores.items():
            self._heaps.setdefault(self._rack(broker), []).append((score, broker))
        for heap in self._heaps.values():
            heapify(heap)

    def _rack(self, broker: int) -> str:
        return self._layout.racks[broker] if self._layout.keeps_racks else UNKNOWN_RACK

    def _score(self, broker: int) -> float:
        """Which part of its share the broker has, in the dimension in which that part is largest."""
        return max(
            each.loads[broker] / each.shares[broker] if each.shares[broker] else 0.0 for each in self._layout.dimensions
        )

    def score(self, broker: int) -> float:
        return self._scores.get(broker, 0.0)

    def changed(self, *brokers: int) -> None:
        """Must be called for each broker whose load has changed."""
        for broker in brokers:
            if self._layout.is_target[broker]:
                self._scores[broker] = score = self._score(broker)
                heappush(self._heaps[self._rack(broker)], (score, broker))

    def of_racks(self, replicas: list[int], at_most: int = 1) -> Iterator[tuple[str, float, int]]:
        """Target brokers without a replica of the partition: the lowest brokers of each rack, at most `at_most`."""
        for rack, heap in self._heaps.items():
            taken = []
            found = 0
            while heap and found < at_most:
                score, broker = entry = heappop(heap)
                if self._scores[broker] != score or entry in taken:
                    continue
                taken.append(entry)
                if broker not in replicas:
                    found += 1
                    yield rack, score, broker
            for entry in taken:
                heappush(heap, entry)


class ForcedMoves:
    """Changes a layout until replicas are only where they may be, in the number that the goal wants."""

    def __init__(self, layout: Layout, goal: Goal) -> None:
        self._layout = layout
        self._goal = goal
        self._leaving = {layout.index[broker] for broker in goal.leaving}
        self._by_size = sorted(
            range(len(layout.names)), key=lambda each: (-layout.bytes.weights[each], layout.mixed[each], each)
        )
        layout.set_shares(goal.tolerance, [self._wanted(partition) for partition in range(len(layout.names))])
        self._lowest = Lowest(layout)
        self.unmovable: list[Unmovable] = []

    def run(self) -> None:
        layout, goal = self._layout, self._goal
        worked_on = []
        for partition in self._by_size:
            if not layout.is_selected[partition] or not self._has_work(partition):
                continue
            if reason := self._standstill(partition):
                self._refuse_all(partition, reason)
            else:
                self._replace(partition)
                self._reduce(partition)
                self._empty(partition)
                self._increase(partition)
                # One more replica of the partition may let a replica leave that could not leave before.
                self._empty(partition)
                worked_on.append(partition)
        if goal.racks is Racks.IMPROVE and layout.keeps_racks:
            self._improve_racks()
        for partition in worked_on:
            self._refuse_stuck(partition)
        self.unmovable.sort(key=lambda each: (each.topic, each.partition, -1 if each.broker is None else each.broker))

    def _must_leave(self, broker: int) -> bool:
        """Whether the goal takes selected partitions away from this broker."""
        if self._goal.broker_list is not None:
            return not self._layout.is_target[broker]
        return broker in self._leaving

    def _has_work(self, partition: int) -> bool:
        replicas = self._layout.replicas[partition]
        factor = self._goal.replication_factor
        return any(map(self._must_leave, replicas)) or (factor is not None and factor != len(replicas))

    def _standstill(self, partition: int) -> str | None:
        """Why no replica of this partition can move at present."""
        found = self._layout.partitions[partition]
        if found.is_reassigning:
            return "a reassignment of the partition is in progress"
        if found.leader == NO_LEADER:
            return "the partition has no leader to copy from"
        return None

    def _wanted(self, partition: int) -> int:
        """How many replicas of the partition shall be on target brokers."""
        layout = self._layout
        on_targets = sum(layout.is_target[broker] for broker in layout.replicas[partition])
        if not layout.is_selected[partition]:
            return on_targets
        arriving = sum(map(self._must_leave, layout.replicas[partition]))
        factor = self._goal.replication_factor
        if factor is None:
            return min(on_targets + arriving, len(layout.targets))
        # Dead brokers that the goal does not name keep their replicas.
        staying = len(layout.replicas[partition]) - arriving - on_targets
        return factor - min(staying, max(0, factor - on_targets))

    # -- the steps ----------------------------------------------------------------------------------------------------

    def _replace(self, partition: int) -> None:
        layout = self._layout
        for old_id, new_id in self._goal.replace.items():
            old, new = layout.index[old_id], layout.index[new_id]
            if old in layout.replicas[partition] and layout.allows(partition, old, new):
                self._move(partition, old, new)

    def _reduce(self, partition: int) -> None:
        """Removes replicas: first those that must leave, then those that share a rack, then those on full brokers."""
        layout, factor = self._layout, self._goal.replication_factor
        replicas = layout.replicas[partition]
        while factor is not None and len(replicas) > factor:
            in_rack = layout.rack_counts(replicas)
            broker = max(
                replicas,
                key=lambda each: (
                    self._must_leave(each),
                    not layout.is_target[each],
                    in_rack[layout.racks[each]] if layout.keeps_racks else 0,
                    each != replicas[0],
                    self._lowest.score(each),
                    each,
                ),
            )
            layout.drop(partition, broker)
            self._lowest.changed(broker)

    def _empty(self, partition: int) -> None:
        layout = self._layout
        sources = [broker for broker in self._stuck(partition) if layout.brokers[broker] not in self._goal.replace]
        moved = self._relocate(partition, sources)
        if len(moved) < len(sources) > 1 and layout.keeps_racks:
            # The moves to the lowest brokers may have taken racks that another replica needs.
            for source, destination in moved.items():
                self._move(partition, destination, source)
            moved = self._relocate(partition, sources, spread=True)
        # A replica that has left may have freed the rack of a broker that --replace names.
        self._replace(partition)

    def _stuck(self, partition: int) -> list[int]:
        """The brokers that must lose their replica of the partition and still have it."""
        return [broker for broker in self._layout.replicas[partition] if self._must_leave(broker)]

    def _refuse_stuck(self, partition: int) -> None:
        for source in self._stuck(partition):
            broker = self._layout.brokers[source]
            why = self._why_not_replaced if broker in self._goal.replace else self._why_stuck
            self._refuse(partition, broker, why(partition, source))

    def _relocate(self, partition: int, sources: Iterable[int], *, spread: bool = False) -> dict[int, int]:
        """Moves the replicas that can move away from these brokers. Returns the new broker for each old one."""
        moved = {}
        for source in sources:
            destination = self._best(partition, partial(self._allows, partition, source), spread=spread)
            if destination is not None:
                self._move(partition, source, destination)
                moved[source] = destination
        return moved

    def _allows(self, partition: int, source: int, destination: int) -> bool:
        """Whether racks are shared no more than before this move, or than before all moves of the partition."""
        layout = self._layout
        if layout.allows(partition, source, destination):
            return True
        after = [destination if broker == source else broker for broker in layout.replicas[partition]]
        return layout.pairs_in_a_rack(after) <= layout.pairs_in_a_rack(layout.original[partition])

    def _increase(self, partition: int) -> None:
        layout, factor = self._layout, self._goal.replication_factor
        replicas = layout.replicas[partition]
        while factor is not None and len(replicas) < factor:
            broker = self._best(partition, layout.is_target.__getitem__, spread=True)
            if broker is None:
                self._refuse(partition, None, self._why_stuck(partition, None))
                return
            layout.add(partition, broker)
            self._lowest.changed(broker)

    def _improve_racks(self) -> None:
        for partition in self._by_size:
            if self._layout.is_movable[partition]:
                while (better := self._better_racks(partition)) is not None:
                    self._move(partition, *better)
                    # The move may have freed the place for a replica that could not leave before.
                    self._empty(partition)

    def _better_racks(self, partition: int) -> tuple[int, int] | None:
        """A move that leaves fewer replicas of the partition in one rack."""
        layout = self._layout
        replicas = layout.replicas[partition]
        counts = layout.rack_counts(replicas)
        if len(counts) == len(replicas):
            return None
        free = list(self._lowest.of_racks(replicas))
        known = [broker for broker in replicas if layout.racks[broker] != UNKNOWN_RACK]
        if not free or not known:
            return None
        rack, _, destination = min(free, key=lambda each: (counts.get(each[0], 0), each[1], each[2]))
        # The preferred leader stays where it is if another replica can move.
        source = max(
            known,
            key=lambda each: (counts[layout.racks[each]], each != replicas[0], self._lowest.score(each), each),
        )
        is_better = counts[layout.racks[source]] - counts.get(rack, 0) >= 2
        return (source, destination) if is_better else None

    def _best(self, partition: int, is_allowed: Callable[[int], bool], *, spread: bool = False) -> int | None:
        """The lowest allowed broker; with `spread`, the lowest in the racks with the fewest replicas."""
        layout = self._layout
        replicas = layout.replicas[partition]
        spread = layout.keeps_racks and (spread or self._goal.racks is Racks.IMPROVE)
        counts = layout.rack_counts(replicas) if spread else {}
        found = [each for each in self._lowest.of_racks(replicas, _CHOICES) if is_allowed(each[2])]
        if not found:
            return None
        fewest, lowest, _ = min((counts.get(rack, 0), score, broker) for rack, score, broker in found)
        equal = [
            (layout.crowding(partition, broker), score, broker)
            for rack, score, broker in found
            if counts.get(rack, 0) == fewest and score <= lowest + _EQUAL
        ]
        return min(equal)[2]

    def _move(self, partition: int, source: int, destination: int) -> None:
        self._layout.move(partition, source, destination)
        self._lowest.changed(source, destination)

    # -- reasons ------------------------------------------------------------------------------------------------------

    def _refuse(self, partition: int, broker: int | None, reason: str) -> None:
        name = self._layout.names[partition]
        self.unmovable.append(Unmovable(name.topic, name.partition, broker, reason))

    def _refuse_all(self, partition: int, reason: str) -> None:
        leaving = [broker for broker in self._layout.replicas[partition] if self._must_leave(broker)]
        for broker in leaving:
            self._refuse(partition, self._layout.brokers[broker], reason)
        if not leaving:
            self._refuse(partition, None, reason)

    def _why_not_replaced(self, partition: int, source: int) -> str:
        layout = self._layout
        new_id = self._goal.replace[layout.brokers[source]]
        if layout.index[new_id] in layout.replicas[partition]:
            return f"broker {new_id} already has a replica"
        return (
            f"rack {layout.racks[layout.index[new_id]]} of broker {new_id} already has a replica "
            "(--disable-rack-aware allows a second)"
        )

    def _why_stuck(self, partition: int, source: int | None) -> str:
        layout = self._layout
        replicas = layout.replicas[partition]
        free = [broker for broker in layout.targets if broker not in replicas]
        if not free:
            needed = len(replicas) + (source is None)
            return (
                f"too few brokers: {needed} replicas need as many, and replicas may be on {len(layout.targets)}: "
                f"{self._ids(layout.targets)}"
            )
        return (
            f"racks: each broker without a replica ({self._ids(free)}) is in a rack that has one "
            "(--disable-rack-aware allows a second)"
        )

    def _ids(self, brokers: Iterable[int]) -> str:
        return ",".join(str(self._layout.brokers[broker]) for broker in brokers)
