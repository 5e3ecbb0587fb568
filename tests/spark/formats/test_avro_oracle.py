"""The decoder and the encoder of Avro beside Spark's `from_avro` and `to_avro`, for many generated records."""

import io
import json
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest

from klamm.spark.formats.coding import make_decoder, make_encoder
from klamm.spark.formats.deriving import avro_schema
from klamm.spark.formats.settings import AVRO, ColumnFormat
from support import oracles
from support.spark.odd_records import AVRO_NUMBERS, AVRO_SCHEMA, AVRO_SEED, AVRO_TYPE, avro_records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.long

# The newest that Maven Central has.
SPARK_AVRO = ("org.apache.spark:spark-avro_2.13:4.1.1",)
RECORDS = 5_000
DDL = (
    "o boolean, i int, l bigint, f float, d double, s string, b binary, c decimal(20,3), n date, t timestamp,"
    " u timestamp_ntz, a array<bigint>, m map<string,string>, z struct<s: string, y: struct<i: int>>"
)
EPOCH = datetime(1970, 1, 1)


@pytest.fixture(scope="module")
def avro(spark: "SparkSession") -> None:
    """Spark's own functions for Avro in the session of the tests."""
    (jar,) = oracles.bring_jars("spark-avro-4.1.1", SPARK_AVRO).glob("spark-avro*.jar")
    spark.sql(f"ADD JAR '{jar}'")


def rows(chance: random.Random) -> list[tuple[Any, ...]]:
    """Rows of DDL."""

    def instant() -> datetime:
        return EPOCH + timedelta(microseconds=chance.randrange(-(10**15), 10**17))

    makers = [
        lambda: chance.random() < 0.5,
        lambda: chance.choice((0, -1, 2**31 - 1, -(2**31))),
        lambda: chance.choice((0, 2**63 - 1, -(2**63))),
        lambda: chance.choice((0.5, -0.0, float("inf"), float("nan"))),
        lambda: chance.choice((0.1, -1e300, float("-inf"), float("nan"))),
        lambda: chance.choice(("", "ü\U0001f600", "text")),
        lambda: chance.choice((b"", b"\xff\x00")),
        lambda: Decimal(chance.randrange(-(10**20) + 1, 10**20)).scaleb(-3),
        lambda: date(1970, 1, 1) + timedelta(days=chance.randrange(-700_000, 2_900_000)),
        lambda: instant().replace(tzinfo=UTC),
        instant,
        lambda: chance.choice(([], [1, None, -5])),
        lambda: chance.choice(({}, {"": None}, {"a": "x"})),
        lambda: chance.choice(((None, None), ("x", (1,)), ("", (None,)))),
    ]
    return [tuple(None if chance.random() < 0.1 else make() for make in makers) for _ in range(RECORDS)]


def test_avro_is_what_to_avro_makes_of_rows_and_from_avro_reads_back(spark: "SparkSession", avro: None) -> None:
    from pyspark.sql import functions as F

    given = spark.createDataFrame(rows(random.Random(AVRO_SEED)), DDL)
    structs = given.select(F.struct("*").alias("value"))
    theirs = structs.selectExpr("value", "to_avro(value) AS data").coalesce(1).toArrow()
    value, data = (theirs.column(name).combine_chunks() for name in ("value", "data"))
    schema = avro_schema(structs.schema["value"].dataType)
    column = ColumnFormat("value", AVRO, schema)
    assert make_encoder(column, value.type).encode(value).to_pylist() == data.to_pylist()
    decoded = make_decoder(column, value.type).decode(data.cast(pa.binary()))
    assert decoded.bad is None
    # NaN does not equal itself.
    assert list(map(repr, decoded.column.to_pylist())) == list(map(repr, value.to_pylist()))


def is_known_difference(record: bytes, is_bad: bool, is_bad_for_spark: bool) -> bool:
    """Java drops the upper bits of an int, and fastavro counts an index below zero from the end."""
    if is_bad != is_bad_for_spark and is_bad:
        return any(record[at : at + 5] == b"\xfe\xff\xff\xff\x7f" for at in range(len(record)))
    again = io.BytesIO()
    fastavro.schemaless_writer(again, AVRO_NUMBERS, fastavro.schemaless_reader(io.BytesIO(record), AVRO_NUMBERS))
    return is_bad_for_spark and not record.startswith(again.getvalue())


def test_damaged_avro_is_bad_where_from_avro_finds_it_bad(spark: "SparkSession", avro: None) -> None:
    records = avro_records(RECORDS)
    table = pa.table({"number": pa.array(range(len(records))), "value": pa.array(records, pa.binary())})
    frame = spark.createDataFrame(table).orderBy("number")
    read = f"from_avro(value, '{json.dumps(AVRO_SCHEMA)}', map('mode', 'PERMISSIVE'))"
    theirs = [row.text for row in frame.selectExpr(f"cast({read} AS string) AS text").collect()]
    decoded = make_decoder(ColumnFormat("value", AVRO, json.dumps(AVRO_SCHEMA)), AVRO_TYPE).decode(
        pa.array(records, pa.binary())
    )
    ours_table = pa.table({"number": pa.array(range(len(records))), "found": decoded.column})
    ours = spark.createDataFrame(ours_table).orderBy("number").selectExpr("cast(found AS string) AS text").collect()
    # Where klamm has a null, `from_avro` has a struct of nulls.
    nothing = f"{{{', '.join(['null'] * len(AVRO_TYPE))}}}"
    different = [
        record
        for record, their, our in zip(records, theirs, ours, strict=True)
        if their != (our.text or nothing) and not is_known_difference(record, our.text is None, their == nothing)
    ]
    assert different == []
