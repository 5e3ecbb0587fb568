"""`klamm topics` over the wire protocol: reads topics as values and carries plans out, on any Kafka since 2.4."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from klamm.access.clients import is_silent, succeeded
from klamm.base.slices import slices
from klamm.cli.topics.plans import Alteration
from klamm.cli.topics.selection import Selection
from klamm.client.admin.configs import (
    ConfigEntry,
    ConfigResource,
    describe_configs,
    incremental_alter_configs,
)
from klamm.client.admin.log_dirs import TopicPartitionReplica
from klamm.client.admin.topics import NewPartitions, create_partitions
from klamm.client.cluster import ClusterClient
from klamm.client.consumer.offsets import ListedOffset, list_replica_offsets
from klamm.config.definition import ConfigSource
from klamm.diagnosis.cluster_facts import TOPICS_AT_ONCE
from klamm.diagnosis.cluster_view import ClusterView, PartitionView, read_cluster
from klamm.diagnosis.partition_health import MIN_ISR, UNCLEAN, is_well
from klamm.diagnosis.reasons import LogEnds, explained, replicas_to_ask
from klamm.diagnosis.topic_descriptions import TopicDescription
from klamm.processes.tool_errors import ToolError
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import AlterConfigOp, ConfigResourceType, OpType


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of a cluster by name, and its live brokers."""

    view: ClusterView
    topics: Mapping[str, TopicDescription]

    @property
    def live(self) -> AbstractSet[int]:
        return self.view.brokers.keys()


async def read_topics(client: ClusterClient, selection: Selection) -> Topics:
    """The selected topics with their configs. A topic that is deleted meanwhile is left out."""
    view = await read_cluster(client, needs_reassignments=False)
    of_topics = view.of_topics()
    names = selection.of(of_topics)
    topics = {}
    # Read in slices: all configs of all topics of a large cluster would take a gigabyte.
    async for some in slices(names, TOPICS_AT_ONCE):
        answers = await describe_configs(client, [ConfigResource(ConfigResourceType.TOPIC, name) for name in some])
        for resource, entries in answers.items():
            if isinstance(entries, KafkaError):
                if entries.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    continue
                raise entries
            topics[resource.name] = _description(resource.name, view, of_topics[resource.name], entries)
    return Topics(view, topics)


def _description(
    name: str, view: ClusterView, partitions: Mapping[int, PartitionView], entries: Mapping[str, ConfigEntry]
) -> TopicDescription:
    minimum, unclean = entries.get(MIN_ISR), entries.get(UNCLEAN)
    return TopicDescription(
        name,
        view.topic_ids.get(name),
        partitions,
        {entry.name: entry.value for entry in entries.values() if entry.source is not ConfigSource.DEFAULT_CONFIG},
        None if minimum is None or minimum.value is None else int(minimum.value),
        None if unclean is None else unclean.value == "true",
    )


async def explain(
    client: ClusterClient, found: Topics, shown: Mapping[str, Iterable[int]], *, about_preferred: bool
) -> tuple[dict[str, TopicDescription], dict[int, str]]:
    """The topics with the reasons of the shown partitions, and the brokers that did not answer.

    Asks out-of-sync replicas for their log end offsets.
    """
    live = found.live
    replicas = [
        TopicPartitionReplica(name, number, broker_id)
        for name, numbers in shown.items()
        for number in numbers
        if not is_well(partition := found.topics[name].partitions[number], live, found.topics[name].min_insync_replicas)
        for broker_id in replicas_to_ask(partition, live)
    ]
    ends = await list_replica_offsets(client, replicas) if replicas else {}
    by_topic: dict[str, dict[int, dict[int, int | KafkaError]]] = {}
    for (name, number, broker_id), end in ends.items():
        of_partition = by_topic.setdefault(name, {}).setdefault(number, {})
        of_partition[broker_id] = end.offset if isinstance(end, ListedOffset) else end
    explained_topics: dict[str, TopicDescription] = {}
    for name, numbers in shown.items():
        log_ends: Mapping[int, LogEnds] = by_topic.get(name, {})
        explained_topics[name] = explained(found.topics[name], numbers, live, log_ends, about_preferred=about_preferred)
    silent = {
        broker_id: end.message
        for (_, _, broker_id), end in ends.items()
        if isinstance(end, KafkaError) and is_silent(end)
    }
    return explained_topics, silent


async def own_configs(
    client: ClusterClient, names: Sequence[str], known: Sequence[str] = ()
) -> dict[str, dict[str, str | None]]:
    """The configs that each topic sets itself. Raises ToolError if a name in `known` is not a topic config."""
    answers = await describe_configs(client, [ConfigResource(ConfigResourceType.TOPIC, name) for name in names])
    own = {}
    for resource, answer in answers.items():
        entries = succeeded(answer)
        if unknown := [key for key in known if key not in entries]:
            raise ToolError(f"{', '.join(unknown)}: not a topic config")
        own[resource.name] = {
            each.name: each.value for each in entries.values() if each.source is ConfigSource.DYNAMIC_TOPIC_CONFIG
        }
    return own


async def add_partitions(
    client: ClusterClient, changes: Sequence[Alteration], *, validate_only: bool = False
) -> dict[str, KafkaError | None]:
    wanted = {
        each.topic: NewPartitions(each.partitions, None if each.assignment is None else list(each.assignment.values()))
        for each in changes
        if each.partitions is not None
    }
    return await create_partitions(client, wanted, validate_only=validate_only) if wanted else {}


async def change_configs(
    client: ClusterClient, changes: Sequence[Alteration], *, validate_only: bool = False
) -> dict[str, KafkaError | None]:
    """Sets and deletes single configs. Other configs stay, also those that another client sets at the same time."""
    wanted = {
        ConfigResource(ConfigResourceType.TOPIC, each.topic): [
            AlterConfigOp(key, value, OpType.DELETE if value is None else OpType.SET)
            for key, value in each.configs.items()
        ]
        for each in changes
        if each.configs
    }
    results = await incremental_alter_configs(client, wanted, validate_only=validate_only) if wanted else {}
    return {resource.name: error for resource, error in results.items()}
