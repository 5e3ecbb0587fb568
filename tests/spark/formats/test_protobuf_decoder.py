"""The format `protobuf`: messages that protobuf has written, presence in proto2 and proto3, and any bytes."""

import base64
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.spark.formats.coding import Decoded, make_decoder
from klamm.spark.formats.schemas import column_type, message_descriptor
from klamm.spark.formats.settings import PROTOBUF, ColumnFormat

F = descriptor_pb2.FieldDescriptorProto
FIELDS: list[tuple[str, int, int, str | None]] = [
    ("id", F.TYPE_INT64, F.LABEL_OPTIONAL, None),
    ("name", F.TYPE_STRING, F.LABEL_OPTIONAL, None),
    ("small", F.TYPE_UINT32, F.LABEL_OPTIONAL, None),
    ("large", F.TYPE_UINT64, F.LABEL_OPTIONAL, None),
    ("ratio", F.TYPE_DOUBLE, F.LABEL_OPTIONAL, None),
    ("data", F.TYPE_BYTES, F.LABEL_OPTIONAL, None),
    ("size", F.TYPE_ENUM, F.LABEL_OPTIONAL, ".shop.Size"),
    ("at", F.TYPE_MESSAGE, F.LABEL_OPTIONAL, ".google.protobuf.Timestamp"),
    ("tags", F.TYPE_STRING, F.LABEL_REPEATED, None),
    ("line", F.TYPE_MESSAGE, F.LABEL_OPTIONAL, ".shop.Line"),
    ("lines", F.TYPE_MESSAGE, F.LABEL_REPEATED, ".shop.Line"),
    ("counts", F.TYPE_MESSAGE, F.LABEL_REPEATED, ".shop.Order.CountsEntry"),
]
TYPES = {
    "id": pa.int64(),
    "name": pa.string(),
    "small": pa.int32(),
    "large": pa.int64(),
    "ratio": pa.float64(),
    "data": pa.binary(),
    "size": pa.string(),
    "at": pa.timestamp("us", "UTC"),
    "tags": pa.list_(pa.string()),
    "line": pa.struct([("sku", pa.string())]),
    "lines": pa.list_(pa.struct([("sku", pa.string())])),
    "counts": pa.map_(pa.string(), pa.int32()),
}


def shop(syntax: str = "proto3", **changes: Any) -> ColumnFormat:
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax=syntax)
    file.dependency.append("google/protobuf/timestamp.proto")
    size = file.enum_type.add(name="Size")
    size.value.add(name="S", number=0)
    size.value.add(name="M", number=1)
    line = file.message_type.add(name="Line")
    line.field.add(name="sku", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    for number, (name, kind, label, type_name) in enumerate(FIELDS, 1):
        order.field.add(name=name, number=number, type=kind, label=label, type_name=type_name)
    for name, value in changes.items():
        field = next(one for one in order.field if one.name == name)
        field.MergeFrom(F(**value))
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL)
    files = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    files.file.append(file)
    return ColumnFormat("value", PROTOBUF, base64.b64encode(files.SerializeToString()).decode(), "shop.Order")


def order(column: ColumnFormat, **fields: Any) -> Any:
    return GetMessageClass(message_descriptor(column))(**fields)


def decode(column: ColumnFormat, data: list[bytes | None], types: dict[str, pa.DataType] = TYPES) -> Decoded:
    decoded = make_decoder(column, pa.struct(types.items())).decode(pa.array(data, pa.binary()))
    decoded.column.validate(full=True)
    return decoded


def full(column: ColumnFormat) -> bytes:
    message = order(
        column, id=-5, name="ü", small=2**32 - 1, large=2**64 - 1, ratio=0.5, data=b"\xff", size=1, tags=["a", ""],
        line={"sku": "1"}, lines=[{"sku": "2"}, {}], counts={"x": 3},
    )  # fmt: skip
    message.at.FromDatetime(datetime(2020, 1, 2, 3, 4, 5, 6, UTC))
    data: bytes = message.SerializeToString()
    return data


def test_every_type_of_protobuf() -> None:
    column = shop()
    decoded = decode(column, [full(column), None, b""])
    assert decoded.bad is None
    assert decoded.column.to_pylist() == [
        {
            "id": -5,
            "name": "ü",
            "small": -1,
            "large": -1,
            "ratio": 0.5,
            "data": b"\xff",
            "size": "M",
            "at": datetime(2020, 1, 2, 3, 4, 5, 6, UTC),
            "tags": ["a", ""],
            "line": {"sku": "1"},
            "lines": [{"sku": "2"}, {"sku": None}],
            "counts": [("x", 3)],
        },
        None,
        {**dict.fromkeys(TYPES), "tags": [], "lines": [], "counts": []},
    ]


def test_unsigned_numbers_and_enums_may_become_types_that_hold_them() -> None:
    column = shop()
    types = {"small": pa.int64(), "large": pa.decimal128(20, 0), "size": pa.int32()}
    assert decode(column, [full(column)], types).column.to_pylist() == [
        {"small": 2**32 - 1, "large": 2**64 - 1, "size": 1}
    ]


def test_the_type_is_that_of_from_protobuf() -> None:
    assert column_type(shop()) == (
        "STRUCT<`id`: BIGINT, `name`: STRING, `small`: INT, `large`: BIGINT, `ratio`: DOUBLE, `data`: BINARY,"
        " `size`: STRING, `at`: TIMESTAMP, `tags`: ARRAY<STRING>, `line`: STRUCT<`sku`: STRING>,"
        " `lines`: ARRAY<STRUCT<`sku`: STRING>>, `counts`: MAP<STRING, INT>>"
    )


def test_an_absent_field_of_proto2_has_its_default_or_is_null_and_a_zero_is_a_zero() -> None:
    column = shop("proto2", id={"default_value": "9"})
    decoded = decode(
        column,
        [b"", order(column, name="", ratio=0.0).SerializeToString()],
        {"id": pa.int64(), "name": pa.string(), "ratio": pa.float64()},
    )
    assert decoded.column.to_pylist() == [
        {"id": 9, "name": None, "ratio": None},
        {"id": 9, "name": "", "ratio": 0.0},
    ]


def test_a_zero_of_proto3_is_null_and_minus_zero_is_not() -> None:
    column = shop()
    data = order(column, ratio=-0.0).SerializeToString()
    found = decode(column, [data], {"id": pa.int64(), "ratio": pa.float64()}).column.to_pylist()
    assert str(found) == "[{'id': None, 'ratio': -0.0}]"


def test_a_missing_required_field_is_bad() -> None:
    column = shop("proto2", id={"label": F.LABEL_REQUIRED})
    decoded = decode(column, [b"", order(column, id=1).SerializeToString()], {"id": pa.int64()})
    assert decoded.bad is not None
    assert decoded.bad.tolist() == [True, False]
    assert decoded.reason == "a required field of the Protobuf message is missing"


def test_an_unknown_number_of_an_enum_has_the_name_that_java_gives_it() -> None:
    column = shop()
    data = order(column, size=5).SerializeToString()
    assert decode(column, [data], {"size": pa.string()}).column.to_pylist() == [{"size": "UNKNOWN_ENUM_VALUE_Size_5"}]


@pytest.mark.parametrize(
    ("types", "told"),
    [
        ({"id": pa.string()}, "the Protobuf field shop.Order.id cannot become string; allowed: int64"),
        ({"other": pa.int64()}, "the Protobuf message shop.Order has no field other"),
        ({"tags": pa.string()}, "is repeated, which cannot become string"),
    ],
)
def test_types_that_a_message_does_not_have_are_refused(types: dict[str, pa.DataType], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        decode(shop(), [], types)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 120), st.binary(max_size=4)), max_size=4))
def test_mutated_bytes_are_good_or_bad(changes: list[tuple[int, bytes]]) -> None:
    column = shop()
    whole = full(column)
    data = bytearray(whole)
    for place, new in changes:
        data[place % (len(data) + 1) : place % (len(data) + 1) + len(new)] = new
    decoded = decode(column, [whole, bytes(data), whole])
    assert decoded.column[0] == decoded.column[2]
    assert decoded.column[0].is_valid
    assert decoded.column[1].is_valid == (decoded.bad is None)
