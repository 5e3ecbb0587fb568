"""One kind of look at a cluster, repeated: its newest value, or why there is none.

What must stay true: looks of one kind never overlap, and take no more than a part of the time: in a large cluster,
where a look takes a second, it is rarer, up to `MOST_BETWEEN_S`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from klamm.processes.errors import ToolError
from klamm.tools.clients import cluster_errors

T = TypeVar("T")

# The part of the time that looks may take whose cost grows with the cluster, and others.
LARGE_SHARE: Final = 0.05
SMALL_SHARE: Final = 0.5
# The part of the time when something is known to have changed.
HURRIED_SHARE: Final = 0.2
# The next look comes within this time, also behind one that was slow because a broker hung.
MOST_BETWEEN_S: Final = 30.0
# An answer that takes longer does not come.
LOOK_TIMEOUT_S: Final = 20.0


class Reading(Generic[T]):
    """`look` gives the value, or raises ToolError, ClientError or KafkaError. `value` is that of the last look that
    succeeded; `why_not` is the reason of a failure, None after a success."""

    def __init__(self, look: Callable[[], Awaitable[T]], every_s: float, share: float = SMALL_SHARE) -> None:
        self._look = look
        self._every_s = every_s
        self._share = share
        self.value: T | None = None
        self.why_not: str | None = "It has not been read yet."
        self._read_s: float | None = None
        self._due_s = self._took_s = 0.0
        self._turn = asyncio.Lock()
        self._hurry = asyncio.Event()

    async def renew(self) -> None:
        """Looks, if it is time."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            began_s = loop.time()
            if began_s < self._due_s and not self._hurry.is_set():
                return
            self._hurry.clear()
            try:
                with cluster_errors():
                    async with asyncio.timeout(LOOK_TIMEOUT_S):
                        self.value = await self._look()
                self.why_not = None
                self._read_s = loop.time()
            except TimeoutError:
                self.why_not = f"There was no answer within {LOOK_TIMEOUT_S:g} s."
            except ToolError as error:
                self.why_not = str(error)
            took_s, share = loop.time() - began_s, self._share
            if self.why_not is None:
                self._took_s = took_s
            else:
                share = SMALL_SHARE  # It has waited, not worked: what is there again is seen soon.
            self._due_s = began_s + max(self._every_s, min(took_s / share, MOST_BETWEEN_S))

    @property
    def age_ms(self) -> int | None:
        """How old `value` is; None without one."""
        if self._read_s is None:
            return None
        return round((asyncio.get_running_loop().time() - self._read_s) * 1000)

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
        """Something has changed that only a look shows: the next one comes soon."""
        self._hurry.set()
