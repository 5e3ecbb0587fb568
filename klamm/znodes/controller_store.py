"""The controller's own reads and writes in ZooKeeper (the controller's part of Kafka's KafkaZkClient).

What must stay true:
- Every write except the election is guarded: nothing is written once another controller is elected (`ControllerMoved`).
- A write may be repeated: the znode of a deletion may be gone already, and a set names the version that was read.
- A malformed znode affects only its own topic, broker or notification: it is logged and left out.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from klamm.base.slices import Slices, each, for_slices
from klamm.protocol.vocabulary import PartitionKey
from klamm.znodes import batches, brokers, cluster, configs, requests, topics
from klamm.znodes.access import get_all, notice
from klamm.znodes.batches import ControllerMoved
from klamm.znodes.brokers import BrokerRegistration
from klamm.znodes.cluster import Controller, Features, FeatureStatus, FinalizedVersions
from klamm.znodes.fields import INT32_MAX, ZnodeError
from klamm.znodes.store import PARTITIONS_PER_SLICE, KafkaZooKeeper, LiveBroker, decode_state
from klamm.znodes.topics import LeaderAndIsr, TopicAssignment
from klamm.zookeeper.client import retrying
from klamm.zookeeper.keeper_exceptions import (
    BadVersion,
    ConnectionLoss,
    NodeExists,
    NoNode,
    NotEmpty,
    RequestTooLarge,
    ZooKeeperError,
)
from klamm.zookeeper.messages import OPEN_ACL, Create, CreateMode, Delete, MultiOperation, SetData

NO_CONTROLLER = -1
INITIAL_CONTROLLER_EPOCH = 0

Reassigned = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""A partition's replicas, adding and removing replicas."""

logger = logging.getLogger(__name__)


class ControllerNode(NamedTuple):
    """/controller: the broker id (NO_CONTROLLER when the znode is malformed), and the session that owns the znode."""

    broker_id: int
    session_id: int


class ControllerEpoch(NamedTuple):
    """/controller_epoch: the epoch and the znode's version, which guards the controller's writes."""

    epoch: int
    zk_version: int


class ControllerStore(KafkaZooKeeper):
    """See the module. `guard` is the version that /controller_epoch must have."""

    # -- election ---------------------------------------------------------------------------------------------------

    async def controller(self, watch: Callable[[], None] | None = None) -> ControllerNode | None:
        """The current controller; None if there is none. `watch` is called once when it changes."""
        if await retrying(self.client.exists, cluster.CONTROLLER_PATH, notice(watch)) is None:
            return None
        try:
            data, stat = await retrying(self.client.get, cluster.CONTROLLER_PATH)
        except NoNode:
            return None
        try:
            return ControllerNode(Controller.decode(data).broker_id, stat.ephemeral_owner)
        except ZnodeError as error:
            logger.error("the controller is unknown: %s", error)
            return ControllerNode(NO_CONTROLLER, stat.ephemeral_owner)

    async def register_controller_and_increment_epoch(self, broker_id: int, now_ms: int) -> ControllerEpoch:
        """Makes this broker the controller, in one multi that only one broker can complete for an epoch.

        A /controller that this session already owns is replaced. Raises ControllerMoved when another broker was faster,
        and ZnodeError when the epoch is malformed or the largest possible one. After a lost answer, the session and the
        epoch show whether this election was done.
        """
        # The epoch is read first: any later election changes its version.
        current = await self._controller_epoch()
        if current.epoch == INT32_MAX:
            raise ZnodeError(
                cluster.CONTROLLER_EPOCH_PATH,
                f"{INT32_MAX} is the last controller epoch: no controller can be elected. If another program has"
                " written this number, write the greatest controller_epoch of the partitions' states below"
                f" {topics.TOPICS_PATH}",
            )
        node = await self.controller()
        new_epoch = current.epoch + 1
        operations: list[MultiOperation] = [
            Create(cluster.CONTROLLER_PATH, Controller(broker_id, now_ms).encode(), OPEN_ACL, CreateMode.EPHEMERAL),
            SetData(cluster.CONTROLLER_EPOCH_PATH, cluster.encode_controller_epoch(new_epoch), current.zk_version),
        ]
        if node is not None and node.session_id == self.client.session_id:
            operations.insert(0, Delete(cluster.CONTROLLER_PATH))
        try:
            stat = (await retrying(self.client.multi, operations))[-1].stat
            assert stat is not None
            return ControllerEpoch(new_epoch, stat.version)
        except (NodeExists, BadVersion, NoNode):
            return await self._own_election(new_epoch)

    async def _own_election(self, new_epoch: int) -> ControllerEpoch:
        """The epoch that this session won the election with. Raises ControllerMoved if it did not win."""
        node = await self.controller()
        if node is not None and node.session_id == self.client.session_id:
            found = await self._controller_epoch()
            if found.epoch == new_epoch:
                return found
        raise ControllerMoved("another broker was elected controller")

    async def _controller_epoch(self) -> ControllerEpoch:
        while True:
            try:
                data, stat = await retrying(self.client.get, cluster.CONTROLLER_EPOCH_PATH)
                return ControllerEpoch(cluster.decode_controller_epoch(data), stat.version)
            except NoNode:
                first = cluster.encode_controller_epoch(INITIAL_CONTROLLER_EPOCH)
                await self._create_unless_there(cluster.CONTROLLER_EPOCH_PATH, first)

    async def delete_controller(self, guard: int) -> None:
        """Resigns as controller, so that the brokers elect a new one."""
        await self._delete_all([cluster.CONTROLLER_PATH], guard)

    # -- brokers and features ---------------------------------------------------------------------------------------

    async def watched_broker(
        self, broker_id: int, on_modification: Callable[[int], None]
    ) -> "LiveBroker | ZnodeError | None":
        """A live broker, as in `live_brokers`; None if it is gone, the error if its znode is malformed."""
        found = await get_all(self.client, {broker_id: brokers.broker_path(broker_id)}, on_modification)
        if broker_id not in found:
            return None
        data, stat = found[broker_id]
        try:
            return LiveBroker(BrokerRegistration.decode(broker_id, data), stat.czxid)
        except ZnodeError as error:
            return error

    async def set_up_features(self, is_enabled: bool, guard: int) -> None:
        """Gives /feature the status that inter.broker.protocol.version implies (KIP-584).

        Features that stay enabled are unchanged. A change of the status removes all finalized features.
        """
        status = FeatureStatus.ENABLED if is_enabled else FeatureStatus.DISABLED
        while True:
            try:
                data, stat = await retrying(self.client.get, cluster.FEATURE_PATH)
            except NoNode:
                write: MultiOperation = Create(cluster.FEATURE_PATH, Features(status).encode())
            else:
                try:
                    features = Features.decode(data)
                except ZnodeError as error:
                    logger.error("finalized features are left as they are: %s", error)
                    return
                wanted = features if is_enabled and features.status == status else Features(status)
                if wanted == features:
                    return
                write = SetData(cluster.FEATURE_PATH, wanted.encode(), stat.version)
            if not await self._write_unless([write], guard, (NodeExists, NoNode, BadVersion)):
                return

    async def update_features(self, features: Mapping[str, FinalizedVersions], version: int, guard: int) -> int | None:
        """Replaces the finalized features if /feature has this version; returns their epoch.

        None if the znode has another version or does not exist.
        """
        write = SetData(cluster.FEATURE_PATH, Features(FeatureStatus.ENABLED, features).encode(), version)
        [written] = await batches.write(self.client, [write], guard)
        if isinstance(written, BadVersion | NoNode):
            return None
        if isinstance(written, ZooKeeperError):
            raise written
        assert written.stat is not None
        return written.stat.version

    # -- topics -----------------------------------------------------------------------------------------------------

    async def partition_states_and_zxids(
        self, partitions: Iterable[PartitionKey]
    ) -> dict[PartitionKey, "tuple[LeaderAndIsr | ZnodeError, int]"]:
        """Like `partition_states`, each with the zxid of its last write."""
        found = await get_all(self.client, {key: topics.partition_state_path(*key) for key in partitions})
        return {key: (decode_state(key, data, stat.version), stat.mzxid) for key, (data, stat) in found.items()}

    async def add_topic_ids(
        self, assignments: Mapping[str, TopicAssignment], new_id: Callable[[], UUID], guard: int
    ) -> dict[str, TopicAssignment]:
        """Assigns an id to each of these topics without an id, and returns all their current assignments.

        A topic that is deleted meanwhile is left out. A topic whose znode has no space for an id stays without one.
        """
        result = dict(assignments)
        missing = {topic: assignment for topic, assignment in result.items() if assignment.topic_id is None}
        while missing:
            named = {topic: replace(assignment, topic_id=new_id()) for topic, assignment in missing.items()}
            versions = await batches.write(
                self.client,
                [SetData(topics.topic_path(t), a.encode(), a.zk_version) for t, a in named.items()],
                guard,
            )
            changed = []
            for (topic, assignment), written in zip(named.items(), versions, strict=True):
                if isinstance(written, NoNode):
                    del result[topic]
                elif isinstance(written, BadVersion):
                    changed.append(topic)
                elif isinstance(written, RequestTooLarge):
                    logger.error("topic %s gets no id: %s", topic, written)
                elif isinstance(written, ZooKeeperError):
                    raise written
                else:
                    assert written.stat is not None
                    result[topic] = replace(assignment, zk_version=written.stat.version)
            # Partitions, or an id, were added since the read.
            again = await self.topic_assignments(changed)
            result = {
                topic: again.get(topic, old) for topic, old in result.items() if topic in again or topic not in changed
            }
            missing = {topic: assignment for topic, assignment in again.items() if assignment.topic_id is None}
        return result

    async def update_topic_assignment(self, topic: str, assignment: TopicAssignment, guard: int) -> bool:
        """Replaces a topic's assignment; False when it was changed or deleted after `zk_version` was read."""
        write = SetData(topics.topic_path(topic), assignment.encode(), assignment.zk_version)
        return not await self._write_unless([write], guard, (NoNode, BadVersion))

    async def update_partition_assignments(
        self, assignments: Mapping[PartitionKey, Reassigned], guard: int
    ) -> set[str]:
        """Sets the replicas, adding and removing replicas of these partitions. Returns the topics that are gone.

        Everything else in a topic's znode stays as it is, including concurrent changes.
        """
        changes: dict[str, dict[int, Reassigned]] = {}
        async for (topic, number), change in each(assignments.items()):
            changes.setdefault(topic, {})[number] = change
        pieces = await for_slices(changes, lambda piece: self._update_topics(piece, changes, guard))
        return {topic for gone in pieces for topic in gone}

    async def _update_topics(
        self, names: Sequence[str], changes: Mapping[str, Mapping[int, Reassigned]], guard: int
    ) -> set[str]:
        """Like `update_partition_assignments`, for some of the topics."""
        gone: set[str] = set()
        pending = list(names)
        while pending:
            found = await self.topic_assignments(pending)
            gone.update(topic for topic in pending if topic not in found)
            writes = []
            encoded = Slices(PARTITIONS_PER_SLICE)
            async for topic, assignment in each(found.items(), encoded):
                data = _reassigned(assignment, changes[topic]).encode()
                writes.append(SetData(topics.topic_path(topic), data, assignment.zk_version))
                encoded.count(len(assignment.partitions))
            results = await batches.write(self.client, writes, guard)
            pending = []
            for topic, result in zip(found, results, strict=True):
                if isinstance(result, NoNode | BadVersion):
                    pending.append(topic)
                elif isinstance(result, ZooKeeperError):
                    raise result
        return gone

    async def delete_topic_guarded(self, topic: str, guard: int) -> None:
        """Removes a topic: first the znodes below the topic's znode; then that znode, the configuration and the mark
        for deletion, in one multi.

        If a controller died and left a mark without its topic, the mark would delete the next topic of that name. While
        the topic's znode exists, no such topic can be created, so all removed znodes belong to the old topic.
        """
        last = {
            configs.config_path(configs.topic_entity(topic)): None,
            topics.topic_path(topic): None,
            requests.delete_topic_path(topic): None,
        }
        path = topics.topic_path(topic)
        stat = await retrying(self.client.exists, path)
        while last:
            await self._delete_below([*last], guard)
            try:
                await batches.write_together(self.client, [Delete(path) for path in last], guard)
                return
            except NoNode as error:
                if error.path not in last:
                    raise
                del last[error.path]
            except NotEmpty:
                continue  # A znode was created below one of these znodes meanwhile.
            except ConnectionLoss:
                if stat is not None and await self._is_gone(path, stat.czxid):
                    return  # The multi was done; another topic of that name may exist already.

    async def _delete_below(self, paths: Sequence[str], guard: int) -> None:
        levels = [await self._children_of(paths)]
        while levels[-1]:
            levels.append(await self._children_of(levels[-1]))
        await self._delete_all([path for level in reversed(levels) for path in level], guard)

    async def _children_of(self, paths: Sequence[str]) -> list[str]:
        pieces = await for_slices(paths, self._children_of_some)
        return [path for piece in pieces for path in piece]

    async def _children_of_some(self, paths: Sequence[str]) -> list[str]:
        answers = await asyncio.gather(
            *(retrying(self.client.children, path) for path in paths), return_exceptions=True
        )
        found = []
        for path, answer in zip(paths, answers, strict=True):
            if not isinstance(answer, BaseException):
                found += [f"{path}/{name}" for name in answer]
            elif not isinstance(answer, NoNode):
                raise answer
        return found

    async def delete_topic_deletions(self, names: Iterable[str], guard: int) -> None:
        """Removes these topics' marks for deletion."""
        await self._delete_all([requests.delete_topic_path(name) for name in names], guard)

    # -- preferred replica elections --------------------------------------------------------------------------------

    async def preferred_replica_election(self, watch: Callable[[], None]) -> list[PartitionKey] | None:
        """The partitions in /admin/preferred_replica_election; None if it does not exist.

        `watch` is called once when the znode comes, changes or goes. A malformed znode has no partitions.
        """
        path = requests.PREFERRED_REPLICA_ELECTION_PATH
        if await retrying(self.client.exists, path, notice(watch)) is None:
            return None
        try:
            data, _ = await retrying(self.client.get, path)
            return requests.decode_partitions(path, data)
        except NoNode:
            return None
        except ZnodeError as error:
            logger.error("a preferred replica election is left out: %s", error)
            return []

    async def delete_preferred_replica_election(self, guard: int) -> None:
        await self._delete_all([requests.PREFERRED_REPLICA_ELECTION_PATH], guard)

    # -- reassignments ----------------------------------------------------------------------------------------------

    async def partition_reassignment(self, watch: Callable[[], None]) -> dict[PartitionKey, tuple[int, ...]]:
        """The replicas that /admin/reassign_partitions asks for; `watch` is called once when it changes.

        A malformed znode is logged and asks for nothing.
        """
        if await retrying(self.client.exists, requests.REASSIGN_PARTITIONS_PATH, notice(watch)) is None:
            return {}
        return (await self._partition_reassignment())[0]

    async def remove_partition_reassignments(
        self, is_finished: Callable[[PartitionKey, tuple[int, ...]], bool], guard: int
    ) -> None:
        """Removes finished partitions from /admin/reassign_partitions, and the znode once it is empty."""
        path = requests.REASSIGN_PARTITIONS_PATH
        while True:
            listed, version = await self._partition_reassignment()
            left = {key: replicas for key, replicas in listed.items() if not is_finished(key, replicas)}
            if len(left) == len(listed):
                return
            data = requests.encode_reassignment(left)
            write: MultiOperation = SetData(path, data, version) if left else Delete(path, version)
            if not await self._write_unless([write], guard, (BadVersion, NoNode)):
                return

    async def _partition_reassignment(self) -> tuple[dict[PartitionKey, tuple[int, ...]], int]:
        try:
            data, stat = await retrying(self.client.get, requests.REASSIGN_PARTITIONS_PATH)
            return requests.decode_reassignment(data), stat.version
        except NoNode:
            return {}, -1
        except ZnodeError as error:
            logger.error("what should be reassigned is unknown: %s", error)
            return {}, -1

    # -- notifications ----------------------------------------------------------------------------------------------

    async def isr_changes(self, watch: Callable[[], None]) -> list[str]:
        """The names of the notifications of ISR changes, in order. `watch` is called once when they change."""
        return await retrying(self.client.children, requests.ISR_CHANGES_PATH, notice(watch))

    async def isr_change_partitions(self, names: Sequence[str]) -> list[PartitionKey]:
        """The partitions in these notifications, each once."""
        found = await get_all(self.client, {name: f"{requests.ISR_CHANGES_PATH}/{name}" for name in names})
        partitions: dict[PartitionKey, None] = {}
        for name, (data, _) in found.items():
            try:
                listed = requests.decode_partitions(f"{requests.ISR_CHANGES_PATH}/{name}", data)
                partitions.update(dict.fromkeys(listed))
            except ZnodeError as error:
                logger.error("a notification is left out: %s", error)
        return list(partitions)

    async def delete_isr_changes(self, names: Sequence[str], guard: int) -> None:
        await self._delete_all([f"{requests.ISR_CHANGES_PATH}/{name}" for name in names], guard)

    async def log_dir_events(self, watch: Callable[[], None]) -> list[str]:
        """The names of the notifications of failed log directories, in order; `watch` as for `isr_changes`."""
        return await retrying(self.client.children, requests.LOG_DIR_EVENTS_PATH, notice(watch))

    async def log_dir_event_brokers(self, names: Sequence[str]) -> list[int]:
        """The brokers in these notifications, ascending."""
        found = await get_all(self.client, {name: f"{requests.LOG_DIR_EVENTS_PATH}/{name}" for name in names})
        ids = set()
        for name, (data, _) in found.items():
            try:
                ids.add(requests.decode_log_dir_event(f"{requests.LOG_DIR_EVENTS_PATH}/{name}", data))
            except ZnodeError as error:
                logger.error("a notification is left out: %s", error)
        return sorted(ids)

    async def delete_log_dir_events(self, names: Sequence[str], guard: int) -> None:
        await self._delete_all([f"{requests.LOG_DIR_EVENTS_PATH}/{name}" for name in names], guard)

    # -- the same for all -------------------------------------------------------------------------------------------

    async def _delete_all(self, paths: Sequence[str], guard: int) -> bool:
        """Deletes the znodes that exist. Returns whether a znode was left because it has children."""

        async def delete(piece: Sequence[str]) -> bool:
            return await self._write_unless([Delete(path) for path in piece], guard, (NotEmpty,), ignored=(NoNode,))

        return any(await for_slices(paths, delete))

    async def _write_unless(
        self,
        operations: Sequence[MultiOperation],
        guard: int,
        expected: tuple[type[ZooKeeperError], ...],
        ignored: tuple[type[ZooKeeperError], ...] = (),
    ) -> bool:
        """Writes. Returns whether one of the `expected` errors stopped an operation. Raises any other error."""
        has_failed = False
        for result in await batches.write(self.client, operations, guard):
            if isinstance(result, expected):
                has_failed = True
            elif isinstance(result, ZooKeeperError) and not isinstance(result, ignored):
                raise result
        return has_failed


def _reassigned(assignment: TopicAssignment, changes: Mapping[int, Reassigned]) -> TopicAssignment:
    """A topic's assignment with the changes of these partitions."""
    maps = dict(assignment.partitions), dict(assignment.adding_replicas), dict(assignment.removing_replicas)
    for number, change in changes.items():
        for replicas, of_partition in zip(maps, change, strict=True):
            replicas[number] = of_partition
    partitions, adding, removing = maps
    return replace(assignment, partitions=partitions, adding_replicas=adding, removing_replicas=removing)
