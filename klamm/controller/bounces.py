"""Brokers that came back before the controller decided about their partitions: a bounce.

A broker that restarts may have lost records that were not synced. A controller that sees the broker die removes it from
the ISRs. But the controller may have died at the same time, or may have been that broker. The registration shows the
bounce nevertheless: if a broker's znode was created (its czxid is the broker epoch) after a partition's state was
written (mzxid), the broker came back after the last decision about that partition. (Kafka 2.8.2 finds such a broker
alive, as leader or in the ISR, and lets it continue with the shorter log; KIP-903 names the race.)

The decision about a partition with bounced replicas (`leader_election.bounced_replica_leader_election`):

| members of the ISR                       | the new ISR                 | the leader                                  |
|------------------------------------------|-----------------------------|---------------------------------------------|
| some are online and have not bounced     | only these                  | unchanged if it is one of these, else the   |
|                                          |                             | first of them                               |
| else: some have bounced                  | only one of these: the      | that one                                    |
|                                          | leader, else the first      |                                             |
| no live broker                           | unchanged                   | unchanged                                   |

The leader epoch rises in any case: a bounced leader must not write other records under an epoch that followers know,
and a proposal to add a replica to the ISR, made before the replica died, must not be accepted after it is back.

What must stay true:
- This is the first write to a partition's state after a bounce. Any other write would be younger than the registration
  and hide the bounce from the next controller. So one write decides about all bounced replicas of a partition. A
  leader that writes its ISR itself (before 2.7-IV2) therefore leaves out bounced followers (`zk_isr.py`), and a change
  of brokers goes ahead of other waiting events (`event_manager.py`). One gap is left: the event in progress may still
  write the state, and the controller may die before the next event.
- Every partition with a bounced replica is written, so that its state is younger than the registration. The next
  controller finds no bounce: no number of failovers removes a replica from an ISR twice.
"""

import logging
from collections.abc import Collection, Mapping, Sequence

from klamm.base.slices import for_slices
from klamm.controller.context import ControllerContext
from klamm.controller.leader_election import bounced_replica_leader_election
from klamm.controller.parts import ControllerParts
from klamm.controller.state_change_log import NO_REPLICA
from klamm.controller.states import PartitionState
from klamm.protocol.vocabulary import NO_LEADER, PartitionKey
from klamm.znodes.fields import ZnodeError
from klamm.znodes.store import EpochsUsedUp
from klamm.znodes.topics import LeaderAndIsr
from klamm.zookeeper.keeper_exceptions import BadVersion, NoNode, ZooKeeperError

Bounced = Mapping[PartitionKey, Collection[int]]
"""The brokers that have bounced, by the partitions that may have replicas there."""

_log = logging.getLogger(__name__)


async def take_up_states(parts: ControllerParts, partitions: Sequence[PartitionKey]) -> Bounced:
    """Reads the states of partitions into the context. Returns the brokers that have bounced since the last write."""
    context, store = parts.context, parts.store
    epochs = {broker_id: broker.epoch for broker_id, broker in context.live_or_shutting_down_brokers.items()}
    newest = max(epochs.values(), default=0)
    bounced: dict[PartitionKey, Collection[int]] = {}

    async def take_up(piece: Sequence[PartitionKey]) -> None:
        for partition, (state, zxid) in (await store.partition_states_and_zxids(piece)).items():
            if isinstance(state, ZnodeError):
                # The partition stays without a leader: treating the state as absent would restart its epochs.
                _log.error("%s-%d is left out: %s", *partition, state)
                continue
            context.put_partition_leadership_info(partition, state)
            if newest > zxid:
                members = dict.fromkeys((*context.partition_replica_assignment(partition), *state.isr))
                if back := [member for member in members if epochs.get(member, 0) > zxid]:
                    bounced[partition] = back

    await for_slices(partitions, take_up)
    return bounced


async def decide_about_bounced_replicas(parts: ControllerParts, bounced: Bounced) -> dict[PartitionKey, LeaderAndIsr]:
    """See the module. Returns the new states, which are also in the context; no request is sent yet."""
    context = parts.context
    wanted = [key for key in bounced if not context.is_partition_to_be_deleted(key)]
    decided: dict[PartitionKey, LeaderAndIsr] = {}

    async def decide(piece: Sequence[PartitionKey]) -> None:
        states = {key: state for key in piece if (state := context.partition_leadership_info(key)) is not None}
        while states:
            updates = {key: _decision(context, key, state, bounced[key]) for key, state in states.items()}
            changed = await _write(parts, updates, decided)
            found = await parts.store.partition_states(changed) if changed else {}
            states = {key: state for key, state in found.items() if isinstance(state, LeaderAndIsr)}

    await for_slices(wanted, decide)
    if decided:
        brokers = sorted({broker_id for key in decided for broker_id in bounced[key]})
        parts.announce(f"Brokers {brokers} came back after the states of {len(decided)} partitions were written")
    return decided


def _decision(
    context: ControllerContext, partition: PartitionKey, state: LeaderAndIsr, bounced: Collection[int]
) -> LeaderAndIsr:
    replicas = context.partition_replica_assignment(partition)
    online = context.online_brokers(partition)
    leader, isr = bounced_replica_leader_election(replicas, state.leader, state.isr, online, bounced)
    return LeaderAndIsr(leader, state.leader_epoch + 1, isr, context.epoch, state.zk_version)


async def _write(
    parts: ControllerParts,
    updates: Mapping[PartitionKey, LeaderAndIsr],
    decided: dict[PartitionKey, LeaderAndIsr],
) -> list[PartitionKey]:
    """Adds the written states to `decided`. Returns the partitions whose state has changed meanwhile."""
    context = parts.context
    changed = []
    for partition, result in (await parts.store.update_partition_states(updates, parts.guard)).items():
        if isinstance(result, BadVersion):
            changed.append(partition)
        elif isinstance(result, NoNode | EpochsUsedUp):
            _log.warning("nothing is decided about the bounced replicas of %s-%d: %s", *partition, result)
        elif isinstance(result, ZooKeeperError):
            raise result
        else:
            new = updates[partition]
            state = LeaderAndIsr(new.leader, new.leader_epoch, new.isr, new.controller_epoch, result)
            context.put_partition_leadership_info(partition, state)
            decided[partition] = state
            now = PartitionState.OFFLINE if state.leader == NO_LEADER else PartitionState.ONLINE
            parts.state_changes.record(context.epoch, partition, NO_REPLICA, now, now, state, "replicas have bounced")
    return changed
