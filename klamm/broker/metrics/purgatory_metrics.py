"""Metrics of waiting requests, under the names of Kafka's purgatories.

The requests are counted in slices when the metrics are read.

Source: kafka.server.DelayedOperationPurgatory, kafka.server.DelayedFetchMetrics.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from klamm.base.metrics import MetricName, Metrics
from klamm.base.purgatory import Purgatory
from klamm.base.slices import Steps


def register(
    metrics: Metrics, purgatories: Mapping[str, Sequence[Purgatory[Any]]], fetches: Mapping[str, Purgatory[Any]]
) -> None:
    """`purgatories` has the purgatories that share one name in Kafka, by this name. `fetches` has those of consumers
    and followers, by Kafka's names for these."""
    sizes: dict[str, int] = {}
    delayed: dict[str, int] = {}

    def walk() -> Steps[None]:
        for name, some in purgatories.items():
            size = count = 0
            for purgatory in some:
                pairs, operations = yield from purgatory.count()
                size += pairs
                count += operations
            sizes[name], delayed[name] = size, count

    metrics.walk(walk)
    for name, documentation, counts in (
        ("PurgatorySize", "Requests that wait, counted for each partition or other thing that they wait for.", sizes),
        ("NumDelayedOperations", "Requests that wait.", delayed),
    ):
        metrics.gauges(
            MetricName("kafka.server", "DelayedOperationPurgatory", name),
            documentation,
            "delayedOperation",
            lambda counts=counts: counts,  # type: ignore[misc]
        )
    metrics.meters(
        MetricName("kafka.server", "DelayedFetchMetrics", "ExpiresPerSec"),
        "Fetches that have found too few records until their time was up.",
        "fetcherType",
        lambda: {name: purgatory.expired_count for name, purgatory in fetches.items()},
    )
