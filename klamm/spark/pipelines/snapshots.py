"""What an archive keeps beside the records: the topics' configs and what groups have committed; and the way back.

Source: KIP-133 (configs), KIP-211 and KIP-98 for what a group's offsets are.
"""

from typing import Any

from klamm.net.cluster import ClusterClient
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey, request_class
from klamm.spark.network import call
from klamm.spark.options import ReadOptions
from klamm.spark.pipelines.commit_log import Snapshot, TopicSnapshot
from klamm.spark.planning import initial_position

_TOPIC = 2
# Where a config's value comes from (DescribeConfigs version 1).
_TOPIC_CONFIG = 1
_DEFAULT_REPLICATION = -1


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
        return Snapshot(topics, await _group_offsets(client, names))

    return call(options.client, ask)


async def create_topic(client: ClusterClient, name: str, topic: TopicSnapshot) -> None:
    """Creates a topic as it was, with the brokers' replication factor; no error if it is there. Raises KafkaError."""
    request = request_class(ApiKey.CREATE_TOPICS)
    configs = [
        request.CreatableTopic.CreatableTopicConfig(name=key, value=value) for key, value in topic.configs.items()
    ]
    wanted = request.CreatableTopic(
        name=name,
        num_partitions=topic.partitions,
        replication_factor=_DEFAULT_REPLICATION,
        assignments=[],
        configs=configs,
    )
    response = await client.send_to_controller(
        ApiKey.CREATE_TOPICS,
        lambda version: request(version=version, topics=[wanted], timeout_ms=30_000, validate_only=False),
        errors_of=lambda response: [answer.error_code for answer in response.topics],
    )
    for answer in response.topics:
        if answer.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise KafkaError(ErrorCode(answer.error_code), f"topic {name}: {answer.error_message or 'not created'}")


async def _describe_configs(client: ClusterClient, names: list[str]) -> dict[str, dict[str, str | None]]:
    """Of each topic the configs that were set for it."""
    request = request_class(ApiKey.DESCRIBE_CONFIGS)
    resources = [
        request.DescribeConfigsResource(resource_type=_TOPIC, resource_name=name, configuration_keys=None)
        for name in names
    ]
    response = await client.send_to_any(
        ApiKey.DESCRIBE_CONFIGS,
        lambda version: request(version=version, resources=resources),
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


async def _group_offsets(client: ClusterClient, topics: list[str]) -> dict[str, dict[str, dict[int, int]]]:
    """Of each group that has committed something for these topics, what."""
    request = request_class(ApiKey.LIST_GROUPS)
    groups: dict[str, int] = {}
    for broker in sorted(client.metadata.brokers):
        response = await client.send_to_broker(
            broker,
            ApiKey.LIST_GROUPS,
            lambda version: request(version=version),
            errors_of=lambda response: [response.error_code],
        )
        if response.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode(response.error_code), f"the groups of broker {broker}")
        groups.update((group.group_id, broker) for group in response.groups)
    found = {}
    for group, broker in sorted(groups.items()):
        offsets = await _committed(client, group, broker)
        if chosen := {topic: offsets[topic] for topic in topics if topic in offsets}:
            found[group] = chosen
    return found


async def _committed(client: ClusterClient, group: str, broker: int) -> dict[str, dict[int, int]]:
    request = request_class(ApiKey.OFFSET_FETCH)
    response = await client.send_to_broker(
        broker,
        ApiKey.OFFSET_FETCH,
        lambda version: request(version=version, group_id=group, topics=None),
        errors_of=_offset_fetch_errors,
    )
    for code in _offset_fetch_errors(response):
        if code != ErrorCode.NONE:
            raise KafkaError(ErrorCode(code), f"the offsets of group {group}")
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
