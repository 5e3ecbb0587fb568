"""Takes the snapshots of an archive: the topics' configs and the groups' offsets.

Source: KIP-133 (configs), KIP-211 and KIP-98 (offsets of groups).
"""

from klamm.client.admin.configs import ConfigResource, describe_configs
from klamm.client.admin.groups import list_groups
from klamm.client.cluster import ClusterClient
from klamm.client.consumer.offsets import list_consumer_group_offsets
from klamm.client.fan_out import checked
from klamm.client.retries import RETRIABLE_ERRORS
from klamm.client.threads import call
from klamm.config.definition import ConfigSource
from klamm.protocol.vocabulary import ConfigResourceType
from klamm.spark.options import ReadOptions
from klamm.spark.pipelines.commit_log import Snapshot, TopicSnapshot
from klamm.spark.read.planning import initial_position

GroupOffsets = dict[str, dict[int, int]]
"""The committed offsets of a group: `{topic: {partition: offset}}`."""


def take_snapshot(options: ReadOptions) -> Snapshot:
    """A snapshot of the topics that `options` select, and of all groups of the cluster. Raises KafkaError and
    ClientError."""
    position = initial_position(options)
    names = sorted({partition.topic for partition in position.offsets})

    async def ask(client: ClusterClient) -> Snapshot:
        configs = await _describe_configs(client, names)
        described = (await client.refresh_metadata(names)).topics
        topics = {
            name: TopicSnapshot(position.topic_ids.get(name, ""), len(described[name].partitions), configs[name])
            for name in names
        }
        return Snapshot(topics, await _group_offsets(client, names))

    return call(options.client, ask)


async def _describe_configs(client: ClusterClient, names: list[str]) -> dict[str, dict[str, str | None]]:
    """The configs that were set for each topic."""
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    described = await describe_configs(client, resources, retriable=RETRIABLE_ERRORS)
    return {
        resource.name: {
            entry.name: entry.value
            for entry in checked(entries).values()
            if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG
        }
        for resource, entries in described.items()
    }


async def _group_offsets(client: ClusterClient, topics: list[str]) -> dict[str, GroupOffsets]:
    """The committed offsets of each group with offsets for these topics."""
    groups = [listing.group for listing in await list_groups(client)]
    found: dict[str, GroupOffsets] = {}
    for group, committed in (await list_consumer_group_offsets(client, groups)).items():
        for partition, each in checked(committed).items():
            if partition.topic in topics:
                found.setdefault(group, {}).setdefault(partition.topic, {})[partition.partition] = each.offset
    return found
