"""The part of an archive beside the records: the topics' configs and the groups' offsets; and its restoration.

Source: KIP-133 (configs), KIP-211 and KIP-98 for what a group's offsets are.
"""

import asyncio
from typing import Any

from klamm.client.cluster import RETRIABLE_ERRORS, ClusterClient
from klamm.client.threads import call
from klamm.net.client import Connection, Disconnected, NotSent
from klamm.protocol.apis.create_topics import CreateTopicsRequest
from klamm.protocol.apis.describe_configs import DescribeConfigsRequest
from klamm.protocol.apis.list_groups import ListGroupsRequest
from klamm.protocol.apis.offset_fetch import OffsetFetchRequest
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.spark.options import ReadOptions
from klamm.spark.pipelines.commit_log import Snapshot, TopicSnapshot
from klamm.spark.read.planning import initial_position

_TOPIC = 2
# Where a config's value comes from (DescribeConfigs version 1).
_TOPIC_CONFIG = 1
_DEFAULT_REPLICATION = -1
_BACKOFF_S = 0.2
# Gone when the metadata is read again: no broker, or no coordinator, where there was one.
_PASSING_ERRORS = RETRIABLE_ERRORS | {ErrorCode.BROKER_NOT_AVAILABLE}

GroupOffsets = dict[str, dict[int, int]]
"""What a group has committed: `{topic: {partition: offset}}`."""


def take_snapshot(options: ReadOptions) -> Snapshot:
    """The topics that are read and the groups of the whole cluster. Raises KafkaError and ClientError."""
    position = initial_position(options)
    names = sorted({partition.topic for partition in position.offsets})

    async def ask(client: ClusterClient) -> Snapshot:
        configs = await _describe_configs(client, names)
        described = (await client.refresh_metadata(names)).topics
        topics = {
            name: TopicSnapshot(position.topic_ids.get(name, ""), len(described[name].partitions), configs[name])
            for name in names
        }
        return Snapshot(topics, await _group_offsets(client, names, options.client.retry_timeout_ms))

    return call(options.client, ask)


async def create_topic(client: ClusterClient, name: str, topic: TopicSnapshot) -> None:
    """Creates a topic as it was, with the brokers' replication factor; no error if it is there. Raises KafkaError."""
    configs = [
        CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name=key, value=value)
        for key, value in topic.configs.items()
    ]
    wanted = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=topic.partitions,
        replication_factor=_DEFAULT_REPLICATION,
        assignments=[],
        configs=configs,
    )
    response = await client.send_to_controller(
        ApiKey.CREATE_TOPICS,
        lambda version: CreateTopicsRequest(topics=[wanted], timeout_ms=30_000, validate_only=False),
        errors_of=lambda response: [answer.error_code for answer in response.topics],
    )
    for answer in response.topics:
        if answer.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise KafkaError(ErrorCode(answer.error_code), f"topic {name}: {answer.error_message or 'not created'}")


async def _describe_configs(client: ClusterClient, names: list[str]) -> dict[str, dict[str, str | None]]:
    """The configs that were set for each topic."""
    resources = [
        DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_TOPIC, resource_name=name, configuration_keys=None
        )
        for name in names
    ]
    response = await client.send_to_any(
        ApiKey.DESCRIBE_CONFIGS,
        lambda version: DescribeConfigsRequest(resources=resources),
        errors_of=lambda response: [result.error_code for result in response.results],
    )
    for result in response.results:
        if result.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode(result.error_code), f"the configs of topic {result.resource_name}")
    return {
        result.resource_name: {
            config.name: config.value for config in result.configs if config.config_source == _TOPIC_CONFIG
        }
        for result in response.results
    }


async def _group_offsets(client: ClusterClient, topics: list[str], timeout_ms: int) -> dict[str, GroupOffsets]:
    """The committed offsets of each group that has any for these topics.

    Groups move when a broker dies; then all requests are repeated, until the time is over.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    while True:
        try:
            return await _group_offsets_now(client, topics)
        except (NotSent, Disconnected, KafkaError) as error:
            if (isinstance(error, KafkaError) and error.code not in _PASSING_ERRORS) or loop.time() >= deadline:
                raise
        await asyncio.sleep(_BACKOFF_S)
        await client.refresh_metadata(topics)


async def _group_offsets_now(client: ClusterClient, topics: list[str]) -> dict[str, GroupOffsets]:
    groups: dict[str, Connection] = {}
    for broker in sorted(client.metadata.brokers):
        connection = await client.connection_to(broker)
        response = await connection.send(ApiKey.LIST_GROUPS, lambda version: ListGroupsRequest())
        _check(response.error_code, f"the groups of broker {broker}")
        groups.update((group.group_id, connection) for group in response.groups)
    found = {}
    for group, connection in sorted(groups.items(), key=lambda item: item[0]):
        offsets = await _committed(connection, group)
        if chosen := {topic: offsets[topic] for topic in topics if topic in offsets}:
            found[group] = chosen
    return found


async def _committed(connection: Connection, group: str) -> GroupOffsets:
    response = await connection.send(
        ApiKey.OFFSET_FETCH, lambda version: OffsetFetchRequest(group_id=group, topics=None)
    )
    for code in _offset_fetch_errors(response):
        _check(code, f"the offsets of group {group}")
    return {
        topic.name: {
            partition.partition_index: partition.committed_offset
            for partition in topic.partitions
            if partition.committed_offset >= 0
        }
        for topic in response.topics
    }


def _offset_fetch_errors(response: Any) -> list[int]:
    return [
        response.error_code,
        *(partition.error_code for topic in response.topics for partition in topic.partitions),
    ]


def _check(code: int, what: str) -> None:
    if code != ErrorCode.NONE:
        raise KafkaError(ErrorCode(code), what)
