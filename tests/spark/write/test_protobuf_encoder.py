"""Structs as messages of Protobuf, read back by protobuf itself."""

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import duration_pb2, timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from klamm.spark.formats.coding import EncodingError
from klamm.spark.formats.encoders.protobuf import encoder
from klamm.spark.formats.settings import ColumnFormat
from support.schema_registry.messages import message_classes, proto_file

FIELDS = {
    "flag": "bool",
    "small": "sint32",
    "wide": "int64",
    "natural": "uint32",
    "ratio": "float",
    "text": "string",
    "data": "bytes",
    "Line": {"sku": "string"},
    "lines": "repeated .shop.Order.Line",
    "first": ".shop.Order.Line",
    "tags": "repeated string",
    "at": ".google.protobuf.Timestamp",
}
FILE = proto_file("order.proto", "shop", {"Order": FIELDS}, imports=["google/protobuf/timestamp.proto"])
TYPE = pa.struct(
    [
        ("flag", pa.bool_()),
        ("small", pa.int8()),
        ("wide", pa.int64()),
        ("natural", pa.int32()),
        ("ratio", pa.float32()),
        ("text", pa.string()),
        ("data", pa.binary()),
        ("lines", pa.list_(pa.struct([("sku", pa.string())]))),
        ("first", pa.struct([("sku", pa.string())])),
        ("tags", pa.list_(pa.string())),
        ("at", pa.timestamp("us", "UTC")),
    ]
)


def column(file: FileDescriptorProto, message: str) -> ColumnFormat:
    built_in = (timestamp_pb2, duration_pb2)
    files = [*(FileDescriptorProto.FromString(one.DESCRIPTOR.serialized_pb) for one in built_in), file]
    text = base64.b64encode(FileDescriptorSet(file=files).SerializeToString()).decode()
    return ColumnFormat("value", "protobuf", text, message)


def encode(array: pa.Array) -> list[bytes | None]:
    return encoder(column(FILE, "shop.Order"), array.type).encode(array).to_pylist()


def test_every_type_comes_back_and_nulls_are_not_set() -> None:
    order = message_classes(FILE)["shop.Order"]
    at = datetime(1969, 12, 31, 23, 59, 59, 250_000, UTC)
    row = {
        "flag": True,
        "small": -3,
        "wide": 2**63 - 1,
        "natural": 7,
        "ratio": 0.5,
        "text": "é",
        "data": b"\x00",
        "lines": [{"sku": "a"}, {"sku": None}],
        "first": {"sku": "b"},
        "tags": ["x", ""],
        "at": at,
    }
    array = pa.array([row, None, {}], TYPE)
    first, none, empty = encode(array)
    assert none is None
    assert order.FromString(empty) == order()
    made: Any = order(**{**row, "lines": [{"sku": "a"}, {}], "at": None})
    made.at.FromDatetime(at)
    assert (made.at.seconds, made.at.nanos) == (-1, 250_000_000)
    assert order.FromString(first) == made
    assert encode(array[1:]) == [none, empty]


def test_the_parts_of_a_duration_have_one_sign() -> None:
    file = proto_file(
        "d.proto", "t", {"D": {"d": ".google.protobuf.Duration"}}, imports=["google/protobuf/duration.proto"]
    )
    array = pa.array([{"d": timedelta(seconds=each)} for each in (-1.5, 1.5, -2, 0)])
    found = encoder(column(file, "t.D"), array.type).encode(array).to_pylist()
    parts = [duration_pb2.Duration.FromString(data[2:]) for data in found]
    assert [(one.seconds, one.nanos) for one in parts] == [(-1, -500_000_000), (1, 500_000_000), (-2, 0), (0, 0)]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"natural": -1}, "the field natural has a value that the type of the message's field does not have"),
        ({"tags": ["a", None]}, "the field tags has a null among its elements"),
        ({"lines": [None]}, "the field lines has a null among its elements"),
    ],
)
def test_a_value_that_the_message_lacks_is_told_with_row_and_field(row: dict[str, Any], told: str) -> None:
    with pytest.raises(EncodingError, match=told) as caught:
        encode(pa.array([{}, None, row], TYPE))
    assert caught.value.row == 2


@pytest.mark.parametrize(
    ("data_type", "told"),
    [
        (pa.struct([("other", pa.int32())]), r"value\.other: the message shop\.Order has no such field"),
        (pa.struct([("small", pa.int64())]), r"value\.small is of type int64, which the message's TYPE_SINT32"),
        (pa.struct([("tags", pa.string())]), "arrays, and only they, are for repeated fields"),
        (pa.struct([("first", pa.string())]), r"value\.first is of type string, which the message's shop\.Order\.Line"),
        (pa.int32(), "the format protobuf writes a struct, not int32"),
    ],
)
def test_a_type_that_the_message_does_not_take_is_told_before_a_row_is_seen(data_type: pa.DataType, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        encoder(column(FILE, "shop.Order"), data_type)


@pytest.mark.parametrize(("text", "message"), [("?", "shop.Order"), ("AAAA", "shop.Order"), (None, None)])
def test_a_schema_that_is_no_set_of_files_is_told(text: str | None, message: str | None) -> None:
    with pytest.raises(ValueError, match=r"value\.schema is no FileDescriptorSet in base64 with the message"):
        encoder(ColumnFormat("value", "protobuf", text, message), TYPE)
