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


# Others wait so long at most for work that goes by the clock.
SLICE_MS = 5


class Slices:
    """Counts the pieces of long work, and says after every so many that it is time to let others have the loop.

    Pieces of which one may take a thousand times as long as another, as those that may need the disk, also go by the
    `clock_s` of the loop. Under virtual time nothing takes long, and only their number counts.
    """

    def __init__(self, pieces: int, clock_s: Callable[[], float] | None = None) -> None:
        self._pieces = self._left = pieces
        self._clock_s = clock_s
        self._end_s = None if clock_s is None else clock_s() + SLICE_MS / 1000

    def is_over(self, pieces: int = 1) -> bool:
        """So many more are done; whether the slice is over. The next one begins then."""
        self._left -= pieces
        if self._left > 0 and not self._is_late():
            return False
        self._left = self._pieces
        # The next slice begins when others have had the loop, so its first piece says when.
        self._end_s = None
        return True

    def _is_late(self) -> bool:
        if self._clock_s is None:
            return False
        now_s = self._clock_s()
        if self._end_s is None:
            self._end_s = now_s + SLICE_MS / 1000
        return now_s >= self._end_s


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
