"""An example to copy: reads sales as JSON, and writes each product's total of each minute as JSON.

In:   {"product": "tea", "amount": 2.5, "time": "2024-05-01T10:00:07Z"}
Out:  key tea@2024-05-01T10:00:00Z
      value {"product":"tea","begin":"2024-05-01T10:00:00.000Z","total":2.5,"sales":1}

A total is written once, as soon as a sale is younger by more than `late`. Later sales of that minute are ignored, and
so are records with other JSON. With the same checkpoint, another run continues where the last run ended. After a run
that died, the totals of its last micro-batch may be written twice.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SALE = "product string, amount double, time timestamp"


def totals(records: "DataFrame", *, window: str = "1 minute", late: str = "10 minutes") -> "DataFrame":
    """The columns key and value of the totals, from records with the column value."""
    from pyspark.sql import functions as f

    sale = f.from_json(f.col("value").cast("string"), SALE)
    sales = records.select(sale.alias("sale")).select("sale.*").dropna(subset=["product", "amount", "time"])
    grouped = sales.withWatermark("time", late).groupBy(f.window("time", window), "product")
    summed = grouped.agg(f.sum("amount").alias("total"), f.count("amount").alias("sales"))
    begin = f.col("window.start")
    name = f.concat("product", f.lit("@"), f.date_format(begin, "yyyy-MM-dd'T'HH:mm:ssX"))
    return summed.select(
        name.alias("key"), f.to_json(f.struct("product", begin.alias("begin"), "total", "sales")).alias("value")
    )


def transform(
    spark: "SparkSession",
    options: Mapping[str, str],
    source: str,
    target: str,
    checkpoint: str,
    *,
    window: str = "1 minute",
    late: str = "10 minutes",
) -> "StreamingQuery":
    """Starts a query that reads the current records of `source`, writes their totals to `target`, and ends.

    `options` are `kafka.*` of the reader and the writer. For a query that does not end, leave the trigger out.
    """
    reader = spark.readStream.format("klamm").options(**options).option("subscribe", source)
    records = reader.option("startingOffsets", "earliest").load()
    writer = totals(records, window=window, late=late).writeStream.format("klamm").options(**options)
    return (
        writer.option("topic", target)
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
