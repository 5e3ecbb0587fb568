"""The composition root of one broker: it makes the parts, puts them together, starts and stops them in Kafka's order.

Start: ZooKeeper session and top-level znodes, cluster id, dynamic configs, log directories and their identity, logs,
listeners bound (so that their addresses are known), broker znode, producer ids, then the listeners accept, then the
controller, and last the watch on changed configs.
Stop is the reverse: the controller moves this broker's leaderships away, requests under way are answered, fetchers end,
high watermarks and logs are checkpointed, the clean-shutdown files are written, and the ZooKeeper session, which is
what others see of this broker, ends last.

What must stay true:
- No client is served before the broker is registered and its logs are recovered.
- `failure` is set by the first fault of the program, by the loss of the last log directory, and by a session that
  cannot be set up anew; whoever runs the broker then stops the process. It is never set by what a client sends.
"""

import asyncio
import logging
import os.path
from collections.abc import Awaitable, Mapping

from klamm.broker.auto_topic_creation import AutoTopicCreation
from klamm.broker.config_admin import ConfigAdmin
from klamm.broker.config_changes import ConfigChanges
from klamm.broker.config_handlers import ConfigHandlers
from klamm.broker.controlled_shutdown import ControlledShutdown
from klamm.broker.controller_channel import ControllerChannel
from klamm.broker.dispatcher import Dispatcher
from klamm.broker.dynamic_broker_config import DynamicBrokerConfig
from klamm.broker.fetch_session import FetchSessionCache
from klamm.broker.finalized_features import SUPPORTED_FEATURES, FinalizedFeatureCache
from klamm.broker.handlers import APIS
from klamm.broker.leader_elections import LeaderElections
from klamm.broker.metadata_cache import Endpoint, MetadataCache
from klamm.broker.metadata_updates import Look, MetadataUpdates
from klamm.broker.metrics_endpoint import MetricsEndpoint
from klamm.broker.offsets_log import OffsetsLog
from klamm.broker.offsets_topic import OffsetsTopic
from klamm.broker.producer_ids import ProducerIds
from klamm.broker.quotas import NoQuotas, Quotas
from klamm.broker.registration import BrokerStartError, Registrar
from klamm.broker.security import AllowEverything, Authorizer
from klamm.broker.services import Services
from klamm.broker.topic_admin import OFFSETS_TOPIC, TopicAdmin
from klamm.broker.topic_configs import TopicConfigs
from klamm.broker.zookeeper_session import ZooKeeperSession
from klamm.config.broker import BrokerConfig
from klamm.config.versions import ApiVersion
from klamm.controller.channel_manager import ControllerChannelManager
from klamm.controller.controller import KafkaController
from klamm.controller.controller_metrics import register_controller_metrics
from klamm.coordinator.group_coordinator import GroupCoordinator
from klamm.coordinator.group_metadata_manager import GroupMetadataManager
from klamm.coordinator.group_metrics import register_group_metrics
from klamm.environment import Environment
from klamm.metrics import Metrics
from klamm.net.response_memory import ResponseMemory
from klamm.net.server import Answer, ServerConnection, ServerLimits, SocketServer
from klamm.protocol.messages import ApiKey, request_size_limit
from klamm.replication.alter_isr import AlterIsrManager
from klamm.replication.fetcher_manager import ReplicaFetcherManager
from klamm.replication.partition import Partition
from klamm.replication.replica_manager import ReplicaManager, log_config
from klamm.replication.zk_isr import ZkIsrManager
from klamm.storage.log_directory import MetaProperties, read_meta_properties
from klamm.storage.log_manager import LogManager, LogManagerSettings
from klamm.tasks import Turns, start_task
from klamm.znodes.fields import ZnodeError
from klamm.znodes.store import KafkaZooKeeper
from klamm.znodes.topics import TopicPartition, encode_topic_id
from klamm.zookeeper.errors import ZooKeeperError

# How long a stop waits for requests under way.
DRAIN_TIMEOUT_MS = 2_000
REPORT_BACK_OFF_MS = 1_000

_log = logging.getLogger(__name__)


__all__ = ["Broker", "BrokerStartError"]


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
        self._zookeeper = ZooKeeperSession(environment, config, self._session_expired, self._renew_session, self._fail)
        self._broker_config = DynamicBrokerConfig(config)
        self._topic_configs = TopicConfigs(config, lambda: self._zookeeper.store)
        self._topic_admin = TopicAdmin(
            environment, lambda: self._broker_config.current, self._metadata_cache, lambda: self._zookeeper.store
        )
        self._auto_topic_creation = AutoTopicCreation(self._topic_admin, self._fail)
        self._offsets_topic = OffsetsTopic(
            lambda: self._broker_config.current,
            self._metadata_cache,
            self._auto_topic_creation,
            lambda: self._zookeeper.store,
        )
        self._finalized_features = FinalizedFeatureCache(
            SUPPORTED_FEATURES, config.inter_broker_protocol_version, lambda: self._zookeeper.store, self._fail
        )
        self._producer_ids = ProducerIds(self._allocate_producer_ids)
        self._response_memory = ResponseMemory(config.klamm_queued_max_response_bytes)
        self._log_manager: LogManager | None = None
        self._replica_manager: ReplicaManager | None = None
        self._groups: GroupMetadataManager | None = None
        self._group_coordinator: GroupCoordinator | None = None
        self._registrar: Registrar | None = None
        self._controller: KafkaController | None = None
        self._controller_channel: ControllerChannel | None = None
        self._metadata_updates: MetadataUpdates | None = None
        self._isr_changes: AlterIsrManager | ZkIsrManager | None = None
        self._config_handlers: ConfigHandlers | None = None
        self._config_changes: ConfigChanges | None = None
        self._services: Services | None = None
        self._followers: ReplicaFetcherManager | None = None
        self._dispatcher: Dispatcher | None = None
        self._metrics_endpoint: MetricsEndpoint | None = None
        self._listeners: dict[str, SocketServer] = {}
        self._log_dirs = [os.path.abspath(directory) for directory in config.log_dirs]
        self._is_serving = False
        self.broker_id = config.broker_id
        self.cluster_id = ""

    @property
    def endpoints(self) -> Mapping[str, tuple[str, int]]:
        """Host and port of each listener by its name, once they are bound."""
        return {name: (server.host, server.port) for name, server in self._listeners.items()}

    @property
    def metrics_port(self) -> int | None:
        """The HTTP port that tells about this broker, once it is bound; None when there is none."""
        return None if self._metrics_endpoint is None else self._metrics_endpoint.port

    @property
    def is_controller(self) -> bool:
        """Whether this broker is the active controller, as far as it knows."""
        return self._controller is not None and self._controller.is_active

    @property
    def services(self) -> Services | None:
        """The parts that serve requests, to be looked at only; None until they are put together."""
        return self._services

    @property
    def followed_partitions(self) -> Mapping[TopicPartition, tuple[int, int]]:
        """The partitions that this broker copies, with the leader and the leader epoch that it copies each from."""
        return {} if self._followers is None else self._followers.followed_partitions

    @property
    def held_response_bytes(self) -> int:
        """What is being read for responses, and what clients have not taken of them yet."""
        return self._response_memory.held_bytes

    # -- start ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns when clients are served.

        Raises BrokerStartError for what an operator can mend; ZooKeeperError when ZooKeeper does not answer; KafkaError
        for log directories that cannot be used; OSError for addresses that cannot be bound. After a failed start only
        `stop` may be called.
        """
        self.failure = asyncio.get_running_loop().create_future()
        self._refuse_unsupported()
        try:
            await self._start()
        except ZnodeError as error:
            raise BrokerStartError(f"ZooKeeper at {self._config.zookeeper_connect}: {error}") from error

    def _refuse_unsupported(self) -> None:
        if reasons := self._config.unsupported_reasons():
            raise BrokerStartError("; ".join(reasons))

    async def wait_until_known(self) -> None:
        """Returns when the controller has told this broker of the cluster: from then on clients find their way."""
        await self._metadata_cache.is_filled.wait()

    async def _start(self) -> None:
        await self._zookeeper.start()
        store = self._zookeeper.store
        await store.create_persistent_paths()
        await self._finalized_features.load()
        self.cluster_id = await store.get_or_create_cluster_id(encode_topic_id(self._environment.random_uuid()))
        self.broker_id = await self._find_broker_id(store)
        await self._load_dynamic_config(store)
        log_manager = await self._open_logs(store)
        await self._bind_listeners()
        self._assemble(log_manager)
        await self._start_metrics_endpoint()
        await self._register()
        await self._producer_ids.start()
        log_manager.start()
        await self._offsets_topic.load()
        assert self._group_coordinator is not None and self._controller is not None
        self._group_coordinator.start()
        # Before the controller, which may be this broker's own and then tells it at once what it leads.
        for server in self._listeners.values():
            await server.start()
        # The logs may have taken long to load; these say who may be elected.
        assert self._config_handlers is not None and self._config_changes is not None
        await self._config_handlers.brokers_changed()
        await self._controller.startup(store)
        self._config_changes.start()
        self._zookeeper.keep()
        self._is_serving = True
        _log.info("broker %d of cluster %s serves %s", self.broker_id, self.cluster_id, dict(self.endpoints))

    async def _find_broker_id(self, store: KafkaZooKeeper) -> int:
        if self._config.broker_id >= 0:
            return self._config.broker_id
        stored = [read_meta_properties(self._environment.file_system, path) for path in self._log_dirs]
        ids = [meta.broker_id for meta in stored if meta is not None]
        return ids[0] if ids else await store.generate_broker_id(self._config.reserved_broker_max_id)

    async def _load_dynamic_config(self, store: KafkaZooKeeper) -> None:
        """What ZooKeeper holds for this broker comes before its file. Some of it, as the listeners, is looked at only
        here: a change of that needs a restart."""
        await self._broker_config.load(store, self.broker_id)
        self._config = self._broker_config.current
        self._refuse_unsupported()
        await self._topic_configs.inherit_from(self._config)

    async def _open_logs(self, store: KafkaZooKeeper) -> LogManager:
        config = self._config
        topics = await store.topic_names()
        await self._topic_configs.load(topics)
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

    async def _bind_listeners(self) -> None:
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
                dispatch=self._dispatch,
                is_pipelined=self._is_pipelined,
                size_limit=request_size_limit(self._config.socket_request_max_bytes),
                limits=limits,
                response_memory=self._response_memory,
                on_failure=self._fail,
            )
            await server.bind()
            self._listeners[listener.name] = server

    def _dispatch(self, connection: ServerConnection, frame: bytearray) -> Answer | Awaitable[Answer]:
        assert self._dispatcher is not None
        return self._dispatcher.dispatch(connection, frame)

    def _is_pipelined(self, frame: bytearray) -> bool:
        assert self._dispatcher is not None
        return self._dispatcher.is_pipelined(frame)

    def _assemble(self, log_manager: LogManager) -> None:
        """Makes the parts that know this broker's id and puts them together."""
        config, environment, loop = self._config, self._environment, asyncio.get_running_loop()
        registrar = self._registrar = Registrar(
            environment,
            self.broker_id,
            config.broker_rack,
            SUPPORTED_FEATURES,
            config.inter_broker_protocol_version,
        )
        channel = self._controller_channel = ControllerChannel(
            self._metadata_cache, self.broker_id, config.control_listener_name, config.request_timeout_ms
        )
        isr_changes = self._isr_changes = self._make_isr_changes(channel, registrar)
        followers = self._followers = ReplicaFetcherManager(config, self.broker_id, self._hosted_partition, self._fail)
        replica_manager = self._replica_manager = ReplicaManager(
            config,
            environment,
            self.broker_id,
            log_manager,
            response_memory=self._response_memory,
            topic_configs=self._topic_configs,
            followers=followers,
            isr_changes=isr_changes,
            live_broker=self._inter_broker_address,
            is_known_partition=self._is_known_partition,
            on_leadership=self._leadership_changed,
            notify_log_dir_failure=self._report_log_dir_failure,
            on_failure=self._fail,
        )
        group_coordinator = self._group_coordinator = self._make_group_coordinator(replica_manager)
        controller = self._controller = KafkaController(
            config,
            environment,
            self.broker_id,
            lambda: ControllerChannelManager(config, self.broker_id, self._fail),
            register_broker=self._register,
            on_failure=self._fail,
        )
        handlers = self._config_handlers = ConfigHandlers(
            self.broker_id,
            self._broker_config,
            self._topic_configs,
            replica_manager,
            log_manager,
            controller,
            self._listeners.values(),
            lambda: self._zookeeper.store,
        )
        self._config_changes = ConfigChanges(
            lambda: self._zookeeper.store, environment.now_ms, handlers.changed, handlers.reload, self._fail
        )
        leader_elections = LeaderElections(controller, self._metadata_cache)
        metadata_updates = self._metadata_updates = MetadataUpdates(
            self._metadata_cache,
            replica_manager,
            group_coordinator,
            self._topic_configs,
            self._topic_admin,
            leader_elections,
            lambda: self._zookeeper.store,
            self._fail,
        )
        services = self._services = Services(
            environment,
            self._broker_config,
            self.broker_id,
            self.cluster_id,
            registrar,
            controller,
            channel,
            APIS,
            self._authorizer,
            self._quotas,
            self._metadata_cache,
            metadata_updates,
            self._topic_configs,
            self._topic_admin,
            self._auto_topic_creation,
            ConfigAdmin(self._metadata_cache, self._broker_config, self.broker_id, lambda: self._zookeeper.store),
            leader_elections,
            self._finalized_features,
            self._producer_ids,
            replica_manager,
            log_manager,
            FetchSessionCache(
                config.max_incremental_fetch_session_cache_slots, environment.random, lambda: loop.time() * 1000
            ),
            self._offsets_topic,
            group_coordinator,
            Turns(),
        )
        self._dispatcher = Dispatcher(services)

    def _make_isr_changes(self, channel: ControllerChannel, registrar: Registrar) -> AlterIsrManager | ZkIsrManager:
        """How leaders change ISRs: through the controller, before 2.7-IV2 by themselves."""
        if self._config.inter_broker_protocol_version >= ApiVersion.V2_7_IV2:
            return AlterIsrManager(
                lambda body: channel.send(ApiKey.ALTER_ISR, lambda _version: body),
                self.broker_id,
                lambda: registrar.broker_epoch,
                self._fail,
            )
        return ZkIsrManager(lambda: self._zookeeper.store, self.broker_id, self._fail)

    def _make_group_coordinator(self, replica_manager: ReplicaManager) -> GroupCoordinator:
        def config() -> BrokerConfig:
            return self._broker_config.current

        log = OffsetsLog(config, self._environment, replica_manager, self._fail)
        groups = self._groups = GroupMetadataManager(
            self._config,
            log,
            self._offsets_topic.partition_for,
            self._environment.now_ms,
            self._fail,
            self._groups_loaded,
        )
        return GroupCoordinator(config, groups, self._environment, self._fail)

    def _groups_loaded(self) -> None:
        if self._metadata_updates is not None:
            self._metadata_updates.look_for_deleted_topics(Look.UNKNOWN_TOPICS)

    def _leadership_changed(self, key: TopicPartition, leads: bool, leader_epoch: int | None) -> None:
        """Who leads a partition of the offsets topic coordinates its groups."""
        topic, partition = key
        if topic != OFFSETS_TOPIC or self._group_coordinator is None:
            return
        if leads and leader_epoch is not None:
            self._group_coordinator.on_election(partition, leader_epoch)
        else:
            self._group_coordinator.on_resignation(partition, leader_epoch)

    async def _start_metrics_endpoint(self) -> None:
        """Before the registration, which tells the port."""
        config = self._config
        if config.klamm_metrics_port < 0:
            return
        assert self._controller is not None and self._registrar is not None and self._groups is not None
        metrics = Metrics()
        register_controller_metrics(metrics, self._controller)
        register_group_metrics(metrics, self._groups)
        self._metrics_endpoint = MetricsEndpoint(
            self._listeners[config.inter_broker_listener_name].host,
            config.klamm_metrics_port,
            self.broker_id,
            self._controller,
            metrics,
            self._environment,
            self._fail,
        )
        await self._metrics_endpoint.start()
        self._registrar.metrics_port = self._metrics_endpoint.port

    def _inter_broker_address(self, broker_id: int) -> tuple[str, int] | None:
        endpoint = self._metadata_cache.snapshot.endpoint(broker_id, self._config.inter_broker_listener_name)
        return None if endpoint is None else (endpoint.host, endpoint.port)

    def _is_known_partition(self, topic: str, partition: int) -> bool:
        return self._metadata_cache.snapshot.partition(topic, partition) is not None

    def _hosted_partition(self, key: TopicPartition) -> Partition | None:
        assert self._replica_manager is not None
        return self._replica_manager.hosted_partition(key)

    # -- sessions -------------------------------------------------------------------------------------------------

    def _session_expired(self) -> None:
        if self._controller is not None:
            self._controller.session_expired()

    async def _renew_session(self, store: KafkaZooKeeper) -> None:
        """Raises BrokerStartError when this is not the broker's cluster any more: ZooKeeper was wiped, or replaced.

        To go on would be to serve topics that nobody else knows of; the logs stay as they are.
        """
        await store.sync()
        cluster_id = await store.cluster_id()
        if cluster_id != self.cluster_id:
            found = "no cluster" if cluster_id is None else f"cluster {cluster_id}"
            raise BrokerStartError(
                f"ZooKeeper at {self._config.zookeeper_connect} holds {found}; this broker belongs to {self.cluster_id}"
            )
        await self._finalized_features.load()
        await self._offsets_topic.load()
        assert self._config_handlers is not None and self._config_changes is not None and self._controller is not None
        assert self._metadata_updates is not None
        # Before this broker may be elected: they say whether a replica may lead that lacks records.
        await self._config_handlers.brokers_changed()
        await self._controller.new_session(store)
        self._config_changes.new_session()
        self._metadata_updates.new_session()

    async def _register(self) -> None:
        assert self._registrar is not None and self._log_manager is not None
        await self._registrar.register(
            self._zookeeper.store, self._advertised_endpoints(), self._log_manager.live_directories[0]
        )

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

    def _report_log_dir_failure(self) -> None:
        """Has the controller ask which partitions can be used; in the next session if this one ends meanwhile."""
        start_task(self._report_until_written(), self._fail)

    async def _report_until_written(self) -> None:
        while self._is_serving:
            try:
                return await self._zookeeper.store.report_log_dir_failure(self.broker_id)
            except ZooKeeperError as error:
                _log.warning("the controller does not know of the failed log directory yet: %s", error)
                await asyncio.sleep(REPORT_BACK_OFF_MS / 1000)

    def _fail(self, reason: BaseException) -> None:
        if not self.failure.done():
            _log.critical("the broker must stop", exc_info=reason)
            self.failure.set_result(reason)

    async def stop(self) -> None:
        """Stops cleanly; also after a failed or partial start."""
        if self._is_serving and not self.failure.done() and self._config.controlled_shutdown_enable:
            assert self._registrar is not None
            hand_over = ControlledShutdown(self._config, self.broker_id, self._registrar, self._metadata_cache)
            await hand_over.run(self._zookeeper.store)
        self._is_serving = False
        if self._config_changes is not None:
            await self._config_changes.stop()
        if self._metadata_updates is not None:
            await self._metadata_updates.stop()
        group_coordinator, self._group_coordinator = self._group_coordinator, None
        if group_coordinator is not None:
            # Before the requests under way are waited for: joins wait for minutes.
            await group_coordinator.stop()
        for server in self._listeners.values():
            await server.stop(DRAIN_TIMEOUT_MS)
        if self._replica_manager is not None:
            await self._replica_manager.stop()
        if self._isr_changes is not None:
            await self._isr_changes.stop()
        if self._controller_channel is not None:
            self._controller_channel.close()
        if self._log_manager is not None:
            await self._log_manager.stop()
        if self._controller is not None:
            await self._controller.shutdown()
        if self._metrics_endpoint is not None:
            self._metrics_endpoint.stop()
        await self._zookeeper.stop()
