"""The network of one broker under faults: every connection that it opens or accepts can be disturbed.

The broker that opens a connection enforces faults between two brokers, or a broker and ZooKeeper, because it knows the
address. The accepting broker enforces faults between clients and brokers. It learns the client id from the first
request of the connection.

What must stay true:
- Once `install` has returned, no written byte passes a cut.
- A client is identified before it is served if a fault concerns clients.
- Connections of other brokers, and of the cluster's owner, do not count as clients.
- Randomness comes from the fault's seed, the two ends, and the number of the connection between them.
"""

import asyncio
import errno
import random
import re
import struct
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import uvloop

from klamm.faults.agent import Agent
from klamm.faults.commands import Server
from klamm.faults.commands.network import (
    CutLinks,
    DelayLinks,
    End,
    HalfOpenConnections,
    LinkFault,
    ResetConnections,
    SlowLinks,
)
from klamm.faults.network.lanes import CLEAR, Conditions, Draw
from klamm.faults.network.tap import Tap
from klamm.faults.tally import Tally
from klamm.net.framing import ReceiveBuffer
from klamm.net.server.server_connection import ServerConnection
from klamm.processes.readiness import CLIENT_ID
from klamm.protocol.messages import ApiKey

Address = tuple[str, int]

# APIs that clients never use. Followers fetch with this client id, as Kafka's do.
_FOLLOWER = re.compile(r"broker-\d+-fetcher-\d+")
_BROKERS_REQUESTS = frozenset(
    {
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
        ApiKey.ALTER_ISR,
        ApiKey.WRITE_TXN_MARKERS,
    }
)

_API_KEYS = frozenset(ApiKey)

# The start of a request: size, API, version, correlation id, length of the client id.
_HEADER = struct.Struct(">ihhih")
_LEAST_SIZE = _HEADER.size - 4
_MAX_HEADER_BYTES = _HEADER.size + 2**15


@dataclass(eq=False)
class _Active:
    """An installed fault. `connections` has the number of each concerned connection, and whether the fault has struck
    it."""

    fault: LinkFault
    tally: Tally
    connections: dict[int, bool] = field(default_factory=dict)
    # The delays by the number of the connection and the direction. They follow from the seed, the two ends, and the
    # number of earlier connections between these ends.
    draws: dict[tuple[int, bool], Draw] = field(default_factory=dict)
    drawn: Counter[str] = field(default_factory=Counter)

    def ask(self, number: int) -> None:
        if number not in self.connections:
            self.connections[number] = False
            self.tally.asked()

    def strike(self, number: int, details: Mapping[str, object]) -> None:
        if not self.connections[number]:
            self.connections[number] = True
            self.tally.struck(**details)


@dataclass(eq=False)
class _Connection:
    """A connection. `address` is None if this broker has accepted it.

    `is_identified` if the peer is known. `is_exempt` if the peer is another broker, or the cluster's owner.
    """

    number: int
    address: Address | None
    is_identified: bool
    client_id: str | None = None
    is_exempt: bool = False
    first_bytes: bytes = b""
    # The faults that concern the connection in at least one direction.
    faults: list[_Active] = field(default_factory=list)


class Network:
    """The network of `server`. `addresses()` returns the servers by their listener addresses."""

    def __init__(self, server: int, addresses: Callable[[], Mapping[Address, Server]]) -> None:
        self._server = server
        self._addresses = addresses
        self._active: list[_Active] = []
        self._connections: weakref.WeakKeyDictionary[Tap, _Connection] = weakref.WeakKeyDictionary()
        self._last_number = 0
        self._changed = asyncio.Event()
        self._receive_buffer = ReceiveBuffer()

    def register(self, agent: Agent) -> None:
        """Registers the network faults with the agent."""
        for kind in (CutLinks, DelayLinks, SlowLinks):
            agent.installs(kind, self.install)
        agent.installs(ResetConnections, self.reset)
        agent.installs(HalfOpenConnections, self.half_open)

    # -- faults -----------------------------------------------------------------------------------------------------

    def install(self, fault: LinkFault, tally: Tally) -> Callable[[], None]:
        """Begins a cut, a delay or a rate limit; returns a function that ends it."""
        active = _Active(fault, tally)
        self._active.append(active)
        for tap, connection in self._connected():
            if self._concerns(fault, connection):
                connection.faults.append(active)
                self._apply(tap)
        self._tell_changed()

        def end() -> None:
            self._active.remove(active)
            for tap, connection in self._connected():
                if active in connection.faults:
                    connection.faults.remove(active)
                    self._apply(tap)
            self._tell_changed()

        return end

    def reset(self, fault: ResetConnections, tally: Tally) -> Callable[[], None]:
        """Resets the open connections."""
        for tap, connection in self._open_connections(fault, tally):
            tap.reset()
            tally.struck(**self._named(connection))
        return lambda: None

    def half_open(self, fault: HalfOpenConnections, tally: Tally) -> Callable[[], None]:
        """Ends the open connections at one end; returns a function that ends them at the other end."""
        taps = []
        for tap, connection in self._open_connections(fault, tally):
            peer = self._peer(connection)
            is_lost_here = peer is not None and fault.leads(self._server, peer)
            (tap.drop_here if is_lost_here else tap.drop_there)()
            taps.append(tap)
            tally.struck(**self._named(connection))

        def end() -> None:
            for tap in taps:
                tap.end_half_open()

        return end

    def _open_connections(self, fault: LinkFault, tally: Tally) -> list[tuple[Tap, _Connection]]:
        """The open connections that a fault concerns, oldest first."""
        concerned = [
            (tap, connection)
            for tap, connection in self._connected()
            if tap.is_open and self._concerns(fault, connection)
        ]
        for _ in concerned:
            tally.asked()
        return concerned

    # -- connections ------------------------------------------------------------------------------------------------

    async def dial(self, address: Address) -> _Connection:
        """Returns when packets of a new connection pass in both directions. Raises ConnectionRefusedError."""
        connection = self._new_connection(address)
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        while True:
            changed = self._changed
            self._find_faults(connection)
            ways = [self._conditions(connection, outgoing=True), self._conditions(connection, outgoing=False)]
            is_cut = any(way.is_cut for way in ways)
            opens_at_s = begun_s + sum(draw() for way in ways for draw in way.delays)
            if not is_cut and opens_at_s <= loop.time():
                return connection
            for way in ways:
                way.held()
            if self._is_refused(connection):
                raise ConnectionRefusedError(errno.ECONNREFUSED, f"Connect call failed {address}")
            try:
                async with asyncio.timeout_at(None if is_cut else opens_at_s):
                    await changed.wait()
            except TimeoutError:
                return connection
            if is_cut:
                begun_s = loop.time()

    def dialled(self, protocol: asyncio.BaseProtocol, connection: _Connection) -> Tap:
        """The protocol of a connection that this broker opens, after `dial`."""
        tap = Tap(protocol, self._receive_buffer, self._begin)
        self._connections[tap] = connection
        return tap

    def accepted(self, protocol: asyncio.BaseProtocol) -> asyncio.BaseProtocol:
        """The protocol of a connection that this broker accepts. Only those of Kafka's protocol can be disturbed."""
        if not isinstance(protocol, ServerConnection):
            return protocol
        tap = Tap(protocol, self._receive_buffer, self._begin, self._identify)
        self._connections[tap] = self._new_connection(None)
        return tap

    def _new_connection(self, address: Address | None) -> _Connection:
        self._last_number += 1
        return _Connection(self._last_number, address, is_identified=address is not None)

    def _identify(self, tap: Tap, data: memoryview) -> bool:
        """Looks at the first bytes of a client; returns False when it needs no more bytes."""
        connection = self._connections[tap]
        connection.first_bytes += bytes(data[:_MAX_HEADER_BYTES])
        header = _parsed(connection.first_bytes)
        if header is None:
            return True
        api_key, connection.client_id = header
        connection.first_bytes = b""
        connection.is_identified = True
        connection.is_exempt = connection.client_id == CLIENT_ID or _is_of_broker(api_key, connection.client_id or "")
        self._begin(tap)
        if self._is_refused(connection):
            tap.reset()
        return False

    # -- what holds for a connection ----------------------------------------------------------------------------------

    def _connected(self) -> list[tuple[Tap, _Connection]]:
        return [(tap, connection) for tap, connection in self._connections.items() if tap.is_connected]

    def _begin(self, tap: Tap) -> None:
        """Applies the faults to a connection that is open or identified now."""
        self._find_faults(self._connections[tap])
        self._apply(tap)

    def _find_faults(self, connection: _Connection) -> None:
        connection.faults = [active for active in self._active if self._concerns(active.fault, connection)]

    def _tell_changed(self) -> None:
        for tap, connection in self._connected():
            if not connection.is_identified:
                self._apply(tap)
        self._changed.set()
        self._changed = asyncio.Event()

    def _apply(self, tap: Tap) -> None:
        connection = self._connections[tap]
        tap.change(self._conditions(connection, outgoing=True), self._conditions(connection, outgoing=False))

    def _conditions(self, connection: _Connection, *, outgoing: bool) -> Conditions:
        if not connection.is_identified:
            # Requests wait until the client is known. Nothing is sent before the first request.
            is_cut = not outgoing and any(active.fault.covers("clients", self._server) for active in self._active)
            return Conditions(is_cut=is_cut)
        concerned = [active for active in connection.faults if self._covers(active.fault, connection, outgoing)]
        if not concerned:
            return CLEAR
        for active in concerned:
            active.ask(connection.number)
        faults = [active.fault for active in concerned]
        return Conditions(
            is_cut=any(isinstance(fault, CutLinks) for fault in faults),
            delays=tuple(self._draw(active, connection, outgoing) for active in concerned if _delays(active.fault)),
            bytes_per_s=min((fault.bytes_per_s for fault in faults if isinstance(fault, SlowLinks)), default=None),
            held=partial(self._strike, concerned, connection),
        )

    def _concerns(self, fault: LinkFault, connection: _Connection) -> bool:
        """Whether the fault concerns the connection in at least one direction."""
        if connection.is_exempt or not connection.is_identified:
            return False
        if connection.address is None and fault.client_id not in (None, connection.client_id):
            return False
        return any(self._covers(fault, connection, outgoing) for outgoing in (True, False))

    def _covers(self, fault: LinkFault, connection: _Connection, outgoing: bool) -> bool:
        """Whether the fault concerns the bytes that this broker sends (`outgoing`) or receives."""
        peer = self._peer(connection)
        if peer is None:
            return False
        return fault.covers(self._server, peer) if outgoing else fault.covers(peer, self._server)

    def _peer(self, connection: _Connection) -> End | None:
        """The other end, or None for a program that is not a server of the cluster."""
        return "clients" if connection.address is None else self._addresses().get(connection.address)

    def _is_refused(self, connection: _Connection) -> bool:
        return any(isinstance(active.fault, CutLinks) and active.fault.refuse for active in connection.faults)

    def _draw(self, active: _Active, connection: _Connection, outgoing: bool) -> Draw:
        key = (connection.number, outgoing)
        if key not in active.draws:
            fault = cast(DelayLinks, active.fault)
            ends = f"{self._server} {connection.client_id or self._peer(connection)} {outgoing}"
            chance = random.Random(f"{fault.seed} {ends} {active.drawn[ends]}")
            active.drawn[ends] += 1
            active.draws[key] = jittered(fault.ms / 1000, fault.jitter_ms / 1000, chance)
        return active.draws[key]

    def _strike(self, concerned: list[_Active], connection: _Connection) -> None:
        for active in concerned:
            active.strike(connection.number, self._named(connection))

    def _named(self, connection: _Connection) -> dict[str, object]:
        """The ends of a connection, for the history."""
        ends: dict[str, object] = {"broker": self._server, "peer": self._peer(connection)}
        return ends if connection.client_id is None else {**ends, "client_id": connection.client_id}


class FaultyLoop(uvloop.Loop):
    """The loop of a broker under faults: all its connections go through the network."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self._network = network

    async def create_connection(  # type: ignore[override]  # only what klamm uses
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **options: Any
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        connection = await self._network.dial((host, port))
        protocol = protocol_factory()
        tap = self._network.dialled(protocol, connection)
        await super().create_connection(lambda: tap, host, port, **options)
        return tap, protocol

    async def create_server(
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], *address: Any, **options: Any
    ) -> Any:
        return await super().create_server(lambda: self._network.accepted(protocol_factory()), *address, **options)


def jittered(delay_s: float, jitter_s: float, chance: random.Random) -> Draw:
    """Random delays between `delay_s - jitter_s` and `delay_s + jitter_s`."""
    return lambda: delay_s + chance.uniform(-jitter_s, jitter_s)


def _delays(fault: LinkFault) -> bool:
    return isinstance(fault, DelayLinks)


def _parsed(data: bytes) -> tuple[int, str | None] | None:
    """The API and the client id of the request that begins with these bytes; None until enough bytes are there.

    Bytes that are not a request have no client id.
    """
    if len(data) < 4:
        return None
    if int.from_bytes(data[:4], signed=True) < _LEAST_SIZE:
        return -1, None
    if len(data) < _HEADER.size:
        return None
    size, api_key, _, _, length = _HEADER.unpack_from(data)
    if api_key not in _API_KEYS or not 0 <= length <= size - _LEAST_SIZE:
        return api_key, None
    end = _HEADER.size + length
    return None if len(data) < end else (api_key, data[_HEADER.size : end].decode("utf-8", "replace"))


def _is_of_broker(api_key: int, client_id: str) -> bool:
    return api_key in _BROKERS_REQUESTS or _FOLLOWER.fullmatch(client_id) is not None
