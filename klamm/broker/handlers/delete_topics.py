"""DeleteTopics (key 20), versions 1 to 6: deletes topics by name, and from version 6 on also by id (KIP-516).

Answered when this broker's metadata no longer has the topic. Only the controller's broker serves it. Partitions count
for the client's controller_mutation_rate; from version 5 on topics beyond it get THROTTLING_QUOTA_EXCEEDED (KIP-599).
"""

from uuid import UUID

from klamm.base.slices import Steps, each, mapped
from klamm.broker.request_errors import outcome
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.net.server.exchange import AnswerOnly
from klamm.protocol.apis.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ResourceType

Result = DeleteTopicsResponse.DeletableTopicResult

FIRST_VERSION_WITH_IDS = 6
FIRST_STRICT_VERSION = 5
# Before this version a client does not know TOPIC_DELETION_DISABLED.
FIRST_VERSION_WITH_DELETION_DISABLED = 3


def error_response(request: Request[DeleteTopicsRequest], error: KafkaError) -> Steps[DeleteTopicsResponse]:
    results = yield from mapped(lambda named: _result(*named, error), _named(request))
    return DeleteTopicsResponse(responses=results)


@handler(DeleteTopicsRequest, Operation.DELETE, ResourceType.TOPIC, error_response=error_response)
async def handle(request: Request[DeleteTopicsRequest]) -> AnswerOnly[DeleteTopicsResponse]:
    services = request.services
    services.require_controller()
    if not services.config.current.delete_topic_enable:
        disabled = request.version >= FIRST_VERSION_WITH_DELETION_DISABLED
        code = ErrorCode.TOPIC_DELETION_DISABLED if disabled else ErrorCode.INVALID_REQUEST
        raise KafkaError(code, "delete.topic.enable is false")
    snapshot = services.metadata_cache.snapshot
    names = {topic_id: name for name, topic_id in snapshot.topic_ids.items()}
    results: list[Result] = []
    doomed = {}
    async for given, topic_id in each(_named(request)):
        if (given is None) == (topic_id is None):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "each topic is named either by its name or by its id")
        name = given if topic_id is None else names.get(topic_id)
        if name is None:
            results.append(_result(None, topic_id, KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)))
        elif not request.allows(name, Operation.DESCRIBE):
            # A client that may not describe a topic must not learn its name from its id either.
            results.append(_result(given, topic_id, KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)))
        elif not request.allows(name):
            results.append(_result(name, topic_id, KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)))
        elif name not in snapshot.topics:
            results.append(_result(name, topic_id, KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)))
        else:
            doomed[name] = snapshot.topic_ids.get(name)
    changes = request.changes(strict=request.version >= FIRST_STRICT_VERSION)
    marked = await services.topic_admin.delete_topics(list(doomed), changes)

    async def answer() -> DeleteTopicsResponse:
        deleted = await services.topic_admin.wait_until_deleted(marked, request.body.timeout_ms)
        gone = [_result(name, doomed[name], error) async for name, error in each(deleted.items())]
        return DeleteTopicsResponse(responses=results + gone)

    return AnswerOnly(answer)


def _named(request: Request[DeleteTopicsRequest]) -> list[tuple[str | None, UUID | None]]:
    if request.version >= FIRST_VERSION_WITH_IDS:
        return [(topic.name, topic.topic_id) for topic in request.body.topics]
    return [(name, None) for name in request.body.topic_names]


def _result(name: str | None, topic_id: UUID | None, error: KafkaError | None) -> Result:
    return Result(
        name=name,
        topic_id=topic_id,
        **outcome(error),
    )
