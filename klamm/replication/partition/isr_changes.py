"""Sends leaders' ISR proposals until they are decided: the common part of AlterIsr and ZooKeeper.

What must stay true:
- One round runs at a time. It carries the proposals that have waited longest, and no more than one step of the loop can
  handle.
- A proposal is sent until it is decided or void. A proposal that a round leaves undecided goes to the end of the queue.
- An answer reaches the proposal that was sent, never a later proposal of the same partition.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import islice

from klamm.base.tasks import OnFailure, start_task
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.vocabulary import PartitionKey
from klamm.replication.ports import IsrChange, WrittenIsr

RETRY_BACKOFF_MS = 50
MAX_CHANGES_IN_ROUND = 1_000


class BatchedIsrChanges(ABC):
    """Implements the port `IsrChanges`; a subclass says how a round is decided."""

    def __init__(self, on_failure: OnFailure) -> None:
        self._on_failure = on_failure
        self._pending: dict[PartitionKey, IsrChange] = {}
        self._sender: asyncio.Task[None] | None = None
        self._is_stopped = False

    @abstractmethod
    async def _send(self, changes: Sequence[IsrChange]) -> bool:
        """Sends one round and calls `_decide` for each answer. Returns whether every change got an answer."""

    def submit(self, change: IsrChange) -> None:
        """Sends the change until it is decided. Raises RuntimeError when the partition already has a pending one."""
        if change.topic_partition in self._pending:
            raise RuntimeError(f"{change.topic_partition} has two ISR changes in flight")
        if self._is_stopped:
            return
        self._pending[change.topic_partition] = change
        if self._sender is None:
            self._sender = start_task(self._run(), self._on_failure)

    def clear_pending(self, topic_partition: PartitionKey) -> None:
        self._pending.pop(topic_partition, None)

    async def stop(self) -> None:
        """Sends nothing more and drops all pending changes."""
        self._is_stopped = True
        self._pending.clear()
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)

    async def _run(self) -> None:
        # Changes proposed in the same step of the loop are sent together.
        await asyncio.sleep(0)
        while self._pending:
            changes = list(islice(self._pending.values(), MAX_CHANGES_IN_ROUND))
            if not await self._send(changes):
                self._put_behind_others(changes)
                await asyncio.sleep(RETRY_BACKOFF_MS / 1000)
        self._sender = None

    def _put_behind_others(self, changes: Sequence[IsrChange]) -> None:
        for change in changes:
            if self._is_pending(change):
                self._pending[change.topic_partition] = self._pending.pop(change.topic_partition)

    def _is_pending(self, change: IsrChange) -> bool:
        """False once the change is decided or void."""
        return self._pending.get(change.topic_partition) is change

    def _decide(self, change: IsrChange, result: WrittenIsr | ErrorCode) -> None:
        """Tells the leader the result of a change that is still pending."""
        # Removed before the leader hears the result, because the leader may propose the next change at once.
        del self._pending[change.topic_partition]
        change.on_result(result)
