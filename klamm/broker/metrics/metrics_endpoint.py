"""A broker's metrics and status over HTTP, on the port klamm.metrics.port.

| path                       | what                                                                                  |
|----------------------------|---------------------------------------------------------------------------------------|
| /metrics                   | metrics in Prometheus' text format                                                    |
| /controller                | what the controller is doing, as JSON; of other brokers only who the controller is    |
| /controller?brief          | the same without lists of partitions out of order, and with the counts of both state  |
|                            | machines: cheap enough to be asked every second                                       |
| /broker                    | a few numbers of this broker as JSON (broker_status.py), for the same kind of reader  |
| /controller/events         | the newest records of the controller (state_change_log.py), one JSON object a line    |
| /controller/events?follow  | the same, and all that follow, until the broker is no longer the controller;          |
|                            | a line of the kind idle before what follows, and then every few seconds, so that the  |
|                            | reader can tell an idle broker from a dead one                                        |

What must stay true: requests only read, and large answers are made in slices. Concurrent requests for the metrics share
one rendering at a time. Followers of the records do not keep scrapers out.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Generic, TypeVar

from klamm.base import json_bytes
from klamm.base.environment import Environment
from klamm.base.metrics import Histogram, MetricName, Metrics
from klamm.base.slices import in_slices, slices
from klamm.base.tasks import OnFailure
from klamm.broker.metrics.broker_status import LOOP_LAG, LOOP_LONGEST_LAG, broker_status
from klamm.controller.controller import KafkaController
from klamm.controller.controller_status import controller_status
from klamm.controller.state_change_log import NumberedRecord
from klamm.net.host_names import OwnNames
from klamm.net.http import JSON, Answer, HttpServer, Request

T = TypeVar("T")

JSON_LINES = "application/x-ndjson"

# The longest silence of a stream of records.
IDLE_S = 3.0
IDLE = b'{"kind":"idle"}\n'

LAG_CHECK_S = 0.1
# The length of the windows of Kafka's idle percentages.
IDLE_WINDOW_S = 30

# Some hundred kilobytes, which are copied and sent in less than a millisecond.
PIECES_PER_SLICE = 50


class MetricsEndpoint:
    """See the module. Measures and serves from `start` on; `bind` replaces port 0 by the system's choice.

    Shows `metrics` and those that are measured here. The port answers to the current names in `host_names`, and to the
    machine's own names.
    """

    def __init__(
        self,
        host: str,
        port: int,
        broker_id: int,
        controller: KafkaController,
        metrics: Metrics,
        environment: Environment,
        host_names: Callable[[], Iterable[str]],
        fail: OnFailure,
    ) -> None:
        self._broker_id = broker_id
        self._controller = controller
        self._environment = environment
        self.metrics = metrics
        self._pauses = PauseWatch(environment)
        self._pauses.register(self.metrics)
        self._shared = Shared[list[bytes]]()
        # The name in exporters for any process.
        name = MetricName("process", "resident", "memory_bytes")
        self.metrics.gauge(name, "The memory of the broker's process.", lambda: environment.memory_bytes)
        routes = {
            "/metrics": self._show_metrics,
            "/broker": self._show_broker,
            "/controller": self._show_controller,
            "/controller/events": self._show_events,
        }
        names = OwnNames(host, host_names, setting="klamm.metrics.allowed.hosts")
        machine_names = partial(environment.run_foreign, environment.host_names)
        self._server = HttpServer(host, port, routes, fail, names=names, machine_names=machine_names)

    @property
    def port(self) -> int:
        return self._server.port

    async def bind(self) -> None:
        """Raises OSError when the address cannot be used."""
        await self._server.bind()

    async def start(self) -> None:
        await self._server.start()
        self._pauses.start()

    def stop(self) -> None:
        """Idempotent."""
        self._pauses.stop()
        self._server.stop()

    async def _show_metrics(self, _request: Request) -> Answer:
        # Brokers without a scraper never import prometheus_client, and the import never holds the loop.
        await self._environment.run_blocking(_import_prometheus)
        from klamm.broker.metrics.prometheus_text import CONTENT_TYPE, render

        pieces = await self._shared.make(lambda: in_slices(render(self.metrics)))
        # With its length, so that a scraper recognizes a truncated answer.
        length = {"Content-Length": str(sum(map(len, pieces)))}
        return Answer(200, _joined(pieces), CONTENT_TYPE, length)

    async def _show_broker(self, _request: Request) -> Answer:
        status = await in_slices(broker_status(self._broker_id, self.metrics, self._environment))
        return Answer(200, json_bytes.encode(status), JSON)

    async def _show_controller(self, request: Request) -> Answer:
        status = await controller_status(self._controller, brief="brief" in request.parameters)
        return Answer(200, json_bytes.encode(status), JSON)

    async def _show_events(self, request: Request) -> Answer:
        if "follow" in request.parameters:
            return Answer(200, self._follow(), JSON_LINES, is_endless=True)
        return Answer(200, self._newest(), JSON_LINES)

    async def _newest(self) -> AsyncGenerator[bytes, None]:
        async for piece in slices(self._controller.state_changes.records()):
            yield self._lines(piece)

    async def _follow(self) -> AsyncGenerator[bytes, None]:
        records, follower = self._controller.state_changes.follow()
        try:
            async for piece in slices(records):
                yield self._lines(piece)
            yield IDLE
            while True:
                try:
                    async with asyncio.timeout(IDLE_S):
                        piece = await follower.read()
                except TimeoutError:
                    yield IDLE
                    continue
                if not piece:
                    return
                yield self._lines(piece)
                if follower.missed:
                    yield json_bytes.encode({"kind": "missed", "records": follower.missed}) + b"\n"
                    follower.missed = 0
        finally:
            self._controller.state_changes.unfollow(follower)

    def _lines(self, records: Iterable[NumberedRecord]) -> bytes:
        return b"".join(json_bytes.encode(record.described(self._broker_id)) + b"\n" for record in records)


class Shared(Generic[T]):
    """Makes one value at a time for many callers. Calls that come meanwhile share the next value, which is not kept
    longer."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._made: T | None = None
        # The number of the newest request, of the newest that the value was made for, and how many wait.
        self._asked = self._served = self._waiting = 0

    async def make(self, make: Callable[[], Awaitable[T]]) -> T:
        self._asked += 1
        number = self._asked
        self._waiting += 1
        try:
            async with self._turn:
                made = self._made
                if made is None or self._served < number:
                    served = self._asked
                    self._made = made = await make()
                    self._served = served
                return made
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._made = None


async def _joined(pieces: Sequence[bytes]) -> AsyncGenerator[bytes, None]:
    async for some in slices(pieces, PIECES_PER_SLICE):
        yield b"".join(some)


def _import_prometheus() -> None:
    import klamm.broker.metrics.prometheus_text  # noqa: F401


class PauseWatch:
    """Measures how late the loop runs, its idle share of the last `IDLE_WINDOW_S`, and the duration of garbage
    collections."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._lag_ms = Histogram()
        self._gc_pause_ms = Histogram()
        self._timer: asyncio.TimerHandle | None = None
        # The clock and the processor time of the loop's thread, at each check.
        self._readings: deque[tuple[float, float]] = deque(maxlen=round(IDLE_WINDOW_S / LAG_CHECK_S))

    def register(self, metrics: Metrics) -> None:
        lag, pause = self._lag_ms, self._gc_pause_ms
        metrics.histogram(LOOP_LAG, "How late timers of the loop are.", lag)
        metrics.gauge(
            LOOP_LONGEST_LAG,
            "The longest since the start.",
            lambda: lag.maximum if lag.count else 0,
        )
        metrics.gauge(
            MetricName("klamm", "EventLoop", "Tasks"), "Tasks that have not ended.", lambda: len(asyncio.all_tasks())
        )
        idle = "The share of the last seconds in which the loop has used no processor."
        metrics.gauge(
            MetricName("kafka.network", "SocketServer", "NetworkProcessorAvgIdlePercent"), idle, self._idle_share
        )
        metrics.gauges(
            MetricName("kafka.network", "Processor", "IdlePercent"),
            idle,
            "networkProcessor",
            lambda: {"0": self._idle_share()},
        )
        metrics.histogram(MetricName("klamm", "GarbageCollector", "PauseMs"), "How long collections took.", pause)
        metrics.gauge(
            MetricName("klamm", "GarbageCollector", "LongestPauseMs"),
            "The longest since the start.",
            lambda: pause.maximum if pause.count else 0,
        )

    def _idle_share(self) -> float:
        if len(self._readings) < 2:
            return 1.0
        (began_s, began_work_s), (ended_s, ended_work_s) = self._readings[0], self._readings[-1]
        return min(max(1 - (ended_work_s - began_work_s) / max(ended_s - began_s, LAG_CHECK_S), 0.0), 1.0)

    def start(self) -> None:
        self._environment.watch_gc_pauses(self._gc_pause_ms.update)
        self._expect_next()

    def stop(self) -> None:
        self._environment.watch_gc_pauses(None)
        if self._timer is not None:
            self._timer.cancel()

    def _expect_next(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + LAG_CHECK_S
        self._timer = loop.call_at(due, self._look, due)

    def _look(self, due: float) -> None:
        # A timer may be early by a rounding error.
        self._readings.append((self._environment.work_clock_s(), self._environment.work_time_s()))
        self._lag_ms.update(max(round((asyncio.get_running_loop().time() - due) * 1000, 3), 0.0))
        self._expect_next()
