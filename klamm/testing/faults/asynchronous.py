"""The faults of a cluster as coroutines, for AsyncCluster. The class of each twin documents its methods."""

import functools
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from klamm.faults.commands import Fault
from klamm.faults.commands.answers import AnswerFault
from klamm.testing.faults.answers import NarrowableAnswer
from klamm.testing.faults.clock import Clock
from klamm.testing.faults.disk import Disk
from klamm.testing.faults.faults import FaultHandle, Faults
from klamm.testing.faults.network import Network
from klamm.testing.threads import Twin, awaited, in_thread

P = ParamSpec("P")
S = TypeVar("S")


class AsyncFaultHandle(Twin[FaultHandle]):
    """One installed fault. `calls` and `hits` are awaited: `assert await handle.hits == 1`."""

    @property
    def fault(self) -> Fault:
        return self._original.fault

    @property
    def calls(self) -> Awaitable[int]:
        return in_thread(lambda: self._original.calls)

    @property
    def hits(self) -> Awaitable[int]:
        return in_thread(lambda: self._original.hits)

    wait = awaited(FaultHandle.wait)
    remove = awaited(FaultHandle.remove)
    replace = awaited(FaultHandle.replace)


def awaited_handle(
    method: Callable[Concatenate[S, P], FaultHandle],
) -> Callable[Concatenate[Twin[S], P], Coroutine[Any, Any, AsyncFaultHandle]]:
    """Like `awaited`, for methods that install a fault."""
    call = awaited(method)

    @functools.wraps(method)
    async def install(twin: Twin[S], /, *args: P.args, **kwargs: P.kwargs) -> AsyncFaultHandle:
        return AsyncFaultHandle(await call(twin, *args, **kwargs))

    return install


class AsyncFaults(Twin[Faults]):
    """The faults of one cluster."""

    @property
    def active(self) -> list[AsyncFaultHandle]:
        return [AsyncFaultHandle(handle) for handle in self._original.active]

    install = awaited_handle(Faults.install)
    perform = awaited(Faults.perform)
    performed = awaited(Faults.performed)
    remove_all = awaited(Faults.remove_all)


class AsyncAnswer(NarrowableAnswer):
    """A fault of answers that is installed when it is awaited: `fault = await c.fail(...).once()`."""

    def __init__(self, faults: AsyncFaults, fault: AnswerFault) -> None:
        self._faults = faults
        self._fault = fault

    def _narrow(self, **changes: Any) -> Self:
        return type(self)(self._faults, replace(self._fault, **changes))

    def __await__(self) -> Generator[Any, None, AsyncFaultHandle]:
        return self._faults.install(self._fault).__await__()


class AsyncDisk(Twin[Disk]):
    """The disks of one cluster."""

    slow = awaited_handle(Disk.slow)
    fail = awaited_handle(Disk.fail)
    full = awaited_handle(Disk.full)


class AsyncClock(Twin[Clock]):
    """The wall clocks of one cluster."""

    shift = awaited_handle(Clock.shift)


class AsyncNetwork(Twin[Network]):
    """The network of one cluster."""

    partition = awaited_handle(Network.partition)
    cut = awaited_handle(Network.cut)
    delay = awaited_handle(Network.delay)
    rate = awaited_handle(Network.rate)
    reset = awaited_handle(Network.reset)
    half_open = awaited_handle(Network.half_open)
    heal = awaited(Network.heal)
