"""The format `json`, document by document. What is expected here is what Spark 4.3's `from_json` gives.

`test_typed_oracles.py` asks Spark itself, about many more documents.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.spark.formats import patterns
from klamm.spark.formats.coding import Decoded, make_decoder
from klamm.spark.formats.settings import JSON, ColumnFormat
from support.opcodes import Opcodes
from support.paths import TESTS

BAD = "bad"


def decode(documents: Sequence[bytes | None], fields: dict[str, pa.DataType], **options: str) -> Decoded:
    made = make_decoder(ColumnFormat("value", JSON, settings=tuple(sorted(options.items()))), pa.struct(fields.items()))
    decoded = made.decode(pa.array(documents, pa.binary()))
    decoded.column.validate(full=True)
    return decoded


def one(document: bytes, data_type: pa.DataType, **options: str) -> object:
    """The value of the field `x`; BAD for a bad document, None for a null."""
    decoded = decode([document], {"x": data_type}, **options)
    if decoded.bad is not None:
        assert decoded.bad.tolist() == [True]
        assert decoded.reason
        assert decoded.column.to_pylist() == [None]
        return BAD
    (row,) = decoded.column.to_pylist()
    return None if row is None else row["x"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'"a"', "a"),
        (b'""', ""),
        (b'"\\u00e9\\ud83d\\ude00 \\ud83d \\n\\/\\""', 'é😀 ? \n/"'),
        (b'"\xff\xc3"', "��"),
        (b'"\x7f"', "\x7f"),
        (b"12345678901234567890123", "12345678901234567890123"),
        (b"-0", "0"),
        (b"true", "true"),
        (b"null", None),
        # Spark's readers of files keep such texts, too; from_json writes them anew.
        (b"1.50", "1.50"),
        (b'{"a" : 1.50, "b":[1, 2]}', '{"a" : 1.50, "b":[1, 2]}'),
        (b"[[1], {}]", "[[1], {}]"),
        (b'"a\nb"', BAD),
        (b'"a\\x"', BAD),
        (b'"a\\u12"', BAD),
        (b'"a', BAD),
        (b"tru", BAD),
        (b"truex", BAD),
        (b"[1,]", BAD),
        (b"[,1]", BAD),
        (b"[1 2]", BAD),
        (b'{"a"}', BAD),
        (b"{,}", BAD),
        (b"", BAD),
    ],
)
def test_a_string_is_a_text_or_the_json_of_another_value(text: bytes, expected: object) -> None:
    assert one(b'{"x":' + text + b"}", pa.string()) == expected


@pytest.mark.parametrize(
    ("text", "data_type", "expected"),
    [
        (b"9223372036854775807", pa.int64(), 2**63 - 1),
        (b"-9223372036854775808", pa.int64(), -(2**63)),
        (b"9223372036854775808", pa.int64(), BAD),
        (b"-9223372036854775809", pa.int64(), BAD),
        (b"99999999999999999999999", pa.int64(), BAD),
        (b"-0", pa.int64(), 0),
        (b"1.0", pa.int32(), BAD),
        (b"1e2", pa.int32(), BAD),
        (b'"1"', pa.int32(), BAD),
        (b'""', pa.int32(), BAD),
        (b"{}", pa.int32(), BAD),
        (b"2147483648", pa.int32(), BAD),
        (b"32768", pa.int16(), BAD),
        (b"200", pa.int8(), -56),
        (b"256", pa.int8(), BAD),
        (b"-129", pa.int8(), BAD),
        (b"01", pa.int32(), BAD),
        (b"1.", pa.float64(), BAD),
        (b".5", pa.float64(), BAD),
        (b"+1", pa.float64(), BAD),
        (b"1e400", pa.float64(), math.inf),
        (b"1e39", pa.float32(), math.inf),
        (b"0.1", pa.float64(), 0.1),
        (b"16777217", pa.float32(), 16777216.0),
        (b"1.00000017881393432617187499", pa.float32(), 1.0000001192092896),
        (b'"-INF"', pa.float64(), -math.inf),
        (b'"Infinity"', pa.float64(), math.inf),
        (b'"INF"', pa.float64(), BAD),
        (b'"1"', pa.float64(), BAD),
        (b"-INF", pa.float64(), -math.inf),
        (b"+Infinity", pa.float64(), math.inf),
        (b"INF", pa.float64(), BAD),
        (b"1.005", pa.decimal128(5, 2), Decimal("1.01")),
        (b"-1.005", pa.decimal128(5, 2), Decimal("-1.01")),
        (b"999.995", pa.decimal128(5, 2), BAD),
        (b"1e2", pa.decimal128(5, 2), Decimal("100.00")),
        (b"1e-400", pa.decimal128(5, 2), Decimal("0.00")),
        (b"1e-999999999", pa.decimal128(5, 2), BAD),
        (b'"-1e-999999999"', pa.decimal128(5, 2), BAD),
        (b"0e-999999999", pa.decimal128(5, 2), Decimal("0.00")),
        (b"0e999999999", pa.decimal128(5, 2), Decimal("0.00")),
        (b"0.000e-2147483647", pa.decimal128(5, 2), BAD),
        (b"0e9999999999999", pa.decimal128(5, 2), BAD),
        (b"0.000e2147483648", pa.decimal128(5, 2), BAD),
        (b"1e00000000000002", pa.decimal128(5, 2), Decimal("100.00")),
        (b"1e-999999999", pa.float64(), 0.0),
        (b"1e1000000000", pa.decimal128(5, 2), BAD),
        (b'"1,0.5"', pa.decimal128(5, 2), Decimal("10.50")),
        (b'"+1.5e1"', pa.decimal128(5, 2), Decimal("15.00")),
        (b'" 1"', pa.decimal128(5, 2), BAD),
        (b'"x"', pa.decimal128(5, 2), BAD),
        (b"NaN", pa.decimal128(5, 2), BAD),
        (b"true", pa.bool_(), True),
        (b'"true"', pa.bool_(), BAD),
        (b"1", pa.bool_(), BAD),
        (b'"aGk="', pa.binary(), b"hi"),
        (b'"aGk"', pa.binary(), BAD),
        (b'""', pa.binary(), b""),
        (b'" \\u0000YWJj\\n\\tYWJj "', pa.binary(), b"abcabc"),
        (b'"\\u0000"', pa.binary(), b""),
        (b'"YW\\nJj"', pa.binary(), BAD),
        (b'"YW==\\n"', pa.binary(), b"a"),
        (b'"YW= ="', pa.binary(), BAD),
        (b'"YW==YWI="', pa.binary(), b"aab"),
        (b'"YWJj="', pa.binary(), BAD),
        (b'"YWJj=="', pa.binary(), BAD),
        (b'"===="', pa.binary(), BAD),
        (b'"YWJj\\u007f"', pa.binary(), BAD),
        (b'"YWJj\\u00a0"', pa.binary(), BAD),
    ],
)
def test_a_value_is_of_the_type_or_the_document_is_bad(text: bytes, data_type: pa.DataType, expected: object) -> None:
    assert one(b'{"x":' + text + b"}", data_type) == expected


def test_not_a_number_is_a_number() -> None:
    for text in (b"NaN", b'"NaN"'):
        found = one(b'{"x":' + text + b"}", pa.float64())
        assert isinstance(found, float)
        assert math.isnan(found)
        assert one(b'{"x":' + text + b"}", pa.float64(), allowNonNumericNumbers="false") == BAD


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'"2020-01-01T00:00:00Z"', datetime(2020, 1, 1, tzinfo=UTC)),
        (b'"2020-01-01 00:00:00.5"', datetime(2020, 1, 1, microsecond=500_000, tzinfo=UTC)),
        (b'"2020"', datetime(2020, 1, 1, tzinfo=UTC)),
        (b'"2020-1-1 1:2:3.4"', datetime(2020, 1, 1, 1, 2, 3, 400_000, UTC)),
        (b'"2020-01-01T00:00:00.123456789+01:30"', datetime(2019, 12, 31, 22, 30, 0, 123456, UTC)),
        (b'"2020-01-01 00:00:00 Europe/Berlin"', datetime(2019, 12, 31, 23, tzinfo=UTC)),
        (b'"2020-01-01T10:00:00GMT+01:00"', datetime(2020, 1, 1, 9, tzinfo=UTC)),
        (b'"2020-01-01T10"', datetime(2020, 1, 1, 10, tzinfo=UTC)),
        (b"5", datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)),
        (b"1.5", BAD),
        (b'"5"', BAD),
        (b'""', BAD),
        (b'"2020-01-01T"', BAD),
        (b'"2020-02-30"', BAD),
        (b'"2020-01-01T24:00:00"', BAD),
        (b'"2020-01-01T10:00:00Zx"', BAD),
        (b'"2020-01-01T10:00:00ZZ"', BAD),
        (b'"now"', BAD),
        # What Java multiplies beyond 64 bits.
        (b"9223372036854775807", BAD),
    ],
)
def test_a_timestamp_has_one_of_sparks_forms(text: bytes, expected: object) -> None:
    assert one(b'{"x":' + text + b"}", pa.timestamp("us", "UTC")) == expected


def test_a_text_that_is_too_long_for_a_zone_is_not_kept() -> None:
    before = patterns.zone.cache_info().misses
    assert patterns.spark_timestamp("2020-01-01 00:00:00 Europe" + "/x" * 100, "UTC") is None
    assert patterns.zone.cache_info().misses == before


def test_timestamps_and_dates_follow_the_given_pattern_and_zone() -> None:
    instant, local = pa.timestamp("us", "UTC"), pa.timestamp("us")
    given = {"timestampFormat": "dd/MMM/yyyy:HH:mm:ss Z"}
    assert one(b'{"x":"10/Oct/2000:13:55:36 -0700"}', instant, **given) == datetime(
        2000, 10, 10, 20, 55, 36, tzinfo=UTC
    )
    assert one(b'{"x":"2000-10-10T13:55:36Z"}', instant, **given) == BAD
    assert one(b'{"x":"2020-07-01 00:00:00"}', instant, timeZone="Europe/Berlin") == datetime(
        2020, 6, 30, 22, tzinfo=UTC
    )
    assert one(b'{"x":"2020-07-01T01:02:03"}', local) == datetime(2020, 7, 1, 1, 2, 3)
    assert one(b'{"x":"2020-07-01T01:02:03Z"}', local) == BAD
    assert one(b'{"x":5}', local) == BAD
    assert one(b'{"x":"01.07.2020"}', pa.date32(), dateFormat="dd.MM.yyyy") == date(2020, 7, 1)
    assert one(b'{"x":"2020-07-01 rest"}', pa.date32()) == date(2020, 7, 1)
    assert one(b'{"x":"2020-02-30"}', pa.date32()) == BAD


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (b"", None),
        (b" \n ", None),
        (b"null", BAD),
        (b"1", BAD),
        (b"[]", BAD),
        (b'[{"x":"a"}]', BAD),
        (b'\xef\xbb\xbf{"x":"a"}', BAD),
        (b'\x00{"x":"a"}', BAD),
        (b'{"x":"a"} trailing', "a"),
        (b'{"x":"a"}}', "a"),
        (b'{"x":"a",}', BAD),
        (b'{"x":"a"', BAD),
        (b'{"x":"a","x":"b"}', "b"),
        (b'{"x":"a","x":null}', None),
        (b'{"X":"a"}', None),
        (b'{"\\u0078":"a"}', "a"),
        (b"{'x':'it\\'s'}", "it's"),
        (b'{"y":' + b"[" * 999 + b"]" * 999 + b',"x":"a"}', "a"),
        (b'{"y":' + b"[" * 1000 + b"]" * 1000 + b',"x":"a"}', BAD),
        (b'{"y":' + b"1" * 1000 + b',"x":"a"}', "a"),
        (b'{"y":' + b"1" * 1001 + b',"x":"a"}', BAD),
        (b"{" * 100_000, BAD),
    ],
)
def test_a_document_is_one_object(document: bytes, expected: object) -> None:
    assert one(document, pa.string()) == expected


@pytest.mark.parametrize(
    ("option", "document"),
    [
        ("allowComments", b'{/* one */"x":"a"// two\n}'),
        ("allowUnquotedFieldNames", b'{x:"a"}'),
        ("allowNumericLeadingZeros", b'{"x":"a","y":001}'),
        ("allowBackslashEscapingAnyCharacter", b'{"x":"\\a"}'),
        ("allowUnquotedControlChars", b'{"y":"\n","x":"a"}'),
    ],
)
def test_options_allow_what_json_does_not(option: str, document: bytes) -> None:
    assert one(document, pa.string()) == BAD
    assert one(document, pa.string(), **{option: "true"}) == "a"
    assert one(b"{'x':'a'}", pa.string(), allowSingleQuotes="false") == BAD


def test_nested_values_keep_their_places() -> None:
    fields = {
        "a": pa.list_(pa.int32()),
        "m": pa.map_(pa.string(), pa.int32()),
        "z": pa.struct([("x", pa.int32()), ("y", pa.list_(pa.struct([("q", pa.string())])))]),
    }
    documents = [
        b'{"a":[1,null,2],"m":{"a":1,"a":2,"\\u0062":null}}',
        None,
        b'{"a":[1],"a":[2,3]}',
        b'{"z":{"x":1},"z":{"y":[]}}',
        b'{"z":{"x":1,"y":[{"q":"1"},null,{}]},"a":[]}',
        b'{"a":[7,8,"x"],"m":{"k":1}}',
        b'{"z":null,"m":{}}',
    ]
    decoded = decode(documents, fields)
    assert decoded.column.to_pylist() == [
        {"a": [1, None, 2], "m": [("a", 1), ("a", 2), ("b", None)], "z": None},
        None,
        {"a": [2, 3], "m": None, "z": None},
        {"a": None, "m": None, "z": {"x": None, "y": []}},
        {"a": [], "m": None, "z": {"x": 1, "y": [{"q": "1"}, None, {"q": None}]}},
        None,
        {"a": None, "m": [], "z": None},
    ]
    assert decoded.bad is not None
    assert decoded.bad.tolist() == [False, False, False, False, False, True, False]
    assert "another type" in decoded.reason


def test_many_documents_and_slices_of_them_are_decoded() -> None:
    names = [f"field {number} ü" for number in range(300)]
    rows = [{name: number * index for index, name in enumerate(names)} for number in range(2000)]
    documents = pa.array([None, *(json.dumps(row).encode() for row in rows)], pa.binary())
    wanted = names[::7]
    made = make_decoder(ColumnFormat("value", JSON), pa.struct([(name, pa.int64()) for name in wanted]))
    assert len(documents.buffers()[2]) > 8 * 1024 * 1024
    decoded = made.decode(documents.slice(1))
    assert decoded.bad is None
    assert decoded.column.to_pylist() == [{name: row[name] for name in wanted} for row in rows]


def test_a_document_has_a_limit_of_values() -> None:
    decoded = decode([b'{"x":[' + b"1," * 1_048_576 + b"1]}", b'{"x":[1]}'], {"x": pa.list_(pa.int8())})
    assert decoded.bad is not None
    assert decoded.bad.tolist() == [True, False]
    assert "1048576" in decoded.reason
    assert decoded.column.to_pylist() == [None, {"x": [1]}]


# -- any bytes --------------------------------------------------------------------------------------------------------

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abc\n"), inner, max_size=4),
    max_leaves=12,
)
_ROWS = st.dictionaries(st.sampled_from("abcdefgh"), _VALUES, max_size=6)
_FIELDS = {"a": pa.int64(), "b": pa.string(), "c": pa.float64(), "d": pa.list_(pa.string()), "e": pa.bool_()}


def _expected(row: dict[str, object]) -> object:
    """What the five fields become; BAD where one has another type."""
    found: dict[str, object] = dict.fromkeys(_FIELDS)
    for name, value in row.items():
        if name not in _FIELDS or value is None:
            continue
        if name == "a":
            fits = isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
        elif name == "c":
            fits = isinstance(value, int | float) and not isinstance(value, bool)
        elif name == "d":
            fits = isinstance(value, list)
        else:
            fits = name == "b" or isinstance(value, bool)
        if not fits:
            return BAD
        if name == "b":
            found[name] = _text(value)
        elif name == "d":
            assert isinstance(value, list)
            found[name] = [None if each is None else _text(each) for each in value]
        else:
            assert isinstance(value, int | float)
            found[name] = float(value) if name == "c" else value
    return found


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@settings(max_examples=200, deadline=None)
@given(st.lists(_ROWS, max_size=5))
def test_documents_equal_what_python_reads(rows: list[dict[str, object]]) -> None:
    decoded = decode([json.dumps(row).encode() for row in rows], _FIELDS)
    expected = [_expected(row) for row in rows]
    bad = [False] * len(rows) if decoded.bad is None else decoded.bad.tolist()
    assert bad == [row == BAD for row in expected]
    assert decoded.column.to_pylist() == [None if row == BAD else row for row in expected]


@settings(max_examples=300, deadline=None)
@given(_ROWS, st.lists(st.tuples(st.integers(0, 200), st.binary(max_size=3)), max_size=4))
def test_mutated_bytes_are_good_or_bad_and_valid_columns(
    row: dict[str, object], changes: list[tuple[int, bytes]]
) -> None:
    document = bytearray(json.dumps(row, ensure_ascii=False).encode(errors="replace"))
    for place, new in changes:
        document[place % (len(document) + 1) : place % (len(document) + 1) + len(new)] = new
    nested = {**_FIELDS, "f": pa.struct([("a", pa.string()), ("b", pa.list_(pa.string()))])}
    alone = decode([bytes(document)], nested)
    both = decode([b'{"b":"1"}', bytes(document), b'{"b":"2"}'], nested)
    assert both.column[1] == alone.column[0]
    assert [both.column[0]["b"].as_py(), both.column[2]["b"].as_py()] == ["1", "2"]


def test_a_schema_of_many_names_costs_no_more_than_their_number() -> None:
    """In a table of names, one does not look through all others of its hash."""
    names = [f"a{number:05d}aaaaaaaaaaaaaa" for number in range(2_000)]
    decode([], {"compiled": pa.int64()})
    with Opcodes(1_000 * len(names)):
        made = make_decoder(ColumnFormat("value", JSON), pa.struct([(name, pa.int64()) for name in names]))
    row = {name: number for number, name in enumerate(names)}
    assert made.decode(pa.array([json.dumps(row).encode()], pa.binary())).column.to_pylist() == [row]


@pytest.mark.long
def test_the_loops_take_no_more_than_linear_time() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "support.spark.json_opcodes"],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=True,
    )
    for name, (once, twice, four_times) in json.loads(done.stdout).items():
        assert four_times - twice <= 2.1 * (twice - once) + 2_000, name


def test_bytes_of_many_documents_never_reach_into_each_other() -> None:
    whole = b'{"a":12,"b":"text","d":["x","y"]}'
    parts = [whole[:end] for end in range(len(whole) + 1)]
    decoded = decode(parts, _FIELDS)
    assert decoded.bad is not None
    assert decoded.bad.tolist() == [False, *[True] * (len(whole) - 1), False]
