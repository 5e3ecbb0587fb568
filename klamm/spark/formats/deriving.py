"""Schemas for writers without a schema of their own: an Avro schema as `to_avro` derives it, and a JSON Schema for a
registry.

What must stay true: the same type gives the same text. Otherwise a registry would get a new version for each query.

Source: org.apache.spark.sql.avro.SchemaConverters.
"""

import json
from typing import Any

from pyspark.sql import types as T

_AVRO: dict[type[T.DataType], Any] = {
    T.BooleanType: "boolean",
    T.ByteType: "int",
    T.ShortType: "int",
    T.IntegerType: "int",
    T.LongType: "long",
    T.FloatType: "float",
    T.DoubleType: "double",
    T.StringType: "string",
    T.BinaryType: "bytes",
    T.NullType: "null",
    T.DateType: {"type": "int", "logicalType": "date"},
    T.TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    T.TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}
_JSON: dict[type[T.DataType], Any] = {
    T.BooleanType: {"type": "boolean"},
    T.ByteType: {"type": "integer"},
    T.ShortType: {"type": "integer"},
    T.IntegerType: {"type": "integer"},
    T.LongType: {"type": "integer"},
    T.DecimalType: {"type": "number"},
    # NaN and the infinities are written as strings.
    T.FloatType: {"type": ["number", "string"]},
    T.DoubleType: {"type": ["number", "string"]},
    T.StringType: {"type": "string"},
    T.BinaryType: {"type": "string", "contentEncoding": "base64"},
    T.NullType: {"type": "null"},
    T.DateType: {"type": "string", "format": "date"},
    T.TimestampType: {"type": "string", "format": "date-time"},
    T.TimestampNTZType: {"type": "string"},
}


def avro_schema(data_type: T.DataType) -> str:
    """The schema that `to_avro` derives for a column of this type that is never null. Raises ValueError."""
    return json.dumps(_avro(data_type, False, "topLevelRecord", ""))


def _avro(data_type: T.DataType, nullable: bool, name: str, namespace: str) -> Any:
    found: Any
    below = f"{namespace}.{name}" if namespace else name
    if isinstance(data_type, T.StructType):
        fields = [
            {"name": field.name, "type": _avro(field.dataType, field.nullable, field.name, below)}
            for field in data_type.fields
        ]
        found = {"type": "record", "name": name, **({"namespace": namespace} if namespace else {}), "fields": fields}
    elif isinstance(data_type, T.ArrayType):
        found = {"type": "array", "items": _avro(data_type.elementType, data_type.containsNull, name, namespace)}
    elif isinstance(data_type, T.MapType) and isinstance(data_type.keyType, T.StringType):
        found = {"type": "map", "values": _avro(data_type.valueType, data_type.valueContainsNull, name, namespace)}
    elif isinstance(data_type, T.DecimalType):
        found = {
            "type": "fixed",
            "name": "fixed",
            "namespace": below,
            "size": _fixed_size(data_type.precision),
            "logicalType": "decimal",
            "precision": data_type.precision,
            "scale": data_type.scale,
        }
    elif type(data_type) in _AVRO:
        found = _AVRO[type(data_type)]
    else:
        raise ValueError(f"the type {data_type.simpleString()} has no counterpart in Avro")
    return [found, "null"] if nullable and found != "null" else found


def _fixed_size(precision: int) -> int:
    """The fewest bytes for numbers with this many digits."""
    size = 1
    while 2 ** (8 * size - 1) < 10**precision:
        size += 1
    return size


def json_schema(data_type: T.DataType) -> str:
    """A JSON Schema of the written documents. Fields that may be null are optional. Raises ValueError."""
    return json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", **_json(data_type)})


def _json(data_type: T.DataType) -> dict[str, Any]:
    if isinstance(data_type, T.StructType):
        return {
            "type": "object",
            "properties": {field.name: _json_or_null(field.dataType, field.nullable) for field in data_type.fields},
            "required": [field.name for field in data_type.fields if not field.nullable],
        }
    if isinstance(data_type, T.ArrayType):
        return {"type": "array", "items": _json_or_null(data_type.elementType, data_type.containsNull)}
    if isinstance(data_type, T.MapType):
        values = _json_or_null(data_type.valueType, data_type.valueContainsNull)
        return {"type": "object", "additionalProperties": values}
    if type(data_type) in _JSON:
        found: dict[str, Any] = _JSON[type(data_type)]
        return found
    raise ValueError(f"the type {data_type.simpleString()} has no counterpart in JSON")


def _json_or_null(data_type: T.DataType, nullable: bool) -> dict[str, Any]:
    found = _json(data_type)
    if not nullable or isinstance(data_type, T.NullType):
        return found
    types = found["type"] if isinstance(found["type"], list) else [found["type"]]
    return {**found, "type": [*types, "null"]}
