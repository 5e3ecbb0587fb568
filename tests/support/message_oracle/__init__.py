"""kafka-python's message classes, the oracle for our own; its values are made of ours.

The JSON files hold the schemas that it lacks, in Kafka's schema language: what brokers and the controller say to each
other, and delegation tokens.
"""

import importlib
from functools import cache
from types import SimpleNamespace, new_class
from typing import Any

from klamm.protocol.api_keys import ApiKey
from klamm.protocol.schema import Struct, fields_of

_MODULES = (
    "kafka.protocol.metadata",
    "kafka.protocol.producer",
    "kafka.protocol.consumer",
    "kafka.protocol.admin",
    "kafka.protocol.sasl",
)
_OWN = (
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


@cache
def library_class(api_key: ApiKey, kind: str) -> Any:
    name = api_key.message_name + kind
    if api_key.message_name in _OWN:
        base = importlib.import_module("kafka.protocol.api_message").ApiMessage
        return new_class(name, (base,), {"load_json": __name__})
    found = [getattr(importlib.import_module(module), name, None) for module in _MODULES]
    return next(one for one in found if one is not None)


def in_library(message: Struct, message_class: Any, version: int) -> Any:
    """The same message as an object of the library's class, whose fields have the same names."""
    return _converted(message, message_class._struct, message_class, version)


def _converted(item: Any, schema: Any, data_class: Any, version: int) -> Any:
    values: dict[str, Any] = {}
    left_out = set()
    for field in schema._fields:
        if not field.for_version_q(version):
            continue
        if field.tag is not None and field.is_struct() and getattr(item, field.name, None) is None:
            left_out.add(field.name)  # Fetch's snapshot id, of KRaft, always
            continue
        groups = _GROUPS.get((data_class.__name__, field.name))
        if groups is None:
            value = getattr(item, field.name)
        else:
            left_out.add(groups)
            value = _old_form(getattr(item, groups), field.name)
        if value is not None and field.is_struct():
            value = _converted(value, field, field.data_class, version)
        elif value is not None and field.is_struct_array():
            value = [_converted(one, field.array_of, field.data_class, version) for one in value]
        elif isinstance(value, tuple):
            value = list(value)
        values[field.name] = value
    if isinstance(item, Struct):
        assert not {one.name for one in fields_of(type(item)) if version in one.versions} - {*values, *left_out}
    return data_class(version=version, **values)


# Fields that only old versions have, and our field that holds the same.
_GROUPS = {
    ("LeaderAndIsrRequest", "ungrouped_partition_states"): "topic_states",
    ("LeaderAndIsrResponse", "partition_errors"): "topics",
    ("UpdateMetadataRequest", "ungrouped_partition_states"): "topic_states",
    ("StopReplicaRequest", "ungrouped_partitions"): "topic_states",
    ("StopReplicaRequest", "topics"): "topic_states",
}


def _old_form(topics: list[Any], name: str) -> list[Any]:
    """Partitions that name their topic; StopReplica's topics have plain numbers."""
    states = [(topic.topic_name, getattr(topic, fields_of(type(topic))[-1].name)) for topic in topics]
    if name == "topics":
        return [
            SimpleNamespace(name=topic, partition_indexes=[state.partition_index for state in partitions])
            for topic, partitions in states
        ]
    return [
        SimpleNamespace(topic_name=topic, **{name: getattr(state, name) for name in type(state).__slots__})
        for topic, partitions in states
        for state in partitions
    ]


def body_of(message: Any, version: int) -> bytes:
    """What the library encodes."""
    message._header = None  # its encoder looks at it, even when it writes none
    return bytes(message.encode(version=version))
