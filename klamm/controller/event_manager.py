"""The queue of the controller's events and the one task that processes them (Kafka's `ControllerEventManager`).

What must stay true:
- Events are processed one at a time, in the order in which they were put; but a change of brokers waits only for the
  event in progress. A write to a partition's state that comes before it would hide from the next controller that a
  broker has bounced (bounces.py). (Kafka processes it in its turn.)
- Every queued event is either processed or preempted, never both: an event that `close` interrupts is preempted too,
  and its processing never continues.
- A fault of the program in one event ends the processing of all events: the process has to stop.

Metrics under Kafka's names: how long events wait (`EventQueueTimeMs`) and how long they take in each state
(`<State>RateAndTimeMs`).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import NamedTuple

from klamm.base.metrics import Histogram
from klamm.base.tasks import OnFailure, start_task
from klamm.controller.events import ControllerEvent, ControllerState
from klamm.controller.state_change_log import StateChangeLog

# The states whose time is not measured.
_NOT_TIMED = (ControllerState.IDLE, ControllerState.UPDATE_METADATA_RESPONSE_RECEIVED)

# Without being the controller, and after losing its session, a broker must not act on changes of brokers.
_FIRST = (ControllerState.CONTROLLER_CHANGE, ControllerState.BROKER_CHANGE)

# After this time without events the waiting times of the last events are forgotten (eventQueueTimeTimeoutMs).
QUEUE_TIME_TIMEOUT_MS = 300_000


class _QueuedEvent(NamedTuple):
    event: ControllerEvent
    put_at: float  # By the loop's clock, like all times here.


class ControllerEventManager:
    """`process(event)` handles all operating errors; any exception from it goes to `on_failure`.

    `log` gets a record of each event, with the `controller_epoch()` of that moment.
    """

    def __init__(
        self,
        process: Callable[[ControllerEvent], Awaitable[None]],
        on_failure: OnFailure,
        log: StateChangeLog,
        controller_epoch: Callable[[], int],
    ) -> None:
        self._process = process
        self._on_failure = on_failure
        self._log = log
        self._controller_epoch = controller_epoch
        self._queue_time_ms = Histogram()
        self.processing_time_ms = {state: Histogram() for state in ControllerState if state not in _NOT_TIMED}
        self._began_at = 0.0
        self._queue: deque[_QueuedEvent] = deque()
        self._wake = asyncio.Event()
        self._current: ControllerEvent | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def state(self) -> ControllerState:
        """The state of the event in progress."""
        if self._is_closed:
            return ControllerState.CONTROLLER_SHUTDOWN
        return ControllerState.IDLE if self._current is None else self._current.state

    @property
    def queue_size(self) -> int:
        """The number of waiting events."""
        return len(self._queue)

    def waiting(self, limit: int) -> list[tuple[ControllerEvent, float]]:
        """The first `limit` waiting events, and how long each has waited (ms)."""
        return [(queued.event, _ms_since(queued.put_at)) for queued in islice(self._queue, limit)]

    @property
    def oldest_waits_ms(self) -> float:
        """How long the event that has waited longest has waited; 0 when none waits."""
        in_turn = islice(self._queue, self._first_in_turn(), None)
        return max((_ms_since(queued.put_at) for queued in (*islice(self._queue, 1), *islice(in_turn, 1))), default=0.0)

    @property
    def current(self) -> tuple[ControllerEvent, float] | None:
        """The event in progress, and how long it has taken so far (ms)."""
        return None if self._current is None else (self._current, _ms_since(self._began_at))

    @property
    def queue_time_ms(self) -> Histogram:
        """How long events have waited."""
        if _ms_since(self._began_at) > QUEUE_TIME_TIMEOUT_MS:
            self._queue_time_ms.forget()
        return self._queue_time_ms

    def start(self) -> None:
        self._task = start_task(self._run(), self._on_failure)

    def put(self, event: ControllerEvent) -> None:
        """Queues an event; once closed, preempts it."""
        if self._is_closed:
            self._preempt(event, 0.0)
            return
        position = self._first_in_turn() if event.state is ControllerState.BROKER_CHANGE else len(self._queue)
        self._queue.insert(position, _QueuedEvent(event, asyncio.get_running_loop().time()))
        self._wake.set()

    def clear_and_put(self, event: ControllerEvent) -> None:
        """Preempts all waiting events, in order, and queues `event`. The event in progress continues."""
        self._preempt_waiting()
        self.put(event)

    def _first_in_turn(self) -> int:
        """Where the queue has its first event that a change of brokers need not wait for."""
        for index, queued in enumerate(self._queue):
            if queued.event.state not in _FIRST:
                return index
        return len(self._queue)

    async def close(self) -> None:
        """Interrupts the event in progress, and preempts it and all waiting events. Idempotent.

        No work is lost: the next controller reads everything again, as after a controller's death. Waiting for the
        event would mean waiting for ZooKeeper, which may not answer.
        """
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._preempt_waiting()

    def _preempt_waiting(self) -> None:
        while self._queue:
            event, put_at = self._queue.popleft()
            self._preempt(event, _ms_since(put_at))

    def _preempt(self, event: ControllerEvent, queue_time_ms: float) -> None:
        event.preempt()
        self._log.event_preempted(self._controller_epoch(), type(event).__name__, event.state.label, queue_time_ms)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                event, put_at = self._queue.popleft()
                self._current = event
                is_done = False
                epoch = self._controller_epoch()
                queue_time_ms = self._begin(put_at)
                try:
                    await self._process(event)
                    is_done = True
                finally:
                    if not is_done:
                        event.preempt()
                        self._log.event_turns_out("cut short")
                    self._current = None
                    # After a resignation there is no epoch.
                    self._end(event, self._controller_epoch() or epoch, queue_time_ms)
                # The next event may be hours away, and this one may hold a response about all partitions.
                del event

    def _begin(self, put_at: float) -> float:
        assert self._current is not None
        queue_time_ms = _ms_since(put_at)
        self.queue_time_ms.update(queue_time_ms)
        self._began_at = asyncio.get_running_loop().time()
        self._log.event_begins(type(self._current).__name__)
        return queue_time_ms

    def _end(self, event: ControllerEvent, epoch: int, queue_time_ms: float) -> None:
        processing_time_ms = _ms_since(self._began_at)
        timer = self.processing_time_ms.get(event.state)
        if timer is not None:
            timer.update(processing_time_ms)
        self._log.event_ends(epoch, event.state.label, queue_time_ms, processing_time_ms)


def _ms_since(moment: float) -> float:
    return round((asyncio.get_running_loop().time() - moment) * 1000, 3)
