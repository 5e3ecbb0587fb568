"""The type of a decoded key or value as Spark's DDL, from the schema that the options give.

What must stay true: a type is the one that Spark's `from_avro` and `from_protobuf` have for the schema; each field may
be null, because a record may be. Importing this module imports no library of a format.

Source: org.apache.spark.sql.avro.SchemaConverters, org.apache.spark.sql.protobuf.utils.SchemaConverters.
"""

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any

from klamm.spark.formats.settings import AVRO, CSV, JSON, PROTOBUF, STRING, ColumnFormat

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor


class SchemaError(ValueError):
    """A schema that cannot be used; the message says why."""


def column_type(column: ColumnFormat) -> str:
    """The column's type as DDL. Raises SchemaError."""
    if column.name == STRING:
        return "STRING"
    if column.schema is None:
        raise SchemaError(
            f"{column.column}.format={column.name} needs the schema of the column: in .schema(), or in the option"
            f" {column.column}.schema"
        )
    if column.name in (JSON, CSV):
        return f"STRUCT<{column.schema}>"
    if column.name == AVRO:
        return avro_type(avro_schema(column), AvroNames())
    if column.name == PROTOBUF:
        return message_type(message_descriptor(column), ())
    raise SchemaError(f"the format {column.name} has no schema")


def _struct(fields: list[tuple[str, str]]) -> str:
    quoted = ((name.replace("`", "``"), data_type) for name, data_type in fields)
    return f"STRUCT<{', '.join(f'`{name}`: {data_type}' for name, data_type in quoted)}>"


# -- Avro -------------------------------------------------------------------------------------------------------------

_AVRO = {
    "null": "VOID",
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "bytes": "BINARY",
    "string": "STRING",
    "enum": "STRING",
    "fixed": "BINARY",
}
_AVRO_LOGICAL = {
    ("int", "date"): "DATE",
    ("long", "timestamp-millis"): "TIMESTAMP",
    ("long", "timestamp-micros"): "TIMESTAMP",
    ("long", "local-timestamp-millis"): "TIMESTAMP_NTZ",
    ("long", "local-timestamp-micros"): "TIMESTAMP_NTZ",
}


class AvroNames:
    """The named types of a schema, by their full names, as they are met."""

    def __init__(self) -> None:
        self._types: dict[str, Any] = {}
        self._open: list[str] = []

    def define(self, schema: dict[str, Any], namespace: str) -> str:
        """Returns the namespace of the names within the type."""
        full = full_name(schema["name"], schema.get("namespace", namespace))
        self._types[full] = schema
        return full.rpartition(".")[0]

    def find(self, name: str, namespace: str) -> Any:
        for candidate in (full_name(name, namespace), name):
            if candidate in self._types:
                return self._types[candidate]
        raise SchemaError(f"the Avro schema has an unknown type {name!r}")


def full_name(name: str, namespace: str | None) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def avro_schema(column: ColumnFormat) -> Any:
    """The parsed schema that values are read by. Raises SchemaError."""
    try:
        return json.loads(column.schema or "")
    except (ValueError, RecursionError):
        name = (column.schema or "").strip()
        if name in _AVRO:
            return name
        raise SchemaError(f"the Avro schema of {column.column} is not valid JSON") from None


def avro_type(schema: Any, names: AvroNames, namespace: str = "", above: tuple[int, ...] = ()) -> str:
    """The type of an Avro schema as DDL. Raises SchemaError."""
    if isinstance(schema, list):
        return _avro_union(schema, names, namespace, above)
    if isinstance(schema, str):
        if schema in _AVRO:
            return _AVRO[schema]
        schema = names.find(schema, namespace)
    if not isinstance(schema, dict):
        raise SchemaError(f"the Avro schema has {schema!r} where a type should be")
    kind, logical = schema.get("type"), schema.get("logicalType")
    if isinstance(kind, dict | list):
        return avro_type(kind, names, namespace, above)
    if id(schema) in above:
        raise SchemaError(f"the Avro schema has a type within itself, {schema.get('name')}, which Spark cannot express")
    within = (*above, id(schema))
    try:
        if kind in ("record", "enum", "fixed"):
            namespace = names.define(schema, namespace)
        if logical == "decimal" and kind in ("bytes", "fixed"):
            return f"DECIMAL({int(schema['precision'])}, {int(schema.get('scale', 0))})"
        if kind == "record":
            return _struct(
                [(one["name"], avro_type(one["type"], names, namespace, within)) for one in schema["fields"]]
            )
        if kind == "array":
            return f"ARRAY<{avro_type(schema['items'], names, namespace, within)}>"
        if kind == "map":
            return f"MAP<STRING, {avro_type(schema['values'], names, namespace, within)}>"
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, SchemaError):
            raise
        raise SchemaError(f"the Avro schema has a {kind} without {error}") from None
    if isinstance(kind, str) and (found := _AVRO_LOGICAL.get((kind, str(logical)))):
        return found
    return avro_type(kind, names, namespace, above)


def _avro_union(branches: list[Any], names: AvroNames, namespace: str, above: tuple[int, ...]) -> str:
    values = [branch for branch in branches if branch != "null"]
    if not values:
        return "VOID"
    types = [avro_type(branch, names, namespace, above) for branch in values]
    if len(types) == 1:
        return types[0]
    if sorted(types) == ["BIGINT", "INT"]:
        return "BIGINT"
    if sorted(types) == ["DOUBLE", "FLOAT"]:
        return "DOUBLE"
    return _struct([(f"member{number}", data_type) for number, data_type in enumerate(types)])


# -- Protobuf ---------------------------------------------------------------------------------------------------------

_PROTOBUF = {
    "int32": "INT",
    "int64": "BIGINT",
    # As Spark without upcast.unsigned.ints: the same bits.
    "uint32": "INT",
    "uint64": "BIGINT",
    "double": "DOUBLE",
    "float": "FLOAT",
    "bool": "BOOLEAN",
    "enum": "STRING",
    "string": "STRING",
}


def message_descriptor(column: ColumnFormat) -> "Descriptor":
    """The message of a FileDescriptorSet. Raises SchemaError; MissingLibrary where protobuf is not installed."""
    try:
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        from google.protobuf.descriptor_pool import DescriptorPool
        from google.protobuf.message import DecodeError
    except ModuleNotFoundError:
        from klamm.spark.formats.settings import MissingLibrary

        raise MissingLibrary(
            "the format protobuf needs the package protobuf: pip install 'klamm[formats]', also on the workers"
        ) from None
    if column.schema is None or column.message is None:
        raise SchemaError(
            f"the format protobuf needs the options {column.column}.schema (a serialized FileDescriptorSet in base64)"
            f" and {column.column}.message (the message's full name)"
        )
    try:
        files = FileDescriptorSet.FromString(base64.b64decode(column.schema, validate=True)).file
    except (binascii.Error, ValueError, DecodeError):
        raise SchemaError(f"the option {column.column}.schema is no serialized FileDescriptorSet in base64") from None
    pool = DescriptorPool()
    try:
        for file in files:
            pool.Add(file)
        return pool.FindMessageTypeByName(column.message)
    except (KeyError, TypeError):
        raise SchemaError(f"the FileDescriptorSet of {column.column} has no message {column.message}") from None


def message_type(message: "Descriptor", above: tuple[str, ...]) -> str:
    """The type of a message as DDL. Raises SchemaError."""
    if message.full_name in above:
        raise SchemaError(f"the Protobuf message {message.full_name} is within itself; choose its fields in .schema()")
    if message.full_name == "google.protobuf.Timestamp":
        return "TIMESTAMP"
    if message.full_name == "google.protobuf.Duration":
        raise SchemaError(
            f"a field has the type {message.full_name}, which is not supported; choose fields in .schema()"
        )
    within = (*above, message.full_name)
    return _struct([(field.name, _field_type(field, within)) for field in message.fields])


def _field_type(field: "FieldDescriptor", above: tuple[str, ...]) -> str:
    if field.message_type is not None and is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return f"MAP<{_single_type(key, above)}, {_single_type(value, above)}>"
    found = _single_type(field, above)
    return f"ARRAY<{found}>" if field.is_repeated else found


def _single_type(field: "FieldDescriptor", above: tuple[str, ...]) -> str:
    if field.message_type is not None:
        return message_type(field.message_type, above)
    if field.type == field.TYPE_BYTES:
        return "BINARY"
    names = {
        field.CPPTYPE_INT32: "int32",
        field.CPPTYPE_INT64: "int64",
        field.CPPTYPE_UINT32: "uint32",
        field.CPPTYPE_UINT64: "uint64",
        field.CPPTYPE_DOUBLE: "double",
        field.CPPTYPE_FLOAT: "float",
        field.CPPTYPE_BOOL: "bool",
        field.CPPTYPE_ENUM: "enum",
        field.CPPTYPE_STRING: "string",
    }
    return _PROTOBUF[names[field.cpp_type]]


def is_map(field: "FieldDescriptor") -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry and bool(field.is_repeated)
