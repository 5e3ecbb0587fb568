"""The metrics of a program: plain counters in the code that counts, read only on demand.

A part that counts owns its numbers (an `int`, a `Histogram`). Its `register(metrics)`, or that of a module beside it,
says how they are read: `gauge`, `meter` or `histogram` register one number; `gauges`, `meters` or `histograms` register
one number for each value of a tag or of several tags. Names are those of Kafka's MBeans
(`kafka.controller:type=KafkaController,name=ActiveControllerCount`). Exporters translate them.

What must stay true: counting is a single addition; all other work happens when a metric is read. This module depends on
no clock, format or network.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol, TypeVar

from klamm.base.slices import Steps

# The size of a Yammer reservoir, which Kafka uses.
RESERVOIR_SIZE = 1028
# The quantiles of Kafka's MBeans.
QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)


class Distribution(Protocol):
    """The statistics of observed values."""

    @property
    def count(self) -> int: ...

    @property
    def total(self) -> float: ...

    def quantiles(self, wanted: Sequence[float] = QUANTILES) -> list[float]:
        """The wanted quantiles of the newest values; 0 without values."""


def quantiles_of(values: Iterable[float], wanted: Sequence[float]) -> list[float]:
    """Like `Distribution.quantiles`, of these values."""
    ordered = sorted(values)
    if not ordered:
        return [0.0] * len(wanted)
    return [ordered[max(math.ceil(share * len(ordered)) - 1, 0)] for share in wanted]


class Histogram:
    """The number, sum and extremes of observed values, and the quantiles of the newest values.

    Kafka weighs its samples by age. Here exactly the newest `RESERVOIR_SIZE` values count.
    """

    __slots__ = ("_newest", "count", "maximum", "minimum", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.minimum = math.inf
        self.maximum = -math.inf
        self._newest: deque[float] = deque(maxlen=RESERVOIR_SIZE)

    def update(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.minimum = min(self.minimum, value)
        self.maximum = max(self.maximum, value)
        self._newest.append(value)

    def forget(self) -> None:
        """Restarts the quantiles. Counts and sums only grow, because rates are computed from them."""
        self._newest.clear()

    @property
    def mean(self) -> float:
        """The mean of all values; 0 without values."""
        return self.total / self.count if self.count else 0.0

    def quantiles(self, wanted: Sequence[float] = QUANTILES) -> list[float]:
        """Like `Distribution.quantiles`."""
        return quantiles_of(self._newest, wanted)


class MetricName(NamedTuple):
    """The name of one of Kafka's MBeans, for example kafka.controller, KafkaController, ActiveControllerCount."""

    group: str
    type: str
    name: str


class MetricKind(Enum):
    GAUGE = "gauge"  # A number that goes up and down.
    METER = "meter"  # How often something has happened. The reader computes a rate from it.
    HISTOGRAM = "histogram"


Tag = str | tuple[str, ...]
"""The name of a tag, or of several."""

TagSets = tuple[tuple[str, ...], ...]
"""The sets of tags that values may have, if not every value has all tags. Missing tags are "" and not shown."""

V = TypeVar("V")
Read = Callable[[], Mapping[str, V] | Iterator[tuple[tuple[str, ...], V] | None]]
"""Returns the metric's values by the value of the tag. With several tags it yields (tuple of the tags' values, value),
and None after long work, so that others can run."""


class Metric(NamedTuple):
    """One metric. `read` returns its values (numbers or `Distribution`s) by tag; the tag is "" if it has no tag."""

    name: MetricName
    kind: MetricKind
    documentation: str
    tag: Tag
    read: Read[Any]
    tag_sets: TagSets = ()

    def values(self) -> Iterator[tuple[Any, Any]]:
        """The tags and values. Thousands of them may be computed lazily, and others may run in between."""
        return (value for value in self.values_in_steps() if value is not None)

    def values_in_steps(self) -> Iterator[tuple[Any, Any] | None]:
        """Like `values`, with None where others should run in between."""
        values = self.read()
        return iter(list(values.items())) if isinstance(values, Mapping) else values


class Metrics:
    """The metrics of a program, in the order of their registration."""

    def __init__(self) -> None:
        self._metrics: dict[MetricName, Metric] = {}
        self._walks: list[Callable[[], Steps[None]]] = []

    def walk(self, steps: Callable[[], Steps[None]]) -> None:
        """Adds work in slices that runs before each reading of metrics, for numbers that are computed from thousands
        of objects."""
        self._walks.append(steps)

    def walks(self) -> Steps[None]:
        """The steps of all work that runs before the metrics are read."""
        for steps in self._walks:
            yield from steps()

    def gauge(self, name: MetricName, documentation: str, read: Callable[[], float]) -> None:
        self._add(Metric(name, MetricKind.GAUGE, documentation, "", lambda: {"": read()}))

    def gauges(
        self,
        name: MetricName,
        documentation: str,
        tag: Tag,
        read: Read[float],
        tag_sets: TagSets = (),
    ) -> None:
        self._add(Metric(name, MetricKind.GAUGE, documentation, tag, read, tag_sets))

    def meter(self, name: MetricName, documentation: str, read: Callable[[], int]) -> None:
        self._add(Metric(name, MetricKind.METER, documentation, "", lambda: {"": read()}))

    def meters(
        self,
        name: MetricName,
        documentation: str,
        tag: Tag,
        read: Read[int],
        tag_sets: TagSets = (),
    ) -> None:
        self._add(Metric(name, MetricKind.METER, documentation, tag, read, tag_sets))

    def histogram(self, name: MetricName, documentation: str, histogram: Distribution) -> None:
        self._add(Metric(name, MetricKind.HISTOGRAM, documentation, "", lambda: {"": histogram}))

    def histograms(self, name: MetricName, documentation: str, tag: Tag, read: Read[Distribution]) -> None:
        self._add(Metric(name, MetricKind.HISTOGRAM, documentation, tag, read))

    def __iter__(self) -> Iterator[Metric]:
        return iter(list(self._metrics.values()))

    def find(self, name: MetricName) -> Metric | None:
        return self._metrics.get(name)

    def _add(self, metric: Metric) -> None:
        if metric.name in self._metrics:
            raise ValueError(f"{':'.join(metric.name)} is registered twice")
        self._metrics[metric.name] = metric
