"""The output of `klamm metrics`, computed from two scrapes of each broker, as values and as text. Pure.

The names are those that Prometheus' JMX exporter gives Kafka's metrics, so brokers of Apache Kafka are read in the same
way. A number that a broker does not expose is None in values and "-" in text.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

from klamm.base.words import size_text, table_lines

_TOPICS: Final = "kafka_server_brokertopicmetrics_"
_REQUESTS: Final = "kafka_network_requestmetrics_"
_REPLICAS: Final = "kafka_server_replicamanager_"
_CONTROLLER: Final = "kafka_controller_"
_LAG: Final = "klamm_eventloop_lagms"
_MEMORY: Final = "process_resident_memory_bytes"
# The prefixes of the metrics on the screen. A broker with thousands of partitions exposes megabytes of other metrics.
PREFIXES: Final = (
    f"{_TOPICS}messagesin_total", f"{_TOPICS}bytesin_total", f"{_TOPICS}bytesout_total",
    f"{_REQUESTS}requests_total", f"{_REQUESTS}errors_total", f"{_REQUESTS}totaltimems{{",
    f"{_REPLICAS}underreplicatedpartitions", f"{_REPLICAS}offlinereplicacount",
    f"{_CONTROLLER}kafkacontroller_activecontrollercount", f"{_CONTROLLER}kafkacontroller_offlinepartitionscount",
    f"{_CONTROLLER}controllereventmanager_eventqueuesize", _LAG, _MEMORY,
)  # fmt: skip
# Kafka counts each Fetch under this name, and again as a consumer's or a follower's.
_COUNTED_TWICE: Final = "Fetch"
_FETCHES: Final = ("FetchConsumer", "FetchFollower")
MOST_APIS: Final = 5

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Scrape:
    """The samples of one scrape of a broker, by name and sorted labels. `time_s` is on a monotonic clock."""

    time_s: float
    samples: Mapping[str, Mapping[Labels, float]]

    def value(self, name: str, **labels: str) -> float | None:
        return self.samples.get(name, {}).get(tuple(sorted(labels.items())))


@dataclass(frozen=True, slots=True)
class BrokerMetrics:
    """The metrics of a broker. `broker_id` is None if only a URL is known; `error` says why there are no metrics."""

    broker_id: int | None
    url: str | None
    before: Scrape | None = None
    now: Scrape | None = None
    error: str | None = None

    @property
    def name(self) -> str:
        return str(self.url) if self.broker_id is None else str(self.broker_id)

    def per_s(self, name: str, labels: Labels = ()) -> float | None:
        """A counter's growth per second. A counter that has decreased was reset to 0."""
        if self.before is None or self.now is None:
            return None
        after = self.now.samples.get(name, {}).get(labels)
        elapsed_s = self.now.time_s - self.before.time_s
        if after is None or elapsed_s <= 0:
            return None
        before = self.before.samples.get(name, {}).get(labels, 0.0)
        return (after - before if after >= before else after) / elapsed_s


@dataclass(slots=True)
class _Api:
    requests_per_s: float = 0.0
    errors_per_s: float = 0.0
    times: dict[str, float] = field(default_factory=dict)


def parse(text: str, time_s: float, is_wanted: Callable[[str], bool]) -> Scrape:
    """The wanted samples of a response in Prometheus' text format. Raises ValueError.

    `is_wanted` gets whole lines.
    """
    from prometheus_client.parser import text_string_to_metric_families

    lines = "".join(f"{line}\n" for line in text.split("\n") if line[:1] != "#" and is_wanted(line))
    samples: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(lines):
        for sample in family.samples:
            samples.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return Scrape(time_s, samples)


def is_important(line: str) -> bool:
    """Whether the screen shows the metric of a line."""
    return line.startswith(PREFIXES)


def is_named(line: str, names: Sequence[str]) -> bool:
    """Whether the metric of a line has one of these names, in which * stands for any text."""
    name = line.partition("{")[0].partition(" ")[0]
    return any(fnmatchcase(name, pattern) for pattern in names)


# -- the screen -------------------------------------------------------------------------------------------------------


def broker_value(broker: BrokerMetrics) -> dict[str, Any]:
    """The important numbers of a broker."""
    value: dict[str, Any] = {"broker_id": broker.broker_id, "url": broker.url, "error": broker.error}
    if broker.now is None:
        return value
    apis = _apis(broker)
    has_rates = bool(apis) and broker.before is not None
    requests = [api for name, api in apis.items() if name not in _FETCHES or _COUNTED_TWICE not in apis]
    return value | {
        "controller": broker.now.value(f"{_CONTROLLER}kafkacontroller_activecontrollercount") == 1,
        "messages_in_per_s": broker.per_s(f"{_TOPICS}messagesin_total"),
        "bytes_in_per_s": broker.per_s(f"{_TOPICS}bytesin_total"),
        "bytes_out_per_s": broker.per_s(f"{_TOPICS}bytesout_total"),
        "requests_per_s": sum(api.requests_per_s for api in requests) if has_rates else None,
        "errors_per_s": sum(api.errors_per_s for api in requests) if has_rates else None,
        "under_replicated_partitions": broker.now.value(f"{_REPLICAS}underreplicatedpartitions"),
        "offline_replicas": broker.now.value(f"{_REPLICAS}offlinereplicacount"),
        "offline_partitions": broker.now.value(f"{_CONTROLLER}kafkacontroller_offlinepartitionscount"),
        "controller_queue": broker.now.value(f"{_CONTROLLER}controllereventmanager_eventqueuesize"),
        "loop_lag_p99_ms": broker.now.value(_LAG, quantile="0.99"),
        "memory_bytes": broker.now.value(_MEMORY),
        "apis": [
            {
                "api": name,
                "requests_per_s": api.requests_per_s,
                "errors_per_s": api.errors_per_s,
                "total_time_p50_ms": api.times.get("0.50"),
                "total_time_p99_ms": api.times.get("0.99"),
            }
            for name, api in _busiest(apis)
        ],
    }


def _apis(broker: BrokerMetrics) -> dict[str, _Api]:
    assert broker.now is not None
    apis: dict[str, _Api] = {}
    for labels in broker.now.samples.get(f"{_REQUESTS}requests_total", {}):
        api = apis.setdefault(dict(labels).get("request", ""), _Api())
        api.requests_per_s += broker.per_s(f"{_REQUESTS}requests_total", labels) or 0.0
    for labels in broker.now.samples.get(f"{_REQUESTS}errors_total", {}):
        tags = dict(labels)
        if tags.get("error") != "NONE" and (found := apis.get(tags.get("request", ""))):
            found.errors_per_s += broker.per_s(f"{_REQUESTS}errors_total", labels) or 0.0
    for labels, time_ms in broker.now.samples.get(f"{_REQUESTS}totaltimems", {}).items():
        tags = dict(labels)
        if found := apis.get(tags.get("request", "")):
            found.times[tags.get("quantile", "")] = time_ms
    return apis


def _busiest(apis: Mapping[str, _Api]) -> list[tuple[str, _Api]]:
    shown = [
        (name, api)
        for name, api in apis.items()
        if api.requests_per_s > 0 and (name != _COUNTED_TWICE or not any(each in apis for each in _FETCHES))
    ]
    return sorted(shown, key=lambda item: (-item[1].requests_per_s, item[0]))[:MOST_APIS]


_TITLES: Final = (
    "BROKER", "MESSAGES/S", "IN/S", "OUT/S", "REQUESTS/S", "ERRORS/S", "UNDER-REPL", "OFFLINE", "QUEUE",
    "LAG P99", "MEMORY",
)  # fmt: skip
_API_TITLES: Final = ("BROKER", "API", "REQUESTS/S", "ERRORS/S", "P50", "P99")


def screen_lines(brokers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The values of brokers as two tables, and why a broker is in neither. A star marks the controller."""
    shown = [broker for broker in brokers if broker["error"] is None]
    if shown:
        rows = [_TITLES, *(_row(broker) for broker in shown)]
        yield from table_lines(rows, range(1, len(_TITLES)))
    apis = [(_name(broker), api) for broker in shown for api in broker["apis"]]
    if apis:
        yield ""
        yield from table_lines([_API_TITLES, *(_api_row(name, api) for name, api in apis)], range(2, len(_API_TITLES)))
    for broker in brokers:
        if broker["error"] is not None:
            yield str(broker["error"])


def _name(broker: Mapping[str, Any]) -> str:
    name = broker["url"] if broker["broker_id"] is None else broker["broker_id"]
    return f"{name}{'*' if broker['controller'] else ''}"


def _row(broker: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        _name(broker),
        _number(broker["messages_in_per_s"]),
        _size(broker["bytes_in_per_s"]),
        _size(broker["bytes_out_per_s"]),
        _number(broker["requests_per_s"]),
        _number(broker["errors_per_s"]),
        _number(broker["under_replicated_partitions"]),
        # The controller counts the offline partitions of the whole cluster.
        _number(broker["offline_partitions"] if broker["controller"] else broker["offline_replicas"]),
        _number(broker["controller_queue"]),
        _time(broker["loop_lag_p99_ms"]),
        _size(broker["memory_bytes"]),
    )


def _api_row(name: str, api: Mapping[str, Any]) -> tuple[str, ...]:
    numbers = (_number(api["requests_per_s"]), _number(api["errors_per_s"]))
    return (name, api["api"], *numbers, _time(api["total_time_p50_ms"]), _time(api["total_time_p99_ms"]))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if 0 < value < 10 and value % 1 else f"{value:.0f}"


def _size(value: float | None) -> str:
    return "-" if value is None else size_text(round(value))


def _time(value_ms: float | None) -> str:
    return "-" if value_ms is None else f"{value_ms:.1f} ms"


# -- named metrics ----------------------------------------------------------------------------------------------------


def named_value(broker: BrokerMetrics) -> dict[str, Any]:
    """All samples that were read from a broker; counters also have their growth per second."""
    value: dict[str, Any] = {"broker_id": broker.broker_id, "url": broker.url, "error": broker.error}
    if broker.now is None:
        return value
    return value | {
        "metrics": [
            {
                "name": name,
                "labels": dict(labels),
                "value": number,
                "per_s": broker.per_s(name, labels) if name.endswith(("_total", "_count", "_sum")) else None,
            }
            for name, samples in sorted(broker.now.samples.items())
            for labels, number in sorted(samples.items())
        ]
    }


def named_lines(brokers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The values of named metrics, one a line, and why a broker has none."""
    rows = [("BROKER", "METRIC", "VALUE", "PER SECOND")]
    for broker in brokers:
        for metric in broker.get("metrics", ()):
            labels = ",".join(f'{key}="{value}"' for key, value in metric["labels"].items())
            name = f"{metric['name']}{{{labels}}}" if labels else metric["name"]
            whose = str(broker["url"] if broker["broker_id"] is None else broker["broker_id"])
            rows.append((whose, name, f"{metric['value']:.12g}", _number(metric["per_s"])))
    if len(rows) > 1:
        yield from table_lines(rows, (2, 3))
    for broker in brokers:
        if broker["error"] is not None:
            yield str(broker["error"])
