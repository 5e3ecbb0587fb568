"""Lets Spark's workers and plain Python programs, which run in threads, use klamm's asyncio client.

One event loop runs in a background thread of each process, with one `ClusterClient` for each cluster, so that
connections outlast a task, a micro-batch and a query. Fetches continue while the caller decodes the records of the
previous fetch or passes them to Spark. No broker code runs here, so klamm's rule of one thread does not apply.

What must stay true:
- Only this module knows of the thread. Coroutines given to `start` and `call` share no state with the caller.
- A forked process starts its own loop and connections: a thread does not survive a fork, and two processes must never
  write to one socket.
"""

import asyncio
import os
import threading  # noqa: TID251  # see above
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeVar

import uvloop

from klamm.base.system_environment import SystemEnvironment
from klamm.client.cluster import ClusterClient, make_client
from klamm.client.options import ClientOptions

T = TypeVar("T")
Work = Callable[[ClusterClient], Awaitable[T]]


class _Network:
    """The loop, its thread and the clients of one process."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self._clients: dict[ClientOptions, ClusterClient] = {}
        # Created in each process, because two processes must not draw the same nonces after a fork.
        self._random = SystemEnvironment().random
        threading.Thread(target=self.loop.run_forever, name="klamm-network", daemon=True).start()

    def client(self, options: ClientOptions) -> ClusterClient:
        """Call it on the loop only. Raises SecurityError when the files of a key or trust store cannot be used."""
        client = self._clients.get(options)
        if client is None:
            client = self._clients[options] = make_client(options, self._random)
        return client


_network: _Network | None = None
_starting = threading.Lock()


def _forget() -> None:
    global _network, _starting  # noqa: PLW0603  # one per process is what this module is about
    _network = None
    _starting = threading.Lock()


os.register_at_fork(after_in_child=_forget)


def start(options: ClientOptions, work: "Work[T]") -> "Future[T]":
    """Runs `work(client)` on the loop while the caller continues. Cancelling the future cancels the work."""
    global _network  # noqa: PLW0603
    with _starting:
        if _network is None:
            _network = _Network()
        network = _network

    async def run() -> T:
        return await work(network.client(options))

    return asyncio.run_coroutine_threadsafe(run(), network.loop)


def call(options: ClientOptions, work: "Work[T]") -> T:
    """Runs `work(client)` and returns or raises its result. An interrupt of the caller cancels the work."""
    future = start(options, work)
    try:
        return future.result()
    finally:
        future.cancel()
