"""Streaming queries through Spark, against a klamm cluster."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.errors import StreamingQueryException

from klamm.testing.cluster import Cluster
from support.spark.producing import numbered, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MakeTopic = Callable[..., str]
Row = tuple[int, int, bytes]


class Query:
    """A streaming query that keeps the rows of each batch; each `run` goes on where the one before ended."""

    def __init__(
        self, spark: "SparkSession", cluster: Cluster, topic: str, directory: Path, **options: str | int
    ) -> None:
        self._spark = spark
        self.options: dict[str, str | int] = {
            "kafka.bootstrap.servers": cluster.bootstrap,
            "subscribe": topic,
            "startingOffsets": "earliest",
            **options,
        }
        self._checkpoint = str(directory / "checkpoint")
        self.batches: dict[int, list[Row]] = {}
        self.fail_in_batch: int | None = None

    def has_read(self, rows: int) -> bool:
        return sum(map(len, self.batches.values())) >= rows

    def start(self, **trigger: Any) -> "StreamingQuery":
        reader = self._spark.readStream.format("klamm").schema("partition INT, offset BIGINT, value BINARY")
        writer = reader.options(**self.options).load().writeStream.foreachBatch(self._keep)
        return writer.option("checkpointLocation", self._checkpoint).trigger(**trigger).start()

    def run(self) -> list[Row]:
        """Reads what there is, and returns the rows of this run."""
        before = set(self.batches)
        query = self.start(availableNow=True)
        assert query.awaitTermination(120)
        return sorted(row for batch in self.batches if batch not in before for row in self.batches[batch])

    def _keep(self, frame: Any, batch: int) -> None:
        if batch == self.fail_in_batch:
            raise RuntimeError("this batch is to fail")
        self.batches[batch] = sorted(map(tuple, frame.collect()))


def rows(count: int, partition: int = 0, first: int = 0, first_offset: int | None = None) -> list[Row]:
    offset = first if first_offset is None else first_offset
    return [(partition, offset + number, str(first + number).encode()) for number in range(count)]


def test_what_is_available_now_in_batches_and_on_after_a_restart(
    spark: "SparkSession", cluster: Cluster, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(partitions=2)
    produce(cluster.bootstrap, name, [*numbered(80), *numbered(20, partition=1)])
    query = Query(spark, cluster, name, tmp_path, maxOffsetsPerTrigger=50)
    assert query.run() == [*rows(80), *rows(20, partition=1)]
    assert [len(batch) for batch in query.batches.values()] == [50, 50]
    assert query.run() == []
    produce(cluster.bootstrap, name, numbered(5, partition=1, first=20))
    assert query.run() == rows(5, partition=1, first=20)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_batch_that_failed_is_repeated_and_nothing_is_missed(
    spark: "SparkSession", cluster: Cluster, topic: MakeTopic, tmp_path: Path, failing: int
) -> None:
    """The query begins at latest. When Spark asks for the begin of the first batch anew, latest is somewhere else."""
    name = topic()
    produce(cluster.bootstrap, name, numbered(3))
    query = Query(spark, cluster, name, tmp_path, startingOffsets="latest")
    query.fail_in_batch = failing
    running = query.start(processingTime="0 seconds")
    if failing == 1:
        cluster.until(lambda: 0 in query.batches)
        produce(cluster.bootstrap, name, numbered(4, first=3))
    with pytest.raises(StreamingQueryException, match="this batch is to fail"):
        running.awaitTermination(120)
    if failing == 0:
        produce(cluster.bootstrap, name, numbered(4, first=3))
    produce(cluster.bootstrap, name, numbered(2, first=7))
    query.fail_in_batch = None
    assert query.run() == rows(6, first=3)


def test_a_topic_that_is_created_anew_between_runs(
    spark: "SparkSession", cluster: Cluster, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic()
    produce(cluster.bootstrap, name, numbered(3))
    query = Query(spark, cluster, name, tmp_path)
    assert query.run() == rows(3)
    cluster.delete_topic(name)
    cluster.create_topic(name, partitions=2)
    produce(cluster.bootstrap, name, [*numbered(4, first=10), *numbered(1, partition=1)])
    with pytest.raises(StreamingQueryException, match=f"topic {name} was deleted and created again"):
        query.run()
    goes_on = Query(spark, cluster, name, tmp_path, failOnDataLoss="false")
    assert goes_on.run() == [*rows(4, first=10, first_offset=0), *rows(1, partition=1)]


def test_a_topic_that_was_missing_and_comes_back_is_read_on(
    spark: "SparkSession", cluster: Cluster, topic: MakeTopic, tmp_path: Path
) -> None:
    """Missing to the query: its pattern does not name the topic for a while, as brokers that do not report it."""
    name = topic()
    other = topic()
    for each in (name, other):
        produce(cluster.bootstrap, each, numbered(3))
    options: dict[str, str | int] = {"failOnDataLoss": "false", "fetchOffset.numRetries": 0}
    query = Query(spark, cluster, name, tmp_path, subscribe=f"{name},{other}", **options)
    assert query.run() == sorted([*rows(3), *rows(3)])
    query.options["subscribe"] = other
    produce(cluster.bootstrap, name, numbered(2, first=3))
    produce(cluster.bootstrap, other, numbered(1, first=3))
    assert query.run() == rows(1, first=3)
    query.options["subscribe"] = f"{name},{other}"
    assert query.run() == rows(2, first=3)


def test_an_uncommitted_first_batch_of_the_java_connector_is_refused(
    spark: "SparkSession", cluster: Cluster, topic: MakeTopic, tmp_path: Path
) -> None:
    """Files as that connector and Spark write them: it began at latest, which was 4; the batch ends at 10."""
    name = topic()
    produce(cluster.bootstrap, name, numbered(15))
    checkpoint = tmp_path / "checkpoint"
    for file, lines in {
        "metadata": ['{"id":"8f13b8a3-4f0c-4b52-9f31-6a31b5a9a3a5"}'],
        "sources/0/0": ["\0v1", f'{{"{name}":{{"0":4}}}}'],
        "offsets/0": ["v1", '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}', f'{{"{name}":{{"0":10}}}}'],
    }.items():
        (checkpoint / file).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / file).write_text("\n".join(lines))
    query = Query(spark, cluster, name, tmp_path, startingOffsets="latest")
    with pytest.raises(StreamingQueryException, match=r"its first batch has not been committed.*commits/0"):
        query.run()
    assert query.batches == {}


def test_topics_that_come_later_are_read_from_their_first_record(
    spark: "SparkSession", cluster: Cluster, topic: MakeTopic, tmp_path: Path
) -> None:
    first = topic()
    produce(cluster.bootstrap, first, numbered(3))
    query = Query(spark, cluster, first, tmp_path)
    del query.options["subscribe"]
    query.options.update(subscribePattern=f"{first}(-later)?", startingOffsets="latest")
    running = query.start(processingTime="0 seconds")
    cluster.until(lambda: 0 in query.batches)
    cluster.create_topic(f"{first}-later", partitions=2)
    produce(cluster.bootstrap, f"{first}-later", [*numbered(2), *numbered(2, partition=1)])
    cluster.until(lambda: sum(map(len, query.batches.values())) >= 4)
    running.stop()
    assert query.batches.pop(0) == []
    assert sorted(row for batch in query.batches.values() for row in batch) == [*rows(2), *rows(2, partition=1)]


def test_a_stream_outlives_its_brokers(
    spark: "SparkSession", klamm_cluster_factory: Callable[..., Cluster], tmp_path: Path
) -> None:
    """Each broker is killed in turn while a query runs: every record is read, and once."""
    cluster = klamm_cluster_factory(3, zookeeper_session_timeout_ms=1500, properties={"log.retention.ms": -1})
    cluster.create_topic("t", partitions=3)
    query = Query(spark, cluster, "t", tmp_path)
    running = query.start(processingTime="0 seconds")
    for broker in range(3):
        cluster.kill(broker)
        produce(cluster.bootstrap, "t", [r for number in range(3) for r in numbered(20, number, first=20 * broker)])
        cluster.start(broker)
        cluster.until(partial(query.has_read, 60 * (broker + 1)), timeout=120)
    running.stop()
    everything = sorted(row for batch in query.batches.values() for row in batch)
    assert everything == [row for number in range(3) for row in rows(60, number)]


def test_offsets_are_committed_to_a_group(
    spark: "SparkSession", cluster: Cluster, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(partitions=2)
    produce(cluster.bootstrap, name, [*numbered(30), *numbered(10, partition=1)])
    group = f"group-of-{name}"
    options: dict[str, str | int] = {"kafka.group.id": group, "commitOffsets": "true", "maxOffsetsPerTrigger": 20}
    query = Query(spark, cluster, name, tmp_path, **options)
    query.run()
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    committed = consumer.committed([TopicPartition(name, 0), TopicPartition(name, 1)], timeout=120)
    consumer.close()
    assert [partition.offset for partition in committed] == [30, 10]


def test_a_query_waits_for_enough_records_and_reports_the_latest_offset(
    spark: "SparkSession", cluster: Cluster, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic()
    produce(cluster.bootstrap, name, numbered(1))
    query = Query(spark, cluster, name, tmp_path, minOffsetsPerTrigger=3, maxTriggerDelay="1h")
    running = query.start(processingTime="0 seconds")
    cluster.until(lambda: 0 in query.batches)
    produce(cluster.bootstrap, name, numbered(2, first=1))
    cluster.until(lambda: (latest_offset(running) or {}).get(name) == {"0": 3})
    produce(cluster.bootstrap, name, numbered(1, first=3))
    cluster.until(lambda: 1 in query.batches)
    running.stop()
    assert query.batches == {0: rows(1), 1: rows(3, first=1)}


def latest_offset(query: "StreamingQuery") -> dict[str, Any] | None:
    progress = query.lastProgress
    return json.loads(progress.sources[0].latestOffset) if progress and progress.sources[0].latestOffset else None
