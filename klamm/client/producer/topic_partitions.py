"""The partitions of the topics that a producer writes to. Brokers may create missing topics."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from klamm.client.cluster import ClusterClient
from klamm.client.metadata import metadata_request
from klamm.protocol.apis.metadata import MetadataResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    """The number of a topic's partitions, and those with a leader."""

    count: int
    available: list[int]


async def describe_topics(client: ClusterClient, topics: Iterable[str]) -> dict[str, TopicPartitions]:
    """The partitions of these topics. Brokers with auto.create.topics.enable create missing topics.

    Raises KafkaError if a topic does not exist within the client's time, or may not be written to.
    """
    names = list(topics)
    response = await client.send_to_any(
        ApiKey.METADATA,
        lambda version: metadata_request(version, names, creates_topics=True),
        errors_of=lambda response: _topic_errors(response, names).values(),
    )
    for name, code in _topic_errors(response, names).items():
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        if code != ErrorCode.NONE:
            raise KafkaError(ErrorCode(code), f"topic {name}")
    return {topic.name: _partitions(topic) for topic in response.topics if topic.name in names}


def _partitions(topic: MetadataResponse.MetadataResponseTopic) -> TopicPartitions:
    count = len(topic.partitions)
    led = [partition.partition_index for partition in topic.partitions if partition.leader_id >= 0]
    return TopicPartitions(count, sorted(led) or list(range(count)))


def _topic_errors(response: MetadataResponse, names: Sequence[str]) -> dict[str, int]:
    """The error of each topic. A topic without partitions has no leader yet."""
    described = {topic.name: topic for topic in response.topics}
    errors = {}
    for name in names:
        topic = described.get(name)
        errors[name] = int(ErrorCode.LEADER_NOT_AVAILABLE)
        if topic is not None and (topic.error_code != ErrorCode.NONE or topic.partitions):
            errors[name] = topic.error_code
    return errors
