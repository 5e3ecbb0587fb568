"""Checks that each event of a controller ends exactly once.

What must stay true: an event that was queued is either processed or preempted, and never vanishes, whatever happens to
the controller. When it has ended, its sender has an answer.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from klamm.base.tasks import OnFailure
from klamm.controller.event_manager import ControllerEventManager
from klamm.controller.events import ControllerEvent, ControllerState, Question
from klamm.simulation.machine.process import SimulationFailure


class _WitnessedQueue(deque[object]):
    """A queue that reports each item that is put into it."""

    def __init__(self, on_put: Callable[[object], None]) -> None:
        super().__init__()
        self._on_put = on_put

    def insert(self, index: int, item: object) -> None:
        self._on_put(item)
        super().insert(index, item)


class EventWitness:
    """Checks one controller's events. `on_violation` gets the SimulationFailure."""

    def __init__(self, events: ControllerEventManager, broker_id: int, on_violation: OnFailure) -> None:
        self._events = events
        self._broker_id = broker_id
        self._on_violation = on_violation
        # The events that have not ended, by their identity: several may be equal.
        self._open: dict[int, ControllerEvent] = {}
        self._process, self._preempt = events._process, events._preempt
        events._queue = _WitnessedQueue(self._was_put)  # type: ignore[assignment]  # the items are the manager's own
        events._process = self._processed
        events._preempt = self._preempted  # type: ignore[method-assign]

    def look(self) -> None:
        """To be called between two steps of the broker."""
        waiting = {id(event) for event, _ in self._events.waiting(self._events.queue_size)}
        current = self._events.current
        if current is not None:
            waiting.add(id(current[0]))
        for number, event in list(self._open.items()):
            if number not in waiting:
                del self._open[number]
                self._broken(event, "was queued and has vanished, neither processed nor preempted")

    def _was_put(self, item: object) -> None:
        event: ControllerEvent = item.event  # type: ignore[attr-defined]
        self._open[id(event)] = event

    async def _processed(self, event: ControllerEvent) -> None:
        try:
            await self._process(event)
        except BaseException:
            self._ended(event)
            # Right after this, the manager answers the event's sender.
            asyncio.get_running_loop().call_soon(self._check_answer, event)
            raise
        self._ended(event)
        self._check_answer(event)

    def _preempted(self, event: ControllerEvent, queue_time_ms: float) -> None:
        self._preempt(event, queue_time_ms)
        # A closed manager preempts new events instead of queueing them.
        is_closed = self._events.state is ControllerState.CONTROLLER_SHUTDOWN
        if not is_closed or id(event) in self._open:
            self._ended(event)
        self._check_answer(event)

    def _ended(self, event: ControllerEvent) -> None:
        if self._open.pop(id(event), None) is None:
            self._broken(event, "has ended twice, or was never queued")

    def _check_answer(self, event: ControllerEvent) -> None:
        if isinstance(event, Question) and not event.answer.done():
            self._broken(event, "has ended, and its sender has no answer")

    def _broken(self, event: ControllerEvent, what: str) -> None:
        self._on_violation(SimulationFailure(f"controller {self._broker_id}: the event {type(event).__name__} {what}"))
