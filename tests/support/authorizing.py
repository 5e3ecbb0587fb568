"""An authorizer whose rule the test says, and may change while the broker runs."""

from collections.abc import Callable

from klamm.broker.requests.security import Authorizer, Client, Operation
from klamm.protocol.vocabulary import ResourceType

Rule = Callable[[Operation, ResourceType, str], bool]
"""Whether an operation on a resource of that name is allowed."""


class Allows(Authorizer):
    """Allows what `rule` does; by default all. A broker needs its own rights until it is known."""

    def __init__(self, rule: Rule = lambda operation, resource_type, name: True) -> None:
        self.rule = rule
        self.principals: set[str] = set()

    def allows(self, client: Client, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        self.principals.add(client.principal)
        return self.rule(operation, resource_type, name)


def nothing(operation: Operation, resource_type: ResourceType, name: str) -> bool:
    return False
