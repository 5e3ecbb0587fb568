"""Handles topics that are created, get partitions, or are marked for deletion.

What must stay true:
- A mark for deletion is removed only with its topic, or when there is no such topic in ZooKeeper.
- A topic is taken up once, by the event that finds it among the children of /brokers/topics.
- The leadership of a partition with a state znode never starts from scratch: a topic whose znode was unreadable for a
  while, and then repaired, continues with its leader epochs.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from klamm.base.slices import CHEAP_SLICE, each, for_slices, in_slices, slices
from klamm.config.versions import ApiVersion
from klamm.controller.context import PartitionAndReplica, ReplicaAssignment
from klamm.controller.leader_election import ElectionStrategy
from klamm.controller.parts import ControllerParts
from klamm.controller.reassignment import resume_reassignments
from klamm.controller.states import PartitionState, ReplicaState
from klamm.protocol.vocabulary import PartitionKey
from klamm.znodes.topics import TopicAssignment, is_legal_topic_name
from klamm.zookeeper.keeper_exceptions import RequestTooLarge

# Few, because a topic's assignment names all of its partitions.
TOPICS_PER_SLICE = 10

_log = logging.getLogger(__name__)


# -- topics and partitions --------------------------------------------------------------------------------------------


async def topic_change(parts: ControllerParts) -> None:
    """Compares the topics in ZooKeeper with the known ones."""
    context = parts.context
    names = legal_topics(await parts.store.topic_names(parts.on_topics))
    new = [name for name in names if name not in context.all_topics]
    deleted = sorted(context.all_topics.difference(names))
    async for topic in each(deleted):
        await in_slices(context.remove_topic(topic))
    partitions = await load_topics(parts, new)
    if new or deleted:
        changes = f"New topics: [{','.join(new)}], deleted topics: [{','.join(deleted)}]"
        parts.announce(f"{changes}, {len(partitions)} new partitions")
    if partitions:
        await on_new_partition_creation(parts, partitions)


def legal_topics(names: Sequence[str]) -> list[str]:
    """The topics with legal names. A file name made of an illegal name could lie outside the log directories."""
    for name in names:
        if not is_legal_topic_name(name):
            _log.error("a topic's znode is left out: %r is no legal topic name", name)
    return [name for name in names if is_legal_topic_name(name)]


async def load_topics(parts: ControllerParts, names: Sequence[str]) -> list[PartitionKey]:
    """Reads these topics into the context, and gives ids to those that have none. Returns their partitions."""
    context, store = parts.context, parts.store

    async def load(piece: Sequence[str]) -> Mapping[str, TopicAssignment]:
        assignments = await store.topic_assignments(piece, parts.on_topic)
        if parts.config.current.inter_broker_protocol_version >= ApiVersion.V2_8_IV0:
            return await store.add_topic_ids(assignments, parts.environment.random_uuid, parts.guard)
        return assignments

    pieces = await for_slices(names, load, TOPICS_PER_SLICE)
    assignments: dict[str, TopicAssignment] = {}
    for assigned in pieces:
        assignments |= assigned
    # A topic whose znode cannot be read counts as known: it has no partitions until the znode is repaired.
    context.all_topics.update(names)
    partitions: list[PartitionKey] = []
    async for topic, assignment in each(assignments.items()):
        _add_topic_id(parts, topic, assignment)
        partitions += [(topic, number) for number in assignment.partitions]
    async for part in slices(partitions):
        for partition in part:
            _add_partition(parts, partition, assignments[partition[0]])
    return partitions


def _add_topic_id(parts: ControllerParts, topic: str, assignment: TopicAssignment) -> None:
    """An id that already belongs to another topic (a copied znode) is not used."""
    context, topic_id = parts.context, assignment.topic_id
    if topic_id is None or topic in context.topic_ids:
        return
    owner = context.topic_names.get(topic_id, topic)
    if owner != topic:
        _log.error("the id of topic %s is that of topic %s: it is not used", topic, owner)
        return
    context.add_topic_id(topic, topic_id)


def _add_partition(parts: ControllerParts, partition: PartitionKey, assignment: TopicAssignment) -> None:
    number = partition[1]
    replicas = ReplicaAssignment(
        tuple(assignment.partitions[number]),
        tuple(assignment.adding_replicas.get(number, ())),
        tuple(assignment.removing_replicas.get(number, ())),
    )
    parts.context.update_partition_full_replica_assignment(partition, replicas)
    if replicas.is_being_reassigned:
        parts.context.partitions_being_reassigned.add(partition)


async def partition_modifications(parts: ControllerParts, topic: str) -> None:
    """A topic's assignment has changed: adds new partitions. Other changes are the controller's own, except that a tool
    from before Kafka 2.8 drops the topic's id (KAFKA-14190)."""
    context = parts.context
    if topic not in context.all_topics:
        # Deleted, or not added yet: the event of the list of topics handles it.
        return
    assignment = (await parts.store.topic_assignments([topic], parts.on_topic)).get(topic)
    if assignment is None:
        return
    if assignment.topic_id is None and topic in context.topic_ids:
        assignment = await _restore_topic_id(parts, topic, assignment)
    new = [n for n in assignment.partitions if not context.partition_replica_assignment((topic, n))]
    if not new:
        return
    if parts.deletions.is_topic_queued_up_for_deletion(topic):
        _log.warning("partitions %s of topic %s are not added: the topic is being deleted", new, topic)
        await _restore_assignment(parts, topic, assignment)
        return
    _add_topic_id(parts, topic, assignment)
    for number in new:
        _add_partition(parts, (topic, number), assignment)
    await on_new_partition_creation(parts, [(topic, number) for number in new])


async def _restore_topic_id(parts: ControllerParts, topic: str, assignment: TopicAssignment) -> TopicAssignment:
    """Restores a topic's id. Otherwise the next controller would give the topic another id, and the brokers would take
    it for another topic. Returns the assignment with the id. If the znode changes meanwhile, its watch puts an
    event."""
    restored = replace(assignment, topic_id=parts.context.topic_ids[topic])
    try:
        await parts.store.update_topic_assignment(topic, restored, parts.guard)
    except RequestTooLarge as error:
        _log.error("the znode of topic %s has lost the topic's id, and has no room for it: %s", topic, error)
    return restored


async def _restore_assignment(parts: ControllerParts, topic: str, assignment: TopicAssignment) -> None:
    """Removes partitions added to a topic in deletion. If the znode changes meanwhile, its watch puts an event."""
    known = {
        number: assignment.partitions[number]
        for number in assignment.partitions
        if parts.context.partition_replica_assignment((topic, number))
    }
    await parts.store.update_topic_assignment(topic, replace(assignment, partitions=known), parts.guard)


async def on_new_partition_creation(parts: ControllerParts, partitions: Sequence[PartitionKey]) -> None:
    """New partitions get their first leaders."""
    context = parts.context
    replicas: list[PartitionAndReplica] = []
    async for piece in slices(partitions, CHEAP_SLICE):
        replicas += context.replicas_for_partitions(piece)
    await parts.partitions.handle_state_changes(partitions, PartitionState.NEW)
    await parts.replicas.handle_state_changes(replicas, ReplicaState.NEW)
    await parts.partitions.handle_state_changes(partitions, PartitionState.ONLINE, ElectionStrategy.OFFLINE)
    left: list[PartitionKey] = []
    async for piece in slices(partitions, CHEAP_SLICE):
        left += [partition for partition in piece if context.partition_state(partition) is PartitionState.NEW]
    if left:
        await _resume_leadership(parts, left)
    await parts.replicas.handle_state_changes(replicas, ReplicaState.ONLINE)
    # A topic that was unreadable for a while may come with reassignments.
    await resume_reassignments(parts, replicas)


async def _resume_leadership(parts: ControllerParts, partitions: Sequence[PartitionKey]) -> None:
    """Elects leaders for new partitions that were led before, as after a leader's death."""
    await parts.state_writer.decide(await parts.state_writer.take_up(partitions))
    found = [key for key in partitions if parts.context.partition_leadership_info(key) is not None]
    await parts.partitions.handle_state_changes(found, PartitionState.OFFLINE)
    await parts.partitions.handle_state_changes(found, PartitionState.ONLINE, ElectionStrategy.OFFLINE)


# -- deletion ---------------------------------------------------------------------------------------------------------


async def topic_deletion(parts: ControllerParts) -> None:
    """Topics were marked for deletion."""
    context, deletions = parts.context, parts.deletions
    marked = await parts.store.topic_deletions(parts.on_topic_deletions)
    if not context.all_topics.issuperset(marked):
        # A topic may have been created since the topics were read.
        await topic_change(parts)
    unknown = [topic for topic in marked if topic not in context.all_topics]
    if unknown:
        _log.warning("topics %s do not exist: the marks for their deletion are removed", unknown)
        await parts.store.delete_topic_deletions(unknown, parts.guard)
    topics = [topic for topic in marked if topic in context.all_topics]
    if not topics:
        return
    if not deletions.is_delete_topic_enabled:
        parts.announce(f"Removing {','.join(topics)} since delete topic is disabled")
        await parts.store.delete_topic_deletions(topics, parts.guard)
        return
    await deletions.enqueue_topics_for_deletion(topics)
