"""The failover: a broker becomes the controller; and its resignation.

The order of a failover, which is Kafka's (`onControllerFailover`):

| step | what                                                                                                         |
|------|--------------------------------------------------------------------------------------------------------------|
| F1   | /feature gets the status that the inter-broker protocol requires                                             |
| F2   | old notifications of failed disks and of ISR changes are deleted: F3 and F7 read or request the same         |
| F3   | brokers, topics, assignments and leaders are read, each with a watch; topics without an id get one           |
| F4   | the channels to the brokers open                                                                             |
| F5   | unfinished deletions are queued; those with offline replicas have to wait                                    |
| F6   | all brokers get the live brokers: without them they could follow no leader                                   |
| F7   | replicas that have bounced leave the ISRs (bounces.py), before anything else is written about partitions;    |
|      | replicas, then partitions, get their states; all brokers get the partitions that they lead and follow; dead  |
|      | brokers leave the ISRs; partitions without a leader get one                                                  |
| F8   | reassignments that wait in ZooKeeper begin, unfinished ones continue; then deletions continue                |
| F9   | a preferred replica election that waits in ZooKeeper is held; the timer of the automatic ones starts         |

What must stay true:
- The context is empty before F3, and nothing but the failover changes it until the end: events wait in the queue.
- Each watch is registered before its znode is read, so that no change is missed in between.
- After a resignation no request is sent, and the context is empty.
"""

import logging
from collections.abc import Callable

from klamm.config.versions import ApiVersion
from klamm.controller.bounces import Bounced
from klamm.controller.elections import FIRST_REBALANCE_DELAY_SECONDS, zk_preferred_replica_election
from klamm.controller.features import compatible_brokers
from klamm.controller.parts import Channels, ControllerParts
from klamm.controller.reassignment import initialize_partition_reassignments
from klamm.controller.topic_flows import legal_topics, load_topics
from klamm.znodes.controller_store import ControllerEpoch

_log = logging.getLogger(__name__)


async def on_controller_failover(
    parts: ControllerParts, epoch: ControllerEpoch, open_channels: Callable[[], Channels]
) -> None:
    """See the module. `epoch` is the epoch of this broker's election."""
    context, store = parts.context, parts.store
    context.epoch, context.epoch_zk_version = epoch
    # F1
    await store.set_up_features(parts.config.current.inter_broker_protocol_version >= ApiVersion.V2_7_IV0, parts.guard)
    # F2
    await store.delete_log_dir_events(await store.log_dir_events(parts.on_log_dir_events), parts.guard)
    await store.delete_isr_changes(await store.isr_changes(parts.on_isr_changes), parts.guard)
    bounced = await _initialize_context(parts)
    # F4
    parts.channels = open_channels()
    for broker in context.live_or_shutting_down_brokers.values():
        parts.channels.add_broker(broker.registration)
    # F5
    await _queue_topic_deletions(parts)
    # F6
    await parts.send_update_metadata(context.live_or_shutting_down_broker_ids, ())
    # F7
    await parts.state_writer.decide(bounced)
    await parts.replicas.startup()
    await parts.partitions.startup()
    parts.announce(f"Ready to serve as the new controller with epoch {context.epoch}")
    # F8
    await initialize_partition_reassignments(parts)
    await parts.deletions.try_topic_deletion()
    # F9
    await zk_preferred_replica_election(parts)
    parts.schedule_leader_rebalance(FIRST_REBALANCE_DELAY_SECONDS)


async def _initialize_context(parts: ControllerParts) -> Bounced:
    # F3
    context, store = parts.context, parts.store
    context.set_live_brokers(await compatible_brokers(parts))
    parts.announce_broker_epochs("Initialized")
    partitions = await load_topics(parts, legal_topics(await store.topic_names(parts.on_topics)))
    bounced = await parts.state_writer.take_up(partitions)
    parts.announce(f"Currently active brokers in the cluster: Set({', '.join(map(str, context.live_broker_ids))})")
    shutting_down = ", ".join(map(str, sorted(context.shutting_down_broker_ids)))
    parts.announce(f"Currently shutting brokers in the cluster: Set({shutting_down})")
    # Kafka names all topics, in one line.
    parts.announce(
        f"Current list of topics in the cluster: {len(context.all_topics)} topics, {len(partitions)} partitions"
    )
    return bounced


async def _queue_topic_deletions(parts: ControllerParts) -> None:
    context = parts.context
    marked = await parts.store.topic_deletions(parts.on_topic_deletions)
    if not context.all_topics.issuperset(marked):
        # These topics may have been created since the topics were read: they are checked at the end.
        parts.on_topic_deletions()
    topics = [topic for topic in marked if topic in context.all_topics]
    waiting = {topic for topic, _ in context.partitions_being_reassigned}
    for topic in topics:
        replicas = context.replicas_for_topic(topic)
        if not all(context.is_replica_online(broker_id, partition) for partition, broker_id in replicas):
            waiting.add(topic)
    await parts.deletions.init(topics, waiting)


async def on_controller_resignation(parts: ControllerParts) -> None:
    """Empties the context. Watches that are still armed put events that have no effect."""
    parts.cancel_leader_rebalance()
    parts.batch.clear()
    parts.context.reset()
    if parts.channels is not None:
        await parts.channels.shutdown()
        parts.channels = None
