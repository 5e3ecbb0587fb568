"""A lower bound on the bytes that any plan for a goal has to copy between brokers, computed without a plan. Pure.

- A replica whose broker has to lose it, and a replica that is added, is copied once.
- A broker above the tolerance has to give the excess, and a broker below has to receive what it lacks.
- For the dimensions replicas and load, the bound counts the replicas that reach the tolerance with the fewest bytes.

No plan can need less. A plan with so few bytes may not exist: replicas are not divisible, and goals may conflict.
"""

from collections.abc import Iterable, Sequence

from klamm.cli.reassign.planning.goals import Balance, Goal, Racks
from klamm.cli.reassign.planning.layout import Dimension, Layout
from klamm.cli.reassign.planning.model import ClusterModel, Unmovable
from klamm.protocol.vocabulary import TopicPartition


def minimum_bytes(cluster: ClusterModel, goal: Goal, unmovable: Iterable[Unmovable] = ()) -> int:
    """The bound. `unmovable` replicas, which stay where they are, count as wanted there."""
    layout = Layout(cluster, goal)
    staying: dict[TopicPartition, set[int | None]] = {}
    for each in unmovable:
        staying.setdefault(TopicPartition(each.topic, each.partition), set()).add(each.broker)
    kept: list[list[int]] = []
    copies: list[int] = []
    wanted: list[int] = []
    for number in range(len(layout.names)):
        keep, new = _kept_and_new(layout, goal, number, staying.get(layout.names[number], set()))
        kept.append([broker for broker in keep if layout.is_target[broker]])
        copies.append(new)
        wanted.append(len(kept[-1]) + new)
    forced = sum(layout.bytes.weights[number] * new for number, new in enumerate(copies))
    if _loses_replicas(layout, goal):
        # Any replicas may be removed, and a removal copies nothing.
        return round(forced)
    improved = _shared_racks(layout, goal, kept) if goal.racks is Racks.IMPROVE and layout.keeps_racks else 0.0
    layout.set_shares(goal.tolerance, wanted)
    bound = forced + improved
    for dimension in layout.dimensions:
        if dimension.kind in goal.balance:
            bound = max(bound, _balance_bound(layout, dimension, kept, copies, forced))
    return int(bound)


def _kept_and_new(layout: Layout, goal: Goal, number: int, staying: set[int | None]) -> tuple[list[int], int]:
    """The replicas that may stay, and how many must be copied to further brokers."""
    replicas = layout.original[number]
    if not layout.is_movable[number]:
        return list(replicas), 0

    def stays(broker: int) -> bool:
        if layout.brokers[broker] in staying:
            return True
        if goal.broker_list is not None:
            return layout.is_target[broker]
        return layout.brokers[broker] not in goal.leaving

    keep = [broker for broker in replicas if stays(broker)]
    factor = len(replicas) if goal.replication_factor is None or None in staying else goal.replication_factor
    return keep, max(0, factor - len(keep))


def _loses_replicas(layout: Layout, goal: Goal) -> bool:
    factor = goal.replication_factor
    return factor is not None and any(
        len(replicas) > factor
        for replicas, is_selected in zip(layout.original, layout.is_selected, strict=True)
        if is_selected
    )


def _balance_bound(
    layout: Layout, dimension: Dimension, kept: Sequence[Sequence[int]], copies: Sequence[int], forced: float
) -> float:
    """The bytes to copy so that every target broker is within the tolerance of this dimension."""
    loads = [0.0] * len(layout.brokers)
    on_broker: list[list[int]] = [[] for _ in layout.brokers]
    for number, brokers in enumerate(kept):
        for broker in brokers:
            loads[broker] += dimension.weights[number]
            on_broker[broker].append(number)
    arriving = sum(weight * new for weight, new in zip(dimension.weights, copies, strict=True))
    excess = {broker: max(0.0, loads[broker] - dimension.high[broker]) for broker in layout.targets}
    deficit = sum(max(0.0, dimension.low[broker] - loads[broker]) for broker in layout.targets)
    if dimension.kind is Balance.BYTES:
        return max(forced + sum(excess.values()), deficit)
    leaving = sum(_cheapest(layout, dimension, on_broker[broker], amount) for broker, amount in excess.items())
    everywhere = [number for broker in layout.targets for number in on_broker[broker]]
    filling = _cheapest(layout, dimension, everywhere, deficit - arriving)
    return forced + max(leaving, filling)


def _cheapest(layout: Layout, dimension: Dimension, replicas: Iterable[int], amount: float) -> float:
    """The fewest bytes of replicas that carry this amount; the last replica counts in part."""
    sizes, weights = layout.bytes.weights, dimension.weights
    moved = 0.0
    for number in sorted(replicas, key=lambda each: sizes[each] / weights[each] if weights[each] else float("inf")):
        if amount <= 0 or not weights[number]:
            break
        part = min(1.0, amount / weights[number])
        amount -= weights[number]
        moved += part * sizes[number]
    return moved


def _shared_racks(layout: Layout, goal: Goal, kept: Sequence[Sequence[int]]) -> float:
    """The bytes of the replicas that have to leave a rack that has too many of their partition."""
    racks = {layout.racks[broker] for broker in layout.targets}
    moved = 0.0
    for number, brokers in enumerate(kept):
        if not layout.is_movable[number]:
            continue
        factor = goal.replication_factor or len(layout.original[number])
        each_rack, larger = divmod(factor, len(racks))
        counts = sorted(layout.rack_counts(brokers).values(), reverse=True)
        allowed = [each_rack + (position < larger) for position in range(len(counts))]
        too_many = sum(max(0, count - most) for count, most in zip(counts, allowed, strict=True))
        moved += layout.bytes.weights[number] * too_many
    return moved
