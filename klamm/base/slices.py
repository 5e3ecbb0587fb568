"""Long work in slices, so that the loop has turns in between.

A slice ends after a number of pieces, not after some time: under the simulator's clock work takes no time, and slices
must exist there too. If some pieces need the disk and take a thousand times as long as others, a slice also ends by the
loop's clock. `Slices` counts both. Long work has one of two forms:

| the work                                  | how it yields                                                            |
|-------------------------------------------|--------------------------------------------------------------------------|
| a coroutine, which waits for other things | `async for item in each(items)`; `async for piece in slices(items)`      |
|                                           | if a whole piece is processed at once, or an item takes about a          |
|                                           | microsecond; `for_slices`, if each piece is a request to ZooKeeper       |
| a generator (`Steps`), which does not     | `if slices.spend(): yield`; `mapped` replaces a list comprehension       |

Nested loops share one `Slices`: `each(items, slices)`. A coroutine runs the steps of a generator with `in_slices`, or
in `Turns`. `begin` runs the first step at once, and `in_one_go` runs all steps.

The simulator makes all slices as small as they can be (`klamm.simulation.machine.small_slices`); the names of their
sizes end with SLICE.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

Steps = Generator[None, None, T]
"""Work that pauses every few milliseconds, so that its caller may do other work in between."""

# At 10 to 20 microseconds a piece, the most expensive slice takes about ten milliseconds.
SLICE = 500
# For pieces that take about a microsecond, such as a dictionary lookup.
CHEAP_SLICE = 10 * SLICE
# The duration after which a slice ends if it also ends by the clock.
SLICE_MS = 5


class Slices:
    """Counts the pieces of long work. A slice ends after `pieces` (`SLICE`), and with `clock_s` (the loop's clock) also
    after `SLICE_MS`."""

    __slots__ = ("_clock_s", "_end_s", "_left", "_pieces")

    def __init__(self, pieces: int | None = None, clock_s: Callable[[], float] | None = None) -> None:
        self._pieces = self._left = pieces or SLICE
        self._clock_s = clock_s
        self._end_s = None if clock_s is None else clock_s() + SLICE_MS / 1000

    def spend(self, pieces: int = 1) -> bool:
        """Takes `pieces` from the slice; returns whether the slice is used up. If so, the next slice begins."""
        self._left -= pieces
        return (self._left <= 0 or self._clock_s is not None) and self._is_used_up()

    def count(self, pieces: int) -> None:
        """Takes `pieces` from the slice. The next `spend` or item of `each` checks whether the slice is used up."""
        self._left -= pieces

    def _is_used_up(self) -> bool:
        if self._left > 0 and (self._clock_s is None or not self._is_late(self._clock_s())):
            return False
        self._left = self._pieces
        # The next slice begins only after a turn of the loop, so its first piece starts the clock.
        self._end_s = None
        return True

    def _is_late(self, now_s: float) -> bool:
        if self._end_s is None:
            self._end_s = now_s + SLICE_MS / 1000
        return now_s >= self._end_s


def slices(items: Iterable[T], size: int | None = None) -> AsyncIterator[Sequence[T]]:
    """The current items in pieces of at most `size` (`SLICE`). The loop has a turn between two pieces."""
    return _Pieces(tuple(items), size or SLICE)


def each(items: Iterable[T], slices: Slices | int | None = None) -> AsyncIterator[T]:
    """The current items one by one. The loop has a turn when a slice is used up. The items of an iterator are taken one
    by one, not in advance."""
    return _Each(
        items if isinstance(items, Iterator) else iter(tuple(items)),
        slices if isinstance(slices, Slices) else Slices(slices),
    )


class _Pieces(AsyncIterator[Sequence[T]]):
    """Not an asynchronous generator: if a loop ended early, the garbage collector would close the generator some time
    later."""

    __slots__ = ("_items", "_size", "_start")

    def __init__(self, items: Sequence[T], size: int) -> None:
        self._items = items
        self._size = size
        self._start = 0

    async def __anext__(self) -> Sequence[T]:
        start = self._start
        if start >= len(self._items):
            raise StopAsyncIteration
        if start:
            await asyncio.sleep(0)
        self._start = start + self._size
        return self._items[start : self._start]


class _Each(AsyncIterator[T]):
    """Not an asynchronous generator, for the reason of `_Pieces`."""

    __slots__ = ("_items", "_slices")

    def __init__(self, items: Iterator[T], slices: Slices) -> None:
        self._items = items
        self._slices = slices

    async def __anext__(self) -> T:
        for item in self._items:
            slices = self._slices
            if (slices._left <= 0 or slices._clock_s is not None) and slices._is_used_up():
                await asyncio.sleep(0)
            slices._left -= 1
            return item
        raise StopAsyncIteration


async def for_slices(
    items: Iterable[T], work: Callable[[Sequence[T]], Awaitable[R]], size: int | None = None
) -> list[R]:
    """Starts `work` for one slice after another without waiting for its end, so that requests to ZooKeeper are
    pipelined; returns the results in order.

    If some fail, this still waits for all of them and then raises the first exception: no work outlives the call.
    """
    tasks: list[asyncio.Future[R]] = []
    try:
        async for piece in slices(items, size):
            tasks.append(asyncio.ensure_future(work(piece)))
        for task in tasks:
            if not task.done():
                await asyncio.gather(task, return_exceptions=True)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
    failures = [failure for task in tasks if (failure := task.exception()) is not None]
    if failures:
        raise failures[0]
    return [task.result() for task in tasks]


def mapped(make: Callable[[T], R], items: Iterable[T], slices: Slices | None = None) -> Steps[list[R]]:
    """The steps of `[make(item) for item in items]`. Nested loops share `slices`."""
    slices = slices or Slices()
    made = []
    for item in items:
        made.append(make(item))
        if slices.spend():
            yield
    return made


async def in_slices(steps: Steps[T]) -> T:
    """Runs all steps of long work, with turns of the loop in between. Returns or raises what `steps` does."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: T = end.value
            return value
        await asyncio.sleep(0)


def in_one_go(steps: Generator[object, None, T]) -> T:
    """Runs all steps without a pause. Returns their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: T = end.value
            return value


def begin(steps: Steps[T]) -> T | Coroutine[Any, Any, T]:
    """Runs the first step. Returns the result if this was the only step, else the rest of the steps, to be awaited."""
    try:
        next(steps)
    except StopIteration as end:
        value: T = end.value
        return value
    return _rest(steps)


async def _rest(steps: Steps[T]) -> T:
    await asyncio.sleep(0)
    return await in_slices(steps)


class Turns:
    """Long work of one kind, in slices and one piece of work after the other.

    Side by side, all pieces of work would finish late, and all partial results would be in memory at once. A turn
    begins with `wait_for_room`, if given.
    """

    def __init__(self, wait_for_room: Callable[[], Awaitable[None]] | None = None) -> None:
        self._lock = asyncio.Lock()
        self._wait_for_room = wait_for_room

    async def take(self, steps: Steps[T]) -> T:
        """Like `in_slices`, when it is this work's turn. Work with a single step does not wait for its turn."""
        try:
            next(steps)
        except StopIteration as end:
            value: T = end.value
            return value
        async with self._lock:
            await asyncio.sleep(0)
            if self._wait_for_room is not None:
                await self._wait_for_room()
            return await in_slices(steps)
