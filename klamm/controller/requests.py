"""The broker's requests to its own controller, for clients and for other brokers.

Each request becomes an event and waits for its answer, which the processing of the event gives (event_flows.py). If
this broker is not the controller, or resigns first, the event itself answers (`preempt`).
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from klamm.controller import isr_flows
from klamm.controller.context import ReplicaAssignment
from klamm.controller.events import (
    AlterIsrReceived,
    ApiPartitionReassignment,
    ControlledShutdown,
    ControllerEvent,
    ListPartitionReassignments,
    ReplicaLeaderElection,
    TopicUncleanLeaderElectionEnable,
    UncleanLeaderElectionEnable,
    UpdateFeatures,
)
from klamm.controller.feature_updates import FeatureResults, FeatureUpdate
from klamm.controller.leader_election import ElectionResults
from klamm.protocol.apis.alter_isr import AlterIsrRequest, AlterIsrResponse
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.vocabulary import ElectionType, PartitionKey

_log = logging.getLogger(__name__)


class ControllerRequests:
    """See the module. `put` queues an event."""

    def __init__(self, put: Callable[[ControllerEvent], None]) -> None:
        self._put = put

    async def alter_isr(self, request: AlterIsrRequest) -> AlterIsrResponse:
        """Answers an AlterIsr request; errors are in the response. If it is cancelled, the result is unknown."""
        event = AlterIsrReceived(request, answer=_future())
        self._put(event)
        try:
            return await event.answer
        except KafkaError as error:
            _log.info("AlterIsr of broker %d refused: %s", request.broker_id, error)
            return isr_flows.error_response(error.code)

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> list[PartitionKey]:
        """Moves leadership away from a broker that wants to stop. Returns the partitions that it still leads.

        Raises KafkaError STALE_CONTROLLER_EPOCH (this broker is not the controller), STALE_BROKER_EPOCH,
        BROKER_NOT_AVAILABLE.
        """
        event = ControlledShutdown(broker_id, broker_epoch, answer=_future())
        self._put(event)
        return await event.answer

    async def elect_leaders(self, partitions: Sequence[PartitionKey], election_type: ElectionType) -> ElectionResults:
        """Answers ElectLeaders: each partition's new leader, or why it got none. Raises KafkaError NOT_CONTROLLER.

        The brokers may not know the new leaders yet.
        """
        event = ReplicaLeaderElection(partitions, election_type, answer=_future())
        self._put(event)
        return await event.answer

    def enable_default_unclean_leader_election(self) -> None:
        """unclean.leader.election.enable was switched on for all topics without a value of their own."""
        self._put(UncleanLeaderElectionEnable())

    def enable_topic_unclean_leader_election(self, topic: str) -> None:
        self._put(TopicUncleanLeaderElectionEnable(topic))

    async def update_features(self, updates: Sequence[FeatureUpdate]) -> FeatureResults:
        """Answers UpdateFeatures. Raises KafkaError NOT_CONTROLLER; the allowed updates may have been written then."""
        event = UpdateFeatures(updates, answer=_future())
        self._put(event)
        return await event.answer

    async def alter_partition_reassignments(
        self, targets: Mapping[PartitionKey, tuple[int, ...] | None]
    ) -> Mapping[PartitionKey, KafkaError | None]:
        """Begins reassignments to these brokers; None cancels a reassignment. Returns those that could not begin.

        Raises KafkaError NOT_CONTROLLER; some or all reassignments may have begun then.
        """
        event = ApiPartitionReassignment(targets, answer=_future())
        self._put(event)
        return await event.answer

    async def list_partition_reassignments(
        self, partitions: Sequence[PartitionKey] | None
    ) -> Mapping[PartitionKey, ReplicaAssignment]:
        """The partitions among these (None: all) that are being reassigned. Raises KafkaError NOT_CONTROLLER."""
        event = ListPartitionReassignments(partitions, answer=_future())
        self._put(event)
        return await event.answer


def _future() -> "asyncio.Future[Any]":
    return asyncio.get_running_loop().create_future()
