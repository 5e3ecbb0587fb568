"""The format `avro`: data that fastavro has written, schemas that are refused, and any bytes."""

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.spark.formats.coding import Decoded, make_decoder
from klamm.spark.formats.schemas import column_type
from klamm.spark.formats.settings import AVRO, ColumnFormat, SchemaError

ORDER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "size", "type": {"type": "enum", "name": "Size", "symbols": ["S", "M"]}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": ["null", "int"]}},
        {"name": "number", "type": ["int", "long"]},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]},
            },
        },
    ],
}
ROW = {
    "id": 7,
    "note": None,
    "size": "M",
    "day": date(2020, 1, 2),
    "at": datetime(2020, 1, 2, 3, 4, 5, 6000, UTC),
    "local": 5_000_001,
    "price": Decimal("-12.50"),
    "hash": b"\x00\xff",
    "tags": ["a", "ü"],
    "counts": {"x": 1, "y": None},
    "number": 2**40,
    "lines": [{"sku": "1"}, {"sku": "2"}],
}
TYPES = {
    "id": pa.int64(),
    "note": pa.string(),
    "size": pa.string(),
    "day": pa.date32(),
    "at": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("us"),
    "price": pa.decimal128(9, 2),
    "hash": pa.binary(),
    "tags": pa.list_(pa.string()),
    "counts": pa.map_(pa.string(), pa.int32()),
    "number": pa.int64(),
    "lines": pa.list_(pa.struct([("sku", pa.string())])),
}


def datum(schema: object, value: object) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return out.getvalue()


def decode(schema: object, data: list[bytes | None], data_type: pa.DataType, reader: object = None) -> Decoded:
    text = None if reader is None else json.dumps(reader)
    made = make_decoder(ColumnFormat("value", AVRO, json.dumps(schema), reader_schema=text), data_type)
    decoded = made.decode(pa.array(data, pa.binary()))
    decoded.column.validate(full=True)
    return decoded


def record(*fields: tuple[str, object]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}


def test_every_type_of_avro() -> None:
    decoded = decode(ORDER, [datum(ORDER, ROW), None], pa.struct(TYPES.items()))
    assert decoded.bad is None
    expected = {**ROW, "local": datetime(1970, 1, 1, 0, 0, 5, 1), "counts": [("x", 1), ("y", None)]}
    assert decoded.column.to_pylist() == [expected, None]


def test_only_the_fields_of_the_schema_are_decoded() -> None:
    wanted = {"lines": TYPES["lines"], "id": TYPES["id"], "later": pa.int32()}
    decoded = decode(ORDER, [datum(ORDER, ROW)], pa.struct(wanted.items()))
    assert decoded.column.to_pylist() == [{"lines": ROW["lines"], "id": 7, "later": None}]


def test_the_type_is_that_of_from_avro() -> None:
    assert column_type(ColumnFormat("value", AVRO, json.dumps(ORDER))) == (
        "STRUCT<`id`: BIGINT, `note`: STRING, `size`: STRING, `day`: DATE, `at`: TIMESTAMP, `local`: TIMESTAMP_NTZ,"
        " `price`: DECIMAL(9, 2), `hash`: BINARY, `tags`: ARRAY<STRING>, `counts`: MAP<STRING, INT>, `number`: BIGINT,"
        " `lines`: ARRAY<STRUCT<`sku`: STRING>>>"
    )


def test_values_of_one_schema_are_resolved_to_another() -> None:
    writer = record(("a", "int"), ("b", "string"))
    reader = record(("a", "long"))
    reader["fields"].append({"name": "c", "type": "int", "default": 9})
    decoded = decode(
        writer, [datum(writer, {"a": 1, "b": "x"})], pa.struct([("a", pa.int64()), ("c", pa.int32())]), reader
    )
    assert decoded.column.to_pylist() == [{"a": 1, "c": 9}]


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}
INNER = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "int", "default": 7}]}


@pytest.mark.parametrize(
    ("written", "value", "read", "data_type", "expected"),
    [
        ("int", 5, "double", pa.float64(), 5.0),
        ("long", 2**60, ["null", "long"], pa.int64(), 2**60),
        ("bytes", b"\xff", "string", pa.string(), None),
        ("string", "ab", "bytes", pa.binary(), b"ab"),
        (["null", "int", "string"], 5, ["null", "long"], pa.int64(), 5),
        (["null", "int", "string"], "x", ["null", "long"], pa.int64(), None),
        (["int", "long"], 2**40, "double", pa.float64(), float(2**40)),
        ([{"type": "enum", "name": "E", "symbols": ["A"]}, "int"], 0, "int", pa.int32(), 0),
        (ENUM, "B", {**ENUM, "symbols": ["B"]}, pa.string(), "B"),
        (ENUM, "C", {**ENUM, "symbols": ["B"], "default": "B"}, pa.string(), "B"),
        (ENUM, "C", {**ENUM, "symbols": ["B"]}, pa.string(), None),
        (
            INNER,
            {"x": 3},
            ["null", {**INNER, "name": "Later", "aliases": ["I"]}],
            pa.struct([("x", pa.int64())]),
            {"x": 3},
        ),
        ({"type": "array", "items": "int"}, [1], {"type": "array", "items": "long"}, pa.list_(pa.int64()), [1]),
    ],
)
def test_a_written_type_becomes_the_readers(
    written: object, value: object, read: object, data_type: pa.DataType, expected: object
) -> None:
    writer, reader = record(("a", written)), record(("a", read))
    decoded = decode(writer, [datum(writer, {"a": value})], pa.struct([("a", data_type)]), reader)
    assert decoded.column.to_pylist() == [None if expected is None else {"a": expected}]
    assert (decoded.bad is None) == (expected is not None)


@pytest.mark.parametrize(
    ("kind", "default", "data_type", "expected"),
    [
        ("bytes", "\u00ff", pa.binary(), b"\xff"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            "\u0001",
            pa.decimal128(4, 2),
            Decimal("0.01"),
        ),
        (INNER, {}, pa.struct([("x", pa.int32())]), {"x": 7}),
        (["null", INNER], {"x": 8}, pa.struct([("x", pa.int32())]), {"x": 8}),
        (ENUM, "C", pa.string(), "C"),
        ({"type": "map", "values": "double"}, {"k": 1}, pa.map_(pa.string(), pa.float64()), [("k", 1.0)]),
        ({"type": "array", "items": INNER}, [{}], pa.list_(pa.struct([("x", pa.int32())])), [{"x": 7}]),
    ],
)
def test_a_field_that_was_not_written_has_its_default(
    kind: object, default: object, data_type: pa.DataType, expected: object
) -> None:
    writer, reader = record(("a", "int")), record(("a", "int"), ("b", kind))
    reader["fields"][1]["default"] = default
    decoded = decode(writer, [datum(writer, {"a": 1})], pa.struct([("b", data_type)]), reader)
    assert decoded.column.to_pylist() == [{"b": expected}]
    reader["fields"][1]["default"] = [[None]]
    with pytest.raises(SchemaError, match="wrong default for b"):
        decode(writer, [], pa.struct([("b", data_type)]), reader)


@pytest.mark.parametrize("number", [-1, 3, 2**31])
def test_an_enum_has_no_symbol_of_another_number(number: int) -> None:
    data = datum(record(("a", "long")), {"a": number})
    decoded = decode(record(("a", ENUM)), [data], pa.struct([("a", pa.string())]))
    assert decoded.bad is not None


def test_a_name_that_is_used_again_becomes_a_union_of_the_reader() -> None:
    writer = record(("one", INNER), ("two", "I"))
    reader = record(("two", ["null", INNER]))
    data_type = pa.struct([("two", pa.struct([("x", pa.int32())]))])
    data = datum(writer, {"one": {"x": 1}, "two": {"x": 2}})
    assert decode(writer, [data], data_type, reader).column.to_pylist() == [{"two": {"x": 2}}]


def test_a_type_that_is_used_twice_is_read_in_both_places() -> None:
    point = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "int"}]}
    schema = record(("one", point), ("two", "P"))
    data_type = pa.struct([("one", pa.struct([("x", pa.int32())])), ("two", pa.struct([("y", pa.int32())]))])
    data = datum(schema, {"one": {"x": 1, "y": 2}, "two": {"x": 3, "y": 4}})
    assert decode(schema, [data], data_type).column.to_pylist() == [{"one": {"x": 1}, "two": {"y": 4}}]


@pytest.mark.parametrize(
    ("schema", "data_type", "told"),
    [
        (record(("a", {"type": "array", "items": "null"})), {"a": pa.list_(pa.null())}, "take no bytes"),
        (record(("a", "long"), ("next", ["null", "R"])), {"a": pa.int64()}, "a type within itself, R"),
        (record(("a", "string")), {"a": pa.int64()}, "has string, which cannot become int64"),
        (record(("a", ["int", "string"])), {"a": pa.int32()}, "a union of several types"),
        (record(("a", "Unknown")), {"a": pa.int32()}, "an unknown type 'Unknown'"),
    ],
)
def test_schemas_that_cannot_be_read_are_refused(schema: object, data_type: dict[str, pa.DataType], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        decode(schema, [], pa.struct(data_type.items()))


def test_truncated_data_are_bad() -> None:
    whole = datum(ORDER, ROW)
    decoded = decode(ORDER, [whole, *(whole[:end] for end in range(len(whole))), whole], pa.struct(TYPES.items()))
    assert decoded.bad is not None
    assert decoded.bad.tolist() == [False, *[True] * len(whole), False]
    assert decoded.column[0] == decoded.column[len(whole) + 1]


@pytest.mark.parametrize(
    "data",
    [
        b"\x02\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a text of 2**62 bytes
        b"\x02\x01",  # a text of -1 bytes
        b"\xff" * 40,  # a number without end
    ],
)
def test_lengths_that_cannot_be_are_bad(data: bytes) -> None:
    schema = record(("a", "int"), ("b", "bytes"))
    decoded = decode(schema, [data], pa.struct([("a", pa.int32()), ("b", pa.binary())]))
    assert decoded.bad is not None
    assert decoded.bad.tolist() == [True]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 80), st.binary(max_size=4)), max_size=4))
def test_mutated_bytes_are_good_or_bad(changes: list[tuple[int, bytes]]) -> None:
    whole = datum(ORDER, ROW)
    data = bytearray(whole)
    for place, new in changes:
        data[place % (len(data) + 1) : place % (len(data) + 1) + len(new)] = new
    decoded = decode(ORDER, [whole, bytes(data), whole], pa.struct(TYPES.items()))
    assert decoded.column[0] == decoded.column[2]
    assert decoded.column[0].is_valid
    assert decoded.column[1].is_valid == (decoded.bad is None)
