"""CreatePartitions (key 37), versions 0 to 3: adds partitions to existing topics (KIP-195).

Answered when every new partition has a leader. Only the controller's broker serves it. New partitions count for the
client's controller_mutation_rate; from version 3 on topics beyond it get THROTTLING_QUOTA_EXCEEDED (KIP-599).
"""

from collections import Counter

from klamm.base.slices import Steps, each, in_slices, mapped
from klamm.broker.request_errors import outcome
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.broker.topics.topic_admin import NewPartitions
from klamm.net.server.exchange import AnswerOnly
from klamm.protocol.apis.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ResourceType

FIRST_STRICT_VERSION = 3

Result = CreatePartitionsResponse.CreatePartitionsTopicResult


def error_response(request: Request[CreatePartitionsRequest], error: KafkaError) -> Steps[CreatePartitionsResponse]:
    results = yield from mapped(lambda topic: _result(topic.name, error), request.body.topics)
    return CreatePartitionsResponse(results=results)


@handler(CreatePartitionsRequest, Operation.ALTER, ResourceType.TOPIC, error_response=error_response)
async def handle(request: Request[CreatePartitionsRequest]) -> AnswerOnly[CreatePartitionsResponse]:
    body, services = request.body, request.services
    services.require_controller()
    names = Counter(await in_slices(mapped(lambda topic: topic.name, body.topics)))
    answers: dict[str, NewPartitions | KafkaError] = {}
    wanted = []
    async for topic in each(body.topics):
        if names[topic.name] > 1:
            answers[topic.name] = KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic in request.")
        elif not request.allows(topic.name):
            answers[topic.name] = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        else:
            assigned = topic.assignments
            replicas = None if assigned is None else [one.broker_ids for one in assigned]
            wanted.append((topic.name, topic.count, replicas))
    changes = request.changes(strict=request.version >= FIRST_STRICT_VERSION)
    added = await services.topic_admin.create_partitions(wanted, changes, validate_only=body.validate_only)

    async def answer() -> CreatePartitionsResponse:
        ready = added
        if not body.validate_only:
            ready = await services.topic_admin.wait_until_grown(added, body.timeout_ms)
        answers.update(ready)
        results = await in_slices(mapped(lambda name: _result(name, answers[name]), names))
        return CreatePartitionsResponse(results=results)

    return AnswerOnly(answer)


def _result(name: str, error: NewPartitions | KafkaError) -> Result:
    return Result(name=name, **outcome(error if isinstance(error, KafkaError) else None))
