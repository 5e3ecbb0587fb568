"""The lifecycle of one broker: it starts and stops the parts (`parts.py`) in Kafka's order.

Start: ZooKeeper session and top-level znodes, cluster id, dynamic configs, log directories and their identity, logs,
listeners bound (so that their addresses are known), broker znode, producer ids, then the listeners accept, then the
controller starts, and last the watch on changed configs.
Stop: the controller moves this broker's leaderships away, pending requests are answered, fetchers end, high watermarks
and logs are checkpointed, the clean-shutdown files are written, and the ZooKeeper session, by which the cluster knows
this broker, ends last.

What must stay true:
- No client is served before the broker is registered and its logs are recovered.
- A stop undoes the completed steps of the start in reverse: `_closing` has one entry for each of them.
- `failure` is set by the first programming error, by the loss of the last log directory, and by a failure to set up a
  new session. The caller then stops the process. A client's input never sets it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from klamm.base.environment import Environment
from klamm.broker.configs.broker import DynamicBrokerConfig
from klamm.broker.registration.broker_state import BrokerState
from klamm.broker.registration.finalized_features import SUPPORTED_FEATURES, FinalizedFeatureCache
from klamm.broker.registration.registration import BrokerStartError
from klamm.broker.registration.zookeeper_session import ZooKeeperSession
from klamm.broker.requests.security import AllowEverything, Authorizer
from klamm.broker.start.parts import BrokerParts, log_directories
from klamm.broker.start.plugins import Plugins
from klamm.config.broker import BrokerConfig
from klamm.protocol.vocabulary import encode_topic_id
from klamm.replication.replica_manager import log_config
from klamm.storage.segments.log_directory import read_meta_properties
from klamm.znodes.fields import ZnodeError
from klamm.znodes.store import KafkaZooKeeper

_log = logging.getLogger(__name__)


__all__ = ["Broker", "BrokerStartError"]


class Broker:
    """One broker. `authorizer` is the hook for security; by default everything is allowed.

    `failure` is a future of the running loop that is resolved with the reason why the broker must stop. `zookeeper` and
    `parts` are read-only for callers.
    """

    failure: "asyncio.Future[BaseException]"
    parts: BrokerParts
    """Set early in the start, as soon as the broker knows its id and cluster."""

    def __init__(
        self,
        config: BrokerConfig,
        environment: Environment,
        *,
        authorizer: Authorizer | None = None,
    ) -> None:
        self._config = DynamicBrokerConfig(config)
        self._environment = environment
        self._authorizer = authorizer or AllowEverything()
        # Not an AsyncExitStack: after a cancelled step of a stop, it would continue with the next step.
        self._closing: list[Callable[[], Awaitable[object] | None]] = []
        self.zookeeper = ZooKeeperSession(environment, config, self._fail)
        self._finalized_features = FinalizedFeatureCache(
            SUPPORTED_FEATURES, config.inter_broker_protocol_version, lambda: self.zookeeper.store, self._fail
        )
        self.broker_id = config.broker_id
        self.cluster_id = ""

    @property
    def endpoints(self) -> Mapping[str, tuple[str, int]]:
        """Host and port of each listener by its name, once they are bound."""
        return self.parts.listeners.addresses

    @property
    def metrics_port(self) -> int | None:
        """The HTTP port for metrics and status, once it is bound; None without klamm.metrics.port."""
        return None if self.parts.metrics_endpoint is None else self.parts.metrics_endpoint.port

    # -- start ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns when clients are served.

        Raises BrokerStartError for errors that an operator can fix; ZooKeeperError when ZooKeeper does not answer;
        KafkaError for log directories that cannot be used; OSError for addresses that cannot be bound. After a failed
        start only `stop` may be called.
        """
        self.failure = asyncio.get_running_loop().create_future()
        self._refuse_unsupported()
        self._plugins = Plugins.load(self._config.current)
        try:
            await self._find_identity()
            self.parts = self.assemble()
            await self._bind(self.parts)
            await self._open_logs(self.parts)
            await self._register(self.parts)
            await self._serve(self.parts)
        except ZnodeError as error:
            raise BrokerStartError(f"ZooKeeper at {self._config.current.zookeeper_connect}: {error}") from error

    def _refuse_unsupported(self) -> None:
        if reasons := self._config.current.unsupported_reasons():
            raise BrokerStartError("; ".join(reasons))

    async def wait_until_known(self) -> None:
        """Returns when this broker has its first metadata from the controller, so that clients find the leaders."""
        await self.parts.metadata_cache.is_filled.wait()

    async def _find_identity(self) -> None:
        """Begins the ZooKeeper session, and finds the broker's id, cluster and configuration."""
        self._closing.append(self.zookeeper.stop)
        await self.zookeeper.start()
        store = self.zookeeper.store
        await store.create_persistent_paths()
        await self._finalized_features.load()
        self.cluster_id = await store.get_or_create_cluster_id(encode_topic_id(self._environment.random_uuid()))
        self.broker_id = await self._find_broker_id(store)
        # The configs in ZooKeeper take precedence over the file.
        await self._config.load(store, self.broker_id)
        self._refuse_unsupported()

    async def _find_broker_id(self, store: KafkaZooKeeper) -> int:
        config = self._config.current
        if config.broker_id >= 0:
            return config.broker_id
        stored = [read_meta_properties(self._environment.file_system, path) for path in log_directories(config)]
        ids = [meta.broker_id for meta in stored if meta is not None]
        return ids[0] if ids else await store.generate_broker_id(config.reserved_broker_max_id)

    def assemble(self) -> BrokerParts:
        """Creates the parts, which do not run yet. The simulator overrides this to insert its witnesses."""
        return BrokerParts(
            config=self._config,
            environment=self._environment,
            broker_id=self.broker_id,
            cluster_id=self.cluster_id,
            zookeeper=self.zookeeper,
            finalized_features=self._finalized_features,
            authorizer=self._authorizer,
            plugins=self._plugins,
            on_failure=self._fail,
        )

    async def _bind(self, parts: BrokerParts) -> None:
        """Binds the ports before a log directory is touched, so that a port in use leaves nothing behind."""
        self._closing.append(parts.listeners.stop)
        await parts.listeners.bind()
        if parts.metrics_endpoint is not None:
            self._closing.append(parts.metrics_endpoint.stop)
            await parts.metrics_endpoint.bind()
            # Served before the logs are loaded, so that a long recovery can be watched.
            await parts.metrics_endpoint.start()
            parts.registrar.metrics_port = parts.metrics_endpoint.port

    async def _open_logs(self, parts: BrokerParts) -> None:
        parts.state = BrokerState.RECOVERY
        self._closing.append(parts.controller.shutdown)
        self._closing.append(parts.log_manager.stop)
        topics = await self.zookeeper.store.topic_names()
        await parts.topic_configs.load(topics)
        await parts.quota_configs.load()
        await parts.log_manager.load(
            {topic: log_config(parts.topic_configs.of(topic), topic) for topic in topics},
            self.zookeeper.store.topic_ids,
        )

    async def _register(self, parts: BrokerParts) -> None:
        """Registers this broker."""
        # From here on a stop writes high watermarks: the directories are known to be this broker's.
        self._closing.append(parts.controller_channel.close)
        self._closing.append(parts.transaction_markers.stop)
        self._closing.append(parts.isr_changes.stop)
        self._closing.append(parts.replica_manager.stop)
        # A stop ends the connections before it stops the parts that serve them.
        self._closing.append(parts.listeners.stop)
        await parts.register()

    async def _serve(self, parts: BrokerParts) -> None:
        await parts.producer_ids.start()
        parts.log_manager.start()
        await parts.offsets_topic.load()
        await parts.transaction_topic.load()
        # Stopped before a stop waits for pending requests: joins wait for minutes.
        self._closing.append(parts.group_coordinator.stop)
        parts.group_coordinator.start()
        self._closing.append(parts.transaction_coordinator.stop)
        parts.transaction_coordinator.start()
        self._closing.append(parts.metadata_updates.stop)
        self._closing.append(parts.config_change_listener.stop)
        self._closing.append(parts.log_dir_failures.stop)
        parts.log_dir_failures.start()
        # Before the controller: it may be this broker's own, and then sends LeaderAndIsr at once.
        await parts.listeners.start()
        self._closing.append(parts.listener_changes.stop)
        parts.listener_changes.start()
        # Loading the logs may have taken long, and the broker configs decide which replicas may be elected.
        await parts.config_handlers.brokers_changed()
        await parts.controller.startup(self.zookeeper.store)
        parts.config_change_listener.start()
        self.zookeeper.keep(parts.controller.session_expired, self._set_up_session)
        self._closing.append(partial(self._hand_over, parts))
        parts.state = BrokerState.RUNNING
        _log.info("broker %d of cluster %s serves %s", self.broker_id, self.cluster_id, parts.listeners.addresses)

    # -- sessions -------------------------------------------------------------------------------------------------

    async def _set_up_session(self, store: KafkaZooKeeper) -> None:
        """Sets up a new session. Raises BrokerStartError if ZooKeeper no longer has this broker's cluster, because
        ZooKeeper was wiped or replaced.

        Otherwise this broker would serve topics that no other broker knows. The logs stay as they are.
        """
        await store.sync()
        cluster_id = await store.cluster_id()
        if cluster_id != self.cluster_id:
            found = "no cluster" if cluster_id is None else f"cluster {cluster_id}"
            connect = self._config.current.zookeeper_connect
            raise BrokerStartError(f"ZooKeeper at {connect} holds {found}; this broker belongs to {self.cluster_id}")
        await self._finalized_features.load()
        await self.parts.offsets_topic.load()
        await self.parts.transaction_topic.load()
        # Before this broker may be elected: the configs decide whether an out-of-sync replica may lead.
        await self.parts.config_handlers.brokers_changed()
        await self.parts.controller.new_session(store)
        self.parts.config_change_listener.new_session()
        self.parts.metadata_updates.new_session()

    # -- failure and stop -----------------------------------------------------------------------------------------

    def _fail(self, reason: BaseException) -> None:
        if not self.failure.done():
            _log.critical("the broker must stop", exc_info=reason)
            self.failure.set_result(reason)

    async def stop(self) -> None:
        """Stops cleanly; also after a failed or partial start."""
        while self._closing:
            ending = self._closing.pop()()
            if ending is not None:
                await ending

    async def _hand_over(self, parts: BrokerParts) -> None:
        """Has the controller move the leaderships to other brokers, unless this broker has failed."""
        if not self.failure.done() and self._config.current.controlled_shutdown_enable:
            parts.state = BrokerState.PENDING_CONTROLLED_SHUTDOWN
            await parts.controlled_shutdown.run(self.zookeeper.store)
        parts.state = BrokerState.SHUTTING_DOWN
