"""A request on a server, from its frame to its response.

What must stay true: an exchange holds the memory of its frame until `free`. Its measurements get its times once, or a
`forgo`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from klamm.net.server.request_memory import Part
from klamm.net.stopwatch import Stopwatch

Buffers = Sequence[bytes | bytearray | memoryview]
T = TypeVar("T")


# How many numbers `Measurements` get for a request that never waited, and how many such requests they take together.
NUMBERS_AT_ONCE = 3
MOST_AT_ONCE = 256


class InvalidRequest(Exception):
    """The frame is not a request that this server can answer: the connection closes and the reason is logged."""


@dataclass(slots=True)  # A frozen dataclass takes three times as long to make.
class Response:
    """The answer to one frame: the buffers to send (None: nothing is sent) and how long to mute the client."""

    buffers: Buffers | None
    throttle_time_ms: int = 0


@dataclass(slots=True)
class AnswerOnly(Generic[T]):
    """Work that only produces an answer, such as reading or waiting: it ends when the client hangs up."""

    answer: Callable[[], Coroutine[Any, Any, "T | AnswerOnly[T]"]]


class Measurements(list[Any]):
    """Takes the times of requests of one kind. This class forgets them; its subclasses count.

    For a request that never waited, the list gets `NUMBERS_AT_ONCE` numbers: the size, and the readings of `clock_s`
    when the request arrived and when its response was ready. `take` is called when the list has `MOST_AT_ONCE`
    requests. `add` is called for other requests.
    """

    __slots__ = ("clock_s",)

    def __init__(self, clock_s: Callable[[], float]) -> None:
        super().__init__()
        self.clock_s = clock_s

    def take(self) -> None:
        """Empties the list."""
        self.clear()

    def add(self, exchange: "Exchange", left_s: float, sent_s: float) -> None:
        """The exchange is over: its response left at `left_s`, and the socket had taken it at `sent_s` (readings of
        `clock_s`)."""

    def forgo(self) -> None:
        """A request will never be added: its client has gone."""


Answer = Response | AnswerOnly[Response]


class Exchange(Stopwatch):
    """A request that has started and whose response has not left yet; the stopwatch of its work."""

    __slots__ = (
        "arrived_s",
        "at_once",
        "client_id",
        "holds",
        "is_abandoned",
        "is_answer_only",
        "late_s",
        "measurements",
        "memory",
        "pipelined",
        "ready_s",
        "response",
        "size_bytes",
        "task",
    )

    def __init__(self, size_bytes: int, began_s: float, memory: Part, pipelined: bool) -> None:
        # Does not call `super().__init__`, which costs as much again. All readings are of the server's `work_clock_s`.
        self.began_s = began_s
        self.size_bytes = size_bytes
        # The list for the request's numbers, set by `dispatch`; None once the request or its response had to wait.
        self.at_once: Measurements | None = UNMEASURED
        # For a request that had to wait: the measurements to tell when the response has been sent, when the request
        # arrived, how much later it started, and when its response was ready.
        self.measurements: Measurements
        self.arrived_s: float
        self.late_s: float
        self.ready_s: float
        # Set once `dispatch` has read it.
        self.client_id: str | None
        # The budget in which the request's bytes count until `free`.
        self.memory: Part | None = memory
        self.pipelined = pipelined
        # How many holds keep later requests from starting (`hold_followers`).
        self.holds = 0
        self.response: Response | None = None
        # The task that makes the answer, unless the answer was ready at once. Set together with the task:
        self.task: asyncio.Task[None] | None = None
        # Whether that task no longer changes any state.
        self.is_answer_only: bool
        # Whether the client has disconnected while the task continues.
        self.is_abandoned: bool

    def has_waited(self) -> None:
        """Says that the request, or its response, had to wait. Idempotent."""
        if self.at_once is not None:
            assert self.began_s is not None
            self.measurements, self.at_once = self.at_once, None
            self._clock_s = self.measurements.clock_s
            self.arrived_s, self.late_s = self.began_s, 0.0

    def is_measured_by(self, measurements: Measurements) -> None:
        """Replaces the measurements of the request, whether it has waited or not."""
        if self.at_once is None:
            self.measurements = measurements
        else:
            self.at_once = measurements

    def started_late(self, arrived_s: float) -> None:
        """The request has waited for earlier requests since `arrived_s`."""
        self.has_waited()
        self.arrived_s, self.late_s = arrived_s, self.arrived_s - arrived_s

    def waits_for_others(self, response: "Response", now_s: float) -> None:
        """The response is ready, but the responses to earlier requests are not."""
        self.response, self.ready_s = response, now_s
        self.has_waited()

    def forgo(self) -> None:
        """The response will never leave."""
        self.has_waited()
        self.measurements.forgo()

    def free(self) -> None:
        """The request's bytes are no longer needed."""
        if self.memory is not None:
            self.memory.release(self.size_bytes)
            self.memory = None


# The default, for requests for which `dispatch` sets no measurements.
UNMEASURED = Measurements(lambda: 0.0)
