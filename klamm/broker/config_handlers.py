"""Puts changed configurations into effect (Kafka's `TopicConfigHandler`, `BrokerConfigHandler` and `DynamicLogConfig`).

A topic's configuration reaches the topic's partitions and logs; a broker's reaches the topics that inherit from it, the
listeners, and the controller. Users, clients and addresses have none that has an effect yet.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from klamm.broker.dynamic_broker_config import DynamicBrokerConfig
from klamm.broker.topic_configs import TopicConfigs
from klamm.config.broker import BrokerConfig
from klamm.controller.controller import KafkaController
from klamm.net.server import SocketServer
from klamm.replication.replica_manager import ReplicaManager, log_config
from klamm.storage.log_manager import LogManager
from klamm.znodes.configs import broker_entity
from klamm.znodes.store import KafkaZooKeeper
from klamm.znodes.topics import is_legal_topic_name

UNCLEAN_LEADER_ELECTION = "unclean.leader.election.enable"

_log = logging.getLogger(__name__)


class ConfigHandlers:
    """`changed` and `reload` are what `ConfigChanges` calls; of these and `brokers_changed` two may run at a time."""

    def __init__(
        self,
        broker_id: int,
        broker_config: DynamicBrokerConfig,
        topic_configs: TopicConfigs,
        replica_manager: ReplicaManager,
        log_manager: LogManager,
        controller: KafkaController,
        listeners: Iterable[SocketServer],
        zookeeper: Callable[[], KafkaZooKeeper],
    ) -> None:
        self._broker_id = broker_id
        self._broker_config = broker_config
        self._topic_configs = topic_configs
        self._replica_manager = replica_manager
        self._log_manager = log_manager
        self._controller = controller
        self._listeners = tuple(listeners)
        self._zookeeper = zookeeper

    async def changed(self, entity_path: str) -> None:
        """Reads an entity's configuration and puts it into effect. Raises ZooKeeperError when the session ends."""
        if entity_path in (broker_entity(None), broker_entity(self._broker_id)):
            await self.brokers_changed()
        kind, _, name = entity_path.partition("/")
        if kind == "topics" and is_legal_topic_name(name):
            await self._topic_changed(name)

    async def reload(self) -> None:
        """The same for everything that this broker knows."""
        await self.brokers_changed()
        await self._topic_configs.refresh_all()
        await self._replica_manager.update_topic_configs()

    async def _topic_changed(self, topic: str) -> None:
        config = await self._topic_configs.refresh(topic)
        _log.info("topic %s is configured with %s", topic, dict(config.overrides))
        await self._replica_manager.update_topic_configs(topic)
        if UNCLEAN_LEADER_ELECTION in config.overrides and config.unclean_leader_election_enable:
            self._controller.enable_topic_unclean_leader_election(topic)

    async def brokers_changed(self) -> None:
        """Reads what all brokers have and what this one has, and puts it into effect. Raises ZooKeeperError."""
        old = self._broker_config.current
        await self._broker_config.load(self._zookeeper(), self._broker_id)
        new = self._broker_config.current
        changed = sorted(key for key in new.values if new.values[key] != old.values[key])
        _log.info("dynamic configs of brokers are read again; changed: %s", ", ".join(changed) or "none")
        for listener in self._listeners:
            listener.limits = replace(
                listener.limits,
                max_connections=new.max_connections,
                max_connections_per_ip=new.max_connections_per_ip,
            )
        self._controller.reconfigure(new)
        if new.unclean_leader_election_enable and not old.unclean_leader_election_enable:
            self._controller.enable_default_unclean_leader_election()
        if (old.dynamic_default, old.dynamic_broker) != (new.dynamic_default, new.dynamic_broker):
            # Also where no value changes: topics are described with where their values are from. And last, because
            # another of this kind may overtake it there.
            await self._inherit(new)

    async def _inherit(self, config: BrokerConfig) -> None:
        await self._topic_configs.inherit_from(config)
        self._log_manager.default_config = log_config(self._topic_configs.of(""))
        await self._replica_manager.update_topic_configs()
