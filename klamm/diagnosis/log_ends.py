"""Reads the inputs of election plans: the log end offsets of replicas and the committed offsets of groups."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from klamm.access.clients import error_line
from klamm.client.admin.groups import list_groups
from klamm.client.admin.log_dirs import TopicPartitionReplica
from klamm.client.admin.reassignments import PartitionReassignment
from klamm.client.cluster import ClusterClient
from klamm.client.consumer.offsets import ONE_ATTEMPT, ListedOffset, list_consumer_group_offsets, list_replica_offsets
from klamm.client.coordinated import listed
from klamm.client.fan_out import CoordinatorType
from klamm.diagnosis.cluster_view import ClusterView, read_cluster
from klamm.diagnosis.election_plans import Committed, Scope, UncleanPlan, leaderless, unclean_plan
from klamm.net.client import ClientError
from klamm.protocol.error_codes import KafkaError
from klamm.protocol.vocabulary import TopicPartition

COMMITS_TIMEOUT_S = 10.0


async def replica_ends(
    client: ClusterClient, view: ClusterView, replicas: Mapping[TopicPartition, Iterable[int]]
) -> dict[TopicPartition, dict[int, int | KafkaError]]:
    """The log end offsets of these replicas on live brokers."""
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
    """The plan, with the loss according to live replicas and consumer groups. With `reassignments` the controller is
    not asked for them."""
    view = await read_cluster(client, scope.topics, needs_reassignments=False, reassignments=reassignments)
    wanted = scope.of(view)
    due = leaderless(view, wanted)
    ends = await replica_ends(client, view, {each: view.partitions[each].replicas for each in due})
    committed, gap = await _committed(client, due) if due else ({}, None)
    return view, replace(unclean_plan(view, wanted, ends, committed), commits_gap=gap)


async def _committed(client: ClusterClient, partitions: Collection[TopicPartition]) -> tuple[Committed, str | None]:
    """The largest committed offset of any group in each partition, and why commits may be missing, or None. Commits
    that cannot be read soon are left out."""
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
