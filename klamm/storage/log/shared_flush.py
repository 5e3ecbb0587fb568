"""One flush of a log at a time, shared by all that wait for one.

What must stay true: a flush counts only for calls that came before it began, because only what was appended before is
sure to be in it.
"""

import asyncio
from collections.abc import Awaitable, Callable


class SharedFlush:
    """The flushes of one log. They are numbered as they begin."""

    __slots__ = ("_begun", "_done", "_lock")

    def __init__(self) -> None:
        self._begun = 0
        self._done = 0  # the last that has succeeded
        self._lock = asyncio.Lock()

    async def join(self, flush: Callable[[], Awaitable[None]], is_needed: Callable[[], bool] | None = None) -> None:
        """Returns when a flush that began after this call has succeeded, or, with `is_needed`, when no flush is needed
        once the present one has ended. Raises what `flush` raises if it was this call's; then the next call that waits
        tries again."""
        begun = self._begun
        async with self._lock:
            if self._done > begun or (is_needed is not None and not is_needed()):
                return
            self._begun += 1
            number = self._begun
            await flush()
            self._done = number
