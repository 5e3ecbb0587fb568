"""The states of replicas (Kafka's `ZkReplicaStateMachine`).

| to                  | from                       | what is done                                                     |
|---------------------|----------------------------|------------------------------------------------------------------|
| NEW                 | NON_EXISTENT               | the replica gets LeaderAndIsr (new) if the partition has         |
|                     |                            | leadership info; it must not be the leader itself                |
| ONLINE              | NEW                        | it joins the assignment if it is not in there                    |
| ONLINE              | ONLINE, OFFLINE,           | it gets LeaderAndIsr                                             |
|                     | DELETION_INELIGIBLE        |                                                                  |
| OFFLINE             | NEW, ONLINE, OFFLINE,      | it gets StopReplica; it leaves the ISR in ZooKeeper (the last    |
|                     | DELETION_INELIGIBLE        | member stays), and if it led, the partition has no leader; the   |
|                     |                            | others get LeaderAndIsr                                          |
| DELETION_STARTED    | OFFLINE                    | it gets StopReplica with deletion                                |
| DELETION_SUCCESSFUL | DELETION_STARTED           | nothing else                                                     |
| DELETION_INELIGIBLE | OFFLINE, DELETION_STARTED  | nothing else                                                     |
| NON_EXISTENT        | DELETION_SUCCESSFUL        | it leaves the assignment in the context                          |

Whenever a broker gets LeaderAndIsr, all get UpdateMetadata.

What must stay true: as in partition_state_machine.py. Besides:
- A leadership that this controller has read counts as its own from then on.
- An online replica becomes OFFLINE only with a new leader epoch, whether or not it was in the ISR: an earlier proposal
  of its leader to add it to the ISR must not be accepted when it is back, perhaps with fewer records. (Kafka 2.8.2
  accepts it; KIP-903.) A new controller does the same with all replicas that it finds offline.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from klamm.base.slices import CHEAP_SLICE, for_slices, slices
from klamm.config.broker import BrokerConfig
from klamm.config.versions import ApiVersion
from klamm.controller.bounces import PartitionStateWriter
from klamm.controller.channels.request_batch import ControllerBrokerRequestBatch
from klamm.controller.context import ControllerContext, PartitionAndReplica
from klamm.controller.state_change_log import StateChangeLog
from klamm.controller.states import (
    VALID_PREVIOUS_REPLICA_STATES,
    OnIllegalTransition,
    ReplicaState,
    legal_transitions,
    log_illegal_transition,
)
from klamm.controller.turns import LoopTurns
from klamm.protocol.vocabulary import NO_LEADER, PartitionKey
from klamm.znodes.store import KafkaZooKeeper
from klamm.znodes.topics import LeaderAndIsr
from klamm.zookeeper.keeper_exceptions import BadVersion, ZooKeeperError

logger = logging.getLogger(__name__)

# The states in which a leader may propose a replica for the ISR.
_USABLE = (ReplicaState.NEW, ReplicaState.ONLINE)


class ReplicaStateMachine:
    """See the module. `zookeeper` gives the store of the current session."""

    def __init__(
        self,
        config: BrokerConfig,
        context: ControllerContext,
        zookeeper: Callable[[], KafkaZooKeeper],
        state_writer: PartitionStateWriter,
        request_batch: ControllerBrokerRequestBatch,
        state_change_log: StateChangeLog,
        on_illegal_transition: OnIllegalTransition = log_illegal_transition,
    ) -> None:
        # If so, the context may have an older ISR than ZooKeeper.
        self._leaders_write_isr = config.inter_broker_protocol_version < ApiVersion.V2_7_IV2
        self._context = context
        self._zookeeper = zookeeper
        self._state_writer = state_writer
        self._request_batch = request_batch
        self._state_change_log = state_change_log
        self._on_illegal_transition = on_illegal_transition
        self._failures: list[str] = []
        self._turns = LoopTurns()

    async def startup(self) -> None:
        """Gives every replica its state after an election of the controller, and tells the brokers.

        A replica that is not online counts as ineligible for deletion at first: its topic may be about to be deleted.
        """
        context = self._context
        offline: dict[int, list[PartitionKey]] = {}
        self._request_batch.new_batch()
        async for piece in slices(context.all_partitions()):
            usable: dict[int, list[PartitionKey]] = {}
            others: dict[int, list[PartitionKey]] = {}
            for partition in piece:
                brokers = context.online_brokers(partition)
                replicas = context.partition_replica_assignment(partition)
                for broker_id in replicas:
                    (usable if broker_id in brokers else others).setdefault(broker_id, []).append(partition)
                leadership = context.partition_leadership_info(partition)
                online = [broker_id for broker_id in replicas if broker_id in brokers]
                if leadership is not None and online and not context.is_partition_to_be_deleted(partition):
                    self._send_leadership(online, partition, leadership, is_new=False)
            for broker_id, partitions in usable.items():
                context.put_replica_states(broker_id, partitions, ReplicaState.ONLINE)
                self._changed(broker_id, partitions, ReplicaState.ONLINE)
            for broker_id, partitions in others.items():
                context.put_replica_states(broker_id, partitions, ReplicaState.DELETION_INELIGIBLE)
                offline.setdefault(broker_id, []).extend(partitions)
        await self._request_batch.send_requests_to_brokers(context.epoch)
        await self._handle_state_changes(offline, ReplicaState.OFFLINE)

    async def handle_state_changes(
        self, replicas: Iterable[PartitionAndReplica], target: ReplicaState, fenced: Collection[PartitionKey] = ()
    ) -> None:
        """Changes the states and sends the requests that follow from it, broker after broker.

        `fenced` are partitions that got a new leader epoch after their replicas went offline.
        """
        groups: dict[int, dict[PartitionKey, None]] = {}
        async for piece in slices(replicas, CHEAP_SLICE):
            for partition, broker_id in piece:
                groups.setdefault(broker_id, {})[partition] = None
        await self._handle_state_changes({key: list(partitions) for key, partitions in groups.items()}, target, fenced)

    async def _handle_state_changes(
        self,
        groups: Mapping[int, Sequence[PartitionKey]],
        target: ReplicaState,
        fenced: Collection[PartitionKey] = (),
    ) -> None:
        if not groups:
            return
        self._request_batch.new_batch()
        self._failures = []
        for broker_id, partitions in groups.items():
            if target is ReplicaState.OFFLINE:
                await for_slices(partitions, partial(self._take_offline, broker_id, fenced))
                continue
            async for piece in slices(partitions):
                legal = self._legal(broker_id, piece, target)
                done = [partition for partition in legal if self._prepare(broker_id, partition, target)]
                self._changed(broker_id, done, target)
        if self._failures:
            # If this controller was replaced without noticing it, its successor's writes look like failures.
            await self._zookeeper().check_controller_epoch(self._context.epoch_zk_version)
            logger.error(
                "%d replicas could not become %s, the first is %s", len(self._failures), target.name, self._failures[0]
            )
        await self._request_batch.send_requests_to_brokers(self._context.epoch)

    def _legal(self, broker_id: int, partitions: Sequence[PartitionKey], target: ReplicaState) -> list[PartitionKey]:
        def refuse(partition: PartitionKey, state: ReplicaState, why: str) -> None:
            self._record_failure(broker_id, partition, state, target, why)

        return legal_transitions(
            partitions,
            self._context.replica_states(broker_id),
            target,
            VALID_PREVIOUS_REPLICA_STATES,
            self._on_illegal_transition,
            f"on broker {broker_id}, the replicas of",
            refuse,
        )

    def _changed(self, broker_id: int, partitions: Sequence[PartitionKey], target: ReplicaState) -> None:
        context = self._context
        epoch, record, leadership = context.epoch, self._state_change_log.record, context.partition_leadership_info
        before = context.replica_states(broker_id)
        for partition in partitions:
            state = before.get(partition, ReplicaState.NON_EXISTENT)
            record(epoch, partition, broker_id, state, target, leadership(partition))
        context.put_replica_states(broker_id, partitions, target)

    def _fail(self, broker_id: int, partition: PartitionKey, target: ReplicaState, why: str) -> None:
        topic, number = partition
        state = self._context.replica_state((partition, broker_id))
        self._failures.append(f"replica {broker_id} of {topic}-{number} ({state.name}): {why}")
        self._record_failure(broker_id, partition, state, target, why)

    def _record_failure(
        self, broker_id: int, partition: PartitionKey, state: ReplicaState, target: ReplicaState, why: str
    ) -> None:
        leadership = self._context.partition_leadership_info(partition)
        self._state_change_log.record(
            self._context.epoch, partition, broker_id, state, target, leadership, why, failed=True
        )

    # -- changes of the context and of the requests only ------------------------------------------------------------

    def _prepare(self, broker_id: int, partition: PartitionKey, target: ReplicaState) -> bool:
        """Makes all changes of a transition except the state itself. Returns False if the replica must keep its
        state."""
        leadership = self._context.partition_leadership_info(partition)
        if target is ReplicaState.NEW and leadership is not None:
            if leadership.leader == broker_id:
                self._fail(broker_id, partition, target, "it is the leader already")
                return False
            self._send_leadership((broker_id,), partition, leadership, is_new=True)
        elif target is ReplicaState.ONLINE:
            if self._context.replica_state((partition, broker_id)) is ReplicaState.NEW:
                self._join_assignment(broker_id, partition)
            elif leadership is not None and not self._context.is_partition_to_be_deleted(partition):
                # No broker may start this replica again (KAFKA-13342).
                self._send_leadership((broker_id,), partition, leadership, is_new=False)
        elif target is ReplicaState.DELETION_STARTED:
            self._request_batch.add_stop_replica_request_for_brokers((broker_id,), partition, delete_partition=True)
        elif target is ReplicaState.NON_EXISTENT:
            assignment = self._context.partition_full_replica_assignment(partition).remove_replica(broker_id)
            self._context.update_partition_full_replica_assignment(partition, assignment)
        return True

    def _send_leadership(
        self, broker_ids: Iterable[int], partition: PartitionKey, leadership: LeaderAndIsr, *, is_new: bool
    ) -> None:
        assignment = self._context.partition_full_replica_assignment(partition)
        self._request_batch.add_leader_and_isr_request_for_brokers(
            broker_ids, partition, leadership, assignment, is_new
        )

    def _join_assignment(self, broker_id: int, partition: PartitionKey) -> None:
        assignment = self._context.partition_full_replica_assignment(partition)
        if broker_id not in assignment.replicas:
            logger.error("replica %d of %s was not part of its assignment %s", broker_id, partition, assignment)
            joined = assignment._replace(replicas=(*assignment.replicas, broker_id))
            self._context.update_partition_full_replica_assignment(partition, joined)

    # -- removal from the ISR ---------------------------------------------------------------------------------------

    async def _take_offline(
        self, broker_id: int, fenced: Collection[PartitionKey], partitions: Sequence[PartitionKey]
    ) -> None:
        context = self._context
        before = context.replica_states(broker_id)
        to_fence = {
            key
            for key in partitions
            if key not in fenced and (before.get(key) in _USABLE or self._was_found_offline(key, before.get(key)))
        }
        leaderships: dict[PartitionKey, LeaderAndIsr] = {}
        never_led = []
        to_read = []
        for partition in self._legal(broker_id, partitions, ReplicaState.OFFLINE):
            # Added before the removal from the ISR: the request has the leader epoch that the broker knows.
            self._request_batch.add_stop_replica_request_for_brokers((broker_id,), partition, delete_partition=False)
            leadership = context.partition_leadership_info(partition)
            if leadership is None:
                never_led.append(partition)
            elif self._leaders_write_isr and broker_id not in leadership.isr and partition not in to_fence:
                to_read.append(partition)
            else:
                leaderships[partition] = leadership
        if to_read:
            leaderships.update(await self._read(broker_id, to_read))
        removed = await self._remove_from_isr(broker_id, leaderships, to_fence)
        for partition, leadership in removed.items():
            if not context.is_partition_to_be_deleted(partition):
                others = [key for key in context.partition_replica_assignment(partition) if key != broker_id]
                self._send_leadership(others, partition, leadership, is_new=False)
        if never_led:
            self._request_batch.add_update_metadata_request_for_brokers(
                context.live_or_shutting_down_broker_ids, never_led
            )
        self._changed(broker_id, [*removed, *never_led], ReplicaState.OFFLINE)

    def _was_found_offline(self, partition: PartitionKey, state: ReplicaState | None) -> bool:
        """Whether the replica was offline when this controller was elected: it may not be fenced yet."""
        is_ineligible = state is ReplicaState.DELETION_INELIGIBLE
        return is_ineligible and not self._context.is_partition_to_be_deleted(partition)

    async def _remove_from_isr(
        self, broker_id: int, leaderships: Mapping[PartitionKey, LeaderAndIsr], to_fence: Collection[PartitionKey]
    ) -> dict[PartitionKey, LeaderAndIsr]:
        """Returns the leaderships without the broker, as they are in ZooKeeper and in the context now. Those `to_fence`
        get a new leader epoch in any case.

        Starts from the given leaderships, and reads those again that were out of date.
        """
        context = self._context
        finished: dict[PartitionKey, LeaderAndIsr] = {}
        while leaderships:
            updates = {}
            for partition, state in leaderships.items():
                if state.controller_epoch > context.epoch:
                    why = (
                        f"its state was written by a controller of epoch {state.controller_epoch}, not {context.epoch}"
                    )
                    self._fail(broker_id, partition, ReplicaState.OFFLINE, why)
                elif partition in to_fence or _can_leave(state, broker_id):
                    updates[partition] = _without(state, broker_id, context.epoch)
                elif state.controller_epoch == context.epoch:
                    finished[partition] = state
                else:
                    finished[partition] = LeaderAndIsr(
                        state.leader, state.leader_epoch, state.isr, context.epoch, state.zk_version
                    )
            changed = await self._write(broker_id, updates, finished) if updates else []
            leaderships = await self._read(broker_id, changed) if changed else {}
        for partition, state in finished.items():
            context.put_partition_leadership_info(partition, state)
        return finished

    async def _write(
        self,
        broker_id: int,
        updates: Mapping[PartitionKey, LeaderAndIsr],
        finished: dict[PartitionKey, LeaderAndIsr],
    ) -> list[PartitionKey]:
        """Adds the written leaderships to `finished`. Returns the partitions whose state has changed meanwhile."""
        written = await self._state_writer.write(updates)
        await self._turns.wait()
        changed = []
        for partition, result in written.items():
            if isinstance(result, BadVersion):
                changed.append(partition)
            elif isinstance(result, ZooKeeperError):
                self._fail(broker_id, partition, ReplicaState.OFFLINE, str(result))
            else:
                new = updates[partition]
                finished[partition] = LeaderAndIsr(new.leader, new.leader_epoch, new.isr, new.controller_epoch, result)
        return changed

    async def _read(self, broker_id: int, partitions: Sequence[PartitionKey]) -> dict[PartitionKey, LeaderAndIsr]:
        found = await self._zookeeper().partition_states(partitions)
        states = {}
        for partition in partitions:
            state = found.get(partition)
            if isinstance(state, LeaderAndIsr):
                states[partition] = state
            else:
                why = str(state or "it has no state in ZooKeeper")
                self._fail(broker_id, partition, ReplicaState.OFFLINE, why)
        return states


def _can_leave(state: LeaderAndIsr, broker_id: int) -> bool:
    """Whether removing the broker changes the state."""
    return broker_id in state.isr and (len(state.isr) > 1 or state.leader == broker_id)


def _without(state: LeaderAndIsr, broker_id: int, controller_epoch: int) -> LeaderAndIsr:
    """The state without the broker. The last member stays in the ISR: no other replica has all acknowledged records."""
    isr = state.isr if len(state.isr) == 1 else tuple([member for member in state.isr if member != broker_id])
    leader = NO_LEADER if state.leader == broker_id else state.leader
    return LeaderAndIsr(leader, state.leader_epoch + 1, isr, controller_epoch, state.zk_version)
