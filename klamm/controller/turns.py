"""Handles ZooKeeper's responses to many slices one slice at a time."""

import asyncio
from collections import deque
from typing import TypeVar

from klamm.base.slices import Steps

T = TypeVar("T")


class LoopTurns:
    """Allows one piece of work in each turn of the loop, however many are ready.

    ZooKeeper answers many slices at once, and without this their tasks would all continue in the same turn.
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

    async def take(self, steps: Steps[T]) -> T:
        """Takes each of the steps in a turn, and returns their result."""
        while True:
            await self.wait()
            try:
                next(steps)
            except StopIteration as end:
                value: T = end.value
                return value

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._waiting[0].done():  # Or else it was cancelled.
            self._waiting[0].set_result(None)
        self._waiting.popleft()
        if self._waiting:
            loop.call_soon(self._next, loop)
