"""Metrics of the transactions in the partitions that this broker leads, under Kafka's names.

Open transactions hold back the last stable offset, and with it consumers with isolation level read_committed. A read of
a metric looks at the partitions.

Source: kafka.cluster.Partition; for PartitionsWithLateTransactionsCount kafka.server.ReplicaManager of Kafka 3.0
(KIP-664).
"""

from collections.abc import Callable, Iterator, Mapping

from klamm.base.metrics import MetricName, Metrics
from klamm.base.slices import Slices, Steps
from klamm.protocol.vocabulary import PartitionKey
from klamm.replication.partition.partition import Partition

# An open transaction is late when its producer has written nothing for transaction.max.timeout.ms and this time.
LATE_AFTER_MS = 5 * 60 * 1000


def register(
    metrics: Metrics,
    partitions: Mapping[PartitionKey, Partition],
    now_ms: Callable[[], int],
    max_timeout_ms: int,
) -> None:
    """`partitions` are the partitions that this broker hosts now, `max_timeout_ms` is transaction.max.timeout.ms."""

    def lags() -> Iterator[tuple[tuple[str, ...], float]]:
        for partition in list(partitions.values()):
            log = partition.log
            # Other partitions have no transactions, and a broker may lead thousands of them.
            if partition.is_leader and not log.producer_state.is_empty:
                yield (partition.topic, str(partition.partition)), log.high_watermark - log.last_stable_offset

    late_count = 0

    def count_late() -> Steps[None]:
        nonlocal late_count
        since_ms, count, looked_at = now_ms() - max_timeout_ms - LATE_AFTER_MS, 0, Slices()
        for partition in list(partitions.values()):
            count += partition.log.producer_state.has_idle_transaction(since_ms)
            if looked_at.spend():
                yield
        late_count = count

    metrics.walk(count_late)
    metrics.gauges(
        MetricName("kafka.cluster", "Partition", "LastStableOffsetLag"),
        "How far the last stable offset is behind the high watermark, where this broker leads transactional producers.",
        ("topic", "partition"),
        lags,
    )
    metrics.gauge(
        MetricName("kafka.server", "ReplicaManager", "PartitionsWithLateTransactionsCount"),
        "Partitions with a transaction that has been open for too long: it hangs, and must be aborted.",
        lambda: late_count,
    )
