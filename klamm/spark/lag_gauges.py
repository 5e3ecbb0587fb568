"""The lag of streaming queries as gauges for Prometheus, in the process of the driver:

    prometheus_client.REGISTRY.register(LagGauges(listener))
    prometheus_client.start_http_server(9400, "127.0.0.1")

What must stay true: the gauges are read when they are scraped, and show only running queries.
"""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from klamm.spark.lag import LagListener

_SOURCE = ("query", "source")


class LagGauges(Collector):
    """The latest lags of a listener, by query, source, topic and partition."""

    def __init__(self, listener: LagListener) -> None:
        self._listener = listener

    def collect(self) -> Iterator[GaugeMetricFamily]:
        behind = GaugeMetricFamily(
            "klamm_spark_offsets_behind_latest",
            "Offsets of a partition after the end of the last micro-batch.",
            labels=(*_SOURCE, "topic", "partition"),
        )
        extremes = {
            name: GaugeMetricFamily(
                f"klamm_spark_{name}_offsets_behind_latest", f"{text} of all partitions of a source.", labels=_SOURCE
            )
            for name, text in (("min", "The smallest lag"), ("max", "The largest lag"), ("avg", "The average lag"))
        }
        for lag in self._listener.latest:
            source = (lag.name, str(lag.source))
            for (topic, partition), offsets in lag.offsets_behind_latest.items():
                behind.add_metric((*source, topic, str(partition)), offsets)
            for name, value in (("min", lag.minimum), ("max", lag.maximum), ("avg", lag.average)):
                extremes[name].add_metric(source, value)
        yield behind
        yield from extremes.values()
