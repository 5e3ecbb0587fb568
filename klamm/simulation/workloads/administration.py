"""The work of operators during a run: they move partitions between brokers and replicas between log directories, elect
leaders, delete /controller, add partitions, change configurations and quotas, and create, use and delete topics.

Each piece of work sends its request once or for a few seconds and accepts any allowed answer, like an operator's script
that will run again another day. `PASSING` and the code beside each request list the allowed error codes. Any other code
ends the run.

What must stay true: no operator action allows the loss of a record acknowledged with acks=all. `unclean` is the only
topic with unclean leader election. `min.insync.replicas` never goes below the run's own value.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from klamm.client.admin.configs import ConfigResource, incremental_alter_configs
from klamm.client.admin.elections import elect_leaders
from klamm.client.admin.log_dirs import TopicPartitionReplica, alter_replica_log_dirs
from klamm.client.admin.quotas import CLIENT_ID, USER, QuotaEntity, alter_client_quotas
from klamm.client.admin.reassignments import alter_partition_reassignments
from klamm.client.admin.topics import NewPartitions, create_partitions
from klamm.client.consumer.offsets import OffsetAndMetadata, alter_consumer_group_offsets
from klamm.client.retries import RETRIABLE_ERRORS, RetryPolicy
from klamm.net.client import ClientError
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import (
    ACKS_LEADER,
    INTERNAL_TOPICS,
    AlterConfigOp,
    ConfigResourceType,
    ElectionType,
    OpType,
    PartitionKey,
    TopicPartition,
)
from klamm.simulation.cluster.cluster import LOG_DIRS, ZOOKEEPER_PORT, SimulatedCluster
from klamm.simulation.workloads.schedule import step_chance
from klamm.simulation.workloads.workload import Producer, create_topic, delete_topic
from klamm.znodes.cluster import CONTROLLER_PATH
from klamm.znodes.topics import TopicAssignment
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.keeper_exceptions import ConnectionLoss, NoNode, SessionExpired

REQUEST_TIMEOUT_MS = 5_000
HASTY = RetryPolicy(deadline_ms=5_000)
# How long topics are used: shorter and longer than a session, so some topics are deleted while a broker has no session.
LIFETIMES_S = (0.0, 1.0, 8.0, 15.0)
MAX_PARTITIONS = 6
BATCHES_OF_A_TOPIC = 2
# Few names, so that topics are created again under the names of deleted ones.
TOPIC_NAMES = ("passing-0", "passing-1", "passing-2")
# These groups commit offsets for short-lived topics and never have members.
COMMITTING_GROUPS = tuple(f"reports-{number}" for number in range(8))

# Error codes that are allowed at any time: they are transient, or another request has changed the topic meanwhile.
PASSING = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.BROKER_NOT_AVAILABLE,
        *RETRIABLE_ERRORS,
    }
)

# The configs that may be changed, and their values. They do not weaken any guarantee; the run adds
# `min.insync.replicas`.
TOPIC_CONFIGS = {
    "retention.ms": ("86400000", "604800000", "-1"),
    "segment.bytes": ("2048", "8192"),
    "max.message.bytes": ("100000", "1000000"),
    "segment.index.bytes": ("1048576", "65536"),
    "flush.ms": ("1000", "100000"),
    "leader.replication.throttled.replicas": ("*",),
    "follower.replication.throttled.replicas": ("*",),
}
BROKER_CONFIGS = {
    "log.retention.ms": ("86400000", "604800000"),
    "log.segment.bytes": ("4096", "16384"),
    "message.max.bytes": ("200000", "1000000"),
    "log.flush.interval.ms": ("5000", "50000"),
    # Low enough to be felt, and high enough for a cluster to become whole in time.
    "leader.replication.throttled.rate": ("20000", "1000000"),
    "follower.replication.throttled.rate": ("20000", "1000000"),
    "replica.alter.log.dirs.io.max.bytes.per.second": ("20000", "1000000"),
    "num.replica.fetchers": ("1", "2", "4"),
}

# Quotas of all clients: low enough to be felt, and high enough for all records to be produced and read in time. The
# simulated clients have no user name, and share one client id.
CLIENT_QUOTAS = {
    "producer_byte_rate": (20_000.0, 1_000_000.0),
    "consumer_byte_rate": (20_000.0, 1_000_000.0),
    "request_percentage": (1.0, 100.0),
    "controller_mutation_rate": (1.0, 10.0),
}
QUOTA_ENTITIES: tuple[QuotaEntity, ...] = (
    ((CLIENT_ID, None),),
    ((CLIENT_ID, "klamm"),),
    ((USER, "ANONYMOUS"),),
    ((USER, None), (CLIENT_ID, None)),
)


class Administrator:
    """Starts one piece of work at each `begin`; any number may run at once. Runs in the client's process.

    `unclean` is the topic in which leaders may be elected from outside the ISR.
    """

    def __init__(self, cluster: SimulatedCluster, unclean: str, min_insync_replicas: int) -> None:
        self._cluster = cluster
        self._state = cluster.state
        self._unclean = unclean
        self._topic_configs = TOPIC_CONFIGS | {
            "min.insync.replicas": tuple(map(str, range(min_insync_replicas, cluster.replication_factor + 1)))
        }
        self._client = cluster.client(HASTY)
        self._patient = cluster.client()
        self._in_use: dict[str, None] = {}
        self._committed = 0
        self._under_way: list[asyncio.Future[None]] = []
        self.work: Sequence[tuple[str, Callable[[], Awaitable[None]]]] = (
            ("reassign", self._reassign),
            ("evacuate-broker", self._evacuate),
            ("evacuate-broker", self._evacuate),
            ("cancel-reassignments", self._cancel),
            ("move-replicas", self.move_replicas),
            ("move-replicas", self.move_replicas),
            ("elect-preferred", self._elect_preferred),
            ("elect-unclean", self._elect_unclean),
            ("move-controller", self.move_controller),
            ("add-partitions", self._grow),
            ("configure-topic", self._configure_topic),
            ("configure-brokers", self._configure_brokers),
            ("set-quotas", self._set_quotas),
            ("use-topic", self._use_topic),
            ("use-topic", self._use_topic),
            ("use-topic", self._use_topic),
            ("use-topic", self._use_topic),
        )

    @property
    def _random(self) -> random.Random:
        return step_chance(self._cluster.world.random)

    def begin(self, work: Callable[[], Awaitable[None]]) -> "asyncio.Future[None]":
        """Begins a piece of work; `finish` waits for it, too."""

        async def do() -> None:
            await work()

        self._under_way.append(self._cluster.world.node("client").run(do()))
        return self._under_way[-1]

    async def finish(self) -> None:
        """Returns when all work is done."""
        await asyncio.gather(*self._under_way)

    async def close(self) -> None:
        await self._client.close()
        await self._patient.close()

    # -- requests -----------------------------------------------------------------------------------------------------

    async def _check(
        self, request: Awaitable[Mapping[Any, KafkaError | None]], also: Collection[ErrorCode] = ()
    ) -> None:
        """Waits for the results of a request, and checks them. The request may time out."""
        try:
            results = list((await request).values())
        except ClientError:
            return
        except KafkaError as error:
            results = [error]
        for result in results:
            assert result is None or result.code in PASSING or result.code in also, (
                f"{result} is no answer for an operator"
            )

    # -- replicas -----------------------------------------------------------------------------------------------------

    def _topic(self) -> str | None:
        """A random topic of those that have been created."""
        topics = self._state.topics()
        return self._random.choice(topics) if topics else None

    async def _reassign(self) -> None:
        """Moves partitions to random brokers, like a tool that balances a cluster."""
        topic = self._topic()
        if topic is None:
            return
        replicas, brokers = self._state.replicas(topic), list(self._cluster.brokers)
        # In the middle of a reassignment the first partition may have more replicas than usual.
        count = min(len(replicas[0]), len(brokers))
        chosen = self._random.sample(list(replicas), self._random.randint(1, len(replicas)))
        await self._alter(topic, {number: self._random.sample(brokers, count) for number in chosen})

    async def reassign(self, key: PartitionKey, replicas: Sequence[int]) -> None:
        """Moves one partition to these brokers."""
        await self._alter(key[0], {key[1]: replicas})

    async def lead(self, key: PartitionKey, replicas: Sequence[int]) -> None:
        """Reassigns the partition to these replicas, and elects the first of them, its preferred leader."""
        await self._alter(key[0], {key[1]: replicas})
        await self._elect(ElectionType.PREFERRED, [key[0]])

    async def _evacuate(self) -> None:
        """Moves partitions away from a broker that is down; if all are up, to random brokers."""
        gone, topic = self._gone(), self._topic()
        if not gone:
            return await self._reassign()
        if topic is not None:
            await self._move_away(topic, self._random.choice(gone))

    def _gone(self) -> list[int]:
        """The brokers that are down."""
        return [broker_id for broker_id in self._cluster.brokers if broker_id not in self._state.live_brokers()]

    async def _move_away(self, topic: str, broker_id: int) -> None:
        """Moves the topic's partitions away from the broker."""
        wanted = {}
        for number, replicas in self._state.replicas(topic).items():
            others = [other for other in self._state.live_brokers() if other not in replicas]
            if broker_id in replicas and others:
                instead = self._random.choice(others)
                wanted[number] = [instead if replica == broker_id else replica for replica in replicas]
        if wanted:
            await self._alter(topic, wanted)

    async def _cancel(self) -> None:
        """Cancels the reassignments of a topic, if it has any."""
        topics = [topic for topic in self._state.topics() if _reassigned(self._state.assignment(topic))]
        topic = self._random.choice(topics) if topics else self._topic()
        if topic is not None:
            assignment = self._state.assignment(topic)
            numbers = _reassigned(assignment) or list(assignment.partitions)
            await self._alter(topic, dict.fromkeys(numbers))

    async def _alter(self, topic: str, replicas: Mapping[int, Sequence[int] | None]) -> None:
        wanted = {TopicPartition(topic, number): ids for number, ids in replicas.items()}
        await self._check(
            alter_partition_reassignments(self._client, wanted, timeout_ms=REQUEST_TIMEOUT_MS),
            (ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        )

    async def move_replicas(self) -> None:
        """Moves a broker's replicas of a topic to a log directory: often to another one, sometimes twice. A move to the
        directory where they already are ends an earlier move."""
        topic, broker_id = self._topic(), self._random.choice(list(self._cluster.brokers))
        if topic is None:
            return
        moved = [TopicPartitionReplica(topic, number, broker_id) for number in self._state.replicas(topic)]
        for _ in range(self._random.randint(1, 3)):
            paths = {replica: self._random.choice(LOG_DIRS) for replica in moved}
            await self._check(
                alter_replica_log_dirs(self._client, paths),
                (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REPLICA_NOT_AVAILABLE),
            )
            await asyncio.sleep(self._random.choice((0.0, 0.01, 0.3)))

    async def _grow(self) -> None:
        topic = self._topic()
        # The number of partitions decides which partition a group or a transactional id belongs to.
        if topic is None or topic in INTERNAL_TOPICS or len(self._state.replicas(topic)) >= MAX_PARTITIONS:
            return
        grown = NewPartitions(len(self._state.replicas(topic)) + 1)
        await self._check(
            create_partitions(self._client, {topic: grown}, timeout_ms=REQUEST_TIMEOUT_MS),
            (ErrorCode.INVALID_PARTITIONS, ErrorCode.REASSIGNMENT_IN_PROGRESS),
        )

    # -- leaders ------------------------------------------------------------------------------------------------------

    async def _elect_preferred(self) -> None:
        topics = self._random.choice(([*filter(None, [self._topic()])], None))
        await self._elect(ElectionType.PREFERRED, topics)

    async def _elect_unclean(self) -> None:
        if self._unclean in self._state.topics():
            await self._elect(ElectionType.UNCLEAN, [self._unclean])

    async def _elect(self, kind: ElectionType, topics: Sequence[str] | None) -> None:
        partitions = None
        if topics is not None:
            partitions = [TopicPartition(topic, number) for topic in topics for number in self._state.replicas(topic)]
        # The second code is the answer for a topic that is being deleted.
        await self._check(
            elect_leaders(self._client, kind, partitions, timeout_ms=REQUEST_TIMEOUT_MS),
            (ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.INVALID_TOPIC_EXCEPTION),
        )

    async def move_controller(self) -> None:
        """Deletes /controller, so that another broker may be elected. The controller lives and keeps its session; it
        learns of the deletion later."""
        environment = self._cluster.world.node("client").environment
        zookeeper = ZooKeeperClient(environment, f"{self._cluster.zookeeper.node.name}:{ZOOKEEPER_PORT}")
        with contextlib.suppress(ConnectionLoss, SessionExpired, NoNode):
            await zookeeper.start(timeout_ms=REQUEST_TIMEOUT_MS)
            await zookeeper.delete(CONTROLLER_PATH)
        await zookeeper.close()

    # -- configurations -----------------------------------------------------------------------------------------------

    async def _configure_topic(self) -> None:
        topic = self._topic()
        if topic is not None:
            await self._configure(ConfigResource(ConfigResourceType.TOPIC, topic), self._topic_configs)

    async def _configure_brokers(self) -> None:
        """Configures all brokers or one broker. Only this broker can answer a request for its own configuration."""
        broker_id = self._random.choice((None, *self._cluster.brokers))
        name = "" if broker_id is None else str(broker_id)
        await self._configure(ConfigResource(ConfigResourceType.BROKER, name), BROKER_CONFIGS)

    async def _configure(self, resource: ConfigResource, configs: Mapping[str, Sequence[str]]) -> None:
        key = self._random.choice(list(configs))
        # Without a value of its own, a topic inherits min.insync.replicas, which may be less than the run's guarantee.
        op_type = OpType.DELETE if key != "min.insync.replicas" and self._random.random() < 0.3 else OpType.SET
        value = self._random.choice(configs[key]) if op_type is OpType.SET else None
        change = AlterConfigOp(key, value, op_type)
        # As in Kafka, one change may at most double or halve the number of threads.
        also = [ErrorCode.INVALID_REQUEST] if key == "num.replica.fetchers" else []
        await self._check(incremental_alter_configs(self._client, {resource: [change]}), also)

    async def _set_quotas(self) -> None:
        """Sets or removes a quota of all clients."""
        key, entity = self._random.choice(list(CLIENT_QUOTAS)), self._random.choice(QUOTA_ENTITIES)
        value = None if self._random.random() < 0.3 else self._random.choice(CLIENT_QUOTAS[key])

        async def alter() -> Mapping[Any, KafkaError | None]:
            await alter_client_quotas(self._client, entity, {key: value})
            return {}

        await self._check(alter())

    # -- topics that come and go --------------------------------------------------------------------------------------

    async def _use_topic(self) -> None:
        """Creates a topic, commits offsets for it, and sometimes deletes it. A topic that is not deleted stays until
        its name is used again.

        Before the deletion, partitions move away from the brokers that are down. These brokers still have the logs when
        they get replicas of a new topic of that name. Without topic ids a broker cannot tell the two topics apart, so
        partitions move only in clusters with topic ids."""
        name = self.take_name()
        if name is None:
            return
        # With one replica, the deletion does not depend on the other brokers, whatever their faults.
        await self.create(name, self._random.randint(1, self._cluster.replication_factor))
        await asyncio.gather(*[self._commit(group, name) for group in COMMITTING_GROUPS])
        if self._random.random() < 0.8:
            await asyncio.sleep(self._random.choice(LIFETIMES_S) * self._random.uniform(0.8, 1.2))
            gone = self._gone() if name in self._state.topics() and self._cluster.have_topic_ids else []
            for broker_id in gone:
                await self._move_away(name, broker_id)
            await self.delete(name)
            if gone:
                # All brokers get a replica of the new topic as soon as they are back.
                await self.create(name, len(self._cluster.brokers))
            elif self._random.random() < 0.3:
                await self.create(name, self._cluster.replication_factor)
        self.give_back(name)

    def take_name(self) -> str | None:
        """The name of a short-lived topic, taken until `give_back`; None if all are taken."""
        free = [name for name in TOPIC_NAMES if name not in self._in_use]
        if not free:
            return None
        name = self._random.choice(free)
        self._in_use[name] = None
        return name

    def give_back(self, name: str) -> None:
        del self._in_use[name]

    async def write(self, name: str) -> None:
        """Writes some records with acks=1 into a short-lived topic, or gives up after a while. No consumer reads
        them."""
        key, progress = (name, 0), asyncio.Event()
        producer = Producer(self._cluster.client, key, self._random, progress, idempotent=False, acks=ACKS_LEADER)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REQUEST_TIMEOUT_MS / 1000):
                await producer.run(BATCHES_OF_A_TOPIC)

    async def leave(self, name: str, broker_id: int) -> None:
        """Removes a broker from the replicas of a topic, if the topic exists. The replication factor shrinks."""
        known = self._state.replicas(name) if name in self._state.topics() else {}
        wanted = {
            number: [each for each in replicas if each != broker_id]
            for number, replicas in known.items()
            if broker_id in replicas and len(replicas) > 1
        }
        if wanted:
            await self._alter(name, wanted)

    async def delete(self, name: str) -> None:
        """Deletes a topic. AssertionError when the answer wrongly says that the topic is marked for deletion."""
        created = self._state.created_at(name)
        is_marked = await delete_topic(self._patient, name)
        assert not is_marked or self._state.created_at(name) != created or self._state.is_marked_for_deletion(name), (
            f"{name} was created at zxid {created}, and its deletion was answered; it exists, and is not marked"
        )

    async def create(self, name: str, replication_factor: int) -> None:
        """Creates a topic. AssertionError when the answer wrongly says that the topic is created."""
        is_created = await create_topic(
            self._patient,
            name,
            partitions=2,
            replication_factor=replication_factor,
            configs={"retention.ms": "1000000"},
        )
        assert not is_created or name in self._state.topics(), f"{name} was created, and does not exist"

    async def _commit(self, group: str, topic: str) -> None:
        self._committed += 1
        offset = OffsetAndMetadata(self._committed)
        offsets = dict.fromkeys([TopicPartition(topic, 0), TopicPartition(topic, 1)], offset)
        await self._check(alter_consumer_group_offsets(self._client, group, offsets))


def _reassigned(assignment: TopicAssignment) -> list[int]:
    """The partitions of a topic that are being reassigned."""
    return sorted({*assignment.adding_replicas, *assignment.removing_replicas})
