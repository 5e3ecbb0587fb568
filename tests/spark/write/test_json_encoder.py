"""Structs as JSON: the same text as Spark's own `to_json`, on generated rows."""

import base64
import json
import math
import random
import struct
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from klamm.spark.formats.encoders.json import encoder
from klamm.spark.formats.settings import ColumnFormat
from support.present import present
from support.spark.odd_records import JSON_ROW, json_rows


@pytest.mark.parametrize("ignore_null_fields", ["true", "false"])
@pytest.mark.parametrize("zone", ["UTC", "America/St_Johns"])
def test_generated_rows_are_written_as_to_json_writes_them(spark, ignore_null_fields: str, zone: str) -> None:
    given = spark.createDataFrame(json_rows(400), StructType.fromDDL(JSON_ROW))
    options = {"ignoreNullFields": ignore_null_fields, "timeZone": zone}
    wanted = [row[0] for row in given.select(F.to_json(F.struct("*"), options)).coalesce(1).collect()]
    column = given.select(F.struct("*").alias("value")).coalesce(1).toArrow().column("value").combine_chunks()
    encoded = encoder(ColumnFormat("value", "json", settings=tuple(options.items())), column.type).encode(column)
    found = [data.decode() for data in encoded.to_pylist()]
    different = [pair for pair in zip(found, wanted, strict=True) if pair[0] != pair[1]]
    assert different[:1] == []


STRUCT = pa.struct([("a", pa.int32()), ("b", pa.string()), ("c", pa.list_(pa.binary())), ("e", pa.struct([]))])


def encode(array: pa.Array) -> list[bytes | None]:
    return encoder(ColumnFormat("value", "json"), array.type).encode(array).to_pylist()


def test_null_rows_are_null_also_in_slices() -> None:
    array = pa.array([None, {"a": 1, "b": '"', "c": [b"x", None], "e": {}}, {}, None, {"b": "z"}], STRUCT)
    wanted = [None, b'{"a":1,"b":"\\"","c":["eA==",null],"e":{}}', b"{}", None, b'{"b":"z"}']
    assert encode(array) == wanted
    for start in range(6):
        for stop in range(start, 6):
            assert encode(array[start:stop]) == wanted[start:stop]


def test_arrays_and_maps_are_documents_as_well() -> None:
    assert encode(pa.array([[1, None], [], None], pa.list_(pa.int64()))) == [b"[1,null]", b"[]", None]
    assert encode(pa.array([[("k", None)], [], None], pa.map_(pa.string(), pa.int64()))) == [b'{"k":null}', b"{}", None]


def test_every_number_comes_back() -> None:
    chance = random.Random(3)
    numbers = [struct.unpack("d", chance.randbytes(8))[0] for _ in range(2_000)]
    numbers = [number for number in numbers if math.isfinite(number)]
    found = [json.loads(present(data))["d"] for data in encode(pa.array([{"d": number} for number in numbers]))]
    assert found == numbers


def test_binaries_are_base64() -> None:
    data = bytes(range(256))
    assert json.loads(present(encode(pa.array([{"x": data}]))[0])) == {"x": base64.b64encode(data).decode()}


def test_the_zone_is_that_of_the_type() -> None:
    at = datetime(2024, 7, 1, 12, 0, 0, 999_999, UTC)
    array = pa.array([{"at": at}], pa.struct([("at", pa.timestamp("us", "Europe/Berlin"))]))
    assert encode(array) == [b'{"at":"2024-07-01T14:00:00.999+02:00"}']


def nested(depth: int) -> pa.DataType:
    found = pa.int32()
    for _ in range(depth):
        found = pa.list_(found)
    return found


@pytest.mark.parametrize(
    ("data_type", "told"),
    [
        (pa.int32(), "the format json writes a struct, an array or a map, not int32"),
        (pa.struct([("a", pa.struct([("b", pa.duration("us"))]))]), r"value\.a\.b is of type duration\[us\]"),
        (pa.struct([("a", pa.map_(pa.binary(), pa.int32()))]), r"value\.a is a map with keys of type binary"),
        (nested(200), "value is nested deeper than 100 levels"),
    ],
)
def test_a_type_that_json_lacks_is_told_before_a_row_is_seen(data_type: pa.DataType, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        encoder(ColumnFormat("value", "json"), data_type)
