"""`/api/topics`: the topics (with `filter`, those whose names have it), or with `topic=` the partitions of one with
their leaders, ISRs, offsets and sizes."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from klamm.client.cluster import ClusterClient
from klamm.client.log_dirs import describe_log_dirs
from klamm.client.offsets import ListedOffset, list_offsets
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.vocabulary import EARLIEST_TIMESTAMP, INTERNAL_TOPICS, LATEST_TIMESTAMP, NO_LEADER, TopicPartition
from klamm.tools.clients import error_line
from klamm.tools.cluster_view import ClusterView, PartitionView, read_cluster
from klamm.tools.cockpit.answers import Cockpit, json_response
from klamm.tools.cockpit.asking import PATIENCE, asking, live_client, number
from klamm.tools.cockpit.partition_facts import ONCE
from klamm.tools.topics.descriptions import is_under_replicated

# Of topics in a list, and of partitions of one.
MOST_TOPICS: Final = 500
MOST_PARTITIONS: Final = 1_000


def routes(cockpit: Cockpit) -> list[Route]:
    async def topics(request: Request) -> Response:
        client = live_client(cockpit)
        topic = request.query_params.get("topic")
        if topic is not None:
            return json_response(await _topic(client, topic, number(request, "from", 0)))
        view = await read_cluster(client, reassignments={})
        return json_response(_list(view, request.query_params.get("filter", "")))

    return [Route("/api/topics", asking(topics))]


def _list(view: ClusterView, part: str) -> dict[str, Any]:
    found = {name: partitions for name, partitions in view.of_topics().items() if part in name}
    return {
        "count": len(found),
        "topics": [
            {
                "topic": name,
                "partitions": len(partitions),
                "replication_factor": max(len(each.origin) for each in partitions.values()),
                "offline": sum(each.leader == NO_LEADER for each in partitions.values()),
                "under_replicated": sum(is_under_replicated(each) for each in partitions.values()),
                "is_internal": name in INTERNAL_TOPICS,
            }
            for name, partitions in list(found.items())[:MOST_TOPICS]
        ],
    }


async def _topic(client: ClusterClient, topic: str, first: int) -> dict[str, Any]:
    view = await read_cluster(client, [topic], reassignments={})
    partitions = view.of_topics().get(topic)
    if partitions is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} does not exist")
    shown = {number: each for number, each in partitions.items() if number >= first}
    shown = dict(list(shown.items())[:MOST_PARTITIONS])
    keys = [TopicPartition(topic, number) for number in shown]
    starts, ends, sizes = await asyncio.gather(
        list_offsets(client, dict.fromkeys(keys, EARLIEST_TIMESTAMP), retry=PATIENCE),
        list_offsets(client, dict.fromkeys(keys, LATEST_TIMESTAMP), retry=PATIENCE),
        _sizes(client, view, keys),
    )
    return {
        "topic": topic,
        "topic_id": None if topic not in view.topic_ids else str(view.topic_ids[topic]),
        "count": len(partitions),
        "partitions": [
            {
                "partition": key.partition,
                **_placed(shown[key.partition]),
                "start_offset": _offset(starts[key]),
                "end_offset": _offset(ends[key]),
                "why_not": error_line(found) if isinstance(found := ends[key], KafkaError) else None,
                "sizes": sizes.get(key, {}),
            }
            for key in keys
        ],
    }


def _placed(partition: PartitionView) -> dict[str, Any]:
    return {
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replicas": partition.replicas,
        "isr": partition.isr,
        "offline": partition.offline,
    }


def _offset(found: ListedOffset | KafkaError) -> int | None:
    return None if isinstance(found, KafkaError) else found.offset


async def _sizes(
    client: ClusterClient, view: ClusterView, keys: list[TopicPartition]
) -> Mapping[TopicPartition, dict[str, int]]:
    """The size of each replica in bytes, by broker; without brokers that do not answer."""
    brokers = {each for key in keys for each in view.partitions[key].replicas if each in view.brokers}
    sizes: dict[TopicPartition, dict[str, int]] = {}
    for broker_id, found in (await describe_log_dirs(client, sorted(brokers), keys, retry=ONCE)).items():
        for directory in () if isinstance(found, KafkaError) else found.values():
            for key, replica in directory.replicas.items():
                if not replica.is_future:
                    sizes.setdefault(key, {})[str(broker_id)] = replica.size_bytes
    return sizes
