"""Structs as CSV: the same text as Spark's own `to_csv`, on generated rows."""

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from klamm.spark.formats.encoders.csv import encoder
from klamm.spark.formats.settings import ColumnFormat
from support.spark.odd_records import CSV_ROW, csv_rows


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sep": ";", "nullValue": "-", "emptyValue": "!"},
        {"quote": "'", "escape": "#"},
        {"sep": "||"},
        {"sep": "\\t"},
    ],
)
def test_generated_rows_are_written_as_to_csv_writes_them(spark, options: dict[str, str]) -> None:
    given = spark.createDataFrame(csv_rows(500), StructType.fromDDL(CSV_ROW))
    wanted = [row[0] for row in given.select(F.to_csv(F.struct("*"), options)).coalesce(1).collect()]
    column = given.select(F.struct("*").alias("value")).coalesce(1).toArrow().column("value").combine_chunks()
    encoded = encoder(ColumnFormat("value", "csv", settings=tuple(options.items())), column.type).encode(column)
    found = [data.decode() for data in encoded.to_pylist()]
    assert [pair for pair in zip(found, wanted, strict=True) if pair[0] != pair[1]][:3] == []


@pytest.mark.parametrize(
    ("data_type", "settings", "told"),
    [
        (pa.struct([("a", pa.list_(pa.int32()))]), (), r"value\.a is of type list"),
        (pa.struct([]), (), "the format csv writes a struct with fields"),
    ],
)
def test_what_csv_lacks_is_told_before_a_row_is_seen(data_type: pa.DataType, settings: tuple, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        encoder(ColumnFormat("value", "csv", settings=settings), data_type)
