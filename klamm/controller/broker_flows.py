"""What the controller does when brokers start, die, change, lose a disk or want to stop.

The functions with Kafka's names (`on_broker_startup` ...) are steps of several flows; the others process one event.

What must stay true:
- A broker that came back under a new epoch (a bounce) counts as dead first: its channel and the states of its replicas
  belong to its former process. The bounce is decided before any other write to its partitions (bounces.py), when all
  dead brokers are known.
- Brokers get the live brokers before they get a leader to follow.
- A partition's replicas that are already deleted, or about to be, are left to the topic deletion.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence

from klamm.base.slices import CHEAP_SLICE, Slices, each, in_slices, slices
from klamm.controller.context import PartitionAndReplica
from klamm.controller.events import LeaderAndIsrResponseReceived
from klamm.controller.features import compatible_brokers
from klamm.controller.leader_election import ElectionStrategy
from klamm.controller.parts import ControllerParts
from klamm.controller.reassignment import complete_reassignments, resume_reassignments
from klamm.controller.states import PartitionState, ReplicaState
from klamm.controller.topic_ids import take_up_topic_id_answers
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import PartitionKey
from klamm.znodes.fields import ZnodeError

UNKNOWN_BROKER_EPOCH = -1

_log = logging.getLogger(__name__)


# -- coming and going -------------------------------------------------------------------------------------------------


async def broker_change(parts: ControllerParts) -> None:
    """Compares the brokers in ZooKeeper with the known ones."""
    context, channels = parts.context, parts.channels
    assert channels is not None
    current = await compatible_brokers(parts)
    known = context.live_or_shutting_down_brokers
    new = {id_: broker for id_, broker in current.items() if id_ not in known}
    bounced = {id_: broker for id_, broker in current.items() if id_ in known and broker.epoch > known[id_].epoch}
    dead = [id_ for id_ in known if id_ not in current]
    if new or bounced or dead:
        parts.announce(
            f"Newly added brokers: {_listed(new)}, deleted brokers: {_listed(dead)},"
            f" bounced brokers: {_listed(bounced)}, all live brokers: {_listed(current)}"
        )
    for id_ in (*bounced, *dead):
        channels.remove_broker(id_)
    for broker in (*new.values(), *bounced.values()):
        channels.add_broker(broker.registration)
    context.remove_live_brokers((*bounced, *dead))
    if bounced:
        replicas = await in_slices(context.replicas_on_brokers(bounced))
        decided = await parts.state_writer.decide(dict.fromkeys([key for key, _ in replicas], bounced))
        await on_broker_failure(parts, list(bounced), decided)
        context.add_live_brokers(bounced)
        await on_broker_startup(parts, list(bounced))
    if new:
        context.add_live_brokers(new)
        await on_broker_startup(parts, list(new))
    if dead:
        await on_broker_failure(parts, dead)
    if new or bounced or dead:
        parts.announce_broker_epochs("Updated")
    await _announce_decisions(parts)


async def _announce_decisions(parts: ControllerParts) -> None:
    """Tells brokers about partitions that the event before decided about, because this change of brokers waited."""
    context, writer = parts.context, parts.state_writer
    decided, writer.unannounced = writer.unannounced, set()
    replicas = [
        (key, broker_id)
        for key in decided
        for broker_id in context.partition_replica_assignment(key)
        if context.is_replica_online(broker_id, key, include_shutting_down_brokers=True)
    ]
    await parts.replicas.handle_state_changes(await _not_deleted(parts, replicas), ReplicaState.ONLINE)


async def broker_modifications(parts: ControllerParts, broker_id: int) -> None:
    """A live broker has changed its registration, perhaps its address."""
    channels = parts.channels
    assert channels is not None
    broker = await parts.store.watched_broker(broker_id, parts.on_broker)
    if isinstance(broker, ZnodeError):
        _log.error("the changed registration of broker %d is ignored: %s", broker_id, broker)
        return
    known = parts.context.live_or_shutting_down_brokers.get(broker_id)
    if broker is None and known is None:
        return
    if broker is None or known is None or broker.epoch != known.epoch:
        # The broker is gone, or has bounced, or its registration could not be read until now. The watch of the list
        # reports the first two as well, but perhaps later than this one.
        await broker_change(parts)
        return
    before, after = known.registration, broker.registration
    if (before.endpoints, before.features) != (after.endpoints, after.features):
        parts.announce(f"Updated broker metadata: {before} -> {after}")
        parts.context.update_broker_metadata(after)
        channels.update_broker(after)
        await parts.send_update_metadata(parts.context.live_or_shutting_down_broker_ids, ())


async def on_broker_startup(parts: ControllerParts, new: Sequence[int]) -> None:
    """Brokers have started: all brokers learn of them, they learn of all partitions, and work that waited for them
    continues."""
    context = parts.context
    parts.announce(f"New broker startup callback for {_listed(new)}")
    for broker_id in new:
        context.replicas_on_offline_dirs.pop(broker_id, None)
    existing = [id_ for id_ in context.live_or_shutting_down_broker_ids if id_ not in new]
    await parts.send_update_metadata(existing, ())
    # A broker that was away must learn which topics are being deleted, since it may still have them, and finds them in
    # ZooKeeper. The other brokers know it.
    known = [*context.partitions_with_leaders(), *context.partitions_being_deleted()]
    await parts.send_update_metadata(new, known)
    await _on_replicas_become_online(parts, await in_slices(context.replicas_on_brokers(new)))


async def _on_replicas_become_online(parts: ControllerParts, replicas: Collection[PartitionAndReplica]) -> None:
    """Brings these replicas online, and continues work that waited for them."""
    await parts.replicas.handle_state_changes(await _not_deleted(parts, replicas), ReplicaState.ONLINE)
    await parts.partitions.trigger_online_partition_state_change()
    await resume_reassignments(parts, replicas)
    await asyncio.sleep(0)
    await parts.deletions.resume_deletion_for_topics({topic for (topic, _), _ in replicas})


async def on_broker_failure(
    parts: ControllerParts, dead: Iterable[int], decided: Collection[PartitionKey] = ()
) -> None:
    """Brokers are gone (and already removed from the live ones). `decided` are partitions whose leader and ISR are
    already decided."""
    dead = list(dead)
    parts.announce(f"Broker failure callback for {_listed(dead)}")
    were_shutting_down = [id_ for id_ in dead if id_ in parts.context.shutting_down_broker_ids]
    for broker_id in dead:
        parts.context.replicas_on_offline_dirs.pop(broker_id, None)
        parts.context.remove_shutting_down_broker(broker_id)
    if were_shutting_down:
        parts.announce(f"Removed {_listed(were_shutting_down)} from list of shutting down brokers.")
    await on_replicas_become_offline(parts, await in_slices(parts.context.replicas_on_brokers(dead)), decided)


async def on_replicas_become_offline(
    parts: ControllerParts, replicas: Collection[PartitionAndReplica], decided: Collection[PartitionKey] = ()
) -> None:
    """Elects leaders for the partitions that these replicas led, and removes the replicas from the ISRs."""
    context, deletions = parts.context, parts.deletions
    await asyncio.sleep(0)
    leaderless = context.partitions_with_offline_leader()
    await parts.partitions.handle_state_changes(leaderless, PartitionState.OFFLINE)
    await parts.partitions.trigger_online_partition_state_change()
    await asyncio.sleep(0)
    states, is_to_be_deleted = context.partition_states, context.is_partition_to_be_deleted
    deleting = [replica for replica in replicas if is_to_be_deleted(replica[0])] if context.topics_to_be_deleted else []
    others = [replica for replica in replicas if not is_to_be_deleted(replica[0])] if deleting else replicas
    elected = {key for key in leaderless if states.get(key) is PartitionState.ONLINE}
    await asyncio.sleep(0)
    await parts.replicas.handle_state_changes(others, ReplicaState.OFFLINE, fenced={*elected, *decided})
    if deleting:
        await deletions.fail_replica_deletion(deleting)
    if all(context.partition_state(partition) is PartitionState.OFFLINE for partition in leaderless):
        # No request about a new leader has told the brokers which brokers are dead.
        await parts.send_update_metadata(context.live_or_shutting_down_broker_ids, ())
    # A target replica that was elected uncleanly is the whole ISR.
    await complete_reassignments(parts, elected)


def _listed(broker_ids: Iterable[int]) -> str:
    return ",".join(map(str, broker_ids))


async def _not_deleted(parts: ControllerParts, replicas: Iterable[PartitionAndReplica]) -> list[PartitionAndReplica]:
    """The replicas that may be brought online: their brokers have not deleted them and are not about to."""
    beyond = (ReplicaState.DELETION_STARTED, ReplicaState.DELETION_SUCCESSFUL)
    found: list[PartitionAndReplica] = []
    async for piece in slices(replicas, CHEAP_SLICE):
        found += [replica for replica in piece if parts.context.replica_state(replica) not in beyond]
    return found


# -- disks ------------------------------------------------------------------------------------------------------------


async def log_dir_event_notification(parts: ControllerParts) -> None:
    """Disks have failed, or work again: their brokers get LeaderAndIsr for all their partitions, and answer which
    replicas are offline. For topics that are being deleted they get StopReplica again, and answer likewise."""
    names = await parts.store.log_dir_events(parts.on_log_dir_events)
    if not names:
        return
    live = parts.context.live_or_shutting_down_broker_ids
    broker_ids = [id_ for id_ in await parts.store.log_dir_event_brokers(names) if id_ in live]
    parts.announce(f"Handling log directory failure for brokers {_listed(broker_ids)}")
    replicas = await _not_deleted(parts, await in_slices(parts.context.replicas_on_brokers(broker_ids)))
    # A replica in state NEW (of a reassignment) may lead already, but gets no LeaderAndIsr when it becomes ONLINE. So
    # these replicas become ONLINE twice.
    new: list[PartitionAndReplica] = []
    async for piece in slices(replicas, CHEAP_SLICE):
        new += [replica for replica in piece if parts.context.replica_state(replica) is ReplicaState.NEW]
    await parts.replicas.handle_state_changes(new, ReplicaState.ONLINE)
    await parts.replicas.handle_state_changes(replicas, ReplicaState.ONLINE)
    for broker_id in broker_ids:
        offline = parts.context.replicas_on_offline_dirs.get(broker_id, set())
        offline -= {partition for partition in offline if parts.context.is_partition_to_be_deleted(partition)}
    await parts.deletions.resume_deletion_for_topics({topic for (topic, _), _ in replicas})
    await parts.store.delete_log_dir_events(names, parts.guard)


async def leader_and_isr_response_received(parts: ControllerParts, event: LeaderAndIsrResponseReceived) -> None:
    """A broker reports which of its replicas are on failed disks, which can be used (again), and which have another
    topic's logs."""
    context, broker_id = parts.context, event.sender.broker_id
    if not parts.is_current(event.sender):
        return
    if event.response.error_code != ErrorCode.NONE:
        refusal = ErrorCode(event.response.error_code)
        _log.error("broker %d answers LeaderAndIsr with %s (%d)", broker_id, refusal.name, refusal)
        return
    offline: dict[PartitionKey, None] = {}
    online = []
    refused = []
    looked_at = Slices(CHEAP_SLICE)
    for topic_errors in event.response.topics:
        topic = topic_errors.topic_name
        if topic_errors.topic_id is not None:
            topic = context.topic_names.get(topic_errors.topic_id, topic)
        if topic not in context.all_topics:
            continue
        async for answer in each(topic_errors.partition_errors, looked_at):
            partition, code = answer.partition_index, answer.error_code
            if code == ErrorCode.KAFKA_STORAGE_ERROR:
                offline[topic, partition] = None
            # A request that is sent again because its answer was lost is stale. Only replicas on working disks answer
            # so.
            elif code in (ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH):
                online.append((topic, partition))
            elif code == ErrorCode.INCONSISTENT_TOPIC_ID:
                refused.append((topic, partition))
    # A replica may have been removed after the request was sent.
    offline = {key: None for key in offline if broker_id in context.partition_replica_assignment(key)}
    before = context.replicas_on_offline_dirs.get(broker_id, set())
    now = before.difference(online).union(offline)
    if now:
        context.replicas_on_offline_dirs[broker_id] = now
    else:
        context.replicas_on_offline_dirs.pop(broker_id, None)
    new = [(partition, broker_id) for partition in offline if partition not in before]
    if new:
        parts.announce(f"Mark {len(new)} replicas on broker {broker_id} as offline")
        await on_replicas_become_offline(parts, new)
    back = [
        (partition, broker_id)
        for partition in (online if before else ())
        if partition in before and broker_id in context.partition_replica_assignment(partition)
    ]
    if back:
        # Kafka waits for the broker's next start; a disk that works again would leave partitions without a leader.
        parts.announce(f"Mark {len(back)} replicas on broker {broker_id} as online")
        await _on_replicas_become_online(parts, back)
    await take_up_topic_id_answers(parts, broker_id, online, refused)


# -- controlled shutdown ----------------------------------------------------------------------------------------------


async def controlled_shutdown(parts: ControllerParts, broker_id: int, broker_epoch: int) -> list[PartitionKey]:
    """Moves leadership away from a broker that wants to stop. Returns the partitions that it still leads.

    Partitions without another replica, and those of topics that are being deleted, do not keep it from stopping. Raises
    KafkaError BROKER_NOT_AVAILABLE, or STALE_BROKER_EPOCH (a former process of the broker has asked).
    """
    context = parts.context
    broker = context.live_or_shutting_down_brokers.get(broker_id)
    if broker is None:
        raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id} is not alive")
    if broker_epoch != UNKNOWN_BROKER_EPOCH and broker_epoch < broker.epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH, f"epoch {broker_epoch} of broker {broker_id} is over; it has {broker.epoch}"
        )
    parts.announce(f"Shutting down broker {broker_id}")
    context.add_shutting_down_broker(broker_id)
    led: list[PartitionKey] = []
    followed: list[PartitionKey] = []
    async for replicas in slices(await in_slices(context.replicas_on_brokers([broker_id]))):
        for partition, _ in replicas:
            state = context.partition_leadership_info(partition)
            has_others = len(context.partition_replica_assignment(partition)) > 1
            if state is None or not has_others or parts.deletions.is_topic_queued_up_for_deletion(partition[0]):
                continue
            (led if state.leader == broker_id else followed).append(partition)
    await parts.partitions.handle_state_changes(led, PartitionState.ONLINE, ElectionStrategy.CONTROLLED_SHUTDOWN)
    parts.batch.new_batch()
    async for piece in slices(followed):
        for partition in piece:
            parts.batch.add_stop_replica_request_for_brokers((broker_id,), partition, delete_partition=False)
    await parts.batch.send_requests_to_brokers(context.epoch)
    await parts.replicas.handle_state_changes([(p, broker_id) for p in followed], ReplicaState.OFFLINE)
    return context.partition_leaders_on_broker(broker_id)
