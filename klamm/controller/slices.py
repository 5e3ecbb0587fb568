"""Work on many partitions, done in slices, so that the loop serves others in between.

The slices are counted, not timed: under the simulator's clock work takes no time, and slices must exist there too.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

# At 10 to 20 microseconds each, the most expensive work takes about ten milliseconds.
SLICE = 500


async def slices(items: Sequence[T]) -> AsyncIterator[Sequence[T]]:
    """The items in pieces of at most `SLICE`; the loop has a turn after each but the last."""
    for start in range(0, len(items), SLICE):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + SLICE]


async def for_slices(items: Sequence[T], work: Callable[[Sequence[T]], Awaitable[R]]) -> list[R]:
    """Starts `work` for one slice after another without waiting for its end, so that what they ask of ZooKeeper is
    pipelined; returns the results in order.

    When some fail, all are waited for, and the first one's exception is raised: nothing goes on behind the caller.
    """
    tasks: list[asyncio.Future[R]] = []
    try:
        async for piece in slices(items):
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
