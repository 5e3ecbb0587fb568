"""Whether each broker of a live cluster answers: each gets a small request every second, on a connection of its own.

What must stay true:
- A broker that does not answer counts as silent after `SILENT_S` and a second, and delays nothing else.
- Only time in which this process runs counts, so a suspended or very busy process takes no broker for silent.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from klamm.base.tasks import OnFailure, start_task
from klamm.client.metadata import metadata_of
from klamm.net.client import ClientError

if TYPE_CHECKING:
    from klamm.client.cluster import ClusterClient
    from klamm.net.client import Address

T = TypeVar("T")

EVERY_S: Final = 1.0
STEP_S: Final = 0.25
SILENT_S: Final = 5.0


class Heard(NamedTuple):
    """The pulse of a broker. `at_ms` is the time of its last answer, or None. `why_not` says why it does not answer
    now, None while it answers. `controller_id` is the controller that it named last, -1 before a controller has told it
    of the cluster."""

    at_ms: int | None = None
    why_not: str | None = None
    controller_id: int = -1


class Pulse:
    """Asks the brokers at `addresses`, which may change. Calls `changed` when a broker starts or stops answering."""

    def __init__(
        self,
        client: "ClusterClient",
        addresses: "Callable[[], Mapping[int, Address]]",
        changed: Callable[[], None],
        on_failure: OnFailure,
    ) -> None:
        self._client = client
        self._addresses = addresses
        self._changed = changed
        self._on_failure = on_failure
        self.heard: dict[int, Heard] = {}

    @property
    def silent(self) -> dict[int, str]:
        """The brokers that do not answer, and why."""
        return {broker_id: each.why_not for broker_id, each in self.heard.items() if each.why_not is not None}

    async def keep(self) -> None:
        """Asks for ever."""
        asking: dict[tuple[int, Address], asyncio.Task[None]] = {}
        try:
            while True:
                wanted = set(self._addresses().items())
                for each in [each for each in asking if each not in wanted]:
                    asking.pop(each).cancel()
                for each in wanted - asking.keys():
                    asking[each] = start_task(self._keep_asking(*each), self._on_failure)
                self.forget(broker_id for broker_id, _ in wanted)
                await asyncio.sleep(EVERY_S)
        finally:
            for task in asking.values():
                task.cancel()

    def forget(self, known: Iterable[int]) -> None:
        kept = set(known)
        self.heard = {broker_id: each for broker_id, each in self.heard.items() if broker_id in kept}

    async def ask_once(self) -> None:
        """Asks each broker once. Takes as long as the slowest broker, at most `SILENT_S`."""
        await asyncio.gather(*(self._ask(*each, is_kept=False) for each in self._addresses().items()))

    async def _keep_asking(self, broker_id: int, address: "Address") -> None:
        while True:
            await self._ask(broker_id, address, is_kept=True)
            await asyncio.sleep(EVERY_S)

    async def _ask(self, broker_id: int, address: "Address", *, is_kept: bool) -> None:
        """Asks until the broker does not answer; without `is_kept`, until its first answer."""
        connection = None
        try:
            connection = await _in_time(self._client.own_connection(address))
            while True:
                metadata = await _in_time(metadata_of(connection, []))
                self._hear(broker_id, Heard(time.time_ns() // 1_000_000, None, metadata.controller_id))
                if not is_kept:
                    return
                await asyncio.sleep(EVERY_S)
        except TimeoutError:
            self._miss(broker_id, f"it does not answer within {SILENT_S:g} s")
        except ClientError as error:
            self._miss(broker_id, str(error))
        finally:
            if connection is not None:
                connection.close()

    def _hear(self, broker_id: int, heard: Heard) -> None:
        before = self.heard.get(broker_id)
        self.heard[broker_id] = heard
        if before is None or before.why_not is not None:
            self._changed()

    def _miss(self, broker_id: int, why_not: str) -> None:
        before = self.heard.get(broker_id, Heard())
        self.heard[broker_id] = before._replace(why_not=why_not)
        if before.why_not is None:
            self._changed()


async def _in_time(asked: Awaitable[T]) -> T:
    """The answer. Raises TimeoutError after the waiting steps of `SILENT_S`."""
    task = asyncio.ensure_future(asked)
    try:
        for _ in range(round(SILENT_S / STEP_S)):
            await asyncio.wait([task], timeout=STEP_S)
            if task.done():
                return task.result()
        raise TimeoutError
    finally:
        task.cancel()
