"""DescribeConfigs (key 32), versions 1 to 4: the configurations of topics and of this broker (KIP-133, 226, 569).

Broker loggers are not configurable, so their resource type is refused. A broker describes only itself; every broker
describes the default of the cluster (an empty name).
"""

from collections.abc import Mapping, Sequence

from klamm.base.slices import Slices, Steps, each, mapped
from klamm.broker.request_errors import ITEM_ERRORS, as_kafka_error, outcome
from klamm.broker.requests.registry import Request, handler
from klamm.broker.requests.security import Operation
from klamm.broker.topics.topic_admin import validate_topic_name
from klamm.config.describe import DescribedConfig, describe_broker, describe_default_broker, describe_topic
from klamm.config.topic import TopicConfig
from klamm.protocol.apis.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.primitives import MAX_STRING_BYTES
from klamm.protocol.vocabulary import ConfigResourceType, ResourceType

Result = DescribeConfigsResponse.DescribeConfigsResult
Entry = Result.DescribeConfigsResourceResult
Synonym = Entry.DescribeConfigsSynonym
Resource = DescribeConfigsRequest.DescribeConfigsResource

# How many resources a slice describes, in about three milliseconds.
RESOURCES_PER_SLICE = 10


def error_response(request: Request[DescribeConfigsRequest], error: KafkaError) -> Steps[DescribeConfigsResponse]:
    results = yield from mapped(lambda resource: _failed(resource, error), request.body.resources)
    return DescribeConfigsResponse(results=results)


@handler(
    DescribeConfigsRequest,
    Operation.DESCRIBE_CONFIGS,
    ResourceType.TOPIC,
    error_response=error_response,
    ends_with_client=True,
)
async def handle(request: Request[DescribeConfigsRequest]) -> DescribeConfigsResponse:
    # Each resource is described once, so that a response cannot be many thousand times as large as its request.
    topics = await _topics(request)
    configs: Mapping[str, TopicConfig] = {}
    unread = None
    try:
        configs = await request.services.topic_configs.read(list(topics))
    except ITEM_ERRORS as error:
        unread = as_kafka_error(error)
    results = await request.services.long_answers.take(_results(request, topics, configs, unread))
    return DescribeConfigsResponse(results=results)


def _results(
    request: Request[DescribeConfigsRequest],
    topics: Mapping[str, None],
    configs: Mapping[str, TopicConfig],
    unread: KafkaError | None,
) -> Steps[list[Result]]:
    """The results of the resources. `unread` says why the configurations of topics could not be read, or is None."""
    resources = {(resource.resource_type, resource.resource_name): resource for resource in request.body.resources}
    results: list[Result] = []
    slices = Slices(RESOURCES_PER_SLICE)
    for resource in resources.values():
        if slices.spend():
            yield
        try:
            if (
                unread is not None
                and resource.resource_type == ConfigResourceType.TOPIC
                and resource.resource_name in topics
            ):
                raise unread
            entries = _entries(request, resource.configuration_keys, _describe(request, resource, configs))
        except KafkaError as error:
            results.append(_failed(resource, error))
        else:
            results.append(
                Result(
                    **outcome(),
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=entries,
                )
            )
    return results


async def _topics(request: Request[DescribeConfigsRequest]) -> dict[str, None]:
    """The requested topics that exist."""
    known = request.services.metadata_cache.snapshot.topics
    return {
        one.resource_name: None
        async for one in each(request.body.resources)
        if one.resource_type == ConfigResourceType.TOPIC and one.resource_name in known
    }


def _describe(
    request: Request[DescribeConfigsRequest], resource: Resource, configs: Mapping[str, TopicConfig]
) -> Sequence[DescribedConfig]:
    services, name = request.services, resource.resource_name
    if resource.resource_type == ConfigResourceType.TOPIC:
        request.require(name)
        validate_topic_name(name)
        if name not in configs:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        # Monitoring asks for a few keys of every topic.
        wanted = frozenset(resource.configuration_keys or ())
        return describe_topic(configs[name], wanted or None)
    if resource.resource_type == ConfigResourceType.BROKER:
        request.require_cluster()
        if name == "":
            return describe_default_broker(services.config.current)
        if name != str(services.broker_id):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"broker {name!r} is described by itself; this is {services.broker_id}"
            )
        return describe_broker(services.config.current)
    raise KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"resource type {resource.resource_type}: allowed are 2 (topic) and 4 (broker)",
    )


def _entries(
    request: Request[DescribeConfigsRequest], wanted: Sequence[str] | None, entries: Sequence[DescribedConfig]
) -> list[Entry]:
    """The entries of the wanted names. An empty list means all names, like null.

    Raises KafkaError UNKNOWN_SERVER_ERROR for a value from a file or a znode that is too long for a response.
    """
    body = request.body
    names = frozenset(wanted or (entry.name for entry in entries))
    entries = [entry for entry in entries if entry.name in names]
    for entry in entries:
        _check_length(entry.name, entry.value)
        for synonym in entry.synonyms if body.include_synonyms else ():
            _check_length(synonym.name, synonym.value)
    return [
        Entry(
            name=entry.name,
            value=entry.value,
            read_only=entry.read_only,
            config_source=entry.source,
            is_sensitive=entry.sensitive,
            synonyms=[
                Synonym(name=synonym.name, value=synonym.value, source=synonym.source) for synonym in entry.synonyms
            ]
            if body.include_synonyms
            else [],
            config_type=entry.type,
            documentation=entry.documentation if body.include_documentation else None,
        )
        for entry in entries
    ]


def _check_length(name: str, value: str | None) -> None:
    if value is not None and len(value.encode()) > MAX_STRING_BYTES:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the value of {name} is longer than {MAX_STRING_BYTES} bytes")


def _failed(resource: Resource, error: KafkaError) -> Result:
    return Result(
        **outcome(error),
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[],
    )
