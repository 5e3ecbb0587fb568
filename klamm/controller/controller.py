"""The controller: one broker of the cluster that decides who leads which partition (Kafka's `KafkaController`).

Every broker runs this; the one whose session owns /controller is *active*. It changes nothing but in answer to events,
which one task processes, one after another (`event_manager.py`).

| event of                                        | is processed in                                                  |
|-------------------------------------------------|------------------------------------------------------------------|
| the session, /controller                        | this module: who is the controller                               |
| brokers, disks, LeaderAndIsr responses, a stop  | broker_flows.py                                                  |
| topics, partitions, marks for deletion          | topic_flows.py, topic_deletion.py                                |
| ISR changes                                     | isr_flows.py                                                     |
| reassignments                                   | reassignment.py                                                  |
| elections that are asked for; the balance       | elections.py                                                     |
| finalized features                              | features.py                                                      |

What must stay true:
- Active is who was elected in this session *and* has taken over. To be named in /controller is not enough: that may be
  the leftover of an earlier life of this broker, which nobody speaks for (KAFKA-13407). A znode of this very session is
  taken over anew; that of another session is waited for, and its end elects.
- Every write is guarded by the epoch of the election. One that is refused (`ControllerMoved`) shows that another broker
  was elected: this one resigns at once, whatever it was doing, and looks who it is.
- An event that was begun and could not be finished leaves things half done: the controllership is given up, so that
  whoever is elected next, perhaps this broker, reads everything anew.
- Events of a session end with it: the first one of the next session begins with its store.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from klamm.config.broker import BrokerConfig
from klamm.controller import broker_flows, elections, features, isr_flows, reassignment, topic_flows
from klamm.controller.context import ControllerContext, PartitionAndReplica, ReplicaAssignment
from klamm.controller.event_manager import ControllerEventManager
from klamm.controller.events import (
    AlterIsrReceived,
    ApiPartitionReassignment,
    AutoPreferredReplicaLeaderElection,
    BrokerChange,
    BrokerModifications,
    ControlledShutdown,
    ControllerChange,
    ControllerEvent,
    ControllerState,
    Expire,
    IsrChangeNotification,
    LeaderAndIsrResponseReceived,
    ListPartitionReassignments,
    LogDirEventNotification,
    PartitionModifications,
    PartitionReassignmentIsrChange,
    Question,
    RegisterBrokerAndReelect,
    ReplicaLeaderElection,
    Startup,
    TopicChange,
    TopicDeletion,
    TopicDeletionStopReplicaResponseReceived,
    TopicUncleanLeaderElectionEnable,
    UncleanLeaderElectionEnable,
    UpdateFeatures,
    UpdateMetadataResponseReceived,
    ZkPartitionReassignment,
    ZkPreferredReplicaElection,
)
from klamm.controller.failover import on_controller_failover, on_controller_resignation
from klamm.controller.feature_updates import FeatureResults, FeatureUpdate
from klamm.controller.leader_election import ElectionResults, ElectionType
from klamm.controller.parts import Channels, ControllerParts
from klamm.controller.send_queue import SendQueue
from klamm.controller.state_change_log import StateChangeLog
from klamm.controller.states import OnIllegalTransition, log_illegal_transition
from klamm.environment import Environment
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.tasks import OnFailure
from klamm.znodes.batches import ControllerMoved
from klamm.znodes.controller_store import NO_CONTROLLER, ControllerStore
from klamm.znodes.fields import ZnodeError
from klamm.znodes.store import KafkaZooKeeper
from klamm.znodes.topics import TopicPartition
from klamm.zookeeper.errors import AuthFailed, ClientClosed, SessionExpired, ZooKeeperError

# How long a broker that could not take over waits before it tries again, so that a lasting reason (a znode that it may
# not write) makes no storm of elections.
RETRY_BACKOFF_MS = 1_000

_log = logging.getLogger(__name__)

Flow = Callable[[Any], Awaitable[object]]

# Nothing can be done in the session any more.
_SESSION_ENDS = (SessionExpired, AuthFailed, ClientClosed)


class KafkaController:
    """One broker's controller.

    `open_channels` makes the connections to the brokers for one controllership; `register_broker` registers the broker
    in a new session. `on_failure` hears of faults of the program.
    """

    def __init__(
        self,
        config: BrokerConfig,
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
        self._parts = ControllerParts(
            config, environment, broker_id, self._events.put, self.state_changes, on_illegal_transition
        )
        self._retry: asyncio.TimerHandle | None = None
        self._not_before = 0.0  # By the loop's clock: no election is entered earlier.
        self._is_active = False
        self._controller_id = NO_CONTROLLER
        self.elected_at_ms = 0
        """By the wall clock; of no meaning while this broker is not active."""
        # These are processed by every broker; all others only by the active controller.
        self._elections: dict[type[ControllerEvent], Flow] = {
            Startup: self._startup,
            RegisterBrokerAndReelect: self._register_broker_and_reelect,
            Expire: self._expire,
            ControllerChange: self._controller_change,
        }
        parts = self._parts
        self._flows: dict[type[ControllerEvent], Flow] = {
            BrokerChange: lambda _event: broker_flows.broker_change(parts),
            BrokerModifications: lambda event: broker_flows.broker_modifications(parts, event.broker_id),
            LogDirEventNotification: lambda _event: broker_flows.log_dir_event_notification(parts),
            LeaderAndIsrResponseReceived: lambda event: broker_flows.leader_and_isr_response_received(parts, event),
            UpdateMetadataResponseReceived: self._update_metadata_response_received,
            ControlledShutdown: self._controlled_shutdown,
            TopicChange: lambda _event: topic_flows.topic_change(parts),
            PartitionModifications: lambda event: topic_flows.partition_modifications(parts, event.topic),
            TopicDeletion: lambda _event: topic_flows.topic_deletion(parts),
            TopicDeletionStopReplicaResponseReceived: self._stop_replica_response_received,
            AlterIsrReceived: self._alter_isr,
            IsrChangeNotification: lambda _event: isr_flows.isr_change_notification(parts),
            ApiPartitionReassignment: self._api_partition_reassignment,
            ZkPartitionReassignment: lambda _event: reassignment.zk_partition_reassignment(parts),
            PartitionReassignmentIsrChange: lambda event: reassignment.complete_reassignments(parts, [event.partition]),
            ListPartitionReassignments: self._list_partition_reassignments,
            ReplicaLeaderElection: self._replica_leader_election,
            ZkPreferredReplicaElection: lambda _event: elections.zk_preferred_replica_election(parts),
            AutoPreferredReplicaLeaderElection: lambda _event: elections.auto_preferred_replica_leader_election(parts),
            UncleanLeaderElectionEnable: lambda _event: elections.unclean_leader_election_enable(parts),
            TopicUncleanLeaderElectionEnable: lambda event: elections.unclean_leader_election_enable(
                parts, event.topic
            ),
            UpdateFeatures: self._update_features,
        }

    # -- what the broker uses ---------------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller, as far as it knows."""
        return self._is_active

    @property
    def controller_id(self) -> int:
        """Who is the controller, as last seen; NO_CONTROLLER for nobody."""
        return self._controller_id

    @property
    def context(self) -> ControllerContext:
        """To be read only; it is empty while this broker is not active."""
        return self._parts.context

    def send_queues(self) -> Mapping[int, SendQueue]:
        """The channels to the brokers, by broker; none while this broker is not active."""
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
        """Takes part in the election, in the broker's first session; returns when it is decided.

        Raises ZooKeeperError, ZnodeError (the controller epoch cannot be read), and what a program error raises.
        """
        self._events.start()
        event = Startup(store, answer=_future())
        self._events.put(event)
        await event.answer

    def session_expired(self) -> None:
        """The session is gone: nothing that waits is processed any more, and this broker is the controller no more."""
        self._events.clear_and_put(Expire())

    async def new_session(self, store: KafkaZooKeeper) -> None:
        """Registers the broker in a new session and takes part in the election; returns when it is decided.

        Raises what `register_broker` raises, and as `startup` does.
        """
        event = RegisterBrokerAndReelect(store, answer=_future())
        self._events.put(event)
        await event.answer

    async def shutdown(self) -> None:
        """Stops. /controller goes with the session."""
        await self._events.close()
        if self._retry is not None:
            self._retry.cancel()
        self._is_active = False
        # Also when a resignation was cut short.
        await on_controller_resignation(self._parts)
        self.state_changes.close()

    async def alter_isr(self, request: Any) -> Any:
        """Answers an AlterIsr request; errors are in the response. Cut short, nothing is known of what was done."""
        event = AlterIsrReceived(request, answer=_future())
        self._events.put(event)
        try:
            return await event.answer
        except KafkaError as error:
            _log.info("AlterIsr of broker %d refused: %s", request.broker_id, error)
            return isr_flows.error_response(error.code)

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> list[TopicPartition]:
        """Moves leadership away from a broker that wants to stop; returns the partitions that it still leads.

        KafkaErrors STALE_CONTROLLER_EPOCH (this broker is not the controller), STALE_BROKER_EPOCH,
        BROKER_NOT_AVAILABLE.
        """
        event = ControlledShutdown(broker_id, broker_epoch, answer=_future())
        self._events.put(event)
        return await event.answer

    async def elect_leaders(self, partitions: Sequence[TopicPartition], election_type: ElectionType) -> ElectionResults:
        """Answers ElectLeaders: each partition's new leader, or why it got none. KafkaError NOT_CONTROLLER.

        What is elected is known to no broker yet.
        """
        event = ReplicaLeaderElection(partitions, election_type, answer=_future())
        self._events.put(event)
        return await event.answer

    def enable_default_unclean_leader_election(self) -> None:
        """unclean.leader.election.enable was switched on for all topics that do not say otherwise."""
        self._events.put(UncleanLeaderElectionEnable())

    def enable_topic_unclean_leader_election(self, topic: str) -> None:
        self._events.put(TopicUncleanLeaderElectionEnable(topic))

    def reconfigure(self, config: BrokerConfig) -> None:
        """The broker runs with this configuration now. Of what may change while it runs, the controller uses the
        three configs of the automatic rebalance and unclean.leader.election.enable."""
        old = self._parts.config
        self._parts.reconfigure(config)
        timing, old_timing = (
            (each.auto_leader_rebalance_enable, each.leader_imbalance_check_interval_seconds) for each in (config, old)
        )
        if self._is_active and timing != old_timing:
            self._parts.schedule_leader_rebalance(config.leader_imbalance_check_interval_seconds)

    async def update_features(self, updates: Sequence[FeatureUpdate]) -> FeatureResults:
        """Answers UpdateFeatures. KafkaError NOT_CONTROLLER: none, or all that are allowed, may have been done."""
        event = UpdateFeatures(updates, answer=_future())
        self._events.put(event)
        return await event.answer

    async def alter_partition_reassignments(
        self, targets: Mapping[TopicPartition, tuple[int, ...] | None]
    ) -> Mapping[TopicPartition, KafkaError | None]:
        """Moves these partitions to these brokers, None: back to where they were; returns what could not begin.

        KafkaError NOT_CONTROLLER: some, or all, may have begun.
        """
        event = ApiPartitionReassignment(targets, answer=_future())
        self._events.put(event)
        return await event.answer

    async def list_partition_reassignments(
        self, partitions: Sequence[TopicPartition] | None
    ) -> Mapping[TopicPartition, ReplicaAssignment]:
        """Those of these partitions (None: of all) that are being reassigned. KafkaError NOT_CONTROLLER."""
        event = ListPartitionReassignments(partitions, answer=_future())
        self._events.put(event)
        return await event.answer

    # -- events -----------------------------------------------------------------------------------------------------

    async def _process(self, event: ControllerEvent) -> None:
        """Returns whatever happens in operation; raises faults of the program."""
        election = self._elections.get(type(event))
        try:
            if election is not None:
                await election(event)
            elif self._is_active:
                await self._flows[type(event)](event)
            else:
                event.preempt()
                self.state_changes.event_turns_out("ignored: this broker is not the controller")
        except (ControllerMoved, ZooKeeperError, ZnodeError) as error:
            _log.warning("%s failed: %s", type(event).__name__, error)
            self.state_changes.event_turns_out(f"failed: {error}")
            event.preempt()
            await self._give_up(error)

    async def _give_up(self, reason: Exception) -> None:
        """An event has failed: if this broker was active it is not any more, and somebody is elected."""
        try:
            if isinstance(reason, ControllerMoved):
                await self._resign()
                await self._elect()
                return
            await self._trigger_controller_move()
        except (ZooKeeperError, ZnodeError) as error:
            _log.warning("giving up failed: %s", error)
            await self._resign()
            reason = error
        if not isinstance(reason, _SESSION_ENDS):  # The next session begins with an election.
            self._elect_later()

    # -- who is the controller --------------------------------------------------------------------------------------

    async def _startup(self, event: Startup) -> None:
        await self._begin_session(event, event.store)

    async def _register_broker_and_reelect(self, event: RegisterBrokerAndReelect) -> None:
        await self._begin_session(event, event.store, self._register_broker)

    async def _begin_session(
        self, event: Question[None], store: KafkaZooKeeper, register: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Whatever goes wrong is for who waits for the event: the broker's start, or its next session."""
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
        """Looks who is the controller; resigns if it is another broker, and tries to become it if it is nobody."""
        store = self._parts.store
        while True:
            node = await store.controller(self._on_controller)
            self._controller_id = NO_CONTROLLER if node is None else node.broker_id
            is_own = node is not None and node.session_id == store.client.session_id
            if is_own and self._is_active:
                return
            await self._resign()
            if node is not None and not is_own:
                return
            if asyncio.get_running_loop().time() < self._not_before:
                return  # The timer comes back to it.
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
        """Does nothing when this broker is not active."""
        if self._is_active:
            epoch = self._parts.context.epoch
            self._is_active = False
            await on_controller_resignation(self._parts)
            self.state_changes.announce(epoch, "Resigned")
            self.state_changes.close_followers()

    def _elect_later(self) -> None:
        """Leaves the next election to others for a while; who stands in /controller then is left alone."""
        loop = asyncio.get_running_loop()
        self._not_before = loop.time() + RETRY_BACKOFF_MS / 1000
        if self._retry is not None:
            self._retry.cancel()
        self._retry = loop.call_at(self._not_before, self._elect_again)

    def _elect_again(self) -> None:
        self._not_before = 0.0  # A timer may be early by a rounding error, and this one does not come again.
        self._on_controller()

    async def _trigger_controller_move(self) -> None:
        """Resigns and removes /controller, so that everybody elects. Does nothing when this broker is not active."""
        if not self._is_active:
            return
        guard = self._parts.guard
        self._controller_id = NO_CONTROLLER
        await self._resign()
        try:
            await self._parts.store.delete_controller(guard)
        except ControllerMoved:
            _log.info("another broker is the controller already")

    # -- answers ----------------------------------------------------------------------------------------------------

    async def _controlled_shutdown(self, event: ControlledShutdown) -> None:
        try:
            event.resolve(await broker_flows.controlled_shutdown(self._parts, event.broker_id, event.broker_epoch))
        except KafkaError as error:
            event.fail(error)

    async def _replica_leader_election(self, event: ReplicaLeaderElection) -> None:
        event.resolve(await elections.replica_leader_election(self._parts, event.partitions, event.election_type))

    async def _update_features(self, event: UpdateFeatures) -> None:
        event.resolve(await features.update_features(self._parts, event.updates))

    async def _alter_isr(self, event: AlterIsrReceived) -> None:
        try:
            event.resolve(await isr_flows.alter_isr(self._parts, event.request))
        except KafkaError as error:
            event.fail(error)
        else:
            await reassignment.complete_reassignments(self._parts, isr_flows.requested_partitions(event.request))

    async def _api_partition_reassignment(self, event: ApiPartitionReassignment) -> None:
        event.resolve(await reassignment.api_partition_reassignment(self._parts, event.targets))

    async def _list_partition_reassignments(self, event: ListPartitionReassignments) -> None:
        event.resolve(reassignment.list_partition_reassignments(self._parts.context, event.partitions))

    async def _update_metadata_response_received(self, event: UpdateMetadataResponseReceived) -> None:
        if event.error_code != ErrorCode.NONE and self._parts.is_current(event.sender):
            _log.error("broker %d answers UpdateMetadata with error %d", event.sender.broker_id, event.error_code)

    async def _stop_replica_response_received(self, event: TopicDeletionStopReplicaResponseReceived) -> None:
        if not self._parts.is_current(event.sender):
            return
        failed: list[PartitionAndReplica] = []
        deleted: list[PartitionAndReplica] = []
        for partition, code in event.partition_errors.items():
            is_deleted = event.request_error == code == ErrorCode.NONE
            (deleted if is_deleted else failed).append((partition, event.sender.broker_id))
        await self._parts.deletions.fail_replica_deletion(failed)
        if deleted:
            await self._parts.deletions.complete_replica_deletion(deleted)


def _future() -> "asyncio.Future[Any]":
    return asyncio.get_running_loop().create_future()
