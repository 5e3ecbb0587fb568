"""CreateTopics (key 19), versions 2 to 7: creates topics with counts or assignments, and configs (KIP-4, KIP-525).

Answered when every new partition has a leader, or with REQUEST_TIMED_OUT after the client's timeout, although the topic
will exist. Only the controller's broker serves it. Partitions count for the client's controller_mutation_rate; from
version 6 on topics beyond it get THROTTLING_QUOTA_EXCEEDED (KIP-599).
"""

from collections import Counter

from klamm.base.slices import Slices, Steps, each, in_slices, mapped
from klamm.broker.request_errors import outcome
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import CLUSTER_NAME, Operation
from klamm.broker.topics.topic_admin import CreatedTopic, NewTopic
from klamm.config.describe import describe_topic
from klamm.net.server.exchange import AnswerOnly
from klamm.protocol.apis.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ResourceType

Topic = CreateTopicsResponse.CreatableTopicResult

# How many topics a slice describes, in about three milliseconds.
TOPICS_PER_SLICE = 20

FIRST_STRICT_VERSION = 6


def error_response(request: Request[CreateTopicsRequest], error: KafkaError) -> Steps[CreateTopicsResponse]:
    return CreateTopicsResponse(
        topics=(yield from mapped(lambda topic: _failed(topic.name, error), request.body.topics))
    )


@handler(CreateTopicsRequest, Operation.CREATE, ResourceType.TOPIC, error_response=error_response)
async def handle(request: Request[CreateTopicsRequest]) -> AnswerOnly[CreateTopicsResponse]:
    body, services = request.body, request.services
    services.require_controller()
    on_cluster = request.allows(CLUSTER_NAME, resource_type=ResourceType.CLUSTER)
    names = Counter(await in_slices(mapped(lambda topic: topic.name, body.topics)))
    answers: dict[str, Topic] = {}
    wanted = []
    slices = Slices()
    async for topic in each(body.topics, slices):
        if names[topic.name] > 1:
            error = KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            answers[topic.name] = _failed(topic.name, error)
        elif not on_cluster and not request.allows(topic.name):
            answers[topic.name] = _failed(topic.name, KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        else:
            wanted.append(await in_slices(_new_topic(topic, slices)))
    changes = request.changes(strict=request.version >= FIRST_STRICT_VERSION)
    created = await services.topic_admin.create_topics(wanted, changes, validate_only=body.validate_only)

    async def answer() -> CreateTopicsResponse:
        ready = created
        if not body.validate_only:
            ready = await services.topic_admin.wait_until_created(created, body.timeout_ms)
        async for one in each(ready, TOPICS_PER_SLICE):
            answers[one.name] = _failed(one.name, one.error) if one.error else _created(request, one)
        return CreateTopicsResponse(topics=[answers[name] for name in names])

    return AnswerOnly(answer)


def _new_topic(topic: CreateTopicsRequest.CreatableTopic, slices: Slices) -> Steps[NewTopic]:
    assignments = yield from mapped(lambda one: (one.partition_index, one.broker_ids), topic.assignments, slices)
    configs = yield from mapped(lambda config: (config.name, config.value), topic.configs, slices)
    return NewTopic(topic.name, topic.num_partitions, topic.replication_factor, assignments, dict(configs))


def _created(request: Request[CreateTopicsRequest], topic: CreatedTopic) -> Topic:
    """The counts and configs are returned only to clients that may describe the topic's configs (KIP-525)."""
    answer = Topic(name=topic.name, topic_id=topic.topic_id, **outcome(), configs=[])
    if not request.allows(topic.name, Operation.DESCRIBE_CONFIGS):
        answer.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return answer
    assert topic.config is not None
    answer.num_partitions = len(topic.assignment)
    answer.replication_factor = len(topic.assignment[0])
    answer.configs = [
        Topic.CreatableTopicConfigs(
            name=entry.name,
            value=entry.value,
            read_only=entry.read_only,
            config_source=entry.source,
            is_sensitive=entry.sensitive,
        )
        for entry in describe_topic(topic.config)
    ]
    return answer


def _failed(name: str, error: KafkaError) -> Topic:
    return Topic(name=name, **outcome(error), configs=None)
