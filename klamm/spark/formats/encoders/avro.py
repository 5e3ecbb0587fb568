"""Structs as Avro: with a given schema, or with the schema that `to_avro` would derive.

Arrow checks and converts whole columns first; then fastavro writes one row after another.

What must stay true:
- The allowed types are those of `to_avro`, and wider ones (int as long, float as double). Nothing is rounded or cut.
- A null, a symbol or a size that the schema does not allow is found before fastavro gets the values, because fastavro
  would write some of them as another value.

Source: org.apache.spark.sql.avro.AvroSerializer, SchemaConverters.
"""

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
from fastavro.schema import SchemaParseException, UnknownType

from klamm.spark.formats.encoders.arrays import is_binary, is_list, is_string
from klamm.spark.formats.encoders.row_objects import RowObjects, Rows, refuse
from klamm.spark.formats.settings import ColumnFormat

_MICROSECONDS = ("timestamp-micros", "local-timestamp-micros", None)
_MILLISECONDS = ("timestamp-millis", "local-timestamp-millis")
_MAX_DEPTH = 100


def encoder(column: ColumnFormat, data_type: pa.DataType) -> "AvroEncoder":
    names: dict[str, Any] = {}
    try:
        schema: Any = fastavro.parse_schema(json.loads(column.schema or ""), names)
    except (ValueError, KeyError, TypeError, RecursionError, SchemaParseException, UnknownType) as error:
        raise ValueError(f"{column.column}.schema is not a schema of Avro: {error}") from None
    schema, _ = _without_null(schema)
    made = AvroEncoder(schema, names)
    made.check(schema, data_type, column.column, _MAX_DEPTH)
    return made


class AvroEncoder(RowObjects):
    """Makes the binary encoding of Avro, without a header."""

    def __init__(self, schema: Any, names: dict[str, Any]) -> None:
        self._schema = schema
        self._names = names

    def encode(self, rows: pa.Array) -> pa.Array:
        return pa.array(map(self._written, self.objects(self._schema, rows)), pa.binary())

    def _written(self, value: Any) -> bytes | None:
        if value is None:
            return None
        out = io.BytesIO()
        fastavro.schemaless_writer(out, self._schema, value)
        return out.getvalue()

    # -- types --------------------------------------------------------------------------------------------------------

    def check(self, schema: Any, data_type: pa.DataType, path: str, depth: int) -> None:
        """Raises ValueError for a type that the schema does not take."""
        if depth == 0:
            raise ValueError(f"{path} is nested deeper than {_MAX_DEPTH} levels")
        schema = self._plain(schema)
        kind, logical = _kind(schema), _logical(schema)
        if kind == "record" and pa.types.is_struct(data_type):
            self._check_fields(schema, data_type, path, depth)
        elif kind == "array" and is_list(data_type):
            self.check(schema["items"], data_type.value_type, f"{path}.element", depth - 1)
        elif kind == "map" and pa.types.is_map(data_type) and is_string(data_type.key_type):
            self.check(schema["values"], data_type.item_type, f"{path}.value", depth - 1)
        elif not _fits(kind, logical, schema, data_type):
            raise ValueError(f"{path} is of type {data_type}, which the schema's {_text(schema)} does not take")

    def _check_fields(self, schema: Any, data_type: pa.DataType, path: str, depth: int) -> None:
        fields = {field["name"]: field for field in schema["fields"]}
        for column in data_type:
            if column.name not in fields:
                raise ValueError(f"{path} has the field {column.name}, which the schema lacks")
            self.check(fields[column.name]["type"], column.type, f"{path}.{column.name}", depth - 1)
        given = {column.name for column in data_type}
        for name, field in fields.items():
            nullable = _without_null(self._resolved(field["type"]))[1]
            if name not in given and "default" not in field and not nullable:
                raise ValueError(f"{path} lacks the field {name}, for which the schema has neither default nor null")

    # -- values -------------------------------------------------------------------------------------------------------

    def field(self, schema: Any, name: str) -> Any:
        return next(field["type"] for field in self._plain(schema)["fields"] if field["name"] == name)

    def element(self, schema: Any) -> Any:
        found = self._plain(schema)
        return found["items" if found["type"] == "array" else "values"]

    def check_field(self, schema: Any, nulls: pa.Array, rows: Rows, path: str) -> None:
        if not _without_null(self._resolved(schema))[1]:
            refuse(nulls, rows, path, "is null, which the schema does not allow")

    def check_elements(self, schema: Any, nulls: pa.Array, rows: Rows, path: str) -> None:
        self.check_field(schema, nulls, rows, f"{path}[]")

    def converted(self, schema: Any, values: pa.Array, rows: Rows, path: str) -> pa.Array:
        schema = self._plain(schema)
        kind = _kind(schema)
        if pa.types.is_timestamp(values.type):
            microseconds = values.cast(pa.timestamp("us", values.type.tz))
            if _logical(schema) in _MILLISECONDS:
                microseconds = pc.floor_temporal(microseconds, unit="millisecond")
                return microseconds.cast(pa.timestamp("ms", values.type.tz)).cast(pa.int64())
            return microseconds.cast(pa.int64())
        if pa.types.is_date32(values.type):
            return values.cast(pa.int32())
        if kind == "enum":
            known = pc.is_in(values, pa.array(schema["symbols"], values.type))
            refuse(pc.and_kleene(values.is_valid(), pc.invert(known)), rows, path, "is no symbol of the enum")
        if kind == "fixed" and is_binary(values.type):
            wrong = pc.not_equal(pc.binary_length(values), schema["size"])
            refuse(pc.fill_null(wrong, False), rows, path, f"has not the {schema['size']} bytes of the schema")
        return values

    def _plain(self, schema: Any) -> Any:
        """The schema of values that are not null."""
        return self._resolved(_without_null(self._resolved(schema))[0])

    def _resolved(self, schema: Any) -> Any:
        return self._names.get(schema, schema) if isinstance(schema, str) else schema


def _without_null(schema: Any) -> tuple[Any, bool]:
    """The schema of values that are not null, and whether null is allowed."""
    if not isinstance(schema, list):
        return schema, _kind(schema) == "null"
    branches = [branch for branch in schema if _kind(branch) != "null"]
    return branches[0] if len(branches) == 1 else branches, len(branches) < len(schema)


def _kind(schema: Any) -> str:
    if isinstance(schema, list):
        return "union"
    return str(schema["type"]) if isinstance(schema, dict) else str(schema)


def _logical(schema: Any) -> str | None:
    return schema.get("logicalType") if isinstance(schema, dict) else None


def _text(schema: Any) -> str:
    return " ".join(filter(None, (_kind(schema), _logical(schema))))


def _fits(kind: str, logical: str | None, schema: Any, data_type: pa.DataType) -> bool:
    """Whether plain values of the type are values of the schema."""
    types = pa.types
    if types.is_null(data_type):
        return kind == "null"
    if types.is_boolean(data_type):
        return kind == "boolean"
    if types.is_int64(data_type):
        return kind == "long"
    if types.is_integer(data_type):
        return kind in ("int", "long")
    if types.is_float32(data_type) or types.is_float64(data_type):
        return kind == "double" or (kind == "float" and types.is_float32(data_type))
    if is_string(data_type):
        return kind in ("string", "enum")
    if types.is_decimal(data_type):
        wanted = (schema.get("precision"), schema.get("scale", 0)) if logical == "decimal" else ()
        return kind in ("bytes", "fixed") and wanted == (data_type.precision, data_type.scale)
    if is_binary(data_type):
        return kind in ("bytes", "fixed") and logical != "decimal"
    if types.is_date32(data_type):
        return kind == "int" and logical in ("date", None)
    return bool(types.is_timestamp(data_type)) and kind == "long" and logical in (*_MICROSECONDS, *_MILLISECONDS)
