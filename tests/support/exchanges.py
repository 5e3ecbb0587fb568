"""Requests as the network layer hands them to the dispatcher."""

from collections.abc import Callable

from klamm.net.request_memory import RequestMemory
from klamm.net.server import Exchange


def exchange(
    size_bytes: int = 0, clock_s: Callable[[], float] = lambda: 0.0, received_s: float = 0.0, started_s: float = 0.0
) -> Exchange:
    """A request that has started."""
    return Exchange(size_bytes, clock_s, received_s, started_s, RequestMemory(1 << 20).small, pipelined=False)
