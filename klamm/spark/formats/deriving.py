"""Schemas for writers that give none: Avro's as `to_avro` derives it, and a JSON Schema for a registry.

What must stay true: the same type gives the same text, or a registry would get a new version for each query.

Source: org.apache.spark.sql.avro.SchemaConverters.
"""

import json
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

_AVRO: dict[type[DataType], Any] = {
    BooleanType: "boolean",
    ByteType: "int",
    ShortType: "int",
    IntegerType: "int",
    LongType: "long",
    FloatType: "float",
    DoubleType: "double",
    StringType: "string",
    BinaryType: "bytes",
    NullType: "null",
    DateType: {"type": "int", "logicalType": "date"},
    TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}
_JSON: dict[type[DataType], Any] = {
    BooleanType: {"type": "boolean"},
    ByteType: {"type": "integer"},
    ShortType: {"type": "integer"},
    IntegerType: {"type": "integer"},
    LongType: {"type": "integer"},
    DecimalType: {"type": "number"},
    # NaN and the infinities are written as strings.
    FloatType: {"type": ["number", "string"]},
    DoubleType: {"type": ["number", "string"]},
    StringType: {"type": "string"},
    BinaryType: {"type": "string", "contentEncoding": "base64"},
    NullType: {"type": "null"},
    DateType: {"type": "string", "format": "date"},
    TimestampType: {"type": "string", "format": "date-time"},
    TimestampNTZType: {"type": "string"},
}


def avro_schema(data_type: DataType) -> str:
    """The schema that `to_avro` derives for a column of this type that is never null. Raises ValueError."""
    return json.dumps(_avro(data_type, False, "topLevelRecord", ""))


def _avro(data_type: DataType, nullable: bool, name: str, namespace: str) -> Any:
    found: Any
    below = f"{namespace}.{name}" if namespace else name
    if isinstance(data_type, StructType):
        fields = [
            {"name": field.name, "type": _avro(field.dataType, field.nullable, field.name, below)}
            for field in data_type.fields
        ]
        found = {"type": "record", "name": name, **({"namespace": namespace} if namespace else {}), "fields": fields}
    elif isinstance(data_type, ArrayType):
        found = {"type": "array", "items": _avro(data_type.elementType, data_type.containsNull, name, namespace)}
    elif isinstance(data_type, MapType) and isinstance(data_type.keyType, StringType):
        found = {"type": "map", "values": _avro(data_type.valueType, data_type.valueContainsNull, name, namespace)}
    elif isinstance(data_type, DecimalType):
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
    """The fewest bytes for numbers of so many digits."""
    size = 1
    while 2 ** (8 * size - 1) < 10**precision:
        size += 1
    return size


def json_schema(data_type: DataType) -> str:
    """A JSON Schema of the documents that are written. Fields that may be null are optional. Raises ValueError."""
    return json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", **_json(data_type)})


def _json(data_type: DataType) -> dict[str, Any]:
    if isinstance(data_type, StructType):
        return {
            "type": "object",
            "properties": {field.name: _json_or_null(field.dataType, field.nullable) for field in data_type.fields},
            "required": [field.name for field in data_type.fields if not field.nullable],
        }
    if isinstance(data_type, ArrayType):
        return {"type": "array", "items": _json_or_null(data_type.elementType, data_type.containsNull)}
    if isinstance(data_type, MapType):
        values = _json_or_null(data_type.valueType, data_type.valueContainsNull)
        return {"type": "object", "additionalProperties": values}
    if type(data_type) in _JSON:
        found: dict[str, Any] = _JSON[type(data_type)]
        return found
    raise ValueError(f"the type {data_type.simpleString()} has no counterpart in JSON")


def _json_or_null(data_type: DataType, nullable: bool) -> dict[str, Any]:
    found = _json(data_type)
    if not nullable or isinstance(data_type, NullType):
        return found
    types = found["type"] if isinstance(found["type"], list) else [found["type"]]
    return {**found, "type": [*types, "null"]}
