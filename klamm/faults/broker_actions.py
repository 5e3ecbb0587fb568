"""The actions of a broker at its owner's command: ending its session, elections, rebalances, aborts, damage to a log.

What must stay true: a broker that cannot carry out an action because another broker must raises Elsewhere, and has done
nothing.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from klamm.base.environment import Environment
from klamm.base.slices import in_slices
from klamm.base.system_environment import SystemFileSystem
from klamm.broker.start.broker import Broker
from klamm.broker.start.parts import BrokerParts
from klamm.config.broker import BrokerConfig
from klamm.controller.events import Question
from klamm.coordinator.groups.group import GroupState
from klamm.coordinator.transactions.transaction import fence
from klamm.faults.agent import Agent
from klamm.faults.commands import Json
from klamm.faults.commands.actions import (
    CorruptBatch,
    Elect,
    ExpireSession,
    ExpireTransaction,
    ForceRebalance,
    MoveController,
)
from klamm.faults.corruption import corrupt_batch
from klamm.faults.elections import LeaderOfChoice, Resignation, add_flows
from klamm.faults.wire import Elsewhere, FaultError
from klamm.protocol.error_codes import ErrorCode
from klamm.storage.segments.log_directory import partition_directory_name
from klamm.zookeeper.client import State, ZooKeeperClient
from klamm.zookeeper.keeper_exceptions import ZooKeeperError

T = TypeVar("T")

POLL_S = 0.01
SESSION_TIMEOUT_S = 30.0
# The first broker of a new cluster is alone for a moment.
ELECTION_TIMEOUT_S = 20.0
_ELSEWHERE = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)


class BrokerActions:
    """The actions of one broker. `broker` is complete once `assembled` has been called."""

    def __init__(self, config: BrokerConfig, environment: Environment) -> None:
        self._config = config
        self._environment = environment
        self._broker: Broker | None = None

    def register(self, agent: Agent) -> None:
        """Makes the agent perform the actions."""
        agent.performs(ExpireSession, self._expire_session)
        agent.performs(Elect, self._elect)
        agent.performs(MoveController, self._move_controller)
        agent.performs(ForceRebalance, self._force_rebalance)
        agent.performs(ExpireTransaction, self._expire_transaction)
        agent.performs(CorruptBatch, self._corrupt)

    def assembled(self, broker: Broker, parts: BrokerParts) -> None:
        """Takes the broker once it has its parts."""
        self._broker = broker
        add_flows(parts.controller)

    @property
    def _started(self) -> Broker:
        if self._broker is None:
            raise Elsewhere("the broker is starting")
        return self._broker

    @property
    def _parts(self) -> BrokerParts:
        broker = self._started
        return broker.parts

    # -- sessions -------------------------------------------------------------------------------------------------

    async def _expire_session(self, action: ExpireSession) -> Json:
        """Takes over the session in another connection by its id and password, and closes it there."""
        client = self._started.zookeeper.store.client
        session = client.session_id, client.session_password
        try:
            async with asyncio.timeout(SESSION_TIMEOUT_S):
                while client.state is not State.EXPIRED:
                    await self._close_session(session)
                    # The broker's own connection may have taken back the session.
                    await _until(lambda: client.state is State.EXPIRED, 1.0)
        except TimeoutError:
            raise FaultError(
                f"after {SESSION_TIMEOUT_S:g} s it does not know that session 0x{session[0]:x} has ended; a broker that"
                " is cut off from ZooKeeper cannot"
            ) from None
        return {"session_id": f"0x{session[0]:x}"}

    async def _close_session(self, session: tuple[int, bytes]) -> None:
        config = self._config
        thief = ZooKeeperClient(
            self._environment,
            config.zookeeper_connect,
            session_timeout_ms=config.zookeeper_session_timeout_ms,
            session=session,
        )
        try:
            await thief.start(config.zookeeper_connection_timeout_ms)
        except ZooKeeperError:
            return  # The session has ended, or no server answers.
        await thief.close()

    # -- elections ------------------------------------------------------------------------------------------------

    async def _elect(self, action: Elect) -> Json:
        elected = await self._ask_controller(lambda answer: LeaderOfChoice(action, answer=answer))
        return {"leader": elected.leader, "leader_epoch": elected.leader_epoch, "isr": list(elected.isr)}

    async def _move_controller(self, _action: MoveController) -> Json:
        await self._ask_controller(lambda answer: Resignation(answer=answer))
        controller = self._parts.controller
        await _until(lambda: not controller.is_active, ELECTION_TIMEOUT_S)
        if not await _until(lambda: controller.controller_id >= 0, ELECTION_TIMEOUT_S):
            raise FaultError(f"no controller was elected for {ELECTION_TIMEOUT_S:g} s")
        return {"controller": controller.controller_id}

    async def _ask_controller(self, question: "Callable[[asyncio.Future[T]], Question[T]]") -> T:
        controller = self._parts.controller
        if not controller.is_active:
            raise Elsewhere("this broker is not the controller")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        controller.event_manager.put(question(answer))
        return await answer

    # -- coordinators ---------------------------------------------------------------------------------------------

    async def _force_rebalance(self, action: ForceRebalance) -> Json:
        parts = self._parts
        error, summary = await in_slices(parts.group_coordinator.describe_group(action.group))
        _check(error, f"group {action.group}")
        group = parts.groups.get(action.group)
        if group is None or not group.members:
            raise FaultError(f"group {action.group} has no members: it is {summary.state}")
        generation = group.generation_id
        if group.state is not GroupState.PREPARING_REBALANCE:
            parts.group_coordinator.rebalances.maybe_prepare(group, "the owner of the cluster asks for a rebalance")
        return {"generation": generation}

    async def _expire_transaction(self, action: ExpireTransaction) -> Json:
        coordinator = self._parts.transaction_coordinator
        description = coordinator.describe_transaction(action.transactional_id)
        _check(description.error_code, f"transactional id {action.transactional_id}")
        owned = coordinator.states.find(action.transactional_id)
        if isinstance(owned, ErrorCode) or action.transactional_id in owned.writes:
            raise Elsewhere("the state of the transaction is being written")
        known = owned.transactions[action.transactional_id]
        if str(known.state) != "Ongoing":
            raise FaultError(f"transactional id {action.transactional_id} has no open transaction: it is {known.state}")
        fenced = fence(known, self._environment.now_ms())
        _check(await coordinator.states.write(owned, action.transactional_id, fenced), action.transactional_id)
        return {"producer_id": fenced.producer.producer_id, "producer_epoch": fenced.producer.epoch}

    # -- logs -----------------------------------------------------------------------------------------------------

    async def _corrupt(self, action: CorruptBatch) -> Json:
        broker_id = self._started.broker_id
        partition = self._parts.replica_manager.hosted_partition((action.topic, action.partition))
        if action.broker is None and (partition is None or not partition.is_leader):
            raise Elsewhere("this broker does not lead the partition")
        name = partition_directory_name(action.topic, action.partition)
        if partition is None:
            raise FaultError(f"broker {broker_id} has no replica of {name}")
        directory = f"{partition.log.log_directory.path}/{name}"
        # Not the broker's own file system, which may be under faults.
        damage = await self._environment.run_blocking(corrupt_batch, SystemFileSystem(), directory, action.offset)
        return {"broker": broker_id, **damage}


async def _until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether the condition became true in time."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True


def _check(error: ErrorCode, what: str) -> None:
    if error in _ELSEWHERE:
        raise Elsewhere(f"{what}: {error.name}")
    if error is not ErrorCode.NONE:
        raise FaultError(f"{what}: {error.name}")
