"""Messages whose schemas kafka-python lacks: what brokers and the controller say to each other, and delegation tokens.

The JSON files give each message's fields in wire order in Kafka's schema language (versions, defaults, nullability);
kafka-python's loader makes classes of them. `LeaderAndIsrRequest.RequestType` is Kafka's `Type`: a message class
already has an attribute of that name, and names do not reach the wire.
"""

from types import new_class
from typing import Any

from klamm.protocol.library import message_module

APIS = (
    "LeaderAndIsr",
    "StopReplica",
    "UpdateMetadata",
    "ControlledShutdown",
    "AlterIsr",
    "CreateDelegationToken",
    "RenewDelegationToken",
    "ExpireDelegationToken",
    "DescribeDelegationToken",
)


def make_class(name: str) -> Any:
    """The message class of the schema file `name`.json. To be called once per name."""
    base = message_module("kafka.protocol.api_message").ApiMessage
    return new_class(name, (base,), {"load_json": __name__})
