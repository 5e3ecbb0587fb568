"""Decides which partitions are unhealthy, by Kafka's definitions. All other modules use these pure functions.

`Predicate` lists them, each with its option of kafka-topics.

What must stay true:
- As in Kafka, adding replicas do not count as missing, and in-sync adding replicas replace removing ones. Unlike in
  Kafka, they replace no other replicas, so a failed replica shows.
- A partition without a live leader is unavailable whatever its ISR is. Callers that also call such a partition
  under-replicated, as kafka-topics does, use `is_under_replicated` alone.
"""

from collections.abc import Callable, Container
from enum import Enum, IntEnum
from typing import Final

from klamm.diagnosis.cluster_view import PartitionView
from klamm.protocol.vocabulary import NO_LEADER

MIN_ISR: Final = "min.insync.replicas"
UNCLEAN: Final = "unclean.leader.election.enable"


def is_unavailable(partition: PartitionView, live: Container[int]) -> bool:
    """Whether the partition has no leader, or its leader is not among the `live` brokers."""
    return partition.leader not in live


def out_of_sync(partition: PartitionView) -> list[int]:
    """The replicas that are missing in the ISR."""
    missing = [each for each in partition.origin if each not in partition.isr]
    if missing and partition.removing:
        in_sync = set(partition.isr).intersection(partition.replicas)
        if len(in_sync) >= len(partition.origin):
            missing = [each for each in missing if each not in partition.removing]
    return missing


def is_under_replicated(partition: PartitionView) -> bool:
    return bool(out_of_sync(partition))


def is_under_min_isr(partition: PartitionView, min_insync_replicas: int | None) -> bool:
    """Whether producers with acks=all are known to be refused. None is an unknown min.insync.replicas."""
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
    """Whether the leader is not the preferred leader."""
    return partition.leader != NO_LEADER and bool(partition.replicas) and partition.leader != partition.replicas[0]


class ReplicaState(IntEnum):
    """A replica's state in the cockpit's map. If several apply, the first in the order of the lines counts."""

    NONE = 0
    OFFLINE = 4
    """Its broker is not live."""
    UNUSED = 7
    """Its log directory has failed, or the controller has not used it since its broker came back."""
    LEADER = 2
    ADDING = 5
    REMOVING = 6
    IN_SYNC = 1
    OUT_OF_SYNC = 3


def replica_state(partition: PartitionView, broker_id: int, live: Container[int]) -> ReplicaState:
    """The state of one of the partition's replicas."""
    if broker_id not in live:
        return ReplicaState.OFFLINE
    if broker_id in partition.offline:
        return ReplicaState.UNUSED
    if broker_id == partition.leader:
        return ReplicaState.LEADER
    if broker_id in partition.adding:
        return ReplicaState.ADDING
    if broker_id in partition.removing:
        return ReplicaState.REMOVING
    return ReplicaState.IN_SYNC if broker_id in partition.isr else ReplicaState.OUT_OF_SYNC


def is_short(partition: PartitionView, live: Container[int]) -> bool:
    """Whether a partition with a live leader is under-replicated. Without a live leader it is only unavailable."""
    return not is_unavailable(partition, live) and is_under_replicated(partition)


class Predicate(Enum):
    """A condition of a partition. `option` is that of kafka-topics, or "" for a predicate that only klamm's tools use.

    `holds` takes the partition, the live brokers, and min.insync.replicas (None if that is unknown).
    """

    # The comments name the metrics of the controller or of the leader's broker that count the same.
    UNDER_REPLICATED = (  # UnderReplicatedPartitions
        "--under-replicated-partitions",
        lambda partition, live, minimum: is_under_replicated(partition),
    )
    AT_MIN_ISR = (  # AtMinIsrPartitionCount
        "--at-min-isr-partitions",
        lambda partition, live, minimum: is_at_min_isr(partition, minimum),
    )
    UNDER_MIN_ISR = (  # UnderMinIsrPartitionCount
        "--under-min-isr-partitions",
        lambda partition, live, minimum: is_under_min_isr(partition, minimum),
    )
    UNAVAILABLE = (  # OfflinePartitionsCount
        "--unavailable-partitions",
        lambda partition, live, minimum: is_unavailable(partition, live),
    )
    OFF_PREFERRED = (  # PreferredReplicaImbalanceCount
        "--off-preferred-partitions",
        lambda partition, live, minimum: is_off_preferred(partition),
    )
    REASSIGNING = "", lambda partition, live, minimum: partition.is_reassigning

    def __init__(self, option: str, holds: Callable[[PartitionView, Container[int], int | None], bool]) -> None:
        self.option = option
        self.holds = holds


NEED_MIN_ISR: Final = (Predicate.AT_MIN_ISR, Predicate.UNDER_MIN_ISR)
