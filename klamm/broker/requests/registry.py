"""The table of APIs that this broker serves. Each module under `handlers/` registers its own key in it.

ApiVersions and the protocol support table in the documentation are made from this table, so exactly the registered APIs
are advertised.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from klamm.broker.quotas.mutation_quota import UNBOUNDED_MUTATIONS, Mutations
from klamm.broker.quotas.request_quota import RequestQuota
from klamm.broker.requests.api import Api, CountedApi
from klamm.broker.requests.security import CLUSTER_NAME, OPERATIONS, Client, Operation
from klamm.broker.requests.services import Services
from klamm.net.server_connection import ServerConnection
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ADVERTISED_MAX, ADVERTISED_MIN, ApiKey
from klamm.protocol.vocabulary import ResourceType

# The error for a client that is not authorized for a resource.
DENIED = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}

Body = TypeVar("Body")
"""The class of the request's message."""
NO_BROKER = -1
# A plain function if the answer is ready at once; a generator of steps if it is, but the work grows with the request;
# `async def` if it may have to wait. Returns the answer; None for no answer; AnswerOnly if the request's changes are
# done and only its answer must still be waited for.
Handle = Callable[["Request[Any]"], Any]
Handler = TypeVar("Handler", bound=Handle)
ErrorResponse = Callable[["Request[Any]", KafkaError], Any]


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

    def require_cluster(self) -> None:
        """Raises KafkaError CLUSTER_AUTHORIZATION_FAILED unless the client is authorized on the cluster for this
        API."""
        if not self.allows(CLUSTER_NAME, resource_type=ResourceType.CLUSTER):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    def authorized_operations(self, resource_type: ResourceType, name: str) -> set[int]:
        """The codes of the client's authorized operations on a resource (KIP-430)."""
        return {operation for operation in OPERATIONS[resource_type] if self.allows(name, operation, resource_type)}

    def changes(self, *, strict: bool, throttles: bool = True) -> Mutations:
        """Where the handler records partitions before it has them created or deleted. If `strict`, partitions beyond
        the client's quota are refused. The client is throttled for them, unless `throttles` is False."""
        return UNBOUNDED_MUTATIONS if self.quota is None else self.quota.changes(strict=strict, throttles=throttles)

    @property
    def denied(self) -> ErrorCode:
        """The error code for a resource for which the client is not authorized."""
        assert self.api.resource_type is not None
        return DENIED[self.api.resource_type]


_apis: dict[ApiKey, Api] = {}


def handler(
    key: ApiKey,
    *,
    operation: Operation | None,
    resource_type: ResourceType | None,
    error_response: ErrorResponse,
    pipelined: bool = False,
    ends_with_client: bool = False,
) -> Callable[[Handler], Handler]:
    """Registers the decorated function as the handler of `key`. Raises ValueError when the key is taken."""

    def register(handle: Handler) -> Handler:
        if key in _apis:
            raise ValueError(f"two handlers for {key.name}: {_apis[key].handle} and {handle}")
        versions = ADVERTISED_MIN[key], ADVERTISED_MAX[key]
        _apis[key] = Api(key, *versions, operation, resource_type, handle, error_response, pipelined, ends_with_client)
        return handle

    return register


def registered() -> Mapping[ApiKey, Api]:
    """Every API registered so far, by ascending key."""
    return dict(sorted(_apis.items()))
