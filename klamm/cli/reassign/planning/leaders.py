"""Balances preferred leaders: only the order of replicas changes, and no byte moves. Pure.

A partition can only be led by one of its replicas, so leadership may have to move along a chain of brokers: from the
first to the second in one partition, from the second to the third in another. The shortest chains are used, because
they change the fewest partitions.
"""

from collections.abc import Callable, Sequence

from klamm.cli.reassign.planning.layout import Layout
from klamm.cli.reassign.planning.shares import band


class LeaderBalancer:
    """Changes the first replicas of a layout."""

    def __init__(self, layout: Layout, tolerance: float) -> None:
        self._layout = layout
        self._tolerance = tolerance
        self._led = [0] * len(layout.brokers)
        for replicas in layout.replicas:
            self._led[replicas[0]] += 1
        # For each pair of brokers: the partitions that the first leads and the second has a replica of. An entry whose
        # leader has changed is removed when it is reached.
        self._shared: list[dict[int, list[int]]] = [{} for _ in layout.brokers]
        # Partitions that move anyway stand at the end of each list, and are taken first.
        self._movable = sorted(
            (each for each in range(len(layout.names)) if layout.is_movable[each]),
            key=lambda each: (tuple(layout.replicas[each]) != layout.original[each], layout.mixed[each], each),
        )
        for partition in self._movable:
            self._enter(partition)

    def _enter(self, partition: int) -> None:
        leader, *others = self._layout.replicas[partition]
        for broker in others:
            if self._layout.is_target[broker]:
                self._shared[leader].setdefault(broker, []).append(partition)

    # -- equally many leaders -----------------------------------------------------------------------------------------

    def balance_counts(self) -> None:
        """Gives each target broker its share of leaders, within the tolerance."""
        led, targets = self._led, self._layout.targets
        _, low, high = band(sum(led[each] for each in targets) / len(targets), self._tolerance, is_count=True)
        while over := [each for each in targets if led[each] > high]:
            source = max(over, key=lambda each: (led[each], -each))
            if not (
                self._give(source, lambda each: led[each] < low) or self._give(source, lambda each: led[each] < high)
            ):
                break
        while under := [each for each in targets if led[each] < low]:
            needy = min(under, key=lambda each: (led[each], each))
            givers = sorted((each for each in targets if led[each] > low), key=lambda each: (-led[each], each))
            if not any(self._give(each, needy.__eq__) for each in givers):
                break

    def _give(self, source: int, is_receiver: Callable[[int], bool]) -> bool:
        """Moves one leadership from the source along the shortest chain to a receiver, the lowest of the nearest."""
        came_from = {source: source}
        ends = [source]
        while ends:
            reached = []
            for end in ends:
                for broker in self._successors(end):
                    if broker not in came_from:
                        came_from[broker] = end
                        reached.append(broker)
            receivers = [broker for broker in reached if is_receiver(broker)]
            if receivers:
                broker = min(receivers, key=lambda each: (self._led[each], each))
                while broker != source:
                    self._lead(self._shared[came_from[broker]][broker].pop(), broker)
                    broker = came_from[broker]
                return True
            ends = reached
        return False

    def _successors(self, broker: int) -> list[int]:
        """The brokers that could lead a partition that this broker leads now."""
        found = []
        for other, partitions in self._shared[broker].items():
            while partitions and self._layout.replicas[partitions[-1]][0] != broker:
                partitions.pop()
            if partitions:
                found.append(other)
        return found

    def _lead(self, partition: int, leader: int) -> None:
        """Makes this replica the first; the order of the others stays."""
        replicas = self._layout.replicas[partition]
        self._led[replicas[0]] -= 1
        self._led[leader] += 1
        replicas.remove(leader)
        replicas.insert(0, leader)
        self._enter(partition)

    # -- equally much read from leaders -------------------------------------------------------------------------------

    def balance_rates(self, rates: Sequence[float], *, keep_counts: bool) -> None:
        """Gives each target broker its share of what clients read; `rates` has that of each partition.

        The broker with the highest rate gives away the partition after which the higher of the two brokers' rates is
        lowest. With `keep_counts` the number of leaders stays within the tolerance.
        """
        layout, targets = self._layout, self._layout.targets
        read = [0.0] * len(layout.brokers)
        for partition, replicas in enumerate(layout.replicas):
            read[replicas[0]] += rates[partition]
        led: list[list[int]] = [[] for _ in layout.brokers]
        for partition in self._movable:
            if rates[partition]:
                led[layout.replicas[partition][0]].append(partition)
        _, _, top = band(sum(read[each] for each in targets) / len(targets), self._tolerance, is_count=False)
        _, low, high = band(sum(self._led[each] for each in targets) / len(targets), self._tolerance, is_count=True)
        sources = set(targets)
        while sources:
            source = max(sources, key=lambda each: (read[each], -each))
            if read[source] <= top:
                return
            may_give = not keep_counts or self._led[source] > low
            found = (
                (max(read[source] - rates[partition], read[follower] + rates[partition]), partition, follower)
                for partition in (led[source] if may_give else ())
                for follower in layout.replicas[partition][1:]
                if layout.is_target[follower] and (not keep_counts or self._led[follower] < high)
            )
            best = min((each for each in found if each[0] < read[source]), default=None)
            if best is None:
                sources.discard(source)
                continue
            _, partition, follower = best
            read[source] -= rates[partition]
            read[follower] += rates[partition]
            led[source].remove(partition)
            led[follower].append(partition)
            self._lead(partition, follower)
