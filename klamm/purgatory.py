"""Purgatory: where requests wait that cannot be answered yet (Kafka's `DelayedOperationPurgatory`).

An operation waits under one or more keys (a partition, a topic). Whoever changes what a key stands for calls
`check(key)`; every operation waiting there looks again. An operation that is still waiting at its deadline expires.

What must stay true:
- An operation completes exactly once: by a key or by its deadline, whichever comes first.
- Between the first look and the wait nothing can slip through: looking and registering happen without an `await`, or
  else what changes meanwhile is noted (`noting_changes`) and looked at again.
- A completed operation holds no timer, is asked no more, and is in no list; where it waited under very many keys, it
  leaves the lists in slices.
- Operations that wait under one key are looked at in the order in which they came.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)

# An operation is taken from so many lists before others have the loop: some milliseconds.
KEYS_PER_SLICE = 2_000


class DelayedOperation(ABC):
    """Something that waits: it can tell whether it is ready."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the operation can complete now."""

    def has_become_ready(self, key: Hashable) -> bool:
        """As `is_ready`, which was False until what `key` stands for has changed. Cheap: called at every check."""
        return self.is_ready()


class Waiting(Generic[Key]):
    """An operation in purgatory, with all that must be undone when it completes."""

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
        """Nobody wants to know any more. Has no effect on what is over."""
        if not self.is_over:
            self._forget(self)

    def complete(self, is_ready: bool) -> None:
        """Ends the wait, then tells whoever waits. Has no effect on what is over."""
        if not self.is_over:
            self._forget(self)
            self.on_done(is_ready)


class Watch(NamedTuple, Generic[Key]):
    """Whoever waits: `future` says whether the operation has become ready, `add` registers it under more keys."""

    future: "asyncio.Future[bool]"
    add: Callable[[Collection[Key]], None]


class Purgatory(Generic[Key]):
    """The operations of one kind that are waiting."""

    def __init__(self) -> None:
        # Dicts serve as ordered sets: `check` wakes in the order of arrival.
        self._watchers: dict[Key, dict[Waiting[Key], None]] = {}
        self._notes: list[dict[Key, None]] = []

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
        with self.watching(operation, timeout_ms) as watch:
            watch.add(keys)
            return await watch.future

    @contextmanager
    def watching(self, operation: DelayedOperation, timeout_ms: float) -> "Iterator[Watch[Key]]":
        """For an operation of very many keys: it waits under none at first. Nobody waits when the block is left."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        waiting = self.put(operation, (), timeout_ms, lambda is_ready: _resolve(future, is_ready))
        try:
            yield Watch(future, lambda keys: self._add(waiting, keys))
        finally:
            # Also when the waiter is cancelled because its client has gone.
            waiting.cancel()

    def put(
        self, operation: DelayedOperation, keys: Collection[Key], timeout_ms: float, on_done: Callable[[bool], None]
    ) -> Waiting[Key]:
        """As `watch`, for whoever has nothing else to do meanwhile: `on_done` is called within the `check` that makes
        the operation ready, with True, or at the deadline, with False."""
        waiting = Waiting(operation, on_done, self._forget)
        waiting.timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, waiting.complete, False)
        self._add(waiting, keys)
        return waiting

    def _add(self, waiting: Waiting[Key], keys: Collection[Key]) -> None:
        if not waiting.is_over:
            waiting.keys.append(keys)
            for key in keys:
                self._watchers.setdefault(key, {})[waiting] = None

    @contextmanager
    def noting_changes(self) -> Iterator[dict[Key, None]]:
        """The keys that were checked since this began: for who cannot look at everything without an `await`."""
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
        if watchers:
            for waiting in list(watchers):
                # What one is told may have completed others, or changed what the next one waits for.
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
