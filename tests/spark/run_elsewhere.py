"""Reads a topic with a Spark session that is not the tests' own; run as a program by test_deployments.py.

Arguments: how the session is made (`master` or `remote`), its URL, the bootstrap address and the topic. Prints the
sorted rows of a batch query and of an availableNow query as JSON. With Spark Connect the format is registered; else
PySpark must find it.
"""

import json
import sys
import tempfile

from pyspark.sql import SparkSession

import klamm.spark


def main(how: str, url: str, bootstrap: str, topic: str) -> None:
    builder = SparkSession.builder.remote(url) if how == "remote" else SparkSession.builder.master(url)
    spark = (
        builder.config("spark.ui.enabled", "false")
        .config("spark.executor.memory", "512m")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    if how == "remote":
        klamm.spark.register(spark)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    batch = spark.read.format("klamm").options(**options).load().select("partition", "offset", "value")
    with tempfile.TemporaryDirectory() as directory:
        stream = spark.readStream.format("klamm").options(**options).load()
        writer = stream.select("partition", "offset", "value").writeStream.format("parquet")
        query = writer.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True)
        query.start(f"{directory}/rows").awaitTermination()
        streamed = spark.read.parquet(f"{directory}/rows")
        print(json.dumps([sorted([p, o, v.decode()] for p, o, v in frame.collect()) for frame in (batch, streamed)]))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
