"""What is wrong with a partition, by Kafka's definitions: the one place that decides it. Pure functions of a view.

| here                  | option of kafka-topics          | metric of the leader's broker, or of the controller |
|-----------------------|---------------------------------|-----------------------------------------------------|
| `is_unavailable`      | --unavailable-partitions        | OfflinePartitionsCount                              |
| `is_under_replicated` | --under-replicated-partitions   | UnderReplicatedPartitions                           |
| `is_under_min_isr`    | --under-min-isr-partitions      | UnderMinIsrPartitionCount                           |
| `is_at_min_isr`       | --at-min-isr-partitions         | AtMinIsrPartitionCount                              |
| `is_off_preferred`    |                                 | PreferredReplicaImbalanceCount                      |

What must stay true:
- As in Kafka, the replicas that a reassignment adds do not count as missing, and stand in for those that it removes.
  Unlike in Kafka, they stand in for no others: a replica that has failed shows.
- A partition without a live leader is unavailable whatever its ISR is. Sources that call such a partition
  under-replicated too, as kafka-topics does, ask for nothing else.
"""

from collections.abc import Container
from typing import Final

from klamm.diagnosis.cluster_view import PartitionView
from klamm.protocol.vocabulary import NO_LEADER

MIN_ISR: Final = "min.insync.replicas"
UNCLEAN: Final = "unclean.leader.election.enable"


def is_unavailable(partition: PartitionView, live: Container[int]) -> bool:
    """Whether the partition has no leader, or one that is not among the `live` brokers."""
    return partition.leader not in live


def out_of_sync(partition: PartitionView) -> list[int]:
    """The replicas that the ISR lacks."""
    missing = [each for each in partition.origin if each not in partition.isr]
    if missing and partition.removing:
        in_sync = set(partition.isr).intersection(partition.replicas)
        if len(in_sync) >= len(partition.origin):
            missing = [each for each in missing if each not in partition.removing]
    return missing


def is_under_replicated(partition: PartitionView) -> bool:
    return bool(out_of_sync(partition))


def is_under_min_isr(partition: PartitionView, min_insync_replicas: int | None) -> bool:
    """Whether producers with acks=all are refused, as far as is known: None is an unknown min.insync.replicas."""
    if partition.leader == NO_LEADER:
        return True
    return min_insync_replicas is not None and len(partition.isr) < min_insync_replicas


def is_at_min_isr(partition: PartitionView, min_insync_replicas: int | None) -> bool:
    """Whether one more failure leads to `is_under_min_isr`."""
    return len(partition.isr) == min_insync_replicas


def is_well(partition: PartitionView, live: Container[int], min_insync_replicas: int | None) -> bool:
    """Whether the partition is available, all of its replicas are in sync, and producers with acks=all are served."""
    return not (
        is_unavailable(partition, live)
        or is_under_replicated(partition)
        or is_under_min_isr(partition, min_insync_replicas)
    )


def is_off_preferred(partition: PartitionView) -> bool:
    """Whether another replica leads than the first one."""
    return partition.leader != NO_LEADER and partition.leader != partition.replicas[0]
