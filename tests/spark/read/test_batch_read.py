"""Batch queries through Spark, against a klamm cluster."""

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from klamm.spark.options import read_options
from klamm.spark.read import batch
from klamm.spark.source import KlammDataSource
from klamm.testing.cluster import Cluster
from support.paths import ROOT
from support.present import present
from support.spark.producing import numbered, produce
from support.spark.schemas import struct

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MakeTopic = Callable[..., str]


def read(spark: "SparkSession", cluster: Cluster, topic: str, schema: str | None = None, **options: Any) -> "DataFrame":
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
    frame = read(spark, cluster, name, includeHeaders="true")
    assert frame.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    rows = [row.asDict(recursive=True) for row in frame.orderBy("offset").collect()]
    instants = [row.pop("timestamp").astimezone(UTC) for row in rows]
    assert instants == [
        datetime(2023, 11, 14, 22, 13, 20, 123000, UTC),
        datetime(1970, 1, 1, 0, 0, 0, 5000, UTC),
    ]
    assert rows == [
        {
            "key": b"k",
            "value": b"v",
            "topic": name,
            "partition": 1,
            "offset": 0,
            "timestampType": 0,
            "headers": [{"key": "trace", "value": b"\x00\xff"}, {"key": "empty", "value": None}],
        },
        {
            "key": None,
            "value": None,
            "topic": name,
            "partition": 1,
            "offset": 1,
            "timestampType": 0,
            "headers": None,
        },
    ]


def test_a_schema_chooses_columns_and_their_order(spark: "SparkSession", cluster: Cluster, topic: MakeTopic) -> None:
    name = topic()
    produce(cluster.bootstrap, name, [{**record, "headers": [("h", b"x")]} for record in numbered(3)])
    frame = read(spark, cluster, name, "offset BIGINT, value BINARY")
    assert [tuple(row) for row in frame.orderBy("offset").collect()] == [(0, b"0"), (1, b"1"), (2, b"2")]
    headers = read(spark, cluster, name, "headers ARRAY<STRUCT<key: STRING, value: BINARY>>, offset BIGINT NOT NULL")
    assert present(headers.first()).asDict(recursive=True) == {"headers": [{"key": "h", "value": b"x"}], "offset": 0}


def test_a_topic_without_records_and_one_that_is_cut_into_many_tasks(
    spark: "SparkSession", cluster: Cluster, topic: MakeTopic
) -> None:
    name = topic(partitions=2)
    assert read(spark, cluster, name).collect() == []
    produce(cluster.bootstrap, name, [*numbered(100), *numbered(7, partition=1)], **{"batch.num.messages": 9})
    frame = read(spark, cluster, name, "partition INT, offset BIGINT", minPartitions="5")
    assert frame.rdd.getNumPartitions() == 5
    assert sorted(map(tuple, frame.collect())) == [*((0, n) for n in range(100)), *((1, n) for n in range(7))]


def test_many_partitions_share_tasks(spark: "SparkSession", cluster: Cluster, topic: MakeTopic) -> None:
    name = topic(partitions=300)
    produce(cluster.bootstrap, name, [record for number in range(300) for record in numbered(4, number)])
    for options, tasks in (({}, 34), ({"minPartitions": "100"}, 100)):
        frame = read(spark, cluster, name, "partition INT, offset BIGINT", **options)
        assert frame.rdd.getNumPartitions() == tasks
        assert sorted(map(tuple, frame.collect())) == [(number, n) for number in range(300) for n in range(4)]


def test_options_choose_partitions_offsets_and_timestamps(
    spark: "SparkSession", cluster: Cluster, topic: MakeTopic
) -> None:
    """What docs/spark.md shows under *Reading a part of a topic*."""
    name = topic(partitions=3)
    produce(cluster.bootstrap, name, [record for number in range(3) for record in numbered(10, number)])

    def rows(**options: Any) -> tuple[list[tuple[int, int]], int]:
        reader = spark.read.format("klamm").schema("partition INT, offset BIGINT")
        frame = reader.option("kafka.bootstrap.servers", cluster.bootstrap).options(**options).load()
        return sorted(map(tuple, frame.collect())), frame.rdd.getNumPartitions()

    partitions = json.dumps({name: [0, 2]})
    assert rows(assign=partitions) == ([(number, offset) for number in (0, 2) for offset in range(10)], 2)
    first, behind_last = json.dumps({name: {"0": 4, "2": 6}}), json.dumps({name: {"0": 6, "2": 7}})
    by_offset = rows(assign=partitions, startingOffsets=first, endingOffsets=behind_last)
    assert by_offset == ([(0, 4), (0, 5), (2, 6)], 2)
    by_time = rows(assign=partitions, startingTimestamp=1006, endingTimestamp=1008)
    assert by_time == ([(0, 6), (0, 7), (2, 6), (2, 7)], 2)


def test_a_frame_that_is_used_again_has_all_its_rows(spark: "SparkSession", cluster: Cluster, topic: MakeTopic) -> None:
    """Whatever PySpark is told of filters: a data source that takes them would lose rows here."""
    name = topic()
    produce(cluster.bootstrap, name, numbered(10))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read(spark, cluster, name, "offset BIGINT")
        assert (frame.where("offset < 3").count(), frame.count()) == (3, 10)
        assert frame.where("offset < 3").unionAll(frame).count() == 13
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_frame_is_planned_once(spark: "SparkSession", cluster: Cluster, topic: MakeTopic) -> None:
    name = topic()
    produce(cluster.bootstrap, name, numbered(3))
    frame = read(spark, cluster, name, "offset BIGINT")
    assert frame.count() == 3
    produce(cluster.bootstrap, name, numbered(2))
    assert (frame.where("offset >= 0").count(), read(spark, cluster, name, "offset BIGINT").count()) == (3, 5)


@pytest.mark.parametrize(
    ("options", "schema", "told"),
    [
        ({"startingOffsets": "latest"}, None, "a batch query cannot begin at latest"),
        ({"startingOfsets": "latest"}, None, "did you mean startingOffsets?"),
        ({"pushFilters": "true"}, None, "unknown option pushfilters; allowed: "),
        ({"includeHeaders": "maybe"}, None, "allowed: true, false"),
        ({}, "value STRING", "the schema has value string; allowed: key binary, value binary, topic string"),
        ({}, "values BINARY", "the schema has a column values; allowed: key binary"),
        ({}, "offset BIGINT NOT NULL, value BINARY NOT NULL", "value NOT NULL, but a record may have none"),
        ({}, "key BINARY, key BINARY", "the schema has the column key twice"),
    ],
)
def test_what_is_wrong_is_told_in_sparks_error(
    spark: "SparkSession", cluster: Cluster, options: dict[str, str], schema: str | None, told: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        read(spark, cluster, "any", schema, **options).collect()
    assert told in str(caught.value)


def test_planning_imports_no_decoder() -> None:
    code = (
        "import sys, klamm.spark.source, klamm.spark.read.stream;"
        "print([m for m in ('numba', 'kafka') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_process_takes_loaded_modules_out_of_garbage_collections_once(
    cluster: Cluster, topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark's workers look for garbage after each task, before they take the next one."""
    name = topic()
    produce(cluster.bootstrap, name, numbered(3))
    options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": name}
    reader = batch.KlammReader(read_options(options, streaming=False), struct(KlammDataSource({}).schema()))
    frozen: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(len(sys.modules)))
    batch._spare_loaded_modules.cache_clear()
    for _ in range(2):
        assert [rows.num_rows for partition in reader.partitions() for rows in reader.read(partition)] == [3]
    assert len(frozen) == 1
    assert "numba" in sys.modules


def test_an_older_pyspark_can_look_for_data_sources() -> None:
    code = (
        "import sys; sys.modules['pyspark.sql.datasource'] = None\n"
        "import pyspark_klamm; print(hasattr(pyspark_klamm, 'DefaultSource'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "False"
