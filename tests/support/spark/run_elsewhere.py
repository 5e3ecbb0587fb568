"""Reads and writes with a Spark session that is not the tests' own; run as a program by test_deployments.py.

Arguments: how the session is made (`master` or `remote`), its URL, the bootstrap address, a topic to read, one to write
to in a batch, and one to write to with a stream. Prints the sorted rows of a batch query, of an availableNow query and,
with executors of their own, of a batch query with speculation, as JSON. With Spark Connect the format is registered;
else PySpark must find it.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import klamm.spark


def connected(how: str, url: str) -> SparkSession:
    if how == "remote":
        spark = SparkSession.builder.remote(url).getOrCreate()
        klamm.spark.register(spark)
        return spark
    builder = SparkSession.builder.master(url).config("spark.ui.enabled", "false")
    return (
        builder.config("spark.executor.memory", "512m")
        .config("spark.executor.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.speculation", "true")
        .getOrCreate()
    )


def rows(frame: DataFrame) -> list[list[object]]:
    return sorted([p, o, v.decode()] for p, o, v in frame.collect())


def write_with_a_failure(spark: SparkSession, bootstrap: str, topic: str, directory: str) -> None:
    """20,000 rows in one task, whose first attempt fails behind 5,000 of them."""
    marker = Path(directory, "failed")

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            yield batch
            if number == 1 and not marker.exists():
                marker.touch()
                raise RuntimeError("the first attempt fails")

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 5000)
    frame = spark.range(0, 20_000, 1, 1).selectExpr("repeat(cast(id as string), 300) as value")
    writer = frame.mapInArrow(fail_once, "value string").write.format("klamm").mode("append")
    writer.option("kafka.bootstrap.servers", bootstrap).option("topic", topic).save()
    assert marker.exists()


def speculated(frame: DataFrame, directory: str, name: str) -> DataFrame:
    """The frame, where the first attempt of a task waits until Spark has begun another one beside it."""
    marker = Path(directory, name)

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.partitionId() == 0:
            if context.attemptNumber() > 0:
                marker.touch()
            while not marker.exists():
                time.sleep(0.05)

    return frame.mapInArrow(wait, frame.schema)


def main(how: str, url: str, bootstrap: str, topic: str, target: str, streamed: str) -> None:
    spark = connected(how, url)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    batch = spark.read.format("klamm").options(**options).load().select("partition", "offset", "value")
    with tempfile.TemporaryDirectory() as directory:
        stream = spark.readStream.format("klamm").options(**options).load()
        writer = stream.select("partition", "offset", "value").writeStream.format("parquet")
        query = writer.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True)
        query.start(f"{directory}/rows").awaitTermination()
        sink = stream.select("value").writeStream.format("klamm").options(**options).option("topic", streamed)
        sink.option("checkpointLocation", f"{directory}/out").trigger(availableNow=True).start().awaitTermination()
        found = [rows(batch), rows(spark.read.parquet(f"{directory}/rows"))]
        if how == "master":
            found.append(rows(speculated(batch, directory, "read")))
            write_with_a_failure(spark, bootstrap, target, directory)
            twice = speculated(batch.select("value"), directory, "written").write.format("klamm").mode("append")
            twice.options(**options).option("topic", streamed).save()
        else:
            batch.select("value").write.format("klamm").mode("append").options(**options).option("topic", target).save()
        print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
