"""Typed rows through Spark, against a klamm cluster: schemas, modes, batches and streams."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from klamm.spark import arrow
from klamm.testing.cluster import Cluster
from support.spark.producing import produce

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MakeTopic = Callable[..., str]

SCHEMA = "offset bigint, value struct<id: bigint, name: string>, _corrupt_record binary"
RECORDS = [b'{"id": 1, "name": "one", "more": [1, 2]}', None, b'{"id": "x"}', b'{"id": 3', b'{"name": "four"}']


def read(spark: "SparkSession", cluster: Cluster, topic: str, schema: str | None = None, **options: Any) -> "DataFrame":
    reader = spark.read.format("klamm").option("kafka.bootstrap.servers", cluster.bootstrap).option("subscribe", topic)
    if schema is not None:
        reader = reader.schema(schema)
    return reader.options(**options).load()


def rows(frame: "DataFrame") -> list[dict[str, object]]:
    return [row.asDict(recursive=True) for row in frame.orderBy("offset").collect()]


@pytest.fixture(scope="module")
def documents(cluster: Cluster) -> str:
    cluster.create_topic("documents", partitions=1)
    produce(cluster.bootstrap, "documents", [{"value": value, "key": b'{"k": 7}'} for value in RECORDS])
    return "documents"


def test_bad_records_are_null_and_their_bytes_in_a_column_of_their_own(
    spark: "SparkSession", cluster: Cluster, documents: str
) -> None:
    assert rows(read(spark, cluster, documents, SCHEMA, **{"value.format": "json"})) == [
        {"offset": 0, "value": {"id": 1, "name": "one"}, "_corrupt_record": None},
        {"offset": 1, "value": None, "_corrupt_record": None},
        {"offset": 2, "value": None, "_corrupt_record": b'{"id": "x"}'},
        {"offset": 3, "value": None, "_corrupt_record": b'{"id": 3'},
        {"offset": 4, "value": {"id": None, "name": "four"}, "_corrupt_record": None},
    ]


def test_malformed_records_are_dropped(spark: "SparkSession", cluster: Cluster, documents: str) -> None:
    schema = "offset bigint, key struct<k: int>, value struct<id: bigint>"
    options = {"value.format": "json", "key.format": "json", "mode": "dropMalformed"}
    assert rows(read(spark, cluster, documents, schema, **options)) == [
        {"offset": 0, "key": {"k": 7}, "value": {"id": 1}},
        {"offset": 1, "key": {"k": 7}, "value": None},
        {"offset": 4, "key": {"k": 7}, "value": {"id": None}},
    ]


def test_a_malformed_record_ends_the_query_with_its_place_and_not_its_bytes(
    spark: "SparkSession", cluster: Cluster, documents: str
) -> None:
    frame = read(spark, cluster, documents, "value struct<id: bigint>", **{"value.format": "json", "mode": "FAILFAST"})
    with pytest.raises(PySparkException) as caught:
        frame.collect()
    assert "documents-0 at offset 2: the value cannot be decoded as json: a field has a value" in str(caught.value)
    assert '"x"' not in str(caught.value)


def test_the_schema_may_be_an_option(spark: "SparkSession", cluster: Cluster, documents: str) -> None:
    options = {"value.format": "json", "value.schema": "id BIGINT, `name` STRING", "key.format": "string"}
    frame = read(spark, cluster, documents, **options)
    assert frame.dtypes[:2] == [("key", "string"), ("value", "struct<id:bigint,name:string>")]
    assert rows(frame)[0]["value"] == {"id": 1, "name": "one"}
    with pytest.raises(PySparkException, match=r"needs the schema of the column: in .schema\(\)"):
        read(spark, cluster, documents, **{"value.format": "json"})


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("value binary", "allowed with value.format=json: value struct<...>"),
        ("value struct<a: int NOT NULL>", "the schema has value.a NOT NULL, but a record may lack it"),
        ("value struct<a: interval day to second>", "which no format has"),
        ("value struct<a: int>, _corrupt_record string", "allowed: _corrupt_record binary"),
        ("offset bigint, _corrupt_record binary", "the schema has _corrupt_record without value"),
        ("value struct<a: int>, other int", "the schema has a column other"),
    ],
)
def test_a_schema_that_cannot_be_filled_is_refused(
    spark: "SparkSession", cluster: Cluster, documents: str, schema: str, told: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        read(spark, cluster, documents, schema, **{"value.format": "json"}).collect()
    assert told in str(caught.value)


def test_a_stream_has_typed_rows(spark: "SparkSession", cluster: Cluster, documents: str, tmp_path: Path) -> None:
    reader = spark.readStream.format("klamm").option("kafka.bootstrap.servers", cluster.bootstrap).schema(SCHEMA)
    options = {"subscribe": documents, "startingOffsets": "earliest", "value.format": "json"}
    found: list[object] = []
    query = (
        reader.options(**options)
        .load()
        .writeStream.foreachBatch(lambda frame, _: found.extend(row["value"] for row in rows(frame)))
        .trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    query.awaitTermination()
    assert found == [{"id": 1, "name": "one"}, None, None, None, {"id": None, "name": "four"}]
    failing = (
        reader.options(**options, mode="FAILFAST")
        .load()
        .writeStream.format("noop")
        .trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "failing"))
        .start()
    )
    with pytest.raises(StreamingQueryException, match="documents-0 at offset 2"):
        failing.awaitTermination()


def test_arrow_has_the_same_rows_without_spark(cluster: Cluster, documents: str) -> None:
    import pyarrow as pa

    schema = pa.schema(
        [
            ("offset", pa.int64()),
            ("value", pa.struct([("id", pa.int64()), ("name", pa.string())])),
            ("_corrupt_record", pa.binary()),
        ]
    )
    records = arrow.read(
        cluster.bootstrap, subscribe=documents, schema=schema, options={"value.format": "json"}
    ).read_all()
    assert records.schema == schema
    assert records.column("value").to_pylist() == [
        {"id": 1, "name": "one"},
        None,
        None,
        None,
        {"id": None, "name": "four"},
    ]
    assert records.column("_corrupt_record").to_pylist() == [None, None, b'{"id": "x"}', b'{"id": 3', None]
    with pytest.raises(ValueError, match=r"value\.format=json needs schema"):
        arrow.read(cluster.bootstrap, subscribe=documents, options={"value.format": "json"})
    with pytest.raises(ValueError, match="schema and columns exclude each other"):
        arrow.read(cluster.bootstrap, subscribe=documents, schema=schema, columns=["value"])
