"""The decoders of JSON and CSV beside Spark's `from_json` and `from_csv`, for many generated records.

A record is corrupt for one where it is for the other, and what is decoded is the same. What docs/spark.md lists as
different is not generated.
"""

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from klamm.spark.formats.coding import make_decoder
from klamm.spark.formats.settings import CSV, JSON, ColumnFormat
from support.spark.odd_records import CSV_SCHEMA, CSV_TYPES, JSON_SCHEMA, JSON_TYPES, SEED, csv_records, json_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.long

RECORDS = 20_000


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


def test_json_is_what_from_json_makes_of_it(spark: "SparkSession") -> None:
    compare(spark, "from_json", ColumnFormat("value", JSON), JSON_TYPES, JSON_SCHEMA, json_records(RECORDS))


def document(chance: random.Random, makers: dict[str, Any], *, twice: str = "") -> str:
    """An object of some of the fields; those that `twice` names may be there twice."""
    names = [
        *chance.sample(sorted(makers), chance.randrange(len(makers))),
        *(name for name in twice if chance.random() < 0.2),
    ]
    return "{" + ",".join(f'"{name}":{makers[name]()}' for name in names) + "}"


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


def test_csv_is_what_from_csv_makes_of_it(spark: "SparkSession") -> None:
    compare(spark, "from_csv", ColumnFormat("value", CSV), CSV_TYPES, CSV_SCHEMA, csv_records(RECORDS))
