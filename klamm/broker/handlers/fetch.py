"""Fetch (key 1), versions 4 to 12: reads for consumers and followers, with sessions and long poll (KIP-74, 98, 227).

Versions 0 to 3, which would need batches converted down to message sets, are not served. A follower fetches with its
broker's id and reads up to the end of the log; its fetch offset tells the leader which records it has. A follower must
be authorized to act in the cluster.
"""

import asyncio
from collections.abc import Sequence

from klamm.broker.registry import Request, handler
from klamm.broker.security import CLUSTER_NAME, Operation
from klamm.protocol.apis.fetch import FetchableTopic, FetchRequest, FetchResponse, PartitionData
from klamm.protocol.compression import CompressionType
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import ResourceType
from klamm.replication.replica_manager import PARTITIONS_PER_SLICE, Wanted
from klamm.slices import Slices, in_slices

# Clients of earlier versions do not know zstd.
FIRST_VERSION_WITH_ZSTD = 10
# From this version on a response has a field for an error of the session itself.
FIRST_VERSION_WITH_SESSIONS = 7


def error_response(request: Request[FetchRequest], error: KafkaError) -> FetchResponse:
    if request.version >= FIRST_VERSION_WITH_SESSIONS:
        return FetchResponse(error_code=error.code)
    return FetchResponse(
        responses=[
            FetchableTopic(
                topic=topic.topic,
                partitions=[
                    PartitionData(partition_index=want.partition, error_code=error.code) for want in topic.partitions
                ],
            )
            for topic in request.body.topics
        ]
    )


@handler(
    ApiKey.FETCH,
    operation=Operation.READ,
    resource_type=ResourceType.TOPIC,
    error_response=error_response,
    ends_with_client=True,
)
async def handle(request: Request[FetchRequest]) -> FetchResponse:
    body, services = request.body, request.services
    is_follower = body.replica_id >= 0
    exchange = await in_slices(
        services.fetch_sessions.begin(
            body.session_id,
            body.session_epoch,
            [(topic.topic, want) for topic in body.topics for want in topic.partitions],
            [(topic.topic, number) for topic in body.forgotten_topics_data for number in topic.partitions],
            is_follower=is_follower,
        )
    )
    refused = _refused_topics(request, exchange.wanted, is_follower)
    # A refused partition has its answer already, so the fetch must not wait.
    results = await services.replica_manager.fetch(
        [wanted for wanted in exchange.wanted if wanted[0] not in refused],
        replica_id=body.replica_id,
        isolation_level=body.isolation_level,
        max_wait_ms=0 if refused else body.max_wait_ms,
        min_bytes=body.min_bytes,
        max_bytes=min(body.max_bytes, services.config.current.fetch_max_bytes),
    )
    request.connection.has_read(sum(len(result.records) for result in results if result.records))
    if refused:
        allowed = iter(results)
        results = [
            PartitionData(partition_index=want.partition, error_code=refused[topic])
            if topic in refused
            else next(allowed)
            for topic, want in exchange.wanted
        ]
    topics: dict[str, list[PartitionData]] = {}
    slices = Slices(PARTITIONS_PER_SLICE)
    for (topic, _), result in zip(exchange.wanted, results, strict=True):
        if exchange.must_answer(topic, result):
            topics.setdefault(topic, []).append(result)
        if slices.is_over():
            await asyncio.sleep(0)
    return FetchResponse(
        session_id=exchange.session_id,
        responses=[FetchableTopic(topic=topic, partitions=partitions) for topic, partitions in topics.items()],
    )


def _refused_topics(
    request: Request[FetchRequest], wanted: Sequence[Wanted], is_follower: bool
) -> dict[str, ErrorCode]:
    """The topics that the client must not read, with the answers for them."""
    topics = dict.fromkeys(topic for topic, _ in wanted)
    if is_follower:
        allowed = request.allows(CLUSTER_NAME, Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
        return {} if allowed else dict.fromkeys(topics, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    refused = dict.fromkeys((topic for topic in topics if not request.allows(topic)), request.denied)
    if request.version < FIRST_VERSION_WITH_ZSTD:
        for topic, want in wanted:
            if topic not in refused and _is_zstd(request, topic, want.partition):
                refused[topic] = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    return refused


def _is_zstd(request: Request[FetchRequest], topic: str, number: int) -> bool:
    """Whether the topic's compression.type is zstd. Single batches are not checked, as in Kafka."""
    hosted = request.services.replica_manager.hosted_partition((topic, number))
    return hosted is not None and hosted.log.config.codec is CompressionType.ZSTD
