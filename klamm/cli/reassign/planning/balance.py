"""The fewest bytes that bring every broker within the tolerance. Pure.

The first step decides how much of each dimension (bytes, replicas, load) each broker shall have in the end, so that as
little as possible moves between brokers (`shares.levels`). The second step chooses replicas that carry just these
amounts. If a broker has to give some bytes and some replicas, replicas of the average size settle both at once. A
replica that has moved already is taken first, because another destination costs nothing. A move is made only if it
brings the brokers closer to the tolerance, in proportion to their shares and in all dimensions together. If no move
helps, two brokers exchange a large replica for a small one.

Partitions of one topic often have similar sizes and are busy at the same time. A topic must not end on few brokers, so
replicas of all sizes are taken while the remaining ones can still settle bytes and replicas. Among several, the replica
is taken whose topic is spread most by the move. To balance load, the replicas with the most load for each byte move.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import chain, islice
from typing import Final, NamedTuple

from klamm.cli.reassign.planning.goals import Balance
from klamm.cli.reassign.planning.layout import Dimension, Layout
from klamm.cli.reassign.planning.shares import levels

_ROUNDS: Final = 6
# How many replicas of a broker are tried for one move, and among how many suitable ones the move is chosen.
_TRIES: Final = 300
_CHOICES: Final = 8
_EXCHANGES: Final = 40
_PARTNERS: Final = 8
_RECEIVERS: Final = 12
# The levels lie this much of the tolerance inside it, because replicas are not divisible.
_MARGIN: Final = 0.1
# A broker gives this part of its replicas last; their sizes are chosen to settle its bytes.
_SETTLED_LAST: Final = 0.1
_EPSILON: Final = 1e-6


class _Problem(Enum):
    RACKS = "racks"
    OTHER = "other"


class Key(NamedTuple):
    """The sort key of a replica in the order in which a broker's replicas are tried."""

    weight: float
    mixed: int
    partition: int


class Replicas:
    """The movable replicas of each broker, sorted; replicas that have moved already are in lists of their own."""

    def __init__(self, layout: Layout, weights: Sequence[float]) -> None:
        self._keys = [Key(weight, layout.mixed[each], each) for each, weight in enumerate(weights)]
        self._original = layout.original
        self.moved: list[list[Key]] = [[] for _ in layout.brokers]
        self.kept: list[list[Key]] = [[] for _ in layout.brokers]

    def fill(self, replicas: Iterable[tuple[int, int]]) -> None:
        for partition, broker in replicas:
            self._list(partition, broker).append(self._keys[partition])
        for each in chain(self.moved, self.kept):
            each.sort()

    def move(self, partition: int, source: int, destination: int) -> None:
        key = self._keys[partition]
        before = self._list(partition, source)
        del before[bisect_left(before, key)]
        insort(self._list(partition, destination), key)

    def _list(self, partition: int, broker: int) -> list[Key]:
        return (self.kept if broker in self._original[partition] else self.moved)[broker]


class Balancer:
    """Moves replicas between the target brokers of a layout."""

    def __init__(self, layout: Layout, dimensions: Sequence[Dimension]) -> None:
        self._layout = layout
        self._dimensions = dimensions
        self._sizes = layout.bytes.weights
        movable = [
            (partition, broker)
            for partition, replicas in enumerate(layout.replicas)
            if layout.is_movable[partition]
            for broker in replicas
            if layout.is_target[broker]
        ]
        self._by_size = Replicas(layout, self._sizes)
        self._by_size.fill(movable)
        self._by_chance = Replicas(layout, [0.0] * len(self._sizes))
        self._by_chance.fill(movable)
        self._cursors = [Key(0.0, 0, 0)] * len(layout.brokers)
        self._first_needs: list[tuple[float, float]] = []
        self._orders = {Balance.BYTES: self._by_size, Balance.REPLICAS: self._by_size}
        for each in dimensions:
            if each.kind is Balance.LOAD:
                # Replicas with the most load for each byte come first.
                ratio = [-rate / (size + 1.0) for rate, size in zip(each.weights, self._sizes, strict=True)]
                self._orders[each.kind] = Replicas(layout, ratio)
                self._orders[each.kind].fill(movable)
        self._needs: dict[Balance, list[float]] = {}
        self._is_at_levels = True
        # Factors that make the dimensions comparable: the inverse of the mean share.
        self._scales = {
            each.kind: len(layout.targets) / total if (total := sum(each.shares)) else 0.0 for each in dimensions
        }
        # Pairs of a source and a destination, a broker or a rack, between which no replica can move.
        self._blocked: set[tuple[int, int | str]] = set()

    def run(self) -> None:
        self._set_levels()
        for dimension in self._dimensions:
            self._settle(dimension)
        # Racks and sizes may keep brokers from their levels. From now on, replicas move to any broker with room.
        for _ in range(_ROUNDS):
            if not any(self._is_uneven(dimension) for dimension in self._dimensions):
                return
            self._set_shares()
            moves = sum(self._settle(dimension) for dimension in self._dimensions)
            moves += sum(self._exchange(dimension) for dimension in self._dimensions)
            if not moves:
                return

    def _is_uneven(self, dimension: Dimension) -> bool:
        """Whether a broker is outside the tolerance."""
        return any(dimension.violation(broker) > _EPSILON * dimension.shares[broker] for broker in self._layout.targets)

    def _set_levels(self) -> None:
        """Sets how much of each dimension each broker has to give; a negative amount has to be received."""
        targets = self._layout.targets
        for each in self._dimensions:
            margin = 0.0 if each.kind is Balance.REPLICAS else _MARGIN
            loads = [each.loads[broker] for broker in targets]
            low = [each.low[broker] + margin * (each.shares[broker] - each.low[broker]) for broker in targets]
            high = [each.high[broker] - margin * (each.high[broker] - each.shares[broker]) for broker in targets]
            needs = [0.0] * len(self._layout.brokers)
            for broker, load, level in zip(targets, loads, levels(loads, low, high), strict=True):
                needs[broker] = load - level
            self._needs[each.kind] = needs
        if Balance.BYTES in self._needs and Balance.REPLICAS in self._needs:
            self._first_needs = list(zip(self._needs[Balance.BYTES], self._needs[Balance.REPLICAS], strict=True))

    def _set_shares(self) -> None:
        """Lets every broker above its share give, and every broker below its share receive."""
        self._is_at_levels = False
        for each in self._dimensions:
            needs = [0.0] * len(self._layout.brokers)
            for broker in self._layout.targets:
                needs[broker] = each.loads[broker] - each.shares[broker]
            self._needs[each.kind] = needs

    # -- single moves -------------------------------------------------------------------------------------------------

    def _settle(self, dimension: Dimension) -> int:
        """Moves replicas until every broker is within the tolerance of this dimension. Returns the number of moves."""
        needs = self._needs[dimension.kind]
        self._blocked = set()
        sources = set(self._layout.targets)
        moves = 0
        while sources and self._is_uneven(dimension):
            source = max(sources, key=lambda broker: (needs[broker], -broker))
            if needs[source] > 0 and self._give(dimension, source):
                moves += 1
            else:
                sources.discard(source)
        return moves

    def _give(self, dimension: Dimension, source: int) -> bool:
        """Moves one replica from the source to the neediest broker that can have one; False if there is none."""
        needs = self._needs[dimension.kind]
        racks, blocked = self._layout.racks, self._blocked
        for destination in sorted(self._layout.targets, key=needs.__getitem__):
            if needs[destination] >= 0:
                return False
            if (source, destination) in blocked or (source, racks[destination]) in blocked:
                continue
            partition = self._choose(dimension, source, destination)
            if partition is not None:
                self._move(partition, source, destination)
                return True
        return False

    def _choose(self, dimension: Dimension, source: int, destination: int) -> int | None:
        """The best replica for this move. Without one, blocks the pair, or all of the rack if racks are the reason."""
        needs = self._needs[dimension.kind]
        limit = min(needs[source], -needs[destination])
        if dimension.kind is Balance.LOAD and self._is_at_levels:
            # A small busy replica matters more than the exact level: the destination is filled up to its tolerance.
            limit = min(needs[source], max(limit, dimension.high[destination] - dimension.loads[destination]))
        if not self._is_at_levels:
            limit = min(limit, dimension.missing(source, destination))
        only_racks = True
        too_much: int | None = None
        for candidates in self._candidates(dimension, source, destination, limit):
            choices: list[int] = []
            for key in islice(candidates, _TRIES):
                partition = key.partition
                problem = self._problem(dimension, partition, source, destination)
                only_racks = only_racks and problem is _Problem.RACKS
                if problem is not None:
                    continue
                weight = dimension.weights[partition]
                if dimension.kind is Balance.REPLICAS:
                    return partition
                if dimension.kind is Balance.LOAD and weight <= limit:
                    return partition
                if weight <= limit:
                    choices.append(partition)
                    if len(choices) == _CHOICES:
                        break
                elif too_much is None or weight < dimension.weights[too_much]:
                    too_much = partition
            if choices:
                return min(choices, key=lambda each: self._layout.crowding(each, destination, source))
        if too_much is None:
            self._blocked.add((source, self._layout.racks[destination] if only_racks else destination))
        return too_much

    def _problem(self, dimension: Dimension, partition: int, source: int, destination: int) -> "_Problem | None":
        """Why this replica should not move there."""
        layout = self._layout
        replicas = layout.replicas[partition]
        if destination in replicas:
            return _Problem.OTHER
        if layout.keeps_racks and not layout.keeps_spread(replicas, source, destination):
            return _Problem.RACKS
        gain = dimension.gain(dimension.weights[partition], source, destination) * self._scales[dimension.kind]
        if gain > _EPSILON:
            for each in self._dimensions:
                if each is not dimension:
                    gain += each.gain(each.weights[partition], source, destination) * self._scales[each.kind]
        return None if gain > _EPSILON else _Problem.OTHER

    def _candidates(self, dimension: Dimension, source: int, destination: int, limit: float) -> Iterator[Iterable[Key]]:
        """Replicas of the source in several orders; each order begins with the most suitable replica.

        Replicas that have moved already come before all others.
        """
        order = self._orders[dimension.kind]
        if dimension.kind is not Balance.BYTES:
            yield chain(order.moved[source], order.kept[source])
            return
        size = self._suitable_size(source, destination, limit)
        yield _around(order.moved[source], size, limit)
        yield self._sample(source)
        yield _around(order.kept[source], size, limit)

    def _sample(self, source: int) -> Iterator[Key]:
        """Replicas of all sizes that leave a similar ratio of bytes to replicas for the broker still to give."""
        if Balance.REPLICAS not in self._needs or not self._is_at_levels:
            return
        need_bytes, need_replicas = self._needs[Balance.BYTES][source], self._needs[Balance.REPLICAS][source]
        first_bytes, first_replicas = self._first_needs[source]
        if need_replicas <= max(1, _SETTLED_LAST * first_replicas) or first_replicas <= 0:
            return
        ratio = first_bytes / first_replicas
        keys = self._by_chance.kept[source]
        start = bisect_left(keys, self._cursors[source])
        for key in chain(islice(keys, start, None), islice(keys, start)):
            self._cursors[source] = key
            left = (need_bytes - self._sizes[key.partition]) / (need_replicas - 1)
            if ratio / 2 <= left <= ratio * 2:
                yield key

    def _suitable_size(self, source: int, destination: int, limit: float) -> float:
        """The size that settles bytes and replicas together, or all bytes at once."""
        if Balance.REPLICAS not in self._needs:
            return limit
        needs = self._needs[Balance.REPLICAS]
        replicas = min(needs[source], -needs[destination])
        return limit / replicas if replicas > 1 else limit

    def _move(self, partition: int, source: int, destination: int) -> None:
        self._layout.move(partition, source, destination)
        self._by_size.move(partition, source, destination)
        self._by_chance.move(partition, source, destination)
        if Balance.LOAD in self._orders:
            self._orders[Balance.LOAD].move(partition, source, destination)
        for each in self._dimensions:
            needs, weight = self._needs[each.kind], each.weights[partition]
            needs[source] -= weight
            needs[destination] += weight

    # -- exchanges ----------------------------------------------------------------------------------------------------

    def _exchange(self, dimension: Dimension) -> int:
        """Exchanges large replicas for small ones while that helps. Returns the number of exchanges."""
        targets, loads, shares = self._layout.targets, dimension.loads, dimension.shares
        sources = {broker for broker in targets if shares[broker]}
        exchanges = 0
        while sources and self._is_uneven(dimension):
            source = max(sources, key=lambda broker: (loads[broker] / shares[broker], -broker))
            receivers = sorted(sources - {source}, key=lambda broker: (loads[broker] / shares[broker], broker))
            if not any(self._exchange_with(dimension, source, each) for each in receivers[:_RECEIVERS]):
                sources.discard(source)
            else:
                exchanges += 1
        return exchanges

    def _exchange_with(self, dimension: Dimension, source: int, destination: int) -> bool:
        """Makes one exchange if it helps. The source gives the heavier replica."""
        missing = dimension.missing(source, destination)
        if missing <= 0:
            return False
        for small in islice(chain(self._by_size.moved[destination], self._by_size.kept[destination]), _EXCHANGES):
            wanted = missing + dimension.weights[small.partition]
            for large in islice(self._by_weight(dimension, source, wanted), _PARTNERS):
                if self._helps(dimension, large.partition, source, small.partition, destination):
                    self._move(large.partition, source, destination)
                    self._move(small.partition, destination, source)
                    return True
        return False

    def _by_weight(self, dimension: Dimension, source: int, wanted: float) -> Iterator[Key]:
        order = self._orders[dimension.kind]
        if dimension.kind is Balance.LOAD:
            return chain(order.moved[source], order.kept[source])
        return chain.from_iterable(_around(keys, wanted, wanted) for keys in (order.kept[source], order.moved[source]))

    def _helps(self, dimension: Dimension, large: int, source: int, small: int, destination: int) -> bool:
        difference = dimension.weights[large] - dimension.weights[small]
        gain = dimension.gain(difference, source, destination) * self._scales[dimension.kind]
        if gain <= _EPSILON or large == small:
            return False
        for each in self._dimensions:
            if each is not dimension:
                difference = each.weights[large] - each.weights[small]
                gain += each.gain(difference, source, destination) * self._scales[each.kind]
        layout = self._layout
        return (
            gain > _EPSILON and layout.allows(large, source, destination) and layout.allows(small, destination, source)
        )


def _around(keys: Sequence[Key], weight: float, limit: float) -> Iterator[Key]:
    """The keys, those nearest to `weight` first. Keys above `limit` come last, in ascending order."""
    above = bisect_left(keys, (weight,))
    below = above - 1
    while below >= 0 and above < len(keys) and keys[above].weight <= limit:
        if weight - keys[below].weight < keys[above].weight - weight:
            yield keys[below]
            below -= 1
        else:
            yield keys[above]
            above += 1
    while above < len(keys) and keys[above].weight <= limit:
        yield keys[above]
        above += 1
    while below >= 0:
        yield keys[below]
        below -= 1
    yield from islice(keys, above, None)
