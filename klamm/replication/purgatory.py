"""Purgatory: where requests wait that cannot be answered yet (Kafka's `DelayedOperationPurgatory`).

An operation waits under one or more keys (a partition, a topic). Whoever changes what a key stands for calls
`check(key)`; every operation waiting there looks again. An operation that is still waiting at its deadline expires.

What must stay true:
- An operation completes exactly once: by a key or by its deadline, whichever comes first.
- Between the first look and the wait nothing can slip through: looking and registering happen without an `await`.
- A completed operation is in no list and holds no timer.
- Operations that wait under one key are looked at in the order in which they came.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class DelayedOperation(ABC):
    """Something that waits: it can tell whether it is ready."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the operation can complete now."""

    def has_become_ready(self, key: Hashable) -> bool:
        """As `is_ready`, which was False until what `key` stands for has changed. Cheap: called at every check."""
        return self.is_ready()


class _Waiting(Generic[Key]):
    """An operation in purgatory, with all that must be undone when it completes."""

    __slots__ = ("future", "keys", "operation", "timer")

    def __init__(
        self,
        operation: DelayedOperation,
        keys: Collection[Key],
        future: "asyncio.Future[bool]",
        timer: asyncio.TimerHandle,
    ) -> None:
        self.operation = operation
        self.keys = keys
        self.future = future
        self.timer = timer


class Purgatory(Generic[Key]):
    """The operations of one kind that are waiting."""

    def __init__(self) -> None:
        # Dicts serve as ordered sets: `check` wakes in the order of arrival.
        self._watchers: dict[Key, dict[_Waiting[Key], None]] = {}

    def __len__(self) -> int:
        """How many (key, operation) pairs are watched; 0 when nothing waits."""
        return sum(map(len, self._watchers.values()))

    async def wait(self, operation: DelayedOperation, keys: Collection[Key], timeout_ms: float) -> bool:
        """Returns True as soon as `operation.is_ready()`, or False when `timeout_ms` have passed first."""
        return operation.is_ready() or await self.watch(operation, keys, timeout_ms)

    async def watch(self, operation: DelayedOperation, keys: Collection[Key], timeout_ms: float) -> bool:
        """As `wait`, for an operation that is known not to be ready, since the caller has looked a moment ago.

        No `await` may lie between the look and this.
        """
        if timeout_ms <= 0:
            return False
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_later(timeout_ms / 1000, _resolve, future, False)
        waiting = _Waiting(operation, keys, future, timer)
        for key in keys:
            self._watchers.setdefault(key, {})[waiting] = None
        try:
            return await future
        finally:
            # Also when the waiter is cancelled because its client has gone.
            self._forget(waiting)

    def check(self, key: Key) -> None:
        """Completes the operations under `key` that have become ready."""
        watchers = self._watchers.get(key)
        if watchers:
            for waiting in list(watchers):
                if waiting.operation.has_become_ready(key):
                    _resolve(waiting.future, True)
                    self._forget(waiting)

    def _forget(self, waiting: _Waiting[Key]) -> None:
        waiting.timer.cancel()
        for key in waiting.keys:
            watchers = self._watchers.get(key)
            if watchers is not None:
                watchers.pop(waiting, None)
                if not watchers:
                    del self._watchers[key]


def _resolve(future: "asyncio.Future[bool]", result: bool) -> None:
    if not future.done():
        future.set_result(result)
