"""The log manager's background work: tasks and timers that end with the manager.

What must stay true: a stop cancels timers but no task, because a task's work off the loop would continue and collide
with the shutdown. After a stop has begun, no new work begins.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from klamm.base.slices import Steps, begin
from klamm.base.tasks import OnFailure, start_task

_T = TypeVar("_T")


class Background:
    """`on_failure` is called for bugs."""

    def __init__(self, on_failure: OnFailure) -> None:
        self._on_failure = on_failure
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._timers: dict[asyncio.TimerHandle, None] = {}
        self.is_stopping = False

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self.is_stopping:
            work.close()
            return
        self._keep(start_task(work, self._on_failure))

    def begin(self, steps: Steps[None]) -> None:
        """Takes the first step at once, and the others later, even while the broker stops."""
        rest = begin(steps)
        if rest is not None:
            self._keep(start_task(rest, self._on_failure))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def after(self, delay_ms: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Does `work` after `delay_ms`, unless the broker stops before."""
        if self.is_stopping:
            return

        def fire() -> None:
            del self._timers[timer]
            self.spawn(work())

        timer = asyncio.get_running_loop().call_later(delay_ms / 1000, fire)
        self._timers[timer] = None

    def repeat(self, first_delay_ms: int, interval_ms: int, action: Callable[[], Awaitable[None]]) -> None:
        """Does `action` after `first_delay_ms`, and again `interval_ms` after each end."""

        async def run() -> None:
            await action()
            self.after(interval_ms, run)

        self.after(first_delay_ms, run)

    def in_bursts(self, pending: dict[_T, bool], key: _T, work: Callable[[_T], Coroutine[Any, Any, None]]) -> None:
        """Does the work for `key`. A call while the work is running repeats it once at its end."""
        is_pending = key in pending
        pending[key] = True
        if not is_pending:
            self.spawn(_while_pending(pending, key, work))

    def begin_stop(self) -> None:
        """Lets no new work begin. `stopped` should follow."""
        self.is_stopping = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    async def stopped(self) -> None:
        """Returns when all tasks have ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _while_pending(pending: dict[_T, bool], key: _T, work: Callable[[_T], Coroutine[Any, Any, None]]) -> None:
    while pending[key]:
        pending[key] = False
        await work(key)
    del pending[key]
