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


class Slices:
    """Counts the pieces of long work, and says after every so many that it is time to let others have the loop."""

    def __init__(self, pieces: int) -> None:
        self._pieces = self._left = pieces

    def is_over(self, pieces: int = 1) -> bool:
        """So many more are done; whether the slice is over. The next one begins then."""
        self._left -= pieces
        if self._left > 0:
            return False
        self._left = self._pieces
        return True


async def in_slices(steps: Generator[None, None, T]) -> T:
    """Takes all steps of long work, and lets others have the loop between them; what the last one returns or raises."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: T = end.value
            return value
        await asyncio.sleep(0)


class Turns:
    """Long work of one kind, in slices and one after the other.

    Side by side all of it would be done last, and what each has made so far would be in memory at a time.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def take(self, steps: Generator[None, None, T]) -> T:
        """As `in_slices`, when it is the turn of this work; what needs no second step waits for nobody."""
        try:
            next(steps)
        except StopIteration as end:
            value: T = end.value
            return value
        async with self._lock:
            await asyncio.sleep(0)
            return await in_slices(steps)
