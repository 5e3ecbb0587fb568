"""The in-memory network: hosts, the links between them, and the opening of connections.

What must stay true:
- A link that is cut, both ways or one way, lets no segment pass and loses none: they wait until it is healed.
- Every connect, refusal and change of a link is in the trace.
"""

import asyncio
import contextvars
import errno
import random
import socket
from collections.abc import Callable

from klamm.simulation.machine.connections import Pipe, Transport, reset_by_peer
from klamm.simulation.machine.hosts import Host, Listener
from klamm.simulation.machine.loop import SimulatedLoop
from klamm.simulation.machine.process import CURRENT, Process
from klamm.simulation.machine.trace import Trace

# Linux's default for tcp_syn_retries: the first retry after a second, then twice as long each time.
CONNECT_RETRIES = 6

LOOPBACK_US = (10, 50)
LINK_US = (50, 500)
SLOW_LINK_US = (1_000, 20_000)
SLOW_CHANCE = 0.02


class Network:
    """All hosts and connections of a world."""

    def __init__(self, loop: SimulatedLoop, chance: random.Random, trace: Trace) -> None:
        self.loop = loop
        self.random = chance
        self.trace = trace
        self._hosts: dict[str, Host] = {}
        self._transports: dict[Transport, None] = {}
        self._cut: set[tuple[str, str]] = set()
        # The network's own steps belong to no program.
        self._context = contextvars.Context()
        self.add_host(loop.outside.host)

    def add_host(self, name: str) -> Host:
        """A new machine with its own address. Its name and its address reach it."""
        host = Host(name, f"10.0.{len(self._hosts) // 250}.{len(self._hosts) % 250 + 1}")
        self._hosts[name] = host
        return host

    def resolve(self, name: str) -> Host:
        """The host of a name or address. socket.gaierror when there is none."""
        if name in ("localhost", "127.0.0.1", "::1"):
            return self._here()
        for host in self._hosts.values():
            if name in (host.name, host.address):
                return host
        raise socket.gaierror(socket.EAI_NONAME, f"Name or service not known: {name}")

    def address_of(self, name: str) -> str:
        """The address of the host that `resolve` finds."""
        return self.resolve(name).address

    def cut(self, one: str, other: str) -> None:
        """From now on no segment passes between two hosts. Segments on their way wait."""
        self._cut |= {(one, other), (other, one)}
        self.trace.add("network", "cut", one, other)

    def cut_one_way(self, source: str, target: str) -> None:
        """From now on no segment from `source` reaches `target`; the other way works."""
        self._cut.add((source, target))
        self.trace.add("network", "cut-one-way", source, target)

    def heal(self, one: str, other: str) -> None:
        """Undoes `cut` and `cut_one_way`."""
        self._cut -= {(one, other), (other, one)}
        self.trace.add("network", "heal", one, other)
        self._links_changed()

    def heal_all(self) -> None:
        """Undoes all cuts."""
        self._cut.clear()
        self.trace.add("network", "heal-all")
        self._links_changed()

    def end_connections(self, one: str, other: str) -> None:
        """Resets every connection between two hosts, like a firewall between them; each end notices soon."""
        self.trace.add("network", "end-connections", one, other)
        for transport in list(self._transports):
            if {transport.host.name, transport.incoming.sender.host.name} == {one, other}:
                delay_s = self.random.randint(*LINK_US) / 1_000_000
                self.loop.call_later(delay_s, transport.reset, reset_by_peer(), context=transport.context)

    def _links_changed(self) -> None:
        for transport in list(self._transports):
            transport.incoming.healed()

    def is_cut(self, source: Host, target: Host) -> bool:
        return bool(self._cut) and (source.name, target.name) in self._cut

    def delay_s(self, one: Host, other: Host) -> float:
        """How long a segment takes."""
        if one is other:
            return self.random.randint(*LOOPBACK_US) / 1_000_000
        slow = self.random.random() < SLOW_CHANCE
        return self.random.randint(*(SLOW_LINK_US if slow else LINK_US)) / 1_000_000

    # -- servers and connections ------------------------------------------------------------------------------------

    def listen(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        host: str | list[str] | None,
        port: int,
        start_serving: bool,
    ) -> Listener:
        """Binds a port on the host of the running process. OSError when it is taken or the address is not its own."""
        here = self._here()
        for name in [host] if isinstance(host, str) else host or []:
            if name not in ("", "0.0.0.0", "::") and self.resolve(name) is not here:
                raise OSError(errno.EADDRNOTAVAIL, f"could not bind on {name}: not an address of {here.name}")
        port = port or here.free_port()
        if port in here.listeners:
            raise OSError(errno.EADDRINUSE, f"could not bind on port {port} of {here.name}: address already in use")
        listener = here.listeners[port] = Listener(self.loop, factory, here, port, start_serving)
        self.trace.add(f"{here.name}:{port}", "listen")
        return listener

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[Transport, asyncio.BaseProtocol]:
        """Opens a connection. OSError: refused, timed out, or no such host."""
        here, there = self._here(), self.resolve(host)
        transport = Transport(self, contextvars.copy_context(), here, here.free_port(), (there, port))
        established: asyncio.Future[None] = self.loop.create_future()
        self._send_syn(transport, there, port, established)
        try:
            await established
        except asyncio.CancelledError:
            if transport in self._transports:
                transport.abort()
            raise
        if transport.is_closing():
            raise reset_by_peer()
        protocol = factory()
        transport.open(protocol)
        return transport, protocol

    def _send_syn(
        self, transport: Transport, there: Host, port: int, established: "asyncio.Future[None]", attempt: int = 0
    ) -> None:
        if established.done() or not transport.process.alive:
            return
        here, later = transport.host, self.loop.call_later
        if self.is_cut(here, there) or self.is_cut(there, here) or not there.up:
            if attempt > CONNECT_RETRIES:
                _settle(established, TimeoutError(errno.ETIMEDOUT, f"Connect call failed {(there.address, port)}"))
            else:
                arguments = (transport, there, port, established, attempt + 1)
                later(2.0**attempt, self._send_syn, *arguments, context=self._context)
            return
        later(self.delay_s(here, there), self._arrive, transport, there, port, established, context=self._context)

    def _arrive(self, transport: Transport, there: Host, port: int, established: "asyncio.Future[None]") -> None:
        """The request for a connection reaches its host."""
        if established.done() or not transport.process.alive:
            return
        answer_s = self.delay_s(there, transport.host)
        listener = there.listeners.get(port)
        if listener is None or not listener.is_serving():
            self.trace.add(str(transport), "refused")
            error = ConnectionRefusedError(errno.ECONNREFUSED, f"Connect call failed {(there.address, port)}")
            self.loop.call_later(answer_s, _settle, established, error, context=self._context)
            return
        self.trace.add(str(transport), "connect")
        accepted = Transport(self, listener.context.copy(), there, port, (transport.host, transport.port))
        transport.outgoing = accepted.incoming = Pipe(self, transport, accepted)
        accepted.outgoing = transport.incoming = Pipe(self, accepted, transport)
        self._transports[transport] = self._transports[accepted] = None
        self.loop.call_soon(_accept, listener, accepted, context=accepted.context)
        self.loop.call_later(answer_s, _settle, established, None, context=self._context)

    def forget(self, transport: Transport) -> None:
        """Forgets a transport that has ended."""
        self._transports.pop(transport, None)

    def process_died(self, process: Process, *, machine: bool) -> None:
        """Frees the process's ports and ends its connections."""
        for host in self._hosts.values():
            for port, listener in list(host.listeners.items()):
                if listener.process is process:
                    del host.listeners[port]
        for transport in list(self._transports):
            if transport.process is process:
                transport.die(machine)

    def process_stalled(self, process: Process) -> None:
        for transport in self._transports:
            if transport.process is process:
                transport.outgoing.hold_back()

    def process_resumed(self, process: Process) -> None:
        for transport in self._transports:
            if transport.process is process:
                transport.outgoing.release()

    def _here(self) -> Host:
        return self._hosts[CURRENT.get(self.loop.outside).host]


def _accept(listener: Listener, transport: Transport) -> None:
    if not transport.is_closing():
        transport.open(listener.factory(), listener)


def _settle(established: "asyncio.Future[None]", error: OSError | None) -> None:
    if established.done():
        return
    if error is None:
        established.set_result(None)
    else:
        established.set_exception(error)
