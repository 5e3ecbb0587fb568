"""Work on many partitions, done in slices, so that the loop serves others in between.

The slices are counted, not timed: under the simulator's clock work takes no time, and slices must exist there too.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

# At 10 to 20 microseconds each, the most expensive work takes about ten milliseconds.
SLICE = 500
# Of what takes about a microsecond: a look at what is known.
CHEAP_SLICE = 10 * SLICE


class Turns:
    """One piece of work in each turn of the loop, however many are ready.

    What was asked of ZooKeeper slice by slice is answered for many slices at once: their tasks would go on in the same
    turn.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Returns when it is the caller's turn, in the order of the calls."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._next, loop)
        await turn

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._waiting[0].done():  # Or else it was cancelled.
            self._waiting[0].set_result(None)
        self._waiting.popleft()
        if self._waiting:
            loop.call_soon(self._next, loop)


async def slices(items: Sequence[T], size: int | None = None) -> AsyncIterator[Sequence[T]]:
    """The items in pieces of at most `size` (`SLICE`); the loop has a turn after each but the last."""
    size = size or SLICE
    for start in range(0, len(items), size):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + size]


async def each(items: Iterable[T]) -> AsyncIterator[T]:
    """The items as they are now, one by one; the loop has a turn after every `SLICE` of them."""
    async for piece in slices(tuple(items)):
        for item in piece:
            yield item


async def for_slices(
    items: Sequence[T], work: Callable[[Sequence[T]], Awaitable[R]], size: int | None = None
) -> list[R]:
    """Starts `work` for one slice after another without waiting for its end, so that what they ask of ZooKeeper is
    pipelined; returns the results in order.

    When some fail, all are waited for, and the first one's exception is raised: nothing goes on behind the caller.
    """
    tasks: list[asyncio.Future[R]] = []
    try:
        async for piece in slices(items, size):
            tasks.append(asyncio.ensure_future(work(piece)))
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
    done: list[R] = []
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done
