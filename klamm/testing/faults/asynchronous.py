"""The faults of a cluster as coroutines, for AsyncCluster. The classes of `faults.py` document each method."""

from collections.abc import Awaitable

from klamm.faults.commands import Action, Fault, Json, Server
from klamm.testing.faults.faults import WAIT_TIMEOUT_S, FaultHandle, Faults
from klamm.testing.threads import in_thread


class AsyncFaults:
    """The faults of one cluster."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    async def install(self, fault: Fault) -> "AsyncFaultHandle":
        return AsyncFaultHandle(await in_thread(self.faults.install, fault))

    async def perform(self, server: Server | None, action: Action) -> Json:
        return await in_thread(self.faults.perform, server, action)

    @property
    def active(self) -> "list[AsyncFaultHandle]":
        return [AsyncFaultHandle(handle) for handle in self.faults.active]

    async def remove_all(self) -> None:
        await in_thread(self.faults.remove_all)


class AsyncFaultHandle:
    """One installed fault. `calls` and `hits` are awaited: `assert await handle.hits == 1`."""

    def __init__(self, handle: FaultHandle) -> None:
        self.handle = handle

    @property
    def fault(self) -> Fault:
        return self.handle.fault

    @property
    def calls(self) -> Awaitable[int]:
        return in_thread(lambda: self.handle.calls)

    @property
    def hits(self) -> Awaitable[int]:
        return in_thread(lambda: self.handle.hits)

    async def wait(self, timeout: float = WAIT_TIMEOUT_S, *, hits: int = 1) -> None:  # noqa: ASYNC109
        await in_thread(lambda: self.handle.wait(timeout, hits=hits))

    async def remove(self) -> None:
        await in_thread(self.handle.remove)

    async def replace(self, fault: Fault) -> None:
        await in_thread(self.handle.replace, fault)
