"""Metrics in Prometheus' text format, under the names that Kafka's have behind Prometheus' JMX exporter.

The rules are those of the exporter's own example for Kafka (`example_configs/kafka-2_0_0.yml`), so that dashboards made
for Kafka show klamm:

| MBean of kafka.controller                         | becomes, after kafka_controller_                              |
|---------------------------------------------------|---------------------------------------------------------------|
| KafkaController, ActiveControllerCount            | kafkacontroller_activecontrollercount                         |
| ControllerStats, UncleanLeaderElectionsPerSec     | controllerstats_uncleanleaderelections_total                  |
| ControllerEventManager, EventQueueTimeMs          | controllereventmanager_eventqueuetimems{quantile="0.99"},     |
|                                                   | controllereventmanager_eventqueuetimems_count                 |
| ControllerChannelManager, QueueSize, broker-id=1  | controllerchannelmanager_queuesize{broker_id="1"}             |

Those of quotas have a rule of their own: `kafka.server:type=Produce,user=U,client-id=C` with `byte-rate` becomes
`kafka_server_quota_byte_rate{resource="Produce",user="U",clientId="C"}`.

In addition, metrics with quantiles have a `_sum`, which the exporter lacks.
"""

import re
from collections.abc import Iterator

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector, CollectorRegistry

from klamm.metrics import QUANTILES, Histogram, Kind, Metric, MetricName, Metrics

# The content type that Prometheus requests.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# The label is made of the digits in the attribute's name: 50thPercentile, 75thPercentile, ..., 999thPercentile.
_QUANTILE_LABELS = ("0.50", "0.75", "0.95", "0.98", "0.99", "0.999")


def render(metrics: Metrics) -> bytes:
    """All metrics as they are now."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(metrics))
    return generate_latest(registry)


def prometheus_name(name: MetricName) -> str:
    return re.sub(r"[^a-z0-9_]", "_", "_".join(name).lower())


class _Collector(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Family]:
        return map(_family, self._metrics)


def _family(metric: Metric) -> Family:
    values = metric.read()
    if metric.kind is Kind.METER:
        name = prometheus_name(metric.name._replace(name=metric.name.name.removesuffix("PerSec")))
        family = Family(name, metric.documentation, "counter")
        for tag, value in values.items():
            family.add_sample(f"{name}_total", _labels(metric, tag), value)
        return family
    name = prometheus_name(metric.name)
    if metric.kind is Kind.GAUGE:
        family = Family(name, metric.documentation, "gauge")
        for tag, value in values.items():
            family.add_sample(name, _labels(metric, tag), value)
        return family
    family = Family(name, metric.documentation, "summary")
    for tag, value in values.items():
        _add_histogram(family, name, _labels(metric, tag), value)
    return family


def _add_histogram(family: Family, name: str, labels: dict[str, str], histogram: Histogram) -> None:
    for label, value in zip(_QUANTILE_LABELS, histogram.quantiles(QUANTILES), strict=True):
        family.add_sample(name, {**labels, "quantile": label}, value)
    family.add_sample(f"{name}_count", labels, histogram.count)
    family.add_sample(f"{name}_sum", labels, histogram.total)


def _labels(metric: Metric, tag: str | tuple[str, ...]) -> dict[str, str]:
    if isinstance(metric.tag, tuple):
        return dict(zip(metric.tag, tag, strict=True))
    return {metric.tag.replace("-", "_"): str(tag)} if metric.tag else {}
