"""The steps of a reassignment (Kafka's `onPartitionReassignment`).

A reassignment lives in the topic's znode: RS, all replicas; AR, those that it adds; RR, those that it removes. The
target TRS is RS without RR, the origin ORS is RS without AR. The steps, with Kafka's labels:

| step | what                                                                                                         |
|------|--------------------------------------------------------------------------------------------------------------|
| U1   | ZooKeeper has RS = TRS + ORS, AR = TRS - ORS, RR = ORS - TRS                                                 |
| U2   | the context has them                                                                                         |
| U3   | replicas of a former target that are not in this one stop, and their data is deleted                         |
|      | not all of TRS is in the ISR:                                                                                |
| A1   | a new leader epoch; ORS and AR get LeaderAndIsr, AR as new replicas                                          |
| A2   | AR become NEW                                                                                                |
|      | all of TRS is in the ISR:                                                                                    |
| B1   | AR become ONLINE                                                                                             |
| B2   | the context has RS = TRS, no AR and no RR                                                                    |
| B3   | a new leader epoch, with a leader in TRS; TRS get LeaderAndIsr: only they can join the ISR                   |
| B4   | RR become OFFLINE: they leave the ISR, and get StopReplica                                                   |
| B5   | RR get StopReplica with deletion, and become NON_EXISTENT                                                    |
| B6   | ZooKeeper has RS = TRS, no AR and no RR                                                                      |
| B7   | the partition is removed from /admin/reassign_partitions                                                     |
| B8   | all brokers get UpdateMetadata; a waiting deletion of the topic continues                                    |

From {1,2,3} to {4,5,6}, what ZooKeeper has:

| RS            | AR      | RR      | leader | ISR           | after                      |
|---------------|---------|---------|--------|---------------|----------------------------|
| {1,2,3}       | {}      | {}      | 1      | {1,2,3}       |                            |
| {4,5,6,1,2,3} | {4,5,6} | {1,2,3} | 1      | {1,2,3}       | A2                         |
| {4,5,6,1,2,3} | {4,5,6} | {1,2,3} | 1      | {1,2,3,4,5,6} | the new ones have caught up |
| {4,5,6,1,2,3} | {4,5,6} | {1,2,3} | 4      | {1,2,3,4,5,6} | B3                         |
| {4,5,6,1,2,3} | {4,5,6} | {1,2,3} | 4      | {4,5,6}       | B4                         |
| {4,5,6}       | {}      | {}      | 4      | {4,5,6}       | B6                         |

What must stay true:
- A controller may die after any step: a replica that still has to be stopped is in the topic's znode. Therefore B6 is
  last, and U3, where it stops replicas, comes before U1 (in Kafka after it).
- A replica may join the ISR only when it is in the topic's znode: before U1 no leader is told of new replicas.
- A replica is stopped only when it is out of the ISR and another replica leads: no acknowledged record may be lost.
- A stopped replica has an older leader epoch than the StopReplica request; a broker ignores any other.
- All steps handle many partitions at once, in slices, so that the loop serves others in between.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

from klamm.base.slices import each, for_slices
from klamm.config.versions import ApiVersion
from klamm.controller.context import ControllerContext, PartitionAndReplica, ReplicaAssignment
from klamm.controller.leader_election import ElectionStrategy
from klamm.controller.parts import ControllerParts
from klamm.controller.state_change_log import NO_REPLICA
from klamm.controller.states import PartitionState, ReplicaState
from klamm.controller.turns import LoopTurns
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import PartitionKey
from klamm.znodes.topics import LeaderAndIsr
from klamm.zookeeper.keeper_exceptions import BadVersion, ZooKeeperError

_log = logging.getLogger(__name__)

Reassignments = Mapping[PartitionKey, ReplicaAssignment]
Results = dict[PartitionKey, KafkaError | None]
"""The error of each partition; None if its reassignment has begun."""


def unknown_partition(partition: PartitionKey) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition_name(partition)} does not exist")


def partition_name(partition: PartitionKey) -> str:
    return f"{partition[0]}-{partition[1]}"


async def on_partition_reassignment(parts: ControllerParts, reassignments: Reassignments) -> Results:
    """Takes all steps that are possible now. The caller has refreshed leaders and ISRs (`refresh_leadership`), and has
    refused reassignments that would lose records (`refusal_of_loss`).

    The results are KafkaErrors: UNKNOWN_TOPIC_OR_PARTITION when a topic has vanished, UNKNOWN_SERVER_ERROR when a
    replica could not be removed.
    """
    if not reassignments:
        return {}
    topics = {topic for topic, _ in reassignments}
    parts.deletions.mark_topics_ineligible_for_deletion(topics, "topic reassignment in progress")
    results = await _update_current_reassignments(parts, reassignments)
    under_way = {key: assignment async for key, assignment in each(reassignments.items()) if results[key] is None}
    incomplete = {key: assignment async for key, assignment in each(under_way.items()) if not is_complete(parts, key)}
    if incomplete:
        await _start_new_replicas(parts, incomplete)
    # A partition that was never led may have got a leader and an ISR among the new replicas.
    complete = {key: assignment async for key, assignment in each(under_way.items()) if is_complete(parts, key)}
    if complete:
        await complete_reassignment(parts, complete)
    return results


async def refresh_leadership(parts: ControllerParts, partitions: Collection[PartitionKey]) -> None:
    """Reads leaders and ISRs from ZooKeeper into the context: leaders before 2.7 write the ISR there themselves."""
    is_alter_isr_enabled = parts.config.current.inter_broker_protocol_version >= ApiVersion.V2_7_IV2
    watch = None if is_alter_isr_enabled else parts.on_partition_state
    turns = LoopTurns()

    async def refresh(piece: Sequence[PartitionKey]) -> None:
        states = await parts.store.partition_states(piece, watch)
        await turns.wait()
        for partition, state in states.items():
            known = parts.context.partition_leadership_info(partition)
            if isinstance(state, LeaderAndIsr) and (known is None or known.zk_version != state.zk_version):
                parts.context.put_partition_leadership_info(partition, state)

    await for_slices(partitions, refresh)


def is_complete(parts: ControllerParts, partition: PartitionKey) -> bool:
    """Whether all target replicas are in the ISR, and one of them can lead."""
    context = parts.context
    assignment = context.partition_full_replica_assignment(partition)
    if not assignment.is_being_reassigned:
        return True
    target, state = assignment.target_replicas, context.partition_leadership_info(partition)
    return (
        state is not None
        and set(target).issubset(state.isr)
        and any(context.is_replica_online(broker_id, partition) for broker_id in target)
    )


async def _update_current_reassignments(parts: ControllerParts, reassignments: Reassignments) -> Results:
    context = parts.context
    results: Results = dict.fromkeys(reassignments)
    full = context.partition_full_replica_assignment
    before = {partition: full(partition) async for partition in each(reassignments)}
    dropped: dict[PartitionKey, tuple[int, ...]] = {}
    async for partition, assignment in each(reassignments.items()):
        unneeded = _unneeded(before[partition], assignment)
        if unneeded:
            dropped[partition] = unneeded
    if dropped:
        # U2, U3
        async for partition in each(dropped):
            known = _without_new(before[partition], reassignments[partition])
            context.update_partition_full_replica_assignment(partition, known)
        await _lead_without(parts, dropped)
        async for partition in each(await _stop_replicas(parts, dropped)):
            context.update_partition_full_replica_assignment(partition, before[partition])
            results[partition] = KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"replicas {dropped[partition]} of {partition_name(partition)} cannot be stopped",
            )
    # U1
    changed = {
        partition: assignment
        async for partition, assignment in each(reassignments.items())
        if results[partition] is None and assignment != before[partition]
    }
    gone = await parts.store.update_partition_assignments(changed, parts.guard) if changed else set()
    async for partition, assignment in each(changed.items()):
        if partition[0] in gone:
            results[partition] = unknown_partition(partition)
        else:
            # U2
            name = partition_name(partition)
            parts.announce(f"Successfully updated assignment of partition {name} to {_described(assignment)}")
            context.update_partition_full_replica_assignment(partition, assignment)
    context.partitions_being_reassigned.update(
        [partition async for partition, error in each(results.items()) if error is None]
    )
    return results


def _without_new(before: ReplicaAssignment, after: ReplicaAssignment) -> ReplicaAssignment:
    """The assignment `after`, restricted to replicas that the partition already has."""
    replicas, adding, removing = (tuple(id_ for id_ in ids if id_ in before.replicas) for ids in after)
    return ReplicaAssignment(replicas, adding, removing)


def _unneeded(before: ReplicaAssignment, after: ReplicaAssignment) -> tuple[int, ...]:
    return tuple(broker_id for broker_id in before.replicas if broker_id not in after.replicas)


def refusal_of_loss(
    context: ControllerContext, partition: PartitionKey, assignment: ReplicaAssignment
) -> KafkaError | None:
    """INVALID_REPLICA_ASSIGNMENT if `assignment` would remove all replicas that can lead: a member of the ISR may go at
    once only if another member is online, because other replicas lack records."""
    dropped = _unneeded(context.partition_full_replica_assignment(partition), assignment)
    state = context.partition_leadership_info(partition)
    if state is None or not any(broker_id in dropped for broker_id in state.isr):
        return None
    left = [id_ for id_ in state.isr if id_ not in dropped and context.is_replica_online(id_, partition)]
    if left:
        return None
    return KafkaError(
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        f"without replicas {list(dropped)} of {partition_name(partition)} records would be lost:"
        f" the ISR is {list(state.isr)}",
    )


async def _start_new_replicas(parts: ControllerParts, incomplete: Reassignments) -> None:
    context = parts.context
    # A1
    await _update_leader_epochs(parts, incomplete)
    # A2
    await _make_new(parts, incomplete)
    never_led = [key async for key in each(incomplete) if context.partition_leadership_info(key) is None]
    await parts.partitions.handle_state_changes(never_led, PartitionState.ONLINE, ElectionStrategy.OFFLINE)


async def _make_new(parts: ControllerParts, reassignments: Reassignments) -> None:
    """Adds new replicas. Replicas that the controller already knows only need the new leader epoch."""
    adding = await _adding(reassignments)
    new = [
        replica async for replica in each(adding) if parts.context.replica_state(replica) is ReplicaState.NON_EXISTENT
    ]
    await parts.replicas.handle_state_changes(new, ReplicaState.NEW)


async def _adding(reassignments: Reassignments) -> list[PartitionAndReplica]:
    return [
        (partition, broker_id)
        async for partition, assignment in each(reassignments.items())
        for broker_id in assignment.adding_replicas
    ]


async def complete_reassignment(parts: ControllerParts, reassignments: Reassignments) -> None:
    context = parts.context
    # B1
    await _make_new(parts, reassignments)
    await parts.replicas.handle_state_changes(await _adding(reassignments), ReplicaState.ONLINE)
    # B2
    async for partition, assignment in each(reassignments.items()):
        completed = ReplicaAssignment(assignment.target_replicas)
        context.update_partition_full_replica_assignment(partition, completed)
    # B3
    await _move_leaders(parts, reassignments)
    # B4, B5
    removing = {key: assignment.removing_replicas async for key, assignment in each(reassignments.items())}
    failed = await _stop_replicas(parts, removing)
    async for partition in each(failed):
        context.update_partition_full_replica_assignment(partition, reassignments[partition])
    targets = {
        key: assignment.target_replicas async for key, assignment in each(reassignments.items()) if key not in failed
    }
    # B6
    completed_assignments = {key: ReplicaAssignment(target) async for key, target in each(targets.items())}
    await parts.store.update_partition_assignments(completed_assignments, parts.guard)
    # B7
    await parts.store.remove_partition_reassignments(lambda key, target: targets.get(key) == target, parts.guard)
    context.partitions_being_reassigned.difference_update(targets)
    async for partition, target in each(targets.items()):
        replicas = ",".join(map(str, target))
        parts.announce(f"Reassignment of partition {partition_name(partition)} to {replicas} is complete")
    # B8
    await parts.send_update_metadata(context.live_or_shutting_down_broker_ids, tuple(targets))
    await parts.deletions.resume_deletion_for_topics({topic for topic, _ in targets})


# -- leaders -----------------------------------------------------------------------------------------------------------


async def _move_leaders(parts: ControllerParts, partitions: Iterable[PartitionKey]) -> None:
    """Gives each partition a new leader epoch. A leader that is a target replica and online stays the leader."""
    context = parts.context
    stay: list[PartitionKey] = []
    move: list[PartitionKey] = []
    async for partition in each(partitions):
        state = context.partition_leadership_info(partition)
        if state is None:
            continue
        is_target = state.leader in context.partition_replica_assignment(partition)
        (stay if is_target and context.is_replica_online(state.leader, partition) else move).append(partition)
    await parts.partitions.handle_state_changes(move, PartitionState.ONLINE, ElectionStrategy.REASSIGN)
    await _update_leader_epochs(parts, stay)


async def _lead_without(parts: ControllerParts, dropped: Mapping[PartitionKey, Collection[int]]) -> None:
    """Gives each partition a new leader epoch, and another leader if its leader is to be removed."""
    context = parts.context
    stay: list[PartitionKey] = []
    move: list[PartitionKey] = []
    async for partition, broker_ids in each(dropped.items()):
        state = context.partition_leadership_info(partition)
        if state is not None:
            (move if state.leader in broker_ids else stay).append(partition)
    await parts.partitions.handle_state_changes(move, PartitionState.OFFLINE)
    await parts.partitions.handle_state_changes(move, PartitionState.ONLINE, ElectionStrategy.OFFLINE)
    await _update_leader_epochs(parts, stay)


async def _update_leader_epochs(parts: ControllerParts, partitions: Iterable[PartitionKey]) -> None:
    """Raises the leader epochs in ZooKeeper and sends all replicas LeaderAndIsr with the context's assignment."""
    context, batch = parts.context, parts.batch
    turns = LoopTurns()

    async def raise_epochs(piece: Sequence[PartitionKey]) -> dict[PartitionKey, LeaderAndIsr]:
        states = {key: state for key in piece if (state := context.partition_leadership_info(key)) is not None}
        return await _write_next_epochs(parts, states, turns)

    raised = await for_slices(partitions, raise_epochs)
    batch.new_batch()
    async for partition, state in each(item for piece in raised for item in piece.items()):
        assignment = context.partition_full_replica_assignment(partition)
        context.put_partition_leadership_info(partition, state)
        partition_state = context.partition_state(partition)
        parts.state_changes.record(context.epoch, partition, NO_REPLICA, partition_state, partition_state, state)
        # A new replica may be put on any disk; an earlier replica may be on a failed one.
        batch.add_leader_and_isr_request_for_brokers(
            assignment.origin_replicas, partition, state, assignment, is_new=False
        )
        batch.add_leader_and_isr_request_for_brokers(
            assignment.adding_replicas, partition, state, assignment, is_new=True
        )
    await batch.send_requests_to_brokers(context.epoch)


async def _write_next_epochs(
    parts: ControllerParts, states: Mapping[PartitionKey, LeaderAndIsr], turns: LoopTurns
) -> dict[PartitionKey, LeaderAndIsr]:
    """Returns the written leaderships. Starts from the context, and reads states again that have changed since."""
    raised = {}
    while states:
        updates = {
            key: LeaderAndIsr(state.leader, state.leader_epoch + 1, state.isr, parts.context.epoch, state.zk_version)
            for key, state in states.items()
        }
        changed = []
        written = await parts.state_writer.write(updates)
        await turns.wait()
        for partition, result in written.items():
            if isinstance(result, BadVersion):
                changed.append(partition)
            elif isinstance(result, ZooKeeperError):
                _log.error("the leader epoch of %s could not be raised: %s", partition_name(partition), result)
            else:
                new = updates[partition]
                raised[partition] = LeaderAndIsr(new.leader, new.leader_epoch, new.isr, new.controller_epoch, result)
        read = await parts.store.partition_states(changed) if changed else {}
        states = {key: state for key, state in read.items() if isinstance(state, LeaderAndIsr)}
    return raised


# -- removed replicas --------------------------------------------------------------------------------------------------


def _described(assignment: ReplicaAssignment) -> str:
    """The text of an assignment, as Kafka's `ReplicaAssignment` prints it."""
    replicas, adding, removing = (",".join(map(str, ids)) for ids in assignment)
    return f"ReplicaAssignment(replicas={replicas}, addingReplicas={adding}, removingReplicas={removing})"


async def _stop_replicas(parts: ControllerParts, removed: Mapping[PartitionKey, Collection[int]]) -> set[PartitionKey]:
    """Removes replicas from the ISR, stops them and has their data deleted. Returns the partitions whose replicas stay,
    because one of them leads or could not leave the ISR.

    All partitions have a new leader epoch already. The controller does not wait for the brokers: the data of a dead
    broker stays on its disk.
    """
    context = parts.context
    led = {
        key: ids
        async for key, ids in each(removed.items())
        if (state := context.partition_leadership_info(key)) is None or state.leader not in ids
    }
    # B4
    replicas = [(partition, broker_id) async for partition, broker_ids in each(led.items()) for broker_id in broker_ids]
    await parts.replicas.handle_state_changes(replicas, ReplicaState.OFFLINE, fenced=led)
    failed = {partition async for partition in each(removed) if partition not in led}
    async for partition, broker_id in each(replicas):
        state = context.partition_leadership_info(partition)
        if state is not None and broker_id in state.isr:
            failed.add(partition)
    for partition in sorted(failed):
        _log.error(
            "replicas %s of %s could not be removed: %s",
            removed[partition],
            partition_name(partition),
            context.partition_leadership_info(partition),
        )
    # B5
    stopped = [replica async for replica in each(replicas) if replica[0] not in failed]
    for step in (ReplicaState.DELETION_STARTED, ReplicaState.DELETION_SUCCESSFUL, ReplicaState.NON_EXISTENT):
        await parts.replicas.handle_state_changes(stopped, step)
    return failed
