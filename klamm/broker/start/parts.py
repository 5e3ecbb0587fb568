"""Assembles the parts of a broker.

`BrokerParts` is created once the broker's id and cluster are known, and is complete from then on. It does not open,
bind or write: the lifecycle is in `broker.py`.
"""

import asyncio
import logging
import os.path
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from klamm.base.environment import Environment
from klamm.base.metrics import MetricName, Metrics
from klamm.base.purgatory import Purgatory
from klamm.base.slices import Turns
from klamm.base.tasks import OnFailure
from klamm.broker.configs.admin import ConfigAdmin
from klamm.broker.configs.broker import DynamicBrokerConfig
from klamm.broker.configs.change_listener import ConfigChangeListener
from klamm.broker.configs.handlers import ConfigHandlers
from klamm.broker.configs.quotas import QuotaConfigs
from klamm.broker.configs.topics import TopicConfigs
from klamm.broker.coordinators.coordinator_log import CoordinatorLog, offsets_log_settings, transaction_log_settings
from klamm.broker.coordinators.coordinator_topic import CoordinatorTopic, offsets_topic, transaction_topic
from klamm.broker.coordinators.marker_appends import MarkerAppends
from klamm.broker.coordinators.producer_ids import ProducerIds
from klamm.broker.coordinators.transaction_markers import TransactionMarkers
from klamm.broker.handlers import APIS
from klamm.broker.metadata.controller_channel import ControllerChannel
from klamm.broker.metadata.leader_elections import LeaderElections
from klamm.broker.metadata.metadata_cache import BrokerMetadata, MetadataCache
from klamm.broker.metadata.policies import Policy
from klamm.broker.metadata_updates import ComparedState, MetadataUpdates
from klamm.broker.metrics import purgatory_metrics
from klamm.broker.quotas.admin import QuotaAdmin
from klamm.broker.quotas.client_quotas import ClientQuotas
from klamm.broker.registration.broker_state import BrokerState
from klamm.broker.registration.finalized_features import FinalizedFeatureCache
from klamm.broker.registration.registration import Registrar
from klamm.broker.registration.zookeeper_session import ZooKeeperSession
from klamm.broker.requests.dispatcher import Dispatcher
from klamm.broker.requests.fetch_session import FetchSessionCache
from klamm.broker.requests.security import Authorizer
from klamm.broker.requests.services import Services
from klamm.broker.start.controlled_shutdown import ControlledShutdown
from klamm.broker.start.listener_changes import ListenerChanges
from klamm.broker.start.listeners import Listeners
from klamm.broker.start.log_dir_failures import LogDirFailures
from klamm.broker.start.plugins import ALTER_CONFIG_POLICY, CREATE_TOPIC_POLICY, Plugins
from klamm.broker.topics.auto_topic_creation import AutoTopicCreation
from klamm.broker.topics.topic_admin import TopicAdmin
from klamm.config.broker import BrokerConfig
from klamm.config.current import CurrentConfig
from klamm.config.versions import ApiVersion
from klamm.controller import controller_metrics
from klamm.controller.channels.channel_manager import ControllerChannelManager
from klamm.controller.controller import KafkaController
from klamm.coordinator.groups import group_metrics
from klamm.coordinator.groups.group_coordinator import GroupCoordinator
from klamm.coordinator.groups.group_metadata_manager import GroupMetadataManager
from klamm.coordinator.transactions import transaction_metrics
from klamm.coordinator.transactions.coordinator import TransactionCoordinator
from klamm.net.server.response_memory import ResponseMemory
from klamm.plugins.policies import AlterConfigRequest, NewTopicRequest
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME, TRANSACTION_STATE_TOPIC_NAME, PartitionKey
from klamm.replication.fetcher.fetcher_manager import ReplicaFetcherManager
from klamm.replication.fetcher.throttles import ReplicationThrottles
from klamm.replication.metrics import open_transaction_metrics, replica_metrics
from klamm.replication.partition.alter_isr import AlterIsrManager
from klamm.replication.partition.partition import Partition
from klamm.replication.partition.zk_isr import ZkIsrManager
from klamm.replication.read_replicas import ReadReplicas
from klamm.replication.replica_manager import ReplicaManager, log_config
from klamm.storage.directories import log_metrics
from klamm.storage.directories.log_cleaner import CleanerSettings
from klamm.storage.directories.log_manager import LogManager, LogManagerSettings
from klamm.storage.segments.log_directory import MetaProperties
from klamm.znodes.store import KafkaZooKeeper

if TYPE_CHECKING:
    from klamm.broker.metrics.metrics_endpoint import MetricsEndpoint

_log = logging.getLogger(__name__)


class BrokerParts:
    """All parts of one broker. `services` are the parts that handlers use. Create it while the loop runs."""

    def __init__(
        self,
        *,
        config: DynamicBrokerConfig,
        environment: Environment,
        broker_id: int,
        cluster_id: str,
        zookeeper: ZooKeeperSession,
        finalized_features: FinalizedFeatureCache,
        authorizer: Authorizer,
        plugins: Plugins,
        on_failure: OnFailure,
    ) -> None:
        static = config.current
        self._config = static
        self._broker_id = broker_id
        self._zookeeper = zookeeper
        self._on_failure = on_failure
        self.state = BrokerState.STARTING
        self.response_memory = ResponseMemory(static.klamm_queued_max_response_bytes)

        # Data from ZooKeeper and the controller.
        self.registrar = Registrar(
            environment,
            broker_id,
            static.broker_rack,
            finalized_features.supported,
            static.inter_broker_protocol_version,
        )
        self.metadata_cache = MetadataCache()
        self.throttles = ReplicationThrottles(config, broker_id)
        self.topic_configs = TopicConfigs(config, self._store, self.throttles.topic_configured)
        self.quotas = ClientQuotas(static, _loop_clock_ms())
        self.quota_configs = QuotaConfigs(self.quotas, self._set_connection_rate, self._store)
        self.topic_admin = TopicAdmin(
            environment, config, self.metadata_cache, self._store, self._create_topic_policy(plugins, environment)
        )
        self.auto_topic_creation = AutoTopicCreation(self.topic_admin, on_failure)
        topics = self.metadata_cache, self.auto_topic_creation, self._store
        self.offsets_topic = CoordinatorTopic(GROUP_METADATA_TOPIC_NAME, partial(offsets_topic, config), *topics)
        self.transaction_topic = CoordinatorTopic(
            TRANSACTION_STATE_TOPIC_NAME, partial(transaction_topic, config), *topics
        )
        self.controller_channel = ControllerChannel(self.metadata_cache, broker_id, static)

        # Logs and replicas.
        self.log_dir_failures = LogDirFailures(broker_id, self._store, on_failure)
        self.log_manager = LogManager(
            environment,
            log_directories(static),
            meta_properties=MetaProperties(cluster_id, broker_id),
            default_config=log_config(self.topic_configs.of("")),
            settings=_log_manager_settings(static),
            cleaner_settings=_cleaner_settings(static),
            on_directory_failure=self._directory_failed,
            on_failure=on_failure,
        )
        config.subscribe(lambda _old, new: self.log_manager.cleaner.reconfigure(_cleaner_settings(new)))
        config.subscribe(self._config_changed)
        self.isr_changes = self._make_isr_changes()
        self.followers = ReplicaFetcherManager(
            config, broker_id, self._hosted_partition, self.throttles.follower, on_failure
        )
        self.replica_manager = ReplicaManager(
            static,
            environment,
            broker_id,
            self.log_manager,
            response_memory=self.response_memory,
            leader_quota=self.throttles.leader,
            log_dirs_quota=self.throttles.alter_log_dirs,
            topic_configs=self.topic_configs,
            followers=self.followers,
            isr_changes=self.isr_changes,
            live_broker=self._inter_broker_address,
            is_known_partition=self._is_known_partition,
            on_leadership=self._leadership_changed,
            notify_log_dir_failure=self.log_dir_failures.report,
            on_failure=on_failure,
            read_replicas=None
            if plugins.replica_selector is None
            else ReadReplicas(plugins.replica_selector, self._replica_address),
        )

        # Coordinator and controller.
        self.groups = GroupMetadataManager(
            static,
            CoordinatorLog(
                GROUP_METADATA_TOPIC_NAME,
                lambda: offsets_log_settings(config.current),
                environment,
                self.replica_manager,
                on_failure,
            ),
            self.offsets_topic.partition_for,
            environment.now_ms,
            on_failure,
            self._groups_loaded,
        )
        self.group_coordinator = GroupCoordinator(config, self.groups, environment, on_failure)
        self.marker_appends = MarkerAppends(
            static, environment, self.replica_manager, self.group_coordinator, on_failure
        )
        self.transaction_markers = TransactionMarkers(
            static, broker_id, self.metadata_cache, self._inter_broker_address, self.marker_appends, self._store
        )
        self.producer_ids = ProducerIds(self._allocate_producer_ids)
        self.transaction_coordinator = TransactionCoordinator(
            static,
            CoordinatorLog(
                TRANSACTION_STATE_TOPIC_NAME,
                lambda: transaction_log_settings(config.current),
                environment,
                self.replica_manager,
                on_failure,
            ),
            self.transaction_topic.partition_for,
            self.producer_ids,
            self.transaction_markers,
            environment,
            on_failure,
        )
        self.controller = KafkaController(
            config,
            environment,
            broker_id,
            lambda: ControllerChannelManager(static, broker_id, on_failure),
            register_broker=self.register,
            on_failure=on_failure,
        )
        self.controlled_shutdown = ControlledShutdown(static, broker_id, self.registrar, self.metadata_cache)

        # Changes while the broker runs.
        leader_elections = LeaderElections(self.controller, self.metadata_cache)
        self.metadata_updates = MetadataUpdates(
            self.metadata_cache,
            self.replica_manager,
            self.group_coordinator,
            self.topic_configs,
            self.topic_admin,
            leader_elections,
            self._store,
            on_failure,
        )
        self.config_handlers = ConfigHandlers(
            broker_id,
            config,
            self.topic_configs,
            self.quota_configs,
            self.replica_manager,
            self.controller,
            self._store,
        )
        self.config_change_listener = ConfigChangeListener(
            self._store, environment.now_ms, self.config_handlers.changed, self.config_handlers.reload, on_failure
        )

        # Serving clients.
        self.services = Services(
            environment=environment,
            config=config,
            broker_id=broker_id,
            cluster_id=cluster_id,
            registrar=self.registrar,
            controller=self.controller,
            controller_channel=self.controller_channel,
            apis=APIS,
            authorizer=authorizer,
            quotas=self.quotas,
            quota_admin=QuotaAdmin(self._store),
            metadata_cache=self.metadata_cache,
            metadata_updates=self.metadata_updates,
            topic_configs=self.topic_configs,
            topic_admin=self.topic_admin,
            auto_topic_creation=self.auto_topic_creation,
            config_admin=ConfigAdmin(
                self.metadata_cache,
                config,
                broker_id,
                self._store,
                self._alter_config_policy(plugins, environment),
            ),
            leader_elections=leader_elections,
            finalized_features=finalized_features,
            replica_manager=self.replica_manager,
            log_manager=self.log_manager,
            fetch_sessions=_fetch_sessions(static, environment),
            offsets_topic=self.offsets_topic,
            transaction_topic=self.transaction_topic,
            group_coordinator=self.group_coordinator,
            transaction_coordinator=self.transaction_coordinator,
            transaction_markers=self.transaction_markers,
            marker_appends=self.marker_appends,
            long_answers=Turns(self.response_memory.wait_for_room),
        )
        self.dispatcher = Dispatcher(self.services, environment.work_clock_s)
        self.listeners = Listeners(
            config,
            environment,
            self.dispatcher,
            self.response_memory,
            self.log_manager.open_files.make_room,
            on_failure,
        )
        self.listener_changes = ListenerChanges(config, self.listeners, self.registrar, self._store, on_failure)
        self.metrics_endpoint = self._make_metrics_endpoint(config, environment)

    def _config_changed(self, _old: BrokerConfig, new: BrokerConfig) -> None:
        self.log_manager.settings = _log_manager_settings(new)

    def _store(self) -> KafkaZooKeeper:
        """The store of the current session."""
        return self._zookeeper.store

    def _create_topic_policy(self, plugins: Plugins, environment: Environment) -> Policy[NewTopicRequest] | None:
        policy = plugins.create_topic_policy
        return None if policy is None else Policy(CREATE_TOPIC_POLICY, policy.validate, environment, self._on_failure)

    def _alter_config_policy(self, plugins: Plugins, environment: Environment) -> Policy[AlterConfigRequest] | None:
        policy = plugins.alter_config_policy
        return None if policy is None else Policy(ALTER_CONFIG_POLICY, policy.validate, environment, self._on_failure)

    def _make_isr_changes(self) -> AlterIsrManager | ZkIsrManager:
        """The way in which leaders change ISRs: through the controller, or before 2.7-IV2 directly in ZooKeeper."""
        if self._config.inter_broker_protocol_version >= ApiVersion.V2_7_IV2:
            return AlterIsrManager(
                lambda body: self.controller_channel.send(ApiKey.ALTER_ISR, lambda _version: body),
                self._broker_id,
                lambda: self.registrar.broker_epoch,
                self._on_failure,
            )
        return ZkIsrManager(self._store, self._broker_id, self._on_failure)

    def _make_metrics_endpoint(self, config: CurrentConfig, environment: Environment) -> "MetricsEndpoint | None":
        """The metrics endpoint; None without klamm.metrics.port."""
        if self._config.klamm_metrics_port < 0:
            return None
        # A broker without the port never imports the HTTP server.
        from klamm.broker.metrics.metrics_endpoint import MetricsEndpoint

        metrics = Metrics()
        controller_metrics.register(metrics, self.controller)
        group_metrics.register(metrics, self.groups)
        transaction_metrics.register(metrics, self.transaction_coordinator)
        self.listeners.register(metrics)
        self.dispatcher.statistics.register(metrics)
        self.log_manager.cleaner.register(metrics)
        self.replica_manager.log_dir_moves.register(metrics)
        self.followers.register(metrics)
        replica_metrics.register(metrics, self.replica_manager)
        self.replica_manager.topic_statistics.register(metrics)
        self.services.fetch_sessions.register(metrics)
        fetches = {
            "consumer": self.replica_manager.fetch_purgatory,
            "follower": self.replica_manager.follower_fetch_purgatory,
        }
        purgatory_metrics.register(metrics, self._purgatories(), fetches)
        metrics.gauge(
            MetricName("kafka.server", "KafkaServer", "BrokerState"),
            "What the broker does: 1 starts, 2 loads its logs, 3 runs, 6 hands its leaderships over, 7 stops.",
            lambda: self.state,
        )
        self._zookeeper.register(metrics)
        open_transaction_metrics.register(
            metrics, self.replica_manager.partitions, environment.now_ms, self._config.transaction_max_timeout_ms
        )
        self.throttles.register(metrics, _loop_clock_ms())
        self.quotas.register(metrics)
        log_metrics.register(metrics, self.log_manager)
        return MetricsEndpoint(
            self.listeners[self._config.inter_broker_listener_name].host,
            self._config.klamm_metrics_port,
            self._broker_id,
            self.controller,
            metrics,
            environment,
            lambda: _host_names(config.current),
            self._on_failure,
        )

    def _purgatories(self) -> dict[str, list[Purgatory[Any]]]:
        """The purgatories by their names in Kafka."""
        replicas = self.replica_manager
        return {
            "Produce": [replicas.produce_purgatory],
            "Fetch": [replicas.fetch_purgatory, replicas.follower_fetch_purgatory],
            "DeleteRecords": [replicas.delete_records_purgatory],
            "ElectLeader": [self.services.leader_elections.purgatory],
            "topic": [self.topic_admin.purgatory],
            **self.group_coordinator.rebalances.purgatories,
        }

    # -- what one part tells another --------------------------------------------------------------------------------

    async def register(self) -> None:
        """Registers this broker in the current session. The listeners must be bound and the log directories locked."""
        endpoints = self.listener_changes.endpoints
        self.metadata_cache.begin_with(BrokerMetadata(self._broker_id, endpoints, self._config.broker_rack))
        await self.registrar.register(self._store(), endpoints, self.log_manager.live_directories[0])

    async def _allocate_producer_ids(self) -> tuple[int, int]:
        return await self._store().allocate_producer_id_block(self._broker_id)

    def _set_connection_rate(self, address: str | None, per_second: int | None) -> None:
        self.listeners.quotas.set_rate_of_host(address, per_second)

    def _inter_broker_address(self, broker_id: int) -> tuple[str, int] | None:
        endpoint = self.metadata_cache.snapshot.endpoint(broker_id, self._config.inter_broker_listener_name)
        return None if endpoint is None else (endpoint.host, endpoint.port)

    def _replica_address(self, broker_id: int, listener_name: str) -> tuple[str, int, str | None] | None:
        snapshot = self.metadata_cache.snapshot
        endpoint = snapshot.endpoint(broker_id, listener_name)
        return None if endpoint is None else (endpoint.host, endpoint.port, snapshot.brokers[broker_id].rack)

    def _is_known_partition(self, topic: str, partition: int) -> bool:
        return self.metadata_cache.snapshot.partition(topic, partition) is not None

    def _hosted_partition(self, key: PartitionKey) -> Partition | None:
        return self.replica_manager.hosted_partition(key)

    def _groups_loaded(self) -> None:
        self.metadata_updates.look_for_deleted_topics(ComparedState.UNKNOWN_TOPICS)

    def _leadership_changed(self, key: PartitionKey, leads: bool, leader_epoch: int | None) -> None:
        """The leader of a partition of a coordinator's topic coordinates its groups, or its transactional ids."""
        topic, partition = key
        coordinator: GroupCoordinator | TransactionCoordinator
        if topic == GROUP_METADATA_TOPIC_NAME:
            coordinator = self.group_coordinator
        elif topic == TRANSACTION_STATE_TOPIC_NAME:
            coordinator = self.transaction_coordinator
        else:
            return
        if leads and leader_epoch is not None:
            coordinator.on_election(partition, leader_epoch)
        else:
            coordinator.on_resignation(partition, leader_epoch)

    def _directory_failed(self, directory: str, error: OSError) -> None:
        _log.error("log directory %s is offline: %s", directory, error)
        if not self.log_manager.is_loaded:
            return  # Still starting: loading the logs raises the error if no directory is left.
        self.replica_manager.directory_failed(directory)
        if not self.log_manager.live_directories:
            self._on_failure(error)


def log_directories(config: BrokerConfig) -> list[str]:
    """The absolute paths of log.dirs."""
    return [os.path.abspath(directory) for directory in config.log_dirs]


def _host_names(config: BrokerConfig) -> list[str]:
    """The names by which clients reach the broker, and those that the operator has added."""
    listeners = (*config.listeners, *config.advertised_listeners)
    return [*(each.host for each in listeners), *config.klamm_metrics_allowed_hosts]


def _log_manager_settings(config: BrokerConfig) -> LogManagerSettings:
    return LogManagerSettings(
        retention_check_ms=config.log_retention_check_interval_ms,
        flush_check_ms=config.log_flush_scheduler_interval_ms,
        recovery_point_checkpoint_ms=config.log_flush_offset_checkpoint_interval_ms,
        log_start_offset_checkpoint_ms=config.log_flush_start_offset_checkpoint_interval_ms,
        producer_expiration_ms=config.transactional_id_expiration_ms,
        recovery_threads_per_directory=config.num_recovery_threads_per_data_dir,
    )


def _cleaner_settings(config: BrokerConfig) -> CleanerSettings:
    return CleanerSettings(
        is_enabled=config.log_cleaner_enable,
        threads=config.log_cleaner_threads,
        max_bytes_per_second=config.log_cleaner_io_max_bytes_per_second,
        dedupe_buffer_bytes=config.log_cleaner_dedupe_buffer_size,
        dedupe_buffer_load_factor=config.log_cleaner_io_buffer_load_factor,
        backoff_ms=config.log_cleaner_backoff_ms,
    )


def _fetch_sessions(config: BrokerConfig, environment: Environment) -> FetchSessionCache:
    return FetchSessionCache(config.max_incremental_fetch_session_cache_slots, environment.random, _loop_clock_ms())


def _loop_clock_ms() -> Callable[[], float]:
    loop = asyncio.get_running_loop()
    return lambda: loop.time() * 1000
