"""Odd records and rows of each format, from seeds: what tests compare with Spark's own functions, and
`bench/formats.py` with libraries.

Records are valid, nearly valid or damaged; rows have the values at the edges of their types. What docs/spark.md lists
as different is not generated.
"""

import io
import json
import random
import struct
from datetime import date, datetime, timedelta
from decimal import Decimal
from math import inf, nan
from typing import Any

import fastavro
import pyarrow as pa

SEED = 11
AVRO_SEED = 12

# -- records of JSON --------------------------------------------------------------------------------------------------

JSON_TYPES = {
    "i": pa.int32(),
    "l": pa.int64(),
    "b": pa.int8(),
    "d": pa.float64(),
    "f": pa.float32(),
    "c": pa.decimal128(9, 2),
    "o": pa.bool_(),
    "s": pa.string(),
    "t": pa.timestamp("us", "UTC"),
    "n": pa.date32(),
    "a": pa.list_(pa.int64()),
    "m": pa.map_(pa.string(), pa.int32()),
    "z": pa.struct([("s", pa.string()), ("a", pa.list_(pa.struct([("i", pa.int32())])))]),
}
JSON_SCHEMA = (
    "i int, l bigint, b tinyint, d double, f float, c decimal(9,2), o boolean, s string, t timestamp, n date,"
    " a array<bigint>, m map<string,int>, z struct<s: string, a: array<struct<i: int>>>"
)


def json_records(count: int) -> list[bytes]:
    """Documents of JSON_TYPES."""
    chance = random.Random(SEED)
    makers: dict[str, Any] = {
        "i": lambda: chance.choice((0, -1, 2**31 - 1, 2**31, 1.5, "1", None)),
        "l": lambda: chance.choice((0, 2**63 - 1, -(2**63), 2**63)),
        "b": lambda: chance.choice((1, 127, 200, 256, -128)),
        "d": lambda: chance.choice(
            (0.1, 1e300, -0.0, 5, "NaN", "-INF", chance.random() * 10 ** chance.randrange(-30, 30))
        ),
        "f": lambda: chance.choice((0.1, 1e30, 16777217, chance.random())),
        "c": lambda: chance.choice((1.005, -2.5, 9999999.99, 1e7, "1,2", 123456)),
        "o": lambda: chance.choice((True, False, "true")),
        "s": lambda: chance.choice(("text", "ü\n\u2028", "", 12, True, None, "\ud83d")),
        "t": lambda: chance.choice(("2020-01-01T00:00:00Z", "2020-1-2", "2020-01-01 10:00:00.123+02:00", 12, "x")),
        "n": lambda: chance.choice(("2020-01-01", "2020-02-30", "2020-1-2 rest", "1999")),
        "a": lambda: chance.choice(([], [1, None, 2], {}, [1, "x"], None)),
        "m": lambda: chance.choice(({}, {"a": 1, "b": None}, [], {"a": "x"})),
        "z": lambda: chance.choice(({}, {"s": "x", "a": [{"i": 1}, None, {}]}, {"a": {}}, None, {"other": [1]})),
        "other": lambda: chance.choice(([1, {"i": []}], {"i": 2}, "text", 1.5e-3)),
    }
    return [
        _mutated(
            chance,
            json.dumps(
                {name: makers[name]() for name in chance.sample(sorted(makers), chance.randrange(5))},
                ensure_ascii=chance.random() < 0.5,
            ).encode(errors="replace"),
        )
        for _ in range(count)
    ]


def _mutated(chance: random.Random, record: bytes) -> bytes:
    data = bytearray(record)
    for _ in range(chance.choice((0, 0, 0, 1, 2))):
        place = chance.randrange(len(data) + 1)
        data[place : place + chance.randrange(3)] = bytes(
            chance.choices(b'{}[],:"\\ 01.eE-+tn\x00\xff\n', k=chance.randrange(3))
        )
    return bytes(data)


# -- records of CSV ---------------------------------------------------------------------------------------------------

CSV_TYPES = {"i": pa.int32(), "d": pa.float64(), "s": pa.string(), "o": pa.bool_(), "n": pa.date32()}
CSV_SCHEMA = "i int, d double, s string, o boolean, n date"


def csv_records(count: int) -> list[bytes]:
    """Lines of CSV_TYPES."""
    chance = random.Random(SEED)
    return [
        ",".join(
            (
                chance.choice(("1", "-5", "+7", "0x1F", "", "x", " 1", "2147483648")),
                chance.choice(("1.5", "Inf", "NaN", "", "1e5", "x", ".5", "1d")),
                chance.choice(("text", '"a,b"', '"a\\"b"', "", 'a"b', '"line\nend"', "ü", " x ")),
                chance.choice(("true", "FALSE", "", "1")),
                chance.choice(("2020-01-01", "2020-1-2", "", "2020-02-30", "x")),
            )[: chance.choice((5, 5, 5, 5, 4))]
        ).encode()
        for _ in range(count)
    ]


# -- records of Avro --------------------------------------------------------------------------------------------------

AVRO_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "s", "type": ["null", "string"]},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["X", "Y"]}},
        {"name": "i", "type": "int"},
        {"name": "a", "type": {"type": "array", "items": ["long", "null"]}},
        {"name": "m", "type": {"type": "map", "values": "double"}},
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
# Times are numbers, of which any is one.
AVRO_NUMBERS = {**AVRO_SCHEMA, "fields": [*AVRO_SCHEMA["fields"][:-1], {"name": "t", "type": "long"}]}
AVRO_TYPE = pa.struct(
    [
        ("s", pa.string()),
        ("e", pa.string()),
        ("i", pa.int32()),
        ("a", pa.list_(pa.int64())),
        ("m", pa.map_(pa.string(), pa.float64())),
        ("t", pa.timestamp("us", "UTC")),
    ]
)


def avro_records(count: int) -> list[bytes]:
    """Data of AVRO_SCHEMA, of which many are damaged."""
    chance = random.Random(AVRO_SEED)
    return [_damaged(chance) for _ in range(count)]


def _damaged(chance: random.Random) -> bytes:
    out = io.BytesIO()
    row = {
        "s": chance.choice((None, "text")),
        "e": chance.choice("XY"),
        "i": chance.choice((0, -1, 2**31 - 1)),
        "a": chance.choice(([], [1, None])),
        "m": chance.choice(({}, {"k": 0.5})),
        "t": chance.choice((0, -1, 1_600_000_000_123)),
    }
    fastavro.schemaless_writer(out, AVRO_NUMBERS, row)
    data = bytearray(out.getvalue())
    if chance.random() < 0.5:
        data[chance.randrange(len(data))] = chance.choice((0, 1, 2, 3, 4, 0x7F, 0x80, 0xFF))
    if chance.random() < 0.1:
        del data[chance.randrange(len(data)) :]
    return bytes(data)


# -- rows of writers --------------------------------------------------------------------------------------------------

JSON_ROW = (
    "b boolean, y tinyint, s smallint, i int, l bigint, f float, d double, t string, x binary, p decimal(38,18),"
    ' q decimal(5,0), day date, at timestamp, local timestamp_ntz, `na"me` int, ls array<string>,'
    " ld array<array<double>>, m map<string,int>, mi map<int,string>, md map<date,boolean>,"
    " n struct<a:int,e:struct<z:double>>, ln array<struct<a:string,b:timestamp>>"
)
_TEXTS = ["", "a", "é\u2028\U0001f600", '"\\/', "\b\t\n\f\r\x00\x1f\x7f", "</script>", "x" * 300]
_DOUBLES = [0.0, -0.0, 1.0, 0.001, 0.00099, 9999999.0, 1e7, 1.5e-300, 1e300, nan, inf, -inf, 0.1, -12.5]


def json_rows(count: int) -> list[tuple[Any, ...]]:
    """Rows of JSON_ROW."""
    chance = random.Random(7)

    def maybe(value: Any) -> Any:
        return None if chance.random() < 0.2 else value

    def double() -> float:
        if chance.random() < 0.5:
            return chance.choice(_DOUBLES)
        # Digits that every Java writes alike.
        return round(chance.uniform(-1000, 1000), 3) * 10.0 ** chance.choice([0, 0, 12])

    def single() -> Any:
        return struct.unpack("f", struct.pack("f", chance.choice([0.0, 1.5, -2.25e8, 1e-5, 0.125, 3e20])))[0]

    def text() -> str:
        return chance.choice(_TEXTS)

    def moment() -> datetime:
        return datetime(1970, 1, 1) + timedelta(microseconds=chance.randrange(-(10**15), 4 * 10**15))

    def decimal(digits: int, scale: int) -> Decimal:
        return Decimal(chance.randrange(-(10**digits), 10**digits)).scaleb(-scale)

    def several(make: Any) -> list[Any]:
        return [maybe(make()) for _ in range(chance.randrange(4))]

    def number(bits: int) -> Any:
        return chance.choice([0, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), chance.randrange(100)])

    return [
        tuple(
            map(
                maybe,
                (
                    chance.random() < 0.5,
                    number(8),
                    number(16),
                    number(32),
                    number(64),
                    single(),
                    double(),
                    text(),
                    text().encode(),
                    chance.choice([decimal(30, 18), decimal(3, 18), Decimal(0)]),
                    decimal(5, 0),
                    date(1970, 1, 1) + timedelta(days=chance.randrange(-700_000, 2_900_000)),
                    moment(),
                    moment(),
                    number(32),
                    several(text),
                    several(lambda: several(double)),
                    {text(): maybe(1) for _ in range(3)},
                    {number(32): maybe(text()) for _ in range(3)},
                    {date(2024, 1, chance.randrange(1, 29)): True},
                    (maybe(1), maybe((maybe(double()),))),
                    several(lambda: (maybe(text()), maybe(moment()))),
                ),
            )
        )
        for _ in range(count)
    ]


CSV_ROW = "t string, i int, d double, p decimal(9,2), b boolean, day date, at timestamp, u string"
_FIELDS = [
    "", "a", "a,b", 'say "x"', "back\\slash", 'a\\"b,', " spaces ", "two\nlines", "a;b", "é", "\t", "#x", "'", "a\rb",
]  # fmt: skip


def csv_rows(count: int) -> list[tuple[Any, ...]]:
    """Rows of CSV_ROW."""
    chance = random.Random(11)
    return [
        tuple(
            None if chance.random() < 0.2 else value
            for value in (
                chance.choice(_FIELDS),
                chance.randrange(-5, 5),
                chance.choice([0.5, 1e10, -3.0]),
                Decimal(chance.randrange(1000)).scaleb(-2),
                chance.random() < 0.5,
                date(2024, 1, 1) + timedelta(days=chance.randrange(500)),
                datetime(2024, 1, 1) + timedelta(microseconds=chance.randrange(10**15)),
                chance.choice(_FIELDS),
            )
        )
        for _ in range(count)
    ]
