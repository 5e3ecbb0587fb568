"""How a tool reaches ZooKeeper."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from klamm.processes.tool_errors import ToolError

if TYPE_CHECKING:
    from klamm.znodes.store import KafkaZooKeeper

T = TypeVar("T")

SESSION_TIMEOUT_MS: Final = 10_000


@asynccontextmanager
async def open_znodes(connect: str) -> "AsyncIterator[KafkaZooKeeper]":
    """The znodes of the cluster whose brokers have this zookeeper.connect.

    Raises ToolError, also for an error of ZooKeeper or of a znode inside the block.
    """
    from klamm.base.system_environment import SystemEnvironment
    from klamm.znodes.fields import ZnodeError
    from klamm.znodes.store import KafkaZooKeeper
    from klamm.zookeeper.client import ZooKeeperClient
    from klamm.zookeeper.keeper_exceptions import ZooKeeperError

    environment = SystemEnvironment(blocking_workers=1)
    try:
        client = ZooKeeperClient(environment, connect, session_timeout_ms=SESSION_TIMEOUT_MS)
        try:
            await client.start(SESSION_TIMEOUT_MS)
            yield KafkaZooKeeper(client)
        finally:
            await client.close()
    except (ZooKeeperError, ZnodeError, ValueError) as error:
        raise ToolError(f"ZooKeeper at {connect}: {error}") from error
    finally:
        environment.close()


def run_with_zookeeper(connect: str, work: "Callable[[KafkaZooKeeper], Awaitable[T]]") -> T:
    """The result of `work(znodes)`. Raises ToolError like `open_znodes`, and for a KafkaError."""
    import asyncio

    from klamm.access.clients import cluster_errors

    async def run() -> T:
        async with open_znodes(connect) as znodes:
            return await work(znodes)

    with cluster_errors():
        return asyncio.run(run())
