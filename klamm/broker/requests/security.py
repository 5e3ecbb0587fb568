"""Authorization: the operations and resources of Kafka's authorizer, and the authorizer that allows everything.

Brokers do not support authentication (SASL, TLS) yet, so every client is `User:ANONYMOUS`.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from klamm.protocol.vocabulary import ResourceType

ANONYMOUS = "User:ANONYMOUS"
CLUSTER_NAME = "kafka-cluster"
# The error message for requests about access control lists without an authorizer.
NO_AUTHORIZER = "No Authorizer is configured on the broker."


class Operation(IntEnum):
    """`org.apache.kafka.common.acl.AclOperation`, with its codes on the wire."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


# The operations that each resource type supports (`AclEntry.supportedOperations`).
OPERATIONS = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (Operation.READ, Operation.DESCRIBE, Operation.DELETE),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
        Operation.ALTER,
        Operation.DESCRIBE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.DESCRIBE, Operation.WRITE),
}


@dataclass(frozen=True, slots=True)
class Client:
    """The sender of a request: its principal and its address."""

    principal: str
    host: str

    @property
    def user(self) -> str:
        """The principal's name without its type."""
        return self.principal.partition(":")[2]


class Authorizer(Protocol):
    """Decides whether a client may do something."""

    def allows(self, client: Client, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """`name` is the topic, the group, ...; for the cluster it is `CLUSTER_NAME`."""
        ...


class AllowEverything:
    """The authorizer of a cluster without authorization."""

    def allows(self, client: Client, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        return True
