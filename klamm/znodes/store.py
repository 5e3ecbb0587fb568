"""A broker's typed reads and writes in ZooKeeper: Kafka's znodes over one client session. `config_store.py` has the
configurations, and `controller_store.py` the reads and writes of the controller alone. Every other read and write is a
method here, so the module is long.

What must stay true:
- A read is repeated after a lost connection. A write is repeated only if doing it twice does no harm, or if the outcome
  of the first try can be determined: each method says how.
- A watch is set before the data is read, and its callback gets no data: the caller reads again.
- A read shows the state of this session's server, which may be older than what other brokers have read. A caller that
  reads because of another broker's message calls `sync` first. docs/architecture.md lists these reads.
- Reads of many znodes are pipelined. A znode that does not exist is left out of the result. The assignments of very
  many partitions are decoded in slices, so that the loop does other work in between.

Errors: a ZooKeeperError is passed on unchanged. A KafkaError is an error that a client of the broker can cause. A
ZnodeError means that a znode's content is not what Kafka writes.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar
from uuid import UUID

from klamm.base.slices import Slices, each, for_slices
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import PartitionKey
from klamm.znodes import batches, brokers, cluster, configs, requests, topics
from klamm.znodes.access import check_size, get_all, notice
from klamm.znodes.brokers import BrokerRegistration
from klamm.znodes.cluster import Features, FeatureStatus, FinalizedFeatures, ProducerIdBlock
from klamm.znodes.config_store import ConfigStore
from klamm.znodes.fields import INT32_MAX, ZnodeError
from klamm.znodes.topics import LeaderAndIsr, Replicas, TopicAssignment
from klamm.zookeeper.client import ZooKeeperClient, retrying
from klamm.zookeeper.keeper_exceptions import (
    BadArguments,
    BadVersion,
    ConnectionLoss,
    NodeExists,
    NoNode,
    ZooKeeperError,
)
from klamm.zookeeper.messages import (
    OPEN_ACL,
    Check,
    Create,
    CreateMode,
    Delete,
    MultiOperation,
    SetData,
    Stat,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")
K = TypeVar("K")

PRODUCER_ID_BLOCK_SIZE = 1000
# This many partitions fit into a znode even with the longest topic names.
MAX_PARTITIONS_OF_ISR_CHANGE = 3_000
# A broker waits this many session time-outs for the end of a former session.
EXPIRIES_WAITED_FOR = 3
# Decoding or encoding the assignments of this many partitions takes some milliseconds.
PARTITIONS_PER_SLICE = 1_000


class LiveBroker(NamedTuple):
    """A registered broker and its epoch: the zxid of its registration."""

    registration: BrokerRegistration
    epoch: int


def _id_taken(broker_id: int, session_id: int) -> KafkaError:
    return KafkaError(
        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        f"broker id {broker_id} is taken: session 0x{session_id:x} owns {brokers.broker_path(broker_id)}. Every broker"
        " needs a broker.id of its own; one that has just died frees its id when its ZooKeeper session expires",
    )


class EpochsUsedUp(BadArguments):
    """A partition's state was not written, because its leader epoch is too large for requests and brokers."""

    def __init__(self, path: str) -> None:
        super().__init__(
            path,
            f"{INT32_MAX} is the last leader epoch: leader and ISR cannot change. If another program has written this"
            " number, write the former one; otherwise copy the records into a new topic",
        )


class KafkaZooKeeper:
    """See the module. It lives as long as its client's session."""

    def __init__(self, client: ZooKeeperClient) -> None:
        self.client = client
        self.configs = ConfigStore(client)
        # The faults of brokers' znodes. A page reads the brokers every second, and each fault is logged once.
        self._malformed_brokers: dict[int, str] = {}

    async def sync(self) -> None:
        """Returns when this session's server knows every write that was completed before the call."""
        await retrying(self.client.sync)

    # -- the cluster and this broker's place in it ------------------------------------------------------------------

    async def create_persistent_paths(self) -> None:
        """Creates the chroot and the znodes that every broker expects. Existing znodes stay as they are."""
        await retrying(self.client.ensure_chroot)
        # Pipelined: they reach the server in this order, and share its syncs of the disk.
        await asyncio.gather(*(retrying(self.client.ensure_path, path) for path in cluster.PERSISTENT_PATHS))

    async def cluster_id(self) -> str | None:
        """The cluster's id; None if there is no cluster yet."""
        try:
            data, _ = await retrying(self.client.get, cluster.CLUSTER_ID_PATH)
        except NoNode:
            return None
        return cluster.decode_cluster_id(data)

    async def get_or_create_cluster_id(self, proposed: str) -> str:
        """The cluster's id. `proposed` becomes the id if there is none yet. Safe to repeat: the first id stays."""
        while True:
            cluster_id = await self.cluster_id()
            if cluster_id is not None:
                return cluster_id
            await retrying(self.client.ensure_path, cluster.CLUSTER_ID_PATH.rpartition("/")[0])
            await self._create_unless_there(cluster.CLUSTER_ID_PATH, cluster.encode_cluster_id(proposed))

    async def generate_broker_id(self, reserved_broker_max_id: int = 1000) -> int:
        """An unused broker id, above the reserved ids. A repeated write only skips an id. Raises ZnodeError when no id
        is left."""
        path = cluster.BROKER_SEQUENCE_ID_PATH
        try:
            stat = await retrying(self.client.set, path, b"")
        except NoNode:
            await retrying(self.client.ensure_path, path)
            stat = await retrying(self.client.set, path, b"")
        broker_id = reserved_broker_max_id + stat.version
        if broker_id > INT32_MAX:
            raise ZnodeError(
                path, f"the next broker id would be {broker_id}, above {INT32_MAX}: lower reserved.broker.max.id"
            )
        return broker_id

    async def wait_for_expiry(self, broker_id: int, session_ids: Sequence[int]) -> None:
        """Waits until none of these dead sessions owns the broker's registration. Raises KafkaError
        DUPLICATE_BROKER_REGISTRATION if the owner does not expire in time."""
        path = brokers.broker_path(broker_id)
        owner = None
        try:
            # A restarted server gives every session its whole time-out again.
            async with asyncio.timeout(EXPIRIES_WAITED_FOR * self.client.session_timeout_ms / 1000):
                while True:
                    has_changed = asyncio.Event()
                    stat = await retrying(self.client.exists, path, notice(has_changed.set))
                    if stat is None or stat.ephemeral_owner not in session_ids:
                        return
                    owner = stat.ephemeral_owner
                    logger.info(
                        "waiting for the end of session 0x%x, which owns %s: the machine may have lost power since",
                        owner,
                        path,
                    )
                    await has_changed.wait()
        except TimeoutError:
            if owner is not None:
                raise _id_taken(broker_id, owner) from None

    async def register_broker(self, registration: BrokerRegistration, previous_session_ids: Sequence[int] = ()) -> int:
        """Creates the broker's ephemeral znode; returns the broker's epoch.

        A znode of this session is an earlier try of this write. A znode of one of our `previous_session_ids` is a
        leftover of that session (ZOOKEEPER-2985) and is replaced. If another session owns the znode, this raises
        KafkaError DUPLICATE_BROKER_REGISTRATION at once: a second broker with this id must not wait until the first
        broker dies.
        """
        path = brokers.broker_path(registration.broker_id)
        # Two operations, so that the znode's version is 1, like that of Kafka's brokers.
        operations: list[MultiOperation] = [
            Create(path, None, OPEN_ACL, CreateMode.EPHEMERAL),
            SetData(path, registration.encode(), 0),
        ]
        while True:
            try:
                created = (await retrying(self.client.multi, operations))[1].stat
                assert created is not None
                return created.czxid
            except NodeExists:
                stat = await retrying(self.client.exists, path)
            if stat is None:
                continue
            if stat.ephemeral_owner == self.client.session_id:
                return stat.czxid
            if stat.ephemeral_owner not in previous_session_ids:
                raise _id_taken(registration.broker_id, stat.ephemeral_owner)
            await self._delete_if_there(path)

    async def controller_id(self) -> int | None:
        """The controller's broker id; None if there is no controller."""
        try:
            data, _ = await retrying(self.client.get, cluster.CONTROLLER_PATH)
        except NoNode:
            return None
        return cluster.Controller.decode(data).broker_id

    async def delete_leftover_controller(self, previous_session_ids: Sequence[int]) -> None:
        """Removes /controller if one of our previous sessions owns it, so that no broker waits for its expiry.

        The controller epoch is read first and checked, so the znode of a controller elected meanwhile stays.
        """
        try:
            _, epoch = await retrying(self.client.get, cluster.CONTROLLER_EPOCH_PATH)
        except NoNode:
            return
        stat = await retrying(self.client.exists, cluster.CONTROLLER_PATH)
        if stat is None or stat.ephemeral_owner not in previous_session_ids:
            return
        operations: list[MultiOperation] = [
            Check(cluster.CONTROLLER_EPOCH_PATH, epoch.version),
            Delete(cluster.CONTROLLER_PATH),
        ]
        with contextlib.suppress(NoNode, BadVersion):
            await retrying(self.client.multi, operations)

    async def report_log_dir_failure(self, broker_id: int) -> None:
        """Tells the controller that a log directory of this broker has failed. A repeated write tells it twice."""
        event = requests.encode_log_dir_event(broker_id)
        await retrying(self.client.create, requests.LOG_DIR_EVENT_PREFIX, event, sequential=True)

    async def update_broker(self, registration: BrokerRegistration) -> None:
        """Replaces the broker's registration. Raises NoNode when the broker is not registered."""
        path = brokers.broker_path(registration.broker_id)
        await retrying(self.client.set, path, registration.encode())

    async def live_brokers(
        self,
        on_change: Callable[[], None] | None = None,
        on_modification: Callable[[int], None] | None = None,
    ) -> dict[int, LiveBroker]:
        """All live brokers by id, ascending. A broker with a malformed znode is left out, and a new fault is logged.

        `on_change` is called once when a broker comes or goes, `on_modification(broker_id)` once when a broker's
        registration changes.
        """
        names = await retrying(self.client.children, brokers.BROKER_IDS_PATH, notice(on_change))
        paths = {id_: brokers.broker_path(id_) for id_ in sorted(brokers.broker_ids(names))}
        live: dict[int, LiveBroker] = {}
        malformed: dict[int, str] = {}
        for broker_id, (data, stat) in (await get_all(self.client, paths, on_modification)).items():
            try:
                live[broker_id] = LiveBroker(BrokerRegistration.decode(broker_id, data), stat.czxid)
            except ZnodeError as error:
                malformed[broker_id] = str(error)
        for broker_id, fault in malformed.items():
            if self._malformed_brokers.get(broker_id) != fault:
                logger.error("broker %d is left out: %s", broker_id, fault)
        self._malformed_brokers = malformed
        return live

    async def finalized_features(self, watch: Callable[[], None] | None = None) -> FinalizedFeatures | None:
        """The finalized features (KIP-584); `watch` is called once when they change.

        None if feature versioning is off, or the znode does not exist or is malformed.
        """
        try:
            return await self.readable_finalized_features(watch)
        except ZnodeError as error:
            logger.error("no feature counts as finalized: %s", error)
            return None

    async def readable_finalized_features(self, watch: Callable[[], None] | None = None) -> FinalizedFeatures | None:
        """Like `finalized_features`, for a caller that changes them: raises ZnodeError when the znode is malformed."""
        if await retrying(self.client.exists, cluster.FEATURE_PATH, notice(watch)) is None:
            return None
        try:
            data, stat = await retrying(self.client.get, cluster.FEATURE_PATH)
        except NoNode:
            return None
        features = Features.decode(data)
        return FinalizedFeatures(features.features, stat.version) if features.status is FeatureStatus.ENABLED else None

    async def allocate_producer_id_block(self, broker_id: int) -> tuple[int, int]:
        """Takes the next block of producer ids, (first, last), both inclusive.

        If the first try of the write was done, its repetition finds and returns that block. At worst a block is unused.
        """
        path = cluster.PRODUCER_ID_BLOCK_PATH
        while True:
            data, stat = await retrying(self.client.get, path)
            previous = ProducerIdBlock.decode(data) if data else None
            block = ProducerIdBlock.after(previous, broker_id, PRODUCER_ID_BLOCK_SIZE)
            try:
                await retrying(self.client.set, path, block.encode(), stat.version)
            except BadVersion:
                data, _ = await retrying(self.client.get, path)
                if not data or ProducerIdBlock.decode(data) != block:
                    continue
            return block.first, block.last

    # -- topics -----------------------------------------------------------------------------------------------------

    async def topic_names(self, watch: Callable[[], None] | None = None) -> list[str]:
        """All topics, sorted. `watch` is called once when a topic comes or goes."""
        return await retrying(self.client.children, topics.TOPICS_PATH, notice(watch))

    async def existing_topics(self, names: Iterable[str]) -> dict[str, None]:
        """The names that are existing topics. Syncs first, so no topic is missed."""
        await self.sync()
        existing = dict.fromkeys(await self.topic_names())
        return {name: None for name in names if name in existing}

    async def topic_exists(self, topic: str) -> bool:
        """Whether the topic has a znode, even a malformed one."""
        return await retrying(self.client.exists, topics.topic_path(topic)) is not None

    async def topic_assignment(self, topic: str) -> TopicAssignment | None:
        """The replicas of a topic's partitions; None when the topic does not exist."""
        try:
            data, stat = await retrying(self.client.get, topics.topic_path(topic))
        except NoNode:
            return None
        return TopicAssignment.decode(topic, data, stat.version)

    async def topic_ids(self, names: Sequence[str]) -> dict[str, UUID | None]:
        """The ids of the topics that exist; None for a topic without an id, or with a malformed znode. Syncs first, so
        that no id belongs to a topic that was deleted before the call."""
        await self.sync()
        ids: dict[str, UUID | None] = {}
        for topic, (data, _) in (await get_all(self.client, {name: topics.topic_path(name) for name in names})).items():
            try:
                ids[topic] = TopicAssignment.decode(topic, data).topic_id
            except ZnodeError as error:
                logger.error("topic %s counts as one without an id: %s", topic, error)
                ids[topic] = None
        return ids

    @property
    def malformed_brokers(self) -> Mapping[int, str]:
        """The brokers that the last `live_brokers` left out, and why."""
        return self._malformed_brokers

    async def topic_assignments(
        self,
        names: Sequence[str],
        watch: Callable[[str], None] | None = None,
        malformed: dict[str, str] | None = None,
    ) -> dict[str, TopicAssignment]:
        """The assignments of these topics. `watch(topic)` is called once when a topic changes or is deleted.

        A topic with a malformed znode is left out, so that the other topics stay available. It is logged, or noted in
        `malformed` with the reason.
        """
        found = await get_all(self.client, {name: topics.topic_path(name) for name in names}, watch)
        assignments = {}
        decoded = Slices(PARTITIONS_PER_SLICE)
        async for topic, (data, stat) in each(found.items(), decoded):
            try:
                assignment = assignments[topic] = TopicAssignment.decode(topic, data, stat.version)
            except ZnodeError as error:
                if malformed is None:
                    logger.error("topic %s is left out: %s", topic, error)
                else:
                    malformed[topic] = str(error)
                continue
            decoded.count(len(assignment.partitions))
        return assignments

    async def create_topic(
        self, topic: str, replicas: Replicas, topic_id: UUID | None, config: Mapping[str, str]
    ) -> None:
        """Creates a topic and its configuration. KafkaErrors TOPIC_ALREADY_EXISTS, and INVALID_REQUEST when they are
        too large for ZooKeeper.

        One multi creates both, so that a creation that loses a race does not leave its configuration behind. Safe to
        repeat: a topic with exactly this content, `topic_id` included, was created by the first try.
        """
        assignment = TopicAssignment({partition: tuple(ids) for partition, ids in replicas.items()}, topic_id)
        create = Create(topics.topic_path(topic), assignment.encode())
        check_size(topic, len(create.data or b"") + len(configs.encode_config(config)))
        try:
            await self._write_config_and(configs.config_path(configs.topic_entity(topic)), config, create)
        except NodeExists:
            existing = await self.topic_assignment(topic)
            if topic_id is None or existing != assignment:
                raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic}' already exists.") from None

    async def add_partitions(self, topic: str, replicas: Replicas) -> None:
        """Adds partitions to a topic. KafkaErrors UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS when a partition
        exists with other replicas, and INVALID_REQUEST when the result is too large for ZooKeeper. Safe to repeat."""
        while True:
            existing = await self.topic_assignment(topic)
            if existing is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic}' does not exist.")
            for partition, ids in replicas.items():
                if tuple(existing.partitions.get(partition, ids)) != tuple(ids):
                    raise KafkaError(
                        ErrorCode.INVALID_PARTITIONS, f"partition {partition} of topic '{topic}' exists already"
                    )
            changed = replace(existing, partitions={**existing.partitions, **replicas}).encode()
            check_size(topic, len(changed))
            try:
                await retrying(self.client.set, topics.topic_path(topic), changed, existing.zk_version)
                return
            except (BadVersion, NoNode):
                continue

    async def mark_topic_for_deletion(self, topic: str) -> None:
        """Asks the controller to delete a topic. KafkaError UNKNOWN_TOPIC_OR_PARTITION. Safe to repeat.

        One multi checks the topic and sets the mark, because a mark that outlives its topic would delete the next topic
        of that name. The multi also sees a topic that this session's server does not know yet. If the answer is lost
        and the topic is gone, no mark is set on a younger topic of that name.
        """
        path = topics.topic_path(topic)
        operations: list[MultiOperation] = [Check(path, -1), Create(requests.delete_topic_path(topic), None)]
        stat = await retrying(self.client.exists, path)
        while True:
            try:
                await self.client.multi(operations)
                return
            except NodeExists:
                return
            except NoNode as error:
                if error.index != 0:
                    raise
                text = f"The topic '{topic}' does not exist."
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text) from None
            except ConnectionLoss:
                if stat is not None and await self._is_gone(path, stat.czxid):
                    return

    async def _is_gone(self, path: str, czxid: int) -> bool:
        """Whether the znode that the transaction `czxid` created is gone."""
        await self.sync()
        stat = await retrying(self.client.exists, path)
        return stat is None or stat.czxid != czxid

    async def topic_deletions(self, watch: Callable[[], None] | None = None) -> list[str]:
        """The topics marked for deletion, sorted. `watch` is called once when the list changes."""
        return await retrying(self.client.children, requests.DELETE_TOPICS_PATH, notice(watch))

    # -- requests to the controller ---------------------------------------------------------------------------------

    async def requested_reassignment(self) -> dict[PartitionKey, tuple[int, ...]] | None:
        """The replicas that /admin/reassign_partitions asks for; None if it does not exist. Raises ZnodeError."""
        try:
            data, _ = await retrying(self.client.get, requests.REASSIGN_PARTITIONS_PATH)
        except NoNode:
            return None
        return requests.decode_reassignment(data)

    async def request_reassignment(self, replicas: Mapping[PartitionKey, Sequence[int]]) -> None:
        """Asks the controller to reassign partitions. KafkaErrors REASSIGNMENT_IN_PROGRESS while an earlier request is
        not done, and INVALID_REQUEST when the request is too large for ZooKeeper. An earlier try of the same write is
        recognized by its content."""
        data = requests.encode_reassignment(replicas)
        check_size(requests.REASSIGN_PARTITIONS_PATH, len(data))
        try:
            await retrying(self.client.create, requests.REASSIGN_PARTITIONS_PATH, data)
        except NodeExists:
            wanted = {key: tuple(ids) for key, ids in replicas.items()}
            if await self.requested_reassignment() != wanted:
                raise KafkaError(
                    ErrorCode.REASSIGNMENT_IN_PROGRESS, f"{requests.REASSIGN_PARTITIONS_PATH} exists"
                ) from None

    async def start_preferred_replica_election(self, partitions: Sequence[PartitionKey]) -> list[PartitionKey] | None:
        """Asks the controller to elect the preferred leaders of these partitions, and returns None. If another election
        is in progress, starts none and returns the partitions of that election.

        KafkaError INVALID_REQUEST when the partitions are too many for a znode. After a lost connection, an election of
        the same partitions was created by the first try.
        """
        path = requests.PREFERRED_REPLICA_ELECTION_PATH
        data = requests.encode_partitions(partitions)
        check_size(path, len(data))
        is_repeated = False
        while True:
            try:
                await self.client.create(path, data)
                return None
            except ConnectionLoss:
                is_repeated = True
            except NodeExists:
                with contextlib.suppress(NoNode):
                    stored, _ = await retrying(self.client.get, path)
                    return None if is_repeated and stored == data else requests.decode_partitions(path, stored)

    async def preferred_replica_election_ended(self) -> None:
        """Returns when the controller has carried out the election, and so has removed its znode."""
        while True:
            has_changed = asyncio.Event()
            path = requests.PREFERRED_REPLICA_ELECTION_PATH
            if await retrying(self.client.exists, path, notice(has_changed.set)) is None:
                return
            await has_changed.wait()

    # -- partition states -------------------------------------------------------------------------------------------

    async def partition_states(
        self, partitions: Iterable[PartitionKey], watch: Callable[[PartitionKey], None] | None = None
    ) -> dict[PartitionKey, "LeaderAndIsr | ZnodeError"]:
        """The leader and ISR of each partition that has a state; the error if the state is malformed.

        If a malformed state counted as absent, the partition's leader epochs would start again from 0.
        `watch(partition)` is called once when a state changes.
        """
        found = await get_all(self.client, {key: topics.partition_state_path(*key) for key in partitions}, watch)
        return {key: decode_state(key, data, stat.version) for key, (data, stat) in found.items()}

    async def check_controller_epoch(self, guard: int) -> None:
        """Raises `batches.ControllerMoved` unless /controller_epoch has the version `guard`."""
        await batches.write_together(self.client, [], guard)

    async def update_partition_states(
        self, states: Mapping[PartitionKey, LeaderAndIsr], guard: int | None, *, resend: bool = True
    ) -> dict[PartitionKey, "int | ZooKeeperError"]:
        """Writes each state if its znode has the version `zk_version`. Returns the new version or the error of each;
        `EpochsUsedUp` means that the state was not written.

        `guard` is the version that /controller_epoch must have; for `resend` see `batches.write`. Raises
        `batches.ControllerMoved`.
        """
        paths = {key: topics.partition_state_path(*key) for key in states}
        used_up = {key: EpochsUsedUp(paths[key]) for key, state in states.items() if state.leader_epoch > INT32_MAX}
        legal = [key for key in states if key not in used_up] if used_up else states
        writes = [SetData(paths[key], states[key].encode(), states[key].zk_version) for key in legal]
        results = await batches.write(self.client, writes, guard, resend=resend)
        return {**{key: _version(result) for key, result in zip(legal, results, strict=True)}, **used_up}

    async def update_leader_and_isr(self, states: Mapping[PartitionKey, LeaderAndIsr]) -> dict[PartitionKey, int]:
        """Writes states of leaders before 2.7, which change their ISRs themselves. Writes a state if its znode has the
        version `zk_version`.

        Returns the new version of each written state. Another writer has changed or deleted the other states.
        An earlier try of the same write is recognized by its content.
        """
        # To ZooKeeper, -1 means any version.
        legal = {key: state for key, state in states.items() if state.zk_version >= 0}
        versions: dict[PartitionKey, int] = {}
        doubtful = []
        for key, result in (await self.update_partition_states(legal, None)).items():
            if isinstance(result, int):
                versions[key] = result
            elif isinstance(result, BadVersion):
                doubtful.append(key)
            elif not isinstance(result, NoNode):
                raise result
        for key, found in (await self.partition_states(doubtful)).items():
            if isinstance(found, LeaderAndIsr) and found == states[key]:
                versions[key] = found.zk_version
        return versions

    async def without_bounced_members(
        self, states: Mapping[PartitionKey, LeaderAndIsr]
    ) -> dict[PartitionKey, LeaderAndIsr]:
        """The states that leaders want to write, without the followers that are in the stored ISR and whose brokers
        have registered since it was stored. A state whose `zk_version` is not the stored one is returned unchanged."""
        ids = {member for state in states.values() for member in state.isr if member != state.leader}
        found = await get_all(self.client, {id_: brokers.broker_path(id_) for id_ in sorted(ids)})
        epochs = {id_: stat.czxid for id_, (_, stat) in found.items()}

        async def decide(piece: Sequence[PartitionKey]) -> list[tuple[PartitionKey, LeaderAndIsr]]:
            stored = await get_all(self.client, {key: topics.partition_state_path(*key) for key in piece})
            return [(key, _without_bounced(key, states[key], epochs, stored.get(key))) for key in piece]

        return {key: state for decided in await for_slices(states, decide) for key, state in decided}

    async def propagate_isr_changes(self, partitions: Sequence[PartitionKey]) -> None:
        """Tells the controller that these partitions' ISRs have changed. A repeated write tells it twice."""
        for start in range(0, len(partitions), MAX_PARTITIONS_OF_ISR_CHANGE):
            data = requests.encode_partitions(partitions[start : start + MAX_PARTITIONS_OF_ISR_CHANGE])
            await retrying(self.client.create, requests.ISR_CHANGE_PREFIX, data, sequential=True)

    async def create_partition_states(
        self, states: Mapping[PartitionKey, LeaderAndIsr], guard: int | None
    ) -> dict[PartitionKey, "int | ZooKeeperError"]:
        """Creates each state's znode and the two znodes above it. Returns and raises like `update_partition_states`;
        the errors are NodeExists and NoNode."""
        names = dict.fromkeys(topic for topic, _ in states)
        parents: list[MultiOperation] = [Create(topics.partitions_path(topic), None) for topic in names]
        above = await batches.write(self.client, parents, guard)
        above += await batches.write(self.client, [Create(topics.partition_path(*key), None) for key in states], guard)
        for error in above:
            if isinstance(error, ZooKeeperError) and not isinstance(error, NodeExists | NoNode):
                raise error
        results = await batches.write(
            self.client, [Create(topics.partition_state_path(*key), s.encode()) for key, s in states.items()], guard
        )
        return {key: _version(result) for key, result in zip(states, results, strict=True)}

    async def _write_config_and(self, path: str, config: Mapping[str, str], also: Create) -> None:
        """Sets or creates a configuration and does `also`, in one multi. Raises the errors of `also`."""
        data = configs.encode_config(config)
        exists = False
        while True:
            write: MultiOperation = SetData(path, data) if exists else Create(path, data)
            operations = [write, also]
            try:
                await retrying(self.client.multi, operations)
                return
            except (NodeExists, NoNode) as error:
                if error.index != 0 or isinstance(error, NodeExists) == exists:
                    raise
                exists = not exists

    async def _create_unless_there(self, path: str, data: bytes | None) -> None:
        with contextlib.suppress(NodeExists):
            await retrying(self.client.create, path, data)

    async def _delete_if_there(self, path: str) -> None:
        with contextlib.suppress(NoNode):
            await retrying(self.client.delete, path)


def decode_state(key: PartitionKey, data: bytes, zk_version: int) -> "LeaderAndIsr | ZnodeError":
    """A partition's state, or the error if it is malformed."""
    try:
        return LeaderAndIsr.decode(*key, data, zk_version)
    except ZnodeError as error:
        return error


def _without_bounced(
    key: PartitionKey, wanted: LeaderAndIsr, epochs: Mapping[int, int], found: tuple[bytes, Stat] | None
) -> LeaderAndIsr:
    if found is None or found[1].version != wanted.zk_version:
        return wanted
    data, stat = found
    back = [id_ for id_ in wanted.isr if id_ != wanted.leader and epochs.get(id_, 0) > stat.mzxid]
    if not back or isinstance(stored := decode_state(key, data, stat.version), ZnodeError):
        return wanted
    # A follower that joins stays: the leader has seen it catch up since its broker registered.
    return replace(wanted, isr=tuple(id_ for id_ in wanted.isr if id_ not in back or id_ not in stored.isr))


def _version(result: batches.Result) -> "int | ZooKeeperError":
    if isinstance(result, ZooKeeperError):
        return result
    # A creation in a multi returns no stat; a new znode has version 0.
    return 0 if result.stat is None else result.stat.version
