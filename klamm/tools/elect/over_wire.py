"""Elections over the wire protocol, and what can be known about the loss of an unclean one."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from klamm.client.cluster import ClusterClient
from klamm.client.coordinated import listed
from klamm.client.elections import elect_leaders
from klamm.client.fan_out import CoordinatorType
from klamm.client.groups import list_groups
from klamm.client.log_dirs import TopicPartitionReplica
from klamm.client.offsets import ONE_ATTEMPT, ListedOffset, list_consumer_group_offsets, list_replica_offsets
from klamm.client.reassignments import PartitionReassignment
from klamm.net.client import ClientError
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ElectionType, TopicPartition
from klamm.tools.clients import error_line
from klamm.tools.cluster_view import ClusterView, read_cluster
from klamm.tools.elect.batches import NOT_NEEDED
from klamm.tools.elect.plans import Committed, PartitionLogEnds, Scope, UncleanPlan, leaderless, unclean_plan

COMMITS_TIMEOUT_S = 10.0


class WireElections:
    """An `Access`."""

    def __init__(self, client: ClusterClient, election_type: ElectionType) -> None:
        self._client = client
        self._election_type = election_type

    async def look(self, topics: Sequence[str]) -> ClusterView:
        return await read_cluster(self._client, topics, needs_reassignments=False)

    async def log_ends(self, view: ClusterView, partitions: Sequence[TopicPartition]) -> PartitionLogEnds:
        asked = {each: {view.partitions[each].leader, view.partitions[each].replicas[0]} for each in partitions}
        return await replica_ends(self._client, view, asked)

    async def elect(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, str | None]:
        results = await elect_leaders(self._client, self._election_type, partitions)
        return {partition: None if error is None else _text(error) for partition, error in results.items()}


def _text(error: KafkaError) -> str:
    return NOT_NEEDED if error.code is ErrorCode.ELECTION_NOT_NEEDED else error_line(error)


async def replica_ends(
    client: ClusterClient, view: ClusterView, replicas: Mapping[TopicPartition, Iterable[int]]
) -> dict[TopicPartition, dict[int, int | KafkaError]]:
    """Where the logs of these replicas end, as far as their brokers are live."""
    asked = [
        TopicPartitionReplica(*partition, broker_id)
        for partition, broker_ids in replicas.items()
        for broker_id in sorted(broker_ids)
        if broker_id in view.brokers
    ]
    ends: dict[TopicPartition, dict[int, int | KafkaError]] = {}
    for (topic, number, broker_id), end in (await list_replica_offsets(client, asked) if asked else {}).items():
        known = end.offset if isinstance(end, ListedOffset) else end
        ends.setdefault(TopicPartition(topic, number), {})[broker_id] = known
    return ends


async def read_unclean_plan(
    client: ClusterClient,
    scope: Scope,
    reassignments: Mapping[TopicPartition, PartitionReassignment] | None = None,
) -> tuple[ClusterView, UncleanPlan]:
    """The plan, with what the live replicas and the consumer groups tell about the loss. With `reassignments` the
    controller is not asked for them."""
    view = await read_cluster(client, scope.topics, needs_reassignments=False, reassignments=reassignments)
    wanted = scope.of(view)
    due = leaderless(view, wanted)
    ends = await replica_ends(client, view, {each: view.partitions[each].replicas for each in due})
    committed, gap = await _committed(client, due) if due else ({}, None)
    return view, replace(unclean_plan(view, wanted, ends, committed), commits_gap=gap)


async def _committed(client: ClusterClient, partitions: Collection[TopicPartition]) -> tuple[Committed, str | None]:
    """The largest offset that any group has committed in each partition, and why commits may be missing, if they may:
    what cannot be found out soon is left out."""
    try:
        async with asyncio.timeout(COMMITS_TIMEOUT_S):
            listings, lost = await listed(client, CoordinatorType.GROUP, list_groups)
            groups = sorted(listing.group for listing in listings)
            found = await list_consumer_group_offsets(client, groups, retry=ONE_ATTEMPT)
    except TimeoutError:
        return {}, f"the groups' offsets were not all told within {COMMITS_TIMEOUT_S:.0f} s"
    except (KafkaError, ClientError) as error:
        return {}, error_line(error) if isinstance(error, KafkaError) else str(error)
    gap = None if lost is None else error_line(lost)
    furthest: dict[TopicPartition, tuple[int, str]] = {}
    wanted = set(partitions)
    for group, offsets in found.items():
        if isinstance(offsets, KafkaError):
            gap = gap or f"group {group}: {error_line(offsets)}"
            continue
        for partition, committed in offsets.items():
            if partition in wanted and committed.offset > furthest.get(partition, (-1, ""))[0]:
                furthest[partition] = (committed.offset, group)
    return furthest, gap
