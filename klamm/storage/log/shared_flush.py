"""One flush of a log at a time, shared by all waiting calls.

What must stay true: a flush counts only for calls that came before it began, because it may lack later appends.
"""

import asyncio
from collections.abc import Awaitable, Callable


class SharedFlush:
    """The flushes of one log. They are numbered as they begin."""

    __slots__ = ("_begun", "_done", "_lock")

    def __init__(self) -> None:
        self._begun = 0
        self._done = 0  # the last successful flush
        self._lock = asyncio.Lock()

    async def join(self, flush: Callable[[], Awaitable[None]], is_needed: Callable[[], bool] | None = None) -> None:
        """Returns when a flush that began after this call has succeeded. With `is_needed`, also returns if no flush is
        needed once the present one has ended. If this call's own flush fails, raises its error; then the next waiting
        call tries again."""
        begun = self._begun
        async with self._lock:
            if self._done > begun or (is_needed is not None and not is_needed()):
                return
            self._begun += 1
            number = self._begun
            await flush()
            self._done = number
