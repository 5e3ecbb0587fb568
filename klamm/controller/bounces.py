"""Writes partition states, and decides before about brokers that came back in the meantime: a bounce.

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
  leader that writes its ISR itself (before 2.7-IV2) therefore leaves out bounced followers (`zk_isr.py`), a change of
  brokers goes ahead of other waiting events (`event_manager.py`), and when the event in progress writes a state while a
  change waits, the registrations are read again (`PartitionStateWriter.write`). One gap is left: a broker may register
  between this read and the write, and the controller may die before the next event.
- Every partition with a bounced replica is written, so that its state is younger than the registration. The next
  controller finds no bounce: no number of failovers removes a replica from an ISR twice.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from klamm.base.slices import for_slices
from klamm.controller.context import ControllerContext
from klamm.controller.leader_election import bounced_replica_leader_election
from klamm.controller.state_change_log import NO_REPLICA, StateChangeLog
from klamm.controller.states import PartitionState
from klamm.protocol.vocabulary import NO_LEADER, PartitionKey
from klamm.znodes.controller_store import ControllerStore
from klamm.znodes.fields import ZnodeError
from klamm.znodes.store import EpochsUsedUp
from klamm.znodes.topics import LeaderAndIsr, partition_state_path
from klamm.zookeeper.keeper_exceptions import BadVersion, ConnectionLoss, NoNode, ZooKeeperError

Bounced = Mapping[PartitionKey, Collection[int]]
"""The brokers that have bounced, by the partitions that may have replicas there."""

_log = logging.getLogger(__name__)


class PartitionStateWriter:
    """See the module. `zookeeper` returns the store of the current session; `announce` writes to controller.log."""

    def __init__(
        self,
        context: ControllerContext,
        zookeeper: Callable[[], ControllerStore],
        state_changes: StateChangeLog,
        announce: Callable[[str], None],
    ) -> None:
        self.brokers_may_have_changed = False
        """Whether ZooKeeper may have newer registrations than the context. The watch sets it, reading them ends it."""
        self.unannounced: set[PartitionKey] = set()
        """Partitions that `write` has decided about. The change of brokers that waits has to tell the brokers."""
        self._context = context
        self._zookeeper = zookeeper
        self._state_changes = state_changes
        self._announce = announce

    async def write(self, states: Mapping[PartitionKey, LeaderAndIsr]) -> dict[PartitionKey, "int | ZooKeeperError"]:
        """Like `ControllerStore.update_partition_states`, under this controller's epoch. If replicas have bounced
        unseen, it writes the decision about them instead, and the result is BadVersion."""
        results: dict[PartitionKey, int | ZooKeeperError] = {}
        while states:
            decided = await self.decide(dict.fromkeys(states, ())) if self.brokers_may_have_changed else {}
            self.unannounced |= decided.keys()
            results |= {key: BadVersion(partition_state_path(*key), "a bounced replica came first") for key in decided}
            written = await self._update({key: state for key, state in states.items() if key not in decided})
            results |= {key: result for key, result in written.items() if not isinstance(result, ConnectionLoss)}
            states = {key: state for key, state in states.items() if key not in results}
        return results

    async def take_up(self, partitions: Sequence[PartitionKey]) -> Bounced:
        """Reads the states of partitions into the context. Returns the brokers that have bounced since the last
        write."""
        context = self._context
        epochs = {broker_id: broker.epoch for broker_id, broker in context.live_or_shutting_down_brokers.items()}
        return await self._bounced(partitions, epochs, context.put_partition_leadership_info)

    async def decide(self, bounced: Bounced) -> dict[PartitionKey, LeaderAndIsr]:
        """Writes the decisions of the module's table about these brokers, and about those that have bounced unseen.
        Returns the new states, which are also in the context; no request is sent yet."""
        context = self._context
        wanted = [key for key in bounced if not context.is_partition_to_be_deleted(key)]
        decided: dict[PartitionKey, LeaderAndIsr] = {}
        brokers: set[int] = set()

        async def decide(piece: Sequence[PartitionKey]) -> None:
            states = {key: state for key in piece if (state := context.partition_leadership_info(key)) is not None}
            while states:
                unseen = await self._unseen_bounces(states)
                back = {key: ids for key in states if (ids := {*bounced[key], *unseen.get(key, ())})}
                updates = {key: self._decision(key, states[key], ids) for key, ids in back.items()}
                brokers.update(*back.values())
                changed = await self._write_decisions(updates, decided)
                found = await self._zookeeper().partition_states(changed) if changed else {}
                states = {key: state for key, state in found.items() if isinstance(state, LeaderAndIsr)}

        await for_slices(wanted, decide)
        if decided:
            self._announce(
                f"Brokers {sorted(brokers)} came back after the states of {len(decided)} partitions were written"
            )
        return decided

    async def _unseen_bounces(self, partitions: Collection[PartitionKey]) -> Bounced:
        """The brokers that have bounced since the last write, if the context may not know it."""
        if not self.brokers_may_have_changed:
            return {}
        live = await self._zookeeper().live_brokers()
        epochs = {broker_id: broker.epoch for broker_id, broker in live.items()}
        return await self._bounced(list(partitions), epochs)

    async def _bounced(
        self,
        partitions: Sequence[PartitionKey],
        epochs: Mapping[int, int],
        take_up: Callable[[PartitionKey, LeaderAndIsr], None] | None = None,
    ) -> Bounced:
        """Compares the states in ZooKeeper with the brokers' epochs; `take_up` gets each state."""
        newest = max(epochs.values(), default=0)
        bounced: dict[PartitionKey, Collection[int]] = {}

        async def compare(piece: Sequence[PartitionKey]) -> None:
            for partition, (state, zxid) in (await self._zookeeper().partition_states_and_zxids(piece)).items():
                if isinstance(state, ZnodeError):
                    # The partition stays without a leader: treating the state as absent would restart its epochs.
                    _log.error("%s-%d is left out: %s", *partition, state)
                    continue
                if take_up is not None:
                    take_up(partition, state)
                if newest > zxid:
                    members = dict.fromkeys((*self._context.partition_replica_assignment(partition), *state.isr))
                    if back := [member for member in members if epochs.get(member, 0) > zxid]:
                        bounced[partition] = back

        await for_slices(partitions, compare)
        return bounced

    def _decision(self, partition: PartitionKey, state: LeaderAndIsr, bounced: Collection[int]) -> LeaderAndIsr:
        replicas = self._context.partition_replica_assignment(partition)
        # A leader that wants to stop has all records, and leads until it is elected away.
        online = self._context.online_brokers(partition, include_shutting_down_brokers=True)
        leader, isr = bounced_replica_leader_election(replicas, state.leader, state.isr, online, bounced)
        return LeaderAndIsr(leader, state.leader_epoch + 1, isr, self._context.epoch, state.zk_version)

    async def _write_decisions(
        self, updates: Mapping[PartitionKey, LeaderAndIsr], decided: dict[PartitionKey, LeaderAndIsr]
    ) -> list[PartitionKey]:
        """Adds the written states to `decided`. Returns the partitions whose state must be read again."""
        context = self._context
        changed = []
        for partition, result in (await self._update(updates)).items():
            if isinstance(result, BadVersion | ConnectionLoss):
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
                why = "replicas have bounced"
                self._state_changes.record(context.epoch, partition, NO_REPLICA, now, now, state, why)
        return changed

    async def _update(self, states: Mapping[PartitionKey, LeaderAndIsr]) -> dict[PartitionKey, "int | ZooKeeperError"]:
        """A state that was not written because the connection was lost has the result ConnectionLoss."""
        return await self._zookeeper().update_partition_states(states, self._context.epoch_zk_version, resend=False)
