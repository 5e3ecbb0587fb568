"""The format `csv`, line by line. What is expected here is what Spark 4.3's `from_csv` gives."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.spark.formats.coding import Decoded, make_decoder
from klamm.spark.formats.settings import CSV, ColumnFormat

BAD = "bad"
TEXTS = {"a": pa.string(), "b": pa.string()}


def decode(lines: list[bytes | None], fields: dict[str, pa.DataType], **options: str) -> Decoded:
    made = make_decoder(ColumnFormat("value", CSV, settings=tuple(sorted(options.items()))), pa.struct(fields.items()))
    decoded = made.decode(pa.array(lines, pa.binary()))
    decoded.column.validate(full=True)
    return decoded


def one(line: bytes, fields: dict[str, pa.DataType], **options: str) -> object:
    decoded = decode([line], fields, **options)
    (row,) = decoded.column.to_pylist()
    assert (row is None) == (decoded.bad is not None)
    return BAD if row is None else tuple(row.values())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"x,y", ("x", "y")),
        (b"x", BAD),
        (b"x,y,z", BAD),
        (b"", (None, None)),
        (b" ", BAD),
        (b",", (None, None)),
        (b'"x",y', ("x", "y")),
        (b'"x,1",y', ("x,1", "y")),
        (b'"x\\"y",z', ('x"y', "z")),
        (b'"x\\\\",z', ("x\\", "z")),
        (b'x"y,z', ('x"y', "z")),
        (b'"x\ny",z', ("x\ny", "z")),
        (b"x\ny,z", ("x\ny", "z")),
        (b' "x",y', (' "x"', "y")),
        (b'"x" ,y', ("x", "y")),
        (b'"",y', (None, "y")),
        (b"\\,x,y", BAD),
        (b"\xff,x", ("�", "x")),
        (b"a,b\n", ("a", "b\n")),
        (b'"x,y', BAD),
        # Spark takes these fields as they are, quotes and all.
        (b'"x"z,y', BAD),
        (b'"x""y",z', BAD),
    ],
)
def test_a_record_has_as_many_fields_as_the_schema(line: bytes, expected: object) -> None:
    assert one(line, TEXTS) == expected


@pytest.mark.parametrize(
    ("text", "data_type", "expected"),
    [
        (b"+1", pa.int32(), 1),
        (b" 1", pa.int32(), BAD),
        (b"1.0", pa.int32(), BAD),
        (b"0x10", pa.int32(), BAD),
        (b"-0X1", pa.int64(), BAD),
        (b"2147483648", pa.int32(), BAD),
        (b"-128", pa.int8(), -128),
        (b"1d", pa.float64(), 1.0),
        (b"1e5f", pa.float64(), 100000.0),
        (b" 1 ", pa.float64(), 1.0),
        (b".5", pa.float64(), 0.5),
        (b"Inf", pa.float64(), float("inf")),
        (b"-Infinity", pa.float64(), float("-inf")),
        (b"x", pa.float64(), BAD),
        (b"TRUE", pa.bool_(), True),
        (b"yes", pa.bool_(), BAD),
        (b"1.005", pa.decimal128(5, 2), Decimal("1.01")),
        (b"1000", pa.decimal128(5, 2), BAD),
        (b"2020-01-01", pa.timestamp("us", "UTC"), datetime(2020, 1, 1, tzinfo=UTC)),
        (b"12", pa.timestamp("us", "UTC"), BAD),
        (b"2020-01-01", pa.date32(), date(2020, 1, 1)),
        (b"x", pa.binary(), b"x"),
    ],
)
def test_a_field_is_of_the_type_or_the_record_is_bad(text: bytes, data_type: pa.DataType, expected: object) -> None:
    found = one(b"a," + text, {"a": pa.string(), "x": data_type})
    assert found == (BAD if expected == BAD else ("a", expected))


def test_options_change_how_a_record_is_cut() -> None:
    assert one(b"x\ty", TEXTS, sep="\\t") == ("x", "y")
    assert one(b"x||y", TEXTS, sep="||") == ("x", "y")
    assert one(b"'x,1',y", TEXTS, quote="'") == ("x,1", "y")
    assert one(b'"x""1",y', TEXTS, escape='"') == ('x"1', "y")
    assert one(b" x , y ", TEXTS, ignoreLeadingWhiteSpace="true", ignoreTrailingWhiteSpace="true") == ("x", "y")
    assert one(b"NA,y", TEXTS, nullValue="NA") == (None, "y")
    assert one(b"-,y", {"a": pa.float64(), "b": pa.string()}, positiveInf="-") == (float("inf"), "y")


def test_time_grows_with_a_records_bytes_and_not_with_their_square() -> None:
    assert one(b"1" * 1_000_000 + b"x", {"a": pa.float64()}) == BAD
    assert one(b'"x"' + b"," * 1_000_000, TEXTS) == BAD


def test_rows_keep_their_places() -> None:
    lines = [b"1,a", None, b'2,"b,c"', b"x,d", b"3", b"", b"4,e"]
    decoded = decode(lines, {"a": pa.int64(), "b": pa.string()})
    assert decoded.column.to_pylist() == [
        {"a": 1, "b": "a"},
        None,
        {"a": 2, "b": "b,c"},
        None,
        None,
        {"a": None, "b": None},
        {"a": 4, "b": "e"},
    ]
    assert decoded.bad is not None
    assert decoded.bad.tolist() == [False, False, False, True, True, False, False]
    assert decoded.reason == "field 1 is not of the type int64"


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text('ab1,"\\\n é', max_size=12) | st.binary(max_size=8), max_size=5))
def test_any_bytes_are_good_or_bad(lines: list[str | bytes]) -> None:
    data = [line.encode() if isinstance(line, str) else line for line in lines]
    decoded = decode([b"1,x", *data, b"2,y"], {"a": pa.int64(), "b": pa.string()})
    found = decoded.column.to_pylist()
    assert [found[0], found[-1]] == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    bad = [False] * len(found) if decoded.bad is None else decoded.bad.tolist()
    assert bad == [row is None for row in found]
