"""Fetch (key 1), versions 4 to 12: reads for consumers, with sessions, long poll and read_committed (KIP-74, 98, 227).

Versions 0 to 3, which would need batches converted down to message sets, are not served. Followers fetch with the
replica's id; this broker has none to lead yet, and refuses them with NOT_LEADER_OR_FOLLOWER.
"""

from klamm.broker.registry import Request, handler
from klamm.broker.security import Operation, ResourceType
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.fetch import FetchResponse, FetchResponsePartition
from klamm.protocol.messages import ApiKey
from klamm.replication.replica_manager import Wanted

CONSUMER = -1
# From this version on a response has room for an error of the session itself.
FIRST_VERSION_WITH_SESSIONS = 7


def error_response(request: Request, error: KafkaError) -> FetchResponse:
    if request.version >= FIRST_VERSION_WITH_SESSIONS:
        return FetchResponse(error_code=error.code)
    return FetchResponse(
        topics=[
            (topic, [FetchResponsePartition(want.partition, error.code) for want in partitions])
            for topic, partitions in request.body.topics
        ]
    )


@handler(ApiKey.FETCH, operation=Operation.READ, resource_type=ResourceType.TOPIC, error_response=error_response)
async def handle(request: Request) -> FetchResponse:
    body, services = request.body, request.services
    if body.replica_id != CONSUMER:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"replica {body.replica_id} follows no partition here")
    exchange = services.fetch_sessions.begin(
        body.session_id,
        body.session_epoch,
        [(topic, want) for topic, partitions in body.topics for want in partitions],
        [(topic, number) for topic, numbers in body.forgotten_topics for number in numbers],
        is_follower=False,
    )
    denied = _denied_topics(request, exchange.wanted)
    # What is denied would be answered at once, so it must not wait either.
    results = await services.replica_manager.fetch(
        [wanted for wanted in exchange.wanted if wanted[0] not in denied],
        isolation_level=body.isolation_level,
        max_wait_ms=0 if denied else body.max_wait_ms,
        min_bytes=body.min_bytes,
        max_bytes=min(body.max_bytes, services.config.fetch_max_bytes),
    )
    if denied:
        allowed = iter(results)
        results = [
            FetchResponsePartition(want.partition, request.denied) if topic in denied else next(allowed)
            for topic, want in exchange.wanted
        ]
    topics: dict[str, list[FetchResponsePartition]] = {}
    for topic, result in exchange.answers(results):
        topics.setdefault(topic, []).append(result)
    return FetchResponse(session_id=exchange.session_id, topics=list(topics.items()))


def _denied_topics(request: Request, wanted: list[Wanted]) -> dict[str, None]:
    topics = dict.fromkeys(topic for topic, _ in wanted)
    return {topic: None for topic in topics if not request.allows(topic)}
