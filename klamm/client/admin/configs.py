"""Configurations of topics and brokers: describe and alter.

A named broker answers for its own configuration; any broker answers for topics and for the default of all brokers.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from klamm.client.cluster import ClusterClient
from klamm.client.fan_out import Route, Unroutable, error_of, fan_out, in_turn, of_brokers
from klamm.client.retries import RetryPolicy
from klamm.config.definition import ConfigSource
from klamm.net.client import Connection
from klamm.protocol.apis.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from klamm.protocol.apis.incremental_alter_configs import IncrementalAlterConfigsRequest
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey
from klamm.protocol.vocabulary import AlterConfigOp, ConfigResourceType, OpType

T = TypeVar("T")

# The errors of these requests that a retry may resolve.
CONFIG_ERRORS = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER, ErrorCode.THROTTLING_QUOTA_EXCEEDED})


class ConfigResource(NamedTuple):
    """A topic by its name, a broker by its id, or with an empty name the default of all brokers."""

    type: ConfigResourceType
    name: str


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A source that supplies, or would supply, a config's value."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A config's value and where it comes from. The value of a sensitive config is None.

    `synonyms` are all sources in the order of precedence, if they were requested.
    """

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    synonyms: tuple[ConfigSynonym, ...] = ()


async def describe_configs(
    client: ClusterClient,
    resources: Iterable[ConfigResource],
    keys: Collection[str] | None = None,
    *,
    include_synonyms: bool = False,
    retriable: Collection[ErrorCode] = CONFIG_ERRORS,
    retry: RetryPolicy | None = None,
) -> dict[ConfigResource, dict[str, ConfigEntry] | KafkaError]:
    """The configs of each resource by name, in the broker's order; with `keys`, only these.

    A topic that does not exist is an error at once, unless `retriable` has UNKNOWN_TOPIC_OR_PARTITION.
    """
    struct = DescribeConfigsRequest.DescribeConfigsResource

    async def ask(
        connection: Connection, resources: Sequence[ConfigResource]
    ) -> dict[ConfigResource, dict[str, ConfigEntry] | KafkaError]:
        request = DescribeConfigsRequest(
            resources=[
                struct(
                    resource_type=resource.type,
                    resource_name=resource.name,
                    configuration_keys=None if keys is None else list(keys),
                )
                for resource in resources
            ],
            include_synonyms=include_synonyms,
        )
        response = await connection.send(ApiKey.DESCRIBE_CONFIGS, lambda version: request)
        return _of(resources, response.results, _entries)

    return await _ask(client, resources, ask, retriable=retriable, retry=retry)


def _entries(result: DescribeConfigsResponse.DescribeConfigsResult) -> dict[str, ConfigEntry] | KafkaError:
    return error_of(result.error_code, result.error_message) or {
        entry.name: ConfigEntry(
            entry.name,
            entry.value,
            _source(entry.config_source),
            entry.read_only,
            entry.is_sensitive,
            tuple(ConfigSynonym(each.name, each.value, _source(each.source)) for each in entry.synonyms),
        )
        for entry in result.configs
    }


def _source(number: int) -> ConfigSource:
    """The source of a config, or a value for the additional sources of brokers newer than 2.8."""
    try:
        return ConfigSource(number)
    except ValueError:
        return ConfigSource.UNKNOWN


async def incremental_alter_configs(
    client: ClusterClient, changes: Mapping[ConfigResource, Sequence[AlterConfigOp]], *, validate_only: bool = False
) -> dict[ConfigResource, KafkaError | None]:
    """Changes single configs of each resource. Its other configs stay."""
    struct = IncrementalAlterConfigsRequest.AlterConfigsResource

    async def ask(
        connection: Connection, resources: Sequence[ConfigResource]
    ) -> dict[ConfigResource, KafkaError | None]:
        request = IncrementalAlterConfigsRequest(
            resources=[
                struct(
                    resource_type=resource.type,
                    resource_name=resource.name,
                    configs=[
                        struct.AlterableConfig(name=op.name, config_operation=op.op_type, value=op.value)
                        for op in changes[resource]
                    ],
                )
                for resource in resources
            ],
            validate_only=validate_only,
        )
        response = await connection.send(ApiKey.INCREMENTAL_ALTER_CONFIGS, lambda version: request)
        return _of(resources, response.responses, lambda each: error_of(each.error_code, each.error_message))

    # Repeating an APPEND would add the value to a list twice.
    lists = {OpType.APPEND, OpType.SUBTRACT}
    repeatable = all(op.op_type not in lists for ops in changes.values() for op in ops)
    return await _ask(client, changes, ask, repeatable=repeatable)


def _of(
    resources: Iterable[ConfigResource], answers: Iterable[Any], result_of: Callable[[Any], T]
) -> dict[ConfigResource, T]:
    """The results of these resources in a response."""
    known: dict[tuple[int, str], ConfigResource] = {(one.type, one.name): one for one in resources}
    return {
        known[key]: result_of(each) for each in answers if (key := (each.resource_type, each.resource_name)) in known
    }


async def _ask(
    client: ClusterClient,
    resources: Iterable[ConfigResource],
    ask: Callable[[Connection, Sequence[ConfigResource]], Awaitable[Mapping[ConfigResource, T | KafkaError]]],
    *,
    retriable: Collection[ErrorCode] = CONFIG_ERRORS,
    repeatable: bool = True,
    retry: RetryPolicy | None = None,
) -> dict[ConfigResource, T | KafkaError]:

    any_broker = in_turn(client)
    named_broker: Route[ConfigResource] = of_brokers(client, lambda resource: int(resource.name))

    async def route(resources: Sequence[ConfigResource], stale: bool) -> dict[ConfigResource, int | Unroutable]:
        of_one_broker = [resource for resource in resources if _is_of_one_broker(resource)]
        found = dict(await named_broker(of_one_broker, stale)) if of_one_broker else {}
        others = [resource for resource in resources if resource not in found]
        return found | await route_to_any(others, stale) if others else found

    async def route_to_any(resources: Sequence[ConfigResource], stale: bool) -> dict[ConfigResource, int | Unroutable]:
        if stale or not client.metadata.brokers:
            await client.refresh_metadata_once((), elsewhere=stale)
        chosen = any_broker()
        if chosen is None:
            unroutable = Unroutable(KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "the cluster has no broker"))
            return dict.fromkeys(resources, unroutable)
        return dict.fromkeys(resources, chosen)

    return await fan_out(client, resources, route, ask, retriable=retriable, repeatable=repeatable, retry=retry)


def _is_of_one_broker(resource: ConfigResource) -> bool:
    return resource.type is not ConfigResourceType.TOPIC and resource.name.isdecimal()
