"""Moves partitions to other brokers (KIP-455).

A reassignment begins with a request, or with /admin/reassign_partitions. It continues, in the steps of
`reassignment_steps.py`, when an event may have unblocked it: a replica has joined the ISR, a broker of the target is
back, a controller is elected.

What must stay true:
- The last request for a partition counts, whether it came through the API or through ZooKeeper.
- A refused reassignment has changed nothing.
- No reassignment of a topic that is to be deleted begins. Its deletion waits for those in progress, which can be
  cancelled.
- /admin/reassign_partitions names exactly the reassignments in progress that came from it. After any change of the
  znode it is read again.
- Very many partitions are checked in slices. Only events change the context, one after another, so the findings of one
  slice still hold in the next.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

from klamm.base.slices import SLICE, Slices, each
from klamm.controller.context import ControllerContext, PartitionAndReplica, ReplicaAssignment
from klamm.controller.parts import ControllerParts
from klamm.controller.reassignment_steps import (
    Reassignments,
    Results,
    complete_reassignment,
    is_complete,
    on_partition_reassignment,
    partition_name,
    refresh_leadership,
    refusal_of_loss,
    unknown_partition,
)
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import PartitionKey
from klamm.znodes import access
from klamm.znodes.fields import INT32_MAX
from klamm.znodes.store import EpochsUsedUp
from klamm.znodes.topics import ENVELOPE_BYTES, assignment_bytes, partition_state_path

_log = logging.getLogger(__name__)

Target = tuple[int, ...]

_NAMED = 10  # The most partitions that a log line names.
_EPOCHS = 4  # The most leader epochs that a reassignment takes, besides one for each replica that it removes.


# -- beginning ---------------------------------------------------------------------------------------------------------


async def api_partition_reassignment(parts: ControllerParts, targets: Mapping[PartitionKey, Target | None]) -> Results:
    """Begins the reassignments of a request; a target of None cancels the current reassignment.

    The results are KafkaErrors: INVALID_REPLICA_ASSIGNMENT, NO_REASSIGNMENT_IN_PROGRESS, UNKNOWN_TOPIC_OR_PARTITION,
    and INVALID_REQUEST when a topic's znode would become too large.
    """
    context = parts.context
    results: Results = {}
    begun: dict[PartitionKey, ReplicaAssignment] = {}
    async for partition, target in each(targets.items()):
        assignment = context.partition_full_replica_assignment(partition)
        if target is None and not assignment.is_being_reassigned:
            results[partition] = KafkaError(
                ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{partition_name(partition)} is not being reassigned"
            )
            continue
        error = None if target is None else _refusal(target) or _refusal_of_too_many(context, assignment, target)
        if error is None:
            wanted = assignment.reassign_to(assignment.origin_replicas if target is None else target)
            error = None if target is None else _refusal_of_dead(context, wanted)
        if error is None:
            begun[partition] = wanted
        else:
            results[partition] = error
    refused = await _refused(parts, begun, {partition async for partition in each(begun) if targets[partition] is None})
    begun = await _without(begun, refused)
    # The last request counts.
    await parts.store.remove_partition_reassignments(lambda partition, _target: partition in begun, parts.guard)
    results |= {**refused, **await on_partition_reassignment(parts, begun)}
    return {partition: results[partition] async for partition in each(targets)}


async def zk_partition_reassignment(parts: ControllerParts) -> set[PartitionKey]:
    """Begins the reassignments in /admin/reassign_partitions that are not in progress yet. Returns their partitions.

    Target brokers may be dead. Reassignments that cannot begin are removed from the znode.
    """
    listed = await parts.store.partition_reassignment(parts.on_partition_reassignment)
    results: Results = {}
    begun: dict[PartitionKey, ReplicaAssignment] = {}
    async for partition, target in each(listed.items()):
        assignment = parts.context.partition_full_replica_assignment(partition)
        if assignment.is_being_reassigned and assignment.target_replicas == target:
            continue
        error = _refusal(target)
        if error is None:
            begun[partition] = assignment.reassign_to(target)
        else:
            results[partition] = error
    refused = await _refused(parts, begun)
    begun = await _without(begun, refused)
    results |= {**refused, **await on_partition_reassignment(parts, begun)}
    failed = {partition: error for partition, error in results.items() if error is not None}
    if failed:
        _log_refusals(failed)
        await parts.store.remove_partition_reassignments(lambda partition, _target: partition in failed, parts.guard)
    return {partition for partition in begun if partition not in failed}


def _log_refusals(failed: Mapping[PartitionKey, KafkaError]) -> None:
    """Logs one line for each reason, which thousands of partitions may share."""
    by_reason: dict[KafkaError, list[PartitionKey]] = {}
    for partition, error in failed.items():
        by_reason.setdefault(error, []).append(partition)
    for error, partitions in by_reason.items():
        names = ", ".join(map(partition_name, partitions[:_NAMED]))
        more = f" and {len(partitions) - _NAMED} more" if len(partitions) > _NAMED else ""
        _log.warning("the reassignment of %s%s through ZooKeeper cannot begin: %s", names, more, error)


async def list_partition_reassignments(
    context: ControllerContext, partitions: Iterable[PartitionKey] | None
) -> dict[PartitionKey, ReplicaAssignment]:
    """The partitions among these (None: among all) that are being reassigned."""
    if partitions is None:
        partitions = await _sorted(context.partitions_being_reassigned)
    return {
        partition: assignment
        async for partition in each(partitions)
        if (assignment := context.partition_full_replica_assignment(partition)).is_being_reassigned
    }


async def _sorted(partitions: Collection[PartitionKey]) -> list[PartitionKey]:
    topics: dict[str, list[int]] = {}
    async for topic, number in each(partitions):
        topics.setdefault(topic, []).append(number)
    return [(topic, number) async for topic in each(sorted(topics)) for number in sorted(topics[topic])]


async def _without(
    reassignments: Reassignments, refused: Collection[PartitionKey]
) -> dict[PartitionKey, ReplicaAssignment]:
    return {key: assignment async for key, assignment in each(reassignments.items()) if key not in refused}


def _refusal(target: Sequence[int]) -> KafkaError | None:
    if not target:
        reason = "a partition must have a replica"
    elif len(set(target)) < len(target):
        reason = f"replicas {list(target)} name a broker twice"
    elif min(target) < 0:
        reason = f"replicas {list(target)} contain a negative broker id"
    else:
        return None
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)


def _refusal_of_too_many(context: ControllerContext, present: ReplicaAssignment, target: Target) -> KafkaError | None:
    """Refuses more replicas than live brokers without checking each replica: a request may name 100,000."""
    live = len(context.live_broker_ids)
    if len(target) <= live + len(present.replicas):
        return None
    return KafkaError(
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        f"a partition cannot have {len(target)} replicas: {live} brokers are alive",
    )


def _refusal_of_dead(context: ControllerContext, assignment: ReplicaAssignment) -> KafkaError | None:
    dead = [broker_id for broker_id in assignment.adding_replicas if broker_id not in context.live_broker_ids]
    if not dead:
        return None
    live = list(context.live_broker_ids)
    return KafkaError(
        ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"replicas to be added are on brokers {dead}, alive are {live}"
    )


async def _refused(
    parts: ControllerParts, reassignments: Reassignments, cancelled: Collection[PartitionKey] = ()
) -> dict[PartitionKey, KafkaError]:
    """The reassignments that cannot begin, and why. For partitions in `cancelled` the current one only ends."""
    context = parts.context
    refused = {
        partition: unknown_partition(partition)
        async for partition in each(reassignments)
        if not context.partition_replica_assignment(partition)
        or (partition not in cancelled and context.is_topic_queued_up_for_deletion(partition[0]))
    }
    existing = await _without(reassignments, refused)
    await refresh_leadership(parts, existing)
    async for partition, assignment in each(existing.items()):
        error = refusal_of_loss(context, partition, assignment) or _refusal_of_epochs(context, partition)
        if error is not None:
            refused[partition] = error
    return refused | await _refusals_of_size(context, await _without(existing, refused))


def _refusal_of_epochs(context: ControllerContext, partition: PartitionKey) -> KafkaError | None:
    """INVALID_REQUEST if the partition may run out of leader epochs during the steps."""
    state = context.partition_leadership_info(partition)
    if state is None:
        return None
    needed = _EPOCHS + len(context.partition_replica_assignment(partition))
    if state.leader_epoch + needed <= INT32_MAX:
        return None
    return KafkaError(ErrorCode.INVALID_REQUEST, str(EpochsUsedUp(partition_state_path(*partition))))


async def _refusals_of_size(context: ControllerContext, reassignments: Reassignments) -> dict[PartitionKey, KafkaError]:
    """INVALID_REQUEST for all partitions of a topic whose znode would become larger than ZooKeeper takes.

    ZooKeeper answers such a write by closing the connection, and every controller would repeat it forever.
    """
    topics: dict[str, list[PartitionKey]] = {}
    async for partition in each(reassignments):
        topics.setdefault(partition[0], []).append(partition)
    refused: dict[PartitionKey, KafkaError] = {}
    looked_at = Slices(SLICE)
    for topic, partitions in topics.items():
        before = after = ENVELOPE_BYTES
        async for key in each(context.partitions_for_topic(topic), looked_at):
            assignment = context.partition_full_replica_assignment(key)
            before += assignment_bytes(key[1], *assignment)
            after += assignment_bytes(key[1], *reassignments.get(key, assignment))
        if after > max(before, access.MAX_REASSIGNED_ZNODE_BYTES):
            error = KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"the znode of '{topic}' would take {after} bytes, ZooKeeper takes {access.MAX_REASSIGNED_ZNODE_BYTES}:"
                f" {len(partitions)} of its partitions are too many at a time",
            )
            refused |= dict.fromkeys(partitions, error)
    return refused


# -- continuing --------------------------------------------------------------------------------------------------------


async def initialize_partition_reassignments(parts: ControllerParts) -> None:
    """Begins and continues reassignments after an election of the controller. Requests in ZooKeeper replace
    reassignments in progress."""
    begun = await zk_partition_reassignment(parts)
    await _resume(parts, parts.context.partitions_being_reassigned - begun)


async def resume_reassignments(parts: ControllerParts, replicas: Iterable[PartitionAndReplica]) -> None:
    """These replicas are online again: continues the reassignments with one of them in the target."""
    under_way = parts.context.partitions_being_reassigned
    if under_way:
        full = parts.context.partition_full_replica_assignment
        usable = each(replicas)
        await _resume(
            parts, {key async for key, id_ in usable if key in under_way and id_ in full(key).target_replicas}
        )


async def _resume(parts: ControllerParts, partitions: Collection[PartitionKey]) -> None:
    full = parts.context.partition_full_replica_assignment
    reassignments = {key: full(key) async for key in each(await _sorted(partitions))}
    await refresh_leadership(parts, reassignments)
    results = await on_partition_reassignment(parts, reassignments)
    for error in results.values():
        if error is not None:
            _log.error("a reassignment does not continue: %s", error)


async def complete_reassignments(parts: ControllerParts, partitions: Iterable[PartitionKey]) -> None:
    """The ISRs of these partitions may have grown: completes their reassignments where that is possible."""
    context = parts.context
    under_way = await _sorted(context.partitions_being_reassigned.intersection(partitions))
    if not under_way:
        return
    await refresh_leadership(parts, under_way)
    full = context.partition_full_replica_assignment
    complete = {key: full(key) async for key in each(under_way) if is_complete(parts, key)}
    if complete:
        await complete_reassignment(parts, complete)
