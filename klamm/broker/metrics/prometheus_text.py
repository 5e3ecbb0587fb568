"""Metrics in Prometheus' text format, with the names that Prometheus' JMX exporter gives to Kafka's metrics.

The rules are those of the exporter's own example for Kafka (`example_configs/kafka-2_0_0.yml`), so that Kafka
dashboards work with klamm:

| MBean of kafka.controller                         | becomes, after kafka_controller_                              |
|---------------------------------------------------|---------------------------------------------------------------|
| KafkaController, ActiveControllerCount            | kafkacontroller_activecontrollercount                         |
| ControllerStats, UncleanLeaderElectionsPerSec     | controllerstats_uncleanleaderelections_total                  |
| ControllerEventManager, EventQueueTimeMs          | controllereventmanager_eventqueuetimems{quantile="0.99"},     |
|                                                   | controllereventmanager_eventqueuetimems_count                 |
| ControllerChannelManager, QueueSize, broker-id=1  | controllerchannelmanager_queuesize{broker_id="1"}             |

Metrics of quotas have their own rule: `kafka.server:type=Produce,user=U,client-id=C` with `byte-rate` becomes
`kafka_server_quota_byte_rate{resource="Produce",user="U",clientId="C"}`.

In addition, metrics with quantiles have a `_sum`, which the exporter lacks.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from klamm.base.metrics import QUANTILES, Distribution, Metric, MetricKind, MetricName, Metrics
from klamm.base.slices import Steps

# The content type that Prometheus requests.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# A value takes some 50 microseconds, and quotas have one for each of thousands of clients.
VALUES_PER_SLICE = 100
# A distribution is eight values, and sorts a thousand.
DISTRIBUTIONS_PER_SLICE = 10
# The label is made of the digits in the attribute's name: 50thPercentile, 75thPercentile, ..., 999thPercentile.
_QUANTILE_LABELS = ("0.50", "0.75", "0.95", "0.98", "0.99", "0.999")


def render(metrics: Metrics) -> Steps[list[bytes]]:
    """All metrics in pieces, because the whole text may be long. A step reads one metric or some of its values, which
    may change between two steps."""
    yield from metrics.walks()
    pieces = []
    for metric in metrics:
        count = DISTRIBUTIONS_PER_SLICE if metric.kind is MetricKind.HISTOGRAM else VALUES_PER_SLICE
        head = b""
        for some in _in_slices(metric.values_in_steps(), count):
            if some or not head:
                text = _text(metric, some)
                pieces.append(text.removeprefix(head))
                head = head or b"\n".join(text.split(b"\n", 2)[:2]) + b"\n"
            yield
    return pieces


def _in_slices(values: Iterator[tuple[Any, Any] | None], count: int) -> Iterator[list[tuple[Any, Any]]]:
    """The values in slices of at most `count`. A slice also ends where the metric lets others run."""
    some = []
    for value in values:
        if value is not None:
            some.append(value)
        if value is None or len(some) == count:
            yield some
            some = []
    yield some


def prometheus_name(name: MetricName) -> str:
    return re.sub(r"[^a-z0-9_]", "_", "_".join(name).lower())


def _text(metric: Metric, values: Iterable[tuple[Any, Any]]) -> bytes:
    """The lines HELP and TYPE, and the lines of these values."""
    return generate_latest(_Collector(_family(metric, values)))


class _Collector(Collector):
    def __init__(self, family: Family) -> None:
        self._family = family

    def collect(self) -> Iterator[Family]:
        yield self._family


def _family(metric: Metric, values: Iterable[tuple[Any, Any]]) -> Family:
    if metric.kind is MetricKind.METER:
        name = prometheus_name(metric.name._replace(name=metric.name.name.removesuffix("PerSec")))
        family = Family(name, metric.documentation, "counter")
        for tag, value in values:
            family.add_sample(f"{name}_total", _labels(metric, tag), value)
        return family
    name = prometheus_name(metric.name)
    if metric.kind is MetricKind.GAUGE:
        family = Family(name, metric.documentation, "gauge")
        for tag, value in values:
            family.add_sample(name, _labels(metric, tag), value)
        return family
    family = Family(name, metric.documentation, "summary")
    for tag, value in values:
        _add_histogram(family, name, _labels(metric, tag), value)
    return family


def _add_histogram(family: Family, name: str, labels: dict[str, str], histogram: Distribution) -> None:
    for label, value in zip(_QUANTILE_LABELS, histogram.quantiles(QUANTILES), strict=True):
        family.add_sample(name, {**labels, "quantile": label}, value)
    family.add_sample(f"{name}_count", labels, histogram.count)
    family.add_sample(f"{name}_sum", labels, histogram.total)


def _labels(metric: Metric, tag: str | tuple[str, ...]) -> dict[str, str]:
    if metric.tag_sets:
        return {name: value for name, value in zip(metric.tag, tag, strict=True) if value}
    if isinstance(metric.tag, tuple):
        return dict(zip(metric.tag, tag, strict=True))
    return {metric.tag.replace("-", "_"): str(tag)} if metric.tag else {}
