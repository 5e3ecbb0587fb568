"""The table of APIs that this broker serves. Each module under `handlers/` registers its own key in it.

ApiVersions and the protocol support table in the documentation are made from this table, so what is registered is
what is advertised.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from klamm.broker.security import CLUSTER_NAME, OPERATIONS, Client, Operation
from klamm.net.server import ServerConnection
from klamm.protocol.errors import ErrorCode, KafkaError
from klamm.protocol.messages import ADVERTISED_MAX, ADVERTISED_MIN, ApiKey
from klamm.protocol.vocabulary import ResourceType

if TYPE_CHECKING:
    from klamm.broker.services import Services

# The error that a client gets when it may not use a resource.
DENIED = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}

Body = TypeVar("Body")
"""The class of the request's message."""
NO_BROKER = -1
# Plain where the answer is known at once, `async def` where it may have to wait. None: nothing is answered. AnswerOnly:
# all is done that the request changes, and only its answer must be waited for.
Handle = Callable[["Request[Any]"], Any]
Handler = TypeVar("Handler", bound=Handle)
ErrorResponse = Callable[["Request[Any]", KafkaError], Any]


@dataclass(frozen=True, slots=True)
class Api:
    """How this broker serves one API key.

    `operation` on a resource of `resource_type` is what a client must be authorized for; None: it needs nothing.
    `error_response` makes the answer when `handle` raises a KafkaError. `pipelined`: may start while earlier requests
    of the same API on the connection are unanswered, because its effect comes before its response.
    `ends_with_client`: is cancelled, wherever it is, when its client hangs up, because it only reads, or because what
    it changes it changes in one step. Any other request runs to its end.
    """

    key: ApiKey
    min_version: int
    max_version: int
    operation: Operation | None
    resource_type: ResourceType | None
    handle: Handle
    error_response: ErrorResponse
    pipelined: bool
    ends_with_client: bool


@dataclass(slots=True)
class Request(Generic[Body]):
    """One request of a client, decoded."""

    api: Api
    version: int
    client: Client
    correlation_id: int
    client_id: str | None
    connection: ServerConnection
    body: Body
    services: "Services"

    @property
    def listener_name(self) -> str:
        return self.connection.listener_name

    def allows(self, name: str, operation: Operation | None = None, resource_type: ResourceType | None = None) -> bool:
        """Whether the client may use the resource `name` as the API's registration says, or as given here."""
        wanted, kind = operation or self.api.operation, resource_type or self.api.resource_type
        assert wanted is not None and kind is not None
        return self.services.authorizer.allows(self.client, wanted, kind, name)

    def require_cluster(self) -> None:
        """Raises KafkaError CLUSTER_AUTHORIZATION_FAILED unless the client has the API's right on the cluster."""
        if not self.allows(CLUSTER_NAME, resource_type=ResourceType.CLUSTER):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    def authorized_operations(self, resource_type: ResourceType, name: str) -> set[int]:
        """What the client may do with a resource, as codes (KIP-430)."""
        return {operation for operation in OPERATIONS[resource_type] if self.allows(name, operation, resource_type)}

    @property
    def denied(self) -> ErrorCode:
        """The error code for a resource that the client may not use."""
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
