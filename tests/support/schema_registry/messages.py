"""Protobuf messages for tests, made without protoc: files of descriptors and the classes of their messages."""

from collections.abc import Sequence
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

_TYPES = {name.removeprefix("TYPE_").lower(): number for name, number in FieldDescriptorProto.Type.items()}


def proto_file(
    name: str,
    package: str,
    messages: dict[str, dict[str, Any]],
    *,
    imports: Sequence[str] = (),
) -> FileDescriptorProto:
    """A file with messages like `{"Order": {"id": "int64", "tags": "repeated string", "of": ".shop.Other"}}`.

    Fields are numbered from 1 on. A dictionary in place of a type is a nested message, with the field's name as
    capitals: `{"Order": {"Line": {"sku": "string"}, "lines": "repeated .shop.Order.Line"}}`.
    """
    file = FileDescriptorProto(name=name, package=package, syntax="proto3", dependency=imports)
    for message, fields in messages.items():
        _fill(file.message_type.add(name=message), fields)
    return file


def _fill(message: Any, fields: dict[str, Any]) -> None:
    for name, kind in fields.items():
        if isinstance(kind, dict):
            _fill(message.nested_type.add(name=name), kind)
            continue
        label = FieldDescriptorProto.LABEL_REPEATED if "repeated " in kind else FieldDescriptorProto.LABEL_OPTIONAL
        kind = kind.removeprefix("repeated ")
        field = message.field.add(name=name, number=len(message.field) + 1, label=label, json_name=name)
        if kind.startswith("."):
            field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, kind
        else:
            field.type = _TYPES[kind]


def message_classes(*files: FileDescriptorProto) -> dict[str, Any]:
    """The class of each message by its full name; a file comes after those that it imports."""
    from google.protobuf import timestamp_pb2

    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    for file in files:
        pool.Add(file)
    found: dict[str, Any] = {}

    def add(descriptor: Any) -> None:
        found[descriptor.full_name] = message_factory.GetMessageClass(descriptor)
        for nested in descriptor.nested_types:
            add(nested)

    for file in files:
        for descriptor in pool.FindFileByName(file.name).message_types_by_name.values():
            add(descriptor)
    return found
