"""Requests as the network layer hands them to the dispatcher."""

from collections.abc import Callable

from klamm.broker.request_metrics import ApiStatistics
from klamm.net.request_memory import RequestMemory
from klamm.net.server import Exchange
from klamm.protocol.messages import ApiKey


def exchange(
    size_bytes: int = 0, clock_s: Callable[[], float] = lambda: 0.0, received_s: float = 0.0, started_s: float = 0.0
) -> Exchange:
    """A request that has started."""
    made = Exchange(size_bytes, clock_s, received_s, RequestMemory(1 << 20).small, pipelined=False)
    made.measurements = ApiStatistics(ApiKey.PRODUCE)
    if started_s != received_s:
        made.starts_late(started_s)
    return made
