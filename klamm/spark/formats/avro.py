"""The format `avro`: a datum without a container in each record, as Spark's `from_avro` reads it.

fastavro decodes one datum at a time, and skips fields that the given type does not have. Logical types are left to this
module, because fastavro makes Python's dates and decimals of them.

What must stay true:
- A schema that would let a few bytes take a process down is refused: types within themselves (the
  depth of the library's recursion), and arrays of elements that take no bytes (their number).
- A field that the schema does not have is null: writers are older than readers.

Source: org.apache.spark.sql.avro.AvroDeserializer.
"""

import io
import json
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from operator import itemgetter
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa

from klamm.spark.formats import building
from klamm.spark.formats.building import Builder
from klamm.spark.formats.coding import Decoded
from klamm.spark.formats.schemas import AvroNames, SchemaError, avro_schema, full_name
from klamm.spark.formats.settings import ColumnFormat

_EXACT = Context(prec=80)
_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_ALLOWED: dict[str, tuple[pa.DataType, ...]] = {
    "boolean": (pa.bool_(),),
    "int": (pa.int32(), pa.int64(), pa.date32()),
    "long": (pa.int64(),),
    "float": (pa.float32(), pa.float64()),
    "double": (pa.float64(),),
    "bytes": (pa.binary(),),
    "fixed": (pa.binary(),),
    "string": (pa.string(),),
    "enum": (pa.string(),),
}
_MICROS = {"timestamp-millis": 1000, "local-timestamp-millis": 1000, "timestamp-micros": 1, "local-timestamp-micros": 1}


def decoder(column: ColumnFormat, data_type: pa.DataType) -> "AvroDecoder":
    if column.schema is None:
        raise ValueError(f"the format avro needs the option {column.column}.schema, the Avro schema of the values")
    reader = None if column.reader_schema is None else json.loads(column.reader_schema)
    return AvroDecoder(avro_schema(column), reader, data_type)


class AvroDecoder:
    """Decodes data that were written with one schema, resolved to the reader's schema if there is one."""

    def __init__(self, writer: Any, reader: Any | None, data_type: pa.DataType) -> None:
        names = AvroNames()
        _check(writer, names, "", ())
        plan = _Plan(AvroNames())
        chosen = plan.read(writer if reader is None else reader, data_type, "")
        self._builder = chosen.builder
        try:
            self._writer = fastavro.parse_schema(_plain(writer))
            # A named type that is used twice could not be cut differently in each place.
            projected = chosen.schema if not plan.repeats else (None if reader is None else _plain(reader))
            self._reader = None if projected is None else fastavro.parse_schema(projected)
        except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType, ValueError, KeyError) as error:
            raise SchemaError(f"the Avro schema is not valid: {error}") from None

    def decode(self, data: pa.Array) -> Decoded:
        rows: list[Any] = []
        bad = np.zeros(len(data), np.bool_)
        reason = ""
        read, writer, reader = fastavro.schemaless_reader, self._writer, self._reader
        for index, value in enumerate(data.to_pylist()):
            row = None
            if value is not None:
                try:
                    row = read(io.BytesIO(value), writer, reader, handle_unicode_errors="replace")
                # What the library raises for wrong bytes is anything that Python's own functions raise.
                except Exception as error:
                    bad[index] = True
                    reason = reason or f"not valid Avro of the schema ({type(error).__name__})"
            rows.append(row)
        return building.build_rows(self._builder, rows, bad, reason)


class _Chosen:
    """What is read of a schema: the schema without other fields, and the builder of the values."""

    def __init__(self, schema: Any, builder: Builder) -> None:
        self.schema, self.builder = schema, builder


class _Plan:
    """Chooses the fields of a type in a schema."""

    def __init__(self, names: AvroNames) -> None:
        self._names = names
        self.repeats = False

    def read(self, schema: Any, data_type: pa.DataType, namespace: str) -> _Chosen:
        """Raises ValueError where the type is not one that the schema has."""
        if isinstance(schema, list):
            return self._union(schema, data_type, namespace)
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return self._simple(schema, {}, data_type)
            self.repeats = True
            return self.read_named(self._names.find(schema, namespace), data_type, namespace)
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.read(kind, data_type, namespace)
        if kind in ("record", "enum", "fixed"):
            self._names.define(schema, namespace)
        return self.read_named(schema, data_type, namespace)

    def read_named(self, schema: dict[str, Any], data_type: pa.DataType, namespace: str) -> _Chosen:
        kind = schema["type"]
        if kind == "record":
            inner = full_name(schema["name"], schema.get("namespace", namespace)).rpartition(".")[0]
            return self._record(schema, data_type, inner)
        if kind == "array":
            if not pa.types.is_list(data_type):
                raise ValueError(f"the Avro schema has an array, which cannot become {data_type}")
            element = self.read(schema["items"], data_type.value_type, namespace)
            return _Chosen({"type": "array", "items": element.schema}, building.items(data_type, element.builder))
        if kind == "map":
            if not pa.types.is_map(data_type) or not pa.types.is_string(data_type.key_type):
                raise ValueError(f"the Avro schema has a map, which cannot become {data_type}")
            value = self.read(schema["values"], data_type.item_type, namespace)
            builder = building.pairs(data_type, building.simple(pa.string()), value.builder)
            return _Chosen({"type": "map", "values": value.schema}, builder)
        return self._simple(kind, schema, data_type)

    def _record(self, schema: dict[str, Any], data_type: pa.DataType, namespace: str) -> _Chosen:
        if not pa.types.is_struct(data_type):
            raise ValueError(f"the Avro schema has a record, which cannot become {data_type}")
        found = {field["name"]: field for field in schema["fields"]}
        chosen: list[dict[str, Any]] = []
        builders: list[tuple[Callable[[Any], Any], Builder]] = []
        for index in range(data_type.num_fields):
            name, field_type = data_type.field(index).name, data_type.field(index).type
            if name not in found:
                builders.append((_nothing, building.nulls(field_type)))
                continue
            value = self.read(found[name]["type"], field_type, namespace)
            chosen.append({**found[name], "type": value.schema})
            builders.append((itemgetter(name), value.builder))
        return _Chosen({**schema, "fields": chosen}, building.struct(data_type, builders))

    def _union(self, branches: list[Any], data_type: pa.DataType, namespace: str) -> _Chosen:
        values = [branch for branch in branches if branch != "null"]
        if not values:
            return _Chosen(branches, building.nulls(data_type))
        kinds = sorted(json.dumps(branch) for branch in values)
        if kinds in (['"int"', '"long"'], ['"double"', '"float"']):
            return _Chosen(branches, self._simple("long" if "int" in kinds[0] else "double", {}, data_type).builder)
        if len(values) > 1:
            raise ValueError("the Avro schema has a union of several types; only one type and null can be decoded")
        chosen = self.read(values[0], data_type, namespace)
        return _Chosen([branch if branch == "null" else chosen.schema for branch in branches], chosen.builder)

    def _simple(self, kind: str, schema: dict[str, Any], data_type: pa.DataType) -> _Chosen:
        plain = kind if kind in _PRIMITIVES else {key: schema[key] for key in schema if key != "logicalType"}
        logical = schema.get("logicalType")
        if kind == "null":
            return _Chosen(plain, building.nulls(data_type))
        if pa.types.is_timestamp(data_type) and kind == "long" and logical in _MICROS:
            factor = _MICROS[logical]
            return _Chosen(plain, building.simple(data_type, lambda value: value * factor))
        if pa.types.is_decimal(data_type) and kind in ("bytes", "fixed") and logical == "decimal":
            scale = int(schema.get("scale", 0))
            return _Chosen(plain, building.simple(data_type, lambda value: _decimal(value, scale)))
        if data_type not in _ALLOWED.get(kind, ()) or (data_type == pa.date32() and logical != "date"):
            named = f"{kind} ({logical})" if logical else kind
            raise ValueError(f"the Avro schema has {named}, which cannot become {data_type}")
        return _Chosen(plain, building.simple(data_type))


def _nothing(_: Any) -> None:
    return None


def _decimal(value: bytes, scale: int) -> Decimal:
    number = int.from_bytes(value, "big", signed=True)
    if abs(number) >= 10**38:
        raise ValueError("more than 38 digits")
    return Decimal(number).scaleb(-scale, _EXACT)


def _plain(schema: Any) -> Any:
    """The schema without logical types."""
    if isinstance(schema, list):
        return [_plain(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: value for key, value in schema.items() if key != "logicalType"}
    for key in ("type", "items", "values"):
        if key in made:
            made[key] = _plain(made[key])
    if "fields" in made:
        made["fields"] = [{**field, "type": _plain(field["type"])} for field in made["fields"]]
    return made


def _check(schema: Any, names: AvroNames, namespace: str, above: Sequence[int]) -> int:
    """The fewest bytes that a datum of the schema takes. Raises SchemaError for a schema that is not safe."""
    if isinstance(schema, list):
        return 1 + min((_check(branch, names, namespace, above) for branch in schema), default=0)
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return {"null": 0, "float": 4, "double": 8}.get(schema, 1)
        schema = names.find(schema, namespace)
    if not isinstance(schema, dict) or "type" not in schema:
        raise SchemaError(f"the Avro schema has {schema!r} where a type should be")
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _check(kind, names, namespace, above)
    if id(schema) in above:
        raise SchemaError(f"the Avro schema has a type within itself, {schema.get('name')}")
    within = (*above, id(schema))
    try:
        if kind in ("record", "enum", "fixed"):
            namespace = names.define(schema, namespace)
        if kind == "record":
            return sum(_check(field["type"], names, namespace, within) for field in schema["fields"])
        if kind == "fixed":
            return int(schema["size"])
        if kind == "array" and _check(schema["items"], names, namespace, within) == 0:
            raise SchemaError("the Avro schema has an array of elements that take no bytes, which has no bound")
        if kind == "map":
            _check(schema["values"], names, namespace, within)
    except (KeyError, TypeError) as error:
        raise SchemaError(f"the Avro schema has a {kind} without {error}") from None
    return 1 if kind in ("array", "map", "enum") else _check(kind, names, namespace, above)
