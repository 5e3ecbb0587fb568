"""Producer ids for idempotent producers (Kafka's `ProducerIdManager`).

Ids come from ZooKeeper in blocks of 1,000, so that no two brokers ever give out the same one. A block that a broker
did not use up when it stopped is lost, as in Kafka.
"""

import asyncio
from collections.abc import Awaitable, Callable


class ProducerIds:
    """Gives out ids. `allocate_block()` takes the next block from ZooKeeper: (first, last), both inclusive."""

    def __init__(self, allocate_block: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        self._allocate_block = allocate_block
        self._allocating = asyncio.Lock()
        self._next = 0
        self._last = -1

    async def start(self) -> None:
        """Takes the first block."""
        await self._take_block()

    async def next(self) -> int:
        """An id that was never given out before. Raises the errors of `allocate_block` when a new block is needed."""
        while self._next > self._last:
            await self._take_block()
        self._next += 1
        return self._next - 1

    async def _take_block(self) -> None:
        async with self._allocating:
            if self._next > self._last:
                self._next, self._last = await self._allocate_block()
