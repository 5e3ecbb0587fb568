"""What every plan keeps to, for goals of all kinds on clusters of all kinds."""

from dataclasses import replace
from itertools import combinations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from klamm.cli.reassign.planning.goals import Balance, Goal, PartitionLoad, Racks
from klamm.cli.reassign.planning.minimum import minimum_bytes
from klamm.cli.reassign.planning.model import Broker, ClusterModel, Partition, Plan
from klamm.cli.reassign.planning.planner import plan
from klamm.cli.reassign.report import report, report_lines, report_value
from klamm.processes.tool_errors import ToolError
from klamm.protocol.vocabulary import NO_LEADER, TopicPartition

DIRECTORIES = ("/a", "/b", "/c")
DEAD = 99
# Clusters take long to draw.
EXAMPLES = 30


@st.composite
def clusters(draw: st.DrawFn) -> ClusterModel:
    count = draw(st.integers(2, 8))
    racks = draw(st.one_of(st.none(), st.lists(st.sampled_from("abcd"), min_size=count, max_size=count)))
    log_dirs = DIRECTORIES[: draw(st.integers(0, 3))]
    brokers = {each: Broker(None if racks is None else racks[each], log_dirs) for each in range(count)}
    partitions = {}
    for number in range(draw(st.integers(1, 30))):
        replicas = draw(st.permutations([*brokers, DEAD]))[: draw(st.integers(1, min(4, count)))]
        partitions[TopicPartition(draw(st.sampled_from("tuv")), number)] = Partition(
            tuple(replicas),
            draw(st.one_of(st.integers(0, 3), st.integers(0, 10**12))),
            draw(st.sampled_from([None, replicas[-1], replicas[-1], NO_LEADER])),
            {each: draw(st.sampled_from(log_dirs)) for each in replicas if each != DEAD} if log_dirs else {},
            draw(st.sampled_from([False] * 9 + [True])),
        )
    return ClusterModel(brokers, partitions)


@st.composite
def goals(draw: st.DrawFn, cluster: ClusterModel) -> Goal:
    known = [*cluster.brokers, DEAD]
    some = st.lists(st.sampled_from(known), unique=True, max_size=2)
    rate = st.floats(0, 1e9)
    return Goal(
        topics=draw(st.sampled_from([None, None, {"t"}, {"t", "u"}])),
        broker_list=draw(
            st.one_of(st.none(), st.lists(st.sampled_from(list(cluster.brokers)), min_size=1, unique=True).map(tuple))
        ),
        remove_brokers=tuple(draw(some)),
        replace=dict(
            draw(st.lists(st.tuples(st.sampled_from(known), st.sampled_from(list(cluster.brokers))), max_size=1))
        ),
        replication_factor=draw(st.one_of(st.none(), st.integers(1, 4))),
        balance=draw(st.frozensets(st.sampled_from(Balance))),
        tolerance=draw(st.sampled_from([0.0, 0.05, 0.3, 1.0])),
        racks=draw(st.sampled_from(Racks)),
        balance_log_dirs=draw(st.booleans()),
        load={key: PartitionLoad(draw(rate), draw(rate)) for key in cluster.partitions if draw(st.booleans())},
    )


def after(cluster: ClusterModel, made: Plan) -> ClusterModel:
    """The cluster when the plan is done."""
    changed = {}
    for name, placement in made.after.items():
        was = cluster.partitions[name]
        paths = {each: path for each, path in was.log_dirs.items() if each in placement.replicas}
        changed[name] = replace(was, replicas=placement.replicas, log_dirs={**paths, **placement.chosen_log_dirs})
    return replace(cluster, partitions={**cluster.partitions, **changed})


def pairs_in_a_rack(cluster: ClusterModel, replicas: tuple[int, ...]) -> int:
    racks = [cluster.brokers[broker].rack for broker in replicas if broker in cluster.brokers]
    return sum(one is not None and one == other for one, other in combinations(racks, 2))


@settings(deadline=None, max_examples=EXAMPLES)
@given(st.data())
def test_every_plan_is_sound(data: st.DataObject) -> None:
    cluster = data.draw(clusters())
    goal = data.draw(goals(cluster))
    try:
        made = plan(cluster, goal)
    except ToolError:
        assume(False)
    assert [move.topic_partition for move in made.moves] == sorted(move.topic_partition for move in made.moves)
    stuck = {TopicPartition(each.topic, each.partition) for each in made.unmovable}
    done = after(cluster, made)
    targets = set(cluster.brokers if goal.broker_list is None else goal.broker_list) - goal.leaving
    for move in made.moves:
        found = cluster.partitions[move.topic_partition]
        assert move.before != move.after
        assert goal.selects(move.topic)
        assert not found.is_reassigning and found.leader != NO_LEADER
        assert set(move.adding_replicas) <= targets | set(goal.replace.values())
    for name, partition in done.partitions.items():
        was = cluster.partitions[name]
        assert len(set(partition.replicas)) == len(partition.replicas) > 0
        assert all(path in done.brokers[broker].log_dirs for broker, path in partition.log_dirs.items())
        if name in stuck or not goal.selects(name.topic) or was.is_reassigning or was.leader == NO_LEADER:
            continue
        assert len(partition.replicas) == (goal.replication_factor or len(was.replicas))
        assert not goal.leaving & set(partition.replicas)
        if goal.broker_list is not None:
            assert set(partition.replicas) <= targets
        known = DEAD not in was.replicas and goal.racks is not Racks.IGNORE
        if known and len(partition.replicas) <= len(was.replicas):
            assert pairs_in_a_rack(cluster, partition.replicas) <= pairs_in_a_rack(cluster, was.replicas)
    shown = report(cluster, goal, made, 1000)
    assert list(report_lines(shown))
    assert report_value(shown)["minimum_bytes"] == minimum_bytes(cluster, goal, made.unmovable)


@settings(deadline=None, max_examples=EXAMPLES)
@given(st.data())
def test_the_order_in_which_a_cluster_is_read_does_not_matter(data: st.DataObject) -> None:
    cluster = data.draw(clusters())
    goal = data.draw(goals(cluster))
    try:
        made = plan(cluster, goal)
    except ToolError:
        assume(False)
    mixed = ClusterModel(dict(list(cluster.brokers.items())[::-1]), dict(list(cluster.partitions.items())[::-1]))
    assert plan(mixed, goal) == made


@settings(deadline=None, max_examples=EXAMPLES)
@given(st.data())
def test_a_plan_that_is_done_leaves_nothing_that_is_forced(data: st.DataObject) -> None:
    cluster = data.draw(clusters())
    goal = replace(data.draw(goals(cluster)), balance=frozenset(), balance_log_dirs=False)
    try:
        made = plan(cluster, goal)
        again = plan(after(cluster, made), goal)
    except ToolError:
        assume(False)
    assert again.bytes_between_brokers == 0
