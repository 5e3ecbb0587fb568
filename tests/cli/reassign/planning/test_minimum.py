"""The planner and the theoretical minimum against all possible plans of small clusters, tried one by one."""

from collections.abc import Callable, Iterator
from itertools import combinations, product
from math import ceil, floor

from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from klamm.cli.reassign.planning.goals import Balance, Goal, Racks
from klamm.cli.reassign.planning.minimum import minimum_bytes
from klamm.cli.reassign.planning.model import Broker, ClusterModel, Partition, Plan
from klamm.cli.reassign.planning.planner import plan
from klamm.protocol.vocabulary import TopicPartition

Brokers = frozenset[int]


@st.composite
def clusters(draw: st.DrawFn, *, max_partitions: int = 4, with_racks: bool = True, max_factor: int = 3) -> ClusterModel:
    brokers = range(draw(st.integers(2, 5)))
    racks = draw(st.lists(st.sampled_from("abc"), min_size=len(brokers), max_size=len(brokers)))
    has_racks = with_racks and draw(st.booleans())
    count = draw(st.integers(1, max_partitions))
    partitions = {}
    for number in range(count):
        replicas = draw(st.permutations(brokers))[: draw(st.integers(1, min(max_factor, len(brokers))))]
        name = TopicPartition(draw(st.sampled_from("tu")), number)
        partitions[name] = Partition(tuple(replicas), draw(st.integers(0, 30)))
    return ClusterModel({each: Broker(racks[each] if has_racks else None) for each in brokers}, partitions)


def pairs_in_a_rack(cluster: ClusterModel, replicas: Brokers | tuple[int, ...]) -> int:
    racks = [cluster.brokers[broker].rack for broker in replicas]
    return sum(one == other for one, other in combinations(racks, 2)) if any(racks) else 0


def choices(cluster: ClusterModel, name: TopicPartition, factor: int, allowed: Brokers) -> list[Brokers]:
    """The sets of brokers that a partition may be on without more replicas in one rack."""
    before = cluster.partitions[name].replicas
    found = [frozenset(each) for each in combinations(sorted(allowed), factor)]
    if factor > len(before):
        least = min((pairs_in_a_rack(cluster, each) for each in found if each >= set(before) & allowed), default=0)
        return [each for each in found if pairs_in_a_rack(cluster, each) <= least]
    return [each for each in found if pairs_in_a_rack(cluster, each) <= pairs_in_a_rack(cluster, before)]


def copied(cluster: ClusterModel, name: TopicPartition, after: Brokers) -> int:
    found = cluster.partitions[name]
    return found.size_bytes * len(after - set(found.replicas))


def replicas_after(cluster: ClusterModel, made: Plan) -> dict[TopicPartition, tuple[int, ...]]:
    return {name: each.replicas for name, each in cluster.partitions.items()} | {
        name: placement.replicas for name, placement in made.after.items()
    }


def check_sound(cluster: ClusterModel, made: Plan) -> None:
    for name, replicas in replicas_after(cluster, made).items():
        assert len(set(replicas)) == len(replicas) > 0
        before = cluster.partitions[name].replicas
        if len(replicas) <= len(before):
            assert pairs_in_a_rack(cluster, replicas) <= pairs_in_a_rack(cluster, before), name


@given(clusters(), st.data())
def test_a_broker_is_emptied_for_the_least_bytes_of_all_plans(cluster: ClusterModel, data: st.DataObject) -> None:
    leaving = frozenset(data.draw(st.lists(st.sampled_from(sorted(cluster.brokers)), min_size=1, unique=True)))
    assume(leaving < set(cluster.brokers))
    goal = Goal(remove_brokers=tuple(leaving))
    made = plan(cluster, goal)
    check_sound(cluster, made)
    stuck = {TopicPartition(each.topic, each.partition) for each in made.unmovable}
    least = 0
    for name, found in cluster.partitions.items():
        possible = choices(cluster, name, len(found.replicas), frozenset(cluster.brokers) - leaving)
        after = replicas_after(cluster, made)[name]
        if name in stuck:
            assert leaving & set(after)
            assert not [each for each in possible if each >= set(found.replicas) - leaving], "it could have moved"
        else:
            assert frozenset(after) in possible
            least += min(copied(cluster, name, each) for each in possible)
    event(f"unmovable: {bool(stuck)}")
    if not stuck:
        assert made.bytes_between_brokers == least == minimum_bytes(cluster, goal)
    assert minimum_bytes(cluster, goal, made.unmovable) == made.bytes_between_brokers


@given(clusters(), st.data())
def test_the_replication_factor_changes_for_the_least_bytes_of_all_plans(
    cluster: ClusterModel, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(cluster.brokers)))
    goal = Goal(replication_factor=factor)
    made = plan(cluster, goal)
    assert made.unmovable == ()
    check_sound(cluster, made)
    after = replicas_after(cluster, made)
    assert {len(replicas) for replicas in after.values()} == {factor}
    least = sum(
        min(copied(cluster, name, frozenset(each)) for each in combinations(sorted(cluster.brokers), factor))
        for name in cluster.partitions
    )
    assert made.bytes_between_brokers == least == minimum_bytes(cluster, goal)
    for name, replicas in after.items():
        if factor > len(cluster.partitions[name].replicas):
            assert frozenset(replicas) in choices(cluster, name, factor, frozenset(cluster.brokers))


@given(clusters())
def test_racks_are_improved_for_the_least_bytes_of_all_plans(cluster: ClusterModel) -> None:
    goal = Goal(racks=Racks.IMPROVE)
    made = plan(cluster, goal)
    check_sound(cluster, made)
    least = 0
    for name, found in cluster.partitions.items():
        possible = [frozenset(each) for each in combinations(sorted(cluster.brokers), len(found.replicas))]
        fewest = min(pairs_in_a_rack(cluster, each) for each in possible)
        assert pairs_in_a_rack(cluster, replicas_after(cluster, made)[name]) == fewest
        least += min(copied(cluster, name, each) for each in possible if pairs_in_a_rack(cluster, each) == fewest)
    assert made.bytes_between_brokers == least
    assert minimum_bytes(cluster, goal) <= least


# -- balance ----------------------------------------------------------------------------------------------------------


def load(
    cluster: ClusterModel, kind: Balance, after: dict[TopicPartition, Brokers], brokers: Brokers
) -> dict[int, int]:
    loads = dict.fromkeys(sorted(brokers), 0)
    for name, replicas in after.items():
        for broker in replicas & brokers:
            loads[broker] += cluster.partitions[name].size_bytes if kind is Balance.BYTES else 1
    return loads


def outside(loads: dict[int, int], kind: Balance, tolerance: float) -> float:
    """How far brokers without racks are outside the tolerance, all together."""
    share = sum(loads.values()) / len(loads)
    low, high = share * (1 - tolerance), share * (1 + tolerance)
    if kind is Balance.REPLICAS:
        low, high = min(floor(share), ceil(low)), max(ceil(share), floor(high))
    return sum(max(0.0, each - high, low - each) for each in loads.values())


def all_layouts(cluster: ClusterModel, brokers: Brokers) -> Iterator[dict[TopicPartition, Brokers]]:
    names = sorted(cluster.partitions)
    for sets in product(*(choices(cluster, name, len(cluster.partitions[name].replicas), brokers) for name in names)):
        yield dict(zip(names, sets, strict=True))


def least_bytes(
    cluster: ClusterModel, brokers: Brokers, is_reached: Callable[[dict[TopicPartition, Brokers]], bool]
) -> int | None:
    return min(
        (
            sum(copied(cluster, name, replicas) for name, replicas in layout.items())
            for layout in all_layouts(cluster, brokers)
            if is_reached(layout)
        ),
        default=None,
    )


@settings(deadline=None)
@given(
    clusters(with_racks=False, max_factor=2),
    st.sampled_from([frozenset({Balance.BYTES}), frozenset({Balance.REPLICAS}), frozenset(Balance)]),
    st.sampled_from([0.05, 0.2, 0.5]),
    st.booleans(),
)
def test_no_plan_that_balances_needs_less_than_the_minimum(
    cluster: ClusterModel, balance: frozenset[Balance], tolerance: float, removes: bool
) -> None:
    balance = balance & {Balance.BYTES, Balance.REPLICAS}
    leaving = frozenset({0}) if removes else frozenset()
    brokers = frozenset(cluster.brokers) - leaving
    goal = Goal(balance=balance, tolerance=tolerance, remove_brokers=tuple(leaving))
    made = plan(cluster, goal)
    check_sound(cluster, made)
    assume(not made.unmovable)

    def is_reached(layout: dict[TopicPartition, Brokers]) -> bool:
        return all(outside(load(cluster, kind, layout, brokers), kind, tolerance) < 1e-6 for kind in balance)

    least = least_bytes(cluster, brokers, is_reached)
    bound = minimum_bytes(cluster, goal)
    if least is not None:
        assert bound <= least
    before = {name: frozenset(each.replicas) for name, each in cluster.partitions.items()}
    after = {name: frozenset(each) for name, each in replicas_after(cluster, made).items()}
    if is_reached(after):
        assert least is not None
        assert made.bytes_between_brokers >= least
        event("reached, at the least bytes" if made.bytes_between_brokers == least else "reached, not at the least")
    else:
        event("not reached" if least is not None else "cannot be reached")
        if not leaving:
            for kind in balance:
                was = outside(load(cluster, kind, before, brokers), kind, tolerance)
                assert outside(load(cluster, kind, after, brokers), kind, tolerance) <= was + 1e-6


@given(st.integers(2, 5), st.lists(st.integers(0, 4), min_size=1, max_size=12), st.data())
def test_equal_partitions_with_one_replica_are_balanced_for_exactly_the_minimum(
    brokers: int, leaders: list[int], data: st.DataObject
) -> None:
    cluster = ClusterModel(
        {broker: Broker() for broker in range(brokers)},
        {TopicPartition("t", number): Partition((leader % brokers,), 7) for number, leader in enumerate(leaders)},
    )
    goal = Goal(balance=frozenset({Balance.REPLICAS}))
    made = plan(cluster, goal)
    after = [replicas[0] for replicas in replicas_after(cluster, made).values()]
    counts = [after.count(broker) for broker in range(brokers)]
    assert max(counts) - min(counts) <= 1
    before = [leader % brokers for leader in leaders]
    share = len(leaders) / brokers
    too_many = sum(max(0, before.count(broker) - ceil(share)) for broker in range(brokers))
    too_few = sum(max(0, floor(share) - before.count(broker)) for broker in range(brokers))
    assert made.bytes_between_brokers == 7 * max(too_many, too_few) == minimum_bytes(cluster, goal)
