"""Checks that a coordinator forgets the committed offsets of a deleted topic.

What must stay true: after a broker has handled an UpdateMetadata that says that a partition is deleted, no group that
it coordinates has an offset of that partition from before. Otherwise consumers would begin to read a new topic of that
name at the offset where the old topic ended. The rule holds for any earlier metadata of the broker, and for repeated
requests.

The coordinator does not wait for the tombstones that tell the next coordinator (see `klamm.coordinator`), so the check
runs right after each request, not at the end of a run.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from klamm.base.environment import Environment
from klamm.base.slices import Steps
from klamm.base.tasks import OnFailure, start_task
from klamm.broker.requests.services import Services
from klamm.protocol.apis.update_metadata import LEADER_DURING_DELETE, UpdateMetadataRequest
from klamm.protocol.error_codes import ErrorCode
from klamm.protocol.vocabulary import GROUP_METADATA_TOPIC_NAME, PartitionKey
from klamm.simulation.machine.environment import SimulatedEnvironment
from klamm.simulation.machine.process import SimulationFailure

T = TypeVar("T")

LOAD_CHECK_INTERVAL_S = 0.05
# For runs with wrong clocks.
MOST_CLOCK_ERROR_MS = 5_000


def watch_deletions(services: Services, on_stale: OnFailure) -> None:
    """From now on the broker is checked after each UpdateMetadata; `on_stale` gets the SimulationFailure."""
    manager = services.replica_manager
    update_metadata = manager.update_metadata

    async def witnessed(request: UpdateMetadataRequest, apply: Callable[[], Steps[T]], correlation_id: int = 0) -> T:
        result = await update_metadata(request, apply, correlation_id)
        if deleted := _deleted(request):
            start_task(_check(services, deleted), on_stale)
        return result

    manager.update_metadata = witnessed  # type: ignore[method-assign]  # the request is seen nowhere else


def _deleted(request: UpdateMetadataRequest) -> list[PartitionKey]:
    return [
        (topic.topic_name, state.partition_index)
        for topic in request.topic_states
        for state in topic.partition_states
        if state.leader == LEADER_DURING_DELETE
    ]


def _terms(services: Services) -> dict[int, int]:
    """The partitions of __consumer_offsets that this broker leads, with the leader epoch."""
    return {
        number: partition.leading_since_epoch
        for (topic, number), partition in services.replica_manager.partitions.items()
        if topic == GROUP_METADATA_TOPIC_NAME and partition.is_leader
    }


async def _check(services: Services, deleted: list[PartitionKey]) -> None:
    """Checks the groups that this broker coordinates now. Groups that are still loading are checked once loaded."""
    told_at_ms, terms = services.environment.now_ms() - _clock_error_ms(services.environment), _terms(services)
    coordinator = services.group_coordinator
    error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    while error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        error, groups = coordinator.list_groups(())
        now = _terms(services)
        for group_id in [group.group_id for group in groups]:
            partition = services.offsets_topic.partition_for(group_id)
            if partition in terms and now.get(partition) == terms[partition]:
                _check_group(services, group_id, deleted, told_at_ms)
        await asyncio.sleep(LOAD_CHECK_INTERVAL_S)


def _clock_error_ms(environment: Environment) -> int:
    """How far the clock may have been behind when a coordinator wrote an offset."""
    is_right = isinstance(environment, SimulatedEnvironment) and environment.clock.is_right
    return 0 if is_right else MOST_CLOCK_ERROR_MS


def _check_group(services: Services, group_id: str, deleted: list[PartitionKey], told_at_ms: int) -> None:
    _, offsets = services.group_coordinator.fetch_offsets(group_id, deleted, require_stable=False)
    stale = {
        key: offset
        for key, (_, offset) in offsets.items()
        if offset is not None and offset.commit_timestamp_ms < told_at_ms
    }
    if stale:
        raise SimulationFailure(
            f"broker {services.broker_id} was told that {deleted} are deleted; group {group_id} still has {stale}"
        )
