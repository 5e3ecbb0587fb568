"""Controller events that only the cluster's owner can cause: a chosen leader, and the controller's resignation.

The controller processes both in its queue like any other event, with its own state machine, epochs and requests.
"""

from dataclasses import dataclass
from typing import ClassVar

from klamm.controller.controller import KafkaController
from klamm.controller.events import ControllerState, Question
from klamm.controller.leader_election import Election, ElectionStrategy
from klamm.controller.partition_state_machine import PartitionStateMachine
from klamm.controller.parts import ControllerParts
from klamm.controller.states import PartitionState, StateChangeFailed, log_illegal_transition
from klamm.faults.commands.actions import Elect
from klamm.faults.wire import Elsewhere, FaultError
from klamm.protocol.vocabulary import PartitionKey
from klamm.znodes.topics import LeaderAndIsr
from klamm.zookeeper.keeper_exceptions import ZooKeeperError


@dataclass(frozen=True, eq=False)
class LeaderOfChoice(Question[LeaderAndIsr]):
    """Asks the controller to elect a chosen replica."""

    state: ClassVar[ControllerState] = ControllerState.MANUAL_LEADER_BALANCE
    wish: Elect

    def preempt(self) -> None:
        self.fail(Elsewhere("the controller has moved"))


@dataclass(frozen=True, eq=False)
class Resignation(Question[None]):
    """Asks the controller to resign."""

    state: ClassVar[ControllerState] = ControllerState.CONTROLLER_CHANGE

    def preempt(self) -> None:
        self.fail(Elsewhere("the controller has moved"))


def add_flows(controller: KafkaController) -> None:
    """Makes the controller process these events."""
    parts = controller.parts

    async def elect(event: LeaderOfChoice) -> None:
        try:
            event.resolve(await _elect(parts, event.wish))
        except FaultError as error:
            event.fail(error)

    async def resign(event: Resignation) -> None:
        event.resolve(None)
        # A controller whose event has failed resigns, and for a while does not stand for election.
        raise ZooKeeperError(message="the owner of the cluster moves the controller")

    controller.flows[LeaderOfChoice] = elect
    controller.flows[Resignation] = resign


async def _elect(parts: ControllerParts, wish: Elect) -> LeaderAndIsr:
    """Raises FaultError."""
    partition = (wish.topic, wish.partition)
    name = f"{wish.topic}-{wish.partition}"
    context = parts.context
    replicas = context.partition_full_replica_assignment(partition).replicas
    if not replicas or context.is_partition_to_be_deleted(partition):
        raise FaultError(f"there is no partition {name}")
    leader = replicas[0] if wish.to is None else wish.to
    if leader not in replicas:
        raise FaultError(f"broker {leader} has no replica of {name}; its replicas are {list(replicas)}")
    if leader not in context.online_brokers(partition):
        raise FaultError(f"the replica of {name} on broker {leader} is offline")
    present = context.partition_leadership_info(partition)
    if present is not None and present.leader == leader and not wish.unclean:
        return present
    machine = _ChosenLeader(parts, leader, unclean=wish.unclean)
    strategy = ElectionStrategy.OFFLINE_ALLOW_UNCLEAN if wish.unclean else ElectionStrategy.PREFERRED_REPLICA
    outcomes = await machine.handle_state_changes([partition], PartitionState.ONLINE, strategy)
    outcome = outcomes.get(partition)
    if isinstance(outcome, LeaderAndIsr):
        return outcome
    present = context.partition_leadership_info(partition)
    isr = [] if present is None else list(present.isr)
    reason = f": {outcome}" if isinstance(outcome, StateChangeFailed) else ""
    raise FaultError(f"broker {leader} cannot lead {name}; its ISR is {isr}{reason}")


class _ChosenLeader(PartitionStateMachine):
    """The controller's state machine, whose only election is that of `leader`."""

    def __init__(self, parts: ControllerParts, leader: int, *, unclean: bool) -> None:
        super().__init__(
            parts.config,
            parts.context,
            lambda: parts.store,
            parts.state_writer,
            parts.batch,
            parts.state_changes,
            log_illegal_transition,
        )
        self._leader = leader
        self._unclean = unclean

    def _election(
        self, partition: PartitionKey, state: LeaderAndIsr, strategy: ElectionStrategy, unclean: bool
    ) -> Election | None:
        online = self._context.online_brokers(partition)
        replicas = self._context.partition_full_replica_assignment(partition).replicas
        recipients = tuple(broker_id for broker_id in replicas if broker_id in online)
        if self._leader not in recipients:
            return None
        if self._unclean:
            return Election(self._leader, (self._leader,), recipients, unclean=True)
        return Election(self._leader, tuple(state.isr), recipients) if self._leader in state.isr else None
