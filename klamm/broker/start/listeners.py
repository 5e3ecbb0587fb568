"""The listeners of a broker, on which clients and other brokers reach it.

Ports are bound before any request is served, so that the broker can be registered with its addresses. While the broker
runs, `listener_changes` adapts the open listeners to a changed configuration.

What must stay true:
- Clients only learn of open listeners.
- A listener that brokers use keeps its socket: followers and the controller would not find it again.
- A listener that a change does not name keeps its connections.
"""

import logging
from collections.abc import Callable, Iterator, Mapping

from klamm.base.environment import Environment
from klamm.base.metrics import MetricName, Metrics
from klamm.base.tasks import OnFailure
from klamm.broker.metadata.metadata_cache import Endpoint
from klamm.broker.requests.dispatcher import Dispatcher
from klamm.config.broker import BrokerConfig, listener_reasons
from klamm.config.current import CurrentConfig
from klamm.config.listeners import Listener
from klamm.net.addresses import addresses_of
from klamm.net.server.connection_quotas import ConnectionLimits, ConnectionQuotas, QuotaSettings
from klamm.net.server.request_queue import RequestQueue
from klamm.net.server.response_memory import ResponseMemory
from klamm.net.server.server import SocketServer
from klamm.net.server.server_connection import ServerLimits
from klamm.protocol.messages import request_size_limit

# How long a stop waits for pending requests.
DRAIN_TIMEOUT_MS = 2_000
# The limit for queued.max.request.bytes=-1, unless a single request may be larger.
DEFAULT_REQUEST_MEMORY_BYTES = 256 * 1024 * 1024

# The metrics of a listener's traffic. They are gauges, as in Kafka, whose connection metrics are not counters.
_TRAFFIC: tuple[tuple[str, str, Callable[[SocketServer], int]], ...] = (
    ("connection-creation-total", "Connections accepted.", lambda server: server.traffic.connections),
    (
        "connection-close-total",
        "Connections that have ended.",
        lambda server: server.traffic.connections - server.connection_count,
    ),
    (
        "expired-connections-killed-count",
        "Connections closed because they were idle.",
        lambda server: server.traffic.expired,
    ),
    ("incoming-byte-total", "Bytes of requests.", lambda server: server.bytes_in),
    ("outgoing-byte-total", "Bytes of responses.", lambda server: server.traffic.bytes_out),
    ("request-total", "Requests received.", lambda server: server.request_count),
    ("response-total", "Responses sent.", lambda server: server.response_count),
    (
        "network-io-total",
        "Requests received and responses sent.",
        lambda server: server.request_count + server.response_count,
    ),
)

_log = logging.getLogger(__name__)


class Listeners(Mapping[str, SocketServer]):
    """The servers by the names of their listeners. Call `bind`, then `start`, and `stop` at any time."""

    def __init__(
        self,
        config: CurrentConfig,
        environment: Environment,
        dispatcher: Dispatcher,
        response_memory: ResponseMemory,
        make_room: Callable[[], bool],
        on_failure: OnFailure,
    ) -> None:
        self._config = config
        self._environment = environment
        self._dispatcher = dispatcher
        self._response_memory = response_memory
        self._make_room = make_room
        self._on_failure = on_failure
        # max.connections.per.ip.overrides by address.
        self._overrides: dict[str, int] = {}
        self.quotas = ConnectionQuotas(
            _quota_settings(config.current, self._overrides),
            samples=config.current.quota_window_num,
            window_ms=config.current.quota_window_size_seconds * 1000,
        )
        self._request_queue = RequestQueue(config.current.queued_max_requests)
        # As they were configured when they were opened; port 0 stays 0.
        self._listeners = {listener.name: listener for listener in config.current.listeners}
        self._servers = {listener.name: self._server(listener) for listener in config.current.listeners}
        self._stopping: list[SocketServer] = []
        config.subscribe(self._config_changed)

    def _server(self, listener: Listener) -> SocketServer:
        config = self._config.current
        return SocketServer(
            listener.name,
            listener.host,
            listener.port,
            dispatch=self._dispatcher.dispatch,
            is_pipelined=self._dispatcher.is_pipelined,
            size_limit=request_size_limit(config.socket_request_max_bytes),
            limits=_limits(config),
            quotas=self.quotas,
            request_queue=self._request_queue,
            response_memory=self._response_memory,
            on_failure=self._on_failure,
            make_room=self._make_room,
            work_clock_s=self._environment.work_clock_s,
        )

    def __getitem__(self, name: str) -> SocketServer:
        return self._servers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._servers)

    def __len__(self) -> int:
        return len(self._servers)

    async def bind(self) -> None:
        """Binds the ports without accepting yet. Raises OSError for an address that cannot be used, or for an unknown
        host in max.connections.per.ip.overrides."""
        self._overrides = await _by_address(self._config.current.max_connections_per_ip_overrides)
        self._apply_quotas()
        for server in self._servers.values():
            await server.bind()

    async def start(self) -> None:
        """Starts to accept."""
        for server in self._servers.values():
            await server.start()

    async def stop(self) -> None:
        """Waits a limited time for pending requests, and ends all connections."""
        for server in [*self._servers.values(), *self._stopping]:
            await server.stop(DRAIN_TIMEOUT_MS)

    # -- changes while the broker runs ------------------------------------------------------------------------------

    async def open_new(self) -> None:
        """Opens configured listeners that are not open, or are open at another address. First closes listeners whose
        ports a new listener needs. A listener that cannot be opened is logged and left out."""
        wanted = self._wanted()
        new = [listener for listener in wanted.values() if self._listeners.get(listener.name) != listener]
        ports = {listener.port for listener in new}
        for name, listener in list(self._listeners.items()):
            if self._servers[name].port in ports and wanted.get(name) != listener:
                await self._close(name)
        for listener in new:
            await self._open(listener)

    async def close_removed(self) -> None:
        """Closes the listeners that are no longer configured, once their pending requests are answered."""
        wanted = self._wanted()
        for name in [name for name in self._listeners if name not in wanted]:
            await self._close(name)
        while self._stopping:
            await self._stopping[0].stop(DRAIN_TIMEOUT_MS)
            self._stopping.pop(0)

    async def resolve_overrides(self) -> None:
        """Looks up the hosts of max.connections.per.ip.overrides again. An unknown host is logged, and the former
        overrides stay."""
        try:
            self._overrides = await _by_address(self._config.current.max_connections_per_ip_overrides)
        except OSError as error:
            _log.error("%s; the former overrides stay in force", error)
        self._apply_quotas()

    def _wanted(self) -> dict[str, Listener]:
        config = self._config.current
        used_by_brokers = (config.inter_broker_listener_name, config.control_listener_name)
        wanted = {}
        for listener in config.listeners:
            opened = self._listeners.get(listener.name)
            if opened is not None and listener.name in used_by_brokers:
                wanted[listener.name] = opened
            elif reasons := listener_reasons([listener]):
                _log.error("%s is not opened: %s", listener.name, reasons[0])
            else:
                wanted[listener.name] = listener
        return wanted

    async def _open(self, listener: Listener) -> None:
        server = self._server(listener)
        # The broker may stop in between.
        self._stopping.append(server)
        try:
            await server.bind()
            await server.start()
        except OSError as error:
            _log.error("listener %s cannot be opened: %s; change listeners to try again", listener, error)
            await server.stop(timeout_ms=0)
            self._stopping.remove(server)
            return
        self._stopping.remove(server)
        if listener.name in self._servers:
            self._stopping.append(self._servers[listener.name])
        self._listeners[listener.name], self._servers[listener.name] = listener, server
        _log.info("listener %s is open at port %d", listener, server.port)

    async def _close(self, name: str) -> None:
        listener = self._listeners.pop(name)
        server = self._servers.pop(name)
        self._stopping.append(server)
        _log.info("listener %s is closed", listener)
        await server.stop(DRAIN_TIMEOUT_MS)
        self._stopping.remove(server)

    # -- what others are told ---------------------------------------------------------------------------------------

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        """Host and port of each listener by its name, once they are bound."""
        return {name: (server.host, server.port) for name, server in self._servers.items()}

    def advertised_endpoints(self) -> dict[str, Endpoint]:
        """The advertised endpoints. Port 0 is replaced by the system's choice, and an empty host by this machine's
        name."""
        config = self._config.current
        endpoints = {}
        for advertised in config.advertised_listeners:
            if advertised.name not in self._servers:
                continue
            # What is advertised as it is configured is advertised as it is open, which may differ by now.
            listener = self._listeners[advertised.name] if advertised in config.listeners else advertised
            host = listener.host or self._environment.host_name()
            port = listener.port or self._servers[listener.name].port
            endpoints[listener.name] = Endpoint(host, port, listener.security_protocol)
        return endpoints

    def register(self, metrics: Metrics) -> None:
        """Adds the gauges of the requests in memory (queued.max.request.bytes), of all listeners together, and of the
        rates of new connections."""
        metrics.gauge(
            MetricName("kafka.network", "SocketServer", "MemoryPoolUsed"),
            "Bytes of requests in memory.",
            lambda: sum(server.request_memory.held_bytes for server in self._servers.values()),
        )
        metrics.gauge(
            MetricName("kafka.network", "SocketServer", "MemoryPoolAvailable"),
            "Bytes of requests that may still be in memory.",
            lambda: sum(
                max(0, server.request_memory.budget_bytes - server.request_memory.held_bytes)
                for server in self._servers.values()
            ),
        )
        metrics.gauge(
            MetricName("kafka.network", "RequestChannel", "RequestQueueSize"),
            "Requests that wait for an earlier one of their connection.",
            lambda: len(self._request_queue),
        )
        group, type_ = "kafka.server", "socket-server-metrics"
        metrics.gauges(
            MetricName(group, type_, "connection-count"),
            "Open connections of each listener.",
            ("listener", "networkProcessor"),
            # All connections have the same loop.
            lambda: iter([((name, "0"), server.connection_count) for name, server in self._servers.items()]),
        )
        metrics.gauge(
            MetricName(group, type_, "broker-connection-accept-rate"),
            "New connections per second.",
            self.quotas.rate_of_broker,
        )
        metrics.gauges(
            MetricName(group, type_, "connection-accept-rate"),
            "New connections per second of each listener, and of each address with a quota.",
            ("listener", "ip"),
            self._rates,
            tag_sets=(("listener",), ("ip",)),
        )
        metrics.gauges(
            MetricName("kafka.network", "RequestChannel", "ResponseQueueSize"),
            "Clients that have not taken all of their responses.",
            ("processor",),
            lambda: iter([((processor,), self._response_memory.untaken_count) for processor in ("", "0")]),
            tag_sets=((), ("processor",)),
        )
        metrics.gauge(
            MetricName("kafka.network", "SocketServer", "ExpiredConnectionsKilledCount"),
            "Connections closed because they were idle (connections.max.idle.ms).",
            lambda: sum(server.traffic.expired for server in self._servers.values()),
        )
        for name, documentation, read in _TRAFFIC:
            metrics.gauges(
                MetricName(group, type_, name), documentation, ("listener", "networkProcessor"), self._of_servers(read)
            )

    def _of_servers(self, read: Callable[[SocketServer], int]) -> Callable[[], Iterator[tuple[tuple[str, str], int]]]:
        return lambda: iter([((name, "0"), read(server)) for name, server in self._servers.items()])

    def _rates(self) -> Iterator[tuple[tuple[str, ...], float]]:
        for listener, rate in self.quotas.rates_of_listeners().items():
            yield (listener, ""), rate
        for ip, rate in self.quotas.rates_of_hosts().items():
            yield ("", ip), rate

    def _config_changed(self, _old: BrokerConfig, new: BrokerConfig) -> None:
        for server in self._servers.values():
            server.limits = _limits(new)
        self._apply_quotas()

    def _apply_quotas(self) -> None:
        self.quotas.settings = _quota_settings(self._config.current, self._overrides)


def _limits(config: BrokerConfig) -> ServerLimits:
    return ServerLimits(
        connections_max_idle_ms=config.connections_max_idle_ms,
        socket_send_buffer_bytes=config.socket_send_buffer_bytes,
        socket_receive_buffer_bytes=config.socket_receive_buffer_bytes,
        queued_max_request_bytes=_request_memory_bytes(config),
    )


def _quota_settings(config: BrokerConfig, overrides: Mapping[str, int]) -> QuotaSettings:
    return QuotaSettings(
        broker=ConnectionLimits(config.max_connections, config.max_connection_creation_rate),
        listeners={
            listener.name: ConnectionLimits(
                config.for_listener(listener.name, "max.connections"),
                config.for_listener(listener.name, "max.connection.creation.rate"),
            )
            for listener in config.listeners
        },
        brokers_listener=config.inter_broker_listener_name,
        max_connections_per_ip=config.max_connections_per_ip,
        max_connections_per_ip_overrides=overrides,
    )


async def _by_address(overrides: Mapping[str, int]) -> dict[str, int]:
    """The counts of max.connections.per.ip.overrides by address. Raises OSError for an unknown host."""
    by_address = {}
    for host, count in overrides.items():
        try:
            addresses = await addresses_of(host)
        except OSError as error:
            raise OSError(f"max.connections.per.ip.overrides: {host}: {error.strerror or error}") from error
        by_address.update(dict.fromkeys(addresses, count))
    return by_address


def _request_memory_bytes(config: BrokerConfig) -> int:
    """`queued.max.request.bytes`, or klamm's own limit for Kafka's default, which is no limit."""
    if config.queued_max_request_bytes > 0:
        return config.queued_max_request_bytes
    return max(DEFAULT_REQUEST_MEMORY_BYTES, config.socket_request_max_bytes)
