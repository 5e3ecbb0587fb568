"""How an execution reaches a cluster: over the wire, or through ZooKeeper's znodes.

Both classes have the same methods, so one execution serves both. Through the znodes there are no sizes and no moves
between log directories, and a reassignment that has begun cannot be cancelled.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol

from klamm.cli.reassign.steps import ClusterMoment
from klamm.cli.reassign.throttles import Changes, ConfigKey
from klamm.client.admin.configs import ConfigResource, describe_configs, incremental_alter_configs
from klamm.client.admin.log_dirs import (
    LogDirDescription,
    TopicPartitionReplica,
    alter_replica_log_dirs,
    describe_log_dirs,
)
from klamm.client.admin.reassignments import alter_partition_reassignments
from klamm.client.cluster import ClusterClient
from klamm.config.definition import ConfigSource
from klamm.diagnosis.cluster_view import read_cluster, read_znodes
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import AlterConfigOp, ConfigResourceType, OpType, TopicPartition
from klamm.znodes.store import KafkaZooKeeper

Targets = Mapping[TopicPartition, Sequence[int]]
Results = dict[TopicPartition, KafkaError | None]
LogDirs = dict[int, Mapping[str, LogDirDescription]]

# How long a command looks for a controller. A dead controller is replaced when its ZooKeeper session expires: after 18
# s by default.
CONTROLLER_AWAITED_MS: Final = 40_000


class Access(Protocol):
    """A cluster's reassignments, throttles and log directories."""

    async def look(self, topics: Iterable[str] | None, *, in_doubt: bool = False) -> ClusterMoment:
        """These topics, or all. With `in_doubt` a second broker is asked too, as the first may be behind."""
        ...

    async def cluster_id(self) -> str | None: ...

    async def start(self, targets: Targets) -> Results:
        """Begins to move partitions. The error of one partition does not affect the others."""
        ...

    async def cancel(self, partitions: Collection[TopicPartition]) -> Results: ...

    async def read_configs(self, keys: Iterable[ConfigKey]) -> dict[ConfigKey, str | None]:
        """The values that are set for these entities themselves, not inherited. The configs of a broker that does not
        answer are left out; a topic that does not exist has no values."""
        ...

    async def unreachable(self, brokers: Iterable[int]) -> set[int]:
        """The brokers among these whose configs cannot be changed now."""
        ...

    async def change_configs(self, changes: Changes) -> dict[str, KafkaError | None]:
        """Changes these configs of each entity; its other configs stay."""
        ...

    async def log_dirs(self, brokers: Iterable[int], partitions: Collection[TopicPartition]) -> LogDirs:
        """The log directories of these partitions on these brokers. A broker that does not answer is left out."""
        ...

    async def move_log_dirs(
        self, paths: Mapping[TopicPartitionReplica, str]
    ) -> dict[TopicPartitionReplica, KafkaError | None]: ...


class BrokerAccess:
    """Over Kafka's protocol."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    async def look(self, topics: Iterable[str] | None, *, in_doubt: bool = False) -> ClusterMoment:
        if in_doubt:
            # The client keeps the answer with the newer leader epoch of each partition.
            await self._client.refresh_metadata(topics, elsewhere=True)
        view = await read_cluster(self._client, topics)
        return ClusterMoment(view, {key: each.target for key, each in view.partitions.items() if each.is_reassigning})

    async def cluster_id(self) -> str | None:
        return (await self._client.refresh_metadata(())).cluster_id

    async def start(self, targets: Targets) -> Results:
        return await alter_partition_reassignments(self._client, targets)

    async def cancel(self, partitions: Collection[TopicPartition]) -> Results:
        return await alter_partition_reassignments(self._client, dict.fromkeys(partitions))

    async def read_configs(self, keys: Iterable[ConfigKey]) -> dict[ConfigKey, str | None]:
        wanted = list(keys)
        resources = {entity: _resource(entity) for entity, _ in wanted}
        described = await describe_configs(self._client, resources.values(), sorted({name for _, name in wanted}))
        found: dict[ConfigKey, str | None] = {}
        for key in wanted:
            configs = described[resources[key.entity]]
            if not isinstance(configs, KafkaError):
                entry = configs.get(key.name)
                found[key] = None if entry is None or entry.source not in _OWN else entry.value
            elif configs.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                found[key] = None
        return found

    async def unreachable(self, brokers: Iterable[int]) -> set[int]:
        return set(brokers) - (await self._client.refresh_metadata(())).brokers.keys()

    async def change_configs(self, changes: Changes) -> dict[str, KafkaError | None]:
        resources = {entity: _resource(entity) for entity in changes}
        results = await incremental_alter_configs(
            self._client,
            {
                resource: [
                    AlterConfigOp(name, value, OpType.DELETE if value is None else OpType.SET)
                    for name, value in changes[entity].items()
                ]
                for entity, resource in resources.items()
            },
        )
        return {entity: results[resource] for entity, resource in resources.items()}

    async def log_dirs(self, brokers: Iterable[int], partitions: Collection[TopicPartition]) -> LogDirs:
        found = await describe_log_dirs(self._client, brokers, partitions)
        return {broker: each for broker, each in found.items() if not isinstance(each, KafkaError)}

    async def move_log_dirs(
        self, paths: Mapping[TopicPartitionReplica, str]
    ) -> dict[TopicPartitionReplica, KafkaError | None]:
        return await alter_replica_log_dirs(self._client, paths)


class ZnodeAccess:
    """Through ZooKeeper, as Kafka's tool does it with --zookeeper."""

    def __init__(self, znodes: KafkaZooKeeper) -> None:
        self._znodes = znodes
        # The topics and brokers that `look` has left out, and why.
        self.unread: dict[str, str] = {}

    async def look(self, topics: Iterable[str] | None, *, in_doubt: bool = False) -> ClusterMoment:
        await self._znodes.sync()
        # Read first: the controller writes the assignment before it removes a finished partition from this list.
        requested = await self._znodes.requested_reassignment()
        view = await read_znodes(self._znodes, topics)
        self.unread.update(view.unread)
        targets = {key: each.target for key, each in view.partitions.items() if each.is_reassigning}
        for key, replicas in (requested or {}).items():
            targets.setdefault(TopicPartition(*key), replicas)
        return ClusterMoment(view, targets, accepts_more=requested is None)

    async def cluster_id(self) -> str | None:
        return await self._znodes.cluster_id()

    async def start(self, targets: Targets) -> Results:
        try:
            await self._znodes.request_reassignment({(key.topic, key.partition): ids for key, ids in targets.items()})
        except KafkaError as error:
            return dict.fromkeys(targets, error)
        return dict.fromkeys(targets)

    async def cancel(self, partitions: Collection[TopicPartition]) -> Results:
        error = KafkaError(ErrorCode.UNSUPPORTED_VERSION, "only brokers cancel a reassignment, with --bootstrap-server")
        return dict.fromkeys(partitions, error)

    async def read_configs(self, keys: Iterable[ConfigKey]) -> dict[ConfigKey, str | None]:
        wanted = list(keys)
        configs = {
            entity: await self._znodes.configs.of(entity) for entity in dict.fromkeys(each.entity for each in wanted)
        }
        return {key: configs[key.entity].get(key.name) for key in wanted}

    async def unreachable(self, brokers: Iterable[int]) -> set[int]:
        # ZooKeeper has the configs of dead brokers too.
        return set()

    async def change_configs(self, changes: Changes) -> dict[str, KafkaError | None]:
        results: dict[str, KafkaError | None] = {}
        for entity, values in changes.items():
            topic = entity.removeprefix("topics/")
            if topic != entity and not await self._znodes.topic_exists(topic):
                results[entity] = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic}")
                continue
            await self._znodes.configs.update(entity, lambda config, values=values: _changed(config, values))  # type: ignore[misc]
            results[entity] = None
        return results

    async def log_dirs(self, brokers: Iterable[int], partitions: Collection[TopicPartition]) -> LogDirs:
        return {}

    async def move_log_dirs(
        self, paths: Mapping[TopicPartitionReplica, str]
    ) -> dict[TopicPartitionReplica, KafkaError | None]:
        error = KafkaError(ErrorCode.UNSUPPORTED_VERSION, "only brokers move log directories, with --bootstrap-server")
        return dict.fromkeys(paths, error)


_OWN = (ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DYNAMIC_BROKER_CONFIG)


def _resource(entity: str) -> ConfigResource:
    kind, _, name = entity.partition("/")
    return ConfigResource(ConfigResourceType.TOPIC if kind == "topics" else ConfigResourceType.BROKER, name)


def _changed(config: Mapping[str, str], values: Mapping[str, str | None]) -> dict[str, str]:
    changed = {**config, **{name: value for name, value in values.items() if value is not None}}
    return {name: value for name, value in changed.items() if values.get(name, value) is not None}
