"""ISR changes of leaders: by AlterIsr requests or, before 2.7, by their own writes to ZooKeeper.

What must stay true:
- An ISR is written at the znode version that its leader knows, and only for the leader in its current epoch: a change
  based on an older state is refused.
- A replica joins the ISR only while it is assigned and online. The controller removes a dead replica when its broker
  dies and does not check it again, so a replica that joins later could come back with fewer records and lead. (Kafka
  2.8.2 does not check this.) The response tells the leader the ISR.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence

from klamm.base.slices import for_slices, slices
from klamm.controller.parts import ControllerParts
from klamm.controller.reassignment import complete_reassignments
from klamm.controller.state_change_log import NO_REPLICA
from klamm.controller.states import PartitionState, ReplicaState
from klamm.protocol.apis.alter_isr import AlterIsrRequest, AlterIsrResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import PartitionKey
from klamm.znodes.fields import ZnodeError
from klamm.znodes.topics import LeaderAndIsr
from klamm.zookeeper.keeper_exceptions import BadVersion, NoNode, ZooKeeperError

Topic = AlterIsrResponse.TopicData
Partition = Topic.PartitionData
WantedPartition = AlterIsrRequest.TopicData.PartitionData

_log = logging.getLogger(__name__)


async def alter_isr(parts: ControllerParts, request: AlterIsrRequest) -> AlterIsrResponse:
    """Changes ISRs on a leader's request. Returns the response. Raises KafkaError STALE_BROKER_EPOCH."""
    context = parts.context
    broker = context.live_or_shutting_down_brokers.get(request.broker_id)
    if broker is None or broker.epoch != request.broker_epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH, f"broker {request.broker_id} has no epoch {request.broker_epoch}"
        )
    results: dict[PartitionKey, ErrorCode | LeaderAndIsr] = {}
    changes: dict[PartitionKey, LeaderAndIsr] = {}
    items = [(topic.name, item) for topic in request.topics for item in topic.partitions]
    async for piece in slices(items):
        for topic, item in piece:
            partition = (topic, item.partition_index)
            decision = _decide(parts, partition, request.broker_id, item)
            changes.pop(partition, None)  # For a partition named twice the last entry counts.
            if isinstance(decision, LeaderAndIsr) and decision is not context.partition_leadership_info(partition):
                changes[partition] = decision
            results[partition] = decision
    written = await _write(parts, changes)
    results.update(written)
    changed = [partition for partition, result in written.items() if isinstance(result, LeaderAndIsr)]
    if changed:
        await parts.send_update_metadata(context.live_or_shutting_down_broker_ids, changed)
    return await _response(results)


def requested_partitions(request: AlterIsrRequest) -> list[PartitionKey]:
    return [(topic.name, item.partition_index) for topic in request.topics for item in topic.partitions]


def _decide(
    parts: ControllerParts, partition: PartitionKey, sender: int, item: WantedPartition
) -> ErrorCode | LeaderAndIsr:
    """The partition's new state; its current state when nothing changes."""
    context = parts.context
    state = context.partition_leadership_info(partition)
    if state is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if item.leader_epoch != state.leader_epoch or sender != state.leader:
        return ErrorCode.FENCED_LEADER_EPOCH
    replicas = context.partition_replica_assignment(partition)
    isr = tuple(
        member
        for member in dict.fromkeys(item.new_isr)
        if member in state.isr or (member in replicas and context.is_replica_online(member, partition))
    )
    if isr == state.isr:
        return state
    if sender not in isr:
        return ErrorCode.INVALID_REQUEST
    if item.current_isr_version < 0:  # In ZooKeeper -1 means any version.
        return ErrorCode.INVALID_UPDATE_VERSION
    return LeaderAndIsr(sender, state.leader_epoch, isr, context.epoch, item.current_isr_version)


async def _write(
    parts: ControllerParts, changes: dict[PartitionKey, LeaderAndIsr]
) -> dict[PartitionKey, ErrorCode | LeaderAndIsr]:
    """Writes the changes, and updates the context with the written ones."""
    results: dict[PartitionKey, ErrorCode | LeaderAndIsr] = {}

    async def write(piece: Sequence[PartitionKey]) -> None:
        written = await parts.state_writer.write({key: changes[key] for key in piece})
        _take_up(parts, changes, written, results)

    await for_slices(changes, write)
    return results


def _take_up(
    parts: ControllerParts,
    changes: Mapping[PartitionKey, LeaderAndIsr],
    versions: Mapping[PartitionKey, int | ZooKeeperError],
    results: dict[PartitionKey, ErrorCode | LeaderAndIsr],
) -> None:
    for partition, written in versions.items():
        if isinstance(written, BadVersion):
            results[partition] = ErrorCode.INVALID_UPDATE_VERSION
        elif isinstance(written, NoNode):
            results[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif isinstance(written, ZooKeeperError):
            raise written
        else:
            change = changes[partition]
            state = LeaderAndIsr(change.leader, change.leader_epoch, change.isr, change.controller_epoch, written)
            _put(parts, partition, state)
            results[partition] = state


def _put(parts: ControllerParts, partition: PartitionKey, state: LeaderAndIsr) -> None:
    parts.context.put_partition_leadership_info(partition, state)
    online = PartitionState.ONLINE
    why = f"broker {state.leader}, which leads, changed the ISR"
    parts.state_changes.record(parts.context.epoch, partition, NO_REPLICA, online, online, state, why)


async def _response(results: dict[PartitionKey, ErrorCode | LeaderAndIsr]) -> AlterIsrResponse:
    topics: dict[str, list[Partition]] = {}
    async for piece in slices(results.items()):
        for (topic, number), result in piece:
            if isinstance(result, LeaderAndIsr):
                item = Partition(
                    partition_index=number,
                    error_code=ErrorCode.NONE,
                    leader_id=result.leader,
                    leader_epoch=result.leader_epoch,
                    isr=list(result.isr),
                    current_isr_version=result.zk_version,
                )
            else:
                item = Partition(partition_index=number, error_code=result)
            topics.setdefault(topic, []).append(item)
    return AlterIsrResponse(
        error_code=ErrorCode.NONE,
        topics=[Topic(name=topic, partitions=items) for topic, items in topics.items()],
    )


def error_response(code: ErrorCode) -> AlterIsrResponse:
    """The AlterIsr response that refuses the whole request."""
    return AlterIsrResponse(error_code=code, topics=[])


async def isr_change_notification(parts: ControllerParts) -> None:
    """Leaders have written ISRs themselves: reads the new states and sends them to all brokers."""
    names = await parts.store.isr_changes(parts.on_isr_changes)
    if not names:
        return
    known = _known(parts, await parts.store.isr_change_partitions(names))
    states = await parts.store.partition_states(known)
    for partition, state in states.items():
        if isinstance(state, ZnodeError):
            _log.error("the new ISR of %s-%d is unknown: %s", *partition, state)
        elif state != parts.context.partition_leadership_info(partition):
            _put(parts, partition, state)
        else:
            # The ISR has changed and changed back. Only the version of its znode differs.
            parts.context.put_partition_leadership_info(partition, state)
    await parts.send_update_metadata(parts.context.live_or_shutting_down_broker_ids, known)
    await _take_out_offline_members(parts, known)
    await complete_reassignments(parts, known)
    await parts.store.delete_isr_changes(names, parts.guard)


async def _take_out_offline_members(parts: ControllerParts, partitions: Iterable[PartitionKey]) -> None:
    """Handles a replica that a leader added to the ISR after the controller had handled the death of its broker."""
    context = parts.context
    offline = [
        (partition, broker_id)
        for partition in partitions
        if (state := context.partition_leadership_info(partition)) is not None
        for broker_id in context.partition_replica_assignment(partition)
        if broker_id in state.isr and len(state.isr) > 1 and not context.is_replica_online(broker_id, partition)
    ]
    await parts.replicas.handle_state_changes(offline, ReplicaState.OFFLINE)


def _known(parts: ControllerParts, partitions: Iterable[PartitionKey]) -> list[PartitionKey]:
    return [partition for partition in partitions if parts.context.partition_replica_assignment(partition)]
