"""The queue of the controller's events and the one task that processes them (Kafka's `ControllerEventManager`).

What must stay true:
- Events are processed one at a time, in the order in which they were put.
- Every event that was put is either processed or preempted, never both: an event whose processing was cut short by
  `close` is preempted too, and its processing never goes on.
- A fault of the program in one event ends the processing of all: the process has to stop.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from klamm.controller.events import ControllerEvent, ControllerState
from klamm.tasks import OnFailure, start_task


class ControllerEventManager:
    """`process(event)` deals with everything that can go wrong in operation; what it raises reaches `on_failure`."""

    def __init__(self, process: Callable[[ControllerEvent], Awaitable[None]], on_failure: OnFailure) -> None:
        self._process = process
        self._on_failure = on_failure
        self._queue: deque[ControllerEvent] = deque()
        self._wake = asyncio.Event()
        self._current: ControllerEvent | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def state(self) -> ControllerState:
        """That of the event in progress."""
        if self._is_closed:
            return ControllerState.CONTROLLER_SHUTDOWN
        return ControllerState.IDLE if self._current is None else self._current.state

    @property
    def queue_size(self) -> int:
        """How many events wait."""
        return len(self._queue)

    def start(self) -> None:
        self._task = start_task(self._run(), self._on_failure)

    def put(self, event: ControllerEvent) -> None:
        """Queues an event; once closed, preempts it."""
        if self._is_closed:
            event.preempt()
            return
        self._queue.append(event)
        self._wake.set()

    def clear_and_put(self, event: ControllerEvent) -> None:
        """Preempts everything that waits, in order, and queues `event`. The event in progress goes on."""
        self._preempt_waiting()
        self.put(event)

    async def close(self) -> None:
        """Cuts the event in progress short and preempts it and all that wait. Idempotent.

        Nothing is lost by that: the next controller reads everything anew, as it does when a controller dies. To wait
        for the event would be to wait for ZooKeeper, which may be away.
        """
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._preempt_waiting()

    def _preempt_waiting(self) -> None:
        while self._queue:
            self._queue.popleft().preempt()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                self._current = self._queue.popleft()
                is_done = False
                try:
                    await self._process(self._current)
                    is_done = True
                finally:
                    if not is_done:
                        self._current.preempt()
                    self._current = None
