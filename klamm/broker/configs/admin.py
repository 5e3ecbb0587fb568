"""Alters the stored configurations of topics and brokers (Kafka's `ZkAdminManager`); `alterations` decides.

The operator's policy is asked if the alteration is otherwise valid.

This module only stores changes: every broker, including this one, learns of them from ZooKeeper (`change_listener`).
"""

from collections.abc import Callable, Mapping, Sequence

from klamm.broker.configs.alterations import (
    change_broker_config,
    change_topic_config,
    replace_broker_config,
    replace_topic_config,
)
from klamm.broker.metadata.metadata_cache import MetadataCache
from klamm.broker.metadata.policies import Policy
from klamm.config.current import CurrentConfig
from klamm.plugins.policies import AlterConfigRequest
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import AlterConfigOp, ConfigResourceType
from klamm.znodes.configs import broker_entity, topic_entity
from klamm.znodes.store import KafkaZooKeeper

Entries = Sequence[tuple[str, str | None]]


class ConfigAdmin:
    """`zookeeper()` is the store of the current session. Methods raise KafkaError (for topics also
    UNKNOWN_TOPIC_OR_PARTITION), ZooKeeperError when the session ends, and ZnodeError when the stored configuration
    cannot be parsed (it can be replaced, but not changed).

    A broker's name is its id as text; an empty name is the cluster's default. A broker only alters its own configs and
    the default, because only that broker can tell whether it could run with the result.
    """

    def __init__(
        self,
        metadata_cache: MetadataCache,
        config: CurrentConfig,
        broker_id: int,
        zookeeper: Callable[[], KafkaZooKeeper],
        policy: Policy[AlterConfigRequest] | None = None,
    ) -> None:
        self._metadata_cache = metadata_cache
        self._config = config
        self._broker_id = broker_id
        self._zookeeper = zookeeper
        self._policy = policy

    async def replace_topic(self, topic: str, entries: Entries, *, validate_only: bool) -> None:
        """Gives the topic exactly these configs."""
        await self._require_topic(topic)
        config = replace_topic_config(self._config.current, entries)
        await self._ask_policy(ConfigResourceType.TOPIC, topic, dict(entries))
        if not validate_only:
            await self._zookeeper().configs.replace(topic_entity(topic), config)

    async def change_topic(self, topic: str, changes: Sequence[AlterConfigOp], *, validate_only: bool) -> None:
        """Changes some of the topic's configs."""
        await self._require_topic(topic)
        await self._change(
            ConfigResourceType.TOPIC,
            topic,
            changes,
            topic_entity(topic),
            lambda stored: change_topic_config(self._config.current, stored, changes),
            validate_only,
        )

    async def replace_broker(self, name: str, entries: Entries, *, validate_only: bool) -> None:
        """Gives the broker exactly these dynamic configs."""
        broker_id = self._require_broker(name)
        per_broker = broker_id is not None
        config = replace_broker_config(self._config.current, entries, per_broker=per_broker)
        await self._ask_policy(ConfigResourceType.BROKER, name, dict(entries))
        if not validate_only:
            await self._zookeeper().configs.replace(broker_entity(broker_id), config)

    async def change_broker(self, name: str, changes: Sequence[AlterConfigOp], *, validate_only: bool) -> None:
        """Changes some of the broker's dynamic configs."""
        broker_id = self._require_broker(name)
        per_broker = broker_id is not None
        await self._change(
            ConfigResourceType.BROKER,
            name,
            changes,
            broker_entity(broker_id),
            lambda stored: change_broker_config(self._config.current, stored, changes, per_broker=per_broker),
            validate_only,
        )

    async def _change(
        self,
        kind: ConfigResourceType,
        name: str,
        changes: Sequence[AlterConfigOp],
        entity_path: str,
        change: Callable[[dict[str, str]], Mapping[str, str]],
        validate_only: bool,
    ) -> None:
        if validate_only or self._policy is not None:
            change(await self._zookeeper().configs.of(entity_path))
        await self._ask_policy(kind, name, {each.name: each.value for each in changes})
        if not validate_only:
            await self._zookeeper().configs.update(entity_path, change)

    async def _ask_policy(self, kind: ConfigResourceType, name: str, configs: Mapping[str, str | None]) -> None:
        if self._policy is not None:
            await self._policy.check(AlterConfigRequest(kind.name, name, configs))

    async def _require_topic(self, topic: str) -> None:
        is_known = topic in self._metadata_cache.snapshot.topics
        if is_known:
            # The metadata may still contain a deleted topic, and configs stored for such a topic would stay for ever.
            store = self._zookeeper()
            await store.sync()
            is_known = await store.topic_exists(topic)
        if not is_known:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic}' does not exist.")

    def _require_broker(self, name: str) -> int | None:
        if name in ("", str(self._broker_id)):
            return self._broker_id if name else None
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"broker {name!r} is altered by itself; this is {self._broker_id}. An empty name is the default of all",
        )
