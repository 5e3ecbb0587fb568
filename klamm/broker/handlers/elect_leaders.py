"""ElectLeaders (key 43), versions 0 to 2: elects preferred leaders (KIP-183) or, from version 1, unclean ones.

Without a list of partitions the request is for all partitions that this broker knows, and the answer leaves out those
that need no election. Only the controller's broker serves it. The answer waits until this broker's metadata has the
leaders.
"""

import asyncio
from collections.abc import Iterable, Mapping

from klamm.base.slices import Steps, each, in_slices
from klamm.broker.handlers.by_partition import by_topic, named_partitions
from klamm.broker.request_errors import outcome
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.net.server.exchange import AnswerOnly
from klamm.protocol.apis.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ElectionType, PartitionKey, ResourceType

Result = ElectLeadersResponse.ReplicaElectionResult

FIRST_VERSION_WITH_TYPES = 1


def error_response(request: Request[ElectLeadersRequest], error: KafkaError) -> Steps[ElectLeadersResponse]:
    named = yield from _named(request.body.topic_partitions or ())
    return (yield from _response(request, error.code, dict.fromkeys(named, error)))


@handler(ElectLeadersRequest, Operation.ALTER, ResourceType.CLUSTER, error_response=error_response)
async def handle(request: Request[ElectLeadersRequest]) -> AnswerOnly[ElectLeadersResponse]:
    request.require_cluster()
    services, body = request.services, request.body
    election_type = ElectionType.PREFERRED if request.version < FIRST_VERSION_WITH_TYPES else _type(body.election_type)
    if body.topic_partitions is None:
        topics = services.metadata_cache.snapshot.topics
        partitions = await in_slices(named_partitions(topics.items()))
    else:
        partitions = await in_slices(_named(body.topic_partitions))
    loop = asyncio.get_running_loop()
    deadline = loop.time() + body.timeout_ms / 1000
    elected = await services.leader_elections.elect(partitions, election_type)

    async def answer() -> ElectLeadersResponse:
        results = await services.leader_elections.wait_until_known(elected, (deadline - loop.time()) * 1000)
        if body.topic_partitions is None:
            results = {
                partition: error
                async for partition, error in each(results.items())
                if error is None or error.code is not ErrorCode.ELECTION_NOT_NEEDED
            }
        return await in_slices(_response(request, ErrorCode.NONE, results))

    return AnswerOnly(answer)


def _type(number: int) -> ElectionType:
    try:
        return ElectionType(number)
    except ValueError:
        allowed = ", ".join(f"{kind.value} ({kind.name})" for kind in ElectionType)
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"election type {number}; allowed are {allowed}") from None


def _named(topics: Iterable[ElectLeadersRequest.TopicPartitions]) -> Steps[list[PartitionKey]]:
    named = yield from named_partitions((topic.topic, topic.partitions) for topic in topics)
    return list(dict.fromkeys(named))


def _response(
    request: Request[ElectLeadersRequest], code: ErrorCode, errors: Mapping[PartitionKey, KafkaError | None]
) -> Steps[ElectLeadersResponse]:
    results = ((topic, _result(number, error)) for (topic, number), error in errors.items())
    return ElectLeadersResponse(
        error_code=code if request.version >= FIRST_VERSION_WITH_TYPES else ErrorCode.NONE,
        replica_election_results=(yield from by_topic(Result, results)),
    )


def _result(number: int, error: KafkaError | None) -> Result.PartitionResult:
    return Result.PartitionResult(
        partition_id=number,
        **outcome(error),
    )
