"""The common part of AlterConfigs and IncrementalAlterConfigs: their resources and the answers for them."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from klamm.base.slices import Steps, each, in_slices, mapped
from klamm.broker.request_errors import ITEM_ERRORS, as_kafka_error, outcome
from klamm.broker.requests.registry import Request
from klamm.protocol.apis.alter_configs import AlterConfigsResponse
from klamm.protocol.apis.incremental_alter_configs import IncrementalAlterConfigsResponse
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.vocabulary import ConfigResourceType

# A Kafka broker has about 250 configs. Kafka has no such limit, so one request can keep it busy for long.
MAX_CONFIGS = 1_000
# How many resources a slice alters or refuses, in some milliseconds.
RESOURCES_PER_SLICE = 50


class AlteredResource(Protocol):
    """A resource in either request."""

    resource_type: int
    resource_name: str

    @property
    def configs(self) -> Sequence[object]: ...


Resource = TypeVar("Resource", bound=AlteredResource)
Response = TypeVar("Response", AlterConfigsResponse, IncrementalAlterConfigsResponse)


async def alter_each(
    request: Request[Any],
    resources: Sequence[Resource],
    alter: Callable[[ConfigResourceType, Resource], Awaitable[None]],
) -> list[tuple[Resource, KafkaError]]:
    """Alters each resource, which succeeds (NONE) or fails on its own. Broker loggers fail with INVALID_REQUEST.

    If a resource has no configs or is named twice, raises KafkaError INVALID_REQUEST and alters no resource.
    """
    named = await in_slices(mapped(lambda resource: (resource.resource_type, resource.resource_name), resources))
    async for (number, name), count in each(Counter(named).items()):
        _resource_type(number)
        if count > 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"resource {name!r} is named {count} times")
    outcomes = []
    async for resource in each(resources, RESOURCES_PER_SLICE):
        kind = _resource_type(resource.resource_type)
        try:
            if kind is ConfigResourceType.TOPIC:
                request.require(resource.resource_name)
            else:
                request.require_cluster()
            if len(resource.configs) > MAX_CONFIGS:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"{len(resource.configs)} configs of one resource; allowed are {MAX_CONFIGS}",
                )
            if kind is ConfigResourceType.BROKER_LOGGER:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the levels of broker loggers cannot be changed")
            await alter(kind, resource)
        except ITEM_ERRORS as error:
            outcomes.append((resource, as_kafka_error(error)))
        else:
            outcomes.append((resource, KafkaError(ErrorCode.NONE)))
    return outcomes


def response_of(response: type[Response], outcomes: Iterable[tuple[AlteredResource, KafkaError]]) -> Steps[Response]:
    """The steps of the answer of either API."""

    def answer(altered: tuple[AlteredResource, KafkaError]) -> Any:
        resource, error = altered
        return response.AlterConfigsResourceResponse(
            **outcome(error),
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )

    return response(responses=(yield from mapped(answer, outcomes)))


def _resource_type(number: int) -> ConfigResourceType:
    try:
        return ConfigResourceType(number)
    except ValueError:
        allowed = ", ".join(f"{kind.value} ({kind.name})" for kind in ConfigResourceType)
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"resource type {number}: allowed are {allowed}") from None
