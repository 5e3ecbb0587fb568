"""A few numbers of a broker for readers that poll every second, because /metrics has thousands of numbers.

What must stay true: the cost does not grow with partitions or clients, and grows by only one addition for each topic.
"""

from typing import Any, Final

from klamm.base.environment import Environment
from klamm.base.metrics import Histogram, MetricKind, MetricName, Metrics
from klamm.base.slices import Steps

LOOP_LAG: Final = MetricName("klamm", "EventLoop", "LagMs")
LOOP_LONGEST_LAG: Final = MetricName("klamm", "EventLoop", "LongestLagMs")
# The counters of the whole broker, from which a reader computes rates.
_TOTALS: Final = {
    MetricName("kafka.server", "BrokerTopicMetrics", "BytesInPerSec"): "bytes_in",
    MetricName("kafka.server", "BrokerTopicMetrics", "BytesOutPerSec"): "bytes_out",
    MetricName("kafka.server", "BrokerTopicMetrics", "MessagesInPerSec"): "messages_in",
    MetricName("kafka.server", "BrokerTopicMetrics", "ReplicationBytesInPerSec"): "replication_bytes_in",
    MetricName("kafka.server", "BrokerTopicMetrics", "ReplicationBytesOutPerSec"): "replication_bytes_out",
}


def broker_status(broker_id: int, metrics: Metrics, environment: Environment) -> Steps[dict[str, Any]]:
    """The broker's memory, how late its loop runs (the 99th percentile of the last minute or so, and the longest since
    the start), and its traffic since the start. A number that the broker does not count is null."""
    lag = metrics.find(LOOP_LAG)
    histogram = None if lag is None else next(lag.values())[1]
    longest_lag_ms = yield from _number(metrics, LOOP_LONGEST_LAG)
    totals = {}
    for name, key in _TOTALS.items():
        totals[key] = yield from _number(metrics, name)
    return {
        "broker_id": broker_id,
        "time_ms": environment.now_ms(),
        "memory_bytes": environment.memory_bytes or None,
        "loop_lag_ms": histogram.quantiles((0.99,))[0] if isinstance(histogram, Histogram) else None,
        "longest_loop_lag_ms": longest_lag_ms,
        "totals": totals,
    }


def _number(metrics: Metrics, name: MetricName) -> Steps[float | None]:
    """The metric's value for the whole broker, which comes before those of topics."""
    metric = metrics.find(name)
    if metric is None or metric.kind is MetricKind.HISTOGRAM:
        return None
    for found in metric.values_in_steps():
        if found is not None:
            tag, value = found
            return float(value) if not any(tag) else None
        yield
    return None
