"""Troubles of a program with its requests: its process stands still, or an answer is lost.

    troubles = Troubles(world, node, CLIENT_OPTIONS)
    client = ClusterClient(bootstrap, troubles.options)    # of a program that runs on the node

Chance decides at each request of any kind. A process that stands still (SIGSTOP, a machine that swaps, a long garbage
collection) neither sends nor reads, and continues as if no time had passed. When an answer is lost, the broker has
executed the request.

What must stay true: all connections of the client and of its copies (`ClusterClient.another`) have the troubles.
"""

import asyncio
import contextvars
import math
import random
from dataclasses import replace
from typing import Any

from klamm.net.client import Connection, ConnectionOptions, Disconnected
from klamm.protocol.messages import ApiKey
from klamm.simulation.machine.world import Node, World

# The share of requests with a standstill, before the request or after its answer; the share of requests whose answer is
# lost.
STANDSTILLS, LOST_ANSWERS = 0.006, 0.01
# Some are shorter than a session of the copiers. Some are a little longer, so that earlier transactions are still open.
# Some are longer than transactions may be open.
STANDSTILLS_S = (0.3, 2.0, 4.0, 5.0, 6.0, 8.0, 14.0)


class Troubles:
    """See the module. `is_over` ends them."""

    def __init__(self, world: World, node: Node, options: ConnectionOptions) -> None:
        self.options = replace(options, authenticate=self._attach)
        self.is_over = False
        # When the process continued after its last standstill of at least a second.
        self.stood_still_s = -math.inf
        self._world, self._node = world, node
        self._random = random.Random(f"{world.seed}/troubles/{node.name}")

    async def _attach(self, connection: Connection) -> int:
        """Gives a fresh connection the troubles. Returns 0: the connection needs no reauthentication."""
        send = connection.send

        async def troubled(api_key: ApiKey, *arguments: Any, **named: Any) -> Any:
            drawn = 1.0 if self.is_over else self._random.random()
            if drawn < STANDSTILLS / 2:
                await self._stand_still(api_key, "before")
            response = await send(api_key, *arguments, **named)
            if STANDSTILLS / 2 <= drawn < STANDSTILLS:
                await self._stand_still(api_key, "after")
            elif STANDSTILLS <= drawn < STANDSTILLS + LOST_ANSWERS:
                self._world.trace.add(self._node.name, "lost-answer", api_key.message_name)
                connection.close("the answer is lost")
                raise Disconnected(f"{connection}: the answer is lost")
            return response

        connection.send = troubled  # type: ignore[method-assign]
        return 0

    async def _stand_still(self, api_key: ApiKey, when: str) -> None:
        process, seconds = self._node.process, self._random.choice(STANDSTILLS_S)
        if process.stalled or not process.alive:
            return
        self._world.trace.add(self._node.name, "stands-still", when, api_key.message_name, seconds)
        self._node.stall()
        # An empty context: in the context of the stalled process the timer would not run.
        self._world.loop.call_later(seconds, self._continue, process, seconds, context=contextvars.Context())
        await asyncio.sleep(0)

    def _continue(self, process: Any, seconds: float) -> None:
        if self._node.process is process and process.alive and process.stalled:
            if seconds >= 1:
                self.stood_still_s = self._world.loop.time()
            self._node.resume()
