"""A few numbers of a broker, for a reader that looks every second: /metrics has thousands, and takes as long to make.

What must stay true: the cost does not grow with partitions or clients.
"""

from typing import Any, Final

from klamm.environment import Environment
from klamm.metrics import Histogram, Kind, MetricName, Metrics

LOOP_LAG: Final = MetricName("klamm", "EventLoop", "LagMs")
LOOP_LONGEST_LAG: Final = MetricName("klamm", "EventLoop", "LongestLagMs")
# The counters of the whole broker, which a reader makes rates of.
_TOTALS: Final = {
    MetricName("kafka.server", "BrokerTopicMetrics", "BytesInPerSec"): "bytes_in",
    MetricName("kafka.server", "BrokerTopicMetrics", "BytesOutPerSec"): "bytes_out",
    MetricName("kafka.server", "BrokerTopicMetrics", "MessagesInPerSec"): "messages_in",
    MetricName("kafka.server", "BrokerTopicMetrics", "ReplicationBytesInPerSec"): "replication_bytes_in",
    MetricName("kafka.server", "BrokerTopicMetrics", "ReplicationBytesOutPerSec"): "replication_bytes_out",
}


def broker_status(broker_id: int, metrics: Metrics, environment: Environment) -> dict[str, Any]:
    """The broker's memory, how late its loop runs (the 99th percentile of the last minute or so, and the longest since
    the start), and what it has received and sent since the start: null where the broker does not count it."""
    lag = metrics.find(LOOP_LAG)
    histogram = None if lag is None else next(lag.values())[1]
    return {
        "broker_id": broker_id,
        "time_ms": environment.now_ms(),
        "memory_bytes": environment.memory_bytes or None,
        "loop_lag_ms": histogram.quantiles((0.99,))[0] if isinstance(histogram, Histogram) else None,
        "longest_loop_lag_ms": _number(metrics, LOOP_LONGEST_LAG),
        "totals": {key: _number(metrics, name) for name, key in _TOTALS.items()},
    }


def _number(metrics: Metrics, name: MetricName) -> float | None:
    """The metric's value of the whole broker, which comes before those of topics."""
    metric = metrics.find(name)
    if metric is None or metric.kind is Kind.HISTOGRAM:
        return None
    tag, value = next(metric.values())
    return float(value) if not any(tag) else None
