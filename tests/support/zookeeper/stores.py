"""The store of a broker on an embedded server, also with connections that are lost."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from klamm.base.system_environment import SystemEnvironment
from klamm.znodes.store import KafkaZooKeeper
from klamm.zookeeper.server import ZooKeeperServer
from support.zookeeper.proxy import Proxy
from support.zookeeper.scenarios import Scene

T = TypeVar("T")


@asynccontextmanager
async def playing(tmp_path: Path) -> AsyncIterator[tuple[Scene, KafkaZooKeeper]]:
    environment = SystemEnvironment()
    server = ZooKeeperServer(environment, str(tmp_path))
    await server.start()
    try:
        scene = Scene(environment, "127.0.0.1", server.port, "/kafka")
        async with scene.client() as client:
            store = KafkaZooKeeper(client)
            await store.create_persistent_paths()
            yield scene, store
    finally:
        await server.stop()
        environment.close()


async def with_losses(
    proxy: Proxy, attempt: Callable[[int], Awaitable[T]], when_lost: Callable[[int], Awaitable[None]] | None = None
) -> list[T]:
    """Does `attempt` again and again; in the n-th one the connection is lost after the server has answered n times.

    `when_lost` is what others do between the server's last answer and the loss. Returns the results, up to the first
    attempt that was through before that.
    """
    results = []
    for step in itertools.count():
        proxy.hold_answers(after=step)
        trying = asyncio.ensure_future(attempt(step))
        held = asyncio.ensure_future(proxy.held.wait())
        await asyncio.wait([trying, held], return_when=asyncio.FIRST_COMPLETED)
        lost = held.done()
        held.cancel()
        if lost:
            if when_lost is not None:
                await when_lost(step)
            proxy.cut()
        proxy.release()
        results.append(await trying)
        if not lost:
            assert step > 0
            return results
    raise AssertionError


@asynccontextmanager
async def playing_with_losses(tmp_path: Path) -> AsyncIterator[tuple[Proxy, KafkaZooKeeper, KafkaZooKeeper]]:
    """The scenario gets a store whose connection the proxy can cut, and one that it cannot."""
    async with playing(tmp_path) as (scene, store), scene.proxy() as proxy, scene.client(proxy.address) as client:
        yield proxy, KafkaZooKeeper(client), store
