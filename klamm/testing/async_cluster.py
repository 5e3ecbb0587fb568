"""The cluster's methods as coroutines: each runs in a thread, so the test's event loop keeps running."""

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from klamm.faults.commands import Server
from klamm.faults.history import History
from klamm.protocol.vocabulary import PartitionKey
from klamm.testing.cluster import DESCRIBED_LINES, TIMEOUT_S, Broker, Cluster
from klamm.testing.conditions import Wait
from klamm.testing.faults.answers import AsyncAnswerFaults
from klamm.testing.faults.asynchronous import AsyncFaults
from klamm.testing.faults.clock import AsyncClock
from klamm.testing.faults.disk import AsyncDisk
from klamm.testing.faults.network import AsyncNetwork
from klamm.testing.faults.servers import AsyncServerFaults
from klamm.testing.threads import in_thread, require_asyncio


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
    """Closes a cluster; a cancellation does not stop that."""
    await asyncio.shield(in_thread(cluster.close, error))


class AsyncCluster(AsyncAnswerFaults, AsyncServerFaults):
    """A running cluster, from `async with Cluster(...) as c`. Cluster documents each method."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    @property
    def zookeeper(self) -> str:
        return self.cluster.zookeeper

    @property
    def control_url(self) -> str:
        return self.cluster.control_url

    @property
    def control_token(self) -> str:
        return self.cluster.control_token

    @property
    def servers(self) -> list[Server]:
        return self.cluster.servers

    @property
    def broker_ids(self) -> list[int]:
        return self.cluster.broker_ids

    @property
    def brokers(self) -> list[Broker]:
        return self.cluster.brokers

    def broker(self, broker: int) -> Broker:
        return self.cluster.broker(broker)

    @property
    def directory(self) -> Path:
        return self.cluster.directory

    def data_directory(self, server: Server) -> Path:
        return self.cluster.data_directory(server)

    def log(self, server: Server, lines: int = 50) -> str:
        return self.cluster.log(server, lines)

    def describe(self, history_lines: int = DESCRIBED_LINES) -> str:
        return self.cluster.describe(history_lines)

    async def record(self, path: str | Path) -> Path:
        return await in_thread(self.cluster.record, path)

    async def controller_id(self) -> int | None:
        return await in_thread(self.cluster.controller_id)

    async def topics(self) -> list[str]:
        return await in_thread(self.cluster.topics)

    async def leader(self, topic: str, partition: int = 0) -> int | None:
        return await in_thread(self.cluster.leader, topic, partition)

    async def isr(self, topic: str, partition: int = 0) -> list[int]:
        return await in_thread(self.cluster.isr, topic, partition)

    async def replicas(self, topic: str, partition: int = 0) -> list[int]:
        return await in_thread(self.cluster.replicas, topic, partition)

    async def followers(self, topic: str, partition: int = 0) -> list[int]:
        return await in_thread(self.cluster.followers, topic, partition)

    async def under_replicated(self) -> list[PartitionKey]:
        return await in_thread(self.cluster.under_replicated)

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        configs: Mapping[str, object] | None = None,
    ) -> None:
        await in_thread(self.cluster.create_topic, name, partitions, replication_factor, configs)

    async def delete_topic(self, name: str) -> None:
        await in_thread(self.cluster.delete_topic, name)

    @property
    def faults(self) -> AsyncFaults:
        return AsyncFaults(self.cluster.faults)

    @property
    def _in_threads(self) -> Cluster:
        return self.cluster

    @property
    def disk(self) -> AsyncDisk:
        return AsyncDisk(self.faults)

    @property
    def clock(self) -> AsyncClock:
        return AsyncClock(self.faults)

    @property
    def history(self) -> Awaitable[History]:
        return in_thread(lambda: self.cluster.history)

    @property
    def network(self) -> AsyncNetwork:
        return AsyncNetwork(self.cluster.network)

    async def kill(self, server: Server) -> None:
        await in_thread(self.cluster.kill, server)

    async def stop(self, server: Server) -> None:
        await in_thread(self.cluster.stop, server)

    async def start(self, server: Server, properties: Mapping[str, object] | None = None, *, wait: bool = True) -> None:
        await in_thread(self.cluster.start, server, properties, wait=wait)

    async def restart(self, server: Server, properties: Mapping[str, object] | None = None) -> None:
        await in_thread(self.cluster.restart, server, properties)

    async def pause(self, server: Server) -> None:
        await in_thread(self.cluster.pause, server)

    async def resume(self, server: Server) -> None:
        await in_thread(self.cluster.resume, server)

    async def heal(self) -> None:
        await in_thread(self.cluster.heal)

    async def add_broker(self, properties: Mapping[str, object] | None = None) -> int:
        return await in_thread(self.cluster.add_broker, properties)

    async def until(self, condition: Callable[[], Awaitable[Any] | Any], timeout: float = TIMEOUT_S) -> Any:  # noqa: ASYNC109
        """As Cluster.until; the condition may be a coroutine function, which a condition on this object needs."""
        require_asyncio()
        wait = Wait(condition, timeout, self.describe)
        while True:
            with wait.look() as look:
                value = condition()
                look.value = await value if inspect.isawaitable(value) else value
            if look.value:
                return look.value
            await asyncio.sleep(wait.pause_s())
