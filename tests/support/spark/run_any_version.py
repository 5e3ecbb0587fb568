"""What the data source does with one version of PySpark; run as a program by test_pyspark_versions.py.

Arguments: a step, the bootstrap address, a topic to read, one to write to, and a directory for checkpoints and results.
Prints what the step found as JSON, or the first line of the error.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

Rows = list[list[object]]


class Steps:
    def __init__(self, spark: SparkSession, bootstrap: str, source: str, target: str, directory: Path) -> None:
        self.spark = spark
        self.options = {"kafka.bootstrap.servers": bootstrap, "subscribe": source, "startingOffsets": "earliest"}
        self.target = target
        self.directory = directory

    def batch(self) -> object:
        """All columns, chosen ones, and headers."""

        def reader() -> DataFrameReader:
            return self.spark.read.format("klamm").options(**self.options)

        everything = reader().load()
        timestamps = everything.selectExpr("count(timestamp)", "min(timestamp) > timestamp'2001-01-01'").collect()
        chosen = reader().schema("value BINARY, offset BIGINT").load()
        headers = reader().option("includeHeaders", "true").load().where("partition = 0 and offset = 0")
        return {
            "columns": everything.columns,
            "rows": _rows(everything.selectExpr("partition", "offset", "cast(value as string)")),
            "timestamps": [list(row) for row in timestamps],
            "chosen": [chosen.columns, chosen.count()],
            "headers": [[header.key, bytes(header.value).decode()] for header in headers.collect()[0].headers],
            "nothing": reader()
            .option("endingOffsets", json.dumps({self.options["subscribe"]: {"0": 0, "1": 0}}))
            .load()
            .count(),
        }

    def write(self) -> object:
        frame = self.spark.createDataFrame(
            [("k", "one", [("h", bytearray(b"1"))]), (None, "two", None)],
            "key STRING, value STRING, headers ARRAY<STRUCT<key: STRING, value: BINARY>>",
        )
        writer = frame.coalesce(1).write.format("klamm").mode("append").options(**self.options)
        writer.option("topic", self.target).save()
        back = self.spark.read.format("klamm").options(**self.options, includeHeaders="true")
        rows = back.option("subscribe", self.target).load().orderBy("offset").collect()
        return [
            [_text(row.key), _text(row.value), [[h.key, _text(h.value)] for h in row.headers or ()]] for row in rows
        ]

    def table(self) -> object:
        """The rows of a table of the session's catalog, whose options Spark keeps."""
        options = ", ".join(f"'{name}' '{value}'" for name, value in self.options.items())
        self.spark.sql(f"CREATE TABLE records USING klamm OPTIONS ({options})")
        return _rows(self.spark.table("records").selectExpr("partition", "offset", "cast(value as string)"))

    def stream(self) -> object:
        """What is new since the last run, with availableNow: the rows of this run alone."""
        rows = self.directory / "rows"
        known = _known(self.spark, rows)
        self._stream_query("parquet").start(str(rows)).awaitTermination()
        found = self.spark.read.parquet(str(rows)) if rows.exists() else None
        return sorted(row for row in (_rows(found) if found is not None else []) if row not in known)

    def limited_stream(self) -> object:
        """The number of rows in each micro-batch of at most 40 rows."""
        self.options["maxOffsetsPerTrigger"] = "40"
        query = self._stream_query("noop").start()
        query.awaitTermination()
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    def running_stream(self) -> object:
        """A stream with the ordinary trigger; stopped, and started again from its checkpoint after a write."""
        rows = self.directory / "running"
        query = self._stream_query("parquet", available_now=False).start(str(rows))
        query.processAllAvailable()
        query.stop()
        before = len(_known(self.spark, rows))
        self.spark.createDataFrame([("later",)], "value STRING").write.format("klamm").mode("append").options(
            **self.options
        ).option("topic", self.options["subscribe"]).save()
        query = self._stream_query("parquet", available_now=False).start(str(rows))
        query.processAllAvailable()
        query.stop()
        return [before, len(_known(self.spark, rows))]

    def stream_write(self) -> object:
        stream = self.spark.readStream.format("klamm").options(**self.options, includeHeaders="true").load()
        writer = stream.writeStream.format("klamm").options(**self.options).option("topic", self.target)
        writer.option("checkpointLocation", str(self.directory / "out")).trigger(
            availableNow=True
        ).start().awaitTermination()
        back = self.spark.read.format("klamm").options(**self.options).option("subscribe", self.target).load()
        return sorted(str(_text(row.value)) for row in back.collect())

    def _stream_query(self, sink: str, *, available_now: bool = True) -> DataStreamWriter:
        frame = self.spark.readStream.format("klamm").options(**self.options).load()
        query = frame.selectExpr("partition", "offset", "cast(value as string)").writeStream.format(sink)
        query = query.option("checkpointLocation", str(self.directory / f"checkpoint-{sink}-{available_now}"))
        return query.trigger(availableNow=True) if available_now else query


def _rows(frame: DataFrame) -> Rows:
    return sorted(list(row) for row in frame.collect())


def _known(spark: SparkSession, directory: Path) -> Rows:
    return _rows(spark.read.parquet(str(directory))) if directory.exists() else []


def _text(value: object) -> str | None:
    return None if value is None else bytes(value).decode()  # type: ignore[call-overload]


def main(steps: str, *arguments: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", f"{arguments[-1]}/warehouse")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    bootstrap, source, target, directory = arguments
    every = Steps(spark, bootstrap, source, target, Path(directory))
    found: dict[str, object] = {}
    for step in steps.split(","):
        run: Callable[[], object] = getattr(every, step)
        try:
            found[step] = run()
        except Exception as error:
            found[step] = str(error)
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
