"""Puts changed configurations into effect (Kafka's `TopicConfigHandler`, `BrokerConfigHandler` and `DynamicLogConfig`).

A topic's configuration reaches the topic's partitions and logs; a broker's reaches the topics that inherit from it.
Listeners and the controller subscribe to broker configurations. Configurations of users, clients and addresses are
quotas.
"""

import logging
from collections.abc import Callable

from klamm.broker.configs.broker import DynamicBrokerConfig
from klamm.broker.configs.quotas import QuotaConfigs
from klamm.broker.configs.topics import TopicConfigs
from klamm.config.broker import DYNAMIC_ONLY_DEF
from klamm.controller.controller import KafkaController
from klamm.replication.replica_manager import ReplicaManager
from klamm.znodes.configs import broker_entity
from klamm.znodes.store import KafkaZooKeeper
from klamm.znodes.topics import is_legal_topic_name

QUOTA_TYPES = ("users", "clients", "ips")
UNCLEAN_LEADER_ELECTION = "unclean.leader.election.enable"

_log = logging.getLogger(__name__)


class ConfigHandlers:
    """`ConfigChangeListener` calls `changed` and `reload`. Either may run concurrently with `brokers_changed`."""

    def __init__(
        self,
        broker_id: int,
        config: DynamicBrokerConfig,
        topic_configs: TopicConfigs,
        quota_configs: QuotaConfigs,
        replica_manager: ReplicaManager,
        controller: KafkaController,
        zookeeper: Callable[[], KafkaZooKeeper],
    ) -> None:
        self._broker_id = broker_id
        self._config = config
        self._topic_configs = topic_configs
        self._quota_configs = quota_configs
        self._replica_manager = replica_manager
        self._controller = controller
        self._zookeeper = zookeeper

    async def changed(self, entity_path: str) -> None:
        """Reads an entity's configuration and puts it into effect. Raises ZooKeeperError when the session ends."""
        if entity_path in (broker_entity(None), broker_entity(self._broker_id)):
            await self.brokers_changed()
        kind, _, name = entity_path.partition("/")
        if kind == "topics" and is_legal_topic_name(name):
            await self._topic_changed(name)
        if kind in QUOTA_TYPES:
            await self._quota_configs.changed(entity_path)

    async def reload(self) -> None:
        """Like `changed`, for every entity that this broker knows."""
        await self.brokers_changed()
        await self._quota_configs.load()
        await self._topic_configs.refresh_all()
        await self._replica_manager.update_topic_configs()

    async def _topic_changed(self, topic: str) -> None:
        config = await self._topic_configs.refresh(topic)
        _log.info("topic %s is configured with %s", topic, dict(config.overrides))
        await self._replica_manager.update_topic_configs(topic)
        if UNCLEAN_LEADER_ELECTION in config.overrides and config.unclean_leader_election_enable:
            self._controller.enable_topic_unclean_leader_election(topic)

    async def brokers_changed(self) -> None:
        """Reads the default and this broker's dynamic configs and puts them into effect. Raises ZooKeeperError."""
        old = self._config.current
        await self._config.load(self._zookeeper(), self._broker_id)
        new = self._config.current
        changed = sorted(key for key in new.values if new.values[key] != old.values[key])
        changed += sorted(key for key in DYNAMIC_ONLY_DEF.keys if new.dynamic_only(key) != old.dynamic_only(key))
        _log.info("dynamic configs of brokers are read again; changed: %s", ", ".join(changed) or "none")
        if (old.dynamic_default, old.dynamic_broker) != (new.dynamic_default, new.dynamic_broker):
            # Runs even if no value changes, because descriptions of topics show the source of each value. Comes last,
            # because a concurrent call may overtake this call here.
            await self._topic_configs.inherit()
            await self._replica_manager.update_topic_configs()
