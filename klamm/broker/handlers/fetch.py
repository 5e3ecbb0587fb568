"""Fetch (key 1), versions 4 to 12: reads for consumers and followers, with sessions and long poll (KIP-74, 98, 227).

Versions 0 to 3, which would need batches converted down to message sets, are not served. A follower fetches with its
broker id and reads up to the log end offset; its fetch offset tells the leader which records it has. A follower must be
authorized to act in the cluster.

A consumer's fetch beyond its quota is answered without records and with the throttle time. The size of an answer is
that of its records, plus an estimate of the rest.

From version 11 on consumers, and tools that look at replicas (replica id -2), also read from followers, below the
follower's high watermark (KIP-392). With `replica.selector.class` the leader redirects a consumer to a follower, in an
answer without records.
"""

from collections.abc import Sequence

from klamm.base.slices import Slices, Steps, each, in_slices, slices
from klamm.broker.handlers.by_partition import by_partition, named_partitions
from klamm.broker.request_errors import check_isolation_level
from klamm.broker.requests.fetch_session import FetchExchange
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import CLUSTER_NAME, Operation
from klamm.plugins.replica_selection import ClientMetadata
from klamm.protocol.apis.fetch import FetchableTopic, FetchPartition, FetchRequest, FetchResponse, PartitionData
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.record.compression import CompressionType
from klamm.protocol.vocabulary import CONSUMER_REPLICA_ID, ResourceType
from klamm.replication.fetched_records import ABORTED_TRANSACTION_BYTES, PARTITIONS_PER_SLICE
from klamm.replication.replica_manager import Wanted

# Clients of earlier versions do not know zstd.
FIRST_VERSION_WITH_ZSTD = 10
# From this version on a response has a field for an error of the session itself.
FIRST_VERSION_WITH_SESSIONS = 7
# Clients of earlier versions do not expect a follower, which may be behind, to answer.
FIRST_VERSION_WITH_FOLLOWERS = 11
# The bytes of an answer besides its records, for quotas: of the answer itself, and of each partition with records.
RESPONSE_BYTES = 20
PARTITION_BYTES = 44


def error_response(request: Request[FetchRequest], error: KafkaError) -> Steps[FetchResponse]:
    if request.version >= FIRST_VERSION_WITH_SESSIONS:
        return FetchResponse(error_code=error.code)
    topics = ((topic.topic, topic.partitions) for topic in request.body.topics)
    failed = yield from by_partition(FetchableTopic, topics, lambda _, want: _failed(want, error.code))
    return FetchResponse(responses=failed)


@handler(FetchRequest, Operation.READ, ResourceType.TOPIC, error_response=error_response, ends_with_client=True)
async def handle(request: Request[FetchRequest]) -> FetchResponse:
    body, services = request.body, request.services
    check_isolation_level(body.isolation_level)
    is_follower = body.replica_id >= 0
    exchange = await in_slices(_begin(request, is_follower))
    refused = await in_slices(_refused_topics(request, exchange.wanted, is_follower))
    wanted = exchange.wanted
    if refused:
        wanted = [want async for want in each(wanted) if want[0] not in refused]
    max_bytes, min_bytes = min(body.max_bytes, services.config.current.fetch_max_bytes), body.min_bytes
    quota = None if is_follower else request.quota
    if quota is not None:
        # A larger answer than the windows of the quota allow would be throttled again and again.
        max_bytes = int(min(max_bytes, quota.max_fetch_bytes()))
        min_bytes = min(min_bytes, max_bytes)
    # A refused partition has its answer already, so the fetch must not wait.
    results = await services.replica_manager.fetch(
        wanted,
        replica_id=body.replica_id,
        isolation_level=body.isolation_level,
        max_wait_ms=0 if refused else body.max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        only_leader=is_follower or request.version < FIRST_VERSION_WITH_FOLLOWERS,
        consumer=_consumer(request),
    )
    sizes = [len(result.records) for result in results if result.records]
    if quota is not None and quota.throttles_fetch(RESPONSE_BYTES + sum(sizes) + PARTITION_BYTES * len(sizes)):
        return FetchResponse(session_id=services.fetch_sessions.throttled(exchange))
    aborted = [len(result.aborted_transactions) for result in results if result.aborted_transactions]
    request.connection.has_read(sum(sizes) + ABORTED_TRANSACTION_BYTES * sum(aborted))
    allowed = iter(results)
    topics: dict[str, FetchableTopic] = {}
    async for piece in slices(exchange.wanted, PARTITIONS_PER_SLICE):
        for name, want in piece:
            result = _failed(want, refused[name]) if name in refused else next(allowed)
            if result.records:
                services.replica_manager.records_sent(name, want.partition, len(result.records), body.replica_id)
            if exchange.must_answer(name, result):
                if name not in topics:
                    topics[name] = FetchableTopic(topic=name, partitions=[])
                topics[name].partitions.append(result)
    return FetchResponse(session_id=exchange.session_id, responses=list(topics.values()))


def _consumer(request: Request[FetchRequest]) -> ClientMetadata | None:
    """The consumer's metadata for a replica selector. None for other clients, and for consumers that are too old to be
    redirected to a follower."""
    if request.version < FIRST_VERSION_WITH_FOLLOWERS or request.body.replica_id != CONSUMER_REPLICA_ID:
        return None
    return ClientMetadata(
        request.body.rack_id,
        request.client_id or "",
        request.client.host,
        request.client.principal,
        request.listener_name,
    )


def _begin(request: Request[FetchRequest], is_follower: bool) -> Steps[FetchExchange]:
    body = request.body
    wanted: list[Wanted] = []
    slices = Slices(PARTITIONS_PER_SLICE)
    for topic in body.topics:
        wanted += [(topic.topic, want) for want in topic.partitions]
        if slices.spend(1 + len(topic.partitions)):
            yield
    forgotten = yield from named_partitions((topic.topic, topic.partitions) for topic in body.forgotten_topics_data)
    sessions = request.services.fetch_sessions
    return (yield from sessions.begin(body.session_id, body.session_epoch, wanted, forgotten, is_follower=is_follower))


def _failed(want: FetchPartition, code: ErrorCode) -> PartitionData:
    return PartitionData(partition_index=want.partition, error_code=code)


def _refused_topics(
    request: Request[FetchRequest], wanted: Sequence[Wanted], is_follower: bool
) -> Steps[dict[str, ErrorCode]]:
    """The topics that the client must not read, with the answers for them."""
    topics = dict.fromkeys(topic for topic, _ in wanted)
    if is_follower:
        allowed = request.allows(CLUSTER_NAME, Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
        return {} if allowed else dict.fromkeys(topics, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    refused = {}
    slices = Slices()
    for topic in topics:
        if not request.allows(topic):
            refused[topic] = request.denied
        if slices.spend():
            yield
    if request.version < FIRST_VERSION_WITH_ZSTD:
        for topic, want in wanted:
            if topic not in refused and _is_zstd(request, topic, want.partition):
                refused[topic] = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
            if slices.spend():
                yield
    return refused


def _is_zstd(request: Request[FetchRequest], topic: str, number: int) -> bool:
    """Whether the topic's compression.type is zstd. Single batches are not checked, as in Kafka."""
    hosted = request.services.replica_manager.hosted_partition((topic, number))
    return hosted is not None and hosted.log.config.codec is CompressionType.ZSTD
