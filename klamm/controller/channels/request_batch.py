"""Collects the requests of one controller event, and sends them (Kafka's `ControllerBrokerRequestBatch`).

What must stay true:
- A new batch begins empty: requests of an interrupted event are neither mixed into the next event's requests nor lost
  silently. A controller that resigns calls `clear`.
- All LeaderAndIsr requests leave first, then UpdateMetadata, then StopReplica. Each carries the epoch of its receiver.
- Only brokers that are alive, or shutting down, get requests. The live brokers do not change while a batch is open.
- A partition in a LeaderAndIsr is also in the UpdateMetadata; all brokers get the same UpdateMetadata.
- Of two changes of the same partition in a batch the later one counts, but a new replica stays new, and a deletion
  stays a deletion.
- A partition's state is made once and shared by all its recipients, so that it is encoded once.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from klamm.base.slices import CHEAP_SLICE, Slices, Steps, in_slices, mapped
from klamm.config.broker import BrokerConfig
from klamm.config.listeners import SECURITY_PROTOCOLS
from klamm.controller.context import ControllerContext, ReplicaAssignment
from klamm.controller.state_change_log import StateChangeLog
from klamm.protocol.api_keys import ApiKey
from klamm.protocol.apis.leader_and_isr import (
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicState,
)
from klamm.protocol.apis.stop_replica import (
    EPOCH_DURING_DELETE,
    STATES_FROM,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopicState,
)
from klamm.protocol.apis.update_metadata import (
    LEADER_DURING_DELETE,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    UpdateMetadataTopicState,
)
from klamm.protocol.inter_broker_versions import inter_broker_version
from klamm.protocol.vocabulary import NO_EPOCH, NO_LEADER, PartitionKey
from klamm.znodes.brokers import BrokerRegistration
from klamm.znodes.topics import LeaderAndIsr

logger = logging.getLogger(__name__)

OnResponse = Callable[[Any], None]
Send = Callable[[int, ApiKey, Any, OnResponse | None], None]
"""Queues a request (broker id, API, body, callback for the response) for a broker."""


class ControllerBrokerRequestBatch:
    """See the module.

    The callbacks only enqueue events. `on_stop_replica_response(broker_id, response, topics)` is called only for
    requests that delete topics whose deletion has started, with the request's entries for these topics.
    """

    def __init__(
        self,
        config: BrokerConfig,
        controller_id: int,
        context: ControllerContext,
        send: Send,
        *,
        on_leader_and_isr_response: Callable[[int, LeaderAndIsrResponse], None],
        on_update_metadata_response: Callable[[int, UpdateMetadataResponse], None],
        on_stop_replica_response: Callable[[int, StopReplicaResponse, Sequence[StopReplicaTopicState]], None],
        state_change_log: StateChangeLog,
        announce: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._config = config
        self._controller_id = controller_id
        self._context = context
        self._send = send
        self._on_leader_and_isr_response = on_leader_and_isr_response
        self._on_update_metadata_response = on_update_metadata_response
        self._on_stop_replica_response = on_stop_replica_response
        self._request_sent = state_change_log.request_sent
        self._announce = announce
        # Broker id -> topic -> partition -> the state for the broker.
        self._leader_and_isr: dict[int, dict[str, dict[int, LeaderAndIsrPartitionState]]] = {}
        # Broker id -> leader -> the number of its partitions among them.
        self._leaders: dict[int, dict[int, int]] = {}
        self._stop_replica: dict[int, dict[str, dict[int, StopReplicaPartitionState]]] = {}
        # One content for all these brokers.
        self._update_metadata_brokers: dict[int, None] = {}
        self._update_metadata: dict[str, dict[int, UpdateMetadataPartitionState]] = {}
        # The source of the last LeaderAndIsr state of a partition, and that state.
        self._made: dict[PartitionKey, tuple[LeaderAndIsr, ReplicaAssignment, LeaderAndIsrPartitionState]] = {}

    def new_batch(self) -> None:
        """Raises RuntimeError when the previous batch was not sent."""
        if self._leader_and_isr or self._update_metadata_brokers or self._stop_replica:
            raise RuntimeError(
                "the batch before was not sent: it has LeaderAndIsr requests for brokers"
                f" {sorted(self._leader_and_isr)}, UpdateMetadata for {sorted(self._update_metadata_brokers)},"
                f" StopReplica for {sorted(self._stop_replica)}"
            )
        self.clear()  # The last batch may have partitions without recipients.

    def clear(self) -> None:
        """Drops all unsent requests."""
        self._leader_and_isr = {}
        self._leaders = {}
        self._stop_replica = {}
        self._update_metadata_brokers = {}
        self._update_metadata = {}
        self._made = {}

    # -- adding -----------------------------------------------------------------------------------------------------

    def add_leader_and_isr_request_for_brokers(
        self,
        broker_ids: Iterable[int],
        partition: PartitionKey,
        leader_and_isr: LeaderAndIsr,
        assignment: ReplicaAssignment,
        is_new: bool,
    ) -> None:
        """These brokers get the partition's leadership, and all brokers get its metadata."""
        topic, number = partition
        live = self._context.live_or_shutting_down_broker_ids
        made = self._made.get(partition)
        if made is not None and made[0] is leader_and_isr and made[1] is assignment:
            state = made[2]
        else:
            state = _leader_and_isr_state(number, leader_and_isr, assignment, is_new)
            self._made[partition] = (leader_and_isr, assignment, state)
            self._add_update_metadata(partition)
        for broker_id in broker_ids:
            if broker_id not in live:
                continue
            topics = self._leader_and_isr.get(broker_id)
            if topics is None:
                topics = self._leader_and_isr[broker_id] = {}
                self._leaders[broker_id] = {}
            states = topics.get(topic)
            if states is None:
                states = topics[topic] = {}
            before = states.get(number)
            wanted_new = is_new or (before is not None and before.is_new)
            if state.is_new is not wanted_new:
                state = _leader_and_isr_state(number, leader_and_isr, assignment, wanted_new)
                self._made[partition] = (leader_and_isr, assignment, state)
            states[number] = state
            leaders = self._leaders[broker_id]
            leaders[state.leader] = leaders.get(state.leader, 0) + 1
            if before is not None:
                leaders[before.leader] -= 1
        if len(self._update_metadata_brokers) < len(live):
            self._update_metadata_brokers.update(dict.fromkeys(live))

    def add_stop_replica_request_for_brokers(
        self, broker_ids: Iterable[int], partition: PartitionKey, delete_partition: bool
    ) -> None:
        """These brokers stop the partition's replica, and delete its data if `delete_partition`."""
        topic, number = partition
        context = self._context
        if topic in context.topics_to_be_deleted:
            leader_epoch = EPOCH_DURING_DELETE
        else:
            leadership = context.partition_leadership_info(partition)
            leader_epoch = NO_EPOCH if leadership is None else leadership.leader_epoch
        state = StopReplicaPartitionState(number, leader_epoch, delete_partition)
        for broker_id in broker_ids:
            if broker_id not in context.live_or_shutting_down_broker_ids:
                continue
            states = self._stop_replica.setdefault(broker_id, {}).setdefault(topic, {})
            before = states.get(number)
            if before is not None and before.delete_partition and not delete_partition:
                states[number] = StopReplicaPartitionState(number, leader_epoch, True)
            else:
                states[number] = state

    def add_update_metadata_request_for_brokers(
        self, broker_ids: Iterable[int], partitions: Iterable[PartitionKey]
    ) -> None:
        """These brokers get the metadata of the partitions, and of all other partitions in this batch.

        Partitions without leadership info are left out, except while they are deleted. Without any partitions, the
        brokers get only the live brokers.
        Thousands of partitions are added in slices (slices.py).
        """
        live = self._context.live_or_shutting_down_broker_ids
        self._update_metadata_brokers.update((broker_id, None) for broker_id in broker_ids if broker_id in live)
        for partition in partitions:
            self._add_update_metadata(partition)

    def _add_update_metadata(self, partition: PartitionKey) -> None:
        context = self._context
        state = context.partition_leadership_info(partition)
        topic, number = partition
        is_deleted = topic in context.topics_to_be_deleted
        if state is None and is_deleted:
            # A former controller has deleted the partition's state, perhaps without telling all brokers.
            state = LeaderAndIsr(NO_LEADER, 0, (), context.epoch, 0)
        if state is None:
            name = f"{topic}-{number}"
            self._announce(f"Leader not yet assigned for partition {name}. Skip sending UpdateMetadataRequest.")
            return
        replicas = context.partition_full_replica_assignment(partition)[0]
        online = context.online_brokers(partition)
        offline = tuple([broker_id for broker_id in replicas if broker_id not in online])
        leader, leader_epoch, zk_version = state.leader, state.leader_epoch, state.zk_version
        if is_deleted:
            leader, leader_epoch, zk_version = LEADER_DURING_DELETE, 0, 0
        states = self._update_metadata.get(topic)
        if states is None:
            states = self._update_metadata[topic] = {}
        states[number] = UpdateMetadataPartitionState(
            number,
            state.controller_epoch,
            leader,
            leader_epoch,
            state.isr,
            zk_version,
            replicas,
            offline,
        )

    # -- sending ----------------------------------------------------------------------------------------------------

    async def send_requests_to_brokers(self, controller_epoch: int) -> None:
        """Queues all collected requests; the batch is empty afterwards."""
        slices = Slices(CHEAP_SLICE)  # In topics.
        await in_slices(self._send_leader_and_isr_requests(controller_epoch, slices))
        await in_slices(self._send_update_metadata_requests(controller_epoch, slices))
        await in_slices(self._send_stop_replica_requests(controller_epoch, slices))
        self.clear()

    def _send_leader_and_isr_requests(self, controller_epoch: int, slices: Slices) -> Steps[None]:
        for broker_id, states_of in sorted(self._leader_and_isr.items()):
            leaders = self._leaders[broker_id]
            topics = yield from mapped(self._leader_and_isr_topic, states_of.items(), slices)
            request = LeaderAndIsrRequest(
                controller_id=self._controller_id,
                controller_epoch=controller_epoch,
                broker_epoch=self._broker_epoch(broker_id),
                topic_states=topics,
                live_leaders=self._live_leaders([leader for leader, count in leaders.items() if count]),
            )
            self._send(
                broker_id, ApiKey.LEADER_AND_ISR, request, self._told(self._on_leader_and_isr_response, broker_id)
            )
            states = ((topic, state) for topic, said in states_of.items() for state in said.values())
            led = leaders.get(broker_id, 0)
            self._request_sent(controller_epoch, "LeaderAndIsr", (broker_id,), _count(states_of), led, states=states)

    def _leader_and_isr_topic(self, named: tuple[str, dict[int, LeaderAndIsrPartitionState]]) -> LeaderAndIsrTopicState:
        topic, states = named
        return LeaderAndIsrTopicState(topic, self._context.topic_ids.get(topic), list(states.values()))

    def _live_leaders(self, leaders: Collection[int]) -> list[LeaderAndIsrLiveLeader]:
        """The addresses of the leaders for their followers. Leaders without the inter-broker listener are missing."""
        listener = self._config.inter_broker_listener_name
        return [
            LeaderAndIsrLiveLeader(broker_id, endpoint.host, endpoint.port)
            for broker_id, broker in self._context.live_or_shutting_down_brokers.items()
            if broker_id in leaders
            for endpoint in broker.registration.endpoints
            if endpoint.listener_name == listener
        ]

    def _send_update_metadata_requests(self, controller_epoch: int, slices: Slices) -> Steps[None]:
        if not self._update_metadata_brokers:
            return
        topics = yield from mapped(self._update_metadata_topic, self._update_metadata.items(), slices)
        request = UpdateMetadataRequest(
            controller_id=self._controller_id,
            controller_epoch=controller_epoch,
            topic_states=topics,
            live_brokers=[
                _update_metadata_broker(broker.registration)
                for broker in self._context.live_or_shutting_down_brokers.values()
            ],
        )
        for broker_id in sorted(self._update_metadata_brokers):
            body = request.for_broker(self._broker_epoch(broker_id))
            self._send(
                broker_id, ApiKey.UPDATE_METADATA, body, self._told(self._on_update_metadata_response, broker_id)
            )
        brokers = tuple(sorted(self._update_metadata_brokers))
        self._request_sent(controller_epoch, "UpdateMetadata", brokers, _count(self._update_metadata))

    def _update_metadata_topic(
        self, named: tuple[str, dict[int, UpdateMetadataPartitionState]]
    ) -> UpdateMetadataTopicState:
        topic, states = named
        return UpdateMetadataTopicState(topic, self._context.topic_ids.get(topic), list(states.values()))

    def _send_stop_replica_requests(self, controller_epoch: int, slices: Slices) -> Steps[None]:
        if not self._stop_replica:
            return
        version = inter_broker_version(ApiKey.STOP_REPLICA, self._config.inter_broker_protocol_version)
        for broker_id, topics in sorted(self._stop_replica.items()):
            if version >= STATES_FROM:
                told = yield from mapped(_stop_replica_topic, topics.items(), slices)
                yield from self._send_stop_replica_request(controller_epoch, broker_id, told, slices)
                continue
            # Older versions delete all of their partitions or none.
            for delete in (True, False):
                if told := (yield from _partitions_to_stop(topics, delete, slices)):
                    yield from self._send_stop_replica_request(controller_epoch, broker_id, told, slices, delete)

    def _send_stop_replica_request(
        self,
        controller_epoch: int,
        broker_id: int,
        topics: list[StopReplicaTopicState],
        slices: Slices,
        delete: bool | None = None,
    ) -> Steps[None]:
        """`delete`: whether all replicas are deleted, in versions that have this once for the request."""
        request = StopReplicaRequest(
            controller_id=self._controller_id,
            controller_epoch=controller_epoch,
            broker_epoch=self._broker_epoch(broker_id),
            delete_partitions=delete is True,
            topic_states=topics,
        )
        deletes, size = False, 0
        for topic in topics:
            deletes = deletes or any(state.delete_partition for state in topic.partition_states)
            size += len(topic.partition_states)
            if slices.spend(len(topic.partition_states)):
                yield
        on_response = self._stop_replica_told(broker_id, topics) if deletes else None
        self._send(broker_id, ApiKey.STOP_REPLICA, request, on_response)
        states = (
            (topic.topic_name, (state.partition_index, state.leader_epoch, state.delete_partition))
            for topic in topics
            for state in topic.partition_states
        )
        self._request_sent(controller_epoch, "StopReplica", (broker_id,), size, delete=delete, states=states)

    def _broker_epoch(self, broker_id: int) -> int:
        return self._context.live_or_shutting_down_brokers[broker_id].epoch

    def _told(self, callback: Callable[[int, Any], None], broker_id: int) -> OnResponse:
        return lambda response: callback(broker_id, response)

    def _stop_replica_told(self, broker_id: int, topics: list[StopReplicaTopicState]) -> OnResponse:
        def on_response(response: StopReplicaResponse) -> None:
            in_deletion = [topic for topic in topics if self._context.is_topic_deletion_in_progress(topic.topic_name)]
            if in_deletion:
                self._on_stop_replica_response(broker_id, response, in_deletion)

        return on_response


def _count(topics: Mapping[str, Collection[int]]) -> int:
    return sum(map(len, topics.values()))


def _leader_and_isr_state(
    partition: int, state: LeaderAndIsr, assignment: ReplicaAssignment, is_new: bool
) -> LeaderAndIsrPartitionState:
    return LeaderAndIsrPartitionState(
        partition,
        state.controller_epoch,
        state.leader,
        state.leader_epoch,
        state.isr,
        state.zk_version,
        *assignment,
        is_new,
    )


def _update_metadata_broker(registration: BrokerRegistration) -> UpdateMetadataBroker:
    endpoints = [
        UpdateMetadataEndpoint(
            endpoint.port,
            endpoint.host,
            endpoint.listener_name,
            SECURITY_PROTOCOLS.index(endpoint.security_protocol),
        )
        for endpoint in registration.endpoints
    ]
    return UpdateMetadataBroker(id=registration.broker_id, endpoints=endpoints, rack=registration.rack)


def _stop_replica_topic(named: tuple[str, Mapping[int, StopReplicaPartitionState]]) -> StopReplicaTopicState:
    topic, states = named
    return StopReplicaTopicState(topic, list(states.values()))


def _partitions_to_stop(
    topics: Mapping[str, Mapping[int, StopReplicaPartitionState]], delete: bool, slices: Slices
) -> Steps[list[StopReplicaTopicState]]:
    """The replicas to delete, or the others."""
    chosen = []
    for topic, states in topics.items():
        partitions = [state for state in states.values() if state.delete_partition is delete]
        if partitions:
            chosen.append(StopReplicaTopicState(topic, partitions))
        if slices.spend(len(states)):
            yield
    return chosen
