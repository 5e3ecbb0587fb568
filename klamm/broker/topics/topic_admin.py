"""Creates, grows and deletes topics: validation, placement, and the znodes that ask the controller to act
(Kafka's `ZkAdminManager`).

The broker that receives such a request only writes znodes. The controller watches them, does the work and announces
the result by UpdateMetadata; the answer waits in purgatory until this broker's metadata shows the result.

What must stay true:
- No znode is written before the whole topic has been validated, and the operator's policy has allowed it.
- Each topic of a request succeeds or fails on its own.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from klamm.base.environment import Environment
from klamm.base.purgatory import DelayedOperation, Purgatory
from klamm.base.slices import Slices, each, in_slices
from klamm.broker.metadata.metadata_cache import MetadataCache
from klamm.broker.metadata.policies import Policy
from klamm.broker.quotas.mutation_quota import Mutations
from klamm.broker.request_errors import ITEM_ERRORS, as_controllers_error
from klamm.broker.topics.replica_assignment import InvalidPartitions, InvalidReplicationFactor, assign_replicas
from klamm.config.current import CurrentConfig
from klamm.config.definition import ConfigError
from klamm.config.topic import TopicConfig
from klamm.config.versions import ApiVersion
from klamm.plugins.policies import NewTopicRequest
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import NO_LEADER, NO_NUM_PARTITIONS, NO_REPLICATION_FACTOR
from klamm.znodes.store import KafkaZooKeeper
from klamm.znodes.topics import MAX_TOPIC_NAME_LENGTH, is_legal_topic_name

# In CreateTopics: take the broker's default.
# The limit for one request. Kafka has no such limit, so a single huge number exhausts its memory.
MAX_NEW_PARTITIONS = 100_000
# How many topics a slice decides without ZooKeeper.
TOPICS_PER_SLICE = 100

# The replicas of each partition that is added to a topic.
NewPartitions = Mapping[int, Sequence[int]]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic that a client requests. Counts are -1 for the broker's default, or if `assignments` is given."""

    name: str
    partitions: int = NO_NUM_PARTITIONS
    replication_factor: int = NO_REPLICATION_FACTOR
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """The result for a NewTopic: the created (or valid) topic, or the error."""

    name: str
    error: KafkaError | None = None
    topic_id: UUID | None = None
    assignment: Mapping[int, Sequence[int]] = field(default_factory=dict)
    config: TopicConfig | None = None


def validate_topic_name(name: str) -> None:
    """Raises KafkaError INVALID_TOPIC_EXCEPTION unless `name` is a legal topic name."""
    if not is_legal_topic_name(name):
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"topic name {name!r} is illegal: allowed are 1 to {MAX_TOPIC_NAME_LENGTH} letters, digits, '.', '_', '-',"
            " and neither '.' nor '..'",
        )


class TopicAdmin:
    """The admin operations of one broker. `zookeeper()` is the store of the current session."""

    def __init__(
        self,
        environment: Environment,
        config: CurrentConfig,
        metadata_cache: MetadataCache,
        zookeeper: Callable[[], KafkaZooKeeper],
        policy: Policy[NewTopicRequest] | None = None,
    ) -> None:
        self._environment = environment
        self._config = config
        self._metadata_cache = metadata_cache
        self._zookeeper = zookeeper
        self._policy = policy
        self.purgatory: Purgatory[str] = Purgatory()

    def metadata_changed(self, topic: str) -> None:
        """Checks waiting requests after a change of the topic in the metadata cache."""
        self.purgatory.check(topic)

    # -- creation -------------------------------------------------------------------------------------------------

    async def create_topics(
        self, topics: Sequence[NewTopic], changes: Mutations, *, validate_only: bool = False
    ) -> list[CreatedTopic]:
        """Creates the topics, without waiting for leaders. A topic that `changes` refuses is not created."""
        created = []
        left_partitions = MAX_NEW_PARTITIONS
        placed = Slices()
        async for topic in each(topics, TOPICS_PER_SLICE):
            created.append(await self._create(topic, changes, validate_only, left_partitions, placed))
            left_partitions -= len(created[-1].assignment)
        return created

    async def wait_until_created(self, created: Sequence[CreatedTopic], timeout_ms: int) -> list[CreatedTopic]:
        """Waits until each of these topics has leaders for all its partitions.

        A topic without all leaders after `timeout_ms` gets REQUEST_TIMED_OUT, although it will be created.
        """
        expected = {topic.name: topic.assignment for topic in created if topic.error is None}
        ready = await self._wait(_TopicsCreated(self._metadata_cache, expected), expected, timeout_ms)
        timed_out = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the topic is created, but has no leaders yet")
        return [
            topic if topic.error is not None or topic.name in ready else CreatedTopic(topic.name, timed_out)
            for topic in created
        ]

    async def _create(
        self, topic: NewTopic, changes: Mutations, validate_only: bool, left_partitions: int, placed: Slices
    ) -> CreatedTopic:
        try:
            assignment, config, overrides = await self._validate(topic, left_partitions, placed)
            if self._policy is not None:
                await self._policy.check(_policy_request(topic, assignment, overrides))
            topic_id = None
            if self._config.current.inter_broker_protocol_version >= ApiVersion.V2_8_IV0 and not validate_only:
                topic_id = self._environment.random_uuid()
            if not validate_only:
                changes.record(len(assignment))
                await self._zookeeper().create_topic(topic.name, assignment, topic_id, overrides)
        except ITEM_ERRORS as error:
            return CreatedTopic(topic.name, as_controllers_error(error))
        return CreatedTopic(topic.name, None, topic_id, assignment, config)

    async def _validate(
        self, topic: NewTopic, left_partitions: int, placed: Slices
    ) -> tuple[dict[int, list[int]], TopicConfig, dict[str, str]]:
        snapshot = self._metadata_cache.snapshot
        validate_topic_name(topic.name)
        if topic.name in snapshot.topics:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
        # Metric names replace '.' by '_', so two topic names must differ in more than that.
        collision = topic.name.replace(".", "_")
        for other in snapshot.topics if "_" in collision else ():
            if other.replace(".", "_") == collision:
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{topic.name}' collides with '{other}'")
        assignment = await self._assign(topic, left_partitions, placed)
        overrides = {}
        for key, value in topic.configs.items():
            if value is None:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"the value of topic config {key} is null")
            overrides[key] = value
        try:
            config = TopicConfig.from_overrides(self._config.current, overrides)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
        return assignment, config, overrides

    async def _assign(self, topic: NewTopic, left_partitions: int, placed: Slices) -> dict[int, list[int]]:
        if topic.assignments:
            if topic.partitions != NO_NUM_PARTITIONS or topic.replication_factor != NO_REPLICATION_FACTOR:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "counts and a replica assignment were both given; only one is allowed"
                )
            _check_count(len(topic.assignments), left_partitions)
            return _check_assignment({number: list(replicas) for number, replicas in topic.assignments}, 0)
        partitions = self._config.current.num_partitions if topic.partitions == NO_NUM_PARTITIONS else topic.partitions
        _check_count(partitions, left_partitions)
        replication_factor = (
            self._config.current.default_replication_factor
            if topic.replication_factor == NO_REPLICATION_FACTOR
            else topic.replication_factor
        )
        chance, count = self._environment.random, max(1, len(self._metadata_cache.snapshot.brokers))
        start_index, shift = chance.randrange(count), chance.randrange(count)
        return await self._place(partitions, replication_factor, start_index, shift, 0, placed)

    async def _place(
        self,
        partitions: int,
        replication_factor: int,
        start_index: int,
        shift: int,
        first_partition: int,
        placed: Slices | None = None,
    ) -> dict[int, list[int]]:
        brokers = self._metadata_cache.snapshot.brokers
        racks = {id: broker.rack for id, broker in sorted(brokers.items()) if broker.rack is not None}
        if racks and len(racks) != len(brokers):
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"brokers {sorted(set(brokers) - set(racks))} have no rack, others have: give every broker one or none",
            )
        try:
            steps = assign_replicas(
                sorted(brokers),
                partitions,
                replication_factor,
                start_index=start_index,
                shift=shift,
                first_partition=first_partition,
                racks=racks or None,
                slices=placed,
            )
            return await in_slices(steps)
        except InvalidPartitions as error:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, str(error)) from None
        except InvalidReplicationFactor as error:
            raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, str(error)) from None

    # -- more partitions ------------------------------------------------------------------------------------------

    async def create_partitions(
        self,
        topics: Sequence[tuple[str, int, Sequence[Sequence[int]] | None]],
        changes: Mutations,
        *,
        validate_only: bool,
    ) -> dict[str, NewPartitions | KafkaError]:
        """Grows topics to a count of partitions: (topic, count, replicas of each new partition or None).

        The new partitions have no leaders yet. A topic that `changes` refuses stays as it is.
        """
        results: dict[str, NewPartitions | KafkaError] = {}
        left_partitions = MAX_NEW_PARTITIONS
        async for topic, count, replicas in each(topics, TOPICS_PER_SLICE):
            try:
                new = await self._grow(topic, count, replicas, changes, validate_only, left_partitions)
                results[topic] = new
                left_partitions -= len(new)
            except ITEM_ERRORS as error:
                results[topic] = as_controllers_error(error)
        return results

    async def wait_until_grown(
        self, results: dict[str, NewPartitions | KafkaError], timeout_ms: int
    ) -> dict[str, NewPartitions | KafkaError]:
        """Waits until all new partitions have leaders. Topics that still lack leaders then get REQUEST_TIMED_OUT."""
        expected = {topic: result for topic, result in results.items() if not isinstance(result, KafkaError)}
        ready = await self._wait(_TopicsCreated(self._metadata_cache, expected), expected, timeout_ms)
        timed_out = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the partitions are added, but have no leaders yet")
        return results | dict.fromkeys((topic for topic in expected if topic not in ready), timed_out)

    async def _grow(
        self,
        topic: str,
        count: int,
        replicas: Sequence[Sequence[int]] | None,
        changes: Mutations,
        validate_only: bool,
        left_partitions: int,
    ) -> dict[int, list[int]]:
        """Returns the assignment of the new partitions."""
        validate_topic_name(topic)
        existing = await self._zookeeper().topic_assignment(topic)
        if existing is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic}' does not exist.")
        if existing.adding_replicas or existing.removing_replicas:
            raise KafkaError(ErrorCode.REASSIGNMENT_IN_PROGRESS, f"partitions of '{topic}' are being reassigned")
        current = existing.partitions
        added = count - len(current)
        if added <= 0:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS, f"Topic has {len(current)} partitions; {count} would not be an increase"
            )
        _check_count(added, left_partitions)
        first = len(current)
        if replicas is None:
            order = sorted(self._metadata_cache.snapshot.brokers)
            leader = current[0][0]
            start = order.index(leader) if leader in order else 0
            new = await self._place(added, len(current[0]), start, start, first)
        else:
            if len(replicas) != added:
                raise KafkaError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{added} partitions are added, {len(replicas)} assigned"
                )
            unknown = sorted(
                {broker for one in replicas for broker in one} - set(self._metadata_cache.snapshot.brokers)
            )
            if unknown:
                raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"brokers {unknown} are unknown")
            new = _check_assignment({first + index: list(one) for index, one in enumerate(replicas)}, first)
            if len(new[first]) != len(current[0]):
                raise KafkaError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"the topic has {len(current[0])} replicas a partition, the new ones would have {len(new[first])}",
                )
        if not validate_only:
            changes.record(added)
            await self._zookeeper().add_partitions(topic, new)
        return new

    # -- deletion -------------------------------------------------------------------------------------------------

    async def delete_topics(self, topics: Sequence[str], changes: Mutations) -> dict[str, KafkaError | None]:
        """Marks topics for deletion; the controller deletes them later. A topic that `changes` refuses stays."""
        results: dict[str, KafkaError | None] = {}
        for topic in topics:
            try:
                changes.record(len(self._metadata_cache.snapshot.topics.get(topic, ())))
                await self._zookeeper().mark_topic_for_deletion(topic)
                results[topic] = None
            except ITEM_ERRORS as error:
                results[topic] = as_controllers_error(error)
        return results

    async def wait_until_deleted(
        self, results: dict[str, KafkaError | None], timeout_ms: int
    ) -> dict[str, KafkaError | None]:
        """Waits until this broker no longer knows the topics. A topic still known gets REQUEST_TIMED_OUT."""
        marked = {topic: None for topic, error in results.items() if error is None}
        gone = await self._wait(_TopicsDeleted(self._metadata_cache, list(marked)), marked, timeout_ms)
        timed_out = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the topic is marked for deletion, but not gone yet")
        return {
            topic: timed_out if topic in marked and topic not in gone else error for topic, error in results.items()
        }

    async def _wait(self, operation: "_TopicsChanged", topics: Mapping[str, object], timeout_ms: int) -> list[str]:
        """The topics that are done after at most `timeout_ms`. With a timeout of 0 no topic counts as done."""
        if timeout_ms <= 0:
            return []
        await self.purgatory.wait(operation, list(topics), timeout_ms)
        return [topic for topic in topics if operation.is_done(topic)]


def _policy_request(topic: NewTopic, assignment: dict[int, list[int]], overrides: dict[str, str]) -> NewTopicRequest:
    # Copies, because a policy may change them.
    if topic.assignments:
        assigned = {partition: list(replicas) for partition, replicas in assignment.items()}
        return NewTopicRequest(topic.name, None, None, assigned, dict(overrides))
    return NewTopicRequest(topic.name, len(assignment), len(assignment[0]), None, dict(overrides))


def _check_count(added: int, left_partitions: int) -> None:
    """Raises KafkaError INVALID_PARTITIONS if more partitions are added than the request's limit still allows."""
    if added > left_partitions:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"{added} new partitions: a request may ask for {MAX_NEW_PARTITIONS} in all, {left_partitions} are left",
        )


def _check_assignment(assignment: dict[int, list[int]], first_partition: int) -> dict[int, list[int]]:
    """Raises KafkaError INVALID_REPLICA_ASSIGNMENT unless partitions are consecutive and replicas distinct."""
    numbers = sorted(assignment)
    if numbers != list(range(first_partition, first_partition + len(numbers))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"partitions {numbers} are not consecutive from {first_partition}"
        )
    for number in numbers:
        replicas = assignment[number]
        if not replicas or len(set(replicas)) != len(replicas) or min(replicas) < 0:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"replicas {replicas} of partition {number}: at least one is needed, each once, none negative",
            )
        if len(replicas) != len(assignment[numbers[0]]):
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions have different numbers of replicas")
    return {number: assignment[number] for number in numbers}


class _TopicsChanged(DelayedOperation):
    """Waits until every topic was seen as done once."""

    def __init__(self, metadata_cache: MetadataCache, topics: Sequence[str]) -> None:
        self._metadata_cache = metadata_cache
        # The next topic to check is the last one. A checked topic is never checked again.
        self._pending = list(reversed(topics))

    @abstractmethod
    def is_done(self, topic: str) -> bool: ...

    def is_ready(self) -> bool:
        while self._pending and self.is_done(self._pending[-1]):
            self._pending.pop()
        return not self._pending


class _TopicsCreated(_TopicsChanged):
    """Every expected partition has a leader."""

    def __init__(self, metadata_cache: MetadataCache, expected: Mapping[str, Mapping[int, Sequence[int]]]) -> None:
        super().__init__(metadata_cache, list(expected))
        self._expected = expected

    def is_done(self, topic: str) -> bool:
        known = self._metadata_cache.snapshot.topics.get(topic, {})
        return all(number in known and known[number].leader != NO_LEADER for number in self._expected[topic])


class _TopicsDeleted(_TopicsChanged):
    """The metadata has no topics left."""

    def is_done(self, topic: str) -> bool:
        return topic not in self._metadata_cache.snapshot.topics
