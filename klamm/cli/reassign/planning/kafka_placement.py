"""The plan that `kafka-reassign-partitions --generate` makes: every topic is placed anew. Pure.

Kafka places the partitions of each topic as those of a new topic with as many replicas as its first partition has. It
ignores where replicas are, so nearly all of them move. Kafka draws the first broker at random; here it depends on the
topic's name and a seed.
"""

from zlib import crc32

from klamm.base.slices import in_one_go
from klamm.broker.topics.replica_assignment import assign_replicas
from klamm.cli.reassign.planning.goals import Goal, Racks, target_brokers
from klamm.cli.reassign.planning.model import ANY_LOG_DIR, ClusterModel, Move, Placement, Plan, anywhere
from klamm.processes.tool_errors import ToolError
from klamm.protocol.vocabulary import TopicPartition


def kafka_plan(cluster: ClusterModel, goal: Goal, *, seed: int = 0) -> Plan:
    """The moves, sorted. Only topics, target brokers and racks of the goal are used. Raises ToolError."""
    targets = target_brokers(cluster, goal)
    of_topics: dict[str, list[int]] = {}
    for name in sorted(cluster.partitions):
        if goal.selects(name.topic):
            of_topics.setdefault(name.topic, []).append(name.partition)
    racks = {broker: cluster.brokers[broker].rack or "" for broker in targets}
    has_racks = goal.racks is not Racks.IGNORE and any(racks.values())
    moves = []
    for topic, numbers in of_topics.items():
        factor = len(cluster.partitions[TopicPartition(topic, numbers[0])].replicas)
        if factor > len(targets):
            raise ToolError(f"topic {topic} has {factor} replicas, and replicas may be on {len(targets)} brokers")
        start_index, shift = (
            crc32(f"{seed}:{each}:{topic}".encode()) % len(targets) for each in ("start index", "shift")
        )
        assignment = in_one_go(
            assign_replicas(
                targets,
                len(numbers),
                factor,
                start_index=start_index,
                shift=shift,
                racks=racks if has_racks else None,
            )
        )
        for number in numbers:
            found = cluster.partitions[TopicPartition(topic, number)]
            paths = tuple(found.log_dirs.get(broker, ANY_LOG_DIR) for broker in found.replicas)
            if found.replicas != tuple(assignment[number]):
                before = Placement(found.replicas, paths)
                moves.append(Move(topic, number, before, anywhere(assignment[number]), found.size_bytes, found.leader))
    return Plan(tuple(moves))
