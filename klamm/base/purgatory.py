"""Purgatory holds requests that cannot be answered yet (Kafka's `DelayedOperationPurgatory`).

An operation waits under one or more keys (a partition, a topic). Code that changes the state behind a key calls
`check(key)`, which checks every operation under the key again. An operation that still waits at its deadline expires.

What must stay true:
- An operation completes exactly once: by a key or by its deadline, whichever comes first.
- No change is missed between the first check and the wait: the caller checks and registers without an `await`, or notes
  the keys that change meanwhile (`noting_changes`) and checks them again.
- A completed operation holds no timer, is not checked again, and is in no list. An operation under very many keys
  leaves the lists in slices.
- Operations under one key are checked in the order of their arrival: the first ones within `check`, the others in
  slices. After a change meanwhile, all of them are checked again.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import Generic, NamedTuple, TypeVar

from klamm.base.slices import Steps

Key = TypeVar("Key", bound=Hashable)

# How many lists an operation leaves in a slice of some milliseconds.
KEYS_PER_SLICE = 2_000
# How many operations are checked and completed in a slice of some milliseconds.
OPERATIONS_PER_SLICE = 200


class DelayedOperation(ABC):
    """A waiting request that can tell whether it is ready."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the operation can complete now."""

    def has_become_ready(self, key: Hashable) -> bool:
        """Like `is_ready`, which was False before the state behind `key` changed. Cheap: called at every check."""
        return self.is_ready()


class Waiting(Generic[Key]):
    """An operation in purgatory, with its timer and its keys, which are released when it completes."""

    __slots__ = ("_forget", "is_over", "keys", "on_done", "operation", "timer")

    def __init__(
        self,
        operation: DelayedOperation,
        on_done: Callable[[bool], None],
        forget: "Callable[[Waiting[Key]], None]",
    ) -> None:
        self.operation = operation
        self.keys: list[Collection[Key]] = []
        self.on_done = on_done
        self.timer: asyncio.TimerHandle | None = None
        self.is_over = False
        self._forget = forget

    def cancel(self) -> None:
        """Ends the wait without a result. No effect on a completed operation."""
        if not self.is_over:
            self._forget(self)

    def complete(self, is_ready: bool) -> None:
        """Ends the wait, then tells the waiting code. No effect on a completed operation."""
        if not self.is_over:
            self._forget(self)
            self.on_done(is_ready)


class Watch(NamedTuple, Generic[Key]):
    """A wait. `future` tells whether the operation has become ready; `add` registers the operation under more keys."""

    future: "asyncio.Future[bool]"
    add: Callable[[Collection[Key]], None]


class Purgatory(Generic[Key]):
    """The waiting operations of one kind."""

    def __init__(self) -> None:
        # Dicts serve as ordered sets: `check` completes operations in the order of their arrival.
        self._watchers: dict[Key, dict[Waiting[Key], None]] = {}
        self._notes: list[dict[Key, None]] = []
        # The keys whose operations are being checked in slices, and whether they must be checked again.
        self._checking: dict[Key, bool] = {}
        # How many operations have expired.
        self.expired_count = 0

    def __len__(self) -> int:
        """The number of watched (key, operation) pairs; 0 without waiting operations."""
        return sum(map(len, self._watchers.values()))

    def count(self) -> Steps[tuple[int, int]]:
        """Counts the watched (key, operation) pairs and the waiting operations, in steps."""
        pairs, left = 0, KEYS_PER_SLICE
        waiting: dict[Waiting[Key], None] = {}
        for key in list(self._watchers):
            watchers = self._watchers.get(key, {})
            pairs += len(watchers)
            waiting.update(watchers)
            left -= len(watchers) + 1
            if left <= 0:
                left = KEYS_PER_SLICE
                yield
        return pairs, len(waiting)

    def watched_keys(self) -> list[Key]:
        """The keys under which operations wait."""
        return list(self._watchers)

    async def wait(self, operation: DelayedOperation, keys: Collection[Key], timeout_ms: float) -> bool:
        """Returns True as soon as `operation.is_ready()`, or False if `timeout_ms` pass first."""
        return operation.is_ready() or await self.watch(operation, keys, timeout_ms)

    async def watch(self, operation: DelayedOperation, keys: Collection[Key], timeout_ms: float) -> bool:
        """Like `wait`, for an operation that the caller has just found not ready.

        No `await` may be between that check and this call.
        """
        if timeout_ms <= 0:
            return False
        with self.watching(operation, timeout_ms) as watch:
            watch.add(keys)
            return await watch.future

    @contextmanager
    def watching(self, operation: DelayedOperation, timeout_ms: float) -> "Iterator[Watch[Key]]":
        """A wait for an operation with very many keys. It starts without keys, and ends with the block."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        waiting = self.put(operation, (), timeout_ms, lambda is_ready: _resolve(future, is_ready))
        try:
            yield Watch(future, lambda keys: self._add(waiting, keys))
        finally:
            # Also runs when the waiter is cancelled because its client has disconnected.
            waiting.cancel()

    def put(
        self, operation: DelayedOperation, keys: Collection[Key], timeout_ms: float, on_done: Callable[[bool], None]
    ) -> Waiting[Key]:
        """Like `watch`, with a callback: `on_done(True)` is called within the `check` that makes the operation ready,
        `on_done(False)` at the deadline."""
        waiting = Waiting(operation, on_done, self._forget)
        waiting.timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, self._expire, waiting)
        self._add(waiting, keys)
        return waiting

    def _expire(self, waiting: Waiting[Key]) -> None:
        self.expired_count += 1
        waiting.complete(False)

    def _add(self, waiting: Waiting[Key], keys: Collection[Key]) -> None:
        if not waiting.is_over:
            waiting.keys.append(keys)
            for key in keys:
                self._watchers.setdefault(key, {})[waiting] = None

    @contextmanager
    def noting_changes(self) -> Iterator[dict[Key, None]]:
        """Collects the keys that are checked during the block, for callers that must `await` during their own check."""
        changed: dict[Key, None] = {}
        self._notes.append(changed)
        try:
            yield changed
        finally:
            self._notes = [notes for notes in self._notes if notes is not changed]

    def check(self, key: Key) -> None:
        """Completes the operations under `key` that have become ready."""
        for changed in self._notes:
            changed[key] = None
        watchers = self._watchers.get(key)
        if not watchers:
            return
        if key in self._checking:
            self._checking[key] = True
        elif len(watchers) <= OPERATIONS_PER_SLICE:
            self._look_at(key, list(watchers))
        else:
            self._checking[key] = False
            self._check_in_slices(key, deque(watchers))

    def _check_in_slices(self, key: Key, waiting: "deque[Waiting[Key]]") -> None:
        self._look_at(key, [waiting.popleft() for _ in range(min(OPERATIONS_PER_SLICE, len(waiting)))])
        if not waiting:
            if not self._checking[key]:
                del self._checking[key]
                return
            self._checking[key] = False
            waiting.extend(self._watchers.get(key, ()))
        asyncio.get_running_loop().call_soon(self._check_in_slices, key, waiting)

    def _look_at(self, key: Key, operations: "list[Waiting[Key]]") -> None:
        for waiting in operations:
            # Completing one operation may have completed others, or changed the state that the next one waits for.
            if not waiting.is_over and waiting.operation.has_become_ready(key):
                waiting.complete(True)

    def _forget(self, waiting: Waiting[Key]) -> None:
        waiting.is_over = True
        if waiting.timer is not None:
            waiting.timer.cancel()
        self._leave_lists(waiting, chain.from_iterable(waiting.keys))

    def _leave_lists(self, waiting: Waiting[Key], keys: Iterator[Key]) -> None:
        piece = list(islice(keys, KEYS_PER_SLICE))
        for key in piece:
            watchers = self._watchers.get(key)
            if watchers is not None:
                watchers.pop(waiting, None)
                if not watchers:
                    del self._watchers[key]
        if len(piece) == KEYS_PER_SLICE:
            asyncio.get_running_loop().call_soon(self._leave_lists, waiting, keys)


def _resolve(future: "asyncio.Future[bool]", result: bool) -> None:
    if not future.done():
        future.set_result(result)
