"""How the coroutines of a cluster leave the event loop free: each call runs in a thread of asyncio's."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from klamm.testing.errors import ClusterError

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of a call in another thread. Raises ClusterError when the event loop is not asyncio's."""
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
