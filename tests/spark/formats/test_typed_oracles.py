"""The decoders of JSON and CSV beside Spark's `from_json` and `from_csv`, for many generated records.

A record is corrupt for one where it is for the other, and what is decoded is the same. What docs/spark.md lists as
different is not generated.
"""

import json
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from klamm.spark.formats.coding import make_decoder
from klamm.spark.formats.settings import CSV, JSON, ColumnFormat

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.long

SEED = 11
RECORDS = 20_000
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
CSV_TYPES = {"i": pa.int32(), "d": pa.float64(), "s": pa.string(), "o": pa.bool_(), "n": pa.date32()}
CSV_SCHEMA = "i int, d double, s string, o boolean, n date"


def compare(
    spark: "SparkSession", function: str, column: ColumnFormat, types: dict[str, pa.DataType], schema: str,
    records: list[bytes],
) -> None:  # fmt: skip
    """Asks Spark for each record's struct as JSON, and whether it is corrupt."""
    from pyspark.sql import functions

    table = pa.table({"number": pa.array(range(len(records))), "value": pa.array(records, pa.binary())})
    read = getattr(functions, function)
    made = read(functions.col("value").cast("string"), f"{schema}, _corrupt_record string", {})
    frame = spark.createDataFrame(table).select("number", made.alias("found")).orderBy("number")
    theirs = frame.selectExpr("cast(found as string) as text", "found._corrupt_record is not null as bad").collect()
    decoded = make_decoder(column, pa.struct(types.items())).decode(pa.array(records, pa.binary()))
    bad = [False] * len(records) if decoded.bad is None else decoded.bad.tolist()
    # Spark writes both down, and knows years that Python does not.
    ours_table = pa.table({"number": pa.array(range(len(records))), "found": decoded.column})
    ours = spark.createDataFrame(ours_table).orderBy("number").selectExpr("cast(found as string) as text").collect()
    for record, their, our, is_bad in zip(records, theirs, ours, bad, strict=True):
        assert is_bad == their.bad, record
        if not is_bad:
            assert (our.text and f"{our.text[:-1]}, null}}") == their.text, record


def mutated(chance: random.Random, record: bytes) -> bytes:
    data = bytearray(record)
    for _ in range(chance.choice((0, 0, 0, 1, 2))):
        place = chance.randrange(len(data) + 1)
        data[place : place + chance.randrange(3)] = bytes(
            chance.choices(b'{}[],:"\\ 01.eE-+tn\x00\xff\n', k=chance.randrange(3))
        )
    return bytes(data)


@pytest.mark.timeout(900)
def test_json_is_what_from_json_makes_of_it(spark: "SparkSession") -> None:
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
    records = [
        mutated(
            chance,
            json.dumps(
                {name: makers[name]() for name in chance.sample(sorted(makers), chance.randrange(5))},
                ensure_ascii=chance.random() < 0.5,
            ).encode(errors="replace"),
        )
        for _ in range(RECORDS)
    ]
    compare(spark, "from_json", ColumnFormat("value", JSON), JSON_TYPES, JSON_SCHEMA, records)


def document(chance: random.Random, makers: dict[str, Any], *, twice: str = "") -> str:
    """An object of some of the fields; those that `twice` names may be there twice."""
    names = [
        *chance.sample(sorted(makers), chance.randrange(len(makers))),
        *(name for name in twice if chance.random() < 0.2),
    ]
    return "{" + ",".join(f'"{name}":{makers[name]()}' for name in names) + "}"


@pytest.mark.timeout(900)
def test_fields_that_are_there_twice_exponents_and_base64_are_read_alike(spark: "SparkSession") -> None:
    chance = random.Random(SEED)
    parts = ("YW", "Jj", "YWJj", "YW==", "YWI=", "=", "\\n", "\\u0000", " ", "\\u007f", "\\u001f", "\\u0041", "-", "+/")
    exponents = (
        "", "e0", "E+1", "e-2", "e-400", "e00000000000002", "e999999999", "e-999999999", "e-2147483646", "e-2147483648",
        "e+2147483648", "E99999999999",
    )  # fmt: skip

    def numbers() -> str:
        digits = "".join(
            (chance.choice(("", "-")), chance.choice(("0", "1", "0.000", "0.005", "123456.785", "12345678")))
        )
        return chance.choice(("{}", '"{}"')).format(digits + chance.choice(exponents))

    nested: dict[str, Any] = {
        "a": lambda: chance.choice(("1", "2", "null")),
        "m": lambda: document(chance, {"k": nested["a"], "j": nested["a"]}, twice="kj"),
    }
    makers: dict[str, Any] = {
        **nested,
        "s": lambda: document(chance, nested, twice="am"),
        "r": lambda: f"[{document(chance, nested, twice='am')},null,{{}}]",
        "c": numbers,
        "x": lambda: f'"{"".join(chance.choices(parts, k=chance.randrange(4)))}"',
    }
    inner = pa.struct([("a", pa.int32()), ("m", pa.map_(pa.string(), pa.int32()))])
    types = {**{field.name: field.type for field in inner}, "s": inner, "r": pa.list_(inner)}
    struct = "struct<a: int, m: map<string,int>>"
    compare(
        spark, "from_json", ColumnFormat("value", JSON), {**types, "c": pa.decimal128(9, 2), "x": pa.binary()},
        f"a int, m map<string,int>, s {struct}, r array<{struct}>, c decimal(9,2), x binary",
        [document(chance, makers, twice="amsr").encode() for _ in range(RECORDS)],
    )  # fmt: skip


@pytest.mark.timeout(900)
def test_csv_is_what_from_csv_makes_of_it(spark: "SparkSession") -> None:
    chance = random.Random(SEED)
    records = [
        ",".join(
            (
                chance.choice(("1", "-5", "+7", "0x1F", "", "x", " 1", "2147483648")),
                chance.choice(("1.5", "Inf", "NaN", "", "1e5", "x", ".5", "1d")),
                chance.choice(("text", '"a,b"', '"a\\"b"', "", 'a"b', '"line\nend"', "ü", " x ")),
                chance.choice(("true", "FALSE", "", "1")),
                chance.choice(("2020-01-01", "2020-1-2", "", "2020-02-30", "x")),
            )[: chance.choice((5, 5, 5, 5, 4))]
        ).encode()
        for _ in range(RECORDS)
    ]
    compare(spark, "from_csv", ColumnFormat("value", CSV), CSV_TYPES, CSV_SCHEMA, records)
