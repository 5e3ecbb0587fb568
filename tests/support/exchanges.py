"""Requests as the network layer hands them to the dispatcher."""

from collections.abc import Callable

from klamm.broker.requests.request_metrics import ApiStatistics
from klamm.net.server.exchange import Exchange
from klamm.net.server.request_memory import RequestMemory
from klamm.protocol.messages import ApiKey


def exchange(
    size_bytes: int = 0, clock_s: Callable[[], float] = lambda: 0.0, received_s: float = 0.0, started_s: float = 0.0
) -> Exchange:
    """A request that has started."""
    made = Exchange(size_bytes, started_s, RequestMemory(1 << 20).small, pipelined=False)
    made.at_once = ApiStatistics(ApiKey.PRODUCE, clock_s).of_version[0]
    if started_s != received_s:
        made.started_late(received_s)
    return made
