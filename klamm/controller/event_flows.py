"""Assigns each event to its flow, and answers the event.

| event of                                        | is processed in                                                  |
|-------------------------------------------------|------------------------------------------------------------------|
| brokers, disks, LeaderAndIsr responses, a stop  | broker_flows.py                                                  |
| topics, partitions, marks for deletion          | topic_flows.py, topic_deletion.py                                |
| ISR changes                                     | isr_flows.py                                                     |
| reassignments                                   | reassignment.py                                                  |
| elections that are asked for; the balance       | elections.py                                                     |
| finalized features                              | features.py                                                      |

controller.py decides which broker is the controller.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from klamm.base.slices import CHEAP_SLICE, Slices, each
from klamm.controller import broker_flows, elections, features, isr_flows, reassignment, topic_flows
from klamm.controller.context import PartitionAndReplica
from klamm.controller.events import (
    AlterIsrReceived,
    ApiPartitionReassignment,
    AutoPreferredReplicaLeaderElection,
    BrokerChange,
    BrokerModifications,
    ControlledShutdown,
    ControllerEvent,
    IsrChangeNotification,
    LeaderAndIsrResponseReceived,
    ListPartitionReassignments,
    LogDirEventNotification,
    PartitionModifications,
    PartitionReassignmentIsrChange,
    ReplicaLeaderElection,
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
from klamm.controller.parts import ControllerParts
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import PartitionKey

Flow = Callable[[Any], Awaitable[object]]
"""Processes one event. Raises ControllerMoved, ZooKeeperError and ZnodeError."""

_log = logging.getLogger(__name__)


def flows(parts: ControllerParts) -> dict[type[ControllerEvent], Flow]:
    """The events that only the active controller processes."""
    return {
        BrokerChange: lambda _event: broker_flows.broker_change(parts),
        BrokerModifications: lambda event: broker_flows.broker_modifications(parts, event.broker_id),
        LogDirEventNotification: lambda _event: broker_flows.log_dir_event_notification(parts),
        LeaderAndIsrResponseReceived: lambda event: broker_flows.leader_and_isr_response_received(parts, event),
        UpdateMetadataResponseReceived: partial(_update_metadata_response_received, parts),
        ControlledShutdown: partial(_controlled_shutdown, parts),
        TopicChange: lambda _event: topic_flows.topic_change(parts),
        PartitionModifications: lambda event: topic_flows.partition_modifications(parts, event.topic),
        TopicDeletion: lambda _event: topic_flows.topic_deletion(parts),
        TopicDeletionStopReplicaResponseReceived: partial(_stop_replica_response_received, parts),
        AlterIsrReceived: partial(_alter_isr, parts),
        IsrChangeNotification: lambda _event: isr_flows.isr_change_notification(parts),
        ApiPartitionReassignment: partial(_api_partition_reassignment, parts),
        ZkPartitionReassignment: lambda _event: reassignment.zk_partition_reassignment(parts),
        PartitionReassignmentIsrChange: lambda event: reassignment.complete_reassignments(parts, [event.partition]),
        ListPartitionReassignments: partial(_list_partition_reassignments, parts),
        ReplicaLeaderElection: partial(_replica_leader_election, parts),
        ZkPreferredReplicaElection: lambda _event: elections.zk_preferred_replica_election(parts),
        AutoPreferredReplicaLeaderElection: lambda _event: elections.auto_preferred_replica_leader_election(parts),
        UncleanLeaderElectionEnable: lambda _event: elections.unclean_leader_election_enable(parts),
        TopicUncleanLeaderElectionEnable: lambda event: elections.unclean_leader_election_enable(parts, event.topic),
        UpdateFeatures: partial(_update_features, parts),
    }


# -- answers to requests ----------------------------------------------------------------------------------------------


async def _controlled_shutdown(parts: ControllerParts, event: ControlledShutdown) -> None:
    try:
        event.resolve(await broker_flows.controlled_shutdown(parts, event.broker_id, event.broker_epoch))
    except KafkaError as error:
        event.fail(error)


async def _replica_leader_election(parts: ControllerParts, event: ReplicaLeaderElection) -> None:
    event.resolve(await elections.replica_leader_election(parts, event.partitions, event.election_type))


async def _update_features(parts: ControllerParts, event: UpdateFeatures) -> None:
    event.resolve(await features.update_features(parts, event.updates))


async def _alter_isr(parts: ControllerParts, event: AlterIsrReceived) -> None:
    try:
        event.resolve(await isr_flows.alter_isr(parts, event.request))
    except KafkaError as error:
        event.fail(error)
    else:
        await reassignment.complete_reassignments(parts, isr_flows.requested_partitions(event.request))


async def _api_partition_reassignment(parts: ControllerParts, event: ApiPartitionReassignment) -> None:
    event.resolve(await reassignment.api_partition_reassignment(parts, event.targets))


async def _list_partition_reassignments(parts: ControllerParts, event: ListPartitionReassignments) -> None:
    event.resolve(await reassignment.list_partition_reassignments(parts.context, event.partitions))


# -- responses of brokers ---------------------------------------------------------------------------------------------


async def _update_metadata_response_received(parts: ControllerParts, event: UpdateMetadataResponseReceived) -> None:
    if event.error_code != ErrorCode.NONE and parts.is_current(event.sender):
        code = ErrorCode(event.error_code)
        _log.error("broker %d answers UpdateMetadata with %s (%d)", event.sender.broker_id, code.name, code)


async def _stop_replica_response_received(
    parts: ControllerParts, event: TopicDeletionStopReplicaResponseReceived
) -> None:
    if not parts.is_current(event.sender):
        return
    failed: list[PartitionAndReplica] = []
    deleted: list[PartitionAndReplica] = []
    told: dict[PartitionKey, int] = {}
    looked_at = Slices(CHEAP_SLICE)
    async for answer in each(event.response.partition_errors, looked_at):
        told[answer.topic_name, answer.partition_index] = answer.error_code
    for topic in event.topics:
        async for state in each(topic.partition_states, looked_at):
            if state.delete_partition:
                # A replica that the response does not name is not deleted, for example because the whole request was
                # refused.
                code = told.get((topic.topic_name, state.partition_index), ErrorCode.UNKNOWN_SERVER_ERROR)
                is_deleted = event.response.error_code == code == ErrorCode.NONE
                replica = (topic.topic_name, state.partition_index), event.sender.broker_id
                (deleted if is_deleted else failed).append(replica)
    await parts.deletions.fail_replica_deletion(failed)
    if deleted:
        await parts.deletions.complete_replica_deletion(deleted)
