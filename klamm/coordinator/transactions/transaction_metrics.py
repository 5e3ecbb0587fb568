"""Metrics of a transaction coordinator, under Kafka's names. Each value is computed when the metric is read."""

from klamm.base.metrics import MetricName, Metrics
from klamm.coordinator.transactions.coordinator import TransactionCoordinator

_TYPE = "TransactionMarkerChannelManager"


def register(metrics: Metrics, coordinator: TransactionCoordinator) -> None:
    def without_leader() -> int:
        return coordinator.markers.without_leader_count

    def retried() -> int:
        return sum(write.attempts > 1 for owned in coordinator.states.owned() for write in owned.writes.values())

    for name, documentation, read in (
        ("UnknownDestinationQueueSize", "Ends of transactions whose partition has no known leader.", without_leader),
        ("LogAppendRetryQueueSize", "Records of __transaction_state that are written again after an error.", retried),
    ):
        metrics.gauge(MetricName("kafka.coordinator.transaction", _TYPE, name), documentation, read)
