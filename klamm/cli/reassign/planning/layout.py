"""The cluster as lists, which the steps of the planner change until they meet the goal.

Brokers and partitions are numbers here, in the order of their ids and names. What must stay true: the loads of brokers
are those of the replicas, no broker has two replicas of a partition, and, unless racks are ignored, no move puts more
replicas of a partition into one rack.
"""

from collections.abc import Iterable, Sequence
from typing import Final
from zlib import crc32

from klamm.cli.reassign.planning.goals import Balance, Goal, Racks, target_brokers
from klamm.cli.reassign.planning.model import ClusterModel
from klamm.cli.reassign.planning.shares import band, rack_shares

UNKNOWN_RACK: Final = ""


class Dimension:
    """Something that is spread evenly over brokers: its weight in each partition, and the load of each broker."""

    def __init__(self, kind: Balance, weights: Sequence[float], brokers: int) -> None:
        self.kind = kind
        self.weights = weights
        self.loads = [0.0] * brokers
        self.shares = [0.0] * brokers
        self.low = [0.0] * brokers
        self.high = [0.0] * brokers

    def violation(self, broker: int, change: float = 0.0) -> float:
        """How far outside its tolerance the broker is, after this change of its load."""
        load = self.loads[broker] + change
        if load > self.high[broker]:
            return load - self.high[broker]
        return self.low[broker] - load if load < self.low[broker] else 0.0

    def gain(self, weight: float, source: int, destination: int) -> float:
        """How much a move of this weight reduces the violations."""
        return (
            self.violation(source)
            + self.violation(destination)
            - self.violation(source, -weight)
            - self.violation(destination, weight)
        )

    def missing(self, source: int, destination: int) -> float:
        """How much has to move to bring both brokers into the tolerance, without taking either past its far end."""
        loads = self.loads
        wanted = max(loads[source] - self.high[source], self.low[destination] - loads[destination])
        return min(wanted, loads[source] - self.low[source], self.high[destination] - loads[destination])


class Layout:
    """The replicas of each partition, and the loads of each broker."""

    def __init__(self, cluster: ClusterModel, goal: Goal) -> None:
        targets = target_brokers(cluster, goal)
        used = {broker for partition in cluster.partitions.values() for broker in partition.replicas}
        self.brokers = sorted(used | set(cluster.brokers))
        index = {broker: number for number, broker in enumerate(self.brokers)}
        self.index = index
        self.targets = [index[broker] for broker in targets]
        self.is_target = [broker in set(targets) for broker in self.brokers]
        known_racks = {broker: cluster.brokers[broker].rack or UNKNOWN_RACK for broker in cluster.brokers}
        self.racks = [known_racks.get(broker, UNKNOWN_RACK) for broker in self.brokers]
        self.keeps_racks = goal.racks is not Racks.IGNORE and any(self.racks[each] for each in self.targets)
        self.names = sorted(cluster.partitions)
        self.partitions = [cluster.partitions[name] for name in self.names]
        self.replicas = [[index[broker] for broker in each.replicas] for each in self.partitions]
        self.original = [tuple(replicas) for replicas in self.replicas]
        self.is_selected = [goal.selects(name.topic) for name in self.names]
        self.is_movable = [
            is_selected and found.can_move for is_selected, found in zip(self.is_selected, self.partitions, strict=True)
        ]
        # The order of partitions with equal weight, which mixes their topics.
        self.mixed = [crc32(str(name).encode()) for name in self.names]
        sizes = [float(each.size_bytes) for each in self.partitions]
        self.bytes = Dimension(Balance.BYTES, sizes, len(self.brokers))
        self.counts = Dimension(Balance.REPLICAS, [1.0] * len(self.names), len(self.brokers))
        self.dimensions = [self.bytes, self.counts]
        if goal.load:
            rates = [goal.load[name].bytes_in_per_s if name in goal.load else 0.0 for name in self.names]
            self.dimensions.append(Dimension(Balance.LOAD, rates, len(self.brokers)))
        # For each topic, the number of its replicas on each broker.
        of_topics: dict[str, dict[int, int]] = {name.topic: {} for name in self.names}
        self.of_topic = [of_topics[name.topic] for name in self.names]
        for partition, replicas in enumerate(self.replicas):
            for broker in replicas:
                self._add_load(partition, broker, 1)

    def _add_load(self, partition: int, broker: int, sign: int) -> None:
        for dimension in self.dimensions:
            dimension.loads[broker] += sign * dimension.weights[partition]
        of_topic = self.of_topic[partition]
        of_topic[broker] = of_topic.get(broker, 0) + sign

    # -- changes ------------------------------------------------------------------------------------------------------

    def move(self, partition: int, source: int, destination: int) -> None:
        """The destination takes the source's place in the list of replicas, even as the preferred leader."""
        replicas = self.replicas[partition]
        replicas[replicas.index(source)] = destination
        self._add_load(partition, source, -1)
        self._add_load(partition, destination, 1)

    def add(self, partition: int, broker: int) -> None:
        self.replicas[partition].append(broker)
        self._add_load(partition, broker, 1)

    def drop(self, partition: int, broker: int) -> None:
        self.replicas[partition].remove(broker)
        self._add_load(partition, broker, -1)

    # -- what a change needs ------------------------------------------------------------------------------------------

    def allows(self, partition: int, source: int, destination: int) -> bool:
        """Whether the destination may take the source's replica."""
        replicas = self.replicas[partition]
        if destination in replicas:
            return False
        return not self.keeps_racks or self.keeps_spread(replicas, source, destination)

    def keeps_spread(self, replicas: Iterable[int], source: int, destination: int) -> bool:
        """Whether as few replicas share a rack after the move as before."""
        racks = self.racks
        old, new = racks[source], racks[destination]
        if old == new:
            return True
        if old == UNKNOWN_RACK:
            return self._is_least_used(replicas, new)
        balance = -1
        for broker in replicas:
            if racks[broker] == old:
                balance += 1
            elif racks[broker] == new:
                balance -= 1
        return balance >= 0

    def crowding(self, partition: int, destination: int, source: int | None = None) -> float:
        """How much a move concentrates a topic on the destination, as a fraction of its replicas; less is better."""
        of_topic = self.of_topic[partition]
        more = of_topic.get(destination, 0) - (0 if source is None else of_topic[source])
        return more / sum(of_topic.values())

    def _is_least_used(self, replicas: Iterable[int], rack: str) -> bool:
        """Whether no rack with a free target broker has fewer replicas."""
        present = list(replicas)
        used = self.rack_counts(present)
        free = {self.racks[broker] for broker in self.targets if broker not in present}
        return used.get(rack, 0) == min(used.get(each, 0) for each in free)

    def pairs_in_a_rack(self, replicas: Iterable[int]) -> int:
        """How many pairs of replicas share a rack."""
        return sum(
            count * (count - 1) // 2 for rack, count in self.rack_counts(replicas).items() if rack != UNKNOWN_RACK
        )

    def rack_counts(self, replicas: Iterable[int]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for broker in replicas:
            rack = self.racks[broker]
            counts[rack] = counts.get(rack, 0) + 1
        return counts

    # -- what brokers should have -------------------------------------------------------------------------------------

    def set_shares(self, tolerance: float, replicas_wanted: Sequence[int]) -> None:
        """Computes the share of each target broker, in all dimensions.

        `replicas_wanted` has the number of replicas of each partition that shall be on target brokers.
        """
        for dimension in self.dimensions:
            shares = self.fair_shares(dimension.weights, replicas_wanted)
            for broker, share in zip(self.targets, shares, strict=True):
                found = band(share, tolerance, is_count=dimension is self.counts)
                dimension.shares[broker], dimension.low[broker], dimension.high[broker] = found

    def fair_shares(self, weights: Sequence[float], replicas_wanted: Sequence[int]) -> list[float]:
        """The share of each target broker."""
        brokers_in_rack = dict(sorted(self.rack_counts(self.targets).items()))
        racks = len(brokers_in_rack)
        total = sum(weight * count for weight, count in zip(weights, replicas_wanted, strict=True))
        least, most = 0.0, total
        if self.keeps_racks:
            least = sum(weight * (count // racks) for weight, count in zip(weights, replicas_wanted, strict=True))
            most = sum(weight * -(-count // racks) for weight, count in zip(weights, replicas_wanted, strict=True))
        of_rack = rack_shares(brokers_in_rack, total, least, most)
        return [of_rack[self.racks[broker]] / brokers_in_rack[self.racks[broker]] for broker in self.targets]
