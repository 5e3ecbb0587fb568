"""Machines of the simulated network, and the ports on which their processes listen.

What must stay true:
- A host never picks the same port twice, so that no late segment reaches a new owner of a port.
- A closed listener frees its port at once; `wait_closed` also waits for its connections, as asyncio's does.
"""

import asyncio
import contextvars
import socket
from collections.abc import Callable

from klamm.simulation.machine.loop import SimulatedLoop
from klamm.simulation.machine.process import CURRENT, SimulationFailure

FIRST_EPHEMERAL_PORT = 32768


class Host:
    """A machine on the network. Its name resolves to its address."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.up = True
        self.listeners: dict[int, Listener] = {}
        self._next_port = FIRST_EPHEMERAL_PORT

    def free_port(self) -> int:
        """A port that this host has never given out before."""
        while self._next_port in self.listeners:
            self._next_port += 1
        self._next_port += 1
        return self._next_port - 1


class ListeningSocket:
    """An element of `Server.sockets`: enough to learn the port."""

    family = socket.AF_INET

    def __init__(self, address: str, port: int) -> None:
        self._name = (address, port)

    def getsockname(self) -> tuple[str, int]:
        return self._name


class Listener(asyncio.AbstractServer):
    """A bound port, returned by `loop.create_server`."""

    def __init__(
        self,
        loop: SimulatedLoop,
        factory: Callable[[], asyncio.BaseProtocol],
        host: Host,
        port: int,
        start_serving: bool,
    ) -> None:
        self._loop = loop
        self.factory = factory
        self.context = contextvars.copy_context()
        self.process = self.context.get(CURRENT, loop.outside)
        self.host = host
        self.port = port
        self.sockets: tuple[ListeningSocket, ...] = (ListeningSocket(host.address, port),)
        self._serving = start_serving
        self._closed = False
        self._transports: dict[asyncio.Transport, None] = {}
        self._waiters: list[asyncio.Future[None]] = []

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def is_serving(self) -> bool:
        return self._serving

    async def start_serving(self) -> None:
        self._serving = not self._closed

    async def serve_forever(self) -> None:
        raise SimulationFailure("Server.serve_forever is not simulated")

    def close(self) -> None:
        """Frees the port. Connections stay."""
        if self._closed:
            return
        self._closed, self._serving, self.sockets = True, False, ()
        if self.host.listeners.get(self.port) is self:
            del self.host.listeners[self.port]
        self._wake()

    async def wait_closed(self) -> None:
        """Waits until the server and all its connections are closed."""
        if not self._closed or self._transports:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def attach(self, transport: asyncio.Transport) -> None:
        self._transports[transport] = None

    def detach(self, transport: asyncio.Transport) -> None:
        self._transports.pop(transport, None)
        self._wake()

    def _wake(self) -> None:
        if self._closed and not self._transports:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters.clear()
