"""CreateTopics (key 19), versions 2 to 7: new topics with counts or assignments, and configs (KIP-4, KIP-525).

Answered when every new partition has a leader, or with REQUEST_TIMED_OUT after the client's time-out although the topic
will exist. Only the controller's broker serves it.
"""

import asyncio
from collections import Counter

from klamm.broker.registry import Body, Request, handler
from klamm.broker.security import CLUSTER_NAME, Operation, ResourceType
from klamm.broker.topic_admin import CreatedTopic, NewTopic
from klamm.config.describe import describe_topic
from klamm.net.server import AnswerOnly
from klamm.protocol import messages
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.tasks import Slices

Response = messages.response_class(ApiKey.CREATE_TOPICS)
Topic = Response.CreatableTopicResult

# What is described in one go: about three milliseconds.
TOPICS_PER_SLICE = 20


def error_response(request: Request, error: KafkaError) -> Body:
    return Response(
        version=request.version, topics=[_failed(request, topic.name, error) for topic in request.body.topics]
    )


@handler(
    ApiKey.CREATE_TOPICS, operation=Operation.CREATE, resource_type=ResourceType.TOPIC, error_response=error_response
)
async def handle(request: Request) -> AnswerOnly[Body]:
    body, services = request.body, request.services
    services.require_controller()
    on_cluster = request.allows(CLUSTER_NAME, resource_type=ResourceType.CLUSTER)
    names = Counter(topic.name for topic in body.topics)
    answers: dict[str, Body] = {}
    wanted = []
    for topic in body.topics:
        if names[topic.name] > 1:
            error = KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            answers[topic.name] = _failed(request, topic.name, error)
        elif not on_cluster and not request.allows(topic.name):
            answers[topic.name] = _failed(request, topic.name, KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        else:
            wanted.append(_new_topic(topic))
    created = await services.topic_admin.create_topics(wanted, validate_only=body.validate_only)

    async def answer() -> Body:
        ready = created
        if not body.validate_only:
            ready = await services.topic_admin.wait_until_created(created, body.timeout_ms)
        slices = Slices(TOPICS_PER_SLICE)
        for one in ready:
            if slices.is_over():
                await asyncio.sleep(0)
            answers[one.name] = _failed(request, one.name, one.error) if one.error else _created(request, one)
        return Response(version=request.version, topics=[answers[name] for name in names])

    return AnswerOnly(answer)


def _new_topic(topic: Body) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        [(assignment.partition_index, assignment.broker_ids) for assignment in topic.assignments],
        {config.name: config.value for config in topic.configs},
    )


def _created(request: Request, topic: CreatedTopic) -> Body:
    """The counts and configs are told only to those who may describe the topic's configs (KIP-525)."""
    common = {
        "version": request.version,
        "name": topic.name,
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "topic_id": topic.topic_id,
    }
    if not request.allows(topic.name, Operation.DESCRIBE_CONFIGS):
        return Topic(**common, topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, configs=[])
    assert topic.config is not None
    return Topic(
        **common,
        num_partitions=len(topic.assignment),
        replication_factor=len(topic.assignment[0]),
        configs=[
            Topic.CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source,
                is_sensitive=entry.sensitive,
            )
            for entry in describe_topic(topic.config)
        ],
    )


def _failed(request: Request, name: str, error: KafkaError) -> Body:
    return Topic(
        version=request.version, name=name, error_code=error.code, error_message=error.message or None, configs=None
    )
