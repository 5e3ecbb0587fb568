"""Histograms, and the list of metrics."""

import pytest

from klamm.base.metrics import RESERVOIR_SIZE, Histogram, MetricKind, MetricName, Metrics
from support.metrics import values


def test_a_histogram_that_has_seen_nothing() -> None:
    histogram = Histogram()
    assert (histogram.count, histogram.total, histogram.mean) == (0, 0, 0)
    assert histogram.quantiles() == [0, 0, 0, 0, 0, 0]


def test_a_histogram_of_a_hundred_values() -> None:
    histogram = Histogram()
    for value in range(100, 0, -1):
        histogram.update(value)
    assert (histogram.count, histogram.total, histogram.mean) == (100, 5050, 50.5)
    assert (histogram.minimum, histogram.maximum) == (1, 100)
    assert histogram.quantiles() == [50, 75, 95, 98, 99, 100]
    assert histogram.quantiles((0.0, 0.001, 1.0)) == [1, 1, 100]


def test_quantiles_are_those_of_the_newest_values_and_the_rest_is_of_all() -> None:
    histogram = Histogram()
    histogram.update(1_000_000)
    for _ in range(RESERVOIR_SIZE):
        histogram.update(2)
    assert histogram.quantiles((1.0,)) == [2]
    assert (histogram.count, histogram.maximum) == (RESERVOIR_SIZE + 1, 1_000_000)


def test_metrics_are_read_when_somebody_asks() -> None:
    metrics, seen, queues = Metrics(), [0], {"1": 5}
    metrics.gauge(MetricName("g", "T", "Size"), "d", lambda: seen[0])
    metrics.gauges(MetricName("g", "T", "QueueSize"), "d", "broker_id", lambda: queues)
    metrics.meter(MetricName("g", "T", "ThingsPerSec"), "d", lambda: 7)
    seen[0] = 3
    queues["2"] = 6
    assert [(metric.name.name, metric.kind, metric.tag, dict(values(metric))) for metric in metrics] == [
        ("Size", MetricKind.GAUGE, "", {"": 3}),
        ("QueueSize", MetricKind.GAUGE, "broker_id", {"1": 5, "2": 6}),
        ("ThingsPerSec", MetricKind.METER, "", {"": 7}),
    ]


def test_a_name_is_registered_once() -> None:
    metrics = Metrics()
    metrics.histogram(MetricName("g", "T", "Ms"), "d", Histogram())
    with pytest.raises(ValueError, match="g:T:Ms is registered twice"):
        metrics.histogram(MetricName("g", "T", "Ms"), "d", Histogram())
