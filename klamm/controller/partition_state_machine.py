"""The states of partitions, and the elections that go with them (Kafka's `ZkPartitionStateMachine`).

| to           | from                 | what is done                                                                   |
|--------------|----------------------|--------------------------------------------------------------------------------|
| NEW          | NON_EXISTENT         | nothing else                                                                   |
| ONLINE       | NEW                  | its state is created in ZooKeeper: all online replicas are the ISR, the first  |
|              |                      | one leads; the ISR gets LeaderAndIsr (new), all brokers UpdateMetadata         |
| ONLINE       | ONLINE, OFFLINE      | a leader is elected (leader_election.py) and written to ZooKeeper; the         |
|              |                      | recipients get LeaderAndIsr, all brokers UpdateMetadata                        |
| OFFLINE      | NEW, ONLINE, OFFLINE | nothing else                                                                   |
| NON_EXISTENT | OFFLINE              | nothing else                                                                   |

What must stay true:
- A leader is in ZooKeeper before it is in the context, and in the context before any broker gets it.
- A write is conditional twice: on this controller's epoch, and on the version of the state that the election began
  with. The first attempt uses the state in the context; states that have changed since are read and tried again.
- A partition that cannot get a leader keeps its state; the other partitions are not affected.
- When an exception leaves a method (ControllerMoved, ZooKeeperError), some changes may be written and no broker told:
  the controller must resign, so that the next controller reads all states and sends them to all brokers.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from klamm.base.slices import for_slices, slices
from klamm.config.current import CurrentConfig
from klamm.controller.bounces import PartitionStateWriter
from klamm.controller.channels.request_batch import ControllerBrokerRequestBatch
from klamm.controller.context import ControllerContext
from klamm.controller.leader_election import (
    Election,
    ElectionStrategy,
    controlled_shutdown_partition_leader_election,
    offline_partition_leader_election,
    preferred_replica_partition_leader_election,
    reassign_partition_leader_election,
    topic_id_partition_leader_election,
)
from klamm.controller.state_change_log import NO_REPLICA, StateChangeLog
from klamm.controller.states import (
    VALID_PREVIOUS_PARTITION_STATES,
    OnIllegalTransition,
    PartitionState,
    StateChangeFailed,
    legal_transitions,
    log_illegal_transition,
)
from klamm.controller.turns import LoopTurns
from klamm.protocol.vocabulary import PartitionKey
from klamm.znodes.fields import ZnodeError
from klamm.znodes.store import KafkaZooKeeper
from klamm.znodes.topics import LeaderAndIsr
from klamm.zookeeper.keeper_exceptions import BadVersion, ZooKeeperError

logger = logging.getLogger(__name__)

UNCLEAN_LEADER_ELECTION = "unclean.leader.election.enable"

Outcomes = dict[PartitionKey, "LeaderAndIsr | StateChangeFailed"]


class PartitionStateMachine:
    """See the module. `zookeeper` gives the store of the current session."""

    def __init__(
        self,
        config: CurrentConfig,
        context: ControllerContext,
        zookeeper: Callable[[], KafkaZooKeeper],
        state_writer: PartitionStateWriter,
        request_batch: ControllerBrokerRequestBatch,
        state_change_log: StateChangeLog,
        on_illegal_transition: OnIllegalTransition = log_illegal_transition,
    ) -> None:
        self._config = config
        self._context = context
        self._zookeeper = zookeeper
        self._state_writer = state_writer
        self._request_batch = request_batch
        self._state_change_log = state_change_log
        self._on_illegal_transition = on_illegal_transition
        self._turns = LoopTurns()

    async def startup(self) -> None:
        """After an election of the controller, gives every partition its state, and a leader to those without one."""
        context = self._context
        async for piece in slices(context.all_partitions()):
            for partition in piece:
                leadership = context.partition_leadership_info(partition)
                if leadership is None:
                    context.put_partition_state(partition, PartitionState.NEW)
                elif context.is_replica_online(leadership.leader, partition):
                    context.put_partition_state(partition, PartitionState.ONLINE)
                else:
                    context.put_partition_state(partition, PartitionState.OFFLINE)
        await self.trigger_online_partition_state_change()

    async def trigger_online_partition_state_change(self, topic: str | None = None) -> None:
        """Tries to elect a leader for every partition (of one topic) without one, except those to be deleted."""
        partitions = self._context.partitions_in_states((PartitionState.NEW, PartitionState.OFFLINE), topic)
        wanted = [key for key in partitions if not self._context.is_partition_to_be_deleted(key)]
        await self.handle_state_changes(wanted, PartitionState.ONLINE, ElectionStrategy.OFFLINE)

    async def handle_state_changes(
        self, partitions: Iterable[PartitionKey], target: PartitionState, strategy: ElectionStrategy | None = None
    ) -> Outcomes:
        """Changes the states and sends the requests that follow from it.

        For target ONLINE, returns each partition's new leadership or why it got none, without the partitions in a state
        that the table forbids. `strategy` must be given for partitions that have had a leader.
        """
        items = list(dict.fromkeys(partitions))
        if not items:
            return {}
        self._request_batch.new_batch()
        outcomes: Outcomes = {}
        if target is PartitionState.ONLINE:
            for part in await for_slices(items, partial(self._bring_online, strategy)):
                outcomes.update(part)
            if any(isinstance(outcome, StateChangeFailed) for outcome in outcomes.values()):
                # If this controller was replaced without noticing it, its successor's writes look like failures.
                await self._zookeeper().check_controller_epoch(self._context.epoch_zk_version)
            _log_failures(outcomes)
        else:
            async for piece in slices(items):
                for partition in self._legal(piece, target):
                    self._change(partition, target)
        await self._request_batch.send_requests_to_brokers(self._context.epoch)
        return outcomes

    def _legal(self, partitions: Sequence[PartitionKey], target: PartitionState) -> list[PartitionKey]:
        def refuse(partition: PartitionKey, state: PartitionState, why: str) -> None:
            self._record_failure(partition, state, target, why)

        return legal_transitions(
            partitions,
            self._context.partition_states,
            target,
            VALID_PREVIOUS_PARTITION_STATES,
            self._on_illegal_transition,
            "partitions",
            refuse,
        )

    def _change(
        self,
        partition: PartitionKey,
        target: PartitionState,
        leadership: LeaderAndIsr | None = None,
        why: str = "",
    ) -> None:
        context = self._context
        before = context.partition_state(partition)
        context.put_partition_state(partition, target)
        replicas = context.partition_replica_assignment(partition) if target is PartitionState.NEW else ()
        self._state_change_log.record(
            context.epoch, partition, NO_REPLICA, before, target, leadership, why, replicas=replicas
        )

    def _fail(self, outcomes: Outcomes, partition: PartitionKey, why: str) -> None:
        state = self._context.partition_state(partition)
        outcomes[partition] = StateChangeFailed(f"{partition[0]}-{partition[1]} ({state.name}): {why}")
        self._record_failure(partition, state, PartitionState.ONLINE, why)

    def _record_failure(self, partition: PartitionKey, state: PartitionState, target: PartitionState, why: str) -> None:
        context = self._context
        leadership = context.partition_leadership_info(partition)
        self._state_change_log.record(context.epoch, partition, NO_REPLICA, state, target, leadership, why, failed=True)

    async def _bring_online(self, strategy: ElectionStrategy | None, partitions: Sequence[PartitionKey]) -> Outcomes:
        new: list[PartitionKey] = []
        others: list[PartitionKey] = []
        for partition in self._legal(partitions, PartitionState.ONLINE):
            is_new = self._context.partition_state(partition) is PartitionState.NEW
            (new if is_new else others).append(partition)
        outcomes: Outcomes = {}
        if new:
            await self._initialize_leader_and_isr(new, outcomes)
        if others:
            if strategy is None:
                raise ValueError("an election strategy is required for partitions that have had a leader")
            await self._elect_leaders(others, strategy, outcomes)
        return outcomes

    # -- the first leader -------------------------------------------------------------------------------------------

    async def _initialize_leader_and_isr(self, partitions: Sequence[PartitionKey], outcomes: Outcomes) -> None:
        context = self._context
        states = {}
        for partition in partitions:
            replicas = context.partition_replica_assignment(partition)
            online = context.online_brokers(partition)
            isr = tuple([broker_id for broker_id in replicas if broker_id in online])
            if isr:
                states[partition] = LeaderAndIsr(isr[0], 0, isr, context.epoch, zk_version=0)
            else:
                self._fail(outcomes, partition, f"none of its replicas {list(replicas)} is online")
        if not states:
            return
        created = await self._zookeeper().create_partition_states(states, context.epoch_zk_version)
        await self._turns.wait()
        for partition, result in created.items():
            if isinstance(result, ZooKeeperError):
                self._fail(outcomes, partition, f"its state could not be created in ZooKeeper: {result}")
            else:
                state = states[partition]
                self._decided(partition, state, state.isr, "the first online replica leads", is_new=True)
                outcomes[partition] = state

    def _decided(
        self, partition: PartitionKey, state: LeaderAndIsr, recipients: Iterable[int], why: str, *, is_new: bool
    ) -> None:
        """Takes up a leadership that was written to ZooKeeper."""
        context = self._context
        context.put_partition_leadership_info(partition, state)
        assignment = context.partition_full_replica_assignment(partition)
        self._request_batch.add_leader_and_isr_request_for_brokers(recipients, partition, state, assignment, is_new)
        self._change(partition, PartitionState.ONLINE, state, why)

    # -- elections --------------------------------------------------------------------------------------------------

    async def _elect_leaders(
        self, partitions: Sequence[PartitionKey], strategy: ElectionStrategy, outcomes: Outcomes
    ) -> None:
        states: dict[PartitionKey, LeaderAndIsr] = {}
        to_read = []
        for partition in partitions:
            cached = self._context.partition_leadership_info(partition)
            if cached is None:
                to_read.append(partition)
            else:
                states[partition] = cached
        if states:
            to_read += await self._try_to_elect(states, strategy, outcomes, are_cached=True)
        while to_read:
            states = await self._read_states(to_read, outcomes)
            to_read = await self._try_to_elect(states, strategy, outcomes, are_cached=False)

    async def _read_states(
        self, partitions: Sequence[PartitionKey], outcomes: Outcomes
    ) -> dict[PartitionKey, LeaderAndIsr]:
        found = await self._zookeeper().partition_states(partitions)
        states = {}
        for partition in partitions:
            state = found.get(partition)
            if isinstance(state, LeaderAndIsr):
                states[partition] = state
            else:
                self._fail(outcomes, partition, str(state or "it has no state in ZooKeeper"))
        return states

    async def _try_to_elect(
        self,
        states: Mapping[PartitionKey, LeaderAndIsr],
        strategy: ElectionStrategy,
        outcomes: Outcomes,
        *,
        are_cached: bool,
    ) -> list[PartitionKey]:
        """Returns the partitions whose state has changed, or may have changed, meanwhile.

        Leaders before 2.7 write ISRs themselves and notify the controller seconds later, or never if they die: a cached
        state must not decide that no replica can lead.
        """
        context = self._context
        changed = []
        unclean_topics = await self._topics_with_unclean_election(states, strategy)
        recipients = {}
        unclean: set[PartitionKey] = set()
        updates = {}
        for partition, state in states.items():
            if state.controller_epoch > context.epoch:
                why = (
                    f"its state was written by a controller of epoch {state.controller_epoch}, ours is {context.epoch}"
                )
                self._fail(outcomes, partition, why)
                continue
            election = self._election(partition, state, strategy, partition[0] in unclean_topics)
            if election is None and are_cached:
                changed.append(partition)
                continue
            if election is None:
                self._fail(outcomes, partition, f"no replica can be elected under {strategy.value}")
                continue
            if election.unclean:
                unclean.add(partition)
            recipients[partition] = election.recipients
            updates[partition] = LeaderAndIsr(
                election.leader, state.leader_epoch + 1, election.isr, context.epoch, state.zk_version
            )
        if not updates:
            return changed
        written = await self._state_writer.write(updates)
        await self._turns.wait()
        for partition, result in written.items():
            if isinstance(result, BadVersion):
                changed.append(partition)
            elif isinstance(result, ZooKeeperError):
                self._fail(outcomes, partition, f"its state could not be written to ZooKeeper: {result}")
            else:
                new = updates[partition]
                state = LeaderAndIsr(new.leader, new.leader_epoch, new.isr, new.controller_epoch, result)
                why = strategy.value
                if partition in unclean:
                    context.unclean_leader_election_count += 1
                    why += ", unclean"
                self._decided(partition, state, recipients[partition], why, is_new=False)
                outcomes[partition] = state
        return changed

    def _election(
        self, partition: PartitionKey, state: LeaderAndIsr, strategy: ElectionStrategy, unclean: bool
    ) -> Election | None:
        context = self._context
        assignment = context.partition_full_replica_assignment(partition)
        online = context.online_brokers(partition)
        if strategy is ElectionStrategy.REASSIGN:
            return reassign_partition_leader_election(assignment.target_replicas, state.isr, online)
        if strategy is ElectionStrategy.PREFERRED_REPLICA:
            return preferred_replica_partition_leader_election(assignment.replicas, state.isr, online)
        if strategy is ElectionStrategy.CONTROLLED_SHUTDOWN:
            online = context.online_brokers(partition, include_shutting_down_brokers=True)
            return controlled_shutdown_partition_leader_election(
                assignment.replicas, state.isr, online, context.shutting_down_broker_ids
            )
        if strategy is ElectionStrategy.TOPIC_ID:
            answers = context.topic_id_answers.get(partition, {})
            return topic_id_partition_leader_election(assignment.replicas, state.leader, state.isr, online, answers)
        return offline_partition_leader_election(assignment.replicas, state.isr, online, unclean)

    async def _topics_with_unclean_election(
        self, states: Mapping[PartitionKey, LeaderAndIsr], strategy: ElectionStrategy
    ) -> set[str]:
        """The topics that allow unclean elections, among those of partitions without an online ISR member.

        The configurations are read from ZooKeeper, because only the current values count.
        """
        if strategy not in (ElectionStrategy.OFFLINE, ElectionStrategy.OFFLINE_ALLOW_UNCLEAN):
            return set()
        without_isr = []
        for partition, state in states.items():
            online = self._context.online_brokers(partition)
            if not any(broker_id in online for broker_id in state.isr):
                without_isr.append(partition[0])
        topics = list(dict.fromkeys(without_isr))
        if strategy is ElectionStrategy.OFFLINE_ALLOW_UNCLEAN or not topics:
            return set(topics)
        default = str(self._config.current.unclean_leader_election_enable)
        allowed = set()
        for topic, config in (await self._zookeeper().configs.of_topics(topics)).items():
            if isinstance(config, ZnodeError):
                logger.error("topic %s gets no unclean leader, its configuration cannot be read: %s", topic, config)
            # An invalid value does not allow unclean elections.
            elif config.get(UNCLEAN_LEADER_ELECTION, default).strip().lower() == "true":
                allowed.add(topic)
        return allowed


def _log_failures(outcomes: Outcomes) -> None:
    failures = [outcome for outcome in outcomes.values() if isinstance(outcome, StateChangeFailed)]
    if failures:
        logger.error("%d partitions got no leader, the first is %s", len(failures), failures[0])
