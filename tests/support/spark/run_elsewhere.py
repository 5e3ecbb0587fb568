"""Reads and writes with a Spark session that is not the tests' own; run as a program by test_deployments.py.

Arguments: how the session is made (`master` or `remote`), its URL, the bootstrap address, a topic to read and one to
write to. Prints the sorted rows of a batch query and of an availableNow query as JSON. With Spark Connect the format is
registered; else PySpark must find it.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
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


def main(how: str, url: str, bootstrap: str, topic: str, target: str) -> None:
    spark = connected(how, url)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    batch = spark.read.format("klamm").options(**options).load().select("partition", "offset", "value")
    with tempfile.TemporaryDirectory() as directory:
        stream = spark.readStream.format("klamm").options(**options).load()
        writer = stream.select("partition", "offset", "value").writeStream.format("parquet")
        query = writer.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True)
        query.start(f"{directory}/rows").awaitTermination()
        print(json.dumps([rows(batch), rows(spark.read.parquet(f"{directory}/rows"))]))
        if how == "master":
            write_with_a_failure(spark, bootstrap, target, directory)
        else:
            batch.select("value").write.format("klamm").mode("append").options(**options).option("topic", target).save()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
