"""Names, types and labels of metrics: those of Apache Kafka behind Prometheus' JMX exporter, and those of klamm.

`kafka-2.8.2.txt` holds what a scrape of Kafka shows; tests/interop/test_metrics_interop.py compares it with Kafka.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from prometheus_client.parser import text_string_to_metric_families

from klamm.base.metrics import Metric, MetricKind, Metrics
from klamm.broker.metrics.prometheus_text import prometheus_name, render

RECORDED = Path(__file__).with_name("kafka-2.8.2.txt")
# The first words of the names of Kafka's MBeans.
PREFIX = "kafka_"


class Shape(NamedTuple):
    """What all samples of a metric have in common. Of a summary, quantiles are gauges, and their counts are untyped: so
    the exporter shows them."""

    name: str
    type: str
    labels: tuple[str, ...]

    @classmethod
    def of(cls, name: str, type_: str, labels: Iterable[str]) -> Self:
        return cls(name, type_, tuple(sorted(labels)))

    def __str__(self) -> str:
        return f"{self.name} {self.type} {','.join(self.labels)}".rstrip()


def recorded() -> set[Shape]:
    """What Kafka 2.8.2 shows."""
    lines = (line.split(" ") for line in RECORDED.read_text(encoding="utf-8").splitlines())
    return {Shape.of(name, type_, labels[0].split(",") if labels else ()) for name, type_, *labels in lines}


def scraped(text: str) -> set[Shape]:
    """The metrics of MBeans in the answer to a scrape."""
    return {
        Shape.of(sample.name, _type(family.type, sample.labels), sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(PREFIX) and not (family.type == "summary" and sample.name.endswith("_sum"))
    }


def _type(type_: str, labels: Iterable[str]) -> str:
    if type_ == "summary":
        return "gauge" if "quantile" in labels else "untyped"
    return "untyped" if type_ == "unknown" else type_


def registered(metrics: Iterable[Metric]) -> set[Shape]:
    """What klamm shows of these metrics once they have values."""
    return {shape for metric in metrics for shape in _shapes(metric) if shape.name.startswith(PREFIX)}


def _shapes(metric: Metric) -> Iterator[Shape]:
    tags = metric.tag if isinstance(metric.tag, tuple) else (metric.tag,) if metric.tag else ()
    for tag_set in metric.tag_sets or (tags,):
        yield from _shapes_with(metric, tag_set)


def _shapes_with(metric: Metric, tags: tuple[str, ...]) -> Iterator[Shape]:
    labels = [tag.replace("-", "_") for tag in tags]
    name = prometheus_name(metric.name)
    if metric.kind is MetricKind.METER:
        yield Shape.of(f"{name.removesuffix('persec')}_total", "counter", labels)
    elif metric.kind is MetricKind.GAUGE:
        yield Shape.of(name, "gauge", labels)
    else:
        yield Shape.of(name, "gauge", [*labels, "quantile"])
        yield Shape.of(f"{name}_count", "untyped", labels)


class Values:
    """The values of a scrape."""

    def __init__(self, text: str) -> None:
        self.by_name: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    @classmethod
    def of(cls, metrics: Metrics) -> Self:
        steps = render(metrics)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return cls(b"".join(end.value).decode())

    def __getitem__(self, mbean: str) -> float:
        """The value of `domain:type=T,name=N,tag=...`: an attribute `Value` or, of a meter, `Count`."""
        is_meter = "PerSec" in mbean
        return self.by_name[exported(mbean, "Count" if is_meter else "Value")]


def exported(mbean: str, attribute: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The name and the labels that the exporter gives an attribute of an MBean."""
    domain, _, keys = mbean.partition(":")
    text = f"{domain}<{keys.replace(',', ', ')}><>{attribute}"
    for rule in json.loads(exporter_rules())["rules"]:
        if match := re.search(rule["pattern"], text):
            name = _expanded(rule["name"], match).lower()
            labels = {_expanded(key, match): _expanded(value, match) for key, value in rule.get("labels", {}).items()}
            return (
                re.sub(r"\W", "_", name),
                tuple(sorted((re.sub(r"\W", "_", key), value) for key, value in labels.items())),
            )
    raise ValueError(f"no rule for {text}")


def _expanded(template: str, match: re.Match[str]) -> str:
    return re.sub(r"\$(\d+)", lambda number: match[int(number[1])], template)


def exporter_rules() -> str:
    """The configuration of the JMX exporter: rules with the effect of its own example for Kafka, and two for the
    metrics of connections, which the example leaves out. The first rule that matches decides."""
    rules = [
        _rule(r"kafka.server<type=(.+), name=(.+), clientId=(.+), topic=(.+), partition=(.*)><>Value", "server_$1_$2")
        | {"labels": {"clientId": "$3", "topic": "$4", "partition": "$5"}},
        _rule(
            r"kafka.server<type=(.+), name=(.+), clientId=(.+), brokerHost=(.+), brokerPort=(.+)><>Value",
            "server_$1_$2",
        )
        | {"labels": {"clientId": "$3", "broker": "$4:$5"}},
        _rule(r"kafka.coordinator.(\w+)<type=(.+), name=(.+)><>Value", "coordinator_$1_$2_$3"),
        *(_tagged(tags, r"PerSec\w*", "Count", "_total", "COUNTER") for tags in (2, 1, 0)),
        _rule(r"kafka.server<type=(.+), client-id=(.+)><>([a-z-]+)", "server_quota_$3")
        | {"labels": {"resource": "$1", "clientId": "$2"}},
        _rule(r"kafka.server<type=(.+), user=(.+), client-id=(.+)><>([a-z-]+)", "server_quota_$4")
        | {"labels": {"resource": "$1", "user": "$2", "clientId": "$3"}},
        _rule(
            r"kafka.server<type=(socket-server-metrics), listener=([^,]+), networkProcessor=(\d+)><>([a-z-]+)",
            "server_$1_$4",
        )
        | {"labels": {"listener": "$2", "networkProcessor": "$3"}},
        _rule(r"kafka.server<type=(socket-server-metrics), listener=([^,]+)><>([a-z-]+)", "server_$1_$3")
        | {"labels": {"listener": "$2"}},
        *(_tagged(tags, "", "Value", "", "GAUGE") for tags in (2, 1, 0)),
    ]
    for tags in (2, 1, 0):
        rules.append(_tagged(tags, "", "Count", "_count", "COUNTER"))
        quantile = _tagged(tags, "", r"(\d+)thPercentile", "", "GAUGE")
        quantile["labels"] |= {"quantile": f"0.${4 + 2 * tags}"}
        rules.append(quantile)
    # JSON is YAML.
    return json.dumps({"lowercaseOutputName": True, "rules": rules}, indent=1)


def _rule(pattern: str, name: str, type_: str = "GAUGE") -> dict[str, Any]:
    return {"pattern": pattern, "name": f"kafka_{name}", "type": type_}


def _tagged(tags: int, name_end: str, attribute: str, end: str, type_: str) -> dict[str, Any]:
    """A rule for MBeans with this number of tags besides type and name."""
    pattern = rf"kafka.(\w+)<type=(.+), name=(.+){name_end}{', (.+)=(.+)' * tags}><>{attribute}"
    labels = {f"${4 + 2 * tag}": f"${5 + 2 * tag}" for tag in range(tags)}
    return _rule(pattern, f"$1_$2_$3{end}", type_) | {"labels": labels}


def values(metric: Metric) -> Mapping[str, Any]:
    """The metric's values by tag. Only metrics that are read in steps have no mapping."""
    read = metric.read()
    assert isinstance(read, Mapping)
    return read
