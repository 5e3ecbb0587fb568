"""Long work of the server in steps, one piece after the other, and which requests may run between two steps.

| open to    | while                                                                             |
|------------|-----------------------------------------------------------------------------------|
| EVERYTHING | a request is decoded                                                              |
| READS      | a write is checked, which no other write may overtake; a reply is made, before    |
|            | which no later event may leave                                                    |
| NOTHING    | a write is half applied, or not all of its watches have fired                     |

What must stay true:
- The last step taken decides what is open; after the last step of a piece of work, everything is.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from enum import IntEnum
from typing import TypeVar

from klamm.base.slices import Steps

T = TypeVar("T")


class OpenTo(IntEnum):
    NOTHING = 0
    READS = 1
    EVERYTHING = 2


LongSteps = Generator[OpenTo, None, T]
"""Steps that say which requests may run before the next step."""


def while_open_to(open_to: OpenTo, steps: Steps[T]) -> LongSteps[T]:
    """The steps, between which the server is open to these requests."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: T = end.value
            return value
        yield open_to


class LongWork:
    """Pieces of work, one after the other. `on_open` is called when more is open than before, `on_failure` when a step
    raises."""

    def __init__(self, on_open: Callable[[], None], on_failure: Callable[[Exception], None]) -> None:
        self.open_to = OpenTo.EVERYTHING
        self._on_open = on_open
        self._on_failure = on_failure
        # The first is in progress.
        self._queue: deque[LongSteps[None]] = deque()
        self._rest: asyncio.Task[None] | None = None

    def begin(self, steps: LongSteps[None]) -> None:
        """Takes the first step now, if nothing else is in progress; the others in later turns of the loop."""
        self._queue.append(steps)
        if len(self._queue) == 1:
            self._take_step()
            if self._queue and (self._rest is None or self._rest.done()):
                self._rest = asyncio.ensure_future(self._take_steps())

    async def finish(self) -> None:
        """Returns when no work is left."""
        if self._rest is not None:
            await self._rest

    def clear(self) -> None:
        """Drops all work."""
        self._queue.clear()

    async def _take_steps(self) -> None:
        while self._queue:
            await asyncio.sleep(0)
            self._take_step()

    def _take_step(self) -> None:
        if not self._queue:
            return
        before = self.open_to
        try:
            self.open_to = next(self._queue[0])
        except StopIteration:
            self._end_first()
        except Exception as error:
            self._end_first()
            self._on_failure(error)
        # Waiting requests come before the next piece of work.
        if self.open_to > before:
            self._on_open()

    def _end_first(self) -> None:
        self.open_to = OpenTo.EVERYTHING
        if self._queue:  # else the server has failed in this step, and has dropped all work
            self._queue.popleft()
