"""Leader elections on request, and those that bring leadership back to preferred replicas.

| cause                                                     | elections           | event                              |
|-----------------------------------------------------------|---------------------|------------------------------------|
| an ElectLeaders request                                   | preferred, unclean  | ReplicaLeaderElection              |
| /admin/preferred_replica_election                         | preferred           | ZkPreferredReplicaElection         |
| the timer, every leader.imbalance.check.interval.seconds  | preferred           | AutoPreferredReplicaLeaderElection |
| unclean.leader.election.enable was switched on            | offline partitions  | UncleanLeaderElectionEnable        |
| the same, for one topic                                   | offline partitions  | TopicUncleanLeaderElectionEnable   |

What must stay true:
- Leadership moves only to a replica that is online and in the ISR. The exceptions are an unclean ElectLeaders, for
  partitions without a live leader only, and elections that a topic's configuration allows.
- The request in ZooKeeper is removed after the attempt, whatever its result; to ask again, create it again. A request
  that a controller leaves behind is carried out by the next controller.
- A target replica that was elected uncleanly is the whole ISR, and may complete a reassignment.
- A reassignment does not keep its partition, or others, from getting the preferred leader back (KAFKA-10149).
"""

from collections.abc import Iterable
from typing import NamedTuple

from klamm.base.slices import each, slices
from klamm.controller.context import ControllerContext
from klamm.controller.leader_election import (
    ElectionResults,
    ElectionStrategy,
    preferred_replica_partition_leader_election,
)
from klamm.controller.parts import ControllerParts
from klamm.controller.reassignment import complete_reassignments
from klamm.controller.states import PartitionState
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ElectionType, PartitionKey
from klamm.znodes.topics import LeaderAndIsr

# After a failover brokers come back one after another; soon most of their lost leaderships can be given back.
FIRST_REBALANCE_DELAY_SECONDS = 5

STRATEGIES = {
    ElectionType.PREFERRED: ElectionStrategy.PREFERRED_REPLICA,
    ElectionType.UNCLEAN: ElectionStrategy.OFFLINE_ALLOW_UNCLEAN,
}
# Why a partition got no leader.
NOT_AVAILABLE = {
    ElectionType.PREFERRED: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    ElectionType.UNCLEAN: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}

_NAMED = 10  # The most partitions that a log line names.


async def replica_leader_election(
    parts: ControllerParts, partitions: Iterable[PartitionKey], election_type: ElectionType
) -> ElectionResults:
    """Elects leaders for those of the partitions that need one.

    The result has a KafkaError for each partition without an election: UNKNOWN_TOPIC_OR_PARTITION,
    INVALID_TOPIC_EXCEPTION (the topic is being deleted), ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE,
    ELIGIBLE_LEADERS_NOT_AVAILABLE.
    """
    partitions = list(dict.fromkeys(partitions))
    names = ",".join(f"{topic}-{number}" for topic, number in partitions[:_NAMED])
    more = f" and {len(partitions) - _NAMED} more" if len(partitions) > _NAMED else ""
    parts.announce(f"Starting replica leader election ({election_type.name}) for partitions {names}{more}")
    results: ElectionResults = {}
    electable = []
    async for piece in slices(partitions):
        for partition in piece:
            error = _objection(parts.context, partition, election_type)
            if error is None:
                electable.append(partition)
            else:
                results[partition] = error
    outcomes = await parts.partitions.handle_state_changes(electable, PartitionState.ONLINE, STRATEGIES[election_type])
    if election_type is ElectionType.UNCLEAN:
        await complete_reassignments(parts, electable)
    async for partition, outcome in each(outcomes.items()):
        if isinstance(outcome, LeaderAndIsr):
            results[partition] = outcome.leader
        else:
            results[partition] = KafkaError(NOT_AVAILABLE[election_type], str(outcome))
    return results


def _objection(context: ControllerContext, partition: PartitionKey, election_type: ElectionType) -> KafkaError | None:
    """The reason why no leader is elected; None if a leader is elected."""
    replicas = context.partition_replica_assignment(partition)
    if not replicas:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    if context.is_topic_queued_up_for_deletion(partition[0]):
        return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is being deleted")
    state = context.partition_leadership_info(partition)
    if state is None:
        return None
    if election_type is ElectionType.PREFERRED:
        is_led = state.leader == replicas[0]
    else:
        is_led = state.leader in context.live_broker_ids
    return KafkaError(ErrorCode.ELECTION_NOT_NEEDED) if is_led else None


async def zk_preferred_replica_election(parts: ControllerParts) -> None:
    """Holds the elections of /admin/preferred_replica_election, and removes the znode.

    The znode is watched from then on: its removal is the next event, which looks for a new request.
    """
    partitions = await parts.store.preferred_replica_election(parts.on_preferred_replica_election)
    if partitions is None:
        return
    results = await replica_leader_election(parts, partitions, ElectionType.PREFERRED)
    _announce_results(parts, "asked for in ZooKeeper", results)
    await parts.store.delete_preferred_replica_election(parts.guard)


async def auto_preferred_replica_leader_election(parts: ControllerParts) -> None:
    """Gives brokers their leaderships back if they have lost too many of them, and schedules the next check."""
    percentage = parts.config.current.leader_imbalance_per_broker_percentage
    wanted = []
    for broker_id, leaderships in sorted((await _leaderships_by_preferred_leader(parts.context)).items()):
        # leader.imbalance.per.broker.percentage itself is still tolerated.
        if len(leaderships.lost) * 100 > percentage * leaderships.total:
            parts.announce(f"Broker {broker_id} has lost {len(leaderships.lost)} of {leaderships.total} leaderships")
            async for piece in slices(leaderships.lost):
                wanted += [
                    partition for partition in piece if _can_preferred_replica_be_leader(parts.context, partition)
                ]
    if wanted:
        results = await replica_leader_election(parts, wanted, ElectionType.PREFERRED)
        _announce_results(parts, "that restores the balance", results)
    parts.schedule_leader_rebalance(parts.config.current.leader_imbalance_check_interval_seconds)


class _Leaderships(NamedTuple):
    """The number of partitions whose preferred leader is one broker, and those of them that other brokers lead."""

    total: int
    lost: list[PartitionKey]


async def _leaderships_by_preferred_leader(context: ControllerContext) -> dict[int, _Leaderships]:
    found: dict[int, _Leaderships] = {}
    async for piece in slices(context.all_partitions()):
        for partition in piece:
            replicas = context.partition_replica_assignment(partition)
            if not replicas or context.is_topic_queued_up_for_deletion(partition[0]):
                continue
            total, lost = found.get(replicas[0]) or (0, [])
            state = context.partition_leadership_info(partition)
            if state is not None and state.leader != replicas[0]:
                lost.append(partition)
            found[replicas[0]] = _Leaderships(total + 1, lost)
    return found


def _can_preferred_replica_be_leader(context: ControllerContext, partition: PartitionKey) -> bool:
    state = context.partition_leadership_info(partition)
    replicas = context.partition_replica_assignment(partition)
    online = context.online_brokers(partition)
    return state is not None and preferred_replica_partition_leader_election(replicas, state.isr, online) is not None


async def unclean_leader_election_enable(parts: ControllerParts, topic: str | None = None) -> None:
    """Unclean elections are now allowed (in one topic): tries again to elect leaders for partitions without one."""
    await parts.partitions.trigger_online_partition_state_change(topic)
    await complete_reassignments(parts, parts.context.partitions_being_reassigned)


def _announce_results(parts: ControllerParts, what: str, results: ElectionResults) -> None:
    errors = {partition: result for partition, result in results.items() if isinstance(result, KafkaError)}
    parts.announce(f"Preferred replica election {what}: {len(results) - len(errors)} led, {len(errors)} not")
    for (topic, number), error in list(errors.items())[:_NAMED]:
        parts.announce(f"{topic}-{number} is not led by its preferred replica: {error}")
