"""The states of replicas (Kafka's `ZkReplicaStateMachine`).

| to                  | from                       | what is done                                                     |
|---------------------|----------------------------|------------------------------------------------------------------|
| NEW                 | NON_EXISTENT               | the replica gets LeaderAndIsr (new) if the partition has         |
|                     |                            | leadership info; it must not be the leader itself                |
| ONLINE              | NEW                        | it joins the assignment if it is not in there                    |
| ONLINE              | ONLINE, OFFLINE,           | it gets LeaderAndIsr                                             |
|                     | DELETION_INELIGIBLE        |                                                                  |
| OFFLINE             | NEW, ONLINE, OFFLINE,      | it gets StopReplica; it leaves the ISR in ZooKeeper (the last    |
|                     | DELETION_INELIGIBLE        | member stays), and if it led, nobody does; the others get        |
|                     |                            | LeaderAndIsr                                                     |
| DELETION_STARTED    | OFFLINE                    | it gets StopReplica with deletion                                |
| DELETION_SUCCESSFUL | DELETION_STARTED           | nothing else                                                     |
| DELETION_INELIGIBLE | OFFLINE, DELETION_STARTED  | nothing else                                                     |
| NON_EXISTENT        | DELETION_SUCCESSFUL        | it leaves the assignment in the context                          |

Whenever a broker gets LeaderAndIsr, all get UpdateMetadata.

What must stay true: as in partition_state_machine.py. A leadership that was only looked at counts as this controller's
from then on.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from klamm.controller.context import ControllerContext, PartitionAndReplica
from klamm.controller.request_batch import ControllerBrokerRequestBatch
from klamm.controller.slices import for_slices, slices
from klamm.controller.state_change_log import StateChangeLog
from klamm.controller.states import (
    VALID_PREVIOUS_REPLICA_STATES,
    OnIllegalTransition,
    ReplicaState,
    legal_transitions,
    log_illegal_transition,
)
from klamm.znodes.store import KafkaZooKeeper
from klamm.znodes.topics import NO_LEADER, LeaderAndIsr, TopicPartition
from klamm.zookeeper.errors import BadVersion, ZooKeeperError

logger = logging.getLogger(__name__)


class ReplicaStateMachine:
    """See the module. `zookeeper` gives the store of the current session."""

    def __init__(
        self,
        context: ControllerContext,
        zookeeper: Callable[[], KafkaZooKeeper],
        request_batch: ControllerBrokerRequestBatch,
        state_change_log: StateChangeLog,
        on_illegal_transition: OnIllegalTransition = log_illegal_transition,
    ) -> None:
        self._context = context
        self._zookeeper = zookeeper
        self._request_batch = request_batch
        self._state_change_log = state_change_log
        self._on_illegal_transition = on_illegal_transition
        self._failures: list[str] = []

    async def startup(self) -> None:
        """Gives every replica its state after an election of the controller, and tells the brokers.

        One that is not online counts as ineligible for deletion at first: its topic may be about to be deleted.
        """
        context = self._context
        online: dict[int, list[TopicPartition]] = {}
        offline: dict[int, list[TopicPartition]] = {}
        async for piece in slices(context.all_partitions()):
            for partition in piece:
                for broker_id in context.partition_replica_assignment(partition):
                    if context.is_replica_online(broker_id, partition):
                        context.put_replica_state((partition, broker_id), ReplicaState.ONLINE)
                        online.setdefault(broker_id, []).append(partition)
                    else:
                        context.put_replica_state((partition, broker_id), ReplicaState.DELETION_INELIGIBLE)
                        offline.setdefault(broker_id, []).append(partition)
        await self._handle_state_changes(online, ReplicaState.ONLINE)
        await self._handle_state_changes(offline, ReplicaState.OFFLINE)

    async def handle_state_changes(self, replicas: Iterable[PartitionAndReplica], target: ReplicaState) -> None:
        """Changes the states and sends the requests that follow from it, broker after broker."""
        groups: dict[int, dict[TopicPartition, None]] = {}
        for partition, broker_id in replicas:
            groups.setdefault(broker_id, {})[partition] = None
        await self._handle_state_changes({key: list(partitions) for key, partitions in groups.items()}, target)

    async def _handle_state_changes(self, groups: Mapping[int, Sequence[TopicPartition]], target: ReplicaState) -> None:
        if not groups:
            return
        self._request_batch.new_batch()
        self._failures = []
        for broker_id, partitions in groups.items():
            if target is ReplicaState.OFFLINE:
                await for_slices(partitions, partial(self._take_offline, broker_id))
                continue
            async for piece in slices(partitions):
                for replica in self._legal(broker_id, piece, target):
                    self._change(replica, target)
        if self._failures:
            logger.error(
                "%d replicas could not become %s, the first is %s", len(self._failures), target.name, self._failures[0]
            )
        self._request_batch.send_requests_to_brokers(self._context.epoch)

    def _legal(
        self, broker_id: int, partitions: Iterable[TopicPartition], target: ReplicaState
    ) -> list[PartitionAndReplica]:
        return legal_transitions(
            [(partition, broker_id) for partition in partitions],
            self._context.replica_state,
            target,
            VALID_PREVIOUS_REPLICA_STATES,
            self._on_illegal_transition,
        )

    def _changed(
        self, replica: PartitionAndReplica, target: ReplicaState, leadership: LeaderAndIsr | None = None
    ) -> None:
        context = self._context
        before = context.replica_state(replica)
        context.put_replica_state(replica, target)
        self._state_change_log.record(context.epoch, *replica, before, target, leadership)

    def _fail(self, replica: PartitionAndReplica, target: ReplicaState, why: str) -> None:
        (topic, number), broker_id = replica
        state = self._context.replica_state(replica)
        self._failures.append(f"replica {broker_id} of {topic}-{number} ({state.name}): {why}")
        self._state_change_log.record(self._context.epoch, *replica, state, target, None, why)

    # -- changes of the context and of the requests only ------------------------------------------------------------

    def _change(self, replica: PartitionAndReplica, target: ReplicaState) -> None:
        partition, broker_id = replica
        leadership = self._context.partition_leadership_info(partition)
        if target is ReplicaState.NEW and leadership is not None:
            if leadership.leader == broker_id:
                self._fail(replica, target, "it is the leader already")
                return
            self._send_leadership((broker_id,), partition, leadership, is_new=True)
        elif target is ReplicaState.ONLINE:
            if self._context.replica_state(replica) is ReplicaState.NEW:
                self._join_assignment(replica)
            elif leadership is not None:
                self._send_leadership((broker_id,), partition, leadership, is_new=False)
        elif target is ReplicaState.DELETION_STARTED:
            self._request_batch.add_stop_replica_request_for_brokers((broker_id,), partition, delete_partition=True)
        elif target is ReplicaState.NON_EXISTENT:
            assignment = self._context.partition_full_replica_assignment(partition).remove_replica(broker_id)
            self._context.update_partition_full_replica_assignment(partition, assignment)
        self._changed(replica, target)

    def _send_leadership(
        self, broker_ids: Iterable[int], partition: TopicPartition, leadership: LeaderAndIsr, *, is_new: bool
    ) -> None:
        assignment = self._context.partition_full_replica_assignment(partition)
        self._request_batch.add_leader_and_isr_request_for_brokers(
            broker_ids, partition, leadership, assignment, is_new
        )

    def _join_assignment(self, replica: PartitionAndReplica) -> None:
        partition, broker_id = replica
        assignment = self._context.partition_full_replica_assignment(partition)
        if broker_id not in assignment.replicas:
            logger.error("replica %d of %s was not part of its assignment %s", broker_id, partition, assignment)
            joined = assignment._replace(replicas=(*assignment.replicas, broker_id))
            self._context.update_partition_full_replica_assignment(partition, joined)

    # -- out of the ISR ---------------------------------------------------------------------------------------------

    async def _take_offline(self, broker_id: int, partitions: Sequence[TopicPartition]) -> None:
        context = self._context
        leaderships: dict[TopicPartition, LeaderAndIsr] = {}
        never_led = []
        for replica in self._legal(broker_id, partitions, ReplicaState.OFFLINE):
            partition = replica[0]
            # Before the removal: the leader epoch is the one that the broker knows.
            self._request_batch.add_stop_replica_request_for_brokers((broker_id,), partition, delete_partition=False)
            leadership = context.partition_leadership_info(partition)
            if leadership is None:
                never_led.append(replica)
            else:
                leaderships[partition] = leadership
        removed = await self._remove_from_isr(broker_id, leaderships)
        for partition, leadership in removed.items():
            if not context.is_topic_queued_up_for_deletion(partition[0]):
                others = [key for key in context.partition_replica_assignment(partition) if key != broker_id]
                self._send_leadership(others, partition, leadership, is_new=False)
            self._changed((partition, broker_id), ReplicaState.OFFLINE, leadership)
        for replica in never_led:
            self._request_batch.add_update_metadata_request_for_brokers(
                context.live_or_shutting_down_broker_ids, (replica[0],)
            )
            self._changed(replica, ReplicaState.OFFLINE)

    async def _remove_from_isr(
        self, broker_id: int, leaderships: Mapping[TopicPartition, LeaderAndIsr]
    ) -> dict[TopicPartition, LeaderAndIsr]:
        """Returns the leaderships without the broker, as they are in ZooKeeper and in the context now.

        Begins with what the context has, and tries again with what it reads where that was out of date.
        """
        context = self._context
        finished: dict[TopicPartition, LeaderAndIsr] = {}
        while leaderships:
            updates = {}
            for partition, state in leaderships.items():
                if state.controller_epoch > context.epoch:
                    why = (
                        f"its state was written by a controller of epoch {state.controller_epoch}, not {context.epoch}"
                    )
                    self._fail((partition, broker_id), ReplicaState.OFFLINE, why)
                elif broker_id in state.isr:
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
        updates: Mapping[TopicPartition, LeaderAndIsr],
        finished: dict[TopicPartition, LeaderAndIsr],
    ) -> list[TopicPartition]:
        """Adds what it has written to `finished`; returns the partitions whose state has changed meanwhile."""
        written = await self._zookeeper().update_partition_states(updates, self._context.epoch_zk_version)
        changed = []
        for partition, result in written.items():
            if isinstance(result, BadVersion):
                changed.append(partition)
            elif isinstance(result, ZooKeeperError):
                self._fail((partition, broker_id), ReplicaState.OFFLINE, str(result))
            else:
                new = updates[partition]
                finished[partition] = LeaderAndIsr(new.leader, new.leader_epoch, new.isr, new.controller_epoch, result)
        return changed

    async def _read(self, broker_id: int, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, LeaderAndIsr]:
        found = await self._zookeeper().partition_states(partitions)
        states = {}
        for partition in partitions:
            state = found.get(partition)
            if isinstance(state, LeaderAndIsr):
                states[partition] = state
            else:
                why = str(state or "it has no state in ZooKeeper")
                self._fail((partition, broker_id), ReplicaState.OFFLINE, why)
        return states


def _without(state: LeaderAndIsr, broker_id: int, controller_epoch: int) -> LeaderAndIsr:
    """The last member stays in the ISR: nobody else has all acknowledged records."""
    isr = state.isr if len(state.isr) == 1 else tuple([member for member in state.isr if member != broker_id])
    leader = NO_LEADER if state.leader == broker_id else state.leader
    return LeaderAndIsr(leader, state.leader_epoch + 1, isr, controller_epoch, state.zk_version)
