"""The parts that the controller's flows use: the context, the state machines, ZooKeeper, and the requests to brokers.

`ControllerParts` lives as long as the broker; `store` and `channels` change with the session and the controllership.

What must stay true:
- Watches and responses only put events into the queue; this module never changes the context.
- A broker's response counts only while the same controllership and the same broker epoch last: the event carries both
  epochs (`is_current`).
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from klamm.base.environment import Environment
from klamm.base.slices import slices
from klamm.config.current import CurrentConfig
from klamm.controller.bounces import PartitionStateWriter
from klamm.controller.channels.request_batch import ControllerBrokerRequestBatch
from klamm.controller.channels.send_queue import SendQueue
from klamm.controller.context import ControllerContext
from klamm.controller.events import (
    AutoPreferredReplicaLeaderElection,
    BrokerChange,
    BrokerModifications,
    ControllerEvent,
    ControllerRequestSender,
    IsrChangeNotification,
    LeaderAndIsrResponseReceived,
    LogDirEventNotification,
    PartitionModifications,
    PartitionReassignmentIsrChange,
    TopicChange,
    TopicDeletion,
    TopicDeletionStopReplicaResponseReceived,
    UpdateMetadataResponseReceived,
    ZkPartitionReassignment,
    ZkPreferredReplicaElection,
)
from klamm.controller.partition_state_machine import PartitionStateMachine
from klamm.controller.replica_state_machine import ReplicaStateMachine
from klamm.controller.state_change_log import StateChangeLog
from klamm.controller.states import OnIllegalTransition
from klamm.controller.topic_deletion import TopicDeletionManager
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.leader_and_isr import LeaderAndIsrResponse
from klamm.protocol.apis.stop_replica import StopReplicaResponse, StopReplicaTopicState
from klamm.protocol.apis.update_metadata import UpdateMetadataResponse
from klamm.protocol.vocabulary import PartitionKey
from klamm.znodes.brokers import BrokerRegistration
from klamm.znodes.controller_store import ControllerStore


class Channels(Protocol):
    """The controller's connections to the brokers (`ControllerChannelManager`)."""

    def add_broker(self, broker: BrokerRegistration) -> None: ...

    def update_broker(self, broker: BrokerRegistration) -> None: ...

    def remove_broker(self, broker_id: int) -> None: ...

    def send_request(
        self, broker_id: int, api_key: ApiKey, body: Any, on_response: Callable[[Any], None] | None
    ) -> None: ...

    async def shutdown(self) -> None: ...

    def send_queues(self) -> Mapping[int, SendQueue]: ...


class ControllerParts:
    """See the module. `put` queues an event."""

    store: ControllerStore
    """The store of the current session."""

    def __init__(
        self,
        config: CurrentConfig,
        environment: Environment,
        broker_id: int,
        put: Callable[[ControllerEvent], None],
        state_changes: StateChangeLog,
        on_illegal_transition: OnIllegalTransition,
    ) -> None:
        self.config = config
        self.environment = environment
        self.broker_id = broker_id
        self.context = ControllerContext()
        self.state_changes = state_changes
        self.channels: Channels | None = None
        self._put = put
        self._leader_rebalance: asyncio.TimerHandle | None = None
        self.batch = ControllerBrokerRequestBatch(
            config.current,
            broker_id,
            self.context,
            self._send,
            on_leader_and_isr_response=self._on_leader_and_isr_response,
            on_update_metadata_response=self._on_update_metadata_response,
            on_stop_replica_response=self._on_stop_replica_response,
            state_change_log=state_changes,
            announce=self.announce,
        )
        self.state_writer = PartitionStateWriter(self.context, self._current_store, state_changes, self.announce)
        common = (
            self.context,
            self._current_store,
            self.state_writer,
            self.batch,
            state_changes,
            on_illegal_transition,
        )
        self.partitions = PartitionStateMachine(config, *common)
        self.replicas = ReplicaStateMachine(config.current, *common)
        self.deletions = TopicDeletionManager(
            config.current,
            self.context,
            self._current_store,
            self.partitions,
            self.replicas,
            self.send_update_metadata,
            self.announce,
        )

    def _current_store(self) -> ControllerStore:
        return self.store

    @property
    def guard(self) -> int:
        """The version of /controller_epoch that every write of this controllership checks."""
        return self.context.epoch_zk_version

    def announce(self, text: str) -> None:
        """Writes a line to controller.log."""
        self.state_changes.announce(self.context.epoch, text)

    def announce_broker_epochs(self, what_was_done: str) -> None:
        """Logs broker epochs, which distinguish a broker from its former processes."""
        live = self.context.live_or_shutting_down_brokers
        epochs = ", ".join(f"{broker_id} -> {broker.epoch}" for broker_id, broker in live.items())
        self.announce(f"{what_was_done} broker epochs cache: Map({epochs})")

    # -- to the brokers ---------------------------------------------------------------------------------------------

    async def send_update_metadata(self, broker_ids: Iterable[int], partitions: Collection[PartitionKey]) -> None:
        """Sends these brokers the live brokers, and the leaders of these partitions."""
        self.batch.new_batch()
        self.batch.add_update_metadata_request_for_brokers(tuple(broker_ids), ())
        async for piece in slices(partitions):
            self.batch.add_update_metadata_request_for_brokers((), piece)
        await self.batch.send_requests_to_brokers(self.context.epoch)

    def _send(self, broker_id: int, api_key: ApiKey, body: Any, on_response: Callable[[Any], None] | None) -> None:
        if self.channels is None:
            raise RuntimeError(f"{api_key.message_name} for broker {broker_id}, but this broker is not the controller")
        self.channels.send_request(broker_id, api_key, body, on_response)

    # -- timers -----------------------------------------------------------------------------------------------------

    def schedule_leader_rebalance(self, delay_seconds: int) -> None:
        """Schedules the next check of lost leaderships, and cancels a check that was scheduled before.

        Does nothing without auto.leader.rebalance.enable.
        """
        self.cancel_leader_rebalance()
        if self.config.current.auto_leader_rebalance_enable:
            # An interval of 0, which Kafka allows, would leave the controller no time for anything else.
            self._leader_rebalance = asyncio.get_running_loop().call_later(
                max(delay_seconds, 1), self._put, AutoPreferredReplicaLeaderElection()
            )

    def cancel_leader_rebalance(self) -> None:
        if self._leader_rebalance is not None:
            self._leader_rebalance.cancel()
            self._leader_rebalance = None

    # -- responses of brokers ---------------------------------------------------------------------------------------

    def is_current(self, sender: ControllerRequestSender) -> bool:
        """Whether a response to a request of `sender` still counts."""
        broker = self.context.live_or_shutting_down_brokers.get(sender.broker_id)
        return (
            broker is not None and broker.epoch == sender.broker_epoch and self.context.epoch == sender.controller_epoch
        )

    def _sender(self, broker_id: int) -> ControllerRequestSender:
        broker = self.context.live_or_shutting_down_brokers.get(broker_id)
        return ControllerRequestSender(broker_id, -1 if broker is None else broker.epoch, self.context.epoch)

    def _on_leader_and_isr_response(self, broker_id: int, response: LeaderAndIsrResponse) -> None:
        self._put(LeaderAndIsrResponseReceived(self._sender(broker_id), response))

    def _on_update_metadata_response(self, broker_id: int, response: UpdateMetadataResponse) -> None:
        self._put(UpdateMetadataResponseReceived(self._sender(broker_id), response.error_code))

    def _on_stop_replica_response(
        self, broker_id: int, response: StopReplicaResponse, topics: Sequence[StopReplicaTopicState]
    ) -> None:
        self._put(TopicDeletionStopReplicaResponseReceived(self._sender(broker_id), response, topics))

    # -- watches ----------------------------------------------------------------------------------------------------

    def on_brokers(self) -> None:
        self.state_writer.brokers_may_have_changed = True
        self._put(BrokerChange())

    def on_broker(self, broker_id: int) -> None:
        self._put(BrokerModifications(broker_id))

    def on_topics(self) -> None:
        self._put(TopicChange())

    def on_topic(self, topic: str) -> None:
        self._put(PartitionModifications(topic))

    def on_topic_deletions(self) -> None:
        self._put(TopicDeletion())

    def on_isr_changes(self) -> None:
        self._put(IsrChangeNotification())

    def on_log_dir_events(self) -> None:
        self._put(LogDirEventNotification())

    def on_partition_reassignment(self) -> None:
        self._put(ZkPartitionReassignment())

    def on_partition_state(self, partition: PartitionKey) -> None:
        self._put(PartitionReassignmentIsrChange(partition))

    def on_preferred_replica_election(self) -> None:
        self._put(ZkPreferredReplicaElection())
