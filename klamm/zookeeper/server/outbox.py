"""Holds back responses until the transactions that they could show are durable.

What must stay true:
- A response that is added while every applied transaction is durable leaves at once. Any other response waits until the
  log is durable up to the zxid of that moment, even if it shows none of the waiting transactions. That is ZooKeeper's
  order too, and every read sees the newest write.
- Held responses leave in the order in which they were added, in slices; responses added meanwhile wait behind them.
"""

import asyncio
from collections import deque
from typing import Final, NamedTuple

from klamm.base.slices import Slices
from klamm.zookeeper.server.cnxn import ServerCnxn
from klamm.zookeeper.server.tree import ZnodeTree

# How many responses leave before the loop does other work: a few milliseconds.
HELD_PER_SLICE = 1_000


class _Held(NamedTuple):
    """Leaves once the log is durable up to `zxid`. No payload: the connection is to be finished."""

    zxid: int
    since_s: float
    connection: ServerCnxn
    payload: bytes | None


class Latency:
    """How long replies were held, in milliseconds (`srvr` and `mntr` report it)."""

    def __init__(self) -> None:
        self.count = 0
        self.sum_ms = 0.0
        self.least_ms = 0.0
        self.most_ms = 0.0

    def note(self, latency_ms: float) -> None:
        self.least_ms = min(self.least_ms, latency_ms) if self.count else latency_ms
        self.most_ms = max(self.most_ms, latency_ms)
        self.sum_ms += latency_ms
        self.count += 1


class Outbox:
    """All responses and events for clients whose session has begun or begins."""

    def __init__(self, tree: ZnodeTree) -> None:
        self._tree = tree
        self._loop = asyncio.get_running_loop()
        self._durable_zxid = tree.zxid
        self._held: Final[deque[_Held]] = deque()
        self._is_releasing = False
        self.latency = Latency()

    def __len__(self) -> int:
        return len(self._held)

    def send(self, connection: ServerCnxn, payload: bytes) -> None:
        """Sends whole frames, now or once the log is durable."""
        if self._durable_zxid == self._tree.zxid and not self._held:
            self.latency.note(0)
            connection.send(payload)
        else:
            connection.held += 1
            connection.held_bytes += len(payload)
            self._held.append(_Held(self._tree.zxid, self._loop.time(), connection, payload))

    def finish(self, connection: ServerCnxn) -> None:
        """Closes the connection after its responses."""
        connection.refuse_requests()
        if self._durable_zxid == self._tree.zxid and not self._held:
            connection.finish()
        else:
            self._held.append(_Held(self._tree.zxid, self._loop.time(), connection, None))

    def release(self, durable_zxid: int) -> None:
        """The log is durable up to here: sends the responses that waited for it, and executes waiting requests."""
        self._durable_zxid = durable_zxid
        if not self._is_releasing:
            self._release_slice()

    def _release_slice(self) -> None:
        now_s = self._loop.time()
        held = self._held
        served: dict[ServerCnxn, None] = {}
        slices = Slices(HELD_PER_SLICE)
        self._is_releasing = False
        while held and held[0].zxid <= self._durable_zxid:
            _, since_s, connection, payload = held.popleft()
            if payload is None:
                connection.finish()
            else:
                connection.held -= 1
                connection.held_bytes -= len(payload)
                connection.send(payload)
                self.latency.note((now_s - since_s) * 1000)
                served[connection] = None
            if slices.spend():
                self._is_releasing = True
                self._loop.call_soon(self._release_slice)
                break
        for connection in served:
            connection.flush()
            connection.execute()

    def clear(self) -> None:
        """Drops all held responses: their transactions will never be durable."""
        self._held.clear()
