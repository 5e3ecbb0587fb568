"""How a tool's client reaches a cluster, and what its errors say to a person."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from klamm.access.properties import read_properties
from klamm.base.words import address_text
from klamm.processes.tool_errors import EXIT_USAGE, ToolError
from klamm.protocol.error_codes import ErrorCode, KafkaError, error_name

if TYPE_CHECKING:
    from klamm.client.cluster import ClusterClient
    from klamm.client.options import ClientOptions

T = TypeVar("T")

# The meanings of error codes that brokers send without a message.
_MEANINGS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "There is no such topic or partition, or it may not be described.",
    ErrorCode.ILLEGAL_GENERATION: "The group has begun another generation.",
    ErrorCode.INVALID_GROUP_ID: "The group's id is not valid.",
    ErrorCode.UNKNOWN_MEMBER_ID: "The group has members, and this client is not one of them.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "The group may not be accessed.",
    ErrorCode.NON_EMPTY_GROUP: "The group is not empty.",
    ErrorCode.GROUP_ID_NOT_FOUND: "There is no such group.",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "The group consumes this topic.",
}


@contextmanager
def cluster_errors() -> Iterator[None]:
    """Turns errors of the client, of the cluster, and about values that no request can hold into ToolErrors."""
    from klamm.net.client import ClientError
    from klamm.net.security import SecurityError
    from klamm.protocol.encode_errors import UnencodableMessage

    try:
        yield
    except (ClientError, SecurityError, UnencodableMessage) as error:
        raise ToolError(str(error)) from error
    except KafkaError as error:
        raise ToolError(error_line(error)) from error


def command_options(
    bootstrap_server: str,
    command_config: Path | None,
    timeout_ms: int | None = None,
    *,
    default_timeout_ms: int | None = None,
) -> "ClientOptions":
    """The options of a command's client. Raises ToolError for a property that is unknown or invalid.

    `timeout_ms` is the value of --timeout. It replaces default.api.timeout.ms, and also limits each connection attempt
    and each answer. `default_timeout_ms` does the same if neither the option nor the file sets a timeout.
    """
    from dataclasses import replace

    from klamm.client.properties import TIMEOUTS, client_options, parse_addresses

    with property_errors(command_config):
        properties = command_properties(command_config)
        options = client_options(properties, bootstrap=parse_addresses("--bootstrap-server", bootstrap_server))
    limit_ms = timeout_ms
    if limit_ms is None and not any(name in properties for name in TIMEOUTS):
        limit_ms = default_timeout_ms
    if limit_ms is None:
        return options
    return replace(
        options,
        retry_timeout_ms=limit_ms,
        connect_timeout_ms=min(options.connect_timeout_ms, limit_ms),
        connect_timeout_max_ms=min(options.connect_timeout_max_ms, limit_ms),
        request_timeout_ms=min(options.request_timeout_ms, limit_ms),
        refused_timeout_ms=options.refused_timeout_ms if timeout_ms is None else timeout_ms,
    )


def command_properties(command_config: Path | None) -> dict[str, str]:
    """The properties of `--command-config`."""
    return {} if command_config is None else read_properties(command_config)


@contextmanager
def property_errors(command_config: Path | None) -> Iterator[None]:
    """Turns the error for an unusable property into a ToolError."""
    from klamm.client.properties import PropertyError

    try:
        yield
    except PropertyError as error:
        raise ToolError(f"{command_config}: {error}") from None


def succeeded(result: T | KafkaError) -> T:
    """The value of a result. Raises ToolError for an error of the cluster."""
    if isinstance(result, KafkaError):
        raise ToolError(error_line(result)) from result
    return result


def is_silent(error: KafkaError) -> bool:
    """Whether the error means that the broker did not answer, so that the requested facts are unknown."""
    return error.code is ErrorCode.NETWORK_EXCEPTION


def silence_text(broker_id: int, why: str) -> str:
    return f"broker {broker_id} does not answer: {why}"


def silent_brokers(answers: Mapping[int, object]) -> dict[int, str]:
    """The brokers among these that have not answered, and why. Raises ToolError if no broker has answered."""
    silent = {
        broker_id: answer.message or error_name(answer.code)
        for broker_id, answer in answers.items()
        if isinstance(answer, KafkaError)
    }
    if len(silent) == len(answers):
        raise ToolError("; ".join(silence_text(*each) for each in silent.items()) or "no broker is known")
    return silent


def gap_text(gap: KafkaError) -> str:
    return f"this may not be all: {error_line(gap)}"


def error_line(error: KafkaError) -> str:
    """One line for an error of the cluster: Kafka's name and code, and further details."""
    name = error_name(error.code)
    text = error.message or _MEANINGS.get(error.code, "")
    return f"{name}: {text}" if text else name


async def reach_cluster(client: "ClusterClient", options: "ClientOptions") -> None:
    """Connects the client to a bootstrap address. Raises ToolError when no broker answers, or when the addresses belong
    to different clusters."""
    from klamm.client.cluster import DifferentClusters
    from klamm.net.client import ConnectFailed

    try:
        await client.reach(options.retry_timeout_ms, options.refused_timeout_ms)
    except ConnectFailed as error:
        addresses = ",".join(address_text(host, port) for host, port in options.bootstrap)
        raise ToolError(f"no broker answers at {addresses}: {error}") from error
    except DifferentClusters as error:
        raise ToolError(f"--bootstrap-server: {error}", EXIT_USAGE) from error
