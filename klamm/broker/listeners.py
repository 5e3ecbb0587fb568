"""The listeners of a broker, on which clients and other brokers reach it.

Ports are bound before any request is served, so that the broker can be registered with its addresses.
"""

from collections.abc import Iterator, Mapping

from klamm.broker.dispatcher import Dispatcher
from klamm.broker.metadata_cache import Endpoint
from klamm.config.broker import BrokerConfig
from klamm.config.current import CurrentConfig
from klamm.environment import Environment
from klamm.metrics import MetricName, Metrics
from klamm.net.response_memory import ResponseMemory
from klamm.net.server import ServerLimits, SocketServer
from klamm.protocol.messages import request_size_limit
from klamm.tasks import OnFailure

# How long a stop waits for pending requests.
DRAIN_TIMEOUT_MS = 2_000
# What queued.max.request.bytes=-1 means, unless a single request may be larger.
DEFAULT_REQUEST_MEMORY_BYTES = 256 * 1024 * 1024


class Listeners(Mapping[str, SocketServer]):
    """The servers by the names of their listeners: `bind`, then `start`; `stop` at any time."""

    def __init__(
        self,
        config: CurrentConfig,
        environment: Environment,
        dispatcher: Dispatcher,
        response_memory: ResponseMemory,
        on_failure: OnFailure,
    ) -> None:
        self._environment = environment
        self._advertised = config.current.advertised_listeners
        self._servers = {
            listener.name: SocketServer(
                listener.name,
                listener.host,
                listener.port,
                dispatch=dispatcher.dispatch,
                is_pipelined=dispatcher.is_pipelined,
                size_limit=request_size_limit(config.current.socket_request_max_bytes),
                limits=_limits(config.current),
                response_memory=response_memory,
                on_failure=on_failure,
            )
            for listener in config.current.listeners
        }
        config.subscribe(self._config_changed)

    def __getitem__(self, name: str) -> SocketServer:
        return self._servers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._servers)

    def __len__(self) -> int:
        return len(self._servers)

    async def bind(self) -> None:
        """Binds the ports without accepting yet. Raises OSError for an address that cannot be used."""
        for server in self._servers.values():
            await server.bind()

    async def start(self) -> None:
        """Starts to accept."""
        for server in self._servers.values():
            await server.start()

    async def stop(self) -> None:
        """Lets pending requests finish for a limited time, and ends all connections."""
        for server in self._servers.values():
            await server.stop(DRAIN_TIMEOUT_MS)

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        """Host and port of each listener by its name, once they are bound."""
        return {name: (server.host, server.port) for name, server in self._servers.items()}

    def advertised_endpoints(self) -> dict[str, Endpoint]:
        """Port 0 is replaced by the port that the system chose, and an empty host by this machine's name."""
        endpoints = {}
        for listener in self._advertised:
            host = listener.host or self._environment.host_name()
            port = listener.port or self._servers[listener.name].port
            endpoints[listener.name] = Endpoint(host, port, listener.security_protocol)
        return endpoints

    def register(self, metrics: Metrics) -> None:
        """Adds the gauges of the requests in memory (queued.max.request.bytes), of all listeners together."""
        memories = [server.request_memory for server in self._servers.values()]
        metrics.gauge(
            MetricName("kafka.network", "SocketServer", "MemoryPoolUsed"),
            "Bytes of requests in memory.",
            lambda: sum(memory.held_bytes for memory in memories),
        )
        metrics.gauge(
            MetricName("kafka.network", "SocketServer", "MemoryPoolAvailable"),
            "Bytes of requests that may still be in memory.",
            lambda: sum(max(0, memory.budget_bytes - memory.held_bytes) for memory in memories),
        )

    def _config_changed(self, _old: BrokerConfig, new: BrokerConfig) -> None:
        for server in self._servers.values():
            server.limits = _limits(new)


def _limits(config: BrokerConfig) -> ServerLimits:
    return ServerLimits(
        max_connections=config.max_connections,
        max_connections_per_ip=config.max_connections_per_ip,
        connections_max_idle_ms=config.connections_max_idle_ms,
        queued_max_request_bytes=_request_memory_bytes(config),
    )


def _request_memory_bytes(config: BrokerConfig) -> int:
    """`queued.max.request.bytes`; Kafka's default is no bound."""
    if config.queued_max_request_bytes > 0:
        return config.queued_max_request_bytes
    return max(DEFAULT_REQUEST_MEMORY_BYTES, config.socket_request_max_bytes)
