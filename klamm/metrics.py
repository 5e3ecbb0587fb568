"""Numbers about what a program does: plain counters where things happen, read only when somebody asks.

A part that counts owns its numbers (an `int`, a `Histogram`) and registers in `Metrics` how they are read. Names are
those of Kafka's MBeans (`kafka.controller:type=KafkaController,name=ActiveControllerCount`). Who shows them translates.

What must stay true: where something is counted nothing happens but an addition; all other work is done by whoever
reads. Nothing here knows a clock, a format or a network.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

# As many values as Yammer's reservoirs have, by which Kafka measures.
RESERVOIR_SIZE = 1028
# Those that Kafka's MBeans have.
QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)


class Histogram:
    """Values that were observed: how many, their sum and extremes, and the quantiles of the newest ones.

    Kafka weighs its samples by age. Here the newest `RESERVOIR_SIZE` count, and no others.
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
        """The quantiles begin anew. Counts and sums only grow: rates are made of them."""
        self._newest.clear()

    @property
    def mean(self) -> float:
        """0 when nothing was observed."""
        return self.total / self.count if self.count else 0.0

    def quantiles(self, wanted: Sequence[float] = QUANTILES) -> list[float]:
        """The smallest of the newest values that is not exceeded by these shares of them; 0 when there are none."""
        ordered = sorted(self._newest)
        if not ordered:
            return [0.0] * len(wanted)
        return [ordered[max(math.ceil(share * len(ordered)) - 1, 0)] for share in wanted]


class MetricName(NamedTuple):
    """The name of one of Kafka's MBeans, for example kafka.controller, KafkaController, ActiveControllerCount."""

    group: str
    type: str
    name: str


class Kind(Enum):
    GAUGE = "gauge"  # A number that goes up and down.
    METER = "meter"  # How often something has happened. Whoever reads makes a rate of it.
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """One metric. `read` gives its value (a number or a `Histogram`) by the value of `tag`, "" if there is no tag."""

    name: MetricName
    kind: Kind
    documentation: str
    tag: str
    read: Callable[[], Mapping[str, Any]]


class Metrics:
    """What a program tells about itself, in the order in which it was registered."""

    def __init__(self) -> None:
        self._metrics: dict[MetricName, Metric] = {}

    def gauge(self, name: MetricName, documentation: str, read: Callable[[], float]) -> None:
        self._add(Metric(name, Kind.GAUGE, documentation, "", lambda: {"": read()}))

    def gauges(self, name: MetricName, documentation: str, tag: str, read: Callable[[], Mapping[str, float]]) -> None:
        """One number for each value of `tag`."""
        self._add(Metric(name, Kind.GAUGE, documentation, tag, read))

    def meter(self, name: MetricName, documentation: str, read: Callable[[], int]) -> None:
        self._add(Metric(name, Kind.METER, documentation, "", lambda: {"": read()}))

    def histogram(self, name: MetricName, documentation: str, histogram: Histogram) -> None:
        self._add(Metric(name, Kind.HISTOGRAM, documentation, "", lambda: {"": histogram}))

    def histograms(
        self, name: MetricName, documentation: str, tag: str, read: Callable[[], Mapping[str, Histogram]]
    ) -> None:
        """One histogram for each value of `tag`."""
        self._add(Metric(name, Kind.HISTOGRAM, documentation, tag, read))

    def __iter__(self) -> Iterator[Metric]:
        return iter(list(self._metrics.values()))

    def _add(self, metric: Metric) -> None:
        if metric.name in self._metrics:
            raise ValueError(f"{':'.join(metric.name)} is registered twice")
        self._metrics[metric.name] = metric
