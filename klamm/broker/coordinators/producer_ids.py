"""Producer ids for idempotent and transactional producers (Kafka's `ProducerIdManager`).

Ids come from ZooKeeper in blocks of 1,000, so that no two brokers ever give out the same one. A block that a broker
did not use up when it stopped is lost, as in Kafka.
"""

import asyncio
from collections.abc import Awaitable, Callable

from klamm.broker.request_errors import as_kafka_error
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.znodes.fields import ZnodeError
from klamm.zookeeper.keeper_exceptions import ZooKeeperError


class ProducerIds:
    """Gives out ids. `allocate_block()` takes the next block from ZooKeeper: (first, last), both inclusive."""

    def __init__(self, allocate_block: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        self._allocate_block = allocate_block
        self._allocating = asyncio.Lock()
        self._next = 0
        self._last = -1

    async def start(self) -> None:
        """Takes the first block. Raises the errors of `allocate_block`."""
        await self._take_block()

    async def next(self) -> int:
        """An id that was never given out before.

        Raises KafkaError when a new block is needed and ZooKeeper does not provide it. Every client retries after
        COORDINATOR_LOAD_IN_PROGRESS; most other codes end Java's producer.
        """
        while self._next > self._last:
            try:
                await self._take_block()
            except ZooKeeperError as error:
                raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"ZooKeeper: {error}") from error
            except ZnodeError as error:
                raise as_kafka_error(error) from error
        self._next += 1
        return self._next - 1

    async def _take_block(self) -> None:
        async with self._allocating:
            if self._next > self._last:
                self._next, self._last = await self._allocate_block()
