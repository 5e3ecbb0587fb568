"""Schemas, types and values that nobody who means well sends, as strategies of hypothesis for all formats.

A schema comes from a registry as bytes come from a topic: most are valid, some are only nearly so, and some name a type
so often that a few characters stand for a million fields.
"""

import base64
import json
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from hypothesis import strategies as st

from klamm.spark.formats.avro_schemas import AvroType, read_schema
from klamm.spark.formats.settings import AVRO, CSV, JSON, PROTOBUF, ColumnFormat, SchemaError

Draw = st.DrawFn
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_LOGICAL: list[Any] = [
    "date", "timestamp-millis", "timestamp-micros", "local-timestamp-millis", "decimal", "uuid", "duration", 5, None,
]  # fmt: skip
_GARBAGE: list[Any] = [None, True, 5, "", "Unknown", [], {}, {"type": 5}, {"type": "record"}, {"type": "array"}, [[]]]
_JSON_GARBAGE = st.sampled_from([None, True, 0, -(2**70), 1.5, "", "x", "\xff", [], {}, [None], {"f": None}])
# Texts at the edges of what numbers, times and bytes are.
_NUMBERS = [
    "0", "-0", "1", "+1", "-1", "1.5", "1.", ".5", "1e5", "1e400", "1e-400", "1e999999999", "1e-999999999",
    "1e-2147483648", "1e2147483648", "9" * 40, "-" + "9" * 400, "0." + "9" * 400, "NaN", "INF", "-Infinity", "0x1F",
    "2147483648", "-9223372036854775808", "9223372036854775807", "9223372036854775808", "1,000", "1_0", "\u0661", "12",
]  # fmt: skip
_TIMES = [
    "2020-01-01", "2020-02-30", "-0001-01-01", "999999-12-31 23:59:59", "294247-01-10 04:00:55", "-290308-12-21",
    "9999999-01-01", "10000-01-01T00:00:00Z", "2020-01-01T00:00:00.123456789+18:00", "0000-01-01", "+292278994-08-17",
    "2020-01-01 00:00:00 Europe/Berlin", "2020-01-01 00:00:00 " + "A" * 200, "999999 12 31", "31/Dec/999999",
]  # fmt: skip
_OTHERS = [
    "", " ", "true", "FALSE", "null", "YWJj", "YWJj\n", "YW Jj", "YQ", "=", "\x00", "\ud83d\ude00", "a,b", '"', '"a"',
    "\\", "{", "[[[[", '{"x":1}', "\x01" * 50,
]  # fmt: skip
TEXTS = st.sampled_from(_NUMBERS + _TIMES + _OTHERS)
VALUES = st.binary(max_size=40) | st.lists(
    st.sampled_from([b"\x00", b"\x01", b"\x02", b"\x03", b"\x7f", b"\x80", b"\xff", b"\xfe\xff\xff\xff\x0f", b"ab"]),
    max_size=12,
).map(b"".join)


# -- Avro -------------------------------------------------------------------------------------------------------------


@st.composite
def avro_schemas(draw: Draw) -> str:
    """The text of a schema. It uses its names again wherever it likes."""
    names: list[str] = []

    def some(depth: int) -> Any:
        kind = draw(
            st.sampled_from(["primitive", "primitive", "name", "record", "array", "map", "union", "enum", "fixed"])
        )
        if kind == "name" and names:
            return draw(st.sampled_from(names))
        if kind in ("primitive", "name") or depth == 0:
            found = draw(st.sampled_from(PRIMITIVES))
            return found if draw(st.booleans()) else attributes({"type": found})
        if draw(st.integers(0, 40)) == 0:
            return draw(st.sampled_from(_GARBAGE))
        if kind == "union":
            return draw(st.sampled_from([["null"], []])) + [some(depth - 1) for _ in range(draw(st.integers(1, 2)))]
        if kind in ("array", "map"):
            return {"type": kind, "items" if kind == "array" else "values": some(depth - 1)}
        name = f"N{len(names)}"
        made: dict[str, Any] = {"type": kind, "name": name}
        if kind == "enum":
            made["symbols"] = draw(st.sampled_from([["A", "B"], ["A"], [], ["a-b", "long"]]))
        elif kind == "fixed":
            made["size"] = draw(st.sampled_from([0, 1, 2, 2**31, 2**70, -1, "x", None, True]))
        else:
            made["fields"] = [field(number, some(depth - 1)) for number in range(draw(st.integers(0, 3)))]
        names.append(name)
        return attributes(made)

    def attributes(made: dict[str, Any]) -> dict[str, Any]:
        if draw(st.booleans()):
            made["logicalType"] = draw(st.sampled_from(_LOGICAL))
            made["precision"], made["scale"] = draw(
                st.sampled_from([(9, 2), (38, 38), (80, 0), (0, 0), (2, 5), ("x", None)])
            )
        return made

    def field(number: int, kind: Any) -> dict[str, Any]:
        made = {"name": f"f{number}", "type": kind}
        if draw(st.integers(0, 3)) == 0:
            made["default"] = draw(_JSON_GARBAGE)
        return made

    if draw(st.integers(0, 4)) > 0:
        return json.dumps(some(4))
    return json.dumps(
        tower(draw(st.integers(1, 60)), draw(st.integers(1, 3)), some(1), draw(st.sampled_from(["record", "array"])))
    )


def tower(levels: int, uses: int, leaf: Any, kind: str = "record") -> Any:
    """A type that uses a type so often that uses a type so often."""
    made = leaf
    for level in range(levels):
        below = [made, *[f"R{level - 1}" if level else leaf] * (uses - 1)]
        fields = [{"name": f"f{number}", "type": each, "default": {}} for number, each in enumerate(below)]
        made = {"type": "record", "name": f"R{level}", "fields": fields}
    return made if kind == "record" else {"type": "array", "items": made}


def avro_type(schema: AvroType, depth: int = 3) -> pa.DataType:
    """A type that the schema has, with some of its fields, and with a field that it lacks."""
    if schema.kind == "union":
        others = [branch for branch in schema.branches if branch.kind != "null"]
        return avro_type(others[-1], depth) if others else pa.null()
    if schema.kind == "array" and schema.items is not None:
        return pa.list_(avro_type(schema.items, depth - 1))
    if schema.kind == "map" and schema.items is not None:
        return pa.map_(pa.string(), avro_type(schema.items, depth - 1))
    if schema.kind == "record":
        fields = [(each.name, avro_type(each.type, depth - 1)) for each in (schema.fields[:2] if depth > 0 else ())]
        return pa.struct([*fields, ("lacking", pa.int32())])
    if schema.decimal is not None and schema.decimal[0] <= 38:
        return pa.decimal128(*schema.decimal)
    if schema.kind == "long" and "timestamp" in schema.logical:
        return pa.timestamp("us", None if "local" in schema.logical else "UTC")
    if schema.kind == "int" and schema.logical == "date":
        return pa.date32()
    plain = {"null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
             "double": pa.float64(), "string": pa.string(), "enum": pa.string()}  # fmt: skip
    return plain.get(schema.kind, pa.binary())


@st.composite
def avro_columns(draw: Draw) -> tuple[ColumnFormat, pa.DataType]:
    """A writer's schema, often a reader's, and a type that the reader's schema may have."""
    writer = draw(avro_schemas())
    reader = draw(st.none() | avro_schemas() | st.just(writer))
    try:
        data_type = avro_type(read_schema(reader or writer))
    except SchemaError:
        data_type = pa.struct([("f0", pa.int32())])
    return ColumnFormat("value", AVRO, writer, reader_schema=reader), data_type


# -- Protobuf ---------------------------------------------------------------------------------------------------------

_KINDS = {
    Field.TYPE_INT32: pa.int32(), Field.TYPE_SINT64: pa.int64(), Field.TYPE_FIXED32: pa.int32(),
    Field.TYPE_UINT64: pa.decimal128(20, 0), Field.TYPE_UINT32: pa.int64(), Field.TYPE_DOUBLE: pa.float64(),
    Field.TYPE_FLOAT: pa.float32(), Field.TYPE_BOOL: pa.bool_(), Field.TYPE_STRING: pa.string(),
    Field.TYPE_BYTES: pa.binary(),
}  # fmt: skip


@st.composite
def protobuf_columns(draw: Draw) -> tuple[ColumnFormat, pa.DataType]:
    """Messages that use earlier ones, with fields of every kind and of unlucky names, and a type with some of them."""
    file = FileDescriptorProto(name="x.proto", package="p", syntax=draw(st.sampled_from(["proto2", "proto3"])))
    file.enum_type.add(name="E").value.add(name="ZERO", number=0)
    types: list[pa.DataType] = []
    for index in range(draw(st.integers(1, 12))):
        message = file.message_type.add(name=f"M{index}")
        fields: list[tuple[str, pa.DataType]] = []
        for number in range(draw(st.integers(1, 3))):
            names = ["HasField", "IsInitialized", "DESCRIPTOR", "class", "a"]
            name = draw(st.sampled_from(names)) + ("" if draw(st.booleans()) else str(number))
            made = message.field.add(name=name, number=draw(st.sampled_from([number + 1, 2**29 - 1 - number])))
            made.label = draw(st.sampled_from([Field.LABEL_OPTIONAL, Field.LABEL_REPEATED, Field.LABEL_REQUIRED]))
            kind = draw(st.sampled_from([*_KINDS, Field.TYPE_ENUM, Field.TYPE_MESSAGE, Field.TYPE_MESSAGE]))
            if kind == Field.TYPE_MESSAGE and types:
                below = draw(st.integers(max(0, index - 2), index - 1))
                made.type, made.type_name, found = kind, f".p.M{below}", types[below]
            elif kind in (Field.TYPE_ENUM, Field.TYPE_MESSAGE):
                made.type, made.type_name, found = Field.TYPE_ENUM, ".p.E", pa.string()
            else:
                made.type, found = kind, _KINDS[kind]
            if index < 6 or kind != Field.TYPE_MESSAGE:
                fields.append((name, pa.list_(found) if made.label == Field.LABEL_REPEATED else found))
        types.append(pa.struct(fields))
    files = base64.b64encode(FileDescriptorSet(file=[file]).SerializeToString()).decode()
    return ColumnFormat("value", PROTOBUF, files, f"p.M{len(types) - 1}"), types[-1]


# -- JSON and CSV -----------------------------------------------------------------------------------------------------

_PLAIN = [
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary(),
    pa.decimal128(9, 2), pa.decimal128(38, 38), pa.decimal128(38, 0), pa.timestamp("us", "UTC"), pa.timestamp("us"),
    pa.date32(),
]  # fmt: skip
_PATTERNS = ["yyyy-MM-dd", "y MM dd", "dd/MMM/y", "y-M-d[ H:m:s[.SSS]][ VV]", "yyyy-MM-dd HH:mm:ss.SSSSSSXXX"]


@st.composite
def _settings(draw: Draw, /, **choices: list[str]) -> tuple[tuple[str, str], ...]:
    times = dict.fromkeys(("dateFormat", "timestampFormat", "timestampNTZFormat"), _PATTERNS)
    zones = ["UTC", "+18:00", "Europe/Berlin", "America/New_York"]
    return tuple(
        (name, draw(st.sampled_from(texts)))
        for name, texts in sorted({**times, "timeZone": zones, **choices}.items())
        if draw(st.integers(0, 3)) == 0
    )


@st.composite
def json_columns(draw: Draw) -> tuple[ColumnFormat, pa.DataType]:
    nested = st.recursive(
        st.sampled_from(_PLAIN),
        lambda inner: (
            inner.map(pa.list_)
            | inner.map(lambda one: pa.map_(pa.string(), one))
            | st.lists(inner, min_size=1, max_size=3).map(
                lambda all_: pa.struct([(f"f{n}", one) for n, one in enumerate(all_)])
            )
        ),
        max_leaves=5,
    )
    data_type = pa.struct([(f"f{number}", draw(nested)) for number in range(draw(st.integers(1, 3)))])
    flags = ("allowUnquotedFieldNames", "allowUnquotedControlChars", "allowNumericLeadingZeros", "allowComments")
    chosen = draw(_settings(**{flag: ["true", "false"] for flag in flags}))
    return ColumnFormat("value", JSON, settings=chosen), data_type


@st.composite
def json_values(draw: Draw) -> bytes:
    """A document with the fields of such types, or nearly one."""

    def some(depth: int) -> str:
        kind = draw(st.integers(0, 5 if depth else 2))
        if kind <= 1:
            return json.dumps(draw(TEXTS), ensure_ascii=draw(st.booleans()))
        if kind == 2:
            return draw(TEXTS)
        if kind == 3:
            return f"[{','.join(some(depth - 1) for _ in range(draw(st.integers(0, 3))))}]"
        names = [draw(st.sampled_from(["f0", "f1", "f2", "x", "f\\u0030"])) for _ in range(draw(st.integers(0, 4)))]
        return "{" + ",".join(f'"{name}":{some(depth - 1)}' for name in names) + "}"

    document = "{" + ",".join(f'"f{number % 3}":{some(2)}' for number in range(draw(st.integers(0, 4)))) + "}"
    made = document.encode(errors="surrogatepass")
    return made if draw(st.booleans()) else made[: draw(st.integers(0, len(made)))]


@st.composite
def csv_columns(draw: Draw) -> tuple[ColumnFormat, pa.DataType]:
    data_type = pa.struct([(f"f{number}", draw(st.sampled_from(_PLAIN))) for number in range(draw(st.integers(1, 3)))])
    chosen = _settings(
        sep=[",", "||", '"', "\\", "\u00e9"], quote=['"', "", "'"], escape=["\\", "", '"'], nullValue=["", "NULL", "0"],
        emptyValue=["", "0"], nanValue=["NaN", ""], positiveInf=["Inf", "0"], ignoreLeadingWhiteSpace=["true"],
        ignoreTrailingWhiteSpace=["true"],
    )  # fmt: skip
    return ColumnFormat("value", CSV, settings=draw(chosen)), data_type


CSV_VALUES = st.lists(TEXTS, max_size=4).map(lambda texts: ",".join(texts).encode(errors="surrogatepass"))

COLUMNS = {AVRO: avro_columns(), PROTOBUF: protobuf_columns(), JSON: json_columns(), CSV: csv_columns()}
VALUES_OF = {AVRO: VALUES, PROTOBUF: VALUES, JSON: json_values() | VALUES, CSV: CSV_VALUES | VALUES}
