"""The table of APIs that this broker serves. Each module under `handlers/` registers its own API in it.

ApiVersions and the table in docs/protocol.md are made from this table, so exactly the registered APIs are advertised.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from klamm.base.slices import Steps
from klamm.broker.quotas.mutation_quota import UNBOUNDED_MUTATIONS, Mutations
from klamm.broker.quotas.request_quota import RequestQuota
from klamm.broker.request_errors import outcome
from klamm.broker.requests.api import Api, CountedApi
from klamm.broker.requests.security import CLUSTER_NAME, OPERATIONS, Client, Operation
from klamm.broker.requests.services import Services
from klamm.net.server.server_connection import ServerConnection
from klamm.protocol.error_codes import ErrorCode, KafkaError
from klamm.protocol.messages import ApiKey, response_class
from klamm.protocol.schema import Answered, Struct, fields_of
from klamm.protocol.vocabulary import ResourceType

# The error for a client that is not authorized for a resource.
DENIED = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}

Body = TypeVar("Body", bound=Answered[Any])
"""The class of the request's message."""
Answer = TypeVar("Answer")
NO_BROKER = -1


@dataclass(slots=True)
class Request(Generic[Body]):
    """One request of a client, decoded."""

    api: CountedApi
    version: int
    client: Client
    correlation_id: int
    client_id: str | None
    connection: ServerConnection
    body: Body
    services: Services
    # None while no quota is set, and for requests of brokers.
    quota: RequestQuota | None = None

    @property
    def listener_name(self) -> str:
        return self.connection.listener_name

    def allows(self, name: str, operation: Operation | None = None, resource_type: ResourceType | None = None) -> bool:
        """Whether the client is authorized for the resource `name`, by the API's registration or the arguments."""
        wanted, kind = operation or self.api.operation, resource_type or self.api.resource_type
        assert wanted is not None and kind is not None
        return self.services.authorizer.allows(self.client, wanted, kind, name)

    def require(self, name: str, operation: Operation | None = None, resource_type: ResourceType | None = None) -> None:
        """Raises KafkaError (an error of `DENIED`) unless `allows`."""
        if not self.allows(name, operation, resource_type):
            raise KafkaError(DENIED[resource_type] if resource_type else self.denied)

    def require_cluster(self) -> None:
        """Raises KafkaError CLUSTER_AUTHORIZATION_FAILED unless the client is authorized on the cluster for this
        API."""
        self.require(CLUSTER_NAME, resource_type=ResourceType.CLUSTER)

    def authorized_operations(self, resource_type: ResourceType, name: str) -> set[int]:
        """The codes of the client's authorized operations on a resource (KIP-430)."""
        return {operation for operation in OPERATIONS[resource_type] if self.allows(name, operation, resource_type)}

    def changes(self, *, strict: bool, throttles: bool = True) -> Mutations:
        """Records partitions before the handler has them created or deleted. If `strict`, partitions beyond the
        client's quota are refused. The client is throttled for them, unless `throttles` is False."""
        return UNBOUNDED_MUTATIONS if self.quota is None else self.quota.changes(strict=strict, throttles=throttles)

    @property
    def denied(self) -> ErrorCode:
        """The error code for a resource for which the client is not authorized."""
        assert self.api.resource_type is not None
        return DENIED[self.api.resource_type]


_apis: dict[ApiKey, Api] = {}


def handler(
    request_class: type[Body],
    operation: Operation | None = None,
    resource_type: ResourceType | None = None,
    *,
    error_response: Callable[[Request[Body], KafkaError], Any] | None = None,
    pipelined: bool = False,
    ends_with_client: bool = False,
) -> Callable[[Callable[[Request[Body]], Answer]], Callable[[Request[Body]], Answer]]:
    """Registers the decorated function as the handler of the API of `request_class`.

    The function is a plain function if its answer is ready at once, a generator of steps if the work grows with the
    request, and `async def` if it may have to wait. It returns the answer, or None for no answer, or AnswerOnly if the
    request's changes are done and only its answer has to wait.

    Without an `error_response` the answer to an error only has its code and its message: for responses with an error
    code of their own. Raises ValueError if the API already has a handler.
    """
    key = ApiKey(request_class.api.key)

    def register(handle: Callable[[Request[Body]], Answer]) -> Callable[[Request[Body]], Answer]:
        if key in _apis:
            raise ValueError(f"two handlers for {key.name}: {_apis[key].handle} and {handle}")
        versions, failed = request_class.api.versions, error_response or _failed(response_class(key))
        _apis[key] = Api(
            key, versions.low, versions.high, operation, resource_type, handle, failed, pipelined, ends_with_client
        )
        return handle

    return register


def long_answer(
    handle: Callable[[Request[Body]], Steps[Answer]],
) -> Callable[[Request[Body]], Coroutine[Any, Any, Answer]]:
    """Has large answers, which the decorated function makes in steps, take turns (`Services.long_answers`)."""
    return lambda request: request.services.long_answers.take(handle(request))


def _failed(response: type[Struct]) -> Callable[[Request[Any], KafkaError], Struct]:
    if not hasattr(response, "error_code"):
        raise ValueError(f"{response.__name__} has no error code of its own: its handler needs an error_response")

    def error_response(request: Request[Any], error: KafkaError) -> Struct:
        values = {one.name: [] if one.is_array else one.default for one in fields_of(response) if one.is_required}
        answer = outcome(error) if hasattr(response, "error_message") else {"error_code": error.code}
        return response(**values | answer)

    return error_response


def registered() -> Mapping[ApiKey, Api]:
    """Every API registered so far, by ascending key."""
    return dict(sorted(_apis.items()))
