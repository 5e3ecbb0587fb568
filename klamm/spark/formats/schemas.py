"""The type of a decoded key or value as Spark's DDL, from the schema that the options give.

What must stay true: a type is the one that Spark's `from_avro` and `from_protobuf` give the schema. Each field may be
null, because a record may be null. Importing this module imports no library of a format.

Source: org.apache.spark.sql.avro.SchemaConverters, org.apache.spark.sql.protobuf.utils.SchemaConverters.
"""

import base64
import binascii
from collections.abc import Iterable
from typing import TYPE_CHECKING

from klamm.spark.formats.avro_schemas import AvroType, read_schema, require_bounded
from klamm.spark.formats.settings import AVRO, CSV, JSON, PROTOBUF, STRING, ColumnFormat, SchemaError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

# The most characters of a type's text, and the approximate number for a field beside its name.
MAX_TYPE_CHARS, FIELD_CHARS = 500_000, 20
# How deep messages may be nested.
MAX_DEPTH = 100


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
        return avro_type(avro_schema(column))
    if column.name == PROTOBUF:
        return message_type(message_descriptor(column))
    raise SchemaError(f"the format {column.name} has no schema")


class _Size:
    """The length of a type's text so far. A short schema that uses its types several times may have a long text."""

    def __init__(self) -> None:
        self._chars = 0

    def add(self, chars: int) -> None:
        self._chars += chars
        if self._chars > MAX_TYPE_CHARS:
            raise SchemaError(
                f"the schema stands for a type of more than {MAX_TYPE_CHARS} characters; choose its fields in .schema()"
            )


def _struct(fields: Iterable[tuple[str, str]], size: _Size) -> str:
    made = []
    for name, data_type in fields:
        size.add(len(name) + FIELD_CHARS)
        quoted = name.replace("`", "``")
        made.append(f"`{quoted}`: {data_type}")
    return f"STRUCT<{', '.join(made)}>"


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


def avro_schema(column: ColumnFormat) -> AvroType:
    """The schema for reading values. Raises SchemaError."""
    if column.schema is None:
        raise SchemaError(f"the format avro needs the option {column.column}.schema, the Avro schema of the values")
    return read_schema(column.schema)


def avro_type(schema: AvroType) -> str:
    """The type of an Avro schema as DDL. Raises SchemaError."""
    require_bounded(schema)
    return _avro_type(schema, _Size())


def _avro_type(schema: AvroType, size: _Size) -> str:
    if schema.kind == "record":
        return _struct(((each.name, _avro_type(each.type, size)) for each in schema.fields), size)
    if schema.kind == "union":
        return _avro_union([branch for branch in schema.branches if branch.kind != "null"], size)
    if schema.items is not None:
        inner = _avro_type(schema.items, size)
        return f"ARRAY<{inner}>" if schema.kind == "array" else f"MAP<STRING, {inner}>"
    if schema.decimal is not None:
        precision, scale = schema.decimal
        if precision > 38:
            raise SchemaError(f"the Avro schema has a decimal of {precision} digits; allowed: 38")
        return f"DECIMAL({precision}, {scale})"
    return _AVRO_LOGICAL.get((schema.kind, schema.logical)) or _AVRO[schema.kind]


def _avro_union(branches: list[AvroType], size: _Size) -> str:
    if not branches:
        return "VOID"
    types = [_avro_type(branch, size) for branch in branches]
    if len(types) == 1:
        return types[0]
    if sorted(types) == ["BIGINT", "INT"]:
        return "BIGINT"
    if sorted(types) == ["DOUBLE", "FLOAT"]:
        return "DOUBLE"
    return _struct(((f"member{number}", found) for number, found in enumerate(types)), size)


# -- Protobuf ---------------------------------------------------------------------------------------------------------

_PROTOBUF = {
    "int32": "INT",
    "int64": "BIGINT",
    # As in Spark without upcast.unsigned.ints, the bits stay the same.
    "uint32": "INT",
    "uint64": "BIGINT",
    "double": "DOUBLE",
    "float": "FLOAT",
    "bool": "BOOLEAN",
    "enum": "STRING",
    "string": "STRING",
}


def message_descriptor(column: ColumnFormat) -> "Descriptor":
    """The message of a FileDescriptorSet. Raises SchemaError, and MissingLibrary if protobuf is not installed."""
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
    except KeyError:
        raise SchemaError(f"the FileDescriptorSet of {column.column} has no message {column.message}") from None
    except TypeError as error:
        raise SchemaError(f"the FileDescriptorSet of {column.column} is not valid: {str(error)[:200]}") from None


def message_type(message: "Descriptor") -> str:
    """The type of a message as DDL. Raises SchemaError."""
    return _message_type(message, (), _Size())


def _message_type(message: "Descriptor", above: tuple[str, ...], size: _Size) -> str:
    if message.full_name in above:
        raise SchemaError(f"the Protobuf message {message.full_name} is within itself; choose its fields in .schema()")
    if len(above) > MAX_DEPTH:
        raise SchemaError(f"the Protobuf message is nested deeper than {MAX_DEPTH} messages")
    if message.full_name == "google.protobuf.Timestamp":
        return "TIMESTAMP"
    if message.full_name == "google.protobuf.Duration":
        raise SchemaError(
            f"a field has the type {message.full_name}, which is not supported; choose fields in .schema()"
        )
    within = (*above, message.full_name)
    return _struct(((field.name, _field_type(field, within, size)) for field in message.fields), size)


def _field_type(field: "FieldDescriptor", above: tuple[str, ...], size: _Size) -> str:
    if field.message_type is not None and is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return f"MAP<{_single_type(key, above, size)}, {_single_type(value, above, size)}>"
    found = _single_type(field, above, size)
    return f"ARRAY<{found}>" if field.is_repeated else found


def _single_type(field: "FieldDescriptor", above: tuple[str, ...], size: _Size) -> str:
    if field.message_type is not None:
        return _message_type(field.message_type, above, size)
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
