"""The format `avro`: a datum without a container in each record, as Spark's `from_avro` reads it.

fastavro decodes one datum at a time. It gets the writer's schema and, unless all fields are wanted, the wanted part of
it, both without names, logical types and defaults. So it skips the other fields, and neither checks nor resolves
anything. This module resolves the reader's schema, once for each writer's schema.

What must stay true:
- A schema with which a few bytes could cost much work is refused (`avro_schemas.require_bounded`), also when it comes
  from a registry, and when no query reads the costly fields.
- A field that the schema lacks is null: writers are older than readers.

Source: org.apache.spark.sql.avro.AvroDeserializer; Apache Avro 1.11, "Schema Resolution".
"""

import io
from collections.abc import Callable
from decimal import Context, Decimal
from operator import itemgetter
from typing import Any, NamedTuple

import fastavro
import numpy as np
import pyarrow as pa

from klamm.spark.formats import building
from klamm.spark.formats.avro_schemas import AvroField, AvroType, an, read_schema, require_bounded
from klamm.spark.formats.building import Builder
from klamm.spark.formats.coding import Decoded, in_chunks
from klamm.spark.formats.schemas import avro_schema
from klamm.spark.formats.settings import ColumnFormat, SchemaError

_EXACT = Context(prec=80)
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
# The types that a reader's schema may have for a writer's type.
_PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_WIDER: dict[tuple[str, ...], str] = {("int", "long"): "long", ("double", "float"): "double"}


def decoder(column: ColumnFormat, data_type: pa.DataType) -> "AvroDecoder":
    if column.schema is None:
        raise ValueError(f"the format avro needs the option {column.column}.schema, the Avro schema of the values")
    writer = avro_schema(column)
    same = column.reader_schema is None or column.reader_schema == column.schema
    return AvroDecoder(writer, writer if same else read_schema(column.reader_schema or ""), data_type)


class AvroDecoder:
    """Decodes data that were written with one schema, resolved to the reader's schema.

    Raises SchemaError if a schema is not safe or cannot be resolved to the reader's schema, and ValueError if the type
    does not fit the reader's schema.
    """

    def __init__(self, writer: AvroType, reader: AvroType, data_type: pa.DataType) -> None:
        require_bounded(writer)
        if reader is not writer:
            require_bounded(reader)
        resolution = _Resolution()
        chosen = resolution.read(writer, reader, data_type)
        self._type = data_type
        self._builder = chosen.builder
        whole, part = resolution.whole(writer, set()), chosen.schema
        self._is_record = writer.kind == "record"
        if not self._is_record:
            # fastavro parses a schema again for each datum, unless it is a record's.
            whole, part = _in_record("whole", whole), _in_record("part", part)
        self._whole = fastavro.parse_schema(whole)
        # Reading without a second schema takes half of the time.
        self._chosen = None if chosen.is_whole else fastavro.parse_schema(part)

    def decode(self, data: pa.Array) -> Decoded:
        return in_chunks(data, self._type, self._decode)

    def _decode(self, data: pa.Array) -> Decoded:
        rows: list[Any] = []
        bad = np.zeros(len(data), np.bool_)
        reason = ""
        read, whole, chosen = fastavro.schemaless_reader, self._whole, self._chosen
        for index, value in enumerate(data.to_pylist()):
            row = None
            if value is not None:
                try:
                    found: Any = read(io.BytesIO(value), whole, chosen, handle_unicode_errors="replace")
                    row = found if self._is_record else found["datum"]
                # For wrong bytes fastavro may raise any exception of Python's own functions.
                except Exception as error:
                    bad[index] = True
                    reason = reason or f"not valid Avro of the schema ({type(error).__name__})"
            rows.append(row)
        return building.build_rows(self._builder, rows, bad, reason)


class _Chosen(NamedTuple):
    """The wanted part of a writer's type: its schema for fastavro, and the builder of the values.

    - `is_whole`: the part has all written fields, and nothing is promoted.
    """

    schema: Any
    builder: Builder
    is_whole: bool


class _Resolution:
    """Finds the part of a writer's schema that a type needs, and resolves it to the reader's schema.

    The schemas for fastavro have other names: T0, T1 for the writer's named types, f0, f1 for the fields of a record. A
    chosen part has its own namespace, because different parts of a type may be used in two places. An enum is an int,
    because fastavro searches all symbols for each value; in a union with numbers, it is a record with an int.
    """

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._fields: dict[int, dict[str, tuple[int, AvroField]]] = {}
        self._defaults: dict[int, Any] = {}
        self._parts = 0

    def whole(self, found: AvroType, defined: set[str], *, among_numbers: bool = False) -> Any:
        """The schema for fastavro."""
        if found.kind == "union":
            among_numbers = _has_numbers(found)
            return [self.whole(branch, defined, among_numbers=among_numbers) for branch in found.branches]
        if found.items is not None:
            return _items(found, self.whole(found.items, defined))
        if not found.name:
            return found.kind
        if found.kind == "enum" and not among_numbers:
            return "int"
        name = f"whole.{self._name(found)}"
        if name in defined:
            return name
        defined.add(name)
        fields = [
            {"name": f"f{number}", "type": self.whole(each.type, defined)} for number, each in enumerate(found.fields)
        ]
        return _named(found, name, fields)

    def read(self, writer: AvroType, reader: AvroType, data_type: pa.DataType) -> _Chosen:
        wanted, may_be_null = _wanted(reader)
        if writer.kind != "union":
            return self._read(writer, wanted, may_be_null, data_type)
        kept, refused = [], _not_readable(writer, reader.kind)
        for branch in writer.branches:
            if wanted is None or branch.kind == "null" or not branch.name or _is_named(branch, wanted):
                try:
                    kept.append(self._read(branch, wanted, may_be_null, data_type, among_numbers=_has_numbers(writer)))
                except SchemaError as error:
                    # Only values of this branch are bad.
                    refused = error
        if not kept:
            raise refused
        builders = [each.builder for each in kept if each.schema != "null"]
        is_whole = len(kept) == len(writer.branches) and all(each.is_whole for each in kept)
        return _Chosen([each.schema for each in kept], builders[0] if builders else kept[0].builder, is_whole)

    def _read(
        self,
        writer: AvroType,
        wanted: AvroType | None,
        may_be_null: bool,
        data_type: pa.DataType,
        *,
        among_numbers: bool = False,
    ) -> _Chosen:
        if writer.kind == "null" and may_be_null:
            return _Chosen("null", building.nulls(data_type), True)
        if wanted is None:
            raise _not_readable(writer, "null")
        if wanted.kind == "record":
            return self._record(writer, wanted, data_type)
        if wanted.items is not None:
            return self._list(writer, wanted, wanted.items, data_type)
        return self._simple(writer, wanted, data_type, among_numbers=among_numbers)

    def _record(self, writer: AvroType, reader: AvroType, data_type: pa.DataType) -> _Chosen:
        if not pa.types.is_struct(data_type):
            raise ValueError(f"the Avro schema has a record, which cannot become {data_type}")
        if writer.kind != "record":
            raise _not_readable(writer, "record")
        chosen: dict[int, Any] = {}
        is_whole = True
        builders: list[tuple[Callable[[Any], Any], Builder]] = []
        for index in range(data_type.num_fields):
            name, field_type = data_type.field(index).name, data_type.field(index).type
            if name not in self._fields_of(reader):
                builders.append((_nothing, building.nulls(field_type)))
                continue
            _, field = self._fields_of(reader)[name]
            written = self._fields_of(writer)
            found = next((written[one] for one in (field.name, *field.aliases) if one in written), None)
            if found is None:
                builders.append((_always(self._default(field)), self.read(field.type, field.type, field_type).builder))
                continue
            number, written_field = found
            if number in chosen:
                raise SchemaError(f"the Avro schema reads the field {written_field.name} twice")
            part = self.read(written_field.type, field.type, field_type)
            chosen[number] = {"name": f"f{number}", "type": part.schema}
            is_whole &= part.is_whole
            builders.append((itemgetter(f"f{number}"), part.builder))
        schema = _named(writer, self._part_name(writer), list(chosen.values()))
        return _Chosen(schema, building.struct(data_type, builders), is_whole and len(chosen) == len(writer.fields))

    def _list(self, writer: AvroType, reader: AvroType, items: AvroType, data_type: pa.DataType) -> _Chosen:
        is_map = reader.kind == "map"
        fits = pa.types.is_map(data_type) and pa.types.is_string(data_type.key_type)
        if not (fits if is_map else pa.types.is_list(data_type)):
            raise ValueError(f"the Avro schema has {_shown(reader)}, which cannot become {data_type}")
        if writer.kind != reader.kind or writer.items is None:
            raise _not_readable(writer, reader.kind)
        part = self.read(writer.items, items, data_type.item_type if is_map else data_type.value_type)
        if is_map:
            builder = building.pairs(data_type, building.simple(pa.string()), part.builder)
        else:
            builder = building.items(data_type, part.builder)
        return _Chosen(_items(writer, part.schema), builder, part.is_whole)

    def _simple(self, writer: AvroType, reader: AvroType, data_type: pa.DataType, *, among_numbers: bool) -> _Chosen:
        builder = building.simple(data_type, _conversion(writer, reader, data_type))
        if writer.kind != reader.kind:
            if reader.kind not in _PROMOTIONS.get(writer.kind, ()):
                raise _not_readable(writer, reader.kind)
            return _Chosen(reader.kind, builder, False)
        if not writer.name:
            return _Chosen(writer.kind, builder, True)
        if writer.size != reader.size or not _is_named(writer, reader):
            raise SchemaError(f"the Avro schema cannot read the {writer.kind} {writer.name} as {reader.name}")
        if writer.kind == "enum" and not among_numbers:
            return _Chosen("int", builder, True)
        return _Chosen(_named(writer, self._part_name(writer), []), builder, True)

    def _name(self, found: AvroType) -> str:
        return self._names.setdefault(id(found), f"T{len(self._names)}")

    def _part_name(self, found: AvroType) -> str:
        self._parts += 1
        return f"part{self._parts}.{self._name(found)}"

    def _fields_of(self, record: AvroType) -> dict[str, tuple[int, AvroField]]:
        if id(record) not in self._fields:
            self._fields[id(record)] = {each.name: (number, each) for number, each in enumerate(record.fields)}
        return self._fields[id(record)]

    def _default(self, field: AvroField) -> Any:
        """A field's default, in the form in which fastavro decodes values."""
        if id(field) not in self._defaults:
            if "default" not in field.attributes:
                raise SchemaError(f"the Avro schema has no default for {field.name}, which the writer's schema lacks")
            try:
                self._defaults[id(field)] = self._value(field.type, field.attributes["default"])
            except SchemaError:
                raise
            except (ValueError, StopIteration):
                raise SchemaError(f"the Avro schema has a wrong default for {field.name}") from None
        return self._defaults[id(field)]

    def _value(self, found: AvroType, value: Any) -> Any:
        """The value of a default, which is JSON. Raises ValueError and StopIteration."""
        match found.kind, value:
            case ("null", None) | ("boolean", bool()) | ("string", str()):
                return value
            case ("int" | "long", int()) if not isinstance(value, bool):
                return value
            case ("float" | "double", int() | float()) if not isinstance(value, bool):
                return float(value)
            case ("bytes" | "fixed", str()):
                return value.encode("latin-1")
            case ("enum", str()):
                return found.symbols.index(value)
            case ("union", _):
                # Only one branch is tried, because each may be a union again.
                return self._value(next(each for each in found.branches if _may_be(each.kind, value)), value)
            case ("array", list()) if found.items is not None:
                return [self._value(found.items, each) for each in value]
            case ("map", dict()) if found.items is not None:
                return {key: self._value(found.items, each) for key, each in value.items()}
            case ("record", dict()):
                return {
                    f"f{number}": (
                        self._value(each.type, value[each.name]) if each.name in value else self._default(each)
                    )
                    for number, each in enumerate(found.fields)
                }
        raise ValueError


def _wanted(reader: AvroType) -> tuple[AvroType | None, bool]:
    """The only type of a reader's schema beside null, and whether null is allowed."""
    branches = reader.branches if reader.kind == "union" else (reader,)
    values = [branch for branch in branches if branch.kind != "null"]
    may_be_null = len(values) < len(branches)
    wider = _WIDER.get(tuple(sorted(branch.kind for branch in values if not branch.logical)))
    if len(values) == 2 and wider is not None:
        return next(branch for branch in values if branch.kind == wider), may_be_null
    if len(values) > 1:
        raise ValueError("the Avro schema has a union of several types; only one type and null can be decoded")
    return (values[0] if values else None), may_be_null


def _is_named(writer: AvroType, reader: AvroType) -> bool:
    """Whether a writer's named type matches the reader's: by its name without the namespace, or by an alias."""
    last = writer.name.rpartition(".")[2]
    return last == reader.name.rpartition(".")[2] or writer.name in reader.aliases


def _conversion(writer: AvroType, reader: AvroType, data_type: pa.DataType) -> Callable[[Any], Any] | None:
    """The conversion to values of the type. Raises ValueError for a type that does not fit the schema."""
    kind, logical = reader.kind, reader.logical
    if pa.types.is_timestamp(data_type) and kind == "long" and logical in _MICROS:
        factor = _MICROS[logical]
        return lambda value: value * factor
    if pa.types.is_decimal(data_type) and reader.decimal is not None:
        _, scale = reader.decimal
        return lambda value: _decimal(value, scale)
    if data_type not in _ALLOWED[kind] or (data_type == pa.date32() and logical != "date"):
        raise ValueError(f"the Avro schema has {_shown(reader)}, which cannot become {data_type}")
    return None if kind != "enum" else _symbol(writer, reader)


def _symbol(writer: AvroType, reader: AvroType) -> Callable[[Any], str]:
    """Returns a function that gives the reader's symbol for a written value. The function raises KeyError."""
    allowed, default = set(reader.symbols), reader.attributes.get("default")
    default = default if isinstance(default, str) and default in allowed else None
    read = ((number, symbol if symbol in allowed else default) for number, symbol in enumerate(writer.symbols))
    symbols = {number: symbol for number, symbol in read if symbol is not None}
    return lambda value: symbols[value if isinstance(value, int) else value["f0"]]


def _has_numbers(union: AvroType) -> bool:
    return any(branch.kind in ("int", "long", "float", "double") for branch in union.branches)


def _always(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


def _may_be(kind: str, value: Any) -> bool:
    """Whether a JSON value of this kind can be a default of the type. Does not check nested values."""
    match value:
        case None | bool():
            return kind == ("null" if value is None else "boolean")
        case int() | float():
            return kind in ("float", "double") or (kind in ("int", "long") and isinstance(value, int))
        case str():
            return kind in ("string", "bytes", "fixed", "enum")
        case list():
            return kind == "array"
    return kind in ("map", "record")


def _in_record(namespace: str, schema: Any) -> dict[str, Any]:
    return {"type": "record", "name": f"{namespace}.Datum", "fields": [{"name": "datum", "type": schema}]}


def _named(found: AvroType, name: str, fields: list[Any]) -> dict[str, Any]:
    if found.kind == "fixed":
        return {"type": "fixed", "name": name, "size": found.size}
    if found.kind == "enum":
        fields = [{"name": "f0", "type": "int"}]
    return {"type": "record", "name": name, "fields": fields}


def _items(found: AvroType, items: Any) -> dict[str, Any]:
    return {"type": found.kind, "items" if found.kind == "array" else "values": items}


def _shown(found: AvroType) -> str:
    if found.items is not None:
        return an(found.kind)
    return f"{found.kind} ({found.logical})" if found.logical else found.kind


def _not_readable(writer: AvroType, reader: str) -> SchemaError:
    return SchemaError(f"the Avro schema cannot read what was written as {writer.kind} as {reader}")


def _nothing(_: Any) -> None:
    return None


def _decimal(value: bytes, scale: int) -> Decimal:
    number = int.from_bytes(value, "big", signed=True)
    if abs(number) >= 10**38:
        raise ValueError("more than 38 digits")
    return Decimal(number).scaleb(-scale, _EXACT)
