"""The controller: one broker of the cluster that decides which broker leads which partition (Kafka's
`KafkaController`).

Every broker runs a `KafkaController`; the one whose session owns /controller is *active*. It acts only on events, which
one task processes one after another (`event_manager.py`). This module decides which broker is the controller. The work
of the active controller is in the flows (`event_flows.py`), the broker's requests to it are in `requests.py`.

What must stay true:
- The active controller was elected in this session *and* has finished its failover. Being named in /controller is not
  enough: the znode may be left from an earlier process of this broker (KAFKA-13407). If the znode belongs to this
  session, this broker is elected again; if it belongs to another session, the election waits for that session's end.
- /controller names the active controller. If another program writes another broker's id there, or garbage, no broker
  acts as that controller, and because this session still owns the znode, no other broker can be elected. The active
  controller then resigns and is elected again, which replaces the znode.
- Every write is guarded by the controller epoch. A refused write (`ControllerMoved`) shows that another broker was
  elected: this one resigns at once and reads which broker it is.
- An event that fails half-way makes the controller resign, so that the next controller, perhaps this broker, reads
  the whole state again.
- The events of a session end with it: the first event of the next session uses the new session's store.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from klamm.base.environment import Environment
from klamm.base.tasks import OnFailure
from klamm.config.broker import BrokerConfig
from klamm.config.current import CurrentConfig
from klamm.controller.channels.send_queue import SendQueue
from klamm.controller.context import ControllerContext
from klamm.controller.event_flows import Flow, flows
from klamm.controller.event_manager import ControllerEventManager
from klamm.controller.events import (
    ControllerChange,
    ControllerEvent,
    ControllerState,
    Expire,
    Question,
    RegisterBrokerAndReelect,
    Startup,
)
from klamm.controller.failover import on_controller_failover, on_controller_resignation
from klamm.controller.parts import Channels, ControllerParts
from klamm.controller.requests import ControllerRequests
from klamm.controller.state_change_log import StateChangeLog
from klamm.controller.states import OnIllegalTransition, log_illegal_transition
from klamm.znodes.batches import ControllerMoved
from klamm.znodes.controller_store import NO_CONTROLLER, ControllerStore
from klamm.znodes.fields import ZnodeError
from klamm.znodes.store import KafkaZooKeeper
from klamm.zookeeper.keeper_exceptions import AuthFailed, ClientClosed, SessionExpired, ZooKeeperError

# The wait after a failed failover, so that a permanent reason (a znode that the broker may not write) causes no storm
# of elections.
RETRY_BACKOFF_MS = 1_000

_log = logging.getLogger(__name__)

# Errors after which the session cannot be used.
_SESSION_ENDS = (SessionExpired, AuthFailed, ClientClosed)


class KafkaController(ControllerRequests):
    """One broker's controller.

    `open_channels` opens the connections to the brokers for one controllership; `register_broker` registers the broker
    in a new session. `on_failure` gets faults of the program.
    """

    def __init__(
        self,
        config: CurrentConfig,
        environment: Environment,
        broker_id: int,
        open_channels: Callable[[], Channels],
        *,
        register_broker: Callable[[], Awaitable[None]],
        on_failure: OnFailure,
        on_illegal_transition: OnIllegalTransition = log_illegal_transition,
    ) -> None:
        self._environment = environment
        self._broker_id = broker_id
        self._open_channels = open_channels
        self._register_broker = register_broker
        self.state_changes = StateChangeLog(environment.now_ms, broker_id)
        self._events = ControllerEventManager(
            self._process, on_failure, self.state_changes, lambda: self._parts.context.epoch
        )
        self.on_illegal_transition = on_illegal_transition
        self._parts = ControllerParts(
            config,
            environment,
            broker_id,
            self._events.put,
            self.state_changes,
            self._illegal_transition,
        )
        super().__init__(self._events.put)
        self._retry: asyncio.TimerHandle | None = None
        self._not_before = 0.0  # By the loop's clock: until then this broker takes part in no election.
        self._is_active = False
        self._controller_id = NO_CONTROLLER
        self.elected_at_ms = 0
        """By the wall clock; meaningless while this broker is not active."""
        # Every broker processes these events; only the active controller processes the others.
        self._elections: dict[type[ControllerEvent], Flow] = {
            Startup: self._startup,
            RegisterBrokerAndReelect: self._register_broker_and_reelect,
            Expire: self._expire,
            ControllerChange: self._controller_change,
        }
        self.flows = flows(self._parts)
        config.subscribe(self._config_changed)

    def _illegal_transition(self, message: str) -> None:
        self.on_illegal_transition(message)

    # -- what the broker uses ---------------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller, as far as it knows."""
        return self._is_active

    @property
    def controller_id(self) -> int:
        """The id of the last known controller; NO_CONTROLLER if there is none."""
        return self._controller_id

    @property
    def context(self) -> ControllerContext:
        """The context, for reading only. Empty while this broker is not active."""
        return self._parts.context

    def send_queues(self) -> Mapping[int, SendQueue]:
        """The channels to the brokers, by broker; empty while this broker is not active."""
        return {} if self._parts.channels is None else self._parts.channels.send_queues()

    @property
    def parts(self) -> ControllerParts:
        """To be read only."""
        return self._parts

    @property
    def event_manager(self) -> ControllerEventManager:
        """To be read only."""
        return self._events

    @property
    def state(self) -> ControllerState:
        return self._events.state

    @property
    def queue_size(self) -> int:
        return self._events.queue_size

    async def startup(self, store: KafkaZooKeeper) -> None:
        """Takes part in the election in the broker's first session. Returns when the election is decided.

        Raises ZooKeeperError, ZnodeError (the controller epoch cannot be read), and faults of the program.
        """
        self._events.start()
        event = Startup(store, answer=_future())
        self._events.put(event)
        await event.answer

    def session_expired(self) -> None:
        """The session is gone: pending events are dropped, and this broker is no longer the controller."""
        self._events.clear_and_put(Expire())

    async def new_session(self, store: KafkaZooKeeper) -> None:
        """Registers the broker in a new session and takes part in the election. Returns when the election is decided.

        Raises the errors of `register_broker` and of `startup`.
        """
        event = RegisterBrokerAndReelect(store, answer=_future())
        self._events.put(event)
        await event.answer

    async def shutdown(self) -> None:
        """Stops the controller. ZooKeeper deletes /controller when the session ends."""
        await self._events.close()
        if self._retry is not None:
            self._retry.cancel()
        self._is_active = False
        # Needed also if this broker is not active: a resignation may have been interrupted.
        await on_controller_resignation(self._parts)
        self.state_changes.close()

    def _config_changed(self, old: BrokerConfig, new: BrokerConfig) -> None:
        """The controller uses four dynamic configs: three of the automatic rebalance, and
        unclean.leader.election.enable."""
        timing, old_timing = (
            (each.auto_leader_rebalance_enable, each.leader_imbalance_check_interval_seconds) for each in (new, old)
        )
        if self._is_active and timing != old_timing:
            self._parts.schedule_leader_rebalance(new.leader_imbalance_check_interval_seconds)
        if new.unclean_leader_election_enable and not old.unclean_leader_election_enable:
            self.enable_default_unclean_leader_election()

    # -- events -----------------------------------------------------------------------------------------------------

    async def _process(self, event: ControllerEvent) -> None:
        """Processes one event. Handles all operating errors; raises only faults of the program."""
        election = self._elections.get(type(event))
        try:
            if election is not None:
                await election(event)
            elif self._is_active:
                await self.flows[type(event)](event)
            else:
                event.preempt()
                self.state_changes.event_turns_out("ignored: this broker is not the controller")
        except (ControllerMoved, ZooKeeperError, ZnodeError) as error:
            _log.warning("%s failed: %s", type(event).__name__, error)
            self.state_changes.event_turns_out(f"failed: {error}")
            event.preempt()
            await self._give_up(error)

    async def _give_up(self, reason: Exception) -> None:
        """An event has failed: an active controller resigns, and a new election begins."""
        try:
            if isinstance(reason, ControllerMoved):
                await self._resign()
                await self._elect()
                return
            await self._trigger_controller_move()
        except (ZooKeeperError, ZnodeError) as error:
            _log.warning("the resignation failed too: %s", error)
            await self._resign()
            reason = error
        if not isinstance(reason, _SESSION_ENDS):  # The next session begins with an election.
            self._elect_later()

    # -- election ---------------------------------------------------------------------------------------------------

    async def _startup(self, event: Startup) -> None:
        await self._begin_session(event, event.store)

    async def _register_broker_and_reelect(self, event: RegisterBrokerAndReelect) -> None:
        await self._begin_session(event, event.store, self._register_broker)

    async def _begin_session(
        self, event: Question[None], store: KafkaZooKeeper, register: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Errors go to the waiter of the event: the broker's start, or its next session."""
        self._parts.store = ControllerStore(store.client)
        self._not_before = 0.0
        try:
            if register is not None:
                await register()
            await self._elect()
        except Exception as error:
            self.state_changes.event_turns_out(f"failed: {error}")
            await self._resign()
            event.fail(error)
        else:
            event.resolve(None)

    async def _expire(self, _event: Expire) -> None:
        self._controller_id = NO_CONTROLLER
        await self._resign()

    async def _controller_change(self, _event: ControllerChange) -> None:
        await self._elect()

    def _on_controller(self) -> None:
        self._events.put(ControllerChange())

    async def _elect(self) -> None:
        """Reads the controller's id. Resigns if another broker is the controller. Takes part in the election if there
        is no controller."""
        store = self._parts.store
        while True:
            node = await store.controller(self._on_controller)
            self._controller_id = NO_CONTROLLER if node is None else node.broker_id
            is_own = node is not None and node.session_id == store.client.session_id
            if is_own and self._is_active and self._controller_id == self._broker_id:
                return
            await self._resign()
            if node is not None and not is_own:
                return
            if asyncio.get_running_loop().time() < self._not_before:
                return  # The timer tries again.
            try:
                epoch = await store.register_controller_and_increment_epoch(self._broker_id, self._environment.now_ms())
                self.state_changes.announce(
                    epoch.epoch,
                    f"{self._broker_id} successfully elected as the controller. Epoch incremented to {epoch.epoch}"
                    f" and epoch zk version is now {epoch.zk_version}",
                )
                self._controller_id = self._broker_id
                self.elected_at_ms = self._environment.now_ms()
                self._is_active = True
                await on_controller_failover(self._parts, epoch, self._open_channels)
                return
            except ControllerMoved as error:
                _log.info("%s", error)
                await self._resign()

    async def _resign(self) -> None:
        """Resigns. Does nothing when this broker is not active."""
        if self._is_active:
            epoch = self._parts.context.epoch
            self._is_active = False
            await on_controller_resignation(self._parts)
            self.state_changes.announce(epoch, "Resigned")
            self.state_changes.close_followers()

    def _elect_later(self) -> None:
        """Leaves the next election to other brokers for a while, and accepts the broker that they elect."""
        loop = asyncio.get_running_loop()
        self._not_before = loop.time() + RETRY_BACKOFF_MS / 1000
        if self._retry is not None:
            self._retry.cancel()
        self._retry = loop.call_at(self._not_before, self._elect_again)

    def _elect_again(self) -> None:
        self._not_before = 0.0  # A timer may be early by a rounding error, and this one fires only once.
        self._on_controller()

    async def _trigger_controller_move(self) -> None:
        """Resigns and removes /controller, which starts an election. Does nothing when this broker is not active."""
        if not self._is_active:
            return
        guard = self._parts.guard
        self._controller_id = NO_CONTROLLER
        await self._resign()
        try:
            await self._parts.store.delete_controller(guard)
        except ControllerMoved:
            _log.info("another broker is the controller already")


def _future() -> "asyncio.Future[None]":
    return asyncio.get_running_loop().create_future()
