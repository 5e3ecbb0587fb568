"""An event loop in a thread of its own, for programs that have no loop."""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

# How long `close` waits for the tasks that it has cancelled.
CLOSE_TIMEOUT_S = 5.0
# How often a waiting caller checks that the loop's thread is alive.
LOOK_EVERY_S = 1.0

DIED = "the thread of the loop has died"


class LoopEnded(RuntimeError):
    """The loop has ended, before the coroutine began or while it ran."""


class LoopThread:
    """An event loop in a thread of its own; any thread can run coroutines on it."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._has_ended = False
        # Guards `_has_ended`, so that no coroutine is given to the loop after `close` has cancelled the others.
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine and returns its result or raises its error. Cancels it if the caller is interrupted.

        Raises LoopEnded.
        """
        with self._lock:
            if self._has_ended or not self._thread.is_alive():
                # If the thread has died, `close` runs what the loop was given.
                coroutine.close()
                raise LoopEnded("the loop has ended" if self._has_ended else DIED)
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            self._wait_for(future)
            if not future.done():
                raise LoopEnded(DIED)
            return future.result()
        except concurrent.futures.CancelledError:
            raise LoopEnded("the loop has ended") from None
        finally:
            future.cancel()

    def call_soon(self, callback: Callable[..., object], *arguments: object) -> None:
        """Calls a function on the loop and returns at once. After `close`, nothing is called."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)

    def close(self) -> None:
        """Cancels the tasks that still run and ends the thread. Idempotent."""
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
            ending = asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop)
        self._wait_for(ending)
        if ending.done():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        else:
            # The loop's thread has died, so this thread cancels the remaining tasks.
            self._loop.run_until_complete(asyncio.wrap_future(ending, loop=self._loop))
        self._loop.close()

    def _wait_for(self, future: "concurrent.futures.Future[Any]") -> None:
        """Returns when the future is done, or when the loop's thread has died."""
        while not future.done() and self._thread.is_alive():
            concurrent.futures.wait((future,), LOOK_EVERY_S)

    async def _cancel_all(self) -> None:
        if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_S)
