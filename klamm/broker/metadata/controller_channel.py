"""Sends requests from this broker to the current controller (`BrokerToControllerChannelManager`).

What must stay true:
- A request goes to the controller in the metadata cache, over one connection. This broker's own controller is reached
  in the same way.
- When the cache has another controller, requests to the former controller, which may hang, fail at once
  (`controller_changed`).
"""

import asyncio

from klamm.broker.metadata.metadata_cache import MetadataCache
from klamm.config.broker import BrokerConfig
from klamm.net.client import Address, BuildRequest, Connection, ConnectionOptions, Connector, NotSent, Response
from klamm.protocol.messages import ApiKey


class ControllerChannel:
    """Sends requests to the controller on the listener of control requests."""

    def __init__(
        self,
        metadata_cache: MetadataCache,
        broker_id: int,
        config: BrokerConfig,
    ) -> None:
        self._metadata_cache = metadata_cache
        self._listener_name = config.control_listener_name
        options = ConnectionOptions(
            client_id=str(broker_id),
            connect_timeout_ms=config.socket_connection_setup_timeout_ms,
            request_timeout_ms=config.request_timeout_ms,
        )
        self._connector = Connector(options, config.socket_connection_setup_timeout_max_ms)
        self._lock = asyncio.Lock()
        self._connection: Connection | None = None

    async def send(self, api_key: ApiKey, build: BuildRequest[Response]) -> Response:
        """The controller's response. Raises ClientError if no controller is known or the controller does not answer."""
        return await (await self._connected()).send(api_key, build)

    async def _connected(self) -> Connection:
        async with self._lock:
            address = self._controller_address()
            connection = self._connection
            if connection is not None and connection.connected and connection.address == address:
                return connection
            self.close()
            connection = self._connection = await self._connector.connect(*address)
            return connection

    def _controller_address(self) -> Address:
        snapshot = self._metadata_cache.snapshot
        endpoint = snapshot.endpoint(snapshot.controller_id, self._listener_name)
        if endpoint is None:
            raise NotSent(f"no controller is known (broker {snapshot.controller_id}, listener {self._listener_name})")
        return endpoint.host, endpoint.port

    def controller_changed(self) -> None:
        """Ends the connection to a broker that is no longer the controller. Call it after the metadata cache
        changed."""
        if self._connection is not None:
            try:
                is_current = self._connection.address == self._controller_address()
            except NotSent:
                is_current = False
            if not is_current:
                self.close()

    def close(self) -> None:
        """Ends the connection; pending requests fail."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
