"""A plan for a goal: `plan` turns a cluster as it is into the moves that reach the goal. Pure.

| step | what it does | module |
|---|---|---|
| forced moves | replicas leave brokers, the replication factor changes, racks are no longer shared | `forced` |
| balance | as few bytes as possible move until every broker is within the tolerance | `balance` |
| leaders | the order of replicas changes | `leaders` |
| log directories | replicas are spread over the directories of their broker | `log_dirs` |

The same cluster and goal give the same plan. A partition that is being reassigned, or that has no leader to copy from,
stays as it is; so does a partition of a topic that the goal leaves out, though its bytes count.
"""

from klamm.cli.reassign.planning.balance import Balancer
from klamm.cli.reassign.planning.forced import ForcedMoves
from klamm.cli.reassign.planning.goals import Balance, Goal
from klamm.cli.reassign.planning.layout import Layout
from klamm.cli.reassign.planning.leaders import LeaderBalancer
from klamm.cli.reassign.planning.log_dirs import Replica, balanced_log_dirs
from klamm.cli.reassign.planning.model import ANY_LOG_DIR, ClusterModel, Move, Partition, Placement, Plan
from klamm.protocol.vocabulary import TopicPartition


def plan(cluster: ClusterModel, goal: Goal) -> Plan:
    """The moves, sorted. Raises ToolError for a goal that contradicts itself or names brokers that do not exist."""
    layout = Layout(cluster, goal)
    forced = ForcedMoves(layout, goal)
    forced.run()
    dimensions = [each for each in layout.dimensions if each.kind in goal.balance]
    if dimensions:
        wanted = [sum(layout.is_target[broker] for broker in replicas) for replicas in layout.replicas]
        layout.set_shares(goal.tolerance, wanted)
        Balancer(layout, dimensions).run()
    _balance_leaders(layout, goal)
    return Plan(_moves(cluster, goal, layout), tuple(forced.unmovable))


def _balance_leaders(layout: Layout, goal: Goal) -> None:
    if not goal.balance & {Balance.LEADERS, Balance.LOAD}:
        return
    leaders = LeaderBalancer(layout, goal.tolerance)
    if Balance.LEADERS in goal.balance:
        leaders.balance_counts()
    if Balance.LOAD in goal.balance:
        rates = [goal.load[name].bytes_out_per_s if name in goal.load else 0.0 for name in layout.names]
        leaders.balance_rates(rates, keep_counts=Balance.LEADERS in goal.balance)


def _moves(cluster: ClusterModel, goal: Goal, layout: Layout) -> tuple[Move, ...]:
    chosen = _log_dirs(cluster, goal, layout) if goal.balance_log_dirs else {}
    moves = []
    for number, name in enumerate(layout.names):
        if tuple(layout.replicas[number]) == layout.original[number] and number not in chosen:
            continue
        found = layout.partitions[number]
        before = Placement(found.replicas, tuple(found.log_dirs.get(broker, ANY_LOG_DIR) for broker in found.replicas))
        replicas = tuple(layout.brokers[broker] for broker in layout.replicas[number])
        paths = {**found.log_dirs, **chosen.get(number, {})}
        after = Placement(replicas, tuple(paths.get(broker, ANY_LOG_DIR) for broker in replicas))
        if after != before:
            moves.append(_move(name, found, before, after))
    return tuple(moves)


def _move(name: TopicPartition, found: Partition, before: Placement, after: Placement) -> Move:
    return Move(name.topic, name.partition, before, after, found.size_bytes, found.leader)


def _log_dirs(cluster: ClusterModel, goal: Goal, layout: Layout) -> dict[int, dict[int, str]]:
    """The directories of the replicas of each partition that may move, by broker id."""
    of_broker: dict[int, list[Replica]] = {broker: [] for broker in cluster.brokers}
    for number, replicas in enumerate(layout.replicas):
        found = layout.partitions[number]
        is_pinned = not layout.is_movable[number]
        for broker in (layout.brokers[each] for each in replicas):
            if broker in of_broker:
                is_new = broker not in found.replicas
                path = None if is_new else found.log_dirs.get(broker, ANY_LOG_DIR)
                of_broker[broker].append(Replica(number, found.size_bytes, path, is_pinned=is_pinned))
    chosen: dict[int, dict[int, str]] = {}
    for broker, all_replicas in of_broker.items():
        for number, path in balanced_log_dirs(cluster.brokers[broker], all_replicas, goal.tolerance).items():
            chosen.setdefault(number, {})[broker] = path
    return chosen
