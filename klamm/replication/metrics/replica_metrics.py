"""Metrics of the replicas that this broker hosts, under Kafka's names.

Reading a metric starts one walk over the partitions, in slices, which gives all counts.

Source: kafka.server.ReplicaManager, kafka.cluster.Partition.
"""

from collections.abc import Callable, Iterator
from operator import attrgetter

from klamm.base.metrics import MetricName, Metrics
from klamm.base.slices import Slices, Steps
from klamm.replication.partition.partition import Partition
from klamm.replication.replica_manager import ReplicaManager

_TAGS = ("topic", "partition")


class _Counts:
    """How many hosted partitions had each property at the last walk."""

    def __init__(self, replica_manager: ReplicaManager) -> None:
        self._replica_manager = replica_manager
        self.leaders = self.under_replicated = self.under_min_isr = self.at_min_isr = self.reassigning = 0

    def walk(self) -> Steps[None]:
        slices = Slices()
        leaders = under_replicated = under_min_isr = at_min_isr = reassigning = 0
        for partition in list(self._replica_manager.partitions.values()):
            if partition.is_leader:
                leaders += 1
                under_replicated += partition.is_under_replicated
                under_min_isr += partition.is_under_min_isr
                at_min_isr += partition.is_at_min_isr
                reassigning += partition.is_reassigning
            if slices.spend():
                yield
        self.leaders, self.under_replicated, self.reassigning = leaders, under_replicated, reassigning
        self.under_min_isr, self.at_min_isr = under_min_isr, at_min_isr


def register(metrics: Metrics, replica_manager: ReplicaManager) -> None:
    counts, isr_changes = _Counts(replica_manager), replica_manager.isr_statistics
    metrics.walk(counts.walk)
    for name, documentation, read in (
        ("LeaderCount", "Partitions that this broker leads.", lambda: counts.leaders),
        (
            "PartitionCount",
            "Replicas on this broker, offline ones too.",
            lambda: len(replica_manager.partitions) + replica_manager.offline_count,
        ),
        ("OfflineReplicaCount", "Replicas whose logs cannot be used.", lambda: replica_manager.offline_count),
        (
            "UnderReplicatedPartitions",
            "Partitions led here whose ISR lacks a replica.",
            lambda: counts.under_replicated,
        ),
        (
            "UnderMinIsrPartitionCount",
            "Partitions led here with fewer in-sync replicas than min.insync.replicas.",
            lambda: counts.under_min_isr,
        ),
        (
            "AtMinIsrPartitionCount",
            "Partitions led here with exactly min.insync.replicas in-sync replicas.",
            lambda: counts.at_min_isr,
        ),
        ("ReassigningPartitions", "Partitions led here whose replicas are being moved.", lambda: counts.reassigning),
    ):
        metrics.gauge(MetricName("kafka.server", "ReplicaManager", name), documentation, read)
    for name, documentation, count in (
        ("IsrExpandsPerSec", "Replicas that have joined the ISR of a partition led here.", lambda: isr_changes.expands),
        (
            "IsrShrinksPerSec",
            "Times that replicas have left the ISR of a partition led here.",
            lambda: isr_changes.shrinks,
        ),
        (
            "FailedIsrUpdatesPerSec",
            "Changes of an ISR that the controller has refused.",
            lambda: isr_changes.failed_updates,
        ),
    ):
        metrics.meter(MetricName("kafka.server", "ReplicaManager", name), documentation, count)

    def of_each(read: Callable[[Partition], float]) -> Callable[[], Iterator[tuple[tuple[str, ...], float]]]:
        def values() -> Iterator[tuple[tuple[str, ...], float]]:
            for partition in list(replica_manager.partitions.values()):
                yield (partition.topic, str(partition.partition)), read(partition)

        return values

    for name, documentation, read_one in (
        ("UnderReplicated", "1 on the leader if the ISR lacks a replica.", attrgetter("is_under_replicated")),
        (
            "UnderMinIsr",
            "1 on the leader if the ISR is below min.insync.replicas.",
            attrgetter("is_under_min_isr"),
        ),
        ("AtMinIsr", "1 on the leader if the ISR is at min.insync.replicas.", attrgetter("is_at_min_isr")),
        ("InSyncReplicasCount", "Replicas in the ISR; 0 on a follower.", _in_sync_count),
        ("ReplicasCount", "Replicas without those that a reassignment adds; 0 on a follower.", _replica_count),
    ):
        metrics.gauges(MetricName("kafka.cluster", "Partition", name), documentation, _TAGS, of_each(read_one))


def _in_sync_count(partition: Partition) -> int:
    return len(partition.isr)


def _replica_count(partition: Partition) -> int:
    return partition.replication_factor if partition.is_leader else 0
