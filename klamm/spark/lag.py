"""How far streaming queries are behind the topics that they read: a listener, as Spark's own connector has metrics.

    listener = LagListener()
    spark.streams.addListener(listener)

Spark's connector puts `minOffsetsBehindLatest`, `maxOffsetsBehindLatest` and `avgOffsetsBehindLatest` into
`sources[].metrics` of a query's progress. PySpark does not let a Python source do this. But the progress has the
offsets at the end of the micro-batch and the latest offsets, and this module computes the same numbers from them. As in
Spark's connector, the numbers are from the moment when the micro-batch was planned.

What must stay true:
- The listener changes nothing, and ignores a progress that it does not understand, which is not one of klamm's.
- Its memory is bounded: the partitions of the last progress of each running query, and `history_rows` rows of history.
- Nothing heavy is imported: a driver keeps this module as long as its queries run.
"""

import json
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from klamm.protocol.vocabulary import TopicPartition

logger = logging.getLogger(__name__)

# How many rows of history are kept, unless the caller says otherwise.
HISTORY_ROWS = 1000
# The beginning of the description of a Python source. PySpark does not let a source choose its description.
PYTHON_SOURCE = "org.apache.spark.sql.execution.datasources.v2.python."


@dataclass(frozen=True, slots=True)
class Lag:
    """How far one source of a query was behind when a micro-batch was planned.

    `name` is the query's name, or its id if it has no name. `source` numbers the query's sources from 0.
    `offsets_behind_latest` is the number of offsets of each partition after the end of the micro-batch.
    """

    run_id: str
    name: str
    source: int
    batch_id: int
    timestamp: str
    offsets_behind_latest: Mapping[TopicPartition, int]

    @property
    def minimum(self) -> int:
        return min(self.offsets_behind_latest.values())

    @property
    def maximum(self) -> int:
        return max(self.offsets_behind_latest.values())

    @property
    def average(self) -> float:
        return self.total / len(self.offsets_behind_latest)

    @property
    def total(self) -> int:
        return sum(self.offsets_behind_latest.values())

    @property
    def metrics(self) -> dict[str, str]:
        """The metrics that Spark's own connector puts into `sources[].metrics`."""
        return {
            "minOffsetsBehindLatest": str(self.minimum),
            "maxOffsetsBehindLatest": str(self.maximum),
            "avgOffsetsBehindLatest": f"{self.average:.1f}",
        }

    def row(self) -> dict[str, Any]:
        """The numbers of the whole source, for a table or a plot."""
        return {
            "timestamp": self.timestamp,
            "name": self.name,
            "source": self.source,
            "batchId": self.batch_id,
            "minOffsetsBehindLatest": self.minimum,
            "maxOffsetsBehindLatest": self.maximum,
            "avgOffsetsBehindLatest": self.average,
            "totalOffsetsBehindLatest": self.total,
        }


def lags(progress: Mapping[str, Any]) -> list[Lag]:
    """The lag of each of klamm's sources in a progress, as `StreamingQuery.lastProgress` returns it.

    A source is left out while Spark does not know its latest offsets: when the first micro-batch after a restart
    repeats an earlier one.
    """
    found = []
    for number, source in enumerate(progress["sources"]):
        behind = _offsets_behind_latest(source)
        if behind:
            run_id, name = str(progress["runId"]), progress["name"] or str(progress["id"])
            found.append(Lag(run_id, name, number, progress["batchId"], progress["timestamp"], behind))
    return found


def _offsets_behind_latest(source: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """The lag of each partition that exists now. A partition that the position lacks is new, and is read from its
    start."""
    if not source["description"].startswith(PYTHON_SOURCE):
        return {}
    latest, end = _offsets(source["latestOffset"]), _offsets(source["endOffset"])
    return {partition: max(0, offset - end.get(partition, 0)) for partition, offset in latest.items()}


def _offsets(text: str | None) -> dict[TopicPartition, int]:
    """The offsets of a position (`read.planning.Position`) in JSON; empty if the text is not a position."""
    try:
        found = json.loads(text or "null")
        return {
            TopicPartition(topic, int(number)): offset
            for topic, numbers in found.items()
            if not topic.startswith("$")
            for number, offset in numbers.items()
            if isinstance(offset, int)
        }
    except (ValueError, AttributeError, RecursionError):
        return {}


class LagListener(StreamingQueryListener):
    """Computes the lag of every query of a session that reads klamm's format.

    - `on_lag` is called with each Lag, in the thread of Spark's listeners. Its errors are logged.
    - `history_rows` bounds `history`.

    `lag_gauges.LagGauges` shows `latest` to Prometheus.
    """

    def __init__(self, on_lag: Callable[[Lag], object] | None = None, *, history_rows: int = HISTORY_ROWS) -> None:
        self._on_lag = on_lag
        # By the id of a query's run, and the number of the source in the query.
        self._latest: dict[tuple[str, int], Lag] = {}
        self._history: deque[dict[str, Any]] = deque(maxlen=history_rows)

    @property
    def latest(self) -> list[Lag]:
        """The last known lag of each source of the running queries."""
        return list(self._latest.values())

    @property
    def history(self) -> list[dict[str, Any]]:
        """The newest rows of all queries (`Lag.row`), the oldest one first: `pandas.DataFrame(listener.history)`."""
        return list(self._history)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        for lag in lags(event.progress):
            self._latest[lag.run_id, lag.source] = lag
            self._history.append(lag.row())
            if self._on_lag is not None:
                try:
                    self._on_lag(lag)
                except Exception:
                    logger.exception("the callback of the lag of query %s failed", lag.name)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        for run in [key for key in self._latest if key[0] == str(event.runId)]:
            del self._latest[run]
