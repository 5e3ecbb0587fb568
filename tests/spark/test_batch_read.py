"""Batch queries through Spark, against a klamm cluster."""

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from producing import produce

from klamm.testing.cluster import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MakeTopic = Callable[..., str]


def read(
    spark: "SparkSession", cluster: Cluster, topic: str, schema: str | None = None, **options: object
) -> "DataFrame":
    reader = spark.read.format("klamm").option("kafka.bootstrap.servers", cluster.bootstrap).option("subscribe", topic)
    if schema is not None:
        reader = reader.schema(schema)
    return reader.options(**options).load()


def test_all_columns_of_a_record(spark: "SparkSession", cluster: Cluster, topic: MakeTopic) -> None:
    name = topic(partitions=2)
    headers = [("trace", b"\x00\xff"), ("empty", None)]
    produce(
        cluster.bootstrap,
        name,
        [
            {"key": b"k", "value": b"v", "partition": 1, "timestamp": 1_700_000_000_123, "headers": headers},
            {"key": None, "value": None, "partition": 1, "timestamp": 5},
        ],
    )
    rows = read(spark, cluster, name, includeHeaders="true").orderBy("offset").collect()
    assert [row.asDict(recursive=True) for row in rows] == [
        {
            "key": b"k",
            "value": b"v",
            "topic": name,
            "partition": 1,
            "offset": 0,
            "timestamp": datetime(2023, 11, 14, 22, 13, 20, 123000),
            "timestampType": 0,
            "headers": [{"key": "trace", "value": b"\x00\xff"}, {"key": "empty", "value": None}],
        },
        {
            "key": None,
            "value": None,
            "topic": name,
            "partition": 1,
            "offset": 1,
            "timestamp": datetime(1970, 1, 1, 0, 0, 0, 5000),
            "timestampType": 0,
            "headers": None,
        },
    ]
