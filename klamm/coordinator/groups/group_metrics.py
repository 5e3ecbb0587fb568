"""Metrics of a coordinator's groups, under Kafka's names. Each value is counted when the metric is read."""

from klamm.base.metrics import MetricName, Metrics
from klamm.coordinator.groups.group import GroupState
from klamm.coordinator.groups.group_metadata_manager import GroupMetadataManager

GROUP = "kafka.coordinator.group"


def register(metrics: Metrics, manager: GroupMetadataManager) -> None:
    def gauge(name: str, documentation: str, states: frozenset[GroupState]) -> None:
        def count() -> int:
            return sum(group.state in states for group in manager.groups())

        metrics.gauge(MetricName(GROUP, "GroupMetadataManager", name), documentation, count)

    gauge("NumGroups", "Groups that this broker coordinates.", frozenset(GroupState))
    for state in GroupState:
        gauge(f"NumGroups{state}", f"Groups in state {state} that this broker coordinates.", frozenset({state}))
    metrics.gauge(
        MetricName(GROUP, "GroupMetadataManager", "NumOffsets"),
        "Committed offsets of these groups.",
        lambda: sum(group.offsets.count for group in manager.groups()),
    )
