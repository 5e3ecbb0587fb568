"""The embedded server in a simulated world, and clients of it."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from klamm.simulation.machine.world import Node, World
from klamm.zookeeper.server import ZooKeeperServer
from support.zookeeper.wire import WireClient

PORT = 2181


class Stage:
    """A server in a simulated world, and clients of it."""

    def __init__(self, world: World, node: Node, server: ZooKeeperServer, transactions: list[tuple[int, str]]) -> None:
        self.world, self.node, self.server, self.transactions = world, node, server, transactions

    async def client(self, **options: Any) -> WireClient:
        return await self.world.node("client").run(WireClient.connect(PORT, host=self.node.address, **options))

    async def stranger(self) -> WireClient:
        """A connection without a session."""
        return await self.world.node("client").run(WireClient.open(PORT, self.node.address))

    def hold_disk(self) -> "asyncio.Future[None]":
        """From now on the server's disk does nothing until the future that is returned has a result."""
        release = self.world.loop.create_future()
        run_blocking = self.node.environment.run_blocking

        async def held(function: Any, *arguments: Any) -> Any:
            await release
            return await run_blocking(function, *arguments)

        self.node.environment.run_blocking = held  # type: ignore[method-assign]
        return release


def run(
    scenario: Callable[[Stage], Awaitable[None]], seed: int = 1, *, takes_turns: bool = False, **options: Any
) -> None:
    """`takes_turns`: pauses between slices take time."""
    world = World(seed)
    if takes_turns:
        world.loop.turns = random.Random(seed)

    async def play() -> None:
        node = world.node("server")
        transactions: list[tuple[int, str]] = []
        server = ZooKeeperServer(
            node.environment,
            "/zookeeper",
            node.address,
            PORT,
            on_transaction=lambda zxid, text: transactions.append((zxid, text)),
            **options,
        )
        await node.run(server.start())
        await scenario(Stage(world, node, server, transactions))
        await node.run(server.stop())
        await node.run(server.wait_closed())

    world.run(play())
