"""One kind of look at a cluster, repeated: its newest value, when it was read, and whether it is still known.

What must stay true:
- Looks of one kind never overlap, and take only a part of the time: in a large cluster, where a look takes a second,
  looks are rarer, up to `MOST_BETWEEN_S` apart.
- A value is current only while its source answers and looks come in time. An outdated value is kept with its time.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from klamm.access.clients import cluster_errors
from klamm.processes.tool_errors import ToolError

T = TypeVar("T")

# The part of the time that looks may take: looks whose cost grows with the cluster, and other looks.
LARGE_SHARE: Final = 0.05
SMALL_SHARE: Final = 0.5
# The part of the time that looks may take after a known change.
HURRIED_SHARE: Final = 0.2
# The next look comes within this time, even after a look that was slow because a broker hung.
MOST_BETWEEN_S: Final = 30.0
# The time limit of a look.
LOOK_TIMEOUT_S: Final = 20.0
# How late a look may be before its value is outdated, besides twice the duration of the last look.
LATE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Dated(Generic[T]):
    """The value that was read last, and when. `why_not` says why it is outdated; None while it is current."""

    value: T | None = None
    at_ms: int | None = None
    why_not: str | None = "It has not been read yet."

    @property
    def now(self) -> T | None:
        """The value while it is current, else None."""
        return self.value if self.why_not is None else None

    def described(self) -> dict[str, Any]:
        """The time of the reading, for a document."""
        return {"at_ms": self.at_ms, "why_not": self.why_not}


class Reading(Generic[T]):
    """Repeats one kind of look. `look` returns the value, or raises ToolError, ClientError or KafkaError. `why_silent`
    says why the source does not answer at all, if another reading knows it."""

    def __init__(
        self,
        look: Callable[[], Awaitable[T]],
        every_s: float,
        share: float = SMALL_SHARE,
        *,
        timeout_s: float = LOOK_TIMEOUT_S,
        why_silent: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._look = look
        self._every_s = every_s
        self._share = share
        self._timeout_s = timeout_s
        self._why_silent = why_silent
        self.value: T | None = None
        self._failed: str | None = "It has not been read yet."
        self._at_ms: int | None = None
        self._due_s = self._took_s = 0.0
        self._turn = asyncio.Lock()
        self._hurry = asyncio.Event()

    @property
    def why_not(self) -> str | None:
        """Why `value` is outdated; None while it is current."""
        why = self._why_silent() or self._failed
        if why is None and asyncio.get_running_loop().time() > self._due_s + LATE_S + 2 * self._took_s:
            why = "There has been no answer in time."
        return why

    @property
    def dated(self) -> Dated[T]:
        return Dated(self.value, self._at_ms, self.why_not)

    async def renew(self) -> None:
        """Looks if a look is due."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            began_s = loop.time()
            if began_s < self._due_s and not self._hurry.is_set():
                return
            self._hurry.clear()
            try:
                with cluster_errors():
                    async with asyncio.timeout(self._timeout_s):
                        self.value = await self._look()
                self._failed = None
                self._at_ms = time.time_ns() // 1_000_000
            except TimeoutError:
                self._failed = f"There was no answer within {self._timeout_s:g} s."
            except ToolError as error:
                self._failed = str(error)
            took_s, share = loop.time() - began_s, self._share
            if self._failed is None:
                self._took_s = took_s
            else:
                share = SMALL_SHARE  # The look has waited, not worked: a source that is back is seen soon.
            self._due_s = began_s + max(self._every_s, min(took_s / share, MOST_BETWEEN_S))

    async def keep(self) -> None:
        """Renews for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await self.renew()
            try:
                async with asyncio.timeout(max(self._due_s - loop.time(), 0.01)):
                    await self._hurry.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(max(self._every_s, min(self._took_s / HURRIED_SHARE, self._due_s - loop.time())))

    def hurry(self) -> None:
        """Makes the next look soon, after a change that only a look shows."""
        self._hurry.set()
