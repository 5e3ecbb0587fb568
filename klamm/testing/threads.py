"""The cluster's methods as coroutines: each call runs in a thread, so the test's event loop keeps running.

class AsyncDog(Twin[Dog]):
    bark = awaited(Dog.bark)  # await AsyncDog(dog).bark(3)
"""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from klamm.testing.cluster_errors import ClusterError

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


class Twin(Generic[S_co]):
    """An object whose methods are coroutines that run those of `original`, which documents them."""

    def __init__(self, original: S_co) -> None:
        self._original = original


def awaited(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[Twin[S], P], Coroutine[Any, Any, T]]:
    """The method of a Twin that runs the original's method in a thread; its parameters and docstring are the same."""

    @functools.wraps(method)
    async def call(twin: Twin[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        original: Callable[P, T] = getattr(twin._original, method.__name__)
        return await in_thread(original, *args, **kwargs)

    return call


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls a function in another thread and returns its result. Raises ClusterError if the event loop is not
    asyncio's."""
    require_asyncio()
    return await asyncio.to_thread(function, *args, **kwargs)


def require_asyncio() -> None:
    """Raises ClusterError in a coroutine that asyncio does not run."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise ClusterError(
            "AsyncCluster needs asyncio's event loop: pytest-asyncio, pytest-aiohttp, or anyio's backend asyncio;"
            " under trio, call the methods of klamm_cluster with trio.to_thread.run_sync"
        ) from None
