"""Schemas of the test registry: parsing, a form in which equal schemas are equal, and names."""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import fastavro.schema
import jsonschema
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

TYPES = ("AVRO", "JSON", "PROTOBUF")
_BUILT_IN_PREFIXES = ("google/protobuf/", "google/type/", "confluent/")


class InvalidSchema(ValueError):
    """The text is not a schema of its type, or a reference of it does not resolve."""


@dataclass(frozen=True)
class Reference:
    """A schema that another one uses under `name`."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True)
class Schema:
    """What a client registers."""

    kind: str
    text: str
    references: tuple[Reference, ...] = ()


def parsed(schema: Schema, referenced: Sequence[tuple[str, Schema]]) -> Any:
    """The schema in the form that its compatibility check takes; `referenced` are all schemas that it needs, those
    without references first. Raises InvalidSchema.
    """
    try:
        if schema.kind == "AVRO":
            return _parsed_avro(schema.text, referenced)
        if schema.kind == "JSON":
            document = json.loads(schema.text)
            jsonschema.validators.validator_for(document, jsonschema.Draft7Validator).check_schema(document)
            return document
        return _parsed_protobuf(schema.text, referenced)
    except InvalidSchema:
        raise
    except Exception as error:
        raise InvalidSchema(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from error


def canonical(schema: Schema, *, normalize: bool) -> Schema:
    """The schema in the form that is stored. Without `normalize`, only white space goes; with it, the order of the
    attributes too.
    """
    if schema.kind == "PROTOBUF":
        return schema
    text = json.dumps(json.loads(schema.text), separators=(",", ":"), sort_keys=normalize)
    references = tuple(sorted(schema.references, key=lambda one: one.name)) if normalize else schema.references
    return Schema(schema.kind, text, references)


def _parsed_avro(text: str, referenced: Sequence[tuple[str, Schema]]) -> Any:
    names: dict[str, Any] = {}
    for _, other in referenced:
        fastavro.schema.parse_schema(json.loads(other.text), names)
    return fastavro.schema.parse_schema(json.loads(text), names), names


def _parsed_protobuf(text: str, referenced: Sequence[tuple[str, Schema]]) -> Any:
    pool = DescriptorPool()
    _add_built_in(pool)
    for name, other in referenced:
        file = _file(other.text)
        file.name = name
        pool.Add(file)
    file = _file(text)
    file.name = "default"
    pool.Add(file)
    return pool.FindFileByName("default")


def _file(text: str) -> FileDescriptorProto:
    try:
        return FileDescriptorProto.FromString(base64.standard_b64decode(text.encode("ascii")))
    except Exception as error:
        raise InvalidSchema("this registry reads Protobuf only as a serialized descriptor, base64") from error


def _add_built_in(pool: DescriptorPool) -> None:
    from google.protobuf import descriptor_pb2, duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2

    for module in (descriptor_pb2, duration_pb2, struct_pb2, timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)


def is_built_in(name: str) -> bool:
    return name.startswith(_BUILT_IN_PREFIXES)
