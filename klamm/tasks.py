"""Background tasks whose faults are heard; long work that leaves the loop to others.

What must stay true: a task that nobody awaits is started here, so that an exception in it is never just logged by the
loop: it is a fault of the program and reaches whoever can stop the process.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")

OnFailure = Callable[[BaseException], None]


def start_task(work: Coroutine[Any, Any, None], on_failure: OnFailure) -> "asyncio.Task[None]":
    """Runs `work` beside its caller; `on_failure` hears of its exception, but not of its cancellation."""

    def ended(task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            on_failure(error)

    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(ended)
    return task


async def in_slices(steps: Generator[None, None, T]) -> T:
    """Takes all steps of long work, and lets others have the loop between them; what the last one returns or raises."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: T = end.value
            return value
        await asyncio.sleep(0)
