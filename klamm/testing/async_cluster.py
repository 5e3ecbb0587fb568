"""The cluster's methods as coroutines: each runs in a thread, so the test's event loop keeps running."""

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from klamm.faults.commands.answers import AnswerFault
from klamm.faults.history import History
from klamm.faults.local_cluster import ClusterUnderFaults
from klamm.testing.cluster import TIMEOUT_S, Cluster
from klamm.testing.conditions import Wait
from klamm.testing.facts import ClusterFacts
from klamm.testing.faults.answers import FaultsOfAnswers
from klamm.testing.faults.asynchronous import AsyncAnswer, AsyncClock, AsyncDisk, AsyncFaults, AsyncNetwork
from klamm.testing.threads import Twin, awaited, in_thread, require_asyncio


async def open_in_thread(cluster: Cluster) -> "AsyncCluster":
    """Opens a cluster. A cancellation closes the cluster again."""
    require_asyncio()
    opening = asyncio.ensure_future(in_thread(cluster.open))
    try:
        await asyncio.shield(opening)
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):
            await opening
        await in_thread(cluster.close)
        raise
    return AsyncCluster(cluster)


async def close_in_thread(cluster: Cluster, error: BaseException | None = None) -> None:
    """Closes a cluster, even if the caller is cancelled."""
    await asyncio.shield(in_thread(cluster.close, error))


class AsyncCluster(Twin[Cluster], ClusterFacts, FaultsOfAnswers[AsyncAnswer]):
    """A running cluster, from `async with Cluster(...) as c`. Cluster documents each method."""

    @property
    def cluster(self) -> Cluster:
        """The same cluster, for threads."""
        return self._original

    @property
    def _local(self) -> ClusterUnderFaults:
        return self.cluster._local

    record = awaited(Cluster.record)
    controller_id = awaited(Cluster.controller_id)
    topics = awaited(Cluster.topics)
    leader = awaited(Cluster.leader)
    isr = awaited(Cluster.isr)
    replicas = awaited(Cluster.replicas)
    followers = awaited(Cluster.followers)
    under_replicated = awaited(Cluster.under_replicated)
    create_topic = awaited(Cluster.create_topic)
    delete_topic = awaited(Cluster.delete_topic)
    kill = awaited(Cluster.kill)
    stop = awaited(Cluster.stop)
    start = awaited(Cluster.start)
    restart = awaited(Cluster.restart)
    pause = awaited(Cluster.pause)
    resume = awaited(Cluster.resume)
    heal = awaited(Cluster.heal)
    add_broker = awaited(Cluster.add_broker)
    expire_session = awaited(Cluster.expire_session)
    elect = awaited(Cluster.elect)
    unclean_election = awaited(Cluster.unclean_election)
    move_controller = awaited(Cluster.move_controller)
    force_rebalance = awaited(Cluster.force_rebalance)
    expire_transaction = awaited(Cluster.expire_transaction)
    corrupt = awaited(Cluster.corrupt)

    @property
    def faults(self) -> AsyncFaults:
        return AsyncFaults(self.cluster.faults)

    @property
    def disk(self) -> AsyncDisk:
        return AsyncDisk(self.cluster.disk)

    @property
    def clock(self) -> AsyncClock:
        return AsyncClock(self.cluster.clock)

    @property
    def network(self) -> AsyncNetwork:
        return AsyncNetwork(self.cluster.network)

    @property
    def history(self) -> Awaitable[History]:
        return in_thread(lambda: self.cluster.history)

    def _handle(self, fault: AnswerFault) -> AsyncAnswer:
        return AsyncAnswer(self.faults, fault)

    async def until(self, condition: Callable[[], Awaitable[Any] | Any], timeout: float = TIMEOUT_S) -> Any:  # noqa: ASYNC109
        """Like Cluster.until. A condition that calls this object must be a coroutine function."""
        require_asyncio()
        wait = Wait(condition, timeout, self.describe)
        while True:
            with wait.look() as look:
                value = condition()
                look.value = await value if inspect.isawaitable(value) else value
            if look.value:
                return look.value
            await asyncio.sleep(wait.pause_s())
