"""The composition root of one broker: it makes the parts, puts them together, starts and stops them in Kafka's order.

Start: ZooKeeper session and top-level znodes, cluster id, log directories and their identity, logs, listeners bound
(so that their addresses are known), broker znode, producer ids, controller, and last the listeners accept. Stop is the
reverse: requests under way are answered, high watermarks and logs are checkpointed, the clean-shutdown files are
written, and the ZooKeeper session, which is what others see of this broker, ends last.

What must stay true:
- No client is served before the broker is registered and its logs are recovered.
- `failure` is set by the first fault of the program, by the loss of the last log directory, and by a session that
  cannot be set up anew; whoever runs the broker then stops the process. It is never set by what a client sends.
"""

import asyncio
import logging
import os.path
from collections.abc import Mapping

from klamm.broker.dispatcher import Dispatcher
from klamm.broker.fetch_session import FetchSessionCache
from klamm.broker.handlers import APIS
from klamm.broker.metadata_cache import BrokerMetadata, Endpoint, MetadataCache
from klamm.broker.producer_ids import ProducerIds
from klamm.broker.quotas import NoQuotas, Quotas
from klamm.broker.security import AllowEverything, Authorizer
from klamm.broker.services import Services
from klamm.broker.session_file import read_session_ids, write_session_ids
from klamm.broker.standalone_controller import StandaloneController
from klamm.broker.topic_admin import TopicAdmin
from klamm.broker.topic_configs import TopicConfigs
from klamm.broker.zookeeper_session import ZooKeeperSession
from klamm.config.broker import BrokerConfig
from klamm.environment import Environment
from klamm.net.server import ServerLimits, SocketServer
from klamm.protocol.api_keys import request_size_limit
from klamm.protocol.errors import KafkaError
from klamm.replication.replica_manager import ReplicaManager, log_config
from klamm.storage.log_directory import MetaProperties, read_meta_properties
from klamm.storage.log_manager import LogManager, LogManagerSettings
from klamm.znodes import brokers as znodes
from klamm.znodes.brokers import BrokerRegistration
from klamm.znodes.fields import ZnodeError
from klamm.znodes.store import KafkaZooKeeper
from klamm.znodes.topics import encode_topic_id

# How long a stop waits for requests under way.
DRAIN_TIMEOUT_MS = 2_000

_log = logging.getLogger(__name__)


class BrokerStartError(Exception):
    """The broker cannot be part of its cluster, or not any more; the message says why and what would be needed."""


class Broker:
    """One broker. `authorizer` and `quotas` are the hooks for security; by default everything is allowed at full speed.

    `failure` is a future of the running loop that is resolved with the reason why the broker must stop.
    """

    failure: "asyncio.Future[BaseException]"

    def __init__(
        self,
        config: BrokerConfig,
        environment: Environment,
        *,
        authorizer: Authorizer | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self._config = config
        self._environment = environment
        self._authorizer = authorizer or AllowEverything()
        self._quotas = quotas or NoQuotas()
        self._metadata_cache = MetadataCache()
        self._topic_configs = TopicConfigs(config)
        self._zookeeper = ZooKeeperSession(environment, config, self._renew_session, self._fail)
        self._topic_admin = TopicAdmin(environment, config, self._metadata_cache, lambda: self._zookeeper.store)
        self._producer_ids = ProducerIds(self._allocate_producer_ids)
        self._log_manager: LogManager | None = None
        self._replica_manager: ReplicaManager | None = None
        self._controller: StandaloneController | None = None
        self._listeners: dict[str, SocketServer] = {}
        self._log_dirs = [os.path.abspath(directory) for directory in config.log_dirs]
        self.broker_id = config.broker_id
        self.cluster_id = ""

    @property
    def endpoints(self) -> Mapping[str, tuple[str, int]]:
        """Host and port of each listener by its name, once they are bound."""
        return {name: (server.host, server.port) for name, server in self._listeners.items()}

    # -- start ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns when clients are served.

        Raises BrokerStartError for what an operator can mend; ZooKeeperError when ZooKeeper does not answer; KafkaError
        for log directories that cannot be used; OSError for addresses that cannot be bound. After a failed start only
        `stop` may be called.
        """
        self.failure = asyncio.get_running_loop().create_future()
        if reasons := self._config.unsupported_reasons():
            raise BrokerStartError("; ".join(reasons))
        try:
            await self._start()
        except ZnodeError as error:
            raise BrokerStartError(f"ZooKeeper at {self._config.zookeeper_connect}: {error}") from error

    async def _start(self) -> None:
        await self._zookeeper.start()
        store = self._zookeeper.store
        await store.create_persistent_paths()
        self.cluster_id = await store.get_or_create_cluster_id(encode_topic_id(self._environment.random_uuid()))
        self._log_manager = await self._open_logs(store)
        self._replica_manager = ReplicaManager(
            self._environment,
            self.broker_id,
            self._log_manager,
            self._topic_configs.of,
            self._config.replica_high_watermark_checkpoint_interval_ms,
            self._fail,
        )
        await self._bind_listeners(self._log_manager, self._replica_manager)
        await self._set_up_session(store)
        await self._producer_ids.start()
        self._zookeeper.keep()
        self._log_manager.start()
        for server in self._listeners.values():
            await server.start()
        _log.info("broker %d of cluster %s serves %s", self.broker_id, self.cluster_id, dict(self.endpoints))

    async def _open_logs(self, store: KafkaZooKeeper) -> LogManager:
        config = self._config
        if self.broker_id < 0:
            stored = [read_meta_properties(self._environment.file_system, path) for path in self._log_dirs]
            ids = [meta.broker_id for meta in stored if meta is not None]
            self.broker_id = ids[0] if ids else await store.generate_broker_id(config.reserved_broker_max_id)
        topics = await store.topic_names()
        await self._topic_configs.load(store, topics)
        self._log_manager = LogManager(
            self._environment,
            self._log_dirs,
            meta_properties=MetaProperties(self.cluster_id, self.broker_id),
            default_config=log_config(self._topic_configs.of("")),
            settings=LogManagerSettings(
                retention_check_ms=config.log_retention_check_interval_ms,
                flush_check_ms=config.log_flush_scheduler_interval_ms,
                recovery_point_checkpoint_ms=config.log_flush_offset_checkpoint_interval_ms,
                log_start_offset_checkpoint_ms=config.log_flush_start_offset_checkpoint_interval_ms,
                producer_expiration_ms=config.transactional_id_expiration_ms,
                recovery_threads_per_directory=config.num_recovery_threads_per_data_dir,
            ),
            on_directory_failure=self._directory_failed,
            on_failure=self._fail,
        )
        await self._log_manager.load({topic: log_config(self._topic_configs.of(topic)) for topic in topics})
        return self._log_manager

    async def _bind_listeners(self, log_manager: LogManager, replica_manager: ReplicaManager) -> None:
        loop = asyncio.get_running_loop()
        services = Services(
            self._environment,
            self._config,
            self.broker_id,
            self.cluster_id,
            APIS,
            self._authorizer,
            self._quotas,
            self._metadata_cache,
            self._topic_configs,
            self._topic_admin,
            self._producer_ids,
            replica_manager,
            log_manager,
            FetchSessionCache(
                self._config.max_incremental_fetch_session_cache_slots,
                self._environment.random,
                lambda: loop.time() * 1000,
            ),
        )
        dispatcher = Dispatcher(services)
        limits = ServerLimits(
            max_connections=self._config.max_connections,
            max_connections_per_ip=self._config.max_connections_per_ip,
            connections_max_idle_ms=self._config.connections_max_idle_ms,
        )
        for listener in self._config.listeners:
            server = SocketServer(
                listener.name,
                listener.host,
                listener.port,
                dispatch=dispatcher.dispatch,
                is_pipelined=dispatcher.is_pipelined,
                size_limit=request_size_limit(self._config.socket_request_max_bytes),
                limits=limits,
                on_failure=self._fail,
            )
            await server.bind()
            self._listeners[listener.name] = server

    async def _renew_session(self, store: KafkaZooKeeper) -> None:
        """Raises BrokerStartError when this is not the broker's cluster any more: ZooKeeper was wiped, or replaced.

        To go on would be to serve topics that nobody else knows of; the logs stay as they are.
        """
        cluster_id = await store.cluster_id()
        if cluster_id != self.cluster_id:
            found = "no cluster" if cluster_id is None else f"cluster {cluster_id}"
            raise BrokerStartError(
                f"ZooKeeper at {self._config.zookeeper_connect} holds {found}; this broker belongs to {self.cluster_id}"
            )
        await self._set_up_session(store)

    async def _set_up_session(self, store: KafkaZooKeeper) -> None:
        """Everything that lives as long as a ZooKeeper session: the registration and the controller's watches."""
        assert self._replica_manager is not None
        if self._controller is not None:
            await self._controller.stop()
        metadata = BrokerMetadata(self.broker_id, self._advertised_endpoints(), self._config.broker_rack)
        await self._register(store, metadata)
        self._controller = StandaloneController(
            metadata,
            store,
            self._metadata_cache,
            self._replica_manager,
            self._topic_configs,
            self._topic_admin,
            self._fail,
        )
        await self._controller.start()

    async def _register(self, store: KafkaZooKeeper, metadata: BrokerMetadata) -> None:
        """Makes this broker known. Raises BrokerStartError when its id or an address is another broker's."""
        addresses = {(endpoint.host, endpoint.port) for endpoint in metadata.endpoints.values()}
        for other, live in (await store.live_brokers()).items():
            if other == self.broker_id:
                continue
            for endpoint in live.registration.endpoints:
                if (endpoint.host, endpoint.port) in addresses:
                    raise BrokerStartError(
                        f"advertised.listeners: {endpoint.host}:{endpoint.port} belongs to broker {other} already"
                    )
        registration = BrokerRegistration(
            self.broker_id,
            tuple(
                znodes.Endpoint(name, endpoint.host, endpoint.port, endpoint.security_protocol)
                for name, endpoint in metadata.endpoints.items()
            ),
            metadata.rack,
            timestamp_ms=self._environment.now_ms(),
        )
        previous_session_ids = await self._note_session(store.client.session_id)
        try:
            await store.register_broker(registration, previous_session_ids)
        except KafkaError as error:
            raise BrokerStartError(error.message) from None

    async def _note_session(self, session_id: int) -> list[int]:
        """Writes the session down as this broker's, and returns those that were before it."""
        assert self._log_manager is not None
        directory = self._log_manager.live_directories[0]
        file_system, run_blocking = self._environment.file_system, self._environment.run_blocking
        known = await run_blocking(read_session_ids, file_system, directory)
        previous = [other for other in known if other != session_id]
        await run_blocking(write_session_ids, file_system, directory, [session_id, *previous[:1]])
        return previous

    def _advertised_endpoints(self) -> dict[str, Endpoint]:
        """Port 0 and an empty host stand for what the system gave the listener and this machine's name."""
        endpoints = {}
        for listener in self._config.advertised_listeners:
            server = self._listeners[listener.name]
            host = listener.host or self._environment.host_name()
            endpoints[listener.name] = Endpoint(host, listener.port or server.port, listener.security_protocol)
        return endpoints

    async def _allocate_producer_ids(self) -> tuple[int, int]:
        return await self._zookeeper.store.allocate_producer_id_block(self.broker_id)

    # -- failure and stop -----------------------------------------------------------------------------------------

    def _directory_failed(self, directory: str, error: OSError) -> None:
        _log.error("log directory %s is offline: %s", directory, error)
        if self._replica_manager is None or self._log_manager is None:
            return  # Still starting: loading the logs tells what is wrong when no directory is left.
        self._replica_manager.directory_failed(directory)
        if not self._log_manager.live_directories:
            self._fail(error)

    def _fail(self, reason: BaseException) -> None:
        if not self.failure.done():
            _log.critical("the broker must stop", exc_info=reason)
            self.failure.set_result(reason)

    async def stop(self) -> None:
        """Stops cleanly; also after a failed or partial start."""
        for server in self._listeners.values():
            await server.stop(DRAIN_TIMEOUT_MS)
        if self._controller is not None:
            await self._controller.stop()
        if self._replica_manager is not None:
            await self._replica_manager.stop()
        if self._log_manager is not None:
            await self._log_manager.stop()
        await self._zookeeper.stop()
