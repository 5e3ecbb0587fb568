"""The connections of a client: one for each address, opened at the first use and again after a disconnection.

What must stay true:
- There is at most one connection for each broker address, and one attempt to open it at a time.
- For a broker that hangs, many waiting requests share one attempt.
- A request to an avoided broker fails at once, with the reason.
"""

import asyncio
from collections.abc import Mapping

from klamm.net.client import Address, Avoided, ClientError, ConnectFailed, Connection, ConnectionOptions, Connector
from klamm.net.framing import ReceiveBuffer


class _Connecting:
    """The attempts to connect to one address, one at a time, how many have failed, and why the last attempt failed.

    `since_s` is the begin of the first attempt since the last connection; None while a connection is open.
    """

    def __init__(self, connector: Connector) -> None:
        self.connector = connector
        self.turn = asyncio.Lock()
        self.failures = 0
        self.error: ClientError | None = None
        self.since_s: float | None = None


class Connections:
    """Connections with these options, until `close`."""

    def __init__(self, options: ConnectionOptions) -> None:
        self.is_closed = False
        # The addresses that `to` refuses, with the reasons.
        self.avoided: Mapping[Address, str] = {}
        self._options = options
        self._receive_buffer = ReceiveBuffer()
        self._connections: dict[Address, Connection] = {}
        self._connecting: dict[Address, _Connecting] = {}

    async def to(self, address: Address, *, at_most_ms: int | None = None) -> Connection:
        """The connection to this address, opened if necessary. Raises ClientError."""
        if (silence := self.avoided.get(address)) is not None:
            raise Avoided(f"{address[0]}:{address[1]}: {silence}")
        connecting = self._connecting.get(address)
        if connecting is None:
            connector = Connector(self._options, self._options.connect_timeout_max_ms, self._receive_buffer)
            connecting = self._connecting[address] = _Connecting(connector)
        failures = connecting.failures
        async with connecting.turn:
            if self.is_closed:
                raise ConnectFailed("this client is closed")
            if (connection := self.open_to(address)) is not None:
                return connection
            if connecting.failures > failures and connecting.error is not None:
                # An attempt has failed while this request waited for it. With a broker that hangs, many requests would
                # otherwise wait for attempts of their own, one after another.
                raise type(connecting.error)(*connecting.error.args)
            if connecting.since_s is None:
                connecting.since_s = asyncio.get_running_loop().time()
            try:
                connection = await connecting.connector.connect(*address, at_most_ms=at_most_ms)
            except ClientError as error:
                connecting.failures += 1
                connecting.error = error
                raise
            connecting.since_s = None
            if self.is_closed:
                connection.close()
                raise ConnectFailed("this client is closed")
            self._connections[address] = connection
            return connection

    def open_to(self, address: Address) -> Connection | None:
        """The connection to this address, if one is open."""
        connection = self._connections.get(address)
        return connection if connection is not None and connection.connected else None

    def open(self) -> list[Address]:
        """The addresses with an open connection."""
        return [address for address, connection in self._connections.items() if connection.connected]

    def forget_closed(self) -> None:
        """Forgets connections that are no longer open."""
        self._connections = {address: self._connections[address] for address in self.open()}

    def avoid(self, silent: Mapping[Address, str]) -> None:
        """From now on `to` raises `Avoided` for these addresses. Their pending requests fail."""
        self.avoided = dict(silent)
        for address in [each for each in self._connections if each in silent]:
            self._connections.pop(address).close(silent[address])

    def waits(self, longer_than_s: float) -> dict[Address, str]:
        """The addresses for which a request has waited, each with a sentence about the wait."""
        since_s = asyncio.get_running_loop().time() - longer_than_s
        found = {
            address: f"{address[0]}:{address[1]}: no answer yet" if connecting.error is None else str(connecting.error)
            for address, connecting in self._connecting.items()
            if connecting.since_s is not None and connecting.since_s < since_s and connecting.turn.locked()
        }
        for address, connection in self._connections.items():
            if (api := connection.unanswered(longer_than_s)) is not None:
                found[address] = f"{connection}: no answer to {api} yet"
        return found

    async def close(self) -> None:
        """Closes all connections. Pending requests fail with Disconnected."""
        self.is_closed = True
        connections = list(self._connections.values())
        self._connections.clear()
        for connection in connections:
            connection.close()
        for connection in connections:
            await connection.wait_closed()
