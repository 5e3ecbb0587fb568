"""Structs as Avro: read back by fastavro, with the schema that Spark derives or with a given one."""

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from klamm.spark.formats.coding import EncodingError
from klamm.spark.formats.deriving import avro_schema
from klamm.spark.formats.encoders.avro import encoder
from klamm.spark.formats.settings import ColumnFormat
from support.present import present


def encode(schema: Any, array: pa.Array) -> list[bytes | None]:
    return encoder(ColumnFormat("value", "avro", json.dumps(schema)), array.type).encode(array).to_pylist()


def decoded(schema: Any, data: bytes | None) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(present(data)), schema)


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


EVERYTHING = record(
    flag="boolean",
    small="int",
    wide="long",
    wider="double",
    text=["null", "string"],
    data="bytes",
    fixed={"type": "fixed", "name": "F", "size": 2},
    color={"type": "enum", "name": "E", "symbols": ["RED", "BLUE"]},
    price={"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    day={"type": "int", "logicalType": "date"},
    at={"type": "long", "logicalType": "timestamp-micros"},
    roughly={"type": "long", "logicalType": "timestamp-millis"},
    tags={"type": "array", "items": ["string", "null"]},
    counts={"type": "map", "values": "int"},
    inner=["null", {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "float"}]}],
)
TYPE = pa.struct(
    [
        ("flag", pa.bool_()),
        ("small", pa.int16()),
        ("wide", pa.int32()),
        ("wider", pa.float32()),
        ("text", pa.string()),
        ("data", pa.binary()),
        ("fixed", pa.binary()),
        ("color", pa.string()),
        ("price", pa.decimal128(9, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "Europe/Berlin")),
        ("roughly", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.int32())),
        ("inner", pa.struct([("x", pa.float32())])),
    ]
)
AT = datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)
ROW = {
    "flag": True,
    "small": -3,
    "wide": 7,
    "wider": 1.5,
    "text": "é",
    "data": b"\x00",
    "fixed": b"ab",
    "color": "BLUE",
    "price": Decimal("-12.30"),
    "day": date(1969, 12, 31),
    "at": AT,
    "roughly": AT,
    "tags": ["a", None],
    "counts": {"k": 1},
    "inner": {"x": 0.5},
}


def test_every_type_comes_back() -> None:
    array = pa.array(
        [{**ROW, "counts": [("k", 1)]}, None, {**ROW, "text": None, "inner": None, "tags": [], "counts": []}], TYPE
    )
    first, none, second = encode(EVERYTHING, array)
    assert none is None
    wanted = {**ROW, "roughly": AT.replace(microsecond=999_000)}
    assert decoded(EVERYTHING, first) == wanted
    assert decoded(EVERYTHING, second) == {**wanted, "text": None, "inner": None, "tags": [], "counts": {}}
    assert encode(EVERYTHING, array[1:]) == [none, second]


def test_the_derived_schema_is_that_of_to_avro() -> None:
    struct = StructType(
        [
            StructField("id", LongType(), False),
            StructField("price", DecimalType(10, 2)),
            StructField("at", TimestampType()),
            StructField("lines", ArrayType(StructType([StructField("sku", StringType(), False)]), True), False),
            StructField("m", MapType(StringType(), IntegerType(), False), False),
        ]
    )
    assert json.loads(avro_schema(struct)) == {
        "type": "record",
        "name": "topLevelRecord",
        "fields": [
            {"name": "id", "type": "long"},
            {
                "name": "price",
                "type": [
                    {
                        "type": "fixed",
                        "name": "fixed",
                        "namespace": "topLevelRecord.price",
                        "size": 5,
                        "logicalType": "decimal",
                        "precision": 10,
                        "scale": 2,
                    },
                    "null",
                ],
            },
            {"name": "at", "type": [{"type": "long", "logicalType": "timestamp-micros"}, "null"]},
            {
                "name": "lines",
                "type": {
                    "type": "array",
                    "items": [
                        {
                            "type": "record",
                            "name": "lines",
                            "namespace": "topLevelRecord",
                            "fields": [{"name": "sku", "type": "string"}],
                        },
                        "null",
                    ],
                },
            },
            {"name": "m", "type": {"type": "map", "values": "int"}},
        ],
    }


def test_fields_that_are_left_out_have_their_default_or_null() -> None:
    schema = record(a="int", b=["null", "string"])
    schema["fields"].append({"name": "c", "type": "string", "default": "x"})
    [data] = encode(schema, pa.array([{"a": 1}]).cast(pa.struct([("a", pa.int32())])))
    assert decoded(schema, data) == {"a": 1, "b": None, "c": "x"}


@pytest.mark.parametrize(
    ("schema", "array", "row", "told"),
    [
        (
            record(a="long"),
            pa.array([{"a": 1}, {"a": None}]),
            1,
            "the field a is null, which the schema does not allow",
        ),
        (record(a="boolean"), pa.array([{"a": True}, {"a": None}]), 1, "the field a is null"),
        (
            record(a={"type": "array", "items": "long"}),
            pa.array([{"a": [1, 2]}, {"a": []}, {"a": [3, None]}]),
            2,
            r"the field a\[\] is null",
        ),
        (
            record(a={"type": "map", "values": "long"}),
            pa.array([{"a": [("k", 1)]}, {"a": [("k", None)]}], pa.struct([("a", pa.map_(pa.string(), pa.int64()))])),
            1,
            r"the field a\[\] is null",
        ),
        (
            record(a=["null", record(b="long")]),
            pa.array([{"a": None}, {"a": {"b": None}}], pa.struct([("a", pa.struct([("b", pa.int64())]))])),
            1,
            r"the field a\.b is null",
        ),
        (
            record(a={"type": "enum", "name": "E", "symbols": ["A"]}),
            pa.array([{"a": "A"}, {"a": "secret"}]),
            1,
            "the field a is no symbol of the enum",
        ),
        (
            record(a=["null", {"type": "fixed", "name": "F", "size": 2}]),
            pa.array([{"a": b"ab"}, {"a": None}, {"a": b"abc"}]),
            2,
            "the field a has not the 2 bytes of the schema",
        ),
    ],
)
def test_a_value_that_the_schema_lacks_is_told_with_row_and_field(
    schema: Any, array: pa.Array, row: int, told: str
) -> None:
    if schema["fields"][0]["type"] == ["null", record(b="long")]:
        schema["fields"][0]["type"][1]["name"] = "Below"
    with pytest.raises(EncodingError, match=told) as caught:
        encode(schema, array)
    assert caught.value.row == row
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "data_type", "told"),
    [
        ("{", pa.struct([("a", pa.int32())]), "value.schema is not a schema of Avro"),
        (
            record(a="int"),
            pa.struct([("a", pa.int64())]),
            r"value\.a is of type int64, which the schema's int does not take",
        ),
        (record(a="float"), pa.struct([("a", pa.float64())]), "double, which the schema's float"),
        (record(a="int"), pa.struct([("b", pa.int32())]), "value has the field b, which the schema lacks"),
        (record(a="int"), pa.struct([]), "value lacks the field a"),
        (record(a=["int", "string"]), pa.struct([("a", pa.int32())]), "which the schema's union does not take"),
        (
            record(a={"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}),
            pa.struct([("a", pa.decimal128(9, 2))]),
            "which the schema's bytes decimal does not take",
        ),
        ("string", pa.struct([("a", pa.int32())]), "which the schema's string does not take"),
    ],
)
def test_a_type_that_the_schema_does_not_take_is_told_before_a_row_is_seen(
    schema: Any, data_type: pa.DataType, told: str
) -> None:
    text = schema if schema == "{" else json.dumps(schema)
    with pytest.raises(ValueError, match=told):
        encoder(ColumnFormat("value", "avro", text), data_type)
